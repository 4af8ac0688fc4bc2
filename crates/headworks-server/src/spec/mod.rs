//! Specifications of devices: a path, or `type:key=value,key=value`.
//!
//! ```text
//!   disk.img                                              a path is a file
//!   file:path=disk.img,size=1G,direct=auto,read-only=on   size creates it if it does not exist
//!   overlay:path=tenant.hwo,backing=allow                 its head names the base; base= and size= make a new one
//!   null:size=1T          mem:size=64M
//!   qcow2:path=base.qcow2,backing=beside                  an image of a format, read-only (also vmdk)
//!   nbd:uri=nbd://host/export,reconnect=30s               an export of another NBD server
//!   rbd:image=pool/image,conf=ceph.conf                   an image of a Ceph cluster
//!   delay:read=5ms,all=1ms,of=disk.img                    wrappers end with of=, which takes the whole rest
//!   error:rate=1%,errno=EIO,op=write,of=delay:read=5ms,of=mem:size=64M
//!   powercut:seed=7,at-flush=3,of=disk.img
//!   model:profile=hdd-7200,of=disk.img                    the time of a real disk
//! ```
//!
//! Keys of the export (`weight`, `ioprio`, `cache`, `on-error`, `on-unclean`, limits) stand among those of the outermost type
//! (see `export_options`). A comma in a value is doubled. A path with a colon may need `./` before it. Errors name the key and list what
//! would be right.

pub(crate) mod cache_part;
pub(crate) mod did_you_mean;
mod export_options;
mod image;
mod keys;
pub(crate) mod latency_target;
mod layers;
pub(crate) mod limit_words;
pub(crate) mod log_level;
mod model;
pub(crate) mod name_pattern;
mod nbd;
pub(crate) mod option_table;
mod overlay;
mod powercut;
mod rbd;
mod remote_base;
pub(crate) mod tenant;
pub(crate) mod units;

use std::ops::Range;
use std::path::{Path, PathBuf};

use headworks_core::{ConfigError, IoError, Op, QueueOptions};

pub(crate) use self::export_options::ExportOption;
pub use self::export_options::{ExportOptions, UncleanPolicy};
use self::keys::{Keys, is_of_export, list};
pub use self::layers::Layer;
pub(crate) use self::model::ModelLink;
pub use self::model::{DiskDescription, Model};
pub use self::nbd::Remote;
pub(crate) use self::nbd::RemoteLink;
pub use self::overlay::NewDisk;
pub use self::powercut::Powercut;
pub use self::rbd::Rbd;
pub(crate) use self::remote_base::base_device;
pub use self::remote_base::{BASES, is_remote_base};
use crate::spec::units::{parse_probability, parse_size, parse_switch, parse_time};
use headworks::{Device, Direct, FileOptions, FilterDevice};
use headworks_images::formats::{ImageFormat, ImageOptions};
use headworks_images::{
    DelayDevice, DelayOptions, ErrorFilter, ErrorOptions, OverlayOptions, PowercutDevice,
};

/// Most wrappers of a device; each one adds a call.
const WRAPPERS_MAX: usize = 8;

/// A device as a user describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Wrappers from the outside in.
    pub wrappers: Vec<Wrapper>,
    /// The innermost device, which holds the data.
    pub base: BaseDevice,
}

/// The device that holds the data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BaseDevice {
    /// An image file or a block device.
    File {
        /// Path of the image.
        path: PathBuf,
        /// Options for opening it.
        options: FileOptions,
        /// Whether its bytes are meant even if they begin like an image of another format.
        raw: bool,
    },
    /// An image of a format, read-only.
    Image {
        /// Path of the image.
        path: PathBuf,
        /// Its format, and options for opening it.
        options: ImageOptions,
    },
    /// A file with the blocks that differ from a base.
    Overlay {
        /// Path of the overlay.
        path: PathBuf,
        /// Options for opening it.
        options: OverlayOptions,
        /// What it is made as if it is not there.
        new: Option<NewDisk>,
    },
    /// An export of another NBD server.
    Nbd(Box<Remote>),
    /// An image of a Ceph cluster.
    Rbd(Box<Rbd>),
    /// A device without data: reads return zeros.
    Null {
        /// Size in bytes, if it was given.
        size: Option<u64>,
    },
    /// A device in memory.
    Mem {
        /// Size in bytes, if it was given.
        size: Option<u64>,
    },
}

/// A device around another device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wrapper {
    /// Delays operations of the inner device.
    Delay(DelayOptions),
    /// Fails operations of the inner device.
    Error(ErrorOptions),
    /// A disk with a volatile cache, whose power is cut.
    Powercut(Powercut),
    /// A disk that takes the time of a real one.
    Model(Box<Model>),
}

impl BaseDevice {
    /// Path of its file or image; none of a device without one.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::File { path, .. } | Self::Image { path, .. } | Self::Overlay { path, .. } => {
                Some(path)
            }
            Self::Nbd(_) | Self::Rbd(_) | Self::Null { .. } | Self::Mem { .. } => None,
        }
    }

    /// Whether its data are there after the server's end, so that two exports may have the same.
    #[must_use]
    pub fn is_lasting(&self) -> bool {
        self.path().is_some() || matches!(self, Self::Nbd(_) | Self::Rbd(_))
    }

    /// Makes a relative path start at `folder`.
    pub(crate) fn set_folder(&mut self, folder: &Path) {
        if let Self::File { path, .. } | Self::Image { path, .. } | Self::Overlay { path, .. } =
            self
        {
            *path = folder.join(path.as_path());
        }
        if let Self::Overlay { new: Some(NewDisk { base, .. }), .. } = self
            && !is_remote_base(base)
        {
            *base = folder.join(base.as_path());
        } else if let Self::Rbd(rbd) = self {
            rbd.set_folder(folder);
        }
    }

    /// Whether it is opened for reading alone, whatever its exports are.
    pub(crate) fn is_read_only(&self) -> bool {
        match self {
            Self::File { options, .. } => options.read_only,
            Self::Image { .. } => true,
            Self::Overlay { options, .. } => options.read_only,
            Self::Nbd(remote) => remote.read_only,
            Self::Rbd(rbd) => rbd.is_read_only(),
            Self::Null { .. } | Self::Mem { .. } => false,
        }
    }
}

impl Wrapper {
    /// Its type, as specifications name it.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Delay(_) => "delay",
            Self::Error(_) => "error",
            Self::Powercut(_) => "powercut",
            Self::Model(_) => "model",
        }
    }

    /// An example of it.
    fn example(&self) -> &'static str {
        match self {
            Self::Delay(_) => "delay:read=5ms,of=disk.img",
            Self::Error(_) => "error:rate=1%,of=disk.img",
            Self::Powercut(_) => "powercut:seed=7,at-flush=3,of=disk.img",
            Self::Model(_) => "model:profile=hdd-7200,of=disk.img",
        }
    }

    /// Whether acknowledged writes may be in its memory alone.
    pub(crate) fn holds_writes(&self) -> bool {
        matches!(self, Self::Powercut(_))
    }
}

impl Spec {
    /// Size that an image is created with; none for other devices.
    pub(crate) fn size_of_new_image(&self) -> Option<u64> {
        match &self.base {
            BaseDevice::File { options, .. } => options.size,
            BaseDevice::Image { .. }
            | BaseDevice::Nbd(_)
            | BaseDevice::Overlay { .. }
            | BaseDevice::Rbd(_)
            | BaseDevice::Null { .. }
            | BaseDevice::Mem { .. } => None,
        }
    }

    /// Size of a device that is no image, and so keeps no size beyond the process; none of images.
    pub(crate) fn size_without_image(&self) -> Option<u64> {
        match self.base {
            BaseDevice::Null { size } | BaseDevice::Mem { size } => size,
            _ => None,
        }
    }

    /// Whether both describe one device; what a new image is made as and `format=raw` do not matter.
    pub(crate) fn is_same_device(&self, other: &Self) -> bool {
        let sizeless = |spec: &Self| {
            let mut spec = spec.clone();
            if let BaseDevice::File { options, raw, .. } = &mut spec.base {
                (options.size, *raw) = (None, false);
            }
            if let BaseDevice::Overlay { new, .. } = &mut spec.base {
                *new = None;
            }
            spec
        };
        sizeless(self) == sizeless(other)
    }

    /// Parses the specification of an export: its device and its options.
    ///
    /// # Errors
    /// The first mistake, with what would be right.
    pub fn parse_export(text: &str) -> Result<(Self, ExportOptions), ConfigError> {
        let (share, rest) = ExportOptions::take(text)?;
        Ok((Self::parse(&rest)?, share))
    }

    /// Parses the specification of a device.
    ///
    /// # Errors
    /// The first mistake, with what would be right.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        Self::of_layers(&Self::layers(text)?)
    }

    /// Makes the specification of layers, from the outside in.
    ///
    /// # Errors
    /// The first mistake, with what would be right.
    pub fn of_layers(layers: &[Layer]) -> Result<Self, ConfigError> {
        let mut wrappers = Vec::new();
        for layer in layers {
            let wrapper = match layer.read()? {
                Part::Base(base) => return Ok(Self { base, wrappers }),
                Part::Wrapper(wrapper) => wrapper,
            };
            if wrappers.len() == WRAPPERS_MAX {
                let message = format!("more than {WRAPPERS_MAX} wrappers around one device");
                return Err(ConfigError::new("of", message));
            }
            wrappers.push(wrapper);
        }
        let example = wrappers.last().map_or("file:path=disk.img", Wrapper::example);
        let message = format!("a wrapper needs a device as its last key: {example}");
        Err(ConfigError::new("of", message))
    }

    /// Default name of an export: file name of the image, else the type.
    #[must_use]
    pub fn short_name(&self) -> String {
        match &self.base {
            BaseDevice::File { path, .. }
            | BaseDevice::Image { path, .. }
            | BaseDevice::Overlay { path, .. } => {
                path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
            }
            BaseDevice::Nbd(remote) => remote.short_name(),
            BaseDevice::Rbd(rbd) => rbd.name.image.clone(),
            BaseDevice::Null { .. } => "null".to_owned(),
            BaseDevice::Mem { .. } => "mem".to_owned(),
        }
    }

    /// How a path that looks as if it had keys is written: `disk.img,weight=2` is the name of a file.
    #[must_use]
    pub fn meant(&self) -> Option<String> {
        let BaseDevice::File { path, .. } = &self.base else { return None };
        if let Some(meant) = path.to_str().and_then(type_behind_keys) {
            return Some(meant);
        }
        let (stem, keys) = path.file_name()?.to_str()?.split_once(',')?;
        let (key, _) = keys.split_once('=')?;
        // A wrapper would take the export's keys.
        let of_export = self.wrappers.is_empty() && is_of_export(key);
        if let Some((kind, name)) = KINDS.iter().find(|(_, name)| *name == stem)
            && (of_export || kind.keys().contains(&key))
        {
            return Some(format!("{name}:{keys}"));
        }
        let known = of_export || FILE_KEYS.contains(&key);
        known.then(|| format!("file:path={}", path.display()))
    }

    /// The size that the user gave.
    #[must_use]
    pub fn size(&self) -> Option<u64> {
        match &self.base {
            BaseDevice::File { options, .. } => options.size,
            BaseDevice::Image { .. } | BaseDevice::Overlay { .. } | BaseDevice::Rbd(_) => None,
            BaseDevice::Null { size } | BaseDevice::Mem { size } => *size,
            BaseDevice::Nbd(_) => None,
        }
    }

    /// Sets the size if the user gave none, as `--size` does.
    pub fn set_default_size(&mut self, default: u64) {
        let size = match &mut self.base {
            BaseDevice::File { options, .. } => &mut options.size,
            // They know their size.
            BaseDevice::Image { .. } | BaseDevice::Overlay { .. } | BaseDevice::Rbd(_) => return,
            BaseDevice::Null { size } | BaseDevice::Mem { size } => size,
            BaseDevice::Nbd(_) => return,
        };
        size.get_or_insert(default);
    }

    /// What others are to know of the outermost modelled disk, once the device is wrapped with it.
    pub(crate) fn model_link(&self) -> Option<ModelLink> {
        self.wrappers.iter().find_map(|wrapper| match wrapper {
            Wrapper::Model(model) => Some(model.link()),
            _ => None,
        })
    }

    /// Wraps the innermost device, whose smallest block is `block` bytes; the outermost modelled disk counts its times in `link`.
    #[must_use]
    pub(crate) fn wrap(
        &self,
        block: u32,
        base: Box<dyn Device>,
        link: Option<&ModelLink>,
    ) -> Box<dyn Device> {
        let is_model = |wrapper: &Wrapper| matches!(wrapper, Wrapper::Model(_));
        let outermost = self.wrappers.iter().position(is_model);
        let inside_out = self.wrappers.iter().enumerate().rev();
        inside_out.fold(base, |below, (index, wrapper)| match wrapper {
            Wrapper::Delay(options) => Box::new(DelayDevice::new(*options, below)),
            Wrapper::Error(options) => {
                Box::new(FilterDevice::new(ErrorFilter::new(options.clone()), below))
            }
            Wrapper::Powercut(powercut) => Box::new(powercut.device(block, below)),
            Wrapper::Model(model) => {
                let link = link.filter(|_| Some(index) == outermost);
                Box::new(model.device(below, link))
            }
        })
    }

    /// Queue options of the wrapped device: every operation must reach a wrapper that delays or fails it.
    #[must_use]
    pub fn wrap_queue_options(&self, base: QueueOptions) -> QueueOptions {
        let inside_out = self.wrappers.iter().rev();
        inside_out.fold(base, |below, wrapper| match wrapper {
            Wrapper::Delay(_) | Wrapper::Error(_) => QueueOptions { write_cache: true, ..below },
            Wrapper::Powercut(_) => PowercutDevice::queue_options(below),
            Wrapper::Model(model) => model.queue_options(below),
        })
    }
}

/// What a layer is read as.
pub(crate) enum Part {
    /// The device that holds the data.
    Base(BaseDevice),
    /// A device around the next one.
    Wrapper(Wrapper),
}

impl Layer {
    /// Reads the values of its keys.
    ///
    /// # Errors
    /// The first mistake, with what would be right.
    pub(crate) fn read(&self) -> Result<Part, ConfigError> {
        let keys = Keys(&self.words);
        let base = match self.typed()? {
            Kind::Delay => return parse_delay(keys).map(Part::Wrapper),
            Kind::Error => return parse_error(keys).map(Part::Wrapper),
            Kind::Powercut => return Powercut::parse(keys).map(Part::Wrapper),
            Kind::Model => return Model::parse(keys).map(Part::Wrapper),
            Kind::File => parse_file(keys),
            Kind::Overlay => overlay::parse(keys),
            Kind::Nbd => Remote::parse(keys),
            Kind::Null => keys.parse("size", parse_size).map(|size| BaseDevice::Null { size }),
            Kind::Mem => keys.parse("size", parse_size).map(|size| BaseDevice::Mem { size }),
            Kind::Qcow2 => image::parse(ImageFormat::Qcow2, keys),
            Kind::Vmdk => image::parse(ImageFormat::Vmdk, keys),
            Kind::Rbd => Rbd::parse(keys),
        };
        base.map(Part::Base)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    File,
    Nbd,
    Null,
    Mem,
    Delay,
    Error,
    Powercut,
    Overlay,
    Qcow2,
    Vmdk,
    Rbd,
    Model,
}

const KINDS: [(Kind, &str); 12] = [
    (Kind::File, "file"),
    (Kind::Nbd, "nbd"),
    (Kind::Null, "null"),
    (Kind::Mem, "mem"),
    (Kind::Delay, "delay"),
    (Kind::Error, "error"),
    (Kind::Powercut, "powercut"),
    (Kind::Overlay, "overlay"),
    (Kind::Qcow2, "qcow2"),
    (Kind::Vmdk, "vmdk"),
    (Kind::Rbd, "rbd"),
    (Kind::Model, "model"),
];

const FILE_KEYS: [&str; 5] = ["path", "size", "direct", "read-only", "format"];
const SIZED_KEYS: [&str; 1] = ["size"];
const DELAY_KEYS: [&str; 10] = [
    "read",
    "write",
    "flush",
    "discard",
    "write_zeroes",
    "block_status",
    "all",
    "jitter",
    "seed",
    "of",
];
const ERROR_KEYS: [&str; 8] = ["rate", "errno", "op", "range", "after", "count", "seed", "of"];

impl Kind {
    fn keys(self) -> &'static [&'static str] {
        match self {
            Self::File => &FILE_KEYS,
            Self::Nbd => &nbd::KEYS,
            Self::Null | Self::Mem => &SIZED_KEYS,
            Self::Delay => &DELAY_KEYS,
            Self::Error => &ERROR_KEYS,
            Self::Powercut => &powercut::KEYS,
            Self::Model => &model::KEYS,
            Self::Overlay => &overlay::KEYS,
            Self::Qcow2 | Self::Vmdk => &image::KEYS,
            Self::Rbd => &rbd::KEYS,
        }
    }
}

impl Kind {
    /// Refuses keys in a form that users expect and that is written otherwise.
    fn check_form(self, keys: &str) -> Result<(), ConfigError> {
        match self {
            Self::Nbd => Remote::check_form(keys),
            Self::Rbd => Rbd::check_form(keys),
            Self::Model => Model::check_form(keys),
            _ => Ok(()),
        }
    }
}

/// How keys of an export before a type are written: `cache=none,error:rate=1%,of=a.img` becomes `error:cache=none,rate=1%,of=a.img`.
fn type_behind_keys(text: &str) -> Option<String> {
    let (kind, keys) = text.split_once(':')?;
    let (before, kind) = kind.rsplit_once(',')?;
    let is_key = |word: &str| word.split_once('=').is_some_and(|(key, _)| is_of_export(key));
    let is_type = KINDS.iter().any(|(_, name)| *name == kind);
    (is_type && before.split(',').all(is_key)).then(|| format!("{kind}:{before},{keys}"))
}

/// Splits a type from its keys; `None` for a path.
fn split_type(text: &str) -> Result<Option<(Kind, &str)>, ConfigError> {
    let Some((word, keys)) = text.split_once(':') else {
        return Ok(None);
    };
    if let Some((kind, _)) = KINDS.iter().find(|(_, name)| *name == word) {
        return Ok(Some((*kind, keys)));
    }
    let like_a_type = word.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    if !like_a_type || word.is_empty() {
        return Ok(None);
    }
    Err(no_type(word))
}

/// The error for a word that is no type of a device.
fn no_type(word: &str) -> ConfigError {
    let message = format!(
        "`{word}:` is no device type; {} are, and a path with a colon starts with ./ or /",
        list(&KINDS.map(|(_, name)| name))
    );
    ConfigError::new("device", message)
}

fn parse_file(keys: Keys<'_>) -> Result<BaseDevice, ConfigError> {
    let path = PathBuf::from(keys.get("path").unwrap_or_default());
    let options = FileOptions {
        size: keys.parse("size", parse_size)?,
        direct: keys.parse("direct", parse_direct)?.unwrap_or_default(),
        read_only: keys.parse("read-only", parse_switch)?.unwrap_or(false),
    };
    let raw = keys.parse("format", image::parse_raw)?.unwrap_or(false);
    if path.as_os_str().is_empty() {
        return Err(ConfigError::new("path", "a file needs one: file:path=disk.img"));
    }
    Ok(BaseDevice::File { path, options, raw })
}

fn parse_direct(word: &str) -> Result<Direct, String> {
    if word == "auto" {
        return Ok(Direct::Auto);
    }
    match parse_switch(word) {
        Ok(true) => Ok(Direct::On),
        Ok(false) => Ok(Direct::Off),
        Err(_) => Err(format!("`{word}` is none of auto, on and off")),
    }
}

fn parse_delay(keys: Keys<'_>) -> Result<Wrapper, ConfigError> {
    let all = keys.parse("all", parse_time)?.unwrap_or(0);
    let mut wait_ns = [all; Op::COUNT];
    for op in Op::ALL {
        if let Some(wait) = keys.parse(op.name(), parse_time)? {
            wait_ns[op as usize] = wait;
        }
    }
    let options = DelayOptions {
        wait_ns,
        jitter_ns: keys.parse("jitter", parse_time)?.unwrap_or(0),
        seed: keys.parse("seed", parse_count)?.unwrap_or(1),
    };
    Ok(Wrapper::Delay(options))
}

fn parse_error(keys: Keys<'_>) -> Result<Wrapper, ConfigError> {
    let defaults = ErrorOptions::default();
    let options = ErrorOptions {
        rate: keys.parse("rate", parse_probability)?.unwrap_or(defaults.rate),
        error: keys.parse("errno", parse_errno)?.unwrap_or(defaults.error),
        op: keys.parse("op", parse_op)?.unwrap_or(defaults.op),
        range: keys.parse("range", parse_range)?,
        after: keys.parse("after", parse_count)?.unwrap_or(defaults.after),
        count: keys.parse("count", parse_count)?.unwrap_or(defaults.count),
        seed: keys.parse("seed", parse_count)?.unwrap_or(defaults.seed),
    };
    Ok(Wrapper::Error(options))
}

fn parse_count(word: &str) -> Result<u64, String> {
    let digits = word.bytes().all(|byte| byte.is_ascii_digit());
    let number = digits.then(|| word.parse().ok()).flatten();
    number.ok_or_else(|| format!("`{word}` is not a whole number"))
}

fn parse_op(word: &str) -> Result<Option<Op>, String> {
    if word == "all" {
        return Ok(None);
    }
    let op = Op::ALL.into_iter().find(|op| op.name() == word);
    op.map(Some)
        .ok_or_else(|| format!("`{word}` is none of {} and all", list(&Op::ALL.map(Op::name))))
}

/// Errors by the names that users know.
const ERRNOS: [(&str, IoError); 11] = [
    ("EIO", IoError::Medium),
    ("ENOSPC", IoError::NoSpace),
    ("EAGAIN", IoError::Busy),
    ("ENOTSUP", IoError::Unsupported),
    ("EOPNOTSUPP", IoError::Unsupported),
    ("ENOMEM", IoError::NoMemory),
    ("ETIMEDOUT", IoError::TimedOut),
    ("EINVAL", IoError::Invalid),
    ("EPERM", IoError::ReadOnly),
    ("EROFS", IoError::ReadOnly),
    ("ESHUTDOWN", IoError::ShutDown),
];

fn parse_errno(word: &str) -> Result<IoError, String> {
    let known = ERRNOS.iter().find(|(name, _)| name.eq_ignore_ascii_case(word));
    known
        .map(|&(_, error)| error)
        .ok_or_else(|| format!("`{word}` is none of {}", list(&ERRNOS.map(|(name, _)| name))))
}

fn parse_range(word: &str) -> Result<Range<u64>, String> {
    let Some((start, end)) = word.split_once('-') else {
        return Err(format!("`{word}` is not a range; 1M-2M is, without its last byte"));
    };
    let range = parse_size(start)?..parse_size(end)?;
    match range.is_empty() {
        true => Err(format!("`{word}` is an empty range")),
        false => Ok(range),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks::NullDevice;
    use headworks_core::BioFlags;
    use headworks_testing::Bench;

    fn error(text: &str) -> String {
        Spec::parse(text).unwrap_err().to_string()
    }

    fn file_spec(path: &str, options: FileOptions) -> Spec {
        Spec {
            wrappers: Vec::new(),
            base: BaseDevice::File { path: path.into(), options, raw: false },
        }
    }

    #[test]
    fn path_is_a_file_specification() {
        for (text, path) in [
            ("disk.img", "disk.img"),
            ("/a/b:c=d,e", "/a/b:c=d,e"),
            ("./mem:x", "./mem:x"),
            ("null", "null"),
            ("file:path=disk.img", "disk.img"),
            ("file:path=a,,b.img", "a,b.img"),
            ("file:path=a=b.img", "a=b.img"),
        ] {
            assert_eq!(Spec::parse(text), Ok(file_spec(path, FileOptions::default())), "{text}");
        }
        let options = FileOptions { read_only: true, size: Some(1 << 30), direct: Direct::Off };
        let text = "file:size=1G,read-only=on,direct=off,path=x,,";
        assert_eq!(Spec::parse(text), Ok(file_spec("x,", options)));
    }

    #[test]
    fn path_with_keys_differs_from_path_with_comma() {
        for (text, meant) in [
            ("/a/disk.img,weight=2", Some("file:path=/a/disk.img,weight=2")),
            ("disk.img,size=1G,cache=none", Some("file:path=disk.img,size=1G,cache=none")),
            ("mem,size=1G", Some("mem:size=1G")),
            ("cache=none,error:rate=3%,of=a.img", Some("error:cache=none,rate=3%,of=a.img")),
            ("weight=2,a:b", None),
            ("./delay,read=5ms,of=disk.img", Some("delay:read=5ms,of=disk.img")),
            ("delay:read=5ms,of=disk.img,size=1G", Some("file:path=disk.img,size=1G")),
            ("delay:read=5ms,of=disk.img,weight=2", None),
            ("disk.img", None),
            ("a,b.img", None),
            ("a,b=c.img", None),
            ("/a,weight=2/disk.img", None),
            ("mem:size=1G", None),
        ] {
            assert_eq!(Spec::parse(text).unwrap().meant().as_deref(), meant, "{text}");
        }
    }

    #[test]
    fn wrappers_nest_and_of_takes_the_rest() {
        let text = "error:rate=1%,errno=enospc,op=write,range=1M-2M,after=3,count=4,seed=5,\
                    of=delay:all=1ms,read=5ms,jitter=2us,of=mem:size=64M";
        let spec = Spec::parse(text).unwrap();
        let ms = 1_000_000;
        let expected = [
            Wrapper::Error(ErrorOptions {
                rate: parse_probability("1:100").unwrap(),
                error: IoError::NoSpace,
                op: Some(Op::Write),
                range: Some(1 << 20..2 << 20),
                after: 3,
                count: 4,
                seed: 5,
            }),
            Wrapper::Delay(DelayOptions {
                wait_ns: [5 * ms, ms, ms, ms, ms, ms, ms],
                jitter_ns: 2000,
                seed: 1,
            }),
        ];
        assert_eq!(spec.wrappers, expected);
        assert_eq!(spec.base, BaseDevice::Mem { size: Some(64 << 20) });
        let path = Spec::parse("delay:read=1,of=/a,b=c").unwrap().base;
        assert_eq!(path, file_spec("/a,b=c", FileOptions::default()).base);
    }

    #[test]
    fn errors_name_the_key_and_what_would_be_right() {
        for (text, words) in [
            ("nul:size=1", &["nul:", "file, nbd, null, mem, delay, error", "./"] as &[_]),
            ("nbd://host", &["nbd:uri=nbd://host"] as &[_]),
            ("file:path=x,sise=1G", &["file: has no key `sise`", "path, size, direct, read-only"]),
            ("file:size=1G", &["path: a file needs one"]),
            ("file:", &["path: a file needs one"]),
            ("", &["path: a file needs one"]),
            ("file:path=x,size=1GB", &["size: ", "1000"]),
            ("file:path=x,path=y", &["path: is given twice"]),
            ("file:x", &["`x` is not key=value"]),
            ("file:path=x,,,read-only=maybe", &["read-only: `maybe` is neither on nor off"]),
            ("file:path=x,direct=yep", &["direct: `yep` is none of auto, on and off"]),
            ("null:size=-1", &["size: `-1` is not a size"]),
            ("mem:path=x", &["mem: has no key `path`"]),
            ("delay:read=5m,of=x", &["read: `5m` is not a time"]),
            ("delay:read=5ms", &["of: a wrapper needs a device"]),
            ("delay:of=", &["of: a wrapper needs a device"]),
            ("error:errno=EFOO,of=x", &["errno: `EFOO` is none of EIO, ENOSPC, EAGAIN"]),
            ("error:op=trim,of=x", &["op: `trim` is none of read, write, flush, discard"]),
            ("error:range=5,of=x", &["range: `5` is not a range"]),
            ("error:range=2M-1M,of=x", &["range: `2M-1M` is an empty range"]),
            ("error:rate=2,of=x", &["rate: `2` is not a probability"]),
            ("error:count=1e3,of=x", &["count: `1e3` is not a whole number"]),
            ("error:rate=1%,of=mem:sz=1", &["mem: has no key `sz`", "of an export weight, ioprio"]),
            (
                "error:rate=1%,of=mem:weight=1",
                &["mem: `weight` is a key of the export; set it on the out"],
            ),
        ] {
            let message = error(text);
            for words in words {
                assert!(message.contains(words), "{text}: {message}");
            }
        }
        let deep = "error:of=".repeat(9) + "mem:size=1M";
        assert!(error(&deep).contains("more than 8 wrappers"));
    }

    #[test]
    fn default_size_applies_only_without_size() {
        for (text, size) in [("mem:size=1M", 1 << 20), ("mem:", 5), ("null:", 5), ("x", 5)] {
            let mut spec = Spec::parse(text).unwrap();
            spec.set_default_size(5);
            assert_eq!(spec.size(), Some(size), "{text}");
        }
    }

    #[test]
    fn first_wrapper_is_outermost() {
        // An error outside a delay comes at once, inside it after the delay.
        for (text, waited) in
            [("error:of=delay:all=1us,of=null:", 0), ("delay:all=1us,of=error:of=null:", 1000)]
        {
            let spec = Spec::parse(text).unwrap();
            let mut bench = Bench::boxed(spec.wrap(512, Box::new(NullDevice), None));
            let start = bench.now;
            let done = bench.run(Op::Flush, BioFlags::NONE, 0, 0);
            assert_eq!(done.status, Err(IoError::Medium));
            assert_eq!(bench.now.since(start), waited, "{text}");
            assert!(spec.wrap_queue_options(NullDevice::queue_options()).write_cache);
        }
        let bare = Spec::parse("null:").unwrap();
        assert!(!bare.wrap_queue_options(NullDevice::queue_options()).write_cache);
    }
}
