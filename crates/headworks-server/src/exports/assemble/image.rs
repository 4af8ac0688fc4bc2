//! Opens the image of one export, at the start or when an export is added.
//!
//! A file that is served already is not opened again: its exports share the volume and must agree on how it is cached.

use std::fmt::Display;
use std::fs::Metadata;
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use headworks_core::{ConfigError, ErrorPolicy, QueueOptions, VolumeId, VolumeOptions, WriteMode};

use super::export_spec::{EXPORTS_MAX, ExportSpec, NamedDevice, no_size};
use super::foreign;
use super::watched_file::WatchedFile;
use crate::spec::{BaseDevice, ExportOptions, ModelLink, NewDisk, Rbd, RemoteLink, Spec, Wrapper};
use crate::successor::leftovers::{Leftovers, RestoredImage};
use crate::successor::marker::{Marker, hidden_note, place_of_mark, unclean_note};
use headworks::house::display_size;
use headworks::{Device, Direct, FileDevice, FileOptions, Image, MemDevice, NullDevice, OpenFile};
use headworks_house::{Identity, ImageHandles, ImageWriter, SizeWatch};
use headworks_images::formats::{ImageOptions, OpenImage};
use headworks_images::{FilesystemDevice, OpenOverlay, OverlayBase, OverlayOptions};
use headworks_rbd::{Access, OpenRbd};

/// Cache options of a volume, as far as its exports give them.
#[derive(Clone, Copy, Debug, Default)]
pub struct VolumeCaching {
    /// Cache mode; none if no export gives it.
    pub mode: Option<WriteMode>,
    /// Policy for failed write-back; none if no export gives it.
    pub on_error: Option<ErrorPolicy>,
    /// Whether parts of blocks are refused without a cache; none if no export gives it.
    pub strict_blocks: Option<bool>,
}

/// Default cache mode: none for devices in memory.
fn usual_mode(spec: &Spec) -> WriteMode {
    match spec.base {
        BaseDevice::Null { .. } | BaseDevice::Mem { .. } if spec.wrappers.is_empty() => {
            WriteMode::None
        }
        _ => WriteMode::Writeback,
    }
}

/// Combines the options of two exports of one image; an error if they differ.
fn agree<T: Copy + PartialEq>(one: Option<T>, other: Option<T>) -> Result<Option<T>, ()> {
    match (one, other) {
        (Some(one), Some(other)) if one != other => Err(()),
        _ => Ok(one.or(other)),
    }
}

impl ExportSpec {
    /// Cache options in the export's specification.
    pub(crate) fn caching(&self) -> VolumeCaching {
        let ExportOptions { mode, on_error, strict_blocks, .. } = self.share;
        VolumeCaching { mode, on_error, strict_blocks }
    }
}

impl VolumeCaching {
    /// Adds the options of a further export.
    pub fn agree(self, export: &ExportSpec) -> Result<Self, ConfigError> {
        let ExportOptions { mode, on_error, strict_blocks, .. } = export.share;
        let differs = |key| {
            let name = &export.name;
            let message = format!("export `{name}` differs from another export of the same image");
            move |()| ConfigError::new(key, message)
        };
        Ok(Self {
            mode: agree(self.mode, mode).map_err(differs("cache"))?,
            on_error: agree(self.on_error, on_error).map_err(differs("on-error"))?,
            strict_blocks: agree(self.strict_blocks, strict_blocks)
                .map_err(differs("strict-blocks"))?,
        })
    }

    /// Sets the options of a volume, with defaults.
    pub fn apply(self, spec: &Spec, options: &mut VolumeOptions) {
        options.mode = self.mode.unwrap_or_else(|| usual_mode(spec));
        options.on_error = self.on_error.unwrap_or_default();
    }
}

/// Origin of a volume, for later exports and resizes.
#[derive(Clone, Debug)]
pub struct VolumeOrigin {
    /// Identity of the volume's file.
    pub identity: Option<Identity>,
    /// Description of the volume for people.
    pub what: String,
    /// Specification that it was opened with.
    pub spec: Spec,
    /// Cache options of its exports.
    pub caching: VolumeCaching,
    /// Handle to read and extend the size of its file.
    pub watch: Option<SizeWatch>,
    /// The server that it is behind.
    pub remote: Option<RemoteLink>,
    /// The modelled disk around it.
    pub model: Option<ModelLink>,
    /// The base of an overlay without wrappers.
    pub base: Option<OverlayBase>,
    /// The smallest block that the image takes.
    pub block_size: u32,
}

impl VolumeOrigin {
    /// Checks whether `export` may use this volume, whose size is `size` bytes.
    pub fn agree(&self, export: &ExportSpec, size: u64) -> Result<(), ConfigError> {
        let name = &export.name;
        let differs = |key, how: &str| {
            let message =
                format!("export `{name}` differs from another export of the same image{how}");
            Err(ConfigError::new(key, message))
        };
        if export.spec.wrappers != self.spec.wrappers {
            return differs("of", ": their wrappers must be the same");
        }
        let (options, opened) = match (&export.spec.base, &self.spec.base) {
            (BaseDevice::File { options, .. }, BaseDevice::File { options: opened, .. }) => {
                (options, opened)
            }
            (BaseDevice::Null { .. } | BaseDevice::Mem { .. }, _) => return Ok(()),
            (BaseDevice::Overlay { options, .. }, BaseDevice::Overlay { options: opened, .. }) => {
                let opened_by_it =
                    OverlayOptions { read_only: opened.read_only, ..*options } == *opened;
                return if opened_by_it { Ok(()) } else { differs("direct or backing", "") };
            }
            (BaseDevice::Image { options, .. }, BaseDevice::Image { options: opened, .. }) => {
                return if options == opened {
                    Ok(())
                } else {
                    differs("path", " in its format or how it is opened")
                };
            }
            (BaseDevice::Nbd(remote), BaseDevice::Nbd(opened)) => {
                let is_same = remote.uri == opened.uri && remote.options == opened.options;
                return if is_same {
                    Ok(())
                } else {
                    differs("uri", ": their keys must be the same")
                };
            }
            (BaseDevice::Rbd(rbd), BaseDevice::Rbd(opened)) => {
                let is_same = rbd.is_same(opened);
                return if is_same {
                    Ok(())
                } else {
                    differs("image", ": their keys must be the same")
                };
            }
            _ => return differs("path", ": its type must be the same in each of them"),
        };
        if options.direct != Direct::default() && options.direct != opened.direct {
            return differs("direct", "");
        }
        match options.size {
            Some(wanted) if wanted > size && options.size != opened.size => {
                differs("size", &format!(", which has {size} bytes, less than {wanted}"))
            }
            _ => Ok(()),
        }
    }
}

/// Key by which images share a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SharedDeviceKey {
    /// Images on this filesystem without a named device.
    Filesystem(u64),
    /// Images with this named device.
    Name(String),
}

impl SharedDeviceKey {
    /// Key of an image on a filesystem.
    pub(super) fn of(filesystem: u64, device: Option<&NamedDevice>) -> Self {
        device.map_or(Self::Filesystem(filesystem), |device| Self::Name(device.name.clone()))
    }
}

/// An image file that did not exist before.
pub struct CreatedImage {
    path: PathBuf,
    identity: Identity,
    /// Keeps the identity in use.
    _open: SizeWatch,
}

impl CreatedImage {
    /// Removes the file again, unless it was replaced meanwhile.
    pub fn undo(self) {
        remove_made(&self.path, self.identity);
    }
}

/// What opening an image may change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Opening {
    /// Images are created where that is asked for, locked, and opened for writing.
    #[default]
    Serve,
    /// Nothing is changed.
    Inspect,
    /// Nothing is changed, and the image can be read.
    Read,
}

/// The opened device of an export.
pub struct OpenedImage {
    body: ImageBody,
    queue: QueueOptions,
    /// Size, and the smallest block of requests; exports set the cache options.
    pub options: VolumeOptions,
    what: String,
    /// Messages for the user.
    pub notes: Vec<String>,
    alone: bool,
    /// The file was made by this opening.
    is_new: bool,
    /// Identity of its file; none of devices without one.
    identity: Option<Identity>,
    /// The outermost modelled disk around it.
    model: Option<ModelLink>,
}

enum ImageBody {
    File(Box<OpenFile>),
    Overlay(Box<OpenOverlay>),
    Remote(Box<dyn Device>, Box<RemoteLink>),
    Fake(Box<dyn Device>),
}

impl OpenedImage {
    /// Opens the device of a specification.
    ///
    /// # Errors
    /// The reason why it cannot be served.
    pub fn new(spec: &Spec, write: bool) -> Result<Self, ConfigError> {
        Self::by(Opening::Serve, spec, write, &Leftovers::default())
    }

    /// Opens or inspects the device of a specification; a lock that a running server hands over is among the `leftovers`.
    pub fn by(
        opening: Opening,
        spec: &Spec,
        write: bool,
        leftovers: &Leftovers,
    ) -> Result<Self, ConfigError> {
        let fake = |size, queue, device: Box<dyn Device>, what: &str| Self {
            body: ImageBody::Fake(device),
            queue,
            options: VolumeOptions { size, block_size: 1, ..VolumeOptions::default() },
            what: wrapped(spec, what),
            notes: Vec::new(),
            alone: true,
            is_new: false,
            identity: None,
            model: None,
        };
        let opened = match &spec.base {
            BaseDevice::Image { path, options } => Self::resolve(opening, spec, path, options)?,
            BaseDevice::File { path, options, .. } => {
                if let Some(refusal) = foreign::refusal(&spec.base, leftovers) {
                    return Err(ConfigError::new("path", refusal));
                }
                let options = FileOptions { read_only: !write, ..*options };
                let file = match opening {
                    Opening::Serve => {
                        OpenFile::open_locked(path, &options, leftovers.lock_of(path))
                    }
                    Opening::Inspect | Opening::Read => OpenFile::inspect(path, &options),
                };
                let file = file.map_err(|error| meant(spec, error))?;
                let shown = path.display();
                let mut notes: Vec<String> = in_use_note(path, &file).into_iter().collect();
                if !file.locked() {
                    notes.push(format!("{shown} is not locked: its filesystem has no locks"));
                }
                if file.created() && opening == Opening::Serve {
                    let size = display_size(file.volume_options().size);
                    notes.push(format!("created {shown}, sparse, {size}"));
                }
                notes.extend(larger(&shown, options.size, file.volume_options().size));
                Self {
                    queue: file.queue_options(),
                    options: file.volume_options(),
                    what: wrapped(spec, &format!("{shown} ({})", file.access())),
                    identity: Some(file.identity()),
                    is_new: file.created(),
                    body: ImageBody::File(Box::new(file)),
                    notes,
                    alone: !spec.wrappers.is_empty(),
                    model: None,
                }
            }
            BaseDevice::Overlay { path, options, new: Some(new) }
                if opening != Opening::Serve && is_missing(path) =>
            {
                let what = format!("{} (a new overlay)", path.display());
                let size = new.prepare(path, options)?.size();
                fake(size, NullDevice::queue_options(), Box::new(NullDevice), &what)
            }
            BaseDevice::Overlay { path, options, new } => {
                let options = OverlayOptions { read_only: !write, ..*options };
                Self::of_overlay(opening, spec, path, (&options, new.as_ref()), leftovers)?
            }
            BaseDevice::Nbd(remote) => {
                let identity = remote.identity();
                let opened = remote.open(write, leftovers.remote_of(identity))?;
                Self {
                    identity: Some(identity),
                    body: ImageBody::Remote(opened.device, Box::new(opened.link)),
                    queue: opened.queue,
                    options: opened.options,
                    what: wrapped(spec, &remote.uri.to_string()),
                    notes: Vec::new(),
                    alone: true,
                    is_new: false,
                    model: None,
                }
            }
            BaseDevice::Rbd(rbd) => Self::of_cluster(opening, spec, rbd, write)?,
            BaseDevice::Null { size } => {
                let size = size.ok_or_else(|| no_size("null"))?;
                fake(size, NullDevice::queue_options(), Box::new(NullDevice), "null")
            }
            BaseDevice::Mem { size } => {
                let size = size.ok_or_else(|| no_size("mem"))?;
                let device = Box::new(MemDevice::new(size)?);
                fake(size, MemDevice::queue_options(), device, "memory")
            }
        };
        if opened.options.size == 0 {
            let what = &opened.what;
            let message = format!("{what} is empty; give it a size, as in size=1G");
            return Err(ConfigError::new("size", message));
        }
        if write && opened.file().is_some_and(|(file, _)| is_read_only_disk(file.metadata())) {
            let message = format!(
                "{} is a block device that is set read-only (blockdev --getro); serve it read-only",
                opened.what
            );
            return Err(ConfigError::new("path", message).caused_by(Some(libc::EROFS)));
        }
        Ok(Self { model: spec.model_link(), ..opened })
    }

    /// Description of the volume for people.
    pub fn what(&self) -> &str {
        &self.what
    }

    /// The file that is written, with a handle to write the volume.
    fn file(&self) -> Option<(&OpenFile, ImageWriter)> {
        match &self.body {
            ImageBody::File(file) => Some((file, file.writer())),
            ImageBody::Overlay(overlay) => Some((overlay.file(), overlay.writer())),
            ImageBody::Remote(..) | ImageBody::Fake(_) => None,
        }
    }

    /// The smallest block that the image takes.
    pub fn block_size(&self) -> u32 {
        match &self.body {
            ImageBody::Overlay(_) => OpenOverlay::BLOCK_SIZE,
            _ => self.options.block_size,
        }
    }

    /// Opens an overlay, and makes it first where it is not there and its base was said.
    fn of_overlay(
        opening: Opening,
        spec: &Spec,
        path: &Path,
        (options, new): (&OverlayOptions, Option<&NewDisk>),
        leftovers: &Leftovers,
    ) -> Result<Self, ConfigError> {
        let missing = new.filter(|_| is_missing(path));
        let made = missing.map(|new| make_overlay(path, options, new)).transpose()?;
        let overlay = match opening {
            Opening::Serve => OpenOverlay::open(path, options, leftovers.lock_of(path)),
            Opening::Inspect | Opening::Read => OpenOverlay::inspect(path, options),
        };
        let overlay = overlay.inspect_err(|_| {
            if let Some((_, identity)) = &made {
                remove_made(path, *identity);
            }
        })?;
        let is_new = made.is_some();
        let mut notes: Vec<String> = in_use_note(path, overlay.file()).into_iter().collect();
        notes.extend(made.map(|(note, _)| note));
        if !overlay.is_locked() {
            notes.push(format!(
                "{} or a base of it is not locked: its filesystem has no locks",
                path.display()
            ));
        }
        let alone = !spec.wrappers.is_empty() || !overlay.can_share_device();
        Ok(Self {
            queue: match alone {
                true => overlay.queue_options(),
                false => overlay.shared_queue_options(),
            },
            options: overlay.volume_options(),
            what: wrapped(spec, &overlay.describe()),
            identity: Some(overlay.file().identity()),
            body: ImageBody::Overlay(Box::new(overlay)),
            notes,
            alone,
            is_new,
            model: None,
        })
    }

    /// Opens an image of a cluster.
    fn of_cluster(
        opening: Opening,
        spec: &Spec,
        rbd: &Rbd,
        write: bool,
    ) -> Result<Self, ConfigError> {
        let access = match opening {
            Opening::Serve => Access::Serve,
            Opening::Inspect | Opening::Read => Access::Inspect,
        };
        let image = OpenRbd::open(&rbd.name, &rbd.options, access)?;
        let options = image.volume_options();
        Ok(Self {
            queue: image.queue_options(),
            options: VolumeOptions { read_only: options.read_only || !write, ..options },
            what: wrapped(spec, &format!("rbd {}", rbd.name)),
            identity: Some(rbd.identity()),
            body: ImageBody::Fake(Box::new(image.into_device())),
            notes: Vec::new(),
            alone: true,
            is_new: false,
            model: None,
        })
    }

    /// Opens and resolves an image of a format.
    fn resolve(
        opening: Opening,
        spec: &Spec,
        path: &Path,
        options: &ImageOptions,
    ) -> Result<Self, ConfigError> {
        let image = match opening {
            Opening::Serve => OpenImage::open(path, options),
            Opening::Inspect | Opening::Read => OpenImage::inspect(path, options),
        }?;
        let mut notes = vec![format!(
            "{} is served read-only, like every {} image",
            path.display(),
            options.format.name()
        )];
        let unlocked = image
            .unlocked()
            .map(|file| format!("{} is not locked: its filesystem has no locks", file.display()));
        notes.extend(unlocked);
        Ok(Self {
            queue: image.queue_options(),
            options: image.volume_options(),
            what: wrapped(spec, &image.description()),
            identity: Some(image.identity()),
            body: ImageBody::Fake(match opening {
                Opening::Serve | Opening::Read => Box::new(image.into_device()?),
                // It is not read, and needs no threads.
                Opening::Inspect => Box::new(NullDevice),
            }),
            notes,
            alone: true,
            is_new: false,
            model: None,
        })
    }

    /// The image file, if this created it.
    pub fn made(&self, spec: &Spec) -> Option<CreatedImage> {
        let (path, (file, _)) = (spec.base.path()?.to_owned(), self.file()?);
        let (identity, _open) = (file.identity(), file.size_watch());
        self.is_new.then_some(CreatedImage { path, identity, _open })
    }

    /// Brings what dead servers left of the image to it, before it is served.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn recover(
        &self,
        export: &ExportSpec,
        leftovers: &Leftovers,
    ) -> Result<RestoredImage, ConfigError> {
        let path = export.spec.base.path();
        let mut restored = match (self.file(), path) {
            (Some((file, writer)), Some(path)) => leftovers.restore_image(path, file, &writer)?,
            // Others may read a remote while one server writes to it.
            _ if !export.writes() => return Ok(RestoredImage::default()),
            _ => RestoredImage::default(),
        };
        let place = place_of_mark(&export.spec.base, self.identity);
        let Some((place, identity)) = place.zip(self.identity) else { return Ok(restored) };
        let is_locked = path.is_some_and(|path| leftovers.lock_of(path).is_some());
        if is_locked || leftovers.is_marked(&place) {
            // The mark is that of the server which hands over.
            return Ok(restored);
        }
        let (mark, name) = (Marker::of(&place), path.map(|path| path.display().to_string()));
        let shown = name.unwrap_or_else(|| self.what.clone());
        if mark.is_hidden() {
            restored.notes.push(hidden_note(&shown));
        }
        if let Some(unclean) = mark.found(identity)
            && !restored.covered.is_some_and(|alive| unclean.is_covered(alive))
        {
            let memory = mark.memory().filter(|place| leftovers.overlooks(place, identity));
            let policy = export.share.on_unclean.unwrap_or_default();
            let refuses = policy.refuses(unclean.same_boot);
            restored.suspect |= refuses;
            restored.notes.push(unclean_note(&shown, unclean, refuses, memory));
        }
        Ok(restored)
    }

    /// What the inventory records of the volume.
    pub fn origin(&self, spec: &Spec) -> VolumeOrigin {
        let file = self.file().map(|(file, _)| file);
        let remote = match &self.body {
            ImageBody::Remote(_, link) => Some(RemoteLink::clone(link)),
            _ => None,
        };
        VolumeOrigin {
            identity: self.identity,
            what: self.what.clone(),
            spec: spec.clone(),
            caching: VolumeCaching::default(),
            block_size: self.block_size(),
            watch: file.map(|file| file.size_watch()),
            remote,
            model: self.model.clone(),
            base: match (&self.body, &spec.base) {
                (ImageBody::Overlay(overlay), BaseDevice::Overlay { options, .. })
                    if spec.wrappers.is_empty() =>
                {
                    Some(overlay.base_link(options))
                }
                _ => None,
            },
        }
    }

    /// The file whose size is watched while it is served.
    pub fn watched(&self, volume: VolumeId) -> Option<WatchedFile> {
        let VolumeOptions { size, block_size, .. } = self.options;
        match &self.body {
            ImageBody::File(file) => {
                Some(WatchedFile::new(volume, file.size_watch(), size, block_size.into()))
            }
            ImageBody::Overlay(overlay) => {
                Some(WatchedFile::of_fixed_size(volume, overlay.file().size_watch()))
            }
            ImageBody::Remote(..) | ImageBody::Fake(_) => None,
        }
    }

    /// Key of the device that it may join; none if it needs its own.
    pub fn common(&self, export: &ExportSpec) -> Option<SharedDeviceKey> {
        let (file, _) = self.file().filter(|_| !self.alone)?;
        Some(SharedDeviceKey::of(file.identity().filesystem, export.device.as_ref()))
    }

    /// Whether a queue with these options issues only operations that this image supports.
    pub fn fits(&self, queue: &QueueOptions) -> bool {
        let own = &self.queue;
        let can = |has: bool, used: bool| has || !used;
        can(own.discard, queue.discard)
            && can(own.write_zeroes, queue.write_zeroes)
            && (self.options.read_only || own.write_cache == queue.write_cache)
            && can(own.fua, queue.fua)
            && own.discard_granularity <= queue.discard_granularity
            && own.discard_max_bytes >= queue.discard_max_bytes
            && self.block_size() <= queue.max_bytes()
    }

    /// Options of the queue of a device of its own.
    pub fn device_options(&self, spec: &Spec) -> QueueOptions {
        spec.wrap_queue_options(self.queue)
    }

    /// The open image and its filesystem, if it may join a device.
    pub fn joins(self) -> Result<(u64, Box<dyn Image>), Box<Self>> {
        match self.body {
            _ if self.alone => Err(Box::new(self)),
            ImageBody::File(file) => Ok((file.identity().filesystem, file)),
            ImageBody::Overlay(overlay) => Ok((overlay.file().identity().filesystem, overlay)),
            body => Err(Box::new(Self { body, ..self })),
        }
    }

    /// Makes a device of its own.
    pub fn into_device(self, spec: &Spec, volume: VolumeId) -> (QueueOptions, Box<dyn Device>) {
        let (queue, block_size) = (self.queue, self.block_size());
        let model = self.model.clone();
        let body: Box<dyn Device> = match self.joins().map_err(|alone| alone.body) {
            Ok((_, image)) => Box::new(filesystem_device([(volume, image)])),
            Err(ImageBody::File(file)) => Box::new(FileDevice::new(vec![(volume, *file)])),
            Err(ImageBody::Overlay(overlay)) => Box::new(overlay.into_device()),
            Err(ImageBody::Remote(body, ..) | ImageBody::Fake(body)) => body,
        };
        (spec.wrap_queue_options(queue), spec.wrap(block_size, body, model.as_ref()))
    }
}

// Every volume can be an overlay: there are no more of them than exports.
const _: () = assert!(EXPORTS_MAX <= FilesystemDevice::OVERLAYS_MAX);

/// Makes the device of images of one filesystem.
pub(super) fn filesystem_device(
    images: impl IntoIterator<Item = (VolumeId, Box<dyn Image>)>,
) -> FilesystemDevice {
    let mut device = FilesystemDevice::new();
    for (volume, image) in images {
        let taken = device.attach(volume, image);
        assert!(
            taken.is_ok(),
            "an image that joins a device can share it, and is its volume's only one"
        );
    }
    device
}

/// Whether the kernel refuses every write to a block device: one that may open any device opens it for writing nevertheless.
fn is_read_only_disk(found: &Metadata) -> bool {
    let (major, minor) = (libc::major(found.rdev()), libc::minor(found.rdev()));
    let answer = || std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/ro"));
    found.file_type().is_block_device() && answer().is_ok_and(|answer| answer.trim() == "1")
}

/// Notes that another process uses an inspected image.
fn in_use_note(path: &Path, file: &OpenFile) -> Option<String> {
    let shown = path.display();
    file.in_use().then(|| format!("{shown} is in use by another process; unless that is the server to reload, a start is refused"))
}

/// Explains a missing file whose name looks like keys without a type.
fn meant(spec: &Spec, error: ConfigError) -> ConfigError {
    match (&spec.base, spec.meant()) {
        (BaseDevice::File { path, .. }, Some(meant)) if !path.exists() => {
            let message = format!("{} does not exist; with keys it is {meant}", path.display());
            ConfigError::new("path", message).caused_by(Some(libc::ENOENT))
        }
        _ => error,
    }
}

/// Whether there is no file of this name, not even a link to nowhere.
fn is_missing(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound)
}

/// Makes an overlay that is not there; returns a note and what was made.
fn make_overlay(
    path: &Path,
    options: &OverlayOptions,
    new: &NewDisk,
) -> Result<(String, Identity), ConfigError> {
    let overlay = new.prepare(path, options)?;
    let base = overlay.create(path)?;
    let (shown, size) = (path.display(), display_size(overlay.size()));
    let identity = Identity::of(path).map_err(|error| {
        ConfigError::new("path", format!("{shown}: {error}")).caused_by(error.raw_os_error())
    })?;
    Ok((format!("created {shown}, an overlay of {size} on {}", base.display()), identity))
}

/// Removes a file that was made, unless it was replaced meanwhile.
fn remove_made(path: &Path, identity: Identity) {
    if Identity::of(path).is_ok_and(|there| there == identity) {
        // If this fails, an empty image remains.
        let _ = std::fs::remove_file(path);
    }
}

/// Notes that an image is larger than the size that it would be created with.
fn larger(shown: &impl Display, wanted: Option<u64>, size: u64) -> Option<String> {
    let wanted = wanted.filter(|wanted| *wanted < size)?;
    let (size, wanted) = (display_size(size), display_size(wanted));
    Some(format!("{shown} has {size} and is served as it is; size={wanted} is for a new image"))
}

fn wrapped(spec: &Spec, what: &str) -> String {
    let names: Vec<&str> = spec.wrappers.iter().map(Wrapper::name).collect();
    match names.as_slice() {
        [] => what.to_owned(),
        [one] => format!("{what} behind a wrapper ({one})"),
        all => format!("{what} behind {} wrappers ({})", all.len(), all.join(", ")),
    }
}
