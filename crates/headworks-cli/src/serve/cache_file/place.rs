//! The place of the cache's memory that the options and the environment choose.
//!
//! ```text
//!   off                                                  anonymous memory
//!   PATH                                                 PATH
//!   store; auto with a descriptor store (FDSTORE)        memfd, kept by the service manager
//!   auto  first with room of                             DIRECTORY/headworks-cache
//!           RUNTIME_DIRECTORY, XDG_RUNTIME_DIR           if that is tmpfs
//!           /run/headworks-0 of root, /dev/shm/headworks-UID   made for this user alone
//!         none                                           anonymous memory, and the start says why
//! ```
//!
//! Files of earlier servers are looked for in all of these directories: a server that cron started finds what one of a login shell left.
//!
//! Invariant: a directory that this program makes is used only if it is a directory of this user that no other user can enter; its
//! parent belongs to root, and others cannot replace what is in there.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use headworks::house::display_size;
use headworks_cache_memory::CacheMemory;
use headworks_core::ConfigError;

/// Names of files and of passed descriptors start with this.
pub(in crate::serve) const NAME: &str = "headworks-cache";
/// Room without which a directory is not chosen: the floors of buffers and cache, and some to grow.
const ROOM_MIN: u64 = 128 << 20;

/// File systems whose files are memory.
const MEMORY: [libc::c_long; 3] =
    [0x0102_1994, 0x9584_58f6_u32 as libc::c_long, 0x8584_58f6_u32 as libc::c_long];

/// Where the memory lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Memory of the process; why, if that was not asked for.
    Anonymous { why: Option<String> },
    /// Files of this name.
    Files { path: PathBuf, required: bool },
    /// The service manager's descriptor store.
    Store,
}

/// The place of a new file, and names that files of earlier servers may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chosen {
    pub place: Place,
    /// Beside those of `place`.
    pub others: Vec<PathBuf>,
    /// Messages for the user.
    pub notes: Vec<String>,
}

/// What the default depends on.
pub(super) struct Surroundings<'a> {
    pub variable: &'a dyn Fn(&str) -> Option<OsString>,
    /// Directories with a directory of each user, those of root before.
    pub shared: Vec<PathBuf>,
    pub user: libc::uid_t,
    /// There is a cache: a directory is made for it.
    pub is_used: bool,
}

/// The directories in which a user may have one.
pub(super) fn shared_directories(user: libc::uid_t) -> Vec<PathBuf> {
    let of_root = (user == 0).then(|| PathBuf::from("/run"));
    of_root.into_iter().chain([PathBuf::from("/dev/shm")]).collect()
}

pub(super) fn wrong(message: impl Into<String>) -> ConfigError {
    ConfigError::new("cache-file", message.into())
}

impl Chosen {
    fn alone(place: Place) -> Self {
        Self { place, others: Vec::new(), notes: Vec::new() }
    }
}

/// Chooses the place of the cache's memory.
///
/// # Errors
/// The option is of no use.
pub(super) fn choose(option: &str, around: &Surroundings<'_>) -> Result<Chosen, ConfigError> {
    let has_manager = (around.variable)("NOTIFY_SOCKET").is_some();
    match option {
        "off" | "none" => return Ok(Chosen::alone(Place::Anonymous { why: None })),
        "store" if !has_manager => {
            return Err(wrong(
                "there is no service manager (NOTIFY_SOCKET) with a descriptor store",
            ));
        }
        "auto" | "store" => {}
        "" => return Err(wrong("is empty; give a path on tmpfs, auto, store or off")),
        path => {
            let path = std::path::absolute(path).map_err(|error| wrong(error.to_string()))?;
            return Ok(Chosen::alone(Place::Files { path, required: true }));
        }
    }
    let stores = |word: OsString| word.to_str().and_then(|word| word.parse::<u32>().ok());
    // A manager before version 254 does not say whether it has a store for this unit.
    let has_store = (around.variable)("FDSTORE").and_then(stores).is_some_and(|most| most > 0);
    let is_stored = option == "store" || has_manager && has_store;
    let mut search = Search { is_found: is_stored || !around.is_used, ..Search::default() };
    for name in ["RUNTIME_DIRECTORY", "XDG_RUNTIME_DIR"] {
        // A unit may have several, with colons between.
        let Some(word) = (around.variable)(name) else { continue };
        let first = word.to_str().and_then(|word| word.split(':').next()).map(PathBuf::from);
        if let Some(directory) = first.filter(|path| path.is_absolute()) {
            search.try_given(name, &directory);
        }
    }
    for parent in &around.shared {
        search.try_shared(parent, around.user);
    }
    let Search { chosen, others, notes, reasons, .. } = search;
    let place = match (is_stored, chosen) {
        (true, _) => Place::Store,
        (false, Some(path)) => Place::Files { path, required: false },
        (false, None) => Place::Anonymous { why: Some(reasons.join(", ")) },
    };
    Ok(Chosen { place, others, notes })
}

/// The search for a directory in memory.
#[derive(Default)]
struct Search {
    /// A place is found.
    is_found: bool,
    chosen: Option<PathBuf>,
    others: Vec<PathBuf>,
    notes: Vec<String>,
    /// Why directories are not used.
    reasons: Vec<String>,
}

impl Search {
    /// Takes a directory that the environment names.
    fn try_given(&mut self, name: &str, directory: &Path) {
        match is_memory(directory) {
            true => self.consider(directory),
            false => self.reasons.push(format!("{name} ({}) is not tmpfs", directory.display())),
        }
    }

    /// Takes the directory of a user below one that all users share, which is made if no place is found before.
    fn try_shared(&mut self, parent: &Path, user: libc::uid_t) {
        if !is_memory(parent) {
            self.reasons.push(format!("{} is not tmpfs", parent.display()));
            return;
        }
        let directory = parent.join(format!("headworks-{user}"));
        if self.is_found && !directory.exists() {
            return;
        }
        match private_directory(&directory, user) {
            Ok(()) => self.consider(&directory),
            Err(why) => {
                self.notes.push(format!("{} is not used: {why}", directory.display()));
                self.reasons.push(format!("{}: {why}", directory.display()));
            }
        }
    }

    fn consider(&mut self, directory: &Path) {
        let path = directory.join(NAME);
        let room = File::open(directory).and_then(|file| CacheMemory::space(&file));
        let room = room.ok().map_or(0, |room| room.unwrap_or(u64::MAX));
        if !self.is_found && room >= ROOM_MIN {
            (self.is_found, self.chosen) = (true, Some(path));
            return;
        }
        if room < ROOM_MIN {
            let (room, least) = (display_size(room), display_size(ROOM_MIN));
            self.reasons.push(format!("{} has {room} of {least} free", directory.display()));
        }
        self.others.push(path);
    }
}

/// Makes a directory for this user alone, if it is not there; says why it cannot be used.
fn private_directory(path: &Path, user: libc::uid_t) -> Result<(), String> {
    match std::fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error.to_string()),
        _ => {}
    }
    let found = std::fs::symlink_metadata(path).map_err(|error| error.to_string())?;
    if !found.is_dir() {
        return Err("it is not a directory".into());
    }
    if found.uid() != user {
        return Err(format!("it belongs to user {}", found.uid()));
    }
    match found.mode() & 0o7777 {
        mode if mode & 0o077 == 0 => Ok(()),
        mode => Err(format!("others may enter it (mode {mode:o} instead of 700)")),
    }
}

/// Whether what is made in a directory is in memory.
pub(super) fn is_memory(directory: &Path) -> bool {
    let Ok(file) = File::open(directory) else { return false };
    // SAFETY: a struct of integers, which the kernel fills in.
    let mut found: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: `found` lives through the call.
    let failed = unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut found) } != 0;
    !failed && MEMORY.contains(&(found.f_type as libc::c_long))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen_in(
        option: &str,
        variables: &[(&str, &str)],
        shared: &[&Path],
    ) -> Result<Chosen, String> {
        let variable = |name: &str| {
            let found = variables.iter().find(|(other, _)| *other == name);
            found.map(|(_, value)| OsString::from(value))
        };
        let shared = shared.iter().map(|path| path.to_path_buf()).collect();
        // SAFETY: asks for a number.
        let user = unsafe { libc::geteuid() };
        let around = Surroundings { variable: &variable, shared, user, is_used: true };
        choose(option, &around).map_err(|error| error.to_string())
    }

    fn chosen(option: &str, variables: &[(&str, &str)]) -> Result<Place, String> {
        chosen_in(option, variables, &[]).map(|chosen| chosen.place)
    }

    fn why(place: Result<Place, String>) -> String {
        match place {
            Ok(Place::Anonymous { why: Some(why) }) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn place_is_chosen_by_option_and_environment() {
        let files = |path: &str, required| Ok(Place::Files { path: path.into(), required });
        assert_eq!(
            chosen("off", &[("FDSTORE", "1"), ("NOTIFY_SOCKET", "/n")]),
            Ok(Place::Anonymous { why: None })
        );
        assert_eq!(chosen("/dev/shm/x", &[]), files("/dev/shm/x", true));
        assert_eq!(why(chosen("auto", &[])), "");
        let store = [("NOTIFY_SOCKET", "/n"), ("FDSTORE", "2"), ("XDG_RUNTIME_DIR", "/dev/shm")];
        assert_eq!(chosen("auto", &store), Ok(Place::Store));
        let none = [("NOTIFY_SOCKET", "/n"), ("FDSTORE", "0"), ("XDG_RUNTIME_DIR", "/dev/shm")];
        assert_eq!(chosen("auto", &none), files("/dev/shm/headworks-cache", false));
        let two = [("RUNTIME_DIRECTORY", "/dev/shm:/tmp"), ("XDG_RUNTIME_DIR", "/run")];
        assert_eq!(chosen("auto", &two), files("/dev/shm/headworks-cache", false));
        let disk = [("XDG_RUNTIME_DIR", "/proc")];
        assert_eq!(why(chosen("auto", &disk)), "XDG_RUNTIME_DIR (/proc) is not tmpfs");
        assert_eq!(why(chosen("auto", &[("NOTIFY_SOCKET", "/n")])), "");
        assert_eq!(chosen("store", &[("NOTIFY_SOCKET", "/n")]), Ok(Place::Store));
        assert!(chosen("store", &[]).unwrap_err().contains("no service manager"));
        assert!(chosen("", &[]).unwrap_err().contains("give a path on tmpfs, auto, store or off"));
    }

    #[test]
    fn directory_of_the_user_is_made_checked_and_looked_into() {
        let parent = Path::new("/dev/shm").join(format!("hw-place-{}", std::process::id()));
        if !is_memory(Path::new("/dev/shm")) || std::fs::create_dir(&parent).is_err() {
            return;
        }
        // SAFETY: asks for a number.
        let user = unsafe { libc::geteuid() };
        let own = parent.join(format!("headworks-{user}"));
        let auto = |variables: &[(&str, &str)]| chosen_in("auto", variables, &[&parent]).unwrap();
        // With another place it is neither made nor used.
        let given = [("XDG_RUNTIME_DIR", "/dev/shm")];
        assert!(auto(&given).others.is_empty());
        assert!(!own.exists());
        let first = auto(&[]);
        assert_eq!(first.place, Place::Files { path: own.join(NAME), required: false });
        assert_eq!(std::fs::symlink_metadata(&own).unwrap().mode() & 0o777, 0o700);
        assert_eq!(auto(&given).others, [own.join(NAME)], "earlier servers may have used it");
        let refused = |what: &str| {
            let found = auto(&[]);
            let said = why(Ok(found.place));
            assert!(said.contains(what) && found.notes[0].contains(what), "{said}");
        };
        let mode = |mode| {
            use std::os::unix::fs::PermissionsExt;
            std::fs::set_permissions(&own, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        mode(0o750);
        refused("others may enter it (mode 750 instead of 700)");
        mode(0o700);
        if std::os::unix::fs::chown(&own, Some(65_534), None).is_ok() {
            refused("it belongs to user 65534");
        }
        std::fs::remove_dir(&own).unwrap();
        std::os::unix::fs::symlink("/dev/shm", &own).unwrap();
        refused("it is not a directory");
        std::fs::remove_dir_all(&parent).unwrap();
    }
}
