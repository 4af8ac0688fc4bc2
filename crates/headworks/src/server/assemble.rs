//! From what a user wants to serve to devices, volumes and exports.
//!
//! Images on one filesystem become one device with one queue, so that tenants compete for the real resource; a wrapped image,
//! a null or a memory disk is a device of its own. Two exports of one file are one volume. A read-only export of a volume
//! that another export may write is refused writes at its own door. How a volume is cached is the volume's: exports of one file
//! that say it must say the same.

use headworks_core::{
    ConfigError, DeviceId, ErrorPolicy, Ioprio, QueueOptions, VolumeId, VolumeOptions, WriteMode,
};

use crate::device::{
    Base, Device, FileDevice, FileMode, FileOptions, Identity, MemDevice, NullDevice, OpenFile,
    Share, SizeWatch, Spec,
};
use crate::units::display_size;

/// Where a client can go.
#[derive(Clone, Debug)]
pub struct ExportSpec {
    /// Its name; may be empty.
    pub name: String,
    /// What it is.
    pub spec: Spec,
    /// Clients may only read.
    pub read_only: bool,
    /// Its share of the device beside others, its clients' priority, and how it is cached.
    pub share: Share,
}

impl ExportSpec {
    /// An export with an ordinary share and priority.
    #[must_use]
    pub fn new(name: String, spec: Spec, read_only: bool) -> Self {
        Self { name, spec, read_only, share: Share::default() }
    }
}

/// Checks what can be checked without opening anything.
///
/// # Errors
/// A size that is missing or nothing, a name that is there twice.
pub fn check(exports: &[ExportSpec]) -> Result<(), ConfigError> {
    for (index, export) in exports.iter().enumerate() {
        export.check()?;
        if exports[..index].iter().any(|other| other.name == export.name) {
            let message = format!("two exports are called `{}`; name them NAME=SPEC", export.name);
            return Err(ConfigError::new("export", message));
        }
    }
    Ok(())
}

impl ExportSpec {
    fn check(&self) -> Result<(), ConfigError> {
        match (&self.spec.base, self.spec.size()) {
            (_, Some(0)) => {
                Err(ConfigError::new("size", "0 bytes are nothing to serve; try size=1G"))
            }
            (Base::Null { .. }, None) => Err(no_size("null")),
            (Base::Mem { .. }, None) => Err(no_size("mem")),
            _ => Ok(()),
        }
    }
}

/// A file whose size is looked at while it is served.
pub struct WatchedFile {
    /// Its volume.
    pub volume: VolumeId,
    watch: SizeWatch,
    size: u64,
    block_size: u64,
}

impl WatchedFile {
    /// The new size, rounded down to whole blocks, if it differs from the last look's.
    pub fn changed_size(&mut self) -> Option<u64> {
        let size = self.watch.current_size().ok()? / self.block_size * self.block_size;
        (size != std::mem::replace(&mut self.size, size)).then_some(size)
    }
}

/// An export of an assembly.
#[derive(Clone, Debug)]
pub struct AssembledExport {
    /// Its name.
    pub name: String,
    /// Its volume.
    pub volume: VolumeId,
    /// Clients may only read.
    pub read_only: bool,
    /// Its share.
    pub weight: u16,
    /// The priority of its clients' requests.
    pub ioprio: Ioprio,
    /// Its bytes outlive the process.
    pub lasting: bool,
    /// For people: what it is and how its bytes are reached.
    pub description: String,
}

/// Everything below the shards.
#[derive(Default)]
pub struct Assembly {
    /// Devices with their queues.
    pub devices: Vec<(QueueOptions, Box<dyn Device>)>,
    /// Volumes with their devices.
    pub volumes: Vec<(DeviceId, VolumeOptions)>,
    /// Exports in the user's order; the first is the default.
    pub exports: Vec<AssembledExport>,
    /// Files to watch.
    pub files: Vec<WatchedFile>,
    /// What a user should know, a sentence each.
    pub notes: Vec<String>,
}

/// A group of images that share a queue.
struct Group {
    filesystem: u64,
    device: DeviceId,
    images: Vec<(VolumeId, OpenFile)>,
}

impl Assembly {
    /// Opens everything.
    ///
    /// # Errors
    /// The first thing that cannot be served, in one sentence.
    pub fn new(exports: &[ExportSpec]) -> Result<Self, ConfigError> {
        check(exports)?;
        let mut builder = Builder::default();
        for export in exports {
            builder.add(export, wants_write(exports, export))?;
        }
        Ok(builder.finish())
    }
}

/// Whether any export of the same file may write it.
fn wants_write(exports: &[ExportSpec], export: &ExportSpec) -> bool {
    let identity = |export: &ExportSpec| match &export.spec.base {
        Base::File { path, .. } => Identity::of(path).ok(),
        _ => None,
    };
    let writes = |export: &ExportSpec| !export.read_only && !read_only_spec(&export.spec);
    let own = identity(export);
    writes(export)
        || own.is_some() && exports.iter().any(|other| writes(other) && identity(other) == own)
}

fn read_only_spec(spec: &Spec) -> bool {
    matches!(&spec.base, Base::File { options, .. } if options.read_only)
}

#[derive(Default)]
struct Builder {
    assembly: Assembly,
    /// Devices in the making: those that are no group are there already.
    devices: Vec<Option<(QueueOptions, Box<dyn Device>)>>,
    groups: Vec<Group>,
    known: Vec<(Identity, VolumeId, String)>,
    /// What exports said of their volumes, by volume.
    caching: Vec<Caching>,
}

/// How a volume is cached, as far as its exports say.
#[derive(Clone, Copy, Default)]
struct Caching {
    mode: Option<WriteMode>,
    on_error: Option<ErrorPolicy>,
}

/// How what is served is cached if nobody says: what lies in memory anyway, not at all.
fn usual_mode(spec: &Spec) -> WriteMode {
    match spec.base {
        Base::Null { .. } | Base::Mem { .. } if spec.wrappers.is_empty() => WriteMode::None,
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

impl Builder {
    fn add(&mut self, export: &ExportSpec, write: bool) -> Result<(), ConfigError> {
        let spec = &export.spec;
        let (volume, what) = match &spec.base {
            Base::File { .. } => self.add_file(spec, write)?,
            Base::Null { size } => {
                let size = size.ok_or_else(|| no_size("null"))?;
                self.add_alone(
                    spec,
                    NullDevice::queue_options(),
                    Box::new(NullDevice),
                    size,
                    "null",
                )
            }
            Base::Mem { size } => {
                let size = size.ok_or_else(|| no_size("mem"))?;
                self.add_alone(
                    spec,
                    MemDevice::queue_options(),
                    Box::new(MemDevice::new(size)?),
                    size,
                    "memory",
                )
            }
        };
        let size = self.assembly.volumes[usize::from(volume.0)].1.size;
        if size == 0 {
            let message = format!("{what} has no bytes to serve; give it a size, as in size=1G");
            return Err(ConfigError::new("size", message));
        }
        self.settle(volume, export)?;
        let read_only = export.read_only || read_only_spec(spec);
        let access = if read_only { ", read-only" } else { "" };
        self.assembly.exports.push(AssembledExport {
            name: export.name.clone(),
            volume,
            read_only,
            weight: export.share.weight,
            ioprio: export.share.ioprio,
            lasting: matches!(spec.base, Base::File { .. }),
            description: format!("{what}, {}{access}", display_size(size)),
        });
        Ok(())
    }

    /// An export says how its volume is cached, or leaves it open.
    fn settle(&mut self, volume: VolumeId, export: &ExportSpec) -> Result<(), ConfigError> {
        self.caching.resize(self.assembly.volumes.len(), Caching::default());
        let Share { mode, on_error, .. } = export.share;
        let caching = &mut self.caching[usize::from(volume.0)];
        let differs = |key| {
            let name = &export.name;
            let message = format!("export `{name}` differs from another export of the same image");
            move |()| ConfigError::new(key, message)
        };
        caching.mode = agree(caching.mode, mode).map_err(differs("cache"))?;
        caching.on_error = agree(caching.on_error, on_error).map_err(differs("on-error"))?;
        let options = &mut self.assembly.volumes[usize::from(volume.0)].1;
        options.mode = caching.mode.unwrap_or_else(|| usual_mode(&export.spec));
        options.on_error = caching.on_error.unwrap_or_default();
        Ok(())
    }

    fn add_volume(&mut self, device: DeviceId, options: VolumeOptions) -> VolumeId {
        self.assembly.volumes.push((device, options));
        VolumeId(self.assembly.volumes.len() as u16 - 1)
    }

    fn add_device(&mut self, device: Option<(QueueOptions, Box<dyn Device>)>) -> DeviceId {
        self.devices.push(device);
        DeviceId(self.devices.len() as u16 - 1)
    }

    fn add_alone(
        &mut self,
        spec: &Spec,
        queue: QueueOptions,
        device: Box<dyn Device>,
        size: u64,
        what: &str,
    ) -> (VolumeId, String) {
        let device = self.add_device(Some((spec.wrap_queue_options(queue), spec.wrap(device))));
        let options = VolumeOptions { size, block_size: 1, ..VolumeOptions::default() };
        (self.add_volume(device, options), wrapped(spec, what))
    }

    fn add_file(&mut self, spec: &Spec, write: bool) -> Result<(VolumeId, String), ConfigError> {
        let Base::File { path, options } = &spec.base else { unreachable!("only files come here") };
        if let Ok(identity) = Identity::of(path)
            && let Some((_, volume, what)) = self.known.iter().find(|known| known.0 == identity)
        {
            return Ok((*volume, what.clone()));
        }
        let options = FileOptions { read_only: !write, ..*options };
        let file = OpenFile::open(path, &options)?;
        let shown = path.display();
        if !file.locked() {
            self.assembly.notes.push(format!("{shown} is not locked: its filesystem has no locks"));
        }
        if file.created() {
            let size = display_size(file.volume_options().size);
            self.assembly.notes.push(format!("created {shown}, sparse, {size}"));
        }
        let what = wrapped(spec, &format!("{shown} ({})", reach(file.mode())));
        let volume = VolumeId(self.assembly.volumes.len() as u16);
        self.known.push((file.identity(), volume, what.clone()));
        let volume_options = file.volume_options();
        self.assembly.files.push(WatchedFile {
            volume,
            watch: file.size_watch(),
            size: volume_options.size,
            block_size: volume_options.block_size.into(),
        });
        let device = if spec.wrappers.is_empty() {
            self.join_group(volume, file)
        } else {
            let id = DeviceId(self.devices.len() as u16);
            let queue = spec.wrap_queue_options(file.queue_options());
            let device = spec.wrap(Box::new(FileDevice::new(id, vec![(volume, file)])));
            self.add_device(Some((queue, device)))
        };
        self.add_volume(device, volume_options);
        Ok((volume, what))
    }

    fn join_group(&mut self, volume: VolumeId, file: OpenFile) -> DeviceId {
        let filesystem = file.identity().filesystem;
        if let Some(group) = self.groups.iter_mut().find(|group| group.filesystem == filesystem) {
            group.images.push((volume, file));
            return group.device;
        }
        let device = self.add_device(None);
        self.groups.push(Group { filesystem, device, images: vec![(volume, file)] });
        device
    }

    fn finish(mut self) -> Assembly {
        for Group { device, images, .. } in self.groups {
            let made = FileDevice::new(device, images);
            self.devices[usize::from(device.0)] = Some((made.queue_options(), Box::new(made)));
        }
        self.assembly.devices = self.devices.into_iter().flatten().collect();
        self.assembly
    }
}

fn no_size(kind: &str) -> ConfigError {
    ConfigError::new("size", format!("{kind}: needs a size, as in {kind}:size=1G"))
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The modes and policies of the volumes behind two exports of one image.
    fn cached(one: &str, other: &str) -> Result<Vec<(WriteMode, ErrorPolicy)>, String> {
        let folder = std::env::temp_dir().join(format!("headworks-agree-{}", std::process::id()));
        let spec = |name: &str, keys: &str| {
            let text = format!("file:path={},size=1M{keys}", folder.display());
            let (spec, share) = Spec::parse_export(&text).unwrap();
            ExportSpec { share, ..ExportSpec::new(name.to_owned(), spec, false) }
        };
        let made = Assembly::new(&[spec("a", one), spec("b", other)]);
        let _ = std::fs::remove_file(&folder);
        let assembly = made.map_err(|error| error.to_string())?;
        let modes = assembly.volumes.iter().map(|(_, volume)| (volume.mode, volume.on_error));
        Ok(modes.collect())
    }

    #[test]
    fn what_lies_in_memory_is_not_cached_unless_somebody_says_so() {
        let mode = |text: &str| {
            let (spec, share) = Spec::parse_export(text).unwrap();
            let export = ExportSpec { share, ..ExportSpec::new("a".to_owned(), spec, false) };
            Assembly::new(&[export]).unwrap().volumes[0].1.mode
        };
        assert_eq!(mode("mem:size=1M"), WriteMode::None);
        assert_eq!(mode("null:size=1M"), WriteMode::None);
        assert_eq!(mode("mem:size=1M,cache=writeback"), WriteMode::Writeback);
        assert_eq!(mode("delay:all=1ms,of=mem:size=1M"), WriteMode::Writeback);
    }

    #[test]
    fn exports_of_one_image_agree_on_its_cache_or_leave_it_open() {
        use {ErrorPolicy as E, WriteMode as M};
        assert_eq!(cached("", ""), Ok(vec![(M::Writeback, E::Hold)]));
        let said = ",cache=writethrough,on-error=retry";
        assert_eq!(cached(said, ""), Ok(vec![(M::Writethrough, E::Retry)]));
        assert_eq!(cached("", said), Ok(vec![(M::Writethrough, E::Retry)]));
        assert_eq!(cached(said, said), Ok(vec![(M::Writethrough, E::Retry)]));
        let error = cached(said, ",cache=none").unwrap_err();
        assert!(error.contains("cache: export `b` differs"), "{error}");
        let error = cached(said, ",on-error=hold").unwrap_err();
        assert!(error.contains("on-error: export `b` differs"), "{error}");
    }
}
