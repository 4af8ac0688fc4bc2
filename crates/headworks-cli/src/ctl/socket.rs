//! Which control socket `ctl` and `top` talk to.
//!
//! ```text
//!   no SOCKET                                       $HEADWORKS_CONTROL, else /run/headworks/main.ctl
//!   with a slash, or a socket's file name           this path
//!   any other word                                  /run/headworks/WORD.ctl, of the service headworks@WORD
//! ```
//!
//! A word that is a command is never a SOCKET; `./get` names a socket with such a name.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use headworks_server::nearest_name;

/// Environment variable with the path; for `headworks serve` it is the option `--control`.
const VARIABLE: &str = "HEADWORKS_CONTROL";
/// Directory of the sockets that packaging/systemd creates.
const DIRECTORY: &str = "/run/headworks";
/// Service whose socket is the default.
const DEFAULT_SERVICE: &str = "main";

/// What the help says about SOCKET.
pub const HELP: &str = "\
Control socket of the server (its --control): a path, or the NAME of a service for /run/headworks/NAME.ctl; default \
$HEADWORKS_CONTROL, else main";

/// The path of the socket that the command line names, or the default one.
pub fn find(word: Option<&Path>) -> PathBuf {
    resolve(word, std::env::var_os(VARIABLE), is_socket)
}

fn resolve(
    word: Option<&Path>,
    variable: Option<OsString>,
    is_socket: impl Fn(&Path) -> bool,
) -> PathBuf {
    let Some(word) = word else {
        let variable = variable.filter(|path| !path.is_empty());
        return variable.map_or_else(|| of_service(DEFAULT_SERVICE.as_ref()), PathBuf::from);
    };
    // The empty word of a script's unset variable must not become the default.
    let is_path = word.as_os_str().is_empty() || has_slash(word);
    if is_path || is_socket(word) { word.to_owned() } else { of_service(word.as_os_str()) }
}

fn of_service(name: &OsStr) -> PathBuf {
    let mut file = name.to_owned();
    file.push(".ctl");
    Path::new(DIRECTORY).join(file)
}

fn has_slash(word: &Path) -> bool {
    word.as_os_str().as_encoded_bytes().contains(&b'/')
}

fn is_socket(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.file_type().is_socket())
}

/// The sentence for a socket to which no connection can be made.
pub fn cannot_connect(socket: &Path, error: &std::io::Error) -> String {
    let sentence = format!("cannot connect to the control socket {}: {error}", socket.display());
    match error.kind() {
        std::io::ErrorKind::NotFound => format!(
            "{sentence}; name the path of --control, or the NAME of a service for {DIRECTORY}/NAME.ctl, before the command or in {VARIABLE}"
        ),
        std::io::ErrorKind::ConnectionRefused => match is_socket(socket) {
            true => format!("{sentence}; no server listens there"),
            false => format!("{sentence}; it is not a socket, name the path of --control"),
        },
        _ => sentence,
    }
}

/// The sentence for a command line of `ctl` that clap refused because its first word is a misspelled command.
pub fn misspelled(words: &[OsString], commands: &[&str]) -> Option<String> {
    misspelled_unless(words, commands, is_socket)
}

fn misspelled_unless(
    words: &[OsString],
    commands: &[&str],
    is_socket: impl Fn(&Path) -> bool,
) -> Option<String> {
    let [ctl, rest @ ..] = words else { return None };
    let word = rest.iter().find(|word| !word.as_encoded_bytes().starts_with(b"-"))?;
    let name = word.to_str()?;
    let is_known = commands.contains(&name) || name == "help";
    if ctl != "ctl" || is_known || is_socket(&resolve(Some(name.as_ref()), None, &is_socket)) {
        return None;
    }
    if has_slash(name.as_ref()) {
        return None;
    }
    let advice = match nearest_name(name, commands.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => "see `headworks ctl --help`".to_owned(),
    };
    Some(format!("`{name}` is neither a command nor a control socket; {advice}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(word: Option<&str>, variable: Option<&str>, sockets: &[&str]) -> String {
        let is_socket = |path: &Path| sockets.iter().any(|known| Path::new(known) == path);
        let path = resolve(word.map(Path::new), variable.map(OsString::from), is_socket);
        path.to_str().unwrap().to_owned()
    }

    #[test]
    fn path_is_taken_as_it_is() {
        for path in ["/run/hw.ctl", "./get", "a/b", ""] {
            assert_eq!(found(Some(path), Some("/other"), &[]), path);
        }
        assert_eq!(found(Some("hw.ctl"), None, &["hw.ctl"]), "hw.ctl", "a socket's file here");
    }

    #[test]
    fn other_word_names_a_service() {
        assert_eq!(found(Some("main"), Some("/other"), &[]), "/run/headworks/main.ctl");
        assert_eq!(found(Some("backup"), None, &["main"]), "/run/headworks/backup.ctl");
    }

    #[test]
    fn variable_names_the_default() {
        assert_eq!(found(None, Some("/other"), &[]), "/other");
        assert_eq!(found(None, Some("file"), &[]), "file", "a path, as for serve");
        assert_eq!(found(None, None, &[]), "/run/headworks/main.ctl");
        assert_eq!(found(None, Some(""), &[]), "/run/headworks/main.ctl");
    }

    #[test]
    fn missing_socket_is_told_how_to_name_one() {
        let message = |kind: std::io::ErrorKind| cannot_connect(Path::new("/x"), &kind.into());
        let missing = message(std::io::ErrorKind::NotFound);
        assert!(missing.starts_with("cannot connect to the control socket /x: "), "{missing}");
        assert!(missing.contains(VARIABLE) && missing.contains("/run/headworks/NAME.ctl"));
        assert!(!message(std::io::ErrorKind::PermissionDenied).contains(VARIABLE));
        let refused = message(std::io::ErrorKind::ConnectionRefused);
        assert!(refused.ends_with("it is not a socket, name the path of --control"), "{refused}");
    }

    #[test]
    fn misspelled_command_is_no_socket() {
        let commands = ["get", "set", "exports"];
        let said = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let there = |path: &Path| path == Path::new("/run/headworks/main.ctl");
            misspelled_unless(&words, &commands, there)
        };
        assert!(said("ctl --json exprots").unwrap().ends_with("did you mean `exports`?"));
        assert!(said("ctl zzzzzz db").unwrap().contains("see `headworks ctl --help`"));
        for good in ["ctl get x y", "ctl ./exprots x", "ctl main x", "ctl", "serve exprots"] {
            assert_eq!(said(good), None, "{good}");
        }
    }
}
