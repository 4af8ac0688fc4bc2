//! `headworks ctl diff` and `save`: what `ctl` changed, and a drop-in file that says it.
//!
//! The drop-in is written here and not by the server, which may have no right to: it is read after all others
//! (`FILE.d/99-ctl.toml`), what it said before is kept where it is not said anew, and it is replaced as a whole, so that a
//! reload never reads half of it.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use headworks_control::answers::{Diff, Difference};
use headworks_server::config::{ConfigFile, Origin, TEXT_MAX};
use serde::Deserialize;
use serde_json::Value;

use crate::ctl::plain;
use headworks::house::safe_open::read_named_text;
use headworks::house::sync_directory;

/// Name of the drop-in; drop-ins are read in the order of their names.
const DROP_IN: &str = "99-ctl.toml";

const HEAD: &str = "# Written by `headworks ctl save`: what ctl changed. Later saves add to it; it may be edited or removed.\n";

/// Formats the differences, one line each: `diff` as it may be shown, `answer` as the server has it, whose text is a file.
pub fn show_diff(diff: &Diff, answer: &Value) -> String {
    let word = |value: &Value| if value.is_null() { "none".to_owned() } else { plain(value) };
    let line = |change: &Difference| {
        let (configured, running) = (word(&change.configured), word(&change.running));
        format!("{}: {running}, configured {configured}\n", change.path)
    };
    match diff.changes.is_empty() {
        true => "no differences\n".to_owned(),
        false => {
            diff.changes.iter().map(line).collect::<String>() + &notes(diff) + &saved(diff, answer)
        }
    }
}

/// Where the differences are saved already, if they are: they last until the server reads its files again.
fn saved(shown: &Diff, answer: &Value) -> String {
    let Ok(diff) = Diff::deserialize(answer) else { return String::new() };
    let path = drop_in(&diff).ok();
    let text = path.as_ref().and_then(|path| read_named_text(path, TEXT_MAX as u64).ok());
    let before = text.and_then(|text| parse("the drop-in", &text).ok());
    let changes = parse("the server's answer", &diff.text).unwrap_or_default();
    match drop_in(shown).ok().zip(before) {
        Some((path, before))
            if changes != ConfigFile::default()
                && said(before.clone().merged(changes)) == said(before.clone()) =>
        {
            format!("note: {} has them; `reload` takes them in\n", path.display())
        }
        _ => String::new(),
    }
}

/// What a configuration says, without the order and the places of its values.
fn said(file: ConfigFile) -> BTreeSet<String> {
    let text = text(file);
    let values = text.lines().map(|line| line.split(" #").next().unwrap_or_default().trim());
    values.filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

/// What a save leaves out.
fn notes(diff: &Diff) -> String {
    diff.unsaved.iter().map(|why| format!("note: not for a file: {why}\n")).collect()
}

/// Writes the drop-in, or returns its text with `print`; returns the text for the user.
///
/// # Errors
/// The server has no configuration file, or the drop-in cannot be read or written.
pub fn save(result: &Diff, print: bool) -> Result<String, String> {
    let changes = parse("the server's answer", &result.text)?;
    let count = result.changes.len().saturating_sub(result.unsaved.len());
    if print {
        return Ok(text(changes) + &notes(result));
    }
    let path = drop_in(result)?;
    if changes == ConfigFile::default() {
        return Ok("nothing to save\n".to_owned() + &notes(result));
    }
    let before = match read_named_text(&path, TEXT_MAX as u64) {
        Ok(text) => parse(&path.to_string_lossy(), &text)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => ConfigFile::default(),
        Err(error) => return Err(format!("cannot read {}: {error}", path.display())),
    };
    replace(&path, &text(before.merged(changes)))
        .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    let changes = if count == 1 { "1 change".to_owned() } else { format!("{count} changes") };
    Ok(format!("{}: {changes} saved; a restart keeps them\n", path.display()) + &notes(result))
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
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
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
    use serde_json::json;

    fn show_diff(answer: &Value) -> String {
        super::show_diff(&crate::ctl::read(answer).unwrap(), answer)
    }

    fn save(answer: &Value, print: bool) -> Result<String, String> {
        super::save(&Diff::deserialize(answer).unwrap(), print)
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
    fn differences_that_are_saved_are_said_to_be() {
        let folder = std::env::temp_dir().join(format!("hw-saved-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let of = |text: &str| {
            json!({ "config": folder.join("main.toml"), "text": text, "unsaved": [],
                "changes": [{ "path": "vm/dirty_bytes", "configured": "0", "running": "4M" }] })
        };
        let (some, other) =
            (of("[server.vm]\ndirty_bytes = \"4M\"\n"), of("[server.vm]\ndirty_bytes = \"5M\"\n"));
        assert!(!show_diff(&some).contains("note"), "{}", show_diff(&some));
        save(&some, false).unwrap();
        assert!(show_diff(&some).ends_with("99-ctl.toml has them; `reload` takes them in\n"));
        assert!(!show_diff(&other).contains("note"), "another value is not saved");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn drop_in_keeps_what_was_saved_before() {
        let folder = std::env::temp_dir().join(format!("hw-save-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let answer = |text: &str| {
            json!({ "config": folder.join("main.toml"), "text": text, "unsaved": [],
                "changes": [{ "path": "x" }] })
        };
        let said = save(&answer("[server.vm]\ndirty_bytes = \"4M\"\n"), false).unwrap();
        assert!(said.contains("main.d/99-ctl.toml: 1 change saved"), "{said}");
        save(
            &answer("[server.queue]\nnr_requests = 7\n[server.vm]\ndirty_bytes = \"5M\"\n"),
            false,
        )
        .unwrap();
        let file = fs::read_to_string(folder.join("main.d/99-ctl.toml")).unwrap();
        let read = ConfigFile::parse("f", &file).unwrap();
        assert_eq!((read.vm.len(), read.vm[0].value), (1, 5 << 20), "{file}");
        assert_eq!(read.queue[0].value, 7);
        assert_eq!(save(&answer("[server]\n"), false).unwrap(), "nothing to save\n");
        assert_eq!(fs::read_dir(folder.join("main.d")).unwrap().count(), 1, "nothing else is left");
        let printed = save(&answer("[server.queue]\nnr_requests = 8\n"), true).unwrap();
        assert!(printed.starts_with("# Written by") && printed.contains("nr_requests = 8"));
        let refused =
            save(&json!({ "config": null, "text": "", "unsaved": [], "changes": [] }), false);
        assert!(refused.unwrap_err().contains("no configuration file"));
        fs::remove_dir_all(&folder).unwrap();
    }
}
