//! Detects that an image changed its size, or was deleted, while it is served.
//!
//! ```text
//!   shard: tick --ask--> thread `images`: lseek, fstat --> size, deleted (atomics) --> shard: the next tick
//! ```
//!
//! The calls may wait for a disk or a server, so a thread of its own makes them, and a shard that ticks only asks for them and
//! reads what was found last. An idle server asks nothing.
//!
//! Invariants: at most one question about a file is under way. Dropping a [`WatchedFile`] closes its image before the drop
//! returns, because the thread holds the lock of the image while it looks, and nothing otherwise.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headworks_core::{ConfigError, VolumeId};
use headworks_house::SizeWatch;

/// What is known of an image, shared by its shard and the thread that looks.
struct ImageFacts {
    /// The image; none once its shard has dropped it.
    image: Mutex<Option<SizeWatch>>,
    size: AtomicU64,
    deleted: AtomicBool,
    /// A question is under way.
    asked: AtomicBool,
}

impl ImageFacts {
    fn image(&self) -> MutexGuard<'_, Option<SizeWatch>> {
        self.image.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the image; what cannot be found out stays as it was.
    fn look(&self) {
        if let Some(image) = &*self.image() {
            // Release: pairs with the loads in `WatchedFile`, which read them later than the question's end.
            if let Ok(size) = image.current_size() {
                self.size.store(size, Ordering::Release);
            }
            if let Ok(deleted) = image.is_deleted() {
                self.deleted.store(deleted, Ordering::Release);
            }
        }
        // Release: pairs with the swap in `ask`.
        self.asked.store(false, Ordering::Release);
    }
}

/// The thread that looks at images, for all shards of a server. It ends when the last copy is dropped.
#[derive(Clone)]
pub struct ImageWatcher(Sender<Arc<ImageFacts>>);

impl ImageWatcher {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system has no room for a thread.
    pub(crate) fn start() -> Result<Self, ConfigError> {
        let (sender, questions): (_, Receiver<Arc<ImageFacts>>) = channel();
        let body = move || questions.iter().for_each(|facts| facts.look());
        let started = std::thread::Builder::new().name("images".into()).spawn(body);
        started.map(|_| Self(sender)).map_err(|error: io::Error| {
            ConfigError::new("shards", format!("cannot start a thread: {error}"))
        })
    }
}

/// A file whose size and name are watched while it is served.
pub struct WatchedFile {
    /// Volume behind the file.
    pub volume: VolumeId,
    facts: Arc<ImageFacts>,
    size: u64,
    block_size: u64,
    /// The size of the file is not that of the volume.
    has_own_size: bool,
    /// Size that the server itself is about to set.
    expected: Option<u64>,
    /// The deletion was reported.
    deletion_told: bool,
}

impl WatchedFile {
    /// Watches a file that was opened with `size` bytes.
    pub(crate) fn new(volume: VolumeId, image: SizeWatch, size: u64, block_size: u64) -> Self {
        let facts = Arc::new(ImageFacts {
            image: Mutex::new(Some(image)),
            size: AtomicU64::new(size),
            deleted: AtomicBool::new(false),
            asked: AtomicBool::new(false),
        });
        Self {
            volume,
            facts,
            size,
            block_size,
            has_own_size: false,
            expected: None,
            deletion_told: false,
        }
    }

    /// Watches a file whose size says nothing of its volume's.
    pub(crate) fn of_fixed_size(volume: VolumeId, image: SizeWatch) -> Self {
        let mut watched = Self::new(volume, image, 0, 1);
        watched.has_own_size = true;
        watched
    }

    /// Asks the thread to look, unless it is about to; never waits.
    pub(crate) fn ask(&self, watcher: &ImageWatcher) {
        // Acquire: pairs with the store in `look`; what was found is visible before a new question.
        if !self.facts.asked.swap(true, Ordering::Acquire) {
            // A thread that is gone finds nothing new.
            let _ = watcher.0.send(Arc::clone(&self.facts));
        }
    }

    /// Returns the new size in whole blocks, if it was found changed and was not announced.
    pub(crate) fn changed_size(&mut self) -> Option<u64> {
        // Acquire: pairs with `look`.
        let size = self.facts.size.load(Ordering::Acquire) / self.block_size * self.block_size;
        if self.has_own_size || size == std::mem::replace(&mut self.size, size) {
            return None;
        }
        // Once: a later change to this size is reported.
        (self.expected.take() != Some(size)).then_some(size)
    }

    /// Whether the file was found without a name: what is written to it is lost when it is closed.
    pub(crate) fn is_deleted(&self) -> bool {
        // Acquire: pairs with `look`.
        self.facts.deleted.load(Ordering::Acquire)
    }

    /// Whether the file was found deleted for the first time.
    pub(crate) fn was_just_deleted(&mut self) -> bool {
        self.is_deleted() && !std::mem::replace(&mut self.deletion_told, true)
    }

    /// Announces a size that the server sets itself.
    pub(crate) fn expect(&mut self, size: u64) {
        self.expected = Some(size);
    }
}

impl Drop for WatchedFile {
    fn drop(&mut self) {
        // The thread may have a copy of the facts still; the image closes here.
        *self.facts.image() = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exports::assemble::{Assembly, ExportSpec};
    use crate::spec::Spec;
    use headworks_testing::TempFile;

    fn watched(image: &TempFile) -> WatchedFile {
        let text = format!("file:path={},size=1M", image.path().display());
        let export = ExportSpec::new("a".to_owned(), Spec::parse(&text).unwrap(), false);
        let mut assembly = Assembly::new(&[export]).unwrap();
        assembly.files.remove(0)
    }

    fn resize(image: &TempFile, mib: u64) {
        let file = std::fs::File::options().write(true).open(image.path()).unwrap();
        file.set_len(mib << 20).unwrap();
    }

    #[test]
    fn announced_size_is_not_reported_once() {
        let image = TempFile::absent("expected");
        let mut watched = watched(&image);
        let mut found = |mib: Option<u64>| {
            if let Some(mib) = mib {
                resize(&image, mib);
            }
            watched.facts.look();
            watched.changed_size()
        };
        assert_eq!(found(None), None);
        assert_eq!(found(Some(2)), Some(2 << 20), "not announced");
        watched.expect(3 << 20);
        let mut found = |mib: u64| {
            resize(&image, mib);
            watched.facts.look();
            watched.changed_size()
        };
        assert_eq!(found(2), None, "it has not happened yet");
        assert_eq!(found(3), None, "announced");
        assert_eq!(found(1), Some(1 << 20));
        assert_eq!(found(3), Some(3 << 20), "announced once");
    }

    #[test]
    fn deletion_is_reported_once_and_rename_is_not() {
        let (image, other) = (TempFile::absent("deleted"), TempFile::absent("renamed"));
        let mut watched = watched(&image);
        std::fs::rename(image.path(), other.path()).unwrap();
        watched.facts.look();
        assert!(!watched.was_just_deleted());
        std::fs::remove_file(other.path()).unwrap();
        assert!(!watched.was_just_deleted(), "found by a look only");
        watched.facts.look();
        assert!(watched.was_just_deleted() && !watched.was_just_deleted() && watched.is_deleted());
    }

    #[test]
    fn thread_answers_one_question_at_a_time_and_never_keeps_an_image_open() {
        let image = TempFile::absent("asked");
        let (sender, questions) = channel();
        let watcher = ImageWatcher(sender);
        let watched = watched(&image);
        watched.ask(&watcher);
        watched.ask(&watcher);
        let facts = questions.try_recv().unwrap();
        assert!(questions.try_recv().is_err(), "a question is under way");
        facts.look();
        watched.ask(&watcher);
        assert!(questions.try_recv().is_ok());
        drop(watched);
        assert!(facts.image().is_none());
        facts.look();
    }
}
