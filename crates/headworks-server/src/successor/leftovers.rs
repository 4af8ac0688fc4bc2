//! Dirty data that earlier servers left in shared memory, and their way to the images.
//!
//! ```text
//!   start: every file that a dead server left --> `Leftovers` --image opened and locked--> `PendingRestore`
//!            image as it was, and memory of our own that outlives us  --> written into the cache, dirty; served at once
//!            image as it was, otherwise                               --> written to the image, synced
//!            image changed, or perhaps another one                    --> a recovery file; flushes of the export fail
//!            another image at its path or with its number             --> a recovery file, once all images are open
//!            image not served                                         --> the file stays, and a note says so
//!   later: the files that are there then and tell of an image that is added   --> as above
//! ```
//!
//! A file is locked while something of it goes to an image, and no longer: what else it has may be of another server's images, which can start.
//! One that the service manager has passed has no name by which it is found again, and is kept.
//!
//! Rule: an image suffers only for data that are its own. Those of another image, whose path or number it has, change nothing of it:
//! its flushes succeed, and nothing is written into its directory. Recovery files of a changed image lie beside it, all others in the
//! state directory ([`crate::successor::recovery`]).
//!
//! An image is restored before a client can use it. An entry is cleared when its block is on the image or in our own dirty table; so a
//! server that dies while it restores leaves everything to the next one, a few blocks perhaps twice and then equal.
//!
//! Rule: only what is dirty keeps memory, from the time on at which the images of a start are locked, and before memory of our own is
//! chosen and made ([`Leftovers::shrink`]). A file is removed when nothing in it is dirty any more, and the images that it tells of have rows in our own
//! memory and marks of ours: a death before that would leave marks without the memory that shows what they mean.

use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use headworks::OpenFile;
use headworks::house::display_size;
use headworks::house::safe_open::open_own;
use headworks_cache_memory::{
    DeadServer, ImageState, LeftCache, LeftVolume, Verdict, VolumeRow, judge, write_image,
    write_recovery,
};
use headworks_core::{ConfigError, VolumeId};
use headworks_house::{Identity, ImageHandles, ImageWriter};
use headworks_nbd::client::Export;

use crate::exports::export_range::ExportRange;
use crate::successor::marker::{Marker, Unclean};
use crate::successor::recovery::{notes_of, write_to_state};

/// Removes a file whose data are all on their images.
type Remove = Box<dyn FnOnce() + Send>;

/// A file of a dead server.
struct LeftFile {
    cache: Arc<LeftCache>,
    /// Its name for messages.
    name: String,
    remove: Remove,
    /// Its volumes whose data are being restored.
    claimed: Vec<VolumeId>,
    /// Its volumes in whose place another image is, and why it is another.
    strays: Vec<(VolumeId, String)>,
    /// It is found again by its name.
    is_named: bool,
}

impl LeftFile {
    /// Whether data of it go to an image, or no other process could find it again.
    fn is_needed(&self, left: &[&LeftVolume]) -> bool {
        !self.is_named || left.iter().any(|volume| self.claimed.contains(&volume.volume))
    }

    /// Whether a mark tells of an image that is not among the `opened`, and of which nothing is dirty here: without the file, a server that opens it
    /// would have to take it for lost.
    fn vouches(&self, opened: &[Identity]) -> bool {
        let alive = self.cache.alive();
        let closed = |row: &VolumeRow| !opened.iter().any(|image| row.may_be_of(image));
        let vouches = |row: &VolumeRow| closed(row) && is_marked(&row.path, row.identity, alive);
        self.cache.rows().iter().any(vouches)
    }

    /// Writes data of images in whose place others are to the state directory; returns a sentence about each.
    fn settle_strays(&mut self) -> Vec<String> {
        let strays = std::mem::take(&mut self.strays);
        let left = self.cache.volumes();
        let settle = |(id, why): &(VolumeId, String)| {
            let volume = left.iter().find(|left| left.volume == *id)?;
            if self.claimed.contains(id) {
                return None;
            }
            let path = volume.row.as_ref()?.path.display();
            let size = display_size(volume.bytes);
            Some(match write_to_state(&self.cache, volume) {
                Ok(file) => format!(
                    "{size} of acknowledged writes to {path}, which a killed server left, are in {}: what is served in its place is another \
                     image ({why}), which they do not concern",
                    file.display()
                ),
                Err(error) => format!(
                    "{size} of acknowledged writes to {path} stay in {}: what is served in its place is another image ({why}), and they \
                     cannot be written to the state directory: {error}",
                    self.name
                ),
            })
        };
        strays.iter().filter_map(settle).collect()
    }

    /// A sentence about data of an image that is not served.
    fn note(&self, row: &VolumeRow, bytes: u64) -> String {
        let (name, size, path) = (&self.name, display_size(bytes), row.path.display());
        let way = match row.path.exists() {
            true => "is not served; serve it to have them written".to_owned(),
            false => format!("does not exist; remove {name} to give them up"),
        };
        format!("{name} holds {size} of acknowledged writes to {path}, which {way}")
    }
}

/// Takes in ([`Leftovers::add`], [`Leftovers::add_held`]) the files that are wanted, of all that have the name of one.
pub type FindFiles = Box<dyn Fn(&Leftovers, &dyn Fn(&Path, &File) -> bool) + Send + Sync>;

/// Locks the file of a server; false if another open file has the lock.
pub type TryLock = fn(&File) -> io::Result<bool>;

/// Longest wait for a process that is ending to give up its memory.
const ENDING: Duration = Duration::from_secs(10);

/// A file that another process has locked: one that serves, or one that was killed and is not quite gone.
struct HeldFile {
    file: File,
    name: String,
    lock: TryLock,
    remove: Remove,
}

/// What a file that another process has locked tells of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeldOf {
    Nothing,
    /// Nothing of it is dirty, and a mark says that it may be.
    Clean,
    Dirty,
}

impl HeldFile {
    /// What it tells of the image at `path`.
    fn tells_of(&self, path: &Path, image: Identity) -> HeldOf {
        // One that cannot be read is not ours to judge.
        let seen = self.file.try_clone().and_then(LeftCache::look).ok().flatten();
        let Some(cache) = seen else { return HeldOf::Nothing };
        let volumes = cache.volumes();
        let mut dirty = volumes.iter().filter_map(|volume| volume.row.as_ref());
        if dirty.any(|row| row.may_be_of(&image)) {
            return HeldOf::Dirty;
        }
        let is_there = cache.rows().iter().any(|row| row.may_be_of(&image));
        match is_there && is_marked(path, image, cache.alive()) {
            true => HeldOf::Clean,
            false => HeldOf::Nothing,
        }
    }

    /// Waits until its process is gone; false if that takes too long.
    fn wait(&self) -> bool {
        let since = Instant::now();
        while !(self.lock)(&self.file).unwrap_or(false) {
            if since.elapsed() > ENDING {
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        true
    }
}

/// Whether a mark tells that a server which was alive at `alive` may have dirty data of the image at a path.
fn is_marked(path: &Path, image: Identity, alive: u64) -> bool {
    let found = Marker::of_image(path, image).and_then(|mark| mark.found(image));
    found.is_some_and(|unclean| unclean.is_covered(alive))
}

/// Dirty data of one volume of a dead server, and the image for them, which is as that server left it.
pub(crate) struct PendingRestore {
    /// The memory that has them.
    pub cache: Arc<LeftCache>,
    /// The volume of that server.
    pub volume: LeftVolume,
    /// The image to be written.
    pub image: ImageWriter,
    /// Name of the image for messages.
    shown: String,
    /// Name of the memory for messages.
    left_in: String,
}

impl PendingRestore {
    /// Writes the data to the image and syncs it; returns a sentence about it.
    pub fn write(&self) -> Result<String, ConfigError> {
        let (began, size) = (Instant::now(), display_size(self.volume.bytes));
        let Self { shown, left_in, .. } = self;
        write_image(&self.cache, &self.volume, &self.image).map_err(|error| {
            let message = format!(
                "{shown}: cannot restore {size} of acknowledged writes that a killed server left: {error}; they stay in {left_in}"
            );
            ConfigError::new("path", message)
        })?;
        let ms = began.elapsed().as_millis();
        Ok(format!(
            "{shown}: restored {size} of acknowledged writes after the server was killed, in {ms} ms"
        ))
    }

    /// A sentence about data that are served from the cache at once.
    pub fn note(&self) -> String {
        let (shown, size) = (&self.shown, display_size(self.volume.bytes));
        format!(
            "{shown}: restored {size} of acknowledged writes after the server was killed, into the cache; write-out follows"
        )
    }
}

/// What was found out about an image.
#[derive(Default)]
pub(crate) struct RestoredImage {
    /// Messages for the user, one sentence each.
    pub notes: Vec<String>,
    /// Data that are not on the image yet.
    pub pending: Vec<PendingRestore>,
    /// Its server died and left its memory, in which everything is that the image did not have: when it was last alive, in nanoseconds
    /// since 1970.
    pub covered: Option<u64>,
    /// Its flushes must fail until the operator acknowledges it.
    pub suspect: bool,
}

/// An image, and the open file that holds its lock.
type HandedLock = (Identity, Arc<File>);

/// What earlier servers left: files of dead ones, and the image locks of one that hands over. Shared by the threads that open images.
#[derive(Clone, Default)]
pub struct Leftovers {
    files: Arc<Mutex<Vec<LeftFile>>>,
    /// Files that other processes had at the start, until the images are open.
    held: Arc<Mutex<Vec<HeldFile>>>,
    locks: Arc<Mutex<Vec<HandedLock>>>,
    /// Paths of images that a server which hands over may have marked.
    marked: Arc<Mutex<Vec<PathBuf>>>,
    remotes: Arc<Mutex<Vec<(Identity, Export)>>>,
    /// Partitions that a server which hands over serves.
    partitions: Arc<Mutex<Vec<(Identity, u8, ExportRange)>>>,
    /// Images whose dead server left its memory, and when it was last alive.
    covered: Arc<Mutex<Vec<(Identity, u64)>>>,
    /// Finds files of servers for an image that is opened later.
    find: Arc<OnceLock<FindFiles>>,
    /// The images of the start are open: files are looked for.
    has_started: Arc<AtomicBool>,
    /// Held while files are taken in or given up.
    turn: Arc<Mutex<()>>,
}

impl fmt::Debug for Leftovers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Leftovers")
    }
}

impl Leftovers {
    /// What finds files once the images of the start are open; the first one counts.
    pub fn find_with(&self, find: FindFiles) {
        let _ = self.find.set(find);
    }

    /// Adds a file that no running process uses, and that has the name by which others find it. `remove` is called once nothing in it is
    /// needed.
    ///
    /// # Errors
    /// A sentence about a file that cannot be used.
    pub fn add(
        &self,
        file: File,
        name: &str,
        remove: impl FnOnce() + Send + 'static,
    ) -> Result<(), ConfigError> {
        self.add_file(file, name, true, remove)
    }

    /// As [`Leftovers::add`], of a file that was passed to this process alone.
    ///
    /// # Errors
    /// As [`Leftovers::add`].
    pub fn add_passed(
        &self,
        file: File,
        name: &str,
        remove: impl FnOnce() + Send + 'static,
    ) -> Result<(), ConfigError> {
        self.add_file(file, name, false, remove)
    }

    fn add_file(
        &self,
        file: File,
        name: &str,
        is_named: bool,
        remove: impl FnOnce() + Send + 'static,
    ) -> Result<(), ConfigError> {
        let wrong = |error| ConfigError::new("cache-file", format!("{name} {error}"));
        match LeftCache::open(file).map_err(wrong)? {
            None => remove(),
            Some(cache) => {
                let (cache, name) = (Arc::new(cache), name.to_owned());
                let (remove, claimed) = (Box::new(remove), Vec::new());
                let strays = Vec::new();
                let file = LeftFile { cache, name, remove, claimed, strays, is_named };
                let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
                // Of two that have a block, the later server's has it last.
                let at = files.partition_point(|other| other.cache.alive() <= file.cache.alive());
                files.insert(at, file);
            }
        }
        Ok(())
    }

    /// Adds a file that another process has locked. If that is one that was killed and is not quite gone, its data are waited for when
    /// their image is opened.
    pub fn add_held(
        &self,
        file: File,
        name: &str,
        lock: TryLock,
        remove: impl FnOnce() + Send + 'static,
    ) {
        let held = HeldFile { file, name: name.to_owned(), lock, remove: Box::new(remove) };
        self.held.lock().unwrap_or_else(PoisonError::into_inner).push(held);
    }

    /// Takes in files that tell of an image whose lock is ours: their processes are ending, since one that serves has the lock of
    /// its images. A killed process may give up its locks one after the other, some milliseconds apart.
    fn await_ending(&self, path: &Path, image: &OpenFile) -> Result<(), ConfigError> {
        let identity = image.identity();
        let place = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = 0;
        while let Some(file) = held.get(next) {
            let told = file.tells_of(&place, identity);
            if told == HeldOf::Nothing {
                next += 1;
            } else if file.wait() {
                let HeldFile { file, name, remove, .. } = held.swap_remove(next);
                self.add(file, &name, remove)?;
            } else if told == HeldOf::Clean {
                // Its data are on the image; that cannot be shown.
                next += 1;
            } else {
                let (name, path) = (&file.name, path.display());
                let message = format!(
                    "{name} has acknowledged writes to {path}, and another process has it, one that was killed and is not gone or a start that restores other images from it; start again when that is over"
                );
                return Err(ConfigError::new("cache-file", message));
            }
        }
        Ok(())
    }

    /// Takes in files that tell of an image and were let go since the start, or are of servers that have died since.
    fn look_again(&self, image: Identity) {
        let find = self.find.get().filter(|_| self.has_started.load(Ordering::Relaxed));
        let Some(find) = find else { return };
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let names: Vec<String> = files.iter().map(|file| file.name.clone()).collect();
        drop(files);
        let tells = |file: &File| {
            // One that cannot be read is not ours to judge.
            let seen = file.try_clone().and_then(LeftCache::look).ok().flatten();
            seen.is_some_and(|cache| cache.rows().iter().any(|row| row.may_be_of(&image)))
        };
        find(self, &|path, file| !names.contains(&path.display().to_string()) && tells(file));
    }

    /// Adds the lock of an image that a running server hands over: a descriptor of the open file that holds it. That server has the
    /// image open, so its numbers tell which it is.
    pub(crate) fn add_lock(&self, image: Identity, lock: File) {
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        locks.push((image, Arc::new(lock)));
    }

    /// The lock of the image at `path`, if a running server hands it over.
    pub(crate) fn lock_of(&self, path: &Path) -> Option<Arc<File>> {
        let image = Identity::of(path).ok()?;
        let locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        let found = locks.iter().find(|(other, _)| other.has_numbers_of(&image));
        found.map(|(_, lock)| Arc::clone(lock))
    }

    /// Adds the path of an image that a running server may have marked, and hands over.
    pub(crate) fn add_marked(&self, path: PathBuf) {
        self.marked.lock().unwrap_or_else(PoisonError::into_inner).push(path);
    }

    /// Whether the mark beside the image at `path` is that of a running server which hands over. The image may be another one by now.
    pub(crate) fn is_marked(&self, path: &Path) -> bool {
        let marked = self.marked.lock().unwrap_or_else(PoisonError::into_inner);
        marked.iter().any(|other| other == path)
    }

    /// Adds an export of another server that a running server hands over.
    pub(crate) fn add_remote(&self, image: Identity, export: Export) {
        self.remotes.lock().unwrap_or_else(PoisonError::into_inner).push((image, export));
    }

    /// The export behind an image, if a running server hands it over; the first device to ask has it.
    pub(crate) fn remote_of(&self, image: Identity) -> Option<Export> {
        let mut remotes = self.remotes.lock().unwrap_or_else(PoisonError::into_inner);
        let index = remotes.iter().position(|(other, _)| other.has_numbers_of(&image))?;
        Some(remotes.swap_remove(index).1)
    }

    /// Adds a partition of an image that a running server hands over.
    pub(crate) fn add_partition(&self, image: Identity, number: u8, range: ExportRange) {
        let mut partitions = self.partitions.lock().unwrap_or_else(PoisonError::into_inner);
        partitions.push((image, number, range));
    }

    /// Where a partition of an image is, if a running server hands it over.
    pub(crate) fn partition_of(&self, image: Identity, number: u8) -> Option<ExportRange> {
        let partitions = self.partitions.lock().unwrap_or_else(PoisonError::into_inner);
        let mut of_image = partitions.iter().filter(|(other, ..)| other.has_numbers_of(&image));
        of_image.find(|(_, other, _)| *other == number).map(|(.., range)| *range)
    }

    /// Forgets partitions, and the locks, marks and remotes that no image has taken: locks go with their last descriptor.
    pub(crate) fn drop_locks(&self) {
        self.remotes.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.partitions.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.marked.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.locks.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Finds the dirty data of an image that is locked and not served yet, to be written by `writer`. What belongs beside it is written
    /// there.
    pub(crate) fn restore_image(
        &self,
        path: &Path,
        image: &OpenFile,
        writer: &ImageWriter,
    ) -> Result<RestoredImage, ConfigError> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.look_again(image.identity());
        if image.locked() && self.lock_of(path).is_none() {
            self.await_ending(path, image)?;
        }
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        // Of earlier starts: those of this one are told when they are written.
        let absolute = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let (state, is_plain) = (ImageState::of(image), writer.is_plain());
        let notes = notes_of(state.identity, &absolute);
        let mut done = RestoredImage { notes, ..RestoredImage::default() };
        for file in files.iter_mut() {
            let dead = DeadServer::of(&file.cache);
            let verdict = |row: &VolumeRow| judge(&dead, row, &state, is_plain);
            let is_its = |row: &VolumeRow| !matches!(verdict(row), Verdict::Other(_));
            let its: Vec<_> = file.cache.rows().into_iter().filter(|row| is_its(row)).collect();
            if !its.is_empty() {
                done.covered = done.covered.max(Some(dead.alive));
            }
            if its.iter().any(|row| row.suspect) {
                done.suspect = true;
                done.notes.push(format!(
                    "{}: flushes failed when the server was killed, after a failed device flush or a loss that a start had told of, and fail until \
                     it is acknowledged (headworks ctl SOCKET discard-failed EXPORT --yes)",
                    path.display()
                ));
            }
            for volume in file.cache.volumes() {
                let Some(row) = &volume.row else { continue };
                match verdict(row) {
                    // An image that is nowhere to be seen may be served later.
                    Verdict::Other(why) => {
                        if row.path == absolute || row.identity.has_numbers_of(&state.identity) {
                            file.strays.push((volume.volume, why));
                        }
                    }
                    verdict => {
                        restore_volume(file, volume, verdict, (path, image, writer), &mut done)?;
                    }
                }
            }
        }
        if let Some(alive) = done.covered {
            let mut covered = self.covered.lock().unwrap_or_else(PoisonError::into_inner);
            covered.push((state.identity, alive));
        }
        Ok(done)
    }

    /// Whether the dead server of an image left its memory, and nothing of that is needed any more: everything is on the image.
    pub(crate) fn is_restored(&self, image: Identity) -> bool {
        // In the order of `restore_image`.
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let covered = self.covered.lock().unwrap_or_else(PoisonError::into_inner);
        let names = |file: &LeftFile| file.cache.rows().iter().any(|row| row.may_be_of(&image));
        covered.iter().any(|(of, _)| *of == image) && !files.iter().any(names)
    }

    /// Whether a file at `place` tells of an image, and was not looked for.
    pub(crate) fn overlooks(&self, place: &Path, image: Identity) -> bool {
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if files.iter().any(|file| Path::new(&file.name) == place) {
            return false;
        }
        let file = open_own(place, File::options().read(true).write(true)).ok();
        let seen = file.and_then(|file| LeftCache::look(file).ok().flatten());
        seen.is_some_and(|cache| cache.rows().iter().any(|row| row.may_be_of(&image)))
    }

    /// Whether what a mark of an image tells of is all on the image, and was in the memory of its dead server.
    pub(crate) fn is_written(&self, image: Identity, mark: Unclean) -> bool {
        // In the order of `restore_image`.
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let covered = self.covered.lock().unwrap_or_else(PoisonError::into_inner);
        let mut dirty = files.iter().flat_map(|file| file.cache.volumes());
        covered.iter().any(|(of, alive)| *of == image && mark.is_covered(*alive))
            && !dirty.any(|left| left.row.is_some_and(|row| row.may_be_of(&image)))
    }

    /// Writes data of images in whose place others are to the state directory; returns a sentence about each. To be called when
    /// every image that may be theirs is open.
    pub(crate) fn settle_strays(&self) -> Vec<String> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.iter_mut().flat_map(LeftFile::settle_strays).collect()
    }

    /// Gives back the memory of what is not dirty. To be called when the images of a start are open.
    pub fn shrink(&self) {
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.iter().for_each(|file| file.cache.shrink());
    }

    /// Removes the files that are not needed any more, and lets those go that tell of nothing that is open here; returns a sentence about
    /// each image that has data in one of them. To be called when the images of a start, or one that is added, are open.
    pub fn remove_empty(&self) -> Vec<String> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.has_started.store(true, Ordering::Relaxed);
        // Their memory is to go with their processes.
        self.held.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let mut notes: Vec<_> = files.iter_mut().flat_map(LeftFile::settle_strays).collect();
        let mut kept = Vec::new();
        let covered = self.covered.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let opened: Vec<Identity> = covered.into_iter().map(|(image, _)| image).collect();
        for file in files.drain(..) {
            let left = file.cache.volumes();
            // Of a volume in memory nothing outlives its server.
            let images: Vec<_> = left.iter().filter(|left| left.row.is_some()).collect();
            let waiting = images.iter().filter(|left| !file.claimed.contains(&left.volume));
            notes
                .extend(waiting.filter_map(|left| Some(file.note(left.row.as_ref()?, left.bytes))));
            match images.is_empty() && !file.vouches(&opened) {
                true => (file.remove)(),
                false => {
                    // They may stay for long.
                    file.cache.shrink();
                    // The lock of one that is not kept goes with it.
                    kept.extend(Some(file).filter(|file| file.is_needed(&images)));
                }
            }
        }
        *files = kept;
        notes
    }
}

/// Takes the dirty data of an image, or of what may be it: they are to be written to it, or are written to a recovery file.
fn restore_volume(
    file: &mut LeftFile,
    volume: LeftVolume,
    verdict: Verdict,
    (path, image, writer): (&Path, &OpenFile, &ImageWriter),
    done: &mut RestoredImage,
) -> Result<(), ConfigError> {
    let (shown, size) = (path.display(), display_size(volume.bytes));
    if image.read_only() {
        let message = format!(
            "{shown}: a server that was killed left {size} of acknowledged writes to it in {}; serve it once without read-only",
            file.name
        );
        return Err(ConfigError::new("read-only", message));
    }
    let (why, beside) = match verdict {
        Verdict::Unchanged => {
            file.claimed.push(volume.volume);
            done.pending.push(PendingRestore {
                cache: Arc::clone(&file.cache),
                volume,
                image: writer.clone(),
                shown: shown.to_string(),
                left_in: file.name.clone(),
            });
            return Ok(());
        }
        // Its own directory has room for it, most likely.
        Verdict::Changed(why) => (why, !image.identity().is_disk()),
        Verdict::Unknown(why) | Verdict::Other(why) => (why, false),
    };
    let absolute = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let folder = absolute.parent().filter(|_| beside);
    let beside = folder.and_then(|folder| write_recovery(&file.cache, &volume, folder).ok());
    let written = beside.map_or_else(|| write_to_state(&file.cache, &volume), Ok);
    let written = written.map_err(|error| {
        let message = format!(
            "{shown} is not the image that a killed server used ({why}), and {size} of acknowledged writes to that cannot be written \
             to a recovery file: {error}; they stay in {}",
            file.name
        );
        ConfigError::new("path", message)
    })?;
    done.suspect = true;
    done.notes.push(format!(
        "{shown} is not the image that a killed server used ({why}): {size} of acknowledged writes to that are in {}, and flushes of the \
         export fail until it is acknowledged (headworks ctl SOCKET discard-failed EXPORT --yes)",
        written.display()
    ));
    Ok(())
}
