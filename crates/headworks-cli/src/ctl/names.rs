//! Names that a running server has, for the completion scripts: paths of `get` and `set`, exports and tenants.
//!
//! ```text
//!   headworks complete-ctl ctl [SOCKET] COMMAND WORD... WORD-AT-THE-CURSOR     --> one candidate in each line
//! ```
//!
//! It is asked for with every press of a key, so that it prints nothing rather than an error, and ends within [`TIME_LIMIT`] whatever
//! the server does. Paths are completed up to the next slash. Names with characters that a shell treats specially are left out.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::channel;
use std::time::Duration;

use headworks_control::methods;

use crate::ctl::call;
use crate::ctl::socket;
use crate::shown;

/// First word of the command line; a part of the completion scripts, not a command for users.
pub const COMMAND: &str = "complete-ctl";
/// Time limit of all of it: longer would be felt at the keyboard.
const TIME_LIMIT: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Path,
    Export,
    Tenant,
    Listener,
}

/// What is to be completed.
#[derive(Debug, PartialEq, Eq)]
struct Wanted {
    socket: Option<String>,
    kind: Kind,
    /// What stands before the cursor.
    begin: String,
}

/// Prints the candidates for the word at the cursor, if there are any.
pub fn run(words: impl Iterator<Item = OsString>, commands: &[&str]) -> ExitCode {
    let words: Option<Vec<String>> = words.map(|word| word.into_string().ok()).collect();
    let Some(wanted) = words.and_then(|words| Wanted::read(&words, commands)) else {
        return ExitCode::SUCCESS;
    };
    let (found, names) = channel();
    // Not joined: a server that does not answer must not hold up the shell.
    let asking = std::thread::Builder::new().spawn(move || {
        let _ = found.send(wanted.names());
    });
    if asking.is_ok()
        && let Ok(names) = names.recv_timeout(TIME_LIMIT)
    {
        let lines: String = names.iter().map(shown::line).collect();
        crate::shown::print(lines);
    }
    ExitCode::SUCCESS
}

impl Wanted {
    fn read(words: &[String], commands: &[&str]) -> Option<Self> {
        let (begin, before) = words.split_last()?;
        let (ctl, before) = before.split_first()?;
        let mut before = joined(before).into_iter().peekable();
        let socket = before.next_if(|word| !commands.contains(&word.as_str()));
        let command = before.next()?;
        let arguments: Vec<String> = before.collect();
        let kind = match command.as_str() {
            "get" if arguments.is_empty() => Kind::Path,
            "set" if is_before_path(&arguments) => Kind::Path,
            "remove" | "resize" | "drain" | "snapshot" | "cut" | "latency" | "why" | "failed"
            | "discard-failed"
                if arguments.is_empty() =>
            {
                Kind::Export
            }
            "freeze" | "thaw" | "refuse-clients" | "accept-clients" => Kind::Export,
            "remove-tenant" if arguments.is_empty() => Kind::Tenant,
            "remove-listener" if arguments.is_empty() => Kind::Listener,
            _ => return None,
        };
        let is_plain = !begin.starts_with('-') && !begin.contains('=');
        (ctl == "ctl" && is_plain).then(|| Self { socket, kind, begin: begin.clone() })
    }

    fn socket(&self) -> PathBuf {
        socket::find(self.socket.as_deref().map(Path::new))
    }

    /// Asks the server; nothing if it does not answer.
    fn names(&self) -> BTreeSet<String> {
        let socket = self.socket();
        let names = match self.kind {
            Kind::Export => {
                let exports = call(&socket, &methods::Exports {}).unwrap_or_default();
                exports.into_iter().map(|export| export.name).collect()
            }
            Kind::Tenant => {
                let tenants = call(&socket, &methods::Tenants {}).unwrap_or_default();
                tenants.into_iter().map(|tenant| tenant.name).collect()
            }
            Kind::Listener => {
                let listeners = call(&socket, &methods::Listeners {}).unwrap_or_default();
                listeners.into_iter().map(|listener| listener.name).collect()
            }
            Kind::Path => {
                // No more than the names beside the one that is typed.
                let parent = self.begin.rsplit_once('/').map(|(parent, _)| parent.to_owned());
                let values = call(&socket, &methods::Get { path: parent }).unwrap_or_default();
                values.into_keys().collect()
            }
        };
        candidates(&self.begin, self.kind, names)
    }
}

/// The words of the line without options. Shells split at `=` and `:`, which a value may contain.
fn joined(words: &[String]) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    let mut continues = false;
    for word in words {
        let is_sign = word == "=" || word == ":";
        match all.last_mut() {
            Some(last) if is_sign || continues => last.push_str(word),
            _ if word.starts_with('-') => continue,
            _ => all.push(word.clone()),
        }
        continues = is_sign;
    }
    all
}

/// Whether the next argument of `set` is a path and no value.
fn is_before_path(arguments: &[String]) -> bool {
    let mut arguments = arguments.iter();
    while let Some(word) = arguments.next() {
        if !word.contains('=') && arguments.next().is_none() {
            return false;
        }
    }
    true
}

/// Names that begin so; paths only up to the next slash.
fn candidates(begin: &str, kind: Kind, names: Vec<String>) -> BTreeSet<String> {
    let is_plain = |name: &str| {
        name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_./@%+,-".contains(&byte))
    };
    let fitting = names.into_iter().filter(|name| name.starts_with(begin) && is_plain(name));
    let cut = |name: String| match name[begin.len()..].find('/') {
        Some(slash) if kind == Kind::Path => name[..=begin.len() + slash].to_owned(),
        _ => name,
    };
    fitting.map(cut).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMANDS: [&str; 6] = ["get", "set", "resize", "exports", "remove-tenant", "drain"];

    /// Kind, socket and beginning of what a line wants; the part behind the last space is at the cursor.
    fn wanted(line: &str) -> Option<(Kind, Option<String>, String)> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        Wanted::read(&words, &COMMANDS).map(|wanted| (wanted.kind, wanted.socket, wanted.begin))
    }

    fn kind(line: &str) -> Option<Kind> {
        wanted(line).map(|(kind, ..)| kind)
    }

    #[test]
    fn position_decides_what_is_completed() {
        let path = (Kind::Path, Some("/run/x.ctl".to_owned()), "exports/d".to_owned());
        assert_eq!(wanted("ctl /run/x.ctl get exports/d"), Some(path));
        assert_eq!(wanted("ctl get "), Some((Kind::Path, None, String::new())));
        assert_eq!(kind("ctl --json backup drain "), Some(Kind::Export));
        assert_eq!(kind("ctl remove-tenant a"), Some(Kind::Tenant));
        for nothing in
            ["ctl ", "ctl x", "ctl x ", "ctl get a ", "ctl exports ", "ctl get -", "serve get ", ""]
        {
            assert_eq!(kind(nothing), None, "{nothing}");
        }
    }

    #[test]
    fn set_takes_a_path_after_every_value() {
        // The last two as bash splits them.
        for path in
            ["ctl set ", "ctl set a 1 ", "ctl set a=1 b", "ctl set a = 1 b", "ctl set a rt : 0 b"]
        {
            assert_eq!(kind(path), Some(Kind::Path), "{path}");
        }
        assert_eq!(kind("ctl set a "), None);
        assert_eq!(kind("ctl set a=1 b "), None);
        assert_eq!(kind("ctl set a="), None);
    }

    #[test]
    fn paths_end_at_the_next_slash() {
        let names = || {
            let all = ["hw0/queue/nomerges", "hw0/queue/nr_requests", "exports/a$(b)/weight"];
            all.map(str::to_owned).to_vec()
        };
        let found = |begin: &str| -> Vec<String> {
            candidates(begin, Kind::Path, names()).into_iter().collect()
        };
        assert_eq!(found(""), ["hw0/"], "what a shell would run is left out");
        assert_eq!(found("hw0/q"), ["hw0/queue/"]);
        assert_eq!(found("hw0/queue/n"), ["hw0/queue/nomerges", "hw0/queue/nr_requests"]);
        let exports = candidates("a/", Kind::Export, vec!["a/b/c".to_owned()]);
        assert_eq!(exports.into_iter().collect::<Vec<_>>(), ["a/b/c"]);
    }
}
