//! What a server leaves for the next one: memory with its dirty data, and a mark beside every image that may have some.
//!
//! Invariants: a volume's row is stored, and its mark is durable, before the volume is served; the mark goes when the volume was
//! written out and closed, after the row, and after a clean stop alone. A start that fails puts the marks back as it found them.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headworks_cache_memory::{CacheMemory, VolumeRow};
use headworks_core::{VolumeId, VolumeOptions};
use headworks_house::Identity;

use crate::exports::assemble::image::VolumeOrigin;
use crate::spec::Wrapper;
use crate::successor::leftovers::Leftovers;
use crate::successor::marker::{Marker, changed_at, nanoseconds, place_of_mark};

/// The memory and the marks of a running server.
#[derive(Debug, Default)]
pub(crate) struct Keeper {
    memory: Option<Arc<CacheMemory>>,
    /// Its path, if it has one.
    memory_at: Option<PathBuf>,
    leftovers: Leftovers,
    /// Marks were made by the server that this one replaces.
    has_marks: bool,
    marks: Mutex<BTreeMap<u16, (Marker, Identity)>>,
    /// Marks of the server that this one replaces, opened while that was allowed.
    held: Mutex<BTreeMap<PathBuf, Marker>>,
    /// The start has failed: what is closed was not served.
    has_failed: AtomicBool,
}

impl Keeper {
    /// A keeper of this memory; without memory dirty data die with the process.
    pub fn new(memory: Option<Arc<CacheMemory>>, leftovers: Leftovers) -> Self {
        Self { memory, leftovers, ..Self::default() }
    }

    /// The same with the path of the memory, which marks name.
    pub fn with_memory_at(self, memory_at: Option<PathBuf>) -> Self {
        Self { memory_at, ..self }
    }

    /// The same for a server that replaces another one, whose marks it finds.
    pub fn with_marks_of_predecessor(self) -> Self {
        Self { has_marks: true, ..self }
    }

    /// What earlier servers left.
    pub fn leftovers(&self) -> &Leftovers {
        &self.leftovers
    }

    /// The memory that outlives the process, if there is such.
    pub fn memory(&self) -> Option<&Arc<CacheMemory>> {
        self.memory.as_ref()
    }

    /// Opens the marks of volumes that a running server hands over, before this one becomes another user.
    pub fn hold_marks<'a>(&self, origins: impl Iterator<Item = &'a VolumeOrigin>) {
        let places = origins.filter_map(|origin| place_of_mark(&origin.spec.base, origin.identity));
        for place in places {
            let marker = Marker::of(&place).hold();
            self.held.lock().unwrap_or_else(PoisonError::into_inner).insert(place, marker);
        }
    }

    /// Prepares for dirty data of a volume that is about to be served; returns a sentence if its image cannot be marked.
    pub fn open(
        &self,
        volume: VolumeId,
        origin: &VolumeOrigin,
        options: &VolumeOptions,
    ) -> Option<String> {
        let holds_dirty = options.mode.holds_dirty();
        let identity = origin.identity?;
        let began = nanoseconds();
        // What a disk that is meant to lose its memory has lost is no fault, and is not restored.
        if options.read_only || origin.spec.wrappers.iter().any(Wrapper::holds_writes) {
            return None;
        }
        // Of a remote nothing is kept.
        if let (Some(memory), Some(path)) = (&self.memory, origin.spec.base.path()) {
            let size = options.size;
            let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
            let (disk, ahead) = (identity.disk_of_filesystem(), clock_ahead(&path));
            let row = VolumeRow { identity, path, size, suspect: false, disk, ahead, touched: 0 };
            memory.set_row(volume, &row);
        }
        let place = place_of_mark(&origin.spec.base, origin.identity);
        if holds_dirty {
            let marked = place.ok_or_else(|| "there is no state directory".to_owned());
            let marked = marked.and_then(|place| self.mark(volume, &place, identity, began));
            let cannot = |why| {
                format!(
                    "{} cannot be marked as in use ({why}): the next start cannot tell whether this server lost writes",
                    origin.what
                )
            };
            return marked.err().map(cannot);
        }
        // The mark of an earlier server has been told of; it goes with a clean stop, or now if nothing is left to be told after a death of ours.
        let marker = Marker::of(&place?);
        let found = marker.found(identity)?;
        let is_written = self.memory.is_none() && self.leftovers.is_written(identity, found);
        let path = origin.spec.base.path().filter(|_| is_written);
        match path.is_some_and(|path| File::open(path).and_then(|file| file.sync_all()).is_ok()) {
            true => remove_marks([marker]),
            false => self.add(volume, marker, identity),
        }
        None
    }

    fn mark(
        &self,
        volume: VolumeId,
        place: &Path,
        identity: Identity,
        began: u64,
    ) -> Result<(), String> {
        let marker = Marker::of(place).with_memory(self.memory_at.clone());
        // Durable already; the time of the pause is short, and the mark may belong to another user by now. One of the image that
        // was here before tells nothing of this one.
        if self.has_marks && marker.may_tell_of(identity) {
            let held = self.held.lock().unwrap_or_else(PoisonError::into_inner).remove(place);
            self.add(volume, held.unwrap_or(marker), identity);
            return Ok(());
        }
        // Not later than the row, which vouches for it from its first moment on.
        let made = marker.clone().make(identity, began).map_err(|error| {
            // One that is there goes with a clean stop.
            if marker.found(identity).is_some() {
                self.add(volume, marker.hold(), identity);
            }
            error.to_string()
        })?;
        if let Some(memory) = &self.memory {
            // The mark has the clock of the image's filesystem.
            memory.set_ahead(volume, made.clock_ahead().max(clock_ahead(place)));
        }
        self.add(volume, made, identity);
        Ok(())
    }

    fn add(&self, volume: VolumeId, marker: Marker, image: Identity) {
        self.marks().insert(volume.0, (marker, image));
    }

    fn marks(&self) -> MutexGuard<'_, BTreeMap<u16, (Marker, Identity)>> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a volume's image has a mark.
    pub fn has_mark(&self, volume: VolumeId) -> bool {
        self.marks().contains_key(&volume.0)
    }

    /// Notes that a volume was written out and closed.
    pub fn close(&self, volume: VolumeId) {
        // Acquire: pairs with `fail_start`.
        if self.has_failed.load(Ordering::Acquire) {
            return self.undo(volume);
        }
        self.forget(volume);
        remove_marks(self.take(volume));
    }

    /// Notes that nothing of a volume is in the memory any more, before its mark goes: a mark alone warns of too much, but a row alone
    /// would vouch for what another server loses of the image.
    pub fn forget(&self, volume: VolumeId) {
        if let Some(memory) = &self.memory {
            memory.clear_row(volume);
        }
    }

    /// As [`Keeper::close`], with the mark still there: [`remove_marks`] waits for its file system.
    pub fn take(&self, volume: VolumeId) -> Option<Marker> {
        self.marks().remove(&volume.0).map(|(mark, _)| mark)
    }

    /// Notes that the start has failed and that clients were told nothing: every volume that is closed from here on is undone.
    pub fn fail_start(&self) {
        // Release: pairs with `close`.
        self.has_failed.store(true, Ordering::Release);
    }

    /// Notes that a volume was not served: its mark says again what it said before.
    pub fn undo(&self, volume: VolumeId) {
        let mark = self.marks().remove(&volume.0);
        self.put_back(mark);
    }

    /// Notes that nothing was served: the marks say again what they said before.
    pub fn undo_all(&self) {
        let marks = std::mem::take(&mut *self.marks());
        self.put_back(marks.into_values());
    }

    fn put_back(&self, marks: impl IntoIterator<Item = (Marker, Identity)>) {
        for (mark, image) in marks {
            // What the mark told of is on the image, and the memory that showed it may be gone.
            let undone = match self.leftovers.is_restored(image) {
                true => mark.remove(),
                false => mark.undo(),
            };
            if let Err(error) = undone {
                tracing::warn!("cannot put the mark of an image back as it was: {error}");
            }
        }
    }

    /// Notes that every volume was written out and closed.
    pub fn close_all(&self) {
        let marks = std::mem::take(&mut *self.marks());
        remove_marks(marks.into_values().map(|(mark, _)| mark));
    }

    /// Notes that a volume is about to have `size` bytes.
    pub fn resize(&self, volume: VolumeId, size: u64) {
        if let Some(memory) = &self.memory {
            memory.set_size(volume, size);
        }
    }

    /// Notes whether a device flush of a volume failed and was not acknowledged.
    pub fn set_suspect(&self, volume: VolumeId, suspect: bool) {
        if let Some(memory) = &self.memory {
            memory.set_suspect(volume, suspect);
        }
    }
}

/// How far the times of an image are ahead of this machine's clock, in nanoseconds: that was set back, or is not their clock.
fn clock_ahead(image: &Path) -> u64 {
    let changed = std::fs::metadata(image).map_or(0, |found| changed_at(&found));
    changed.saturating_sub(nanoseconds())
}

/// Removes marks of volumes that were written out and closed.
pub(crate) fn remove_marks(marks: impl IntoIterator<Item = Marker>) {
    for mark in marks {
        if let Err(error) = mark.remove() {
            tracing::warn!(
                "cannot remove the mark of an image that is written out: {error}; the next start will warn of lost writes"
            );
        }
    }
}
