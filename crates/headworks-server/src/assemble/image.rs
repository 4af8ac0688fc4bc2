//! One export's image, opened, before it has a place: at the start and when an export is added later.
//!
//! A file that is served already is not opened again: its exports share the volume, and whoever says how that is cached must say
//! the same.

use std::path::PathBuf;

use headworks_core::{ConfigError, ErrorPolicy, QueueOptions, VolumeId, VolumeOptions, WriteMode};

use super::export_spec::{ExportSpec, NamedDevice, no_size};
use super::watched_file::WatchedFile;
use crate::spec::{BaseDevice, ExportOptions, Spec};
use headworks::{
    Device, Direct, FileDevice, FileMode, FileOptions, Identity, MemDevice, NullDevice, OpenFile,
    SizeWatch, display_size,
};

/// How a volume is cached, as far as its exports say.
#[derive(Clone, Copy, Debug, Default)]
pub struct VolumeCaching {
    /// When writes are acknowledged.
    pub mode: Option<WriteMode>,
    /// What becomes of what could not be written.
    pub on_error: Option<ErrorPolicy>,
}

/// How what is served is cached if nobody says: what lies in memory anyway, not at all.
fn usual_mode(spec: &Spec) -> WriteMode {
    match spec.base {
        BaseDevice::Null { .. } | BaseDevice::Mem { .. } if spec.wrappers.is_empty() => {
            WriteMode::None
        }
        _ => WriteMode::Writeback,
    }
}

/// What two exports of an image want together, if they do not differ.
fn agree<T: Copy + PartialEq>(one: Option<T>, other: Option<T>) -> Result<Option<T>, ()> {
    match (one, other) {
        (Some(one), Some(other)) if one != other => Err(()),
        _ => Ok(one.or(other)),
    }
}

impl ExportSpec {
    /// How it says that its volume is cached.
    pub(crate) fn caching(&self) -> VolumeCaching {
        VolumeCaching { mode: self.share.mode, on_error: self.share.on_error }
    }
}

impl VolumeCaching {
    /// What is known when `export` has had its say, too.
    pub fn agree(self, export: &ExportSpec) -> Result<Self, ConfigError> {
        let ExportOptions { mode, on_error, .. } = export.share;
        let differs = |key| {
            let name = &export.name;
            let message = format!("export `{name}` differs from another export of the same image");
            move |()| ConfigError::new(key, message)
        };
        Ok(Self {
            mode: agree(self.mode, mode).map_err(differs("cache"))?,
            on_error: agree(self.on_error, on_error).map_err(differs("on-error"))?,
        })
    }

    /// A volume gets what was said, or what is usual.
    pub fn apply(self, spec: &Spec, options: &mut VolumeOptions) {
        options.mode = self.mode.unwrap_or_else(|| usual_mode(spec));
        options.on_error = self.on_error.unwrap_or_default();
    }
}

/// Where a volume comes from, as far as later exports and sizes need it.
#[derive(Clone, Debug)]
pub struct VolumeOrigin {
    /// Which file it is.
    pub identity: Option<Identity>,
    /// For people.
    pub what: String,
    /// What it was opened as.
    pub spec: Spec,
    /// What its exports said.
    pub caching: VolumeCaching,
    /// A handle to look at its file, and to make it longer.
    pub watch: Option<SizeWatch>,
}

impl VolumeOrigin {
    /// Whether `export` is of this, now `size` bytes long, as it was opened: one image is not delayed for some of its exports.
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
        let (BaseDevice::File { options, .. }, BaseDevice::File { options: opened, .. }) =
            (&export.spec.base, &self.spec.base)
        else {
            return Ok(());
        };
        if options.direct != Direct::default() && options.direct != opened.direct {
            return differs("direct", "");
        }
        match options.size {
            Some(wanted) if wanted != size && options.size != opened.size => {
                differs("size", &format!(", which has {size} bytes, not {wanted}"))
            }
            _ => Ok(()),
        }
    }
}

/// Why images share a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SharedDeviceKey {
    /// They are on one filesystem, and name no device.
    Filesystem(u64),
    /// They name it.
    Name(String),
}

impl SharedDeviceKey {
    /// Of an image on a filesystem.
    pub(super) fn of(filesystem: u64, device: Option<&NamedDevice>) -> Self {
        device.map_or(Self::Filesystem(filesystem), |device| Self::Name(device.name.clone()))
    }
}

/// An image that was not there before.
pub struct CreatedImage {
    path: PathBuf,
    identity: Identity,
    /// While it is open nothing else has its identity.
    _open: SizeWatch,
}

impl CreatedImage {
    /// What it was made for does not come to be: it goes again, unless somebody has put something else in its place.
    pub fn undo(self) {
        if Identity::of(&self.path).is_ok_and(|there| there == self.identity) {
            // What remains if this fails is an empty image.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// What is behind an export, open.
pub struct OpenedImage {
    body: ImageBody,
    queue: QueueOptions,
    /// Its size and smallest block; how it is cached is for its exports to say.
    pub options: VolumeOptions,
    what: String,
    /// What a user should know.
    pub notes: Vec<String>,
    alone: bool,
}

enum ImageBody {
    File(Box<OpenFile>),
    Fake(Box<dyn Device>),
}

impl OpenedImage {
    /// Opens what `spec` names, for writing or not.
    ///
    /// # Errors
    /// Why it cannot be served, in one sentence.
    pub fn new(spec: &Spec, write: bool) -> Result<Self, ConfigError> {
        let fake = |size, queue, device: Box<dyn Device>, what: &str| Self {
            body: ImageBody::Fake(device),
            queue,
            options: VolumeOptions { size, block_size: 1, ..VolumeOptions::default() },
            what: wrapped(spec, what),
            notes: Vec::new(),
            alone: true,
        };
        let opened = match &spec.base {
            BaseDevice::File { path, options } => {
                let options = FileOptions { read_only: !write, ..*options };
                let file = OpenFile::open(path, &options).map_err(|error| meant(spec, error))?;
                let (shown, mut notes) = (path.display(), Vec::new());
                if !file.locked() {
                    notes.push(format!("{shown} is not locked: its filesystem has no locks"));
                }
                if file.created() {
                    let size = display_size(file.volume_options().size);
                    notes.push(format!("created {shown}, sparse, {size}"));
                }
                Self {
                    queue: file.queue_options(),
                    options: file.volume_options(),
                    what: wrapped(spec, &format!("{shown} ({})", reach(file.mode()))),
                    body: ImageBody::File(Box::new(file)),
                    notes,
                    alone: !spec.wrappers.is_empty(),
                }
            }
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
        Ok(opened)
    }

    /// The image, if it was made by this.
    pub fn made(&self, spec: &Spec) -> Option<CreatedImage> {
        let (ImageBody::File(file), BaseDevice::File { path, .. }) = (&self.body, &spec.base)
        else {
            return None;
        };
        let (path, identity, _open) = (path.clone(), file.identity(), file.size_watch());
        file.created().then_some(CreatedImage { path, identity, _open })
    }

    /// What is remembered of it.
    pub fn origin(&self, spec: &Spec) -> VolumeOrigin {
        let file = match &self.body {
            ImageBody::File(file) => Some(file),
            ImageBody::Fake(_) => None,
        };
        VolumeOrigin {
            identity: file.map(|file| file.identity()),
            what: self.what.clone(),
            spec: spec.clone(),
            caching: VolumeCaching::default(),
            watch: file.map(|file| file.size_watch()),
        }
    }

    /// The file to look at while it is served.
    pub fn watched(&self, volume: VolumeId) -> Option<WatchedFile> {
        let ImageBody::File(file) = &self.body else { return None };
        let VolumeOptions { size, block_size, .. } = self.options;
        Some(WatchedFile::new(volume, file.size_watch(), size, block_size.into()))
    }

    /// Whose device it may join; none for what is served by a device of its own.
    pub fn common(&self, export: &ExportSpec) -> Option<SharedDeviceKey> {
        match &self.body {
            ImageBody::File(file) if !self.alone => {
                Some(SharedDeviceKey::of(file.identity().filesystem, export.device.as_ref()))
            }
            _ => None,
        }
    }

    /// Whether a queue that works with `queue` does nothing that this could not.
    pub fn fits(&self, queue: &QueueOptions) -> bool {
        let own = &self.queue;
        let can = |has: bool, used: bool| has || !used;
        // Who only reads needs none of what writers do.
        let writes = self.options.read_only
            || can(own.discard, queue.discard)
                && can(own.write_zeroes, queue.write_zeroes)
                && own.write_cache == queue.write_cache
                && can(own.fua, queue.fua)
                && own.discard_granularity <= queue.discard_granularity
                && own.discard_max_bytes >= queue.discard_max_bytes;
        writes && self.options.block_size <= queue.max_bytes()
    }

    /// What the queue of a device of its own works with.
    pub fn device_options(&self, spec: &Spec) -> QueueOptions {
        spec.wrap_queue_options(self.queue)
    }

    /// The file itself, if it may join others.
    pub fn joins(self) -> Result<(u64, OpenFile), Box<Self>> {
        match self.body {
            ImageBody::File(file) if !self.alone => Ok((file.identity().filesystem, *file)),
            body => Err(Box::new(Self { body, ..self })),
        }
    }

    /// A device of its own.
    pub fn into_device(self, spec: &Spec, volume: VolumeId) -> (QueueOptions, Box<dyn Device>) {
        let body: Box<dyn Device> = match self.body {
            ImageBody::File(file) => Box::new(FileDevice::new(vec![(volume, *file)])),
            ImageBody::Fake(body) => body,
        };
        (spec.wrap_queue_options(self.queue), spec.wrap(body))
    }
}

/// Who forgot the type before the keys has named a file that is seldom there.
fn meant(spec: &Spec, error: ConfigError) -> ConfigError {
    match (&spec.base, spec.meant()) {
        (BaseDevice::File { path, .. }, Some(meant)) if !path.exists() => {
            let message = format!("{} does not exist; with keys it is {meant}", path.display());
            ConfigError::new("path", message)
        }
        _ => error,
    }
}

fn reach(mode: FileMode) -> &'static str {
    match mode {
        FileMode::Direct => "direct I/O",
        FileMode::Buffered => "through the kernel's page cache",
        FileMode::Inline => "in the kernel's page cache",
    }
}

fn wrapped(spec: &Spec, what: &str) -> String {
    match spec.wrappers.len() {
        0 => what.to_owned(),
        1 => format!("{what} behind a wrapper"),
        n => format!("{what} behind {n} wrappers"),
    }
}
