//! What is wrong with the value of an option, and what would be right: one sentence, wherever the value comes from.
//!
//! Rule: every answer to a wrong value is made here, of the command line ([`sentence`]) as of a file or the environment ([`reason`]), so no
//! user reads a parser's own words about digits and syntax.

use std::error::Error as _;
use std::ffi::OsString;
use std::net::AddrParseError;
use std::num::{IntErrorKind, ParseFloatError, ParseIntError};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command};
use headworks_server::nearest_name;

/// The sentence for a wrong value of the command line `words`, with the option's name; none for another error.
pub fn sentence(error: &clap::Error, mut command: &Command, words: &[OsString]) -> Option<String> {
    if !matches!(error.kind(), ErrorKind::ValueValidation | ErrorKind::InvalidValue) {
        return None;
    }
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    // An empty value is a missing one, of which clap speaks plainly.
    let word = text(ContextKind::InvalidValue)?;
    let shown = text(ContextKind::InvalidArg)?;
    if word.is_empty() && error.source().is_none() {
        return None;
    }
    let end = |letter: char| matches!(letter, ' ' | '[' | '=');
    let name =
        shown.split(end).next().filter(|name| name.starts_with("--"))?.trim_start_matches('-');
    for word in words {
        command = word.to_str().and_then(|word| command.find_subcommand(word)).unwrap_or(command);
    }
    let arg = command.get_arguments().find(|arg| arg.get_long() == Some(name));
    Some(format!("{name}: {}", reason(error, arg, word)))
}

/// clap's objection to a value in one line, without the option's name.
pub fn reason(error: &clap::Error, arg: Option<&Arg>, word: &str) -> String {
    if let Some(source) = error.source() {
        let number = "16".to_owned();
        let default = || arg?.get_default_values().first()?.to_str().map(str::to_owned);
        if let Some(wrong) = source.downcast_ref::<ParseIntError>() {
            return match wrong.kind() {
                IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => {
                    format!("`{word}` is too large a number")
                }
                _ => format!(
                    "`{word}` is not a whole number such as {}",
                    default().unwrap_or(number)
                ),
            };
        }
        if source.is::<ParseFloatError>() {
            return format!("`{word}` is not a number such as {}", default().unwrap_or(number));
        }
        if source.is::<AddrParseError>() {
            return format!("`{word}` is no IP address; 127.0.0.1, 0.0.0.0 and ::1 are");
        }
        return match source.to_string() {
            // Of clap's own check of a range.
            range if range.starts_with(&format!("{word} is not in ")) => {
                range.replacen(" is not in ", " is not within ", 1)
            }
            short if !word.is_empty() && (short.contains(word) || quotes_part(&short, word)) => {
                short
            }
            short => format!("`{word}`: {short}"),
        };
    }
    if let Some(ContextValue::Strings(valid)) = error.get(ContextKind::ValidValue)
        && !valid.is_empty()
    {
        let near = nearest_name(word, valid.iter().map(String::as_str));
        let near = near.map_or_else(String::new, |near| format!("; the nearest is `{near}`"));
        return format!("`{word}` is none of {}{near}", valid.join(", "));
    }
    let text = error.render().to_string();
    let lines = text.lines().map(str::trim).take_while(|line| !line.starts_with("For more"));
    let lines: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
    lines.join(" ").replacen("error: ", "", 1)
}

/// Whether a sentence begins with a part of a value, as that of one entry of a list does.
fn quotes_part(sentence: &str, word: &str) -> bool {
    let quoted = sentence.strip_prefix('`').and_then(|rest| rest.split_once('`'));
    quoted.is_some_and(|(part, _)| word.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(line: &str) -> String {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let command = crate::command();
        match command.clone().try_get_matches_from(&words) {
            Ok(_) => "good".to_owned(),
            Err(error) => {
                sentence(&error, &command, &words).unwrap_or_else(|| error.render().to_string())
            }
        }
    }

    #[test]
    fn wrong_values_are_answered_by_what_is_right() {
        for (options, expected) in [
            ("-p http", "port: `http` is no port; 0 to 65535 are, and 10809 is that of NBD"),
            ("-p -1", "port: `-1` is no port"),
            ("-p 70000", "port: `70000` is no port"),
            ("-i localhost", "ip-addr: `localhost` is no IP address; 127.0.0.1, "),
            ("--poll-us 1ms", "poll-us: `1ms` is not a whole number such as 50"),
            ("--shards two", "shards: `two` is not a whole number such as 1"),
            ("--shards 100000", "shards: 100000 is not within 0..=65535"),
            ("--requests 99999999999999999999", "is too large a number"),
            ("--cpus 0-3", "cpus: `0-3` is no number of a CPU; a list is written 0,1,2,3"),
            ("--log file", "log: `file` is none of stderr, syslog, null"),
            ("--log sdterr", "; the nearest is `stderr`"),
            ("--sandbox yes", "sandbox: `yes` is none of on, off"),
            ("--spread=x", "spread: `x` is neither on nor off"),
            ("--buffers abc", "buffers: `abc` is not a size"),
            ("--metrics 9100", "metrics: `9100` is not an address and a port such as"),
            ("--nr-requests many", "nr-requests: `many` is not a whole number such as 16"),
            ("--limit iops=5", "limit: `iops` is no limit; did you mean iops-total?"),
            ("--stop-timeout -5", "stop-timeout: `-5` is not a time"),
        ] {
            let said = said(&format!("headworks serve disk.img {options}"));
            assert!(said.contains(expected) && !said.contains('\n'), "{options}: {said}");
        }
    }

    /// Every option of `serve` with three values that hardly one takes.
    #[test]
    fn no_option_answers_in_words_of_a_parser() {
        let command = crate::command();
        let serve = command.find_subcommand("serve").unwrap();
        for arg in serve.get_arguments().filter(|arg| arg.get_action().takes_values()) {
            let Some(long) = arg.get_long() else { continue };
            for value in ["nonsense words", "-1", "99999999999999999999"] {
                let line =
                    ["headworks", "serve", &format!("--{long}={value}"), "x"].map(OsString::from);
                let Err(error) = command.clone().try_get_matches_from(&line) else { continue };
                let said = sentence(&error, &command, &line)
                    .unwrap_or_else(|| panic!("--{long}={value}: {}", error.render()));
                let is_plain = said.starts_with(&format!("{long}: ")) && said.contains(value);
                let is_foreign =
                    ["digit", "syntax", "invalid"].iter().any(|word| said.contains(word));
                assert!(
                    is_plain && !is_foreign && !said.contains('\n'),
                    "--{long}={value}: {said}"
                );
            }
        }
    }
}
