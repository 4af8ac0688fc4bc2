//! Directories of the server's own below the state directory: for what lasts longer than a process and has no place beside an image.
//!
//! ```text
//!   STATE_DIRECTORY (systemd's, the first one) | as root /var/lib/headworks | XDG_STATE_HOME/headworks | ~/.local/state/headworks
//!      |-- recovery/    0700, of this user     acknowledged writes that have no image here ([`crate::successor::recovery`])
//!      `-- marks/       0700, of this user     marks of what has no directory: block devices, remotes, images of clusters ([`crate::successor::marker`])
//! ```
//!
//! Invariant: a directory is used only if it is one of this user that no other user can change; it has at most [`ENTRIES_MAX`] entries.

use std::ffi::OsString;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Most entries of a directory.
pub(crate) const ENTRIES_MAX: usize = 1000;

/// The state directory that the environment gives, or the usual one.
fn state_directory(
    variable: impl Fn(&str) -> Option<OsString>,
    is_root: bool,
) -> Result<PathBuf, String> {
    let path_of = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    if let Some(word) = variable("STATE_DIRECTORY") {
        // A unit may have several, with colons between.
        let word = word.to_string_lossy().into_owned();
        let first = PathBuf::from(word.split(':').next().unwrap_or_default());
        if first.is_absolute() {
            return Ok(first);
        }
    }
    if is_root {
        return Ok("/var/lib/headworks".into());
    }
    let home = || path_of("HOME").map(|home| home.join(".local/state"));
    let found = path_of("XDG_STATE_HOME").or_else(home).map(|path| path.join("headworks"));
    found
        .ok_or_else(|| "there is no state directory (STATE_DIRECTORY, XDG_STATE_HOME, HOME)".into())
}

/// The directory `name`, which may not be there yet.
///
/// # Errors
/// There is no state directory.
pub(crate) fn own_directory(name: &str) -> Result<PathBuf, String> {
    Ok(state()?.join(name))
}

/// Makes the directory `name`, if it is not there, and checks it.
///
/// # Errors
/// A sentence: it cannot be made, others can change what is in it, or it is full.
pub(crate) fn make_directory(name: &str) -> Result<PathBuf, String> {
    // SAFETY: asks for a number.
    let user = unsafe { libc::geteuid() };
    let directory = prepare(&state()?, name, user)?;
    check_entries(&directory)?;
    Ok(directory)
}

fn state() -> Result<PathBuf, String> {
    // SAFETY: asks for a number.
    let user = unsafe { libc::geteuid() };
    let variable = |name: &str| std::env::var_os(name).filter(|word| !word.is_empty());
    // Tests leave nothing where servers look.
    match cfg!(test) {
        true => Ok(std::env::temp_dir().join(format!("headworks-state-{}", std::process::id()))),
        false => state_directory(variable, user == 0),
    }
}

fn check_entries(directory: &Path) -> Result<(), String> {
    let shown = directory.display();
    let entries = std::fs::read_dir(directory).map_err(|error| format!("{shown}: {error}"))?;
    match entries.take(ENTRIES_MAX).count() == ENTRIES_MAX {
        true => Err(format!("{shown} has {ENTRIES_MAX} entries; remove what is not needed")),
        false => Ok(()),
    }
}

/// Makes a directory below the state directory, if it is not there, and checks that no other user can change what is in it.
fn prepare(state: &Path, name: &str, user: u32) -> Result<PathBuf, String> {
    let directory = state.join(name);
    let wrong = |why: &dyn std::fmt::Display| format!("{}: {why}", directory.display());
    let mut builder = DirBuilder::new();
    builder.mode(0o700);
    let made = builder.recursive(true).create(state);
    let made = made.and_then(|()| builder.recursive(false).create(&directory));
    match made {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(wrong(&error)),
        _ => {}
    }
    let found = directory.symlink_metadata().map_err(|error| wrong(&error))?;
    if !found.is_dir() || found.uid() != user || found.mode() & 0o077 != 0 {
        return Err(wrong(&"it is no directory of this user alone (mode 0700)"));
    }
    Ok(directory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks_testing::TempFile;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn state_directory_is_that_of_the_manager_or_user() {
        let found = |variables: &[(&str, &str)], is_root| {
            let variable = |name: &str| {
                let found = variables.iter().find(|(other, _)| *other == name);
                found.map(|(_, value)| OsString::from(value))
            };
            state_directory(variable, is_root).map(|path| path.display().to_string())
        };
        let unit = [("STATE_DIRECTORY", "/var/lib/a:/var/lib/b"), ("HOME", "/root")];
        assert_eq!(found(&unit, true), Ok("/var/lib/a".to_owned()));
        assert_eq!(found(&[("HOME", "/root")], true), Ok("/var/lib/headworks".to_owned()));
        let user = [("XDG_STATE_HOME", "/s"), ("HOME", "/h")];
        assert_eq!(found(&user, false), Ok("/s/headworks".to_owned()));
        assert_eq!(found(&user[1..], false), Ok("/h/.local/state/headworks".to_owned()));
        assert!(found(&[("HOME", "relative")], false).is_err());
    }

    #[test]
    fn directory_is_private_and_one_that_others_can_change_is_refused() {
        let place = TempFile::absent("state");
        // SAFETY: asks for a number.
        let user = unsafe { libc::geteuid() };
        let state = place.path().with_extension("d");
        let directory = prepare(&state, "recovery", user).unwrap();
        for path in [&state, &directory] {
            assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o700, "{path:?}");
        }
        assert_eq!(prepare(&state, "recovery", user).unwrap(), directory, "it is there");
        assert!(check_entries(&directory).is_ok());
        assert!(prepare(&state, "recovery", user + 1).unwrap_err().contains("of this user alone"));
        for index in 0..ENTRIES_MAX {
            std::fs::write(directory.join(index.to_string()), "").unwrap();
        }
        assert!(check_entries(&directory).unwrap_err().contains("1000 entries"));
        std::fs::set_permissions(&directory, PermissionsExt::from_mode(0o750)).unwrap();
        assert!(prepare(&state, "recovery", user).unwrap_err().contains("mode 0700"));
        std::fs::remove_dir_all(&directory).unwrap();
        std::os::unix::fs::symlink("/tmp", &directory).unwrap();
        assert!(prepare(&state, "recovery", user).unwrap_err().contains("of this user alone"));
        std::fs::remove_dir_all(&state).unwrap();
    }
}
