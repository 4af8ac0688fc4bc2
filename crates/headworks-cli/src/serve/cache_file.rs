//! Where the cache's memory lies, and what earlier servers left there (`--cache-file`).
//!
//! `place` chooses where. Files are named DIRECTORY/headworks-cache, then headworks-cache.1, and so on; with a PATH they are PATH, then
//! PATH.1.
//!
//! A running server locks its file, so a file that can be locked was left by a dead one; so was one with dirty data of an image that
//! can be locked, which a killed process gives up a moment later. Its data go to the images that this
//! server opens (`Leftovers`), at its start and later; then it is removed, or given up to others. The file of this server goes at a clean stop. A server that replaces a running
//! one gets that one's memory; its file is left alone until then.
//!
//! Invariant: a name is removed only by the process that has locked the file of that name, and a file is used only by one that has
//! locked it and found it under its name afterwards (`is_named`). So of servers that start together none takes or removes
//! another's file: between open and lock the file may have been taken for a dead server's, and then another name is used.
//!
//! A name that is no regular file of this user belongs to another user: it is skipped, with a sentence, and prevents no start.

mod place;
#[cfg(test)]
mod starts_tests;

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use headworks::house::memory_file;
use headworks::house::safe_open::open_own;
use headworks_core::ConfigError;
use headworks_server::{CacheFile, Leftovers};
use sd_notify::NotifyState;

pub(super) use place::NAME;
use place::{Chosen, Place, Surroundings, choose, is_memory, shared_directories, wrong};

/// Most files of one name: that many servers may share a runtime directory.
const FILES_MAX: u32 = 1000;

/// The file of this server.
struct OwnFile {
    file: Arc<File>,
    path: Option<PathBuf>,
    name: String,
    /// Name in the service manager's store.
    stored_as: Option<String>,
    /// A server that cannot use it does not start.
    required: bool,
}

/// The memory of a server that is handed over to one that replaces it.
#[derive(Debug)]
pub(super) struct StoredMemory {
    pub file: File,
    /// Its name for messages.
    pub shown: String,
    /// Path of the file, which a clean stop removes; none for memory without a path.
    pub path: Option<PathBuf>,
    /// Name in the service manager's descriptor store.
    pub stored_as: Option<String>,
}

impl StoredMemory {
    /// Memory that the service manager has passed.
    pub(super) fn passed(descriptor: OwnedFd, name: String) -> Self {
        let shown = format!("the service manager's descriptor store ({name})");
        Self { file: descriptor.into(), shown, path: None, stored_as: Some(name) }
    }
}

impl OwnFile {
    fn for_server(&self) -> CacheFile {
        let Self { file, name, required, .. } = self;
        CacheFile { file: Arc::clone(file), name: name.clone(), required: *required }
    }
}

/// The cache's memory of this server, and the files of earlier ones.
pub(super) struct CacheStore {
    option: String,
    place: Place,
    own: Option<OwnFile>,
    /// The memory comes from the server that this one replaces.
    is_taken_over: bool,
    pub leftovers: Leftovers,
    /// Messages for the user.
    pub notes: Vec<String>,
}

impl CacheStore {
    /// Chooses the place, and takes in what earlier servers left there and with the service manager; not the file of the server
    /// that this one replaces. `user` is whom servers become (`--user`): their files are its own.
    pub(super) fn find(
        option: &str,
        passed: Vec<(OwnedFd, String)>,
        of_predecessor: Option<&StoredMemory>,
        user: Option<libc::uid_t>,
        is_used: bool,
    ) -> Result<Self, ConfigError> {
        let in_use = of_predecessor.and_then(|memory| memory.path.as_deref());
        let Chosen { place, others, notes } = choose_here(option, is_used)?;
        let (leftovers, is_taken_over) = (Leftovers::default(), false);
        let option = option.to_owned();
        let mut store = Self { option, place, own: None, is_taken_over, leftovers, notes };
        for (fd, name) in passed {
            let shown = format!("the descriptor {name} in the service manager's store");
            let forgotten = name.clone();
            let remove = move || forget_descriptor(&forgotten);
            store.leftovers.add_passed(File::from(fd), &shown, remove)?;
        }
        let new = match &store.place {
            Place::Files { path, required } => Some((path.clone(), *required)),
            Place::Anonymous { .. } | Place::Store => None,
        };
        let others = others.into_iter().map(|path| (path, false));
        let places: Vec<_> = new.into_iter().chain(others).collect();
        for (path, required) in &places {
            for path in candidates(path).filter(|path| Some(path.as_path()) != in_use) {
                let taken = match open_file(&path, user) {
                    Ok(None) => continue,
                    Ok(Some(file)) => take_in(&store.leftovers, file, &path),
                    Err(stranger) => {
                        store.notes.push(stranger.to_string());
                        continue;
                    }
                };
                match taken {
                    Err(error) if *required => return Err(error),
                    Err(error) => store.notes.push(error.to_string()),
                    Ok(()) => {}
                }
            }
        }
        store.leftovers.find_with(Box::new(move |leftovers, is_wanted| {
            for path in places.iter().flat_map(|(path, _)| candidates(path)) {
                // What cannot be opened was told of at the start, or is another user's.
                let file = open_file(&path, user).ok().flatten();
                let Some(file) = file.filter(|file| is_wanted(&path, file)) else { continue };
                if let Err(error) = take_in(leftovers, file, &path) {
                    tracing::warn!("{error}");
                }
            }
        }));
        Ok(store)
    }

    /// Takes the memory of the server that this one replaces in place of new one.
    pub(super) fn take_over(&mut self, memory: StoredMemory) {
        let StoredMemory { file, shown, path, stored_as } = memory;
        let own = OwnFile { file: Arc::new(file), path, name: shown, stored_as, required: true };
        (self.own, self.is_taken_over) = (Some(own), true);
    }

    /// Whether the service manager keeps the memory.
    pub(super) fn is_stored(&self) -> bool {
        self.own.as_ref().is_some_and(|own| own.stored_as.is_some())
    }

    /// Whether another process named the file, and has it until this one serves.
    pub(super) fn is_taken_over(&self) -> bool {
        self.is_taken_over
    }

    /// The memory of this server, for one that is to replace it.
    pub(super) fn to_hand_over(&self) -> io::Result<Option<StoredMemory>> {
        let Some(OwnFile { file, path, name, stored_as, .. }) = &self.own else { return Ok(None) };
        let (path, shown, stored_as) = (path.clone(), name.clone(), stored_as.clone());
        Ok(Some(StoredMemory { file: file.try_clone()?, shown, path, stored_as }))
    }

    /// Makes the file of this server, once the images are open, where there is room when dead servers have only what is needed of theirs.
    pub(super) fn create(&mut self) -> Result<Option<CacheFile>, ConfigError> {
        self.leftovers.shrink();
        if self.is_taken_over {
            return Ok(self.own.as_ref().map(OwnFile::for_server));
        }
        self.place = choose_here(&self.option, true)?.place;
        let required = matches!(self.place, Place::Files { required: true, .. });
        let made = match self.place.clone() {
            Place::Anonymous { .. } => return Ok(None),
            Place::Files { path, .. } => {
                create_file(&path).map_err(|error| cannot_make(&path, &error))
            }
            Place::Store => {
                store_memfd().map_err(|error| wrong(format!("cannot store a descriptor: {error}")))
            }
        };
        match made {
            Ok(own) => {
                let own = self.own.insert(OwnFile { required, ..own });
                Ok(Some(own.for_server()))
            }
            Err(error) if required => Err(error),
            Err(error) => {
                self.notes.push(error.to_string());
                Ok(None)
            }
        }
    }

    /// Why the memory is anonymous, where that was not asked for.
    pub(super) fn why_anonymous(&self) -> Option<&str> {
        match &self.place {
            Place::Anonymous { why } => why.as_deref().filter(|why| !why.is_empty()),
            Place::Files { .. } | Place::Store => None,
        }
    }

    /// Where the dirty data of this server are kept, in words.
    pub(super) fn shown(&self) -> Option<&str> {
        self.own.as_ref().map(|own| own.name.as_str())
    }

    /// The file of this server, which `--user` is to own.
    pub(super) fn path(&self) -> Option<&Path> {
        self.own.as_ref()?.path.as_deref()
    }

    /// Removes the file of this server: nothing in it is dirty.
    pub(super) fn remove(&self) {
        let Some(own) = &self.own else { return };
        match &own.path {
            Some(path) => {
                if !is_named(&own.file, path) || std::fs::remove_file(path).is_err() {
                    // Where that is not allowed any more: an empty file is none.
                    let _ = own.file.set_len(0);
                }
            }
            None => own.stored_as.iter().for_each(|name| forget_descriptor(name)),
        }
    }
}

/// Chooses the place by what is there now.
fn choose_here(option: &str, is_used: bool) -> Result<Chosen, ConfigError> {
    // SAFETY: asks for a number.
    let user = unsafe { libc::geteuid() };
    let variable = |name: &str| std::env::var_os(name).filter(|word| !word.is_empty());
    let shared = shared_directories(user);
    choose(option, &Surroundings { variable: &variable, shared, user, is_used })
}

/// Opens a regular file of this user; none if there is no such name.
fn open_file(path: &Path, user: Option<libc::uid_t>) -> Result<Option<File>, ConfigError> {
    let opened = open_own(path, File::options().read(true).write(true));
    let shown = path.display();
    let left = |why: &str| wrong(format!("{shown} {why}; it is left alone"));
    let file = match opened {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(|error| left(&format!("cannot be opened ({error})")))?,
    };
    let metadata =
        file.metadata().map_err(|error| left(&format!("cannot be examined ({error})")))?;
    // SAFETY: asks for a number.
    let own = unsafe { libc::geteuid() };
    let is_ours = metadata.uid() == own || Some(metadata.uid()) == user;
    match metadata.is_file() && is_ours {
        true => Ok(Some(file)),
        false => Err(left("is no file of this user")),
    }
}

/// Takes in a file that no running server has.
fn take_in(leftovers: &Leftovers, file: File, path: &Path) -> Result<(), ConfigError> {
    let cannot = |error: io::Error| wrong(format!("cannot open {}: {error}", path.display()));
    let shown = path.display().to_string();
    let (gone, locked) = (path.to_owned(), file.try_clone().map_err(cannot)?);
    // With this descriptor the lock is kept until the name is gone.
    let remove = move || remove_file(&locked, &gone);
    if !lock(&file).map_err(cannot)? {
        leftovers.add_held(file, &shown, lock, remove);
        return Ok(());
    }
    if !is_named(&file, path) {
        // A server that was stopping has removed it meanwhile.
        return Ok(());
    }
    leftovers.add(file, &shown, remove)
}

/// The names that files of servers may have, in order.
fn candidates(path: &Path) -> impl Iterator<Item = PathBuf> {
    let with = |number: u32| match number {
        0 => path.to_owned(),
        number => {
            let mut name = path.as_os_str().to_owned();
            name.push(format!(".{number}"));
            PathBuf::from(name)
        }
    };
    // Names are used from the first on, but an earlier one may have gone.
    let listed = path.parent().and_then(|parent| std::fs::read_dir(parent).ok());
    let there: Vec<OsString> =
        listed.into_iter().flatten().flatten().map(|entry| entry.file_name()).collect();
    let is_there = move |path: &PathBuf| {
        path.file_name().is_some_and(|name| there.iter().any(|other| other == name))
    };
    (0..FILES_MAX).map(with).filter(is_there).collect::<Vec<_>>().into_iter()
}

/// Locks a file; false if another open file has the lock.
fn lock(file: &File) -> io::Result<bool> {
    step();
    crate::flock::lock(file)
}

/// Whether the file is still the one of this name. Asked by the holder of its lock, the answer holds as long as the lock.
fn is_named(file: &File, path: &Path) -> bool {
    step();
    #[cfg(test)]
    if !starts_tests::looks_again() {
        return true;
    }
    let (Ok(own), Ok(named)) = (file.metadata(), std::fs::symlink_metadata(path)) else {
        return false;
    };
    own.nlink() > 0 && (own.dev(), own.ino()) == (named.dev(), named.ino())
}

fn create_file(path: &Path) -> io::Result<OwnFile> {
    check_directory(path)?;
    for number in 0..FILES_MAX {
        let mut name = path.as_os_str().to_owned();
        if number > 0 {
            name.push(format!(".{number}"));
        }
        if let Some(file) = create_locked(Path::new(&name))? {
            let (file, path) = (Arc::new(file), PathBuf::from(name));
            let name = path.display().to_string();
            return Ok(OwnFile { file, path: Some(path), name, stored_as: None, required: false });
        }
    }
    Err(io::Error::new(io::ErrorKind::AlreadyExists, "too many servers use this name"))
}

/// Checks whether the option of a server names a file that can be made; what it chooses or finds itself is no error.
pub(super) fn check(option: &str) -> Result<(), ConfigError> {
    if ["auto", "store", "off", "none"].contains(&option) {
        return Ok(());
    }
    let path = std::path::absolute(option).map_err(|error| wrong(error.to_string()))?;
    check_directory(&path).map_err(|error| cannot_make(&path, &error))
}

fn cannot_make(path: &Path, error: &io::Error) -> ConfigError {
    wrong(format!("cannot make {}: {error}", path.display()))
}

fn check_directory(path: &Path) -> io::Result<()> {
    let parent = path.parent().unwrap_or(Path::new("/"));
    std::fs::metadata(parent)?;
    if is_memory(parent) {
        return Ok(());
    }
    let message = "its directory is not on tmpfs or hugetlbfs, so every write would go to a disk; give a path in memory, as in /dev/shm/NAME, or off";
    Err(io::Error::other(message))
}

/// Makes a file of this name and locks it; none if the name is another's, also by the time the file is locked.
fn create_locked(name: &Path) -> io::Result<Option<File>> {
    let mut options = File::options();
    options.read(true).write(true).create_new(true).mode(0o600);
    step();
    let file = match options.open(name) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(None),
        made => made?,
    };
    // A server that starts meanwhile may have taken the empty file for a dead one's: it removes it.
    Ok((lock(&file)? && is_named(&file, name)).then_some(file))
}

/// A step on the file system that servers which start together may take in any order; tests decide whose is next.
#[cfg(not(test))]
const fn step() {}
#[cfg(test)]
use starts_tests::step;

/// The name of this process's descriptor in the store.
fn descriptor_name() -> String {
    format!("{NAME}-{}", std::process::id())
}

/// Makes a memfd and has the service manager keep it.
fn store_memfd() -> io::Result<OwnFile> {
    let file = memory_file(c"headworks-cache")?;
    let name = descriptor_name();
    let state = [NotifyState::FdStore, NotifyState::FdName(&name)];
    sd_notify::notify_with_fds(&state, &[file.as_fd()])?;
    let shown = format!("the service manager's descriptor store ({name})");
    let (file, stored_as) = (Arc::new(file), Some(name));
    Ok(OwnFile { file, path: None, name: shown, stored_as, required: false })
}

pub(super) fn forget_descriptor(name: &str) {
    // A manager that is gone keeps nothing.
    let _ = sd_notify::notify(&[NotifyState::FdStoreRemove, NotifyState::FdName(name)]);
}

/// Removes the file of a dead server, whose lock this process has.
fn remove_file(locked: &File, path: &Path) {
    if !is_named(locked, path) {
        return;
    }
    step();
    if let Err(error) = std::fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!("cannot remove {}: {error}; nothing in it is needed", path.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A new directory in memory, removed when dropped.
    struct Memory(PathBuf);

    impl Memory {
        fn new(name: &str) -> Option<Self> {
            let path = Path::new("/dev/shm").join(format!("hw-{name}-{}", std::process::id()));
            (is_memory(Path::new("/dev/shm")) && std::fs::create_dir(&path).is_ok())
                .then_some(Self(path))
        }

        fn names(&self) -> Vec<String> {
            let entries = std::fs::read_dir(&self.0).unwrap().flatten();
            let mut names: Vec<String> =
                entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
            names.sort();
            names
        }
    }

    impl Drop for Memory {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn servers_that_start_together_have_a_file_each() {
        const SERVERS: usize = 8;
        let Some(memory) = Memory::new("together") else { return };
        let option = memory.0.join("cache").to_str().unwrap().to_owned();
        for round in 0..200 {
            let start = std::sync::Barrier::new(SERVERS);
            let begin = || {
                start.wait();
                let mut store = CacheStore::find(&option, Vec::new(), None, None, true).unwrap();
                store.create().unwrap();
                store
            };
            let stores: Vec<CacheStore> = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..SERVERS).map(|_| scope.spawn(begin)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            for store in &stores {
                let own = store.own.as_ref().unwrap();
                let path = own.path.as_ref().unwrap();
                assert!(is_named(&own.file, path), "round {round}: {} is not ours", own.name);
            }
            // Half of them stop: the files of the others stay.
            let (stopped, killed) = stores.split_at(SERVERS / 2);
            stopped.iter().for_each(CacheStore::remove);
            assert!(killed.iter().all(|store| store.path().unwrap().exists()), "round {round}");
        }
    }

    #[test]
    fn file_that_was_taken_for_a_dead_servers_is_not_used() {
        let Some(memory) = Memory::new("taken") else { return };
        let path = memory.0.join("cache");
        // Another server has opened the file that this one makes, and locks it first.
        std::fs::write(&path, "").unwrap();
        let taken = File::options().read(true).write(true).open(&path).unwrap();
        assert!(lock(&taken).unwrap());
        let late = File::options().read(true).write(true).open(&path).unwrap();
        assert!(!lock(&late).unwrap(), "it has the lock");
        remove_file(&taken, &path);
        drop(taken);
        assert!(lock(&late).unwrap() && !is_named(&late, &path), "the lock alone says nothing");
        // A removed file's owner leaves the name alone, which is another's by now.
        let other = create_locked(&path).unwrap().unwrap();
        remove_file(&late, &path);
        assert!(is_named(&other, &path));
    }

    #[test]
    fn strangers_beside_the_file_are_skipped_with_a_sentence() {
        let Some(memory) = Memory::new("strangers") else { return };
        let path = memory.0.join("cache");
        let beside = |number: u32| memory.0.join(format!("cache.{number}"));
        std::fs::create_dir(beside(1)).unwrap();
        std::os::unix::fs::symlink("/etc/hostname", beside(2)).unwrap();
        let fifo = std::ffi::CString::new(beside(3).to_str().unwrap()).unwrap();
        // SAFETY: a string that lives through the call.
        assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
        std::fs::write(beside(4), "not ours").unwrap();
        // Only root can give a file away.
        let foreign = std::os::unix::fs::chown(beside(4), Some(65_534), None).is_ok();
        let option = path.to_str().unwrap();
        let store = CacheStore::find(option, Vec::new(), None, None, true);
        if !foreign {
            // Of this user, and no cache file: the name was given for such.
            assert!(store.err().unwrap().to_string().contains("too short to be a cache file"));
            std::fs::remove_file(beside(4)).unwrap();
        }
        let mut store = CacheStore::find(option, Vec::new(), None, None, true).unwrap();
        let notes = store.notes.clone();
        assert_eq!(notes.len(), if foreign { 4 } else { 3 }, "{notes:?}");
        assert!(notes.iter().all(|note| note.ends_with("it is left alone")), "{notes:?}");
        assert!(store.create().unwrap().is_some() && store.path() == Some(&*path));
        store.remove();
        let left = memory.names();
        assert_eq!(left.len(), notes.len(), "{left:?}");
    }

    #[test]
    fn files_of_running_servers_are_left_alone() {
        let directory = Path::new("/dev/shm").join(format!("hw-cache-{}", std::process::id()));
        if !is_memory(Path::new("/dev/shm")) || std::fs::create_dir(&directory).is_err() {
            return;
        }
        let path = directory.join("cache");
        let option = path.to_str().unwrap().to_owned();
        let mut first = CacheStore::find(&option, Vec::new(), None, None, true).unwrap();
        assert!(first.create().unwrap().is_some());
        let mut second = CacheStore::find(&option, Vec::new(), None, None, true).unwrap();
        second.create().unwrap();
        assert_eq!(second.path(), Some(&*directory.join("cache.1")));
        // The first one dies before its memory is complete: nothing is in it.
        drop(first);
        let third = CacheStore::find(&option, Vec::new(), None, None, true).unwrap();
        assert!(!path.exists() && directory.join("cache.1").exists());
        second.remove();
        drop((second, third));
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0);
        std::fs::remove_dir(&directory).unwrap();
        let refused = CacheStore::find("/proc/x", Vec::new(), None, None, true)
            .unwrap()
            .create()
            .err()
            .unwrap();
        assert!(refused.to_string().contains("not on tmpfs or hugetlbfs"), "{refused}");
    }
}
