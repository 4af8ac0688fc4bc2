//! Bases in image formats (qcow2, VMDK), and remotes, which crates above read: they bring what opens them, and an overlay names their
//! format in its head, so nothing is guessed from bytes that a client may have written. A remote has a specification in place of a path.

use std::fmt::{self, Debug, Formatter};
use std::io;
use std::path::Path;

use headworks_core::ConfigError;

use super::head::BaseKind;
use headworks::Device;
use headworks::Direct;

/// The name in place of a format of bases that are remotes, whose paths are specifications.
pub const REMOTE_BASE: &str = "remote";

/// How an image is opened as a base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BaseImageOptions {
    /// Name of the format: `qcow2`, `vmdk`, or [`REMOTE_BASE`].
    pub format: &'static str,
    /// Whether files that the image names may lie anywhere, and not only beside it.
    pub anywhere: bool,
    /// Whether to go past the kernel's page cache.
    pub direct: Direct,
    /// Whether to lock its files against writers.
    pub locks: bool,
}

/// An image that is open as the base of an overlay. It is never written.
pub trait BaseImage: Debug + Send {
    /// Bytes of its disk.
    fn size(&self) -> u64;

    /// A number that differs when one of its files was modified.
    ///
    /// # Errors
    /// A file cannot be asked.
    fn changed(&self) -> io::Result<u64>;

    /// Bytes that its files take on the disk; none of a remote.
    fn disk_bytes(&self) -> Option<u64>;

    /// Whether one of its files is on a disk that rotates.
    fn is_rotational(&self) -> bool;

    /// The largest read that it takes, in KiB.
    fn request_kb(&self) -> u32 {
        u32::MAX
    }

    /// Whether all of its files are locked.
    fn is_locked(&self) -> bool;

    /// Path, format and access, as a phrase.
    fn describe(&self) -> String;

    /// The first byte from `from` on that may be other than zero, and where that ends, both before `end`.
    fn next_data(&self, from: u64, end: u64) -> Option<(u64, u64)>;

    /// Reads bytes of its disk; waits for them.
    ///
    /// # Errors
    /// They cannot be read.
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()>;

    /// Makes the device, whose volume 0 it is.
    fn into_device(self: Box<Self>) -> Box<dyn Device>;
}

/// Opens images as bases.
pub trait OpenBaseImage: Sync {
    /// Opens the image at `path`; a remote, if that is the format, as `path` specifies it.
    ///
    /// # Errors
    /// A sentence about what is wrong with it.
    fn open(
        &self,
        path: &Path,
        options: &BaseImageOptions,
    ) -> Result<Box<dyn BaseImage>, ConfigError>;
}

/// What opens bases that are images; by default nothing does. All values are equal: which formats are known is a matter of the program.
#[derive(Clone, Copy, Default)]
pub struct BaseFormats(Option<&'static dyn OpenBaseImage>);

impl BaseFormats {
    /// Images that `opens` knows can be bases.
    #[must_use]
    pub const fn new(opens: &'static dyn OpenBaseImage) -> Self {
        Self(Some(opens))
    }

    pub(super) fn open(
        self,
        path: &Path,
        options: &BaseImageOptions,
    ) -> Result<Box<dyn BaseImage>, ConfigError> {
        match self.0 {
            Some(opens) => opens.open(path, options),
            None => {
                let what = match options.format {
                    REMOTE_BASE => "a remote".to_owned(),
                    format => format!("a {format} image"),
                };
                let message = format!(
                    "{} is {what}, which this program does not read; `headworks image flatten` makes a raw image of the overlay",
                    path.display()
                );
                Err(ConfigError::new("path", message))
            }
        }
    }
}

impl PartialEq for BaseFormats {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for BaseFormats {}

impl Debug for BaseFormats {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "BaseFormats(known)" } else { "BaseFormats(none)" })
    }
}

/// What a base is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverlayBaseKind {
    /// A file of raw bytes, or a block device.
    Raw,
    /// An overlay itself.
    Overlay,
    /// An image of the format with this name, or a remote ([`REMOTE_BASE`]).
    Image(&'static str),
}

impl From<BaseKind> for OverlayBaseKind {
    fn from(kind: BaseKind) -> Self {
        match (kind, kind.format()) {
            (_, Some(format)) => Self::Image(format),
            (BaseKind::Overlay, None) => Self::Overlay,
            (_, None) => Self::Raw,
        }
    }
}

impl OverlayBaseKind {
    /// Its name: `raw`, `overlay`, `qcow2`, `vmdk` or `remote`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Overlay => "overlay",
            Self::Image(name) => name,
        }
    }
}

impl BaseKind {
    /// The name of its format, of a base that is an image.
    pub(super) fn format(self) -> Option<&'static str> {
        match self {
            Self::Raw | Self::Overlay => None,
            Self::Qcow2 => Some("qcow2"),
            Self::Vmdk => Some("vmdk"),
            Self::Remote => Some(REMOTE_BASE),
        }
    }

    /// The kind of a base in a format.
    pub(super) fn of_format(name: &str) -> Option<Self> {
        [Self::Qcow2, Self::Vmdk, Self::Remote].into_iter().find(|kind| kind.format() == Some(name))
    }
}
