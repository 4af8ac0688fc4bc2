//! From what a user wants to serve to devices, volumes and exports.
//!
//! Images on one filesystem become one device with one queue, so that tenants compete for the real resource; a wrapped image,
//! a null or a memory disk is a device of its own. A device with a name is shared by those who name it and by nobody else. Two exports of one file are one volume. A read-only export of a volume
//! that another export may write is refused writes at its own door. How a volume is cached is the volume's: exports of one file
//! that say it must say the same.

pub(crate) mod cache_shares;
pub(crate) mod export_info;
pub(crate) mod image;

use headworks_core::{
    ConfigError, DeviceId, Ioprio, QueueOptions, Tunable, VolumeId, VolumeOptions,
};

use crate::spec::{BaseDevice, ExportOptions, Spec};
use headworks::device::{Device, FileDevice, Identity, OpenFile, SizeWatch};
use image::{OpenedImage, VolumeCaching, VolumeOrigin, assembled, no_size};

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
    pub share: ExportOptions,
    /// The queue that it asks for by name, if it does.
    pub device: Option<NamedDevice>,
}

/// A queue of its own, shared by the exports that name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedDevice {
    /// Its name.
    pub name: String,
    /// What is said of its queue, and of all queues.
    pub queue: Vec<(Tunable, u64)>,
}

impl ExportSpec {
    /// Reads `SPEC` or `NAME=SPEC`. An export that is not named has none if it is the `only` one, else that of its image.
    ///
    /// # Errors
    /// What is wrong with the words.
    pub fn parse(text: &str, only: bool) -> Result<Self, ConfigError> {
        let (name, spec) = split_name(text);
        let (spec, share) = Spec::parse_export(spec)?;
        let name = match name {
            Some(name) => name.to_owned(),
            None if only => String::new(),
            None => spec.short_name(),
        };
        Ok(Self { share, ..Self::new(name, spec, false) })
    }

    /// An export with an ordinary share and priority.
    #[must_use]
    pub fn new(name: String, spec: Spec, read_only: bool) -> Self {
        Self { name, spec, read_only, share: ExportOptions::default(), device: None }
    }
}

/// `NAME=SPEC`: the name is made of letters, digits, `.`, `_` and `-`, so `file:path=x` and `./a=b` are specs.
pub(crate) fn split_name(text: &str) -> (Option<&str>, &str) {
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
    };
    match text.split_once('=') {
        Some((name, spec)) if is_name(name) => (Some(name), spec),
        _ => (None, text),
    }
}

/// Checks what can be checked without opening anything.
///
/// # Errors
/// A size that is missing or nothing, a name that is there twice, for clients or for the operator.
pub fn check(exports: &[ExportSpec]) -> Result<(), ConfigError> {
    for (index, export) in exports.iter().enumerate() {
        export.check()?;
        let name = shown_name(&export.name);
        let twin = exports[..index].iter().find(|other| shown_name(&other.name) == name);
        if let Some(twin) = twin {
            return Err(ConfigError::new("export", twins(&twin.name, &export.name)));
        }
    }
    Ok(())
}

/// What the export without a name is called by `ctl` and in metrics.
const DEFAULT: &str = "default";

/// An export's name in paths, in tables and in metrics.
pub(super) fn shown_name(name: &str) -> &str {
    if name.is_empty() { DEFAULT } else { name }
}

/// What is wrong with two exports that the operator could not tell from each other.
fn twins(one: &str, other: &str) -> String {
    match one == other {
        true => format!("two exports are called `{one}`; name them NAME=SPEC"),
        false => format!(
            "one export is called `{DEFAULT}` and another has no name, for which `ctl` and metrics say `{DEFAULT}`; \
             call one of them otherwise"
        ),
    }
}

impl ExportSpec {
    /// Which file it is, if it is one and is there.
    pub(super) fn identity(&self) -> Option<Identity> {
        match &self.spec.base {
            BaseDevice::File { path, .. } => Identity::of(path).ok(),
            _ => None,
        }
    }

    /// How it says that its volume is cached.
    pub(super) fn caching(&self) -> VolumeCaching {
        VolumeCaching { mode: self.share.mode, on_error: self.share.on_error }
    }

    /// Its clients may write.
    pub(super) fn writes(&self) -> bool {
        !self.read_only
            && !matches!(&self.spec.base, BaseDevice::File { options, .. } if options.read_only)
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        match (&self.spec.base, self.spec.size()) {
            (_, Some(0)) => {
                Err(ConfigError::new("size", "0 bytes are nothing to serve; try size=1G"))
            }
            (BaseDevice::Null { .. }, None) => Err(no_size("null")),
            (BaseDevice::Mem { .. }, None) => Err(no_size("mem")),
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
    /// The size that we are about to give it ourselves.
    expected: Option<u64>,
}

impl WatchedFile {
    /// A file that was opened with `size` bytes.
    pub(super) fn new(volume: VolumeId, watch: SizeWatch, size: u64, block_size: u64) -> Self {
        Self { volume, watch, size, block_size, expected: None }
    }

    /// The new size, rounded down to whole blocks, if it differs from the last look's and is not the one that is expected.
    pub fn changed_size(&mut self) -> Option<u64> {
        let size = self.watch.current_size().ok()? / self.block_size * self.block_size;
        if size == std::mem::replace(&mut self.size, size) {
            return None;
        }
        // Once: a file that comes back to this size later is news again.
        (self.expected.take() != Some(size)).then_some(size)
    }

    /// It is no news if the file has this size.
    pub(super) fn expect(&mut self, size: u64) {
        self.expected = Some(size);
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
    /// What was asked for.
    pub spec: ExportSpec,
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
    /// Where volumes come from, by volume.
    pub(super) origins: Vec<VolumeOrigin>,
    /// Why images share a device, by device; none for one that stays alone.
    pub(super) common: Vec<Option<SharedDeviceKey>>,
    /// The names that devices were asked for by, by device.
    pub named: Vec<Option<NamedDevice>>,
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

/// A group of images that share a queue.
struct DeviceGroup {
    common: SharedDeviceKey,
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
            builder.add(export, wants_write(exports, export), device_of(exports, export))?;
        }
        Ok(builder.finish())
    }
}

/// Whether any export of the same file may write it.
fn wants_write(exports: &[ExportSpec], export: &ExportSpec) -> bool {
    let own = export.identity();
    export.writes()
        || own.is_some() && exports.iter().any(|other| other.writes() && other.identity() == own)
}

/// The device, which any export of the same file may name.
fn device_of<'a>(exports: &'a [ExportSpec], export: &'a ExportSpec) -> Option<&'a NamedDevice> {
    let said = || {
        let own = export.identity()?;
        let mut naming = exports.iter().filter(|other| other.device.is_some());
        naming.find(|other| other.identity() == Some(own))?.device.as_ref()
    };
    export.device.as_ref().or_else(said)
}

#[derive(Default)]
struct Builder {
    assembly: Assembly,
    /// Devices in the making: those that are no group are there already.
    devices: Vec<Option<(QueueOptions, Box<dyn Device>)>>,
    groups: Vec<DeviceGroup>,
}

impl Builder {
    fn add(
        &mut self,
        export: &ExportSpec,
        write: bool,
        named: Option<&NamedDevice>,
    ) -> Result<(), ConfigError> {
        let volume = match self.find(export) {
            Some(volume) => volume,
            None => self.open(export, write, named)?,
        };
        let device = self.assembly.volumes[usize::from(volume.0)].0;
        if self.assembly.named[usize::from(device.0)].as_ref() != named {
            let name = &export.name;
            let message = format!("export `{name}` differs from another export of the same image");
            return Err(ConfigError::new("device", message));
        }
        let origin = &mut self.assembly.origins[usize::from(volume.0)];
        let options = &mut self.assembly.volumes[usize::from(volume.0)].1;
        origin.agree(export, options.size)?;
        origin.caching = origin.caching.agree(export)?;
        origin.caching.apply(&export.spec, options);
        let export = assembled(export, volume, &origin.what, options.size);
        self.assembly.exports.push(export);
        Ok(())
    }

    /// The volume of a file that is open already.
    fn find(&self, export: &ExportSpec) -> Option<VolumeId> {
        let identity = export.identity()?;
        let found = self.assembly.origins.iter().position(|o| o.identity == Some(identity));
        found.map(|volume| VolumeId(volume as u16))
    }

    fn open(
        &mut self,
        export: &ExportSpec,
        write: bool,
        named: Option<&NamedDevice>,
    ) -> Result<VolumeId, ConfigError> {
        let opened = OpenedImage::new(&export.spec, write)?;
        let volume = VolumeId(self.assembly.volumes.len() as u16);
        let options = opened.options;
        self.assembly.notes.extend(opened.notes.iter().cloned());
        self.assembly.origins.push(opened.origin(&export.spec));
        self.assembly.files.extend(opened.watched(volume));
        let device = match opened.joins() {
            Ok((filesystem, file)) => self.join_group(filesystem, named, volume, file),
            Err(opened) => {
                let id = DeviceId(self.devices.len() as u16);
                let device = opened.into_device(&export.spec, id, volume);
                self.add_device(None, named, Some(device))
            }
        };
        self.assembly.volumes.push((device, options));
        Ok(volume)
    }

    fn add_device(
        &mut self,
        common: Option<SharedDeviceKey>,
        named: Option<&NamedDevice>,
        device: Option<(QueueOptions, Box<dyn Device>)>,
    ) -> DeviceId {
        self.devices.push(device);
        self.assembly.common.push(common);
        self.assembly.named.push(named.cloned());
        DeviceId(self.devices.len() as u16 - 1)
    }

    fn join_group(
        &mut self,
        filesystem: u64,
        named: Option<&NamedDevice>,
        volume: VolumeId,
        file: OpenFile,
    ) -> DeviceId {
        let common = SharedDeviceKey::of(filesystem, named);
        if let Some(group) = self.groups.iter_mut().find(|group| group.common == common) {
            group.images.push((volume, file));
            return group.device;
        }
        let device = self.add_device(Some(common.clone()), named, None);
        self.groups.push(DeviceGroup { common, device, images: vec![(volume, file)] });
        device
    }

    fn finish(mut self) -> Assembly {
        for DeviceGroup { device, images, .. } in self.groups {
            let made = FileDevice::new(device, images);
            self.devices[usize::from(device.0)] = Some((made.queue_options(), Box::new(made)));
        }
        self.assembly.devices = self.devices.into_iter().flatten().collect();
        self.assembly
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks_core::{ErrorPolicy, WriteMode};

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
    fn an_image_is_one_thing_for_all_its_exports() {
        let path = std::env::temp_dir().join(format!("headworks-one-{}", std::process::id()));
        std::fs::write(&path, vec![0; 1 << 20]).unwrap();
        let both = |one: &str, other: &str| {
            let spec = |name: &str, text: &str| {
                let text = text.replace("IMAGE", &path.display().to_string());
                ExportSpec::new(name.to_owned(), Spec::parse(&text).unwrap(), false)
            };
            let made = Assembly::new(&[spec("a", one), spec("b", other)]);
            made.map(|assembly| assembly.volumes.len()).map_err(|error| error.message.to_string())
        };
        assert_eq!(both("IMAGE", "file:path=IMAGE,size=1M"), Ok(1));
        assert_eq!(both("file:path=IMAGE,direct=off", "IMAGE"), Ok(1));
        let slow = "delay:read=1ms,of=file:path=IMAGE";
        assert_eq!(both(slow, slow), Ok(1));
        for (one, other, part) in [
            ("IMAGE", slow, "wrapped in the same"),
            (slow, "IMAGE", "wrapped in the same"),
            ("IMAGE", "file:path=IMAGE,direct=off", "same image"),
            ("IMAGE", "file:path=IMAGE,size=2M", "has 1048576 bytes, not 2097152"),
        ] {
            let said = both(one, other).unwrap_err();
            assert!(said.starts_with("export `b` differs") && said.contains(part), "{said}");
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_device_with_a_name_is_shared_by_those_who_name_it() {
        let folder = std::env::temp_dir().join(format!("headworks-named-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let export = |name: &str, text: &str, device: Option<&str>| {
            let text = text.replace("DIR", &folder.display().to_string());
            let named = |name: &str| NamedDevice { name: name.to_owned(), queue: Vec::new() };
            let spec = Spec::parse(&text).unwrap();
            ExportSpec {
                device: device.map(named),
                ..ExportSpec::new(name.to_owned(), spec, false)
            }
        };
        let file =
            |name: &str, device| export(name, &format!("file:path=DIR/{name},size=1M"), device);
        let assembly = Assembly::new(&[
            file("a", None),
            file("b", Some("fast")),
            file("c", Some("fast")),
            file("d", None),
            export("m", "mem:size=1M", Some("memory")),
        ]);
        let assembly = assembly.unwrap();
        let devices: Vec<u16> = assembly.volumes.iter().map(|(device, _)| device.0).collect();
        assert_eq!(devices, [0, 1, 1, 0, 2]);
        let names = |assembly: &Assembly| -> Vec<Option<String>> {
            assembly.named.iter().map(|named| Some(named.as_ref()?.name.clone())).collect()
        };
        assert_eq!(names(&assembly), [None, Some("fast".into()), Some("memory".into())]);
        // The images are there now: either export of one may say its device, and both must say the same.
        drop(assembly);
        let again = |text: &str, device| export("again", text, device);
        let either = Assembly::new(&[file("a", None), again("DIR/a", Some("fast"))]).unwrap();
        assert_eq!((either.volumes.len(), names(&either)), (1, vec![Some("fast".to_owned())]));
        drop(either);
        let differ = Assembly::new(&[file("a", Some("slow")), again("DIR/a", Some("fast"))]);
        assert!(differ.err().unwrap().to_string().contains("device: export `again` differs"));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn the_operator_can_tell_exports_from_each_other() {
        let checked = |names: &[&str]| {
            let spec = Spec::parse("null:size=1M").unwrap();
            let export = |name: &&str| ExportSpec::new((*name).to_owned(), spec.clone(), false);
            let exports: Vec<ExportSpec> = names.iter().map(export).collect();
            check(&exports).map_err(|error| error.message.to_string())
        };
        assert_eq!(checked(&["", "a"]), Ok(()));
        assert_eq!(checked(&["default", "a"]), Ok(()));
        assert!(checked(&["a", "b", "a"]).unwrap_err().contains("two exports are called `a`"));
        for both in [["", "default"], ["default", ""]] {
            let said = checked(&both).unwrap_err();
            assert!(said.contains("another has no name"), "{said}");
        }
    }

    #[test]
    fn a_size_that_was_expected_is_no_news_once() {
        let image = headworks::device::testing::TempFile::absent("expected");
        let text = format!("file:path={},size=1M", image.path().display());
        let export = ExportSpec::new("a".to_owned(), Spec::parse(&text).unwrap(), false);
        let mut watched = Assembly::new(&[export]).unwrap().files.remove(0);
        let resize = |mib: u64| {
            let file = std::fs::File::options().write(true).open(image.path()).unwrap();
            file.set_len(mib << 20).unwrap();
        };
        watched.expect(2 << 20);
        assert_eq!(watched.changed_size(), None, "it has not happened yet");
        resize(2);
        assert_eq!(watched.changed_size(), None, "we did it ourselves");
        resize(1);
        assert_eq!(watched.changed_size(), Some(1 << 20));
        resize(2);
        assert_eq!(watched.changed_size(), Some(2 << 20), "somebody else did");
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
