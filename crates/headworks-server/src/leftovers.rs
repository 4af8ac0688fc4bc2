//! Dirty data that earlier servers left in shared memory, and their way to the images.
//!
//! ```text
//!   start: every file that a dead server left --> `Leftovers` --image opened and locked--> written to it, or beside it
//!                                                     `--image not served: the file stays, and a note says so
//! ```
//!
//! An image is restored before anything of it is served, by the thread that opens it. A file is removed when nothing in it is
//! dirty any more, so a server that dies while it restores leaves everything to the next one.

use std::fmt;
use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use headworks::cache_memory::{LeftCache, LeftVolume, Restored, restore};
use headworks::{OpenFile, display_size};
use headworks_core::ConfigError;

/// Removes a file whose data are all on their images.
type Remove = Box<dyn FnOnce() + Send>;

/// A file of a dead server.
struct LeftFile {
    cache: LeftCache,
    /// Its name for messages.
    name: String,
    remove: Remove,
}

/// What was found out about an image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RestoredImage {
    /// Messages for the user, one sentence each.
    pub notes: Vec<String>,
    /// Its server died and left its memory, in which everything is that the image did not have.
    pub covered: bool,
    /// Its flushes must fail until the operator acknowledges it.
    pub suspect: bool,
}

/// The files that earlier servers left; shared by the threads that open images.
#[derive(Clone, Default)]
pub struct Leftovers(Arc<Mutex<Vec<LeftFile>>>);

impl fmt::Debug for Leftovers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Leftovers")
    }
}

impl Leftovers {
    /// Adds a file that no running process uses. `remove` is called once nothing in it is needed.
    ///
    /// # Errors
    /// A sentence about a file that cannot be used.
    pub fn add(
        &self,
        file: File,
        name: &str,
        remove: impl FnOnce() + Send + 'static,
    ) -> Result<(), ConfigError> {
        let wrong = |error| ConfigError::new("cache-file", format!("{name} {error}"));
        match LeftCache::open(file).map_err(wrong)? {
            None => remove(),
            Some(cache) => {
                let file = LeftFile { cache, name: name.to_owned(), remove: Box::new(remove) };
                self.0.lock().unwrap_or_else(PoisonError::into_inner).push(file);
            }
        }
        Ok(())
    }

    /// Brings the dirty data of an image to it, or beside it. The image is locked and not served yet.
    pub(crate) fn restore_image(
        &self,
        path: &Path,
        image: &OpenFile,
    ) -> Result<RestoredImage, ConfigError> {
        let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut done = RestoredImage::default();
        let absolute = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        for file in files.iter_mut() {
            let rows = file.cache.rows();
            let is_this = |row: &headworks::cache_memory::VolumeRow| {
                row.identity == image.identity() || row.path == absolute
            };
            done.covered |= rows.iter().any(|row| row.identity == image.identity());
            done.suspect |= rows.iter().any(|row| is_this(row) && row.suspect);
            for volume in file.cache.volumes() {
                if volume.row.as_ref().is_some_and(is_this) {
                    restore_volume(file, &volume, (path, image), &mut done)?;
                }
            }
        }
        Ok(done)
    }

    /// Removes the files that nobody needs any more; returns a sentence about each of the others.
    pub fn remove_empty(&self) -> Vec<String> {
        let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut notes, mut kept) = (Vec::new(), Vec::new());
        for file in files.drain(..) {
            let left = file.cache.volumes();
            let left: Vec<_> =
                left.iter().filter_map(|left| Some((left.row.as_ref()?, left.bytes))).collect();
            if left.is_empty() {
                (file.remove)();
                continue;
            }
            for (row, bytes) in left {
                notes.push(format!(
                    "{} holds {} of acknowledged writes to {}, which is not served; serve it to have them written",
                    file.name,
                    display_size(bytes),
                    row.path.display()
                ));
            }
            kept.push(file);
        }
        *files = kept;
        notes
    }
}

/// Brings the dirty data of one volume to its image.
fn restore_volume(
    file: &mut LeftFile,
    volume: &LeftVolume,
    (path, image): (&Path, &OpenFile),
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
    let began = Instant::now();
    let restored = restore(&mut file.cache, volume, image, path).map_err(|error| {
        let message = format!(
            "{shown}: cannot restore {size} of acknowledged writes that a killed server left: {error}; they stay in {}",
            file.name
        );
        ConfigError::new("path", message)
    })?;
    done.notes.push(match restored {
        Restored::Image { .. } => format!(
            "{shown}: restored {size} of acknowledged writes after the server was killed, in {} ms",
            began.elapsed().as_millis()
        ),
        Restored::Beside { file, why, .. } => {
            done.suspect = true;
            format!(
                "{shown} is not the image that a killed server used ({why}): {size} of acknowledged writes to that are in {}, and \
                 flushes of the export fail until it is acknowledged (headworks ctl SOCKET discard-failed EXPORT --yes)",
                file.display()
            )
        }
    });
    Ok(())
}
