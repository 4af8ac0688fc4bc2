//! Puts a new overlay on one that is served: what it was stays as it is, under another name.
//!
//! ```text
//!   FILE is served, frozen and flushed
//!   prepare        FILE synced --> link to KEPT --> FILE.new-PID, an empty overlay on KEPT, made, locked and synced
//!   put_in_place   FILE.new-PID renamed to FILE, directories synced
//!   (the device's `stack`: the old one is below and read-only from now on)
//!   finish         the lock of KEPT is that of a reader
//!   undo           at any point before `finish`: KEPT renamed to FILE, or removed if FILE is still it
//! ```
//!
//! FILE is the newest layer at every moment, so what names it needs no change. Killed before the rename, KEPT is a second name of FILE, and the
//! next attempt with this name goes on from there; afterwards everything is in place, and flushed.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use headworks_core::ConfigError;

use super::bitmap::{Bitmap, LiveBits};
use super::head::data_start;
use super::here::{Here, HereFound, Tag};
use super::new::{NewOverlay, io_error, refuse};
use super::open::read_head;
use super::{HERE, ONLY, OverlayDevice, OverlayOptions, Parts};
use headworks::NullDevice;
use headworks::house::{folder_of, sync_directory};
use headworks::{FileDevice, FileOptions, OpenFile};
use headworks_house::{Identity, ImageHandles, SizeWatch};

/// A snapshot in progress.
#[derive(Debug)]
pub struct OverlaySnapshot {
    served: PathBuf,
    kept: PathBuf,
    temporary: PathBuf,
    /// Holds the lock of the layer that is kept.
    old: SizeWatch,
    identity: Identity,
    watch: SizeWatch,
    in_place: bool,
}

impl OverlaySnapshot {
    /// Makes the new top of `served`, whose open file is `open`, and gives that the name `kept`. Also returns the device to be stacked.
    /// `served` changes nothing meanwhile, and everything of it is flushed.
    ///
    /// # Errors
    /// A sentence about what cannot be made; nothing has changed.
    pub fn prepare(
        served: &Path,
        open: &SizeWatch,
        kept: &Path,
        options: &OverlayOptions,
    ) -> Result<(Self, Box<OverlayDevice>), ConfigError> {
        let error = |error: io::Error| io_error(served, &error);
        let (folder, kept_folder) = (folder_of(served).canonicalize(), folder_of(kept));
        let (folder, kept_folder) = (
            folder.map_err(error)?,
            kept_folder.canonicalize().map_err(|error| io_error(kept_folder, &error))?,
        );
        if !options.base_anywhere && !kept_folder.starts_with(&folder) {
            let message = "is neither in the directory of the overlay nor below it; serve it with backing=allow for that";
            return refuse(kept, message);
        }
        let Some(name) = kept.file_name() else {
            return refuse(kept, "is not the name of a file");
        };
        let kept = kept_folder.join(name);
        // With the time of modification, by which the base is known.
        open.file().sync_all().map_err(error)?;
        link_or_find(served, open, &kept)?;
        let mut temporary = served.as_os_str().to_owned();
        temporary.push(format!(".new-{}", std::process::id()));
        let temporary = PathBuf::from(temporary);
        // Of an earlier attempt of a process with this number.
        let _ = std::fs::remove_file(&temporary);
        let made = Self::make_top(served, open, &kept, (&temporary, options));
        let (device, identity, watch) = made.inspect_err(|_| {
            // The names are all that is left.
            let _ = std::fs::remove_file(&temporary);
            let _ = std::fs::remove_file(&kept);
        })?;
        let (served, old) = (served.to_owned(), open.clone());
        let snapshot = Self { served, kept, temporary, old, identity, watch, in_place: false };
        Ok((snapshot, device))
    }

    fn make_top(
        served: &Path,
        open: &SizeWatch,
        kept: &Path,
        (temporary, options): (&Path, &OverlayOptions),
    ) -> Result<(Box<OverlayDevice>, Identity, SizeWatch), ConfigError> {
        let new = NewOverlay::over(served, open.file(), kept)?;
        new.create(temporary)?;
        let wanted = FileOptions { read_only: false, size: None, direct: options.direct };
        let file = OpenFile::open(temporary, &wanted)?;
        let (head, _) = read_head(temporary, file.file())?;
        let size = head.volume_size;
        let error = |error: io::Error| io_error(temporary, &error);
        let here_file = file.buffered(temporary).map_err(error)?;
        let here = Here::new(Tag::of_this_boot(head.number), size, &HereFound::default());
        let bits = LiveBits::new(size).and_then(|live| Bitmap::new(Arc::new(live)));
        let (identity, watch) = (file.identity(), file.size_watch());
        let device = OverlayDevice::from_parts(Parts {
            read_only: false,
            own: Box::new(FileDevice::new(vec![(ONLY, file), (HERE, here_file)])),
            // Until it is stacked.
            below: Box::new(NullDevice),
            bitmap: bits.map_err(error)?,
            here: here.map_err(error)?,
            data: data_start(size),
            size,
            base_size: size,
            // Those of the old one, when it is stacked.
            layer: 0,
            place: 0,
            late_bits: None,
        });
        Ok((Box::new(device), identity, watch))
    }

    /// Gives the new top the name that is served.
    ///
    /// # Errors
    /// The kernel's reason; `undo` is to be called.
    pub fn put_in_place(&mut self) -> Result<(), ConfigError> {
        let done = sync_directory(&self.kept).and_then(|()| {
            std::fs::rename(&self.temporary, &self.served)?;
            self.in_place = true;
            sync_directory(&self.served)
        });
        done.map_err(|error| io_error(&self.served, &error))
    }

    /// Takes everything back: the layer that was to be kept has its name again.
    ///
    /// # Errors
    /// A sentence about the names that are left.
    pub fn undo(self) -> Result<(), ConfigError> {
        let Self { served, kept, temporary, in_place, .. } = self;
        let done = match in_place {
            true => std::fs::rename(&kept, &served),
            false => {
                // If this fails, an empty overlay remains.
                let _ = std::fs::remove_file(&temporary);
                std::fs::remove_file(&kept)
            }
        };
        done.and_then(|()| sync_directory(&served)).map_err(|error| {
            let (served, kept) = (served.display(), kept.display());
            let message = format!(
                "{served} is still served and is named {kept} now: {error}; rename it to {served}"
            );
            ConfigError::new("path", message)
        })
    }

    /// Lets others read the layer that was kept; the device is stacked. Returns what is served now: its identity, and its open file.
    #[must_use]
    pub fn finish(self) -> (Identity, SizeWatch) {
        // Without it readers of that layer wait for the server's end.
        let _ = self.old.share_lock();
        (self.identity, self.watch)
    }

    /// The path of the layer that is kept.
    #[must_use]
    pub fn kept(&self) -> &Path {
        &self.kept
    }

    /// The open file of the new top.
    #[must_use]
    pub fn watch(&self) -> &SizeWatch {
        &self.watch
    }
}

/// Gives `served` a second name, which it may have from an attempt that was interrupted.
fn link_or_find(served: &Path, open: &SizeWatch, kept: &Path) -> Result<(), ConfigError> {
    let error = |error: io::Error| io_error(kept, &error);
    let is_it = |found: &std::fs::Metadata| {
        open.file().metadata().is_ok_and(|own| (own.dev(), own.ino()) == (found.dev(), found.ino()))
    };
    let named = |path: &Path| path.symlink_metadata().is_ok_and(|found| is_it(&found));
    // By the resolved path: the name may be a link.
    let served = served.canonicalize().map_err(error)?;
    if !named(&served) {
        return refuse(&served, "is another file than the one that is served");
    }
    if named(kept) && kept != served {
        return Ok(());
    }
    std::fs::hard_link(&served, kept).map_err(|cause| match cause.kind() {
        io::ErrorKind::AlreadyExists => {
            let message = format!("{} exists already; give a new name", kept.display());
            ConfigError::new("file", message).caused_by(cause.raw_os_error())
        }
        _ => error(cause),
    })
}
