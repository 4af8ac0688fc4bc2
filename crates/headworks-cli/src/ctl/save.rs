//! `headworks ctl diff` and `save`: what `ctl` changed, and a drop-in file that says it.
//!
//! The drop-in is written here and not by the server, which may have no right to: it is read after all others
//! (`FILE.d/99-ctl.toml`), what it said before is kept where it is not said anew, and it is replaced as a whole, so that a
//! reload never reads half of it.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use headworks_control::answers::{Diff, Difference};
use headworks_server::config::{ConfigFile, Origin, TEXT_MAX};
use serde::Serialize;
use serde_json::Value;

use crate::ctl::plain;
use crate::flock;
use headworks::house::safe_open::read_named_text;
use headworks::house::sync_directory;

/// Name of the drop-in; drop-ins are read in the order of their names.
const DROP_IN: &str = "99-ctl.toml";
/// Longest wait for another save, and how often it is looked for.
const TURN_LIMIT: Duration = Duration::from_secs(10);
const TURN_POLL: Duration = Duration::from_millis(20);

const HEAD: &str = "# Written by `headworks ctl save`: what ctl changed. Later saves add to it; it may be edited or removed.\n";

/// Formats the differences, one line each.
pub fn show_diff(diff: &Diff) -> String {
    let word = |value: &Value| if value.is_null() { "none".to_owned() } else { plain(value) };
    let line = |change: &Difference| {
        let (configured, running) = (word(&change.configured), word(&change.running));
        format!("{}: {running}, configured {configured}\n", change.path)
    };
    match diff.changes.is_empty() {
        true => "no differences\n".to_owned(),
        false => diff.changes.iter().map(line).collect::<String>() + &notes(&diff.unsaved),
    }
}

/// What a save leaves out.
fn notes(unsaved: &[String]) -> String {
    unsaved.iter().map(|why| format!("note: not for a file: {why}\n")).collect()
}

/// What a save did.
#[derive(Serialize)]
pub struct Saved {
    /// The drop-in that was written; none if there was nothing to save.
    file: Option<PathBuf>,
    /// Number of changes in it.
    changes: usize,
    /// What no file can say, and why.
    unsaved: Vec<String>,
    /// Why the server does not know of it.
    untold: Option<String>,
}

impl Saved {
    fn new(file: Option<&Path>, diff: Diff, untold: Option<String>) -> Self {
        let changes = count(&diff);
        Self { file: file.map(Path::to_owned), changes, unsaved: diff.unsaved, untold }
    }

    /// The same as one JSON object, for programs.
    pub fn json(&self) -> Result<Value, String> {
        serde_json::to_value(self).map_err(|error| format!("this cannot be said as JSON: {error}"))
    }

    /// The sentences for the user.
    pub fn show(&self) -> String {
        let said = self.file.as_ref().map_or("nothing to save\n".to_owned(), |path| {
            let changes = match self.changes {
                1 => "1 change".to_owned(),
                changes => format!("{changes} changes"),
            };
            format!("{}: {changes} saved; a restart keeps them\n", path.display())
        });
        let untold = self.untold.as_ref().map_or(String::new(), |why| {
            format!("note: the server was not told, and `diff` lists them until a reload: {why}\n")
        });
        said + &notes(&self.unsaved) + &untold
    }
}

/// Number of differences that a file can say.
fn count(diff: &Diff) -> usize {
    diff.changes.len().saturating_sub(diff.unsaved.len())
}

/// Writes what differs to the drop-in. `diff` asks for the differences, with true so that the server takes them for configured: after
/// they were written, because a drop-in that cannot be written configures nothing. Saves take turns, so the file has what the server takes
/// for configured, whatever is changed meanwhile.
///
/// # Errors
/// The server has no configuration file, or the drop-in cannot be read or written.
pub fn save(mut diff: impl FnMut(bool) -> Result<Diff, String>) -> Result<Saved, String> {
    let first = diff(false)?;
    let path = drop_in(&first)?;
    if changes(&first)? == ConfigFile::default() {
        return Ok(Saved::new(None, first, None));
    }
    let cannot_write = |error| format!("cannot write {}: {error}", path.display());
    let folder = path.parent().unwrap_or(Path::new("."));
    let _turn = take_turn(folder, TURN_LIMIT).map_err(cannot_write)?;
    let now = diff(false)?;
    let before = match read_named_text(&path, TEXT_MAX as u64) {
        Ok(text) => parse(&path.to_string_lossy(), &text)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => ConfigFile::default(),
        Err(error) => return Err(format!("cannot read {}: {error}", path.display())),
    };
    let write = |diff: &Diff| {
        let text = text(before.clone().merged(changes(diff)?));
        if text.len() > TEXT_MAX {
            return Err(format!(
                "{} would have more than {TEXT_MAX} bytes, which no start reads; move sections of it to other files of {}",
                path.display(),
                folder.display()
            ));
        }
        replace(&path, &text).map_err(cannot_write)
    };
    write(&now)?;
    let then = match diff(true) {
        Ok(then) => then,
        Err(why) => return Ok(Saved::new(Some(&path), now, Some(why))),
    };
    if then.text != now.text {
        write(&then)?;
    }
    Ok(Saved::new(Some(&path), then, None))
}

/// Returns what a drop-in would say.
///
/// # Errors
/// The server's answer is no configuration.
pub fn print(diff: &Diff) -> Result<String, String> {
    Ok(text(changes(diff)?) + &notes(&diff.unsaved))
}

/// Waits for other saves of the same configuration, for at most `limit`; the lock ends with the file.
fn take_turn(folder: &Path, limit: Duration) -> io::Result<fs::File> {
    fs::create_dir_all(folder)?;
    let (file, until) = (fs::File::open(folder)?, Instant::now() + limit);
    while !flock::lock(&file)? {
        if Instant::now() >= until {
            let message = format!("another save is not done for {} s", limit.as_secs());
            return Err(io::Error::new(io::ErrorKind::TimedOut, message));
        }
        std::thread::sleep(TURN_POLL);
    }
    Ok(file)
}

fn changes(diff: &Diff) -> Result<ConfigFile, String> {
    parse("the server's answer", &diff.text)
}

fn parse(name: &str, text: &str) -> Result<ConfigFile, String> {
    ConfigFile::parse(name, text).map_err(|problems| problems.to_string())
}

fn text(file: ConfigFile) -> String {
    format!("{HEAD}{}", file.with_origin(&Origin::Control))
}

/// Path of the drop-in of the server's configuration.
fn drop_in(result: &Diff) -> Result<PathBuf, String> {
    let config = result.config.as_ref().ok_or(
        "the server has no configuration file (--config); `save --print` prints what one would say",
    )?;
    Ok(Path::new(config).with_extension("d").join(DROP_IN))
}

/// Replaces a file as a whole, durably.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    // Not *.toml: a reload must not read it.
    let new = path.with_extension("new");
    let mut file = fs::File::create(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    sync_directory(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use serde_json::json;

    fn show_diff(answer: &Value) -> String {
        super::show_diff(&crate::ctl::read(answer).unwrap())
    }

    fn save(answer: &Value) -> Result<String, String> {
        super::save(|_| Ok(Diff::deserialize(answer).unwrap())).map(|saved| saved.show())
    }

    #[test]
    fn differences_are_lines_and_none_is_said() {
        let none = json!({ "changes": [], "unsaved": [] });
        assert_eq!(show_diff(&none), "no differences\n");
        let some = json!({
            "changes": [
                { "path": "exports/tmp", "configured": null, "running": "mem:size=1M" },
                { "path": "hw0/queue/nr_requests", "configured": 64, "running": 99 },
            ],
            "unsaved": ["export x is on the command line"],
        });
        let text = "exports/tmp: mem:size=1M, configured none\n\
                    hw0/queue/nr_requests: 99, configured 64\n\
                    note: not for a file: export x is on the command line\n";
        assert_eq!(show_diff(&some), text);
    }

    #[test]
    fn drop_in_keeps_what_was_saved_before() {
        let folder = std::env::temp_dir().join(format!("hw-save-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let answer = |text: &str| {
            json!({ "config": folder.join("main.toml"), "text": text, "unsaved": [],
                "changes": [{ "path": "x" }] })
        };
        let said = save(&answer("[server.vm]\ndirty_bytes = \"4M\"\n")).unwrap();
        assert!(said.contains("main.d/99-ctl.toml: 1 change saved"), "{said}");
        save(&answer("[server.queue]\nnr_requests = 7\n[server.vm]\ndirty_bytes = \"5M\"\n"))
            .unwrap();
        let file = fs::read_to_string(folder.join("main.d/99-ctl.toml")).unwrap();
        let read = ConfigFile::parse("f", &file).unwrap();
        assert_eq!((read.vm.len(), read.vm[0].value), (1, 5 << 20), "{file}");
        assert_eq!(read.queue[0].value, 7);
        assert_eq!(save(&answer("[server]\n")).unwrap(), "nothing to save\n");
        assert_eq!(fs::read_dir(folder.join("main.d")).unwrap().count(), 1, "nothing else is left");
        let printed = Diff::deserialize(&answer("[server.queue]\nnr_requests = 8\n")).unwrap();
        let printed = print(&printed).unwrap();
        assert!(printed.starts_with("# Written by") && printed.contains("nr_requests = 8"));
        let refused = save(&json!({ "config": null, "text": "", "unsaved": [], "changes": [] }));
        assert!(refused.unwrap_err().contains("no configuration file"));
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn save_waits_for_another_one_within_a_limit() {
        let folder = std::env::temp_dir().join(format!("hw-turn-{}", std::process::id()));
        let first = take_turn(&folder, Duration::ZERO).unwrap();
        let late = take_turn(&folder, Duration::ZERO).unwrap_err();
        assert_eq!(late.to_string(), "another save is not done for 0 s");
        drop(first);
        drop(take_turn(&folder, Duration::ZERO).unwrap());
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn drop_in_has_what_the_server_takes_for_configured() {
        let folder = std::env::temp_dir().join(format!("hw-turns-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let diff = |text: &str| {
            let answer = json!({ "config": folder.join("main.toml"), "text": text, "unsaved": [],
                "changes": [{ "path": "x" }] });
            Diff::deserialize(&answer).unwrap()
        };
        let path = folder.join("main.d/99-ctl.toml");
        let values = || {
            let read = ConfigFile::parse("f", &fs::read_to_string(&path).unwrap()).unwrap();
            read.queue.iter().map(|tuned| tuned.value).collect::<Vec<_>>()
        };
        let said = |text: &str, then: &str| {
            let saved = super::save(|saved| {
                assert!(
                    !saved || path.exists(),
                    "nothing is taken for configured before it is written"
                );
                Ok(diff(if saved { then } else { text }))
            });
            saved.map(|saved| saved.show())
        };
        let [one, other] =
            ["[server.queue]\nnr_requests = 7\n", "[server.queue]\nnr_requests = 8\n"];
        said(one, other).unwrap();
        assert_eq!(values(), [8], "changed meanwhile");
        said("[server.queue]\nnomerges = 1\n", "[server]\n").unwrap();
        assert_eq!(values(), [8], "taken back meanwhile");
        let lost = super::save(|saved| match saved {
            true => Err("it ended".to_owned()),
            false => Ok(diff(one)),
        });
        assert!(lost.unwrap().show().contains("the server was not told, and `diff`"));
        assert_eq!(values(), [7]);
        let long =
            format!("[[export]]\nname = 'a'\nfile.path = '/{}'\n", "x".repeat(TEXT_MAX - 99));
        assert!(said(&long, &long).unwrap_err().contains("which no start reads"));
        assert_eq!(values(), [7], "it is as it was");
        fs::remove_dir_all(&folder).unwrap();
    }
}
