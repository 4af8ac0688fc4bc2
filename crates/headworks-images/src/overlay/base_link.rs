//! What an overlay knows of its base and of its own blocks, for those that let overlays on one base share what is cached of it.
//!
//! The own blocks are those of the open device and those in the file together: another process that hands the overlay over sets bits in
//! the file until it leaves, and this one sets them in memory before it answers a write.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::OverlayOptions;
use super::bitmap::LiveBits;
use super::head::BaseKind;
use super::here::Tag;
use super::image::OverlayBaseKind;
use super::load::add_bits;
use super::open::OpenOverlay;

/// The base of an open overlay, and which blocks are the overlay's own.
#[derive(Clone, Debug)]
pub struct OverlayBase {
    path: PathBuf,
    kind: BaseKind,
    options: OverlayOptions,
    size: u64,
    live: Arc<LiveBits>,
    file: Arc<File>,
    tag: Option<Tag>,
}

impl OpenOverlay {
    /// The base, as it is opened by `options`, and the own blocks.
    #[must_use]
    pub fn base_link(&self, options: &OverlayOptions) -> OverlayBase {
        OverlayBase {
            path: self.base_path().to_owned(),
            kind: self.head.base.kind,
            options: OverlayOptions { read_only: true, ..*options },
            size: self.volume_options().size,
            live: Arc::clone(self.bitmap.live()),
            file: Arc::clone(self.file.file()),
            tag: Tag::of_this_boot(self.head.number),
        }
    }
}

impl OverlayBase {
    /// Path of the base, without links; of a remote its specification.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the base is.
    #[must_use]
    pub fn kind(&self) -> OverlayBaseKind {
        self.kind.into()
    }

    /// How the base is opened, if it is an overlay; what concerns all kinds holds for the others, too.
    #[must_use]
    pub fn options(&self) -> &OverlayOptions {
        &self.options
    }

    /// The own blocks, 64 at a time: the number of the first of 64 blocks of 4 KiB divided by 64, and a bit for each, the lowest first.
    /// Words without an own block are left out. To be called when no other process changes the overlay any more.
    ///
    /// # Errors
    /// The bitmap cannot be read.
    pub fn own_blocks(&self) -> io::Result<Vec<(u64, u64)>> {
        let all = LiveBits::new(self.size)?;
        add_bits(&*self.file, self.size, self.tag, &all)?;
        Ok(self.live.or(&all))
    }
}
