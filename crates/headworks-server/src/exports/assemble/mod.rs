//! Makes devices, volumes and exports from specifications.
//!
//! Images on one filesystem, files and overlays, share one device and its queue, so that tenants compete for the real
//! resource; a wrapped image, an overlay on an image of another format, a null or a memory disk has a device of its own. A named device is shared by the exports that name it. Two
//! exports of one file share a volume and must agree on its cache options. A read-only export of a volume that another
//! export may write refuses writes itself.

pub(crate) mod cache_shares;
pub(crate) mod export_info;
mod export_spec;
mod foreign;
pub(crate) mod image;
pub(crate) mod parts_of_blocks;
pub(crate) mod range;
pub(crate) mod side_by_side;
pub(crate) mod tenant_spec;
pub(crate) mod topology;
mod watched_file;

use std::path::Path;
use std::time::Duration;

use headworks_core::options::{DEVICES_MAX, TENANTS_MAX};
use headworks_core::{ConfigError, DeviceId, QueueOptions, VolumeId, VolumeOptions};

use crate::exports::export_range::ExportRange;
use crate::options::MissingImage;
use crate::spec::tenant::no_tenant;
use crate::spec::{BaseDevice, Spec};
use crate::successor::leftovers::{Leftovers, PendingRestore, RestoredImage};
use headworks::house::display_size;
use headworks::{Device, Image};
use image::{CreatedImage, OpenedImage, Opening, SharedDeviceKey, VolumeOrigin, filesystem_device};
use range::Table;
use side_by_side::{LateImage, OpenedOrNot, OpeningImages};

pub(crate) use export_spec::EXPORTS_MAX;
pub(crate) use export_spec::shown_name;
pub use export_spec::{ExportSource, ExportSpec, NamedDevice, check_exports};
pub use tenant_spec::TenantSpec;
pub use watched_file::{ImageWatcher, WatchedFile};

/// An export with the volume that serves it.
#[derive(Clone, Debug)]
pub struct AssembledExport {
    /// Specification of the export.
    pub spec: ExportSpec,
    /// Volume of the export.
    pub volume: VolumeId,
    /// Range of the volume that it serves.
    pub(crate) range: ExportRange,
    /// Size of the export in bytes.
    pub size: u64,
    /// The part of its image that it serves, for people; none if it serves all.
    pub part: Option<String>,
    /// Description for people: device, part, access and size.
    pub description: String,
}

/// An export whose image is missing; it is served when the image appears and the export is added again.
#[derive(Clone, Debug)]
pub struct AbsentExport {
    /// Specification of the export.
    pub spec: ExportSpec,
    /// Why it is not served, as a clause with the path of the image.
    pub reason: String,
}

impl AbsentExport {
    /// The export as absent, if its image is missing or no raw image.
    pub(crate) fn of(spec: &ExportSpec, leftovers: &Leftovers) -> Option<Self> {
        let reason = spec.missing_image(leftovers)?;
        Some(Self { spec: spec.clone(), reason })
    }
}

/// Devices, volumes and exports of a server, opened.
#[derive(Default)]
pub struct Assembly {
    /// Devices with their queue options.
    pub devices: Vec<(QueueOptions, Box<dyn Device>)>,
    /// Volumes with their devices.
    pub volumes: Vec<(DeviceId, VolumeOptions)>,
    /// Exports in the user's order; the first is the default.
    pub exports: Vec<AssembledExport>,
    /// Files whose sizes are watched.
    pub files: Vec<WatchedFile>,
    /// Messages for the user, one sentence each.
    pub notes: Vec<String>,
    /// Exports whose images are missing.
    pub absent: Vec<AbsentExport>,
    /// Those of them whose images are being opened.
    pub(crate) late: Vec<LateImage>,
    /// Origins of the volumes, by volume.
    pub(crate) origins: Vec<VolumeOrigin>,
    /// Keys by which images share devices, by device; none if no image may join.
    pub(crate) common: Vec<Option<SharedDeviceKey>>,
    /// Names of the devices, by device.
    pub named: Vec<Option<NamedDevice>>,
    /// Volumes whose flushes fail until the operator acknowledges them.
    pub(crate) suspect: Vec<VolumeId>,
    /// Images that did not exist before; a start that fails removes them again.
    pub(crate) created: Vec<CreatedImage>,
    /// Dirty data of dead servers that are not on the images yet.
    pub(crate) pending: Vec<(VolumeId, PendingRestore)>,
}

/// Images that share a device.
struct DeviceGroup {
    common: SharedDeviceKey,
    device: DeviceId,
    images: Vec<(VolumeId, Box<dyn Image>)>,
}

impl Assembly {
    /// Opens everything that the exports need.
    ///
    /// # Errors
    /// The first export that cannot be served, and the reason.
    pub fn new(exports: &[ExportSpec]) -> Result<Self, ConfigError> {
        Self::open(exports, MissingImage::Refuse, &Leftovers::default())
    }

    /// As [`Assembly::new`], with a choice for missing images; what dead servers left of the images is found.
    ///
    /// # Errors
    /// The first export that cannot be served, and the reason.
    pub fn open(
        exports: &[ExportSpec],
        missing: MissingImage,
        leftovers: &Leftovers,
    ) -> Result<Self, ConfigError> {
        Self::open_within(exports, missing, leftovers, None)
    }

    /// As [`Assembly::open`], but while anything else can be served an image on a network that is not open `within` this time is absent at
    /// first: the server goes on opening it.
    ///
    /// # Errors
    /// The first export that cannot be served, and the reason.
    pub fn open_within(
        exports: &[ExportSpec],
        missing: MissingImage,
        leftovers: &Leftovers,
        within: Option<Duration>,
    ) -> Result<Self, ConfigError> {
        let builder = Builder { leftovers: leftovers.clone(), ..Builder::default() };
        let within = within.filter(|_| missing == MissingImage::Absent);
        let (assembly, refused) = Self::build(exports, missing, builder, within);
        refused.into_iter().next().map_or(Ok(assembly), |(_, error)| Err(error))
    }

    /// Whether an image lacks acknowledged writes of a server that was killed: `notes` say which. [`Server`](crate::Server) brings them back, or has
    /// flushes fail; nothing else does.
    #[must_use]
    pub fn lacks_writes(&self) -> bool {
        !self.suspect.is_empty() || !self.pending.is_empty()
    }

    /// Finds out what [`Assembly::open`] would open: the same checks and results, but nothing is created, written or
    /// locked. Returns every export that would be refused, by its index in `exports`. Only for looking at: the devices
    /// cannot serve.
    #[must_use]
    pub fn inspect(
        exports: &[ExportSpec],
        missing: MissingImage,
    ) -> (Self, Vec<(usize, ConfigError)>) {
        let builder = Builder { opening: Opening::Inspect, ..Builder::default() };
        Self::build(exports, missing, builder, None)
    }

    /// Opens or inspects exports. A start ends with the first error, an inspection finds all.
    fn build(
        exports: &[ExportSpec],
        missing: MissingImage,
        mut builder: Builder,
        within: Option<Duration>,
    ) -> (Self, Vec<(usize, ConfigError)>) {
        let (mut refused, mut late) = (Vec::new(), Vec::new());
        if let Err(wrong) = check_exports(exports) {
            return (builder.finish(), vec![wrong]);
        }
        let write = |export: &ExportSpec| wants_write(exports, export);
        let mut opening = match builder.opening {
            Opening::Serve => OpeningImages::start(exports, &builder.leftovers, write),
            Opening::Inspect | Opening::Read => {
                OpeningImages::start(&[], &builder.leftovers, write)
            }
        };
        for (index, export) in exports.iter().enumerate() {
            if missing == MissingImage::Absent
                && let Some(absent) = AbsentExport::of(export, &builder.leftovers)
            {
                builder.assembly.absent.push(absent);
                continue;
            }
            let (spec, identity) = (export.clone(), export.identity());
            let is_late =
                |one: &(usize, LateImage)| identity.is_some() && one.1.identity == identity;
            if late.iter().any(is_late) {
                late.push((index, LateImage { spec, identity, image: None }));
                continue;
            }
            match opening.take(index, within) {
                Some(Err(image)) => {
                    late.push((index, LateImage { spec, identity, image: Some(image) }));
                    continue;
                }
                Some(Ok(opened)) => builder.opened = Some(opened),
                None => {}
            }
            builder.with_table = range::needs_table(exports, export, &builder.leftovers);
            if let Err(error) = builder.add(export, write(export), device_of(exports, export)) {
                let may_come =
                    is_away(&export.spec.base, &error) || error.option == range::PARTITION;
                if missing == MissingImage::Absent && may_come {
                    builder.assembly.absent.push(AbsentExport { spec, reason: error.message });
                    continue;
                }
                refused.push((index, error));
                if builder.opening == Opening::Serve {
                    break;
                }
            }
        }
        builder.take_late(exports, late);
        let mut assembly = builder.finish();
        if !refused.is_empty() {
            assembly.created.drain(..).for_each(CreatedImage::undo);
        }
        (assembly, refused)
    }
}

/// Why an export is absent whose image is being opened.
const NOT_YET: &str =
    "its image is on a remote that has not answered yet; it is served when it does";

/// Whether a remote cannot be used now: one that does not answer yet keeps no other export from its clients.
fn is_away(base: &BaseDevice, error: &ConfigError) -> bool {
    match base {
        BaseDevice::Rbd(_) => true,
        // Of an overlay its base: what is wrong with files has other names.
        BaseDevice::Nbd(_) | BaseDevice::Overlay { .. } => ["uri", "image"].contains(&error.option),
        _ => false,
    }
}

/// Whether any export of the same file may write.
fn wants_write(exports: &[ExportSpec], export: &ExportSpec) -> bool {
    let own = export.identity();
    export.writes()
        || own.is_some() && exports.iter().any(|other| other.writes() && other.identity() == own)
}

/// The named device that any export of the same file gives.
fn device_of<'a>(exports: &'a [ExportSpec], export: &'a ExportSpec) -> Option<&'a NamedDevice> {
    let said = || {
        let own = export.identity()?;
        let mut naming = exports.iter().filter(|other| other.device.is_some());
        naming.find(|other| other.identity() == Some(own))?.device.as_ref()
    };
    export.device.as_ref().or_else(said)
}

/// Makes an export of a volume.
pub(crate) fn assembled(
    export: &ExportSpec,
    (volume, range): (VolumeId, ExportRange),
    what: &str,
    size: u64,
) -> AssembledExport {
    let access = if export.writes() { "" } else { ", read-only" };
    let (part, size) = (range::shown(export, range), range.size(size));
    let shown_part = part.as_ref().map_or(String::new(), |part| format!(", {part}"));
    AssembledExport {
        spec: export.clone(),
        volume,
        range,
        size,
        part,
        description: format!("{what}{shown_part}, {}{access}", display_size(size)),
    }
}

/// Checks that every tenant that an export names is defined, and that the exports of an image name the same.
///
/// # Errors
/// The first export for which it does not hold.
pub(crate) fn check_tenants(
    exports: &[AssembledExport],
    all: &[TenantSpec],
) -> Result<(), ConfigError> {
    let wrong = |message: String| Err(ConfigError::new("tenant", message));
    if all.len() > TENANTS_MAX {
        return wrong(format!("a server has at most {TENANTS_MAX} tenants"));
    }
    for (index, export) in exports.iter().enumerate() {
        let tenant = export.spec.share.tenant;
        if let Some(name) = tenant.filter(|name| !all.iter().any(|one| one.name == *name)) {
            let known = all.iter().map(|tenant| tenant.name.as_str());
            return wrong(no_tenant(name.as_str(), known));
        }
        let same = exports[..index].iter().find(|other| other.volume == export.volume);
        if let Some(other) = same.filter(|other| other.spec.share.tenant != tenant) {
            let (one, name) = (shown_name(&other.spec.name), shown_name(&export.spec.name));
            return wrong(format!(
                "exports `{one}` and `{name}` serve one image, which belongs to one tenant; give both the same"
            ));
        }
    }
    Ok(())
}

#[derive(Default)]
struct Builder {
    opening: Opening,
    assembly: Assembly,
    /// Finished devices; none for those made from groups at the end.
    devices: Vec<Option<(QueueOptions, Box<dyn Device>)>>,
    groups: Vec<DeviceGroup>,
    leftovers: Leftovers,
    /// The image of the export that is added next, if it is open already.
    opened: Option<OpenedOrNot>,
    /// An export of that image needs its table of partitions.
    with_table: bool,
    /// Tables that were read.
    tables: Vec<(VolumeId, Table)>,
}

impl Builder {
    /// Leaves late images to the server that serves the others. Without others it waits for them.
    fn take_late(&mut self, exports: &[ExportSpec], late: Vec<(usize, LateImage)>) {
        let has_others = !self.assembly.exports.is_empty();
        for (_, late) in late {
            let reason = match has_others {
                true => Some(NOT_YET.into()),
                false => self.wait_for(exports, &late),
            };
            if let Some(reason) = reason {
                let spec = late.spec.clone();
                self.assembly.absent.push(AbsentExport { spec, reason });
            }
            if has_others {
                self.assembly.late.push(late);
            }
        }
    }

    /// Waits for a late image; returns the reason if it cannot be served.
    fn wait_for(&mut self, exports: &[ExportSpec], late: &LateImage) -> Option<String> {
        let spec = &late.spec;
        self.with_table = range::needs_table(exports, spec, &self.leftovers);
        self.opened = late.image.as_ref().and_then(|image| image.recv().ok());
        let added = self.add(spec, wants_write(exports, spec), device_of(exports, spec));
        added.err().map(|error| error.message)
    }

    fn add(
        &mut self,
        export: &ExportSpec,
        write: bool,
        named: Option<&NamedDevice>,
    ) -> Result<(), ConfigError> {
        let (volume, partition) = match self.find(export) {
            Some(volume) => {
                let table = self.tables.iter().find(|(of, _)| *of == volume);
                let table = table.map(|(_, table)| table);
                (volume, range::of_partition(export, table, &self.leftovers)?)
            }
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
        let range = range::of_export(export, options.size, &origin.what, partition)?;
        let export = assembled(export, (volume, range), &origin.what, options.size);
        self.assembly.exports.push(export);
        Ok(())
    }

    /// Finds the volume of a file that is open already.
    fn find(&self, export: &ExportSpec) -> Option<VolumeId> {
        let Some(identity) = export.identity() else { return self.find_imagined(export) };
        let found = self.assembly.origins.iter().position(|o| o.identity == Some(identity));
        found.map(|volume| VolumeId(volume as u16))
    }

    /// Finds the volume of an inspected image that is to be made, and so has no identity yet.
    fn find_imagined(&self, export: &ExportSpec) -> Option<VolumeId> {
        let path = |spec: &Spec| spec.base.path().map(Path::to_owned);
        let own = path(&export.spec).filter(|_| self.opening == Opening::Inspect)?;
        let mut origins = self.assembly.origins.iter();
        let found = origins.position(|origin| path(&origin.spec).as_ref() == Some(&own));
        found.map(|volume| VolumeId(volume as u16))
    }

    fn open(
        &mut self,
        export: &ExportSpec,
        write: bool,
        named: Option<&NamedDevice>,
    ) -> Result<(VolumeId, Option<ExportRange>), ConfigError> {
        let open = || OpenedImage::by(self.opening, &export.spec, write, &self.leftovers);
        let mut opened = self.opened.take().unwrap_or_else(open)?;
        let joins = opened
            .common(export)
            .is_some_and(|key| self.groups.iter().any(|group| group.common == key));
        if !joins && self.devices.len() == DEVICES_MAX {
            let message = format!(
                "export `{}` needs a device of its own, and a server has at most {DEVICES_MAX}; files and overlays of one filesystem without wrappers share one",
                shown_name(&export.name)
            );
            return Err(ConfigError::new("export", message));
        }
        let volume = VolumeId(self.assembly.volumes.len() as u16);
        let options = opened.options;
        self.assembly.notes.extend(opened.notes.iter().cloned());
        let restored = match self.opening {
            Opening::Serve => opened.recover(export, &self.leftovers)?,
            // What a dead server left is for the start, which writes it.
            Opening::Inspect | Opening::Read => RestoredImage::default(),
        };
        self.assembly.notes.extend(restored.notes);
        let mut pending = restored.pending;
        let made = opened.made(&export.spec).filter(|_| self.opening == Opening::Serve);
        let mut table = None;
        if self.with_table {
            // The table may be among what a killed server left.
            for pending in pending.drain(..) {
                self.assembly.notes.push(pending.write()?);
            }
            let open = || OpenedImage::by(self.opening, &export.spec, write, &self.leftovers);
            let (again, read) = range::with_table(opened, export, open)?;
            (opened, table) = (again, Some(read));
        }
        let partition = match range::of_partition(export, table.as_ref(), &self.leftovers) {
            Ok(partition) => partition,
            Err(error) => {
                // Nothing was written to an image that is new.
                made.into_iter().for_each(CreatedImage::undo);
                return Err(error);
            }
        };
        self.tables.extend(table.map(|table| (volume, table)));
        self.assembly.created.extend(made);
        self.assembly.suspect.extend(restored.suspect.then_some(volume));
        let pending = pending.into_iter().map(|pending| (volume, pending));
        self.assembly.pending.extend(pending);
        self.assembly.origins.push(opened.origin(&export.spec));
        self.assembly.files.extend(opened.watched(volume));
        let device = match opened.joins() {
            Ok((filesystem, image)) => self.join_group(filesystem, named, volume, image),
            Err(opened) => {
                let device = opened.into_device(&export.spec, volume);
                self.add_device(None, named, Some(device))
            }
        };
        self.assembly.volumes.push((device, options));
        Ok((volume, partition))
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
        image: Box<dyn Image>,
    ) -> DeviceId {
        let common = SharedDeviceKey::of(filesystem, named);
        if let Some(group) = self.groups.iter_mut().find(|group| group.common == common) {
            group.images.push((volume, image));
            return group.device;
        }
        let device = self.add_device(Some(common.clone()), named, None);
        self.groups.push(DeviceGroup { common, device, images: vec![(volume, image)] });
        device
    }

    fn finish(mut self) -> Assembly {
        for DeviceGroup { device, images, .. } in self.groups {
            let made = filesystem_device(images);
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
    use headworks_testing::TempDir;

    /// Cache modes and policies of the volumes behind two exports of one image.
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
    fn exports_of_one_image_must_agree_on_its_specification() {
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
        assert_eq!(both("IMAGE", "file:path=IMAGE,size=512K"), Ok(1));
        assert_eq!(both("file:path=IMAGE,direct=off", "IMAGE"), Ok(1));
        let slow = "delay:read=1ms,of=file:path=IMAGE";
        assert_eq!(both(slow, slow), Ok(1));
        for (one, other, part) in [
            ("IMAGE", slow, "their wrappers must be the same"),
            (slow, "IMAGE", "their wrappers must be the same"),
            ("IMAGE", "file:path=IMAGE,direct=off", "same image"),
            ("IMAGE", "file:path=IMAGE,size=2M", "has 1048576 bytes, less than 2097152"),
        ] {
            let said = both(one, other).unwrap_err();
            assert!(said.starts_with("export `b` differs") && said.contains(part), "{said}");
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn named_device_is_shared_by_its_exports() {
        let folder = TempDir::new("named");
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
        // The images exist now: exports of one image must agree on the device.
        drop(assembly);
        let again = |text: &str, device| export("again", text, device);
        let either = Assembly::new(&[file("a", None), again("DIR/a", Some("fast"))]).unwrap();
        assert_eq!((either.volumes.len(), names(&either)), (1, vec![Some("fast".to_owned())]));
        drop(either);
        let differ = Assembly::new(&[file("a", Some("slow")), again("DIR/a", Some("fast"))]);
        assert!(differ.err().unwrap().to_string().contains("device: export `again` differs"));
    }

    #[test]
    fn files_and_overlays_of_a_filesystem_share_a_device() {
        let folder = TempDir::new("shared");
        std::fs::write(folder.join("base"), vec![1; 1 << 20]).unwrap();
        for name in ["a", "b", "c", "d"] {
            let new = headworks_images::NewOverlay::new(&folder.join("base"), None).unwrap();
            new.create(&folder.join(name)).unwrap();
        }
        let export = |text: &str, device: Option<&str>| {
            let named = |name: &str| NamedDevice { name: name.to_owned(), queue: Vec::new() };
            let text = text.replace("DIR", &folder.display().to_string());
            let spec = Spec::parse(&text).unwrap();
            let device = device.map(named);
            ExportSpec { device, ..ExportSpec::new(text, spec, false) }
        };
        let exports = [
            export("overlay:path=DIR/a", None),
            export("file:path=DIR/plain,size=1M", None),
            export("overlay:path=DIR/b", None),
            export("delay:read=1us,of=overlay:path=DIR/c", None),
            export("overlay:path=DIR/d", Some("fast")),
            export("file:path=DIR/named,size=1M", Some("fast")),
        ];
        let device_ids = |assembly: &Assembly| -> Vec<u16> {
            assembly.volumes.iter().map(|(device, _)| device.0).collect()
        };
        let (seen, refused) = Assembly::inspect(&exports, MissingImage::Refuse);
        assert!(refused.is_empty() && device_ids(&seen) == [0, 0, 0, 1, 2, 2]);
        drop(seen);
        let assembly = Assembly::new(&exports).unwrap();
        assert_eq!(device_ids(&assembly), [0, 0, 0, 1, 2, 2]);
        let shared = assembly.devices[0].0;
        drop(assembly);
        // The file loses nothing by its neighbours, but that discards are as coarse as their blocks.
        let mut alone = Assembly::new(&exports[1..2]).unwrap().devices[0].0;
        alone.discard_granularity = alone.discard_granularity.max(4096);
        assert_eq!(shared, alone);
    }

    #[test]
    fn export_names_are_unique_for_operator() {
        let checked = |names: &[&str]| {
            let spec = Spec::parse("null:size=1M").unwrap();
            let export = |name: &&str| ExportSpec::new((*name).to_owned(), spec.clone(), false);
            let exports: Vec<ExportSpec> = names.iter().map(export).collect();
            check_exports(&exports).map_err(|(_, error)| error.message.to_string())
        };
        assert_eq!(checked(&["", "a"]), Ok(()));
        assert_eq!(checked(&["default", "a"]), Ok(()));
        assert!(checked(&["a", "b", "a"]).unwrap_err().contains("two exports are named `a`"));
        for both in [["", "default"], ["default", ""]] {
            let said = checked(&both).unwrap_err();
            assert!(said.contains("another has no name"), "{said}");
        }
    }

    #[test]
    fn memory_devices_are_not_cached_by_default() {
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
    fn exports_of_one_image_must_agree_on_cache_options() {
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
