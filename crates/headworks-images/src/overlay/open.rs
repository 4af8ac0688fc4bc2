//! Opens an overlay and its bases: checks heads, locks, reads bitmaps.
//!
//! Our own file is locked as any image is; bases are opened read-only and locked shared, so nothing can write one meanwhile. A head may be
//! hostile: a base is opened only in the overlay's directory or below it, links resolved, unless the user allows others. A base that is
//! missing or not as the head says is refused.
//!
//! What a killed process left may be in the kernel's pages alone. So a file that is opened for writing is synced once before anything takes
//! its bits for durable: without that, a FUA write of a block whose bit was not synced would go past the bitmap, and a power cut would
//! take it.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use headworks_core::{ConfigError, QueueOptions, VolumeOptions};

use super::bitmap::Bitmap;
use super::head::{BLOCK, BaseKind, BaseRecord, HEAD_BYTES, Head, Task, data_start, has_magic};
use super::here::{Here, HereFound, Tag};
use super::ids::LAYERS_MAX;
use super::image::{BaseFormats, BaseImage, BaseImageOptions, OverlayBaseKind};
use super::load::{FoundBits, read_found};
use super::new::{check_layers, io_error, modified, refuse};
use super::writer::{WrittenBits, store_pages};
use super::{HERE, ONLY, OverlayDevice, Parts};
use headworks::Device;
use headworks::house::{Mapping, folder_of, safe_open};
use headworks::{Direct, FileDevice, FileOptions, OpenFile};
use headworks_house::{ImageHandles, ImageWriter};

/// What a user may say about an overlay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OverlayOptions {
    /// Open it for reading alone.
    pub read_only: bool,
    /// Whether to go past the kernel's page cache, for the overlay and its bases.
    pub direct: Direct,
    /// Whether a base may be in any directory, and not only in that of the overlay and below.
    pub base_anywhere: bool,
    /// What opens bases that are images.
    pub formats: BaseFormats,
}

/// An overlay that is open, locked and understood, with its bases.
#[derive(Debug)]
pub struct OpenOverlay {
    pub(super) path: PathBuf,
    pub(super) file: OpenFile,
    pub(super) head: Head,
    pub(super) bitmap: Bitmap,
    here: Here,
    /// The file for here bits; none of a layer that is only read.
    here_file: Option<OpenFile>,
    /// Pages with bits that are only here.
    pub(super) pending: Vec<u32>,
    /// Bits behind the end of the volume that the file has set.
    stray_bits: u64,
    pub(super) base: OpenBase,
    base_path: PathBuf,
    /// Another process serves it still, and will have flushed it.
    handed_over: bool,
}

#[derive(Debug)]
pub(super) enum OpenBase {
    Raw(Box<OpenFile>),
    Overlay(Box<OpenOverlay>),
    Image(BaseKind, Box<dyn BaseImage>),
}

/// How files are opened.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// Locked.
    Use,
    /// Without locks, to look.
    Inspect,
    /// As `Use`, and the base is to be written.
    Commit,
    /// As `Use`, whatever the base is now.
    Reset,
}

/// Whether the file at `path` is an overlay: it has a valid head and the size that this says.
#[must_use]
pub fn is_overlay(path: &Path) -> bool {
    let Ok(file) = safe_open::open_image(path, File::options().read(true)) else { return false };
    let whole = |head: &Head| {
        file.metadata().is_ok_and(|found| {
            found.is_file() && found.len() >= data_start(head.volume_size) + head.volume_size
        })
    };
    read_head(path, &file).is_ok_and(|(head, _)| whole(&head))
}

/// Reads the head of a file; also its first bytes.
pub(super) fn read_head(path: &Path, file: &File) -> Result<(Head, Mapping), ConfigError> {
    let io = |error: io::Error| io_error(path, &error);
    // Aligned for direct I/O.
    let memory = Mapping::new(HEAD_BYTES).map_err(io)?;
    // SAFETY: our own mapping, which nothing else uses.
    let bytes = unsafe { std::slice::from_raw_parts_mut(memory.base(), HEAD_BYTES) };
    if let Err(error) = file.read_exact_at(bytes, 0)
        && error.kind() != io::ErrorKind::UnexpectedEof
    {
        return Err(io(error));
    }
    match Head::decode(bytes) {
        Ok(head) => Ok((head, memory)),
        Err(why) if has_magic(bytes) => refuse(path, why),
        Err(why) => refuse(path, &format!("{why}; `headworks image create` makes one")),
    }
}

/// The record of a base of raw bytes.
pub(super) fn of_file(path: &Path, file: &OpenFile) -> Result<BaseRecord, ConfigError> {
    let found = file.file().metadata().map_err(|error| io_error(path, &error))?;
    // The node of a block device does not change with its bytes.
    let changed = if file.is_regular() { modified(&found) } else { 0 };
    // A commit may have made it longer.
    let size = if file.is_regular() { found.len() } else { file.volume_options().size };
    Ok(BaseRecord { kind: BaseKind::Raw, path: path.into(), size, changed, uuid: [0; 16] })
}

/// Opens a base that is an image.
pub(super) fn open_image(
    path: &Path,
    kind: BaseKind,
    options: &OverlayOptions,
    locks: bool,
) -> Result<OpenBase, ConfigError> {
    let (anywhere, direct) = (options.base_anywhere, options.direct);
    let format = kind.format().unwrap_or_default();
    let wanted = BaseImageOptions { format, anywhere, direct, locks };
    Ok(OpenBase::Image(kind, options.formats.open(path, &wanted)?))
}

impl OpenBase {
    /// The base at `path` as it is now.
    pub(super) fn record(&self, path: &Path) -> Result<BaseRecord, ConfigError> {
        match self {
            Self::Raw(file) => of_file(path, file),
            Self::Overlay(open) => open.as_base(),
            Self::Image(kind, image) => {
                let changed = image.changed().map_err(|error| io_error(path, &error))?;
                let (kind, size) = (*kind, image.size());
                Ok(BaseRecord { kind, path: path.into(), size, changed, uuid: [0; 16] })
            }
        }
    }
}

impl OpenOverlay {
    /// Opens the overlay at `path` with its bases. `lock` is a descriptor of the open file that holds the lock, if another process
    /// hands it over.
    ///
    /// # Errors
    /// Every reason why it should not be served, as one sentence.
    pub fn open(
        path: &Path,
        options: &OverlayOptions,
        lock: Option<Arc<File>>,
    ) -> Result<Self, ConfigError> {
        Self::open_layer(path, options, (Way::Use, lock), 1)
    }

    /// Finds out what [`OpenOverlay::open`] would serve, with the same errors; takes no lock.
    ///
    /// # Errors
    /// As [`OpenOverlay::open`].
    pub fn inspect(path: &Path, options: &OverlayOptions) -> Result<Self, ConfigError> {
        Self::open_layer(path, options, (Way::Inspect, None), 1)
    }

    pub(super) fn open_for(
        path: &Path,
        options: &OverlayOptions,
        way: Way,
    ) -> Result<Self, ConfigError> {
        Self::open_layer(path, options, (way, None), 1)
    }

    fn open_layer(
        path: &Path,
        options: &OverlayOptions,
        (way, lock): (Way, Option<Arc<File>>),
        layers: u8,
    ) -> Result<Self, ConfigError> {
        if layers > LAYERS_MAX {
            return refuse(
                path,
                &format!(
                    "is below {LAYERS_MAX} overlays, which is the most; commit one into its base"
                ),
            );
        }
        if path.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            return refuse(
                path,
                "does not exist; `headworks image create --base BASE FILE` makes an overlay",
            );
        }
        let wanted =
            FileOptions { read_only: options.read_only, size: None, direct: options.direct };
        let handed_over = lock.is_some();
        let file = open_file(path, &wanted, (way, lock))?;
        let (head, _) = read_head(path, file.file())?;
        if head.task == Task::Reset && way != Way::Reset {
            let shown = path.display();
            let message = format!(
                "was being reset, and some of its blocks are given up; end that: headworks image reset {shown} --yes"
            );
            return refuse(path, &message);
        }
        let size = head.volume_size;
        if !file.is_regular() || file.found().size < data_start(size) + size {
            return refuse(
                path,
                "is cut short: it is smaller than its head says; restore it from a copy",
            );
        }
        let io = |error: io::Error| io_error(path, &error);
        // What made a base made its bits durable.
        let tag = Tag::of_this_boot(head.number).filter(|_| layers == 1);
        let writes = !options.read_only && way != Way::Inspect;
        let bits = read_found(&**file.file(), size, tag, writes).map_err(io)?;
        let FoundBits { live, stray: stray_bits, here: found } = bits;
        let (here, here_file) = match writes && layers == 1 {
            true => (Here::new(tag, size, &found), Some(file.buffered(path).map_err(io)?)),
            false => (Ok(Here::none()), None),
        };
        let here = here.map_err(io)?;
        let base_path = find_base(path, &head.base, options)?;
        let read_only = way != Way::Commit;
        let way_below = if way == Way::Inspect { way } else { Way::Use };
        let base = match head.base.kind {
            BaseKind::Raw => {
                let wanted = FileOptions { read_only, ..wanted };
                OpenBase::Raw(Box::new(open_file(&base_path, &wanted, (way_below, None))?))
            }
            BaseKind::Overlay => {
                let below = OverlayOptions { read_only, ..*options };
                let open = Self::open_layer(&base_path, &below, (way_below, None), layers + 1)?;
                OpenBase::Overlay(Box::new(open))
            }
            kind @ (BaseKind::Qcow2 | BaseKind::Vmdk | BaseKind::Remote) => {
                if way == Way::Commit {
                    return refuse(
                        path,
                        "has a base that is an image of another format, or remote, which is not written; `headworks image flatten` makes one raw image of both",
                    );
                }
                open_image(&base_path, kind, options, way_below == Way::Use)?
            }
        };
        let mut bitmap = Bitmap::new(Arc::new(live)).map_err(io)?;
        let HereFound { pending, .. } = found;
        bitmap.mark_pending(&pending);
        let path = path.to_owned();
        let open = Self {
            path,
            file,
            head,
            bitmap,
            here,
            here_file,
            pending,
            stray_bits,
            base,
            base_path,
            handed_over,
        };
        if way != Way::Reset {
            open.check_base()?;
        }
        Ok(open)
    }

    /// Refuses a base that is not as it was.
    fn check_base(&self) -> Result<(), ConfigError> {
        let (was, is) = (&self.head.base, self.base_record()?);
        // An interrupted commit has changed it itself, and may have made it as long as the volume.
        let committing = self.is_committing();
        let is_grown = committing && is.size == self.head.size();
        let differs = match () {
            () if was.uuid != is.uuid => "is another overlay than when this was made",
            () if was.size != is.size && !is_grown => {
                "has another size than when the overlay was made"
            }
            () if was.changed != is.changed && !committing => {
                "was modified since the overlay was made"
            }
            () => return Ok(()),
        };
        let (path, base) = (self.path.display(), self.base_path.display());
        let take = match was.size == is.size {
            true => format!(
                " take this one if its bytes are the same (headworks image rebase --base {base} {path}),"
            ),
            false => String::new(),
        };
        let message = format!(
            "{path}: its base {base} {differs}; put the right one there with its time of modification (cp -p keeps it),{take} or give up the \
             overlay's data (headworks image reset {path} --yes)"
        );
        Err(ConfigError::new("path", message))
    }

    /// The base as it is now.
    pub(super) fn base_record(&self) -> Result<BaseRecord, ConfigError> {
        self.base.record(&self.base_path)
    }

    /// This overlay as the base of another.
    pub(super) fn as_base(&self) -> Result<BaseRecord, ConfigError> {
        let found = self.file.file().metadata().map_err(|error| io_error(&self.path, &error))?;
        Ok(BaseRecord {
            kind: BaseKind::Overlay,
            path: self.path.clone(),
            size: self.head.size(),
            changed: modified(&found),
            uuid: self.head.uuid,
        })
    }

    /// Bytes that the base can be asked for: an overlay has all of its last block, with zeros beyond its end.
    pub(super) fn base_bytes(&self) -> u64 {
        match self.head.base.kind {
            BaseKind::Overlay => self.head.base.size.next_multiple_of(BLOCK),
            _ => self.head.base.size,
        }
    }

    /// Path of the base, without links.
    pub(super) fn base_path(&self) -> &Path {
        &self.base_path
    }

    /// The overlay's own file.
    #[must_use]
    pub fn file(&self) -> &OpenFile {
        &self.file
    }

    /// The smallest block that it writes. A volume that ends within one has it whole: what is beyond its end is to stay as it is.
    pub const BLOCK_SIZE: u32 = BLOCK as u32;

    /// What its volume should be.
    #[must_use]
    pub fn volume_options(&self) -> VolumeOptions {
        VolumeOptions {
            size: self.head.size(),
            read_only: self.file.read_only(),
            block_size: if self.head.beyond > 0 { 1 } else { Self::BLOCK_SIZE },
            ..VolumeOptions::default()
        }
    }

    /// What its queue should know.
    #[must_use]
    pub fn queue_options(&self) -> QueueOptions {
        let own = self.file.queue_options();
        // Its blocks are the granularity of changes, and one that is only read limits none.
        let block = if self.file.read_only() { 0 } else { BLOCK as u32 };
        QueueOptions {
            discard_granularity: own.discard_granularity.max(block),
            rotational: own.rotational || self.base_is_rotational(),
            max_sectors_kb: own.max_sectors_kb.min(self.base_request_kb()),
            ..own
        }
    }

    /// What the queue of a device that it shares should know: that is the queue of the overlay's own disk, wherever its bases lie.
    #[must_use]
    pub fn shared_queue_options(&self) -> QueueOptions {
        let rotational = self.file.queue_options().rotational;
        QueueOptions { rotational, ..self.queue_options() }
    }

    /// Makes what is only in the here bits durable, in the bitmap; the file is open for writing, and was synced when it was opened.
    pub(super) fn settle(&mut self) -> io::Result<()> {
        let pending = std::mem::take(&mut self.pending);
        store_pages(self.file.file(), self.bitmap.live(), pending.into_iter())
    }

    /// Number of overlays, itself among them.
    pub(super) fn overlays(&self) -> usize {
        match &self.base {
            OpenBase::Raw(_) | OpenBase::Image(..) => 1,
            OpenBase::Overlay(open) => 1 + open.overlays(),
        }
    }

    /// Refuses the highest overlay that there may be.
    ///
    /// # Errors
    /// It is that.
    pub fn check_room_above(&self) -> Result<(), ConfigError> {
        check_layers(&self.path, self)
    }

    fn base_is_rotational(&self) -> bool {
        match &self.base {
            OpenBase::Raw(file) => file.queue_options().rotational,
            OpenBase::Overlay(open) => open.queue_options().rotational,
            OpenBase::Image(_, image) => image.is_rotational(),
        }
    }

    /// The largest read that its base takes, in KiB.
    fn base_request_kb(&self) -> u32 {
        match &self.base {
            OpenBase::Raw(file) => file.queue_options().max_sectors_kb,
            OpenBase::Overlay(open) => open.queue_options().max_sectors_kb,
            OpenBase::Image(_, image) => image.request_kb(),
        }
    }

    /// Its files from the top down, and how they are accessed, as a phrase for messages.
    #[must_use]
    pub fn describe(&self) -> String {
        let below = match &self.base {
            OpenBase::Raw(file) => format!("{} ({})", self.base_path.display(), file.access()),
            OpenBase::Overlay(open) => open.describe(),
            OpenBase::Image(_, image) => image.describe(),
        };
        format!("{} ({}) over {below}", self.path.display(), self.file.access())
    }

    /// Whether one of its files is not locked, because its filesystem has no locks.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        let below = match &self.base {
            OpenBase::Raw(file) => file.locked(),
            OpenBase::Overlay(open) => open.is_locked(),
            OpenBase::Image(_, image) => image.is_locked(),
        };
        self.file.locked() && below
    }

    /// A handle to write it before it is served: data, a sync, the bits, another sync.
    #[must_use]
    pub fn writer(&self) -> ImageWriter {
        let size = self.head.size();
        let ranges = Arc::new(WrittenBits::new(Arc::clone(self.bitmap.live())));
        let file = Arc::clone(self.file.file());
        ImageWriter::with_ranges(file, size, data_start(size), ranges)
    }

    /// Whether it can be one of several volumes of a [`FilesystemDevice`](crate::FilesystemDevice): none of its bases is an image of a
    /// format, whose device waits for descriptors of its own.
    #[must_use]
    pub fn can_share_device(&self) -> bool {
        match &self.base {
            OpenBase::Raw(_) => true,
            OpenBase::Overlay(open) => open.can_share_device(),
            OpenBase::Image(..) => false,
        }
    }

    /// Makes the device, whose only volume it is, whatever its number.
    #[must_use]
    pub fn into_device(self) -> OverlayDevice {
        self.into_device_at(0)
    }

    /// Makes the device as a part of another, which has it in `place`.
    pub(crate) fn into_device_at(self, place: u16) -> OverlayDevice {
        let size = self.head.volume_size;
        let base_size = self.base_bytes();
        let (below, layer): (Box<dyn Device>, u8) = match self.base {
            OpenBase::Raw(file) => (Box::new(FileDevice::new(vec![(ONLY, *file)])), 0),
            OpenBase::Overlay(open) => {
                let below = open.into_device_at(place);
                let layer = below.parts.layer + 1;
                (Box::new(below), layer)
            }
            OpenBase::Image(_, image) => (image.into_device(), 0),
        };
        let late_bits = self.handed_over.then(|| Arc::clone(self.file.file()));
        let read_only = self.file.read_only();
        let here_file = self.here_file.map(|file| (HERE, file));
        let images = std::iter::once((ONLY, self.file)).chain(here_file).collect();
        OverlayDevice::from_parts(Parts {
            late_bits,
            read_only,
            own: Box::new(FileDevice::new(images)),
            below,
            bitmap: self.bitmap,
            here: self.here,
            data: data_start(size),
            size,
            base_size,
            layer,
            place,
        })
    }
}

fn open_file(
    path: &Path,
    options: &FileOptions,
    (way, lock): (Way, Option<Arc<File>>),
) -> Result<OpenFile, ConfigError> {
    match way {
        Way::Inspect => OpenFile::inspect(path, options),
        Way::Use | Way::Commit | Way::Reset => OpenFile::open_locked(path, options, lock),
    }
}

/// The path of the base without links, if it may be opened.
pub(super) fn find_base(
    path: &Path,
    base: &BaseRecord,
    options: &OverlayOptions,
) -> Result<PathBuf, ConfigError> {
    if base.kind == BaseKind::Remote {
        let remote = base.path.clone();
        if options.base_anywhere {
            return Ok(remote);
        }
        let (path, remote) = (path.display(), remote.display());
        let message = format!(
            "{path}: its base is {remote}; backing=allow (--backing allow) connects to it if you trust the overlay"
        );
        return Err(ConfigError::new("backing", message));
    }
    let folder = folder_of(path).canonicalize().map_err(|error| io_error(path, &error))?;
    let named = folder.join(&base.path);
    let (shown, base) = (path.display(), base.path.display());
    let found = named.canonicalize().map_err(|error| {
        ConfigError::new(
            "path",
            format!("{shown}: its base {base} cannot be opened: {error}; put it back there"),
        )
        .caused_by(error.raw_os_error())
    })?;
    if !options.base_anywhere && !found.starts_with(&folder) {
        let message = format!(
            "{shown}: its base {base} is neither in its directory nor below it; backing=allow (--backing allow) opens it if you trust the \
             overlay"
        );
        return Err(ConfigError::new("backing", message));
    }
    Ok(found)
}

/// A layer of an overlay: itself, or a base.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverlayLayer {
    /// Path of the file; of a remote its specification.
    pub path: PathBuf,
    /// Raw bytes, an overlay, an image of a format, or a remote.
    pub kind: OverlayBaseKind,
    /// Bytes of its volume.
    pub size: u64,
    /// Bytes of the blocks that are its own; none of a raw base, whose are all.
    pub own_bytes: Option<u64>,
    /// Bytes that its files take on the disk; none of a remote.
    pub disk_bytes: Option<u64>,
}

/// What `headworks image info` shows.
impl OpenOverlay {
    /// Bytes of the blocks that are its own.
    #[must_use]
    pub fn own_bytes(&self) -> u64 {
        self.bitmap.live().count() * BLOCK
    }

    /// Bits behind its end, which no correct program sets.
    #[must_use]
    pub fn stray_bits(&self) -> u64 {
        self.stray_bits
    }

    /// Whether a commit was interrupted.
    #[must_use]
    pub fn is_committing(&self) -> bool {
        self.head.task == Task::Commit
    }

    /// Its id, in the usual form.
    #[must_use]
    pub fn uuid(&self) -> String {
        let hex: Vec<String> = self.head.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
        let groups = [0..4, 4..6, 6..8, 8..10, 10..16];
        groups.map(|group| hex[group].concat()).join("-")
    }

    /// Its layers from the top down.
    #[must_use]
    pub fn layers(&self) -> Vec<OverlayLayer> {
        let layer = |path: &Path, size, own_bytes: Option<u64>, file: &OpenFile| OverlayLayer {
            path: path.to_owned(),
            kind: match own_bytes {
                Some(_) => OverlayBaseKind::Overlay,
                None => OverlayBaseKind::Raw,
            },
            size,
            own_bytes,
            disk_bytes: file.file().metadata().ok().map(|found| found.blocks() * 512),
        };
        let own = layer(&self.path, self.head.size(), Some(self.own_bytes()), &self.file);
        let below = match &self.base {
            OpenBase::Raw(file) => vec![layer(&self.base_path, self.head.base.size, None, file)],
            OpenBase::Overlay(open) => open.layers(),
            OpenBase::Image(kind, image) => vec![OverlayLayer {
                path: self.base_path.clone(),
                kind: (*kind).into(),
                size: self.head.base.size,
                own_bytes: None,
                disk_bytes: image.disk_bytes(),
            }],
        };
        std::iter::once(own).chain(below).collect()
    }
}
