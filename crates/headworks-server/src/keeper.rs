//! What a server leaves for the next one: memory with its dirty data, and a mark beside every image that may have some.
//!
//! Invariants: a volume's row is stored, and its mark is durable, before the volume is served; the mark goes when the volume was
//! written out and closed.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use headworks::Identity;
use headworks::cache_memory::{CacheMemory, VolumeRow};
use headworks_core::{VolumeId, VolumeOptions, WriteMode};

use crate::assemble::image::VolumeOrigin;
use crate::leftovers::Leftovers;
use crate::marker::Marker;

/// The memory and the marks of a running server.
#[derive(Debug, Default)]
pub(crate) struct Keeper {
    memory: Option<Arc<CacheMemory>>,
    leftovers: Leftovers,
    /// Marks were made by the server that this one replaces.
    has_marks: bool,
    marks: Mutex<BTreeMap<u16, Marker>>,
}

impl Keeper {
    /// A keeper of this memory; without memory dirty data die with the process.
    pub fn new(memory: Option<Arc<CacheMemory>>, leftovers: Leftovers) -> Self {
        Self { memory, leftovers, has_marks: false, marks: Mutex::default() }
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

    /// Prepares for dirty data of a volume that is about to be served; returns a sentence if its image cannot be marked.
    pub fn open(
        &self,
        volume: VolumeId,
        origin: &VolumeOrigin,
        options: &VolumeOptions,
    ) -> Option<String> {
        let holds_dirty = matches!(options.mode, WriteMode::Writeback | WriteMode::Unsafe);
        let (Some(path), Some(identity)) = (origin.spec.base.path(), origin.identity) else {
            return None;
        };
        if options.read_only {
            return None;
        }
        let absolute = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        if let Some(memory) = &self.memory {
            let size = options.size;
            let row = VolumeRow { identity, path: absolute.clone(), size, suspect: false };
            memory.set_row(volume, &row);
        }
        if holds_dirty {
            return self.mark(volume, path, &absolute, identity);
        }
        // The mark of an earlier server has been told of; it goes with a clean stop.
        let marker = Marker::of(&absolute);
        if marker.found().is_some() {
            self.add(volume, marker);
        }
        None
    }

    fn mark(
        &self,
        volume: VolumeId,
        shown: &Path,
        path: &Path,
        identity: Identity,
    ) -> Option<String> {
        let shown = shown.display();
        let cannot = |why: &str| {
            Some(format!(
                "{shown} cannot be marked as in use ({why}): after a power failure the next start cannot tell whether it lost writes"
            ))
        };
        if identity.is_disk() {
            return cannot("it is a block device");
        }
        let marker = Marker::of(path);
        // Durable already; the time of the pause is short, and the mark may belong to another user by now.
        if self.has_marks && marker.exists() {
            self.add(volume, marker);
            return None;
        }
        if let Err(error) = marker.make() {
            return cannot(&error.to_string());
        }
        self.add(volume, marker);
        None
    }

    fn add(&self, volume: VolumeId, marker: Marker) {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner).insert(volume.0, marker);
    }

    /// Whether a volume's image has a mark.
    pub fn has_mark(&self, volume: VolumeId) -> bool {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&volume.0)
    }

    /// Notes that a volume was written out and closed.
    pub fn close(&self, volume: VolumeId) {
        let mark = self.marks.lock().unwrap_or_else(PoisonError::into_inner).remove(&volume.0);
        remove(mark);
    }

    /// Notes that every volume was written out and closed.
    pub fn close_all(&self) {
        let marks = std::mem::take(&mut *self.marks.lock().unwrap_or_else(PoisonError::into_inner));
        remove(marks.into_values());
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

fn remove(marks: impl IntoIterator<Item = Marker>) {
    for mark in marks {
        if let Err(error) = mark.remove() {
            tracing::warn!(
                "cannot remove the mark of an image that is written out: {error}; the next start will warn of lost writes"
            );
        }
    }
}
