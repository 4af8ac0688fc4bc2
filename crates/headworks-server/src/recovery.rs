//! Where acknowledged writes go that have no image here: the directory `recovery` of the state directory.
//!
//! ```text
//!   STATE_DIRECTORY (systemd's, the first one) | as root /var/lib/headworks | XDG_STATE_HOME/headworks | ~/.local/state/headworks
//!      `-- recovery/    0700, of this user     IMAGE.headworks-recovery, IMAGE.headworks-recovery.map, ..
//! ```
//!
//! Data of one image are never written into the directory of another. The directory is bounded: [`ENTRIES_MAX`] entries, and room on
//! the filesystem stays free. What does not fit stays in the memory of the dead server, and a note says so.

use std::ffi::OsString;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use headworks::cache_memory::{LeftCache, LeftVolume, write_recovery};
use headworks::display_size;

/// Most entries of the directory: files and their maps.
const ENTRIES_MAX: usize = 200;
/// Bytes of the filesystem that stay free.
const FREE_MIN: u64 = 64 << 20;

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

/// Makes the directory, if it is not there, and checks that no other user can change what is in it.
fn prepare(state: &Path, user: u32) -> Result<PathBuf, String> {
    let directory = state.join("recovery");
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

/// Checks that `bytes` more fit into the directory.
fn check_room(directory: &Path, bytes: u64) -> Result<(), String> {
    let shown = directory.display();
    let entries = std::fs::read_dir(directory).map_err(|error| format!("{shown}: {error}"))?;
    if entries.take(ENTRIES_MAX).count() == ENTRIES_MAX {
        return Err(format!("{shown} has {ENTRIES_MAX} entries; remove what is not needed"));
    }
    let free = free_bytes(directory).map_err(|error| format!("{shown}: {error}"))?;
    if free < bytes.saturating_add(FREE_MIN) {
        return Err(format!("{shown} has {} free", display_size(free)));
    }
    Ok(())
}

fn free_bytes(directory: &Path) -> io::Result<u64> {
    use std::os::unix::ffi::OsStrExt;
    let name = std::ffi::CString::new(directory.as_os_str().as_bytes())?;
    // SAFETY: a struct of integers, which the kernel fills in.
    let mut found: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the name is terminated, and both live through the call.
    if unsafe { libc::statvfs(name.as_ptr(), &raw mut found) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(found.f_bavail.saturating_mul(found.f_frsize))
}

/// Writes the dirty blocks of a volume to a new file of the directory, and forgets them in `left`; returns the file.
///
/// # Errors
/// A sentence; the blocks are still in `left`.
pub(crate) fn write_to_state(left: &LeftCache, volume: &LeftVolume) -> Result<PathBuf, String> {
    // SAFETY: asks for a number.
    let user = unsafe { libc::geteuid() };
    let variable = |name: &str| std::env::var_os(name).filter(|word| !word.is_empty());
    let directory = prepare(&state_directory(variable, user == 0)?, user)?;
    check_room(&directory, volume.bytes)?;
    write_recovery(left, volume, &directory)
        .map_err(|error| format!("{}: {error}", directory.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks::testing::TempFile;
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
        let directory = prepare(&state, user).unwrap();
        for path in [&state, &directory] {
            assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o700, "{path:?}");
        }
        assert_eq!(prepare(&state, user).unwrap(), directory, "it is there");
        assert!(check_room(&directory, 1).is_ok());
        assert!(check_room(&directory, u64::MAX).unwrap_err().contains("free"));
        assert!(prepare(&state, user + 1).unwrap_err().contains("of this user alone"));
        for index in 0..ENTRIES_MAX {
            std::fs::write(directory.join(index.to_string()), "").unwrap();
        }
        assert!(check_room(&directory, 1).unwrap_err().contains("200 entries"));
        std::fs::set_permissions(&directory, PermissionsExt::from_mode(0o750)).unwrap();
        assert!(prepare(&state, user).unwrap_err().contains("mode 0700"));
        std::fs::remove_dir_all(&directory).unwrap();
        std::os::unix::fs::symlink("/tmp", &directory).unwrap();
        assert!(prepare(&state, user).unwrap_err().contains("of this user alone"));
        std::fs::remove_dir_all(&state).unwrap();
    }
}
