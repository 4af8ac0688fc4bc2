//! From what a user wants to serve to devices, volumes and exports.
//!
//! Images on one filesystem become one device with one queue, so that tenants compete for the real resource; a wrapped image,
//! a null or a memory disk is a device of its own. Two exports of one file are one volume. A read-only export of a volume
//! that another export may write is refused writes at its own door.

use headworks_core::{
    ConfigError, DeviceId, ExportConfig, Ioprio, QueueOptions, VolumeId, VolumeOptions,
};

use crate::device::{
    Base, Device, FileDevice, FileMode, FileOptions, Identity, MemDevice, NullDevice, OpenFile,
    SizeWatch, Spec,
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
    /// Its share of the device beside others, 1..=10000.
    pub weight: u16,
    /// The priority of its clients' requests.
    pub ioprio: Ioprio,
}

impl ExportSpec {
    /// An export with an ordinary share and priority.
    #[must_use]
    pub fn new(name: String, spec: Spec, read_only: bool) -> Self {
        let weight = ExportConfig::default().weight;
        Self { name, spec, read_only, weight, ioprio: Ioprio::default() }
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
        let read_only = export.read_only || read_only_spec(spec);
        let access = if read_only { ", read-only" } else { "" };
        self.assembly.exports.push(AssembledExport {
            name: export.name.clone(),
            volume,
            read_only,
            weight: export.weight,
            ioprio: export.ioprio,
            lasting: matches!(spec.base, Base::File { .. }),
            description: format!("{what}, {}{access}", display_size(size)),
        });
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
