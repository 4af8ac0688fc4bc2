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
