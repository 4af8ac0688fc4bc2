//! Errors as all programs print them: one sentence, and exit code 2 for a command line that is wrong.

use std::ffi::OsString;
use std::process::ExitCode;

use crate::{shown, value_words};

/// Exit code of a usage error; nothing was done.
pub const USAGE: u8 = 2;

/// Prints an error, one line, to standard error in the form that all commands share.
pub fn complain(error: impl std::fmt::Display) {
    let error = shown::line(error.to_string());
    shown::print_error(format_args!("headworks: error: {error}"));
}

/// Prints an error with further lines, as those of usage or of what a program said.
pub fn complain_in_lines(text: &str) {
    let (error, further) = text.split_once('\n').unwrap_or((text, ""));
    complain(error);
    let mut lines = shown::Lines::default();
    further.lines().for_each(|line| lines.push(line));
    shown::print_error(lines.into_text());
}

/// Prints help and version of a command line to standard output, its errors like every other error.
pub fn explain(error: &clap::Error, command: &clap::Command) -> ExitCode {
    if !error.use_stderr() {
        // Standard output may be closed.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let sentence = no_text(error, &words).or_else(|| value_words::sentence(error, command, &words));
    match sentence {
        Some(sentence) => complain(sentence),
        None => {
            let text = error.render().to_string();
            complain_in_lines(text.strip_prefix("error: ").unwrap_or(&text).trim_end());
        }
    }
    ExitCode::from(USAGE)
}

/// The message for a word that is not UTF-8 where text is expected; options and operands that are paths take any bytes.
fn no_text(error: &clap::Error, words: &[OsString]) -> Option<String> {
    if error.kind() != clap::error::ErrorKind::InvalidUtf8 {
        return None;
    }
    let word = words.iter().find(|word| word.to_str().is_none())?;
    Some(format!(
        "`{}` is not UTF-8, as specifications, names and values are; rename the file, or name a symbolic link to it",
        word.as_encoded_bytes().escape_ascii()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Arg, Command};

    #[test]
    fn word_that_is_not_utf8_is_named_in_one_sentence() {
        use std::os::unix::ffi::OsStringExt;
        let command = Command::new("headworks").arg(Arg::new("spec"));
        let line = [&b"headworks"[..], b"d\xff.img"].map(|word| OsString::from_vec(word.to_vec()));
        let error = command.clone().try_get_matches_from(&line).unwrap_err();
        let said = no_text(&error, &line).unwrap();
        assert!(said.starts_with("`d\\xff.img` is not UTF-8"), "{said}");
        let other = command.try_get_matches_from(["headworks", "--daemon"]).unwrap_err();
        assert_eq!(no_text(&other, &line), None);
    }
}
