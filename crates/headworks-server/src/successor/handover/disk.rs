//! Which disk a connection is bound to, and whether the new process has that disk.
//!
//! Rule: a connection belongs to a disk, not to a name. It moves only to the export of its name, and only if that leads to the disk
//! that it was bound to and keeps what its client was told in the handshake:
//!
//! ```text
//!   old connection --name--> export of the new process --> its volume
//!        |                       |                            |
//!        '- was told:            '- size not smaller          '- same key: type, identity of the image (the top file of an
//!           place, size, flags,     same place and access        overlay, address and export of a remote), `powercut:`
//!           smallest block          no flag withdrawn            size not smaller
//!                                   smallest block not larger
//! ```
//!
//! What becomes of other connections is said by [`UnmatchedClients`](super::UnmatchedClients). The contents of the cache move from
//! volume to volume by the same key and size, and not to one that became read-only: dirty blocks must be written. Which listener, tenant and certificate an export needs is not asked again: a reload
//! leaves connections in transmission alone as well. Wrappers other than `powercut:` change no bytes.

use std::path::PathBuf;

use headworks::house::display_size;
use headworks_core::{ShardId, VolumeId, VolumeOptions};
use headworks_nbd::{ExportInfo, TransmissionFlags};

use super::standing::{HandedPartition, HandedRemote};
use crate::exports::assemble::image::VolumeOrigin;
use crate::exports::export_range::ExportRange;
use crate::spec::BaseDevice;
use crate::successor::marker::place_of_mark;

/// A volume as both processes know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HandedVolume {
    pub id: VolumeId,
    pub home: ShardId,
    /// Name of an export of it, for messages.
    pub export: String,
    /// Which disk it is.
    pub key: String,
    /// Whether no later image can have this key once the image is closed.
    pub is_known: bool,
    /// The path beside which its mark lies ([`place_of_mark`]).
    pub path: Option<PathBuf>,
    /// Size of the volume in bytes.
    pub size: u64,
    /// Whether nothing is written to it.
    pub read_only: bool,
    /// The remote behind it, as it was opened.
    pub remote: Option<HandedRemote>,
    /// Partitions of it that are served.
    pub partitions: Vec<HandedPartition>,
}

impl HandedVolume {
    /// A volume of this process, after those `before` it.
    pub fn new(
        (id, home): (VolumeId, ShardId),
        export: String,
        origin: &VolumeOrigin,
        &VolumeOptions { size, read_only, .. }: &VolumeOptions,
        before: &[Self],
    ) -> Self {
        let (key, path) =
            (disk_key(origin, before), place_of_mark(&origin.spec.base, origin.identity));
        let is_known = origin.identity.is_none_or(|identity| identity.is_known());
        Self {
            id,
            home,
            export,
            key,
            is_known,
            path,
            size,
            read_only,
            remote: None,
            partitions: Vec::new(),
        }
    }

    /// Why `new` is not this disk, as a clause about the export; none if it is.
    pub fn difference(&self, new: &Self) -> Option<String> {
        if self.key != new.key {
            return Some("its image changed".to_owned());
        }
        (new.size < self.size).then(|| smaller(new.size, self.size))
    }

    /// Why `new` cannot have what is cached of this volume, of which some may be dirty; none if it can.
    pub fn refusal_of_contents(&self, new: &Self) -> Option<String> {
        let loses_access = new.read_only && !self.read_only;
        self.difference(new).or_else(|| loses_access.then(|| READ_ONLY_NOW.to_owned()))
    }
}

/// What a client was told of its export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ToldExport {
    /// Name of the export.
    pub name: String,
    /// Its volume in the process that told it.
    pub volume: VolumeId,
    /// Where it begins on its volume, in bytes.
    pub start: u64,
    /// Size of the export in bytes.
    pub size: u64,
    /// The smallest block that it takes, in bytes.
    pub block_size: u32,
    /// Access, and commands that it takes.
    pub flags: TransmissionFlags,
}

impl ToldExport {
    /// What clients of an export are told.
    pub fn new(info: &ExportInfo, volume: VolumeId, range: ExportRange) -> Self {
        let ExportInfo { name, size, flags, block_sizes, .. } = info;
        let (name, block_size, start) = (name.clone(), block_sizes.min, range.start());
        Self { name, volume, start, size: *size, block_size, flags: *flags }
    }

    /// What of this does not hold for an export any more, as a clause about it; none if all does.
    pub fn difference(&self, new: &ExportInfo, range: ExportRange) -> Option<String> {
        let read_only = TransmissionFlags::READ_ONLY;
        let (was, is) = (self.flags.contains(read_only), new.flags.contains(read_only));
        let why = match (was, is) {
            _ if range.start() != self.start => format!(
                "it begins at byte {} of its image now and began at {}",
                range.start(),
                self.start
            ),
            _ if new.size < self.size => smaller(new.size, self.size),
            (false, true) => READ_ONLY_NOW.to_owned(),
            (true, false) => "it is not read-only any more".to_owned(),
            _ if new.block_sizes.min > self.block_size => format!(
                "its smallest block is {} bytes now and was {}",
                new.block_sizes.min, self.block_size
            ),
            _ if self.flags.0 & !new.flags.0 != 0 => {
                "its cache mode does not keep what clients were promised".to_owned()
            }
            _ => return None,
        };
        Some(why)
    }
}

const READ_ONLY_NOW: &str = "it is read-only now";

fn smaller(now: u64, before: u64) -> String {
    format!("it has {} now, less than the {} before", display_size(now), display_size(before))
}

/// The key by which two processes agree on a disk; a disk without an identity is the how-manieth of its type.
fn disk_key(origin: &VolumeOrigin, before: &[HandedVolume]) -> String {
    let spec = &origin.spec;
    let kind = match &spec.base {
        BaseDevice::File { .. } => "file",
        BaseDevice::Image { options, .. } => options.format.name(),
        BaseDevice::Overlay { .. } => "overlay",
        BaseDevice::Nbd(_) => "nbd",
        BaseDevice::Rbd(_) => "rbd",
        BaseDevice::Null { .. } => "null",
        BaseDevice::Mem { .. } => "mem",
    };
    let holding = spec.wrappers.iter().filter(|wrapper| wrapper.holds_writes());
    let kind = holding.map(|wrapper| format!("{} ", wrapper.name())).collect::<String>() + kind;
    match (&spec.base, origin.identity) {
        (BaseDevice::Nbd(remote), _) => {
            format!("{kind} {} {:?}", remote.uri.target, remote.uri.export)
        }
        (_, Some(identity)) => format!("{kind} {identity}"),
        (_, None) => {
            let kind = kind + " #";
            let count = before.iter().filter(|volume| volume.key.starts_with(&kind)).count();
            format!("{kind}{count}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exports::assemble::image::OpenedImage;
    use crate::spec::Spec;
    use headworks_nbd::BlockSizes;
    use headworks_testing::TempFile;

    const MIB: u64 = 1 << 20;

    /// The volume of a specification, opened anew.
    fn volume(text: &str) -> HandedVolume {
        let spec = Spec::parse(text).unwrap();
        let opened = OpenedImage::new(&spec, true).unwrap();
        let (place, origin) = ((VolumeId(0), ShardId(0)), opened.origin(&spec));
        HandedVolume::new(place, "disk".to_owned(), &origin, &opened.options, &[])
    }

    #[test]
    fn volume_is_the_same_disk_by_image_type_and_size() {
        let (image, other) = (TempFile::new("disk"), TempFile::new("disk-other"));
        for file in [&image, &other] {
            std::fs::write(file.path(), vec![1; 4 << 20]).unwrap();
        }
        let link = TempFile::absent("disk-link");
        std::fs::hard_link(image.path(), link.path()).unwrap();
        let path = image.path().display();
        let old = volume(&format!("file:path={path}"));
        let same = [
            format!("file:path={}", link.path().display()),
            format!("file:path={path},direct=off"),
            format!("delay:read=1ms,of={path}"),
            format!("error:rate=0%,of=delay:write=1ms,of={path}"),
        ];
        for text in same {
            assert_eq!(old.difference(&volume(&text)), None, "{text}");
        }
        let others = [
            format!("file:path={}", other.path().display()),
            format!("powercut:of={path}"),
            "null:size=4M".to_owned(),
        ];
        for text in others {
            assert_eq!(old.difference(&volume(&text)).unwrap(), "its image changed", "{text}");
        }
        let resized = |size: u64| {
            std::fs::File::options().write(true).open(image.path()).unwrap().set_len(size).unwrap();
            old.difference(&volume(&format!("file:path={path}")))
        };
        assert_eq!(resized(8 * MIB), None);
        assert_eq!(resized(MIB).unwrap(), "it has 1 MiB now, less than the 4 MiB before");
        assert_eq!(resized(4 * MIB), None);
        // A copy in its place has the bytes and the path, and is another disk.
        std::fs::copy(image.path(), other.path()).unwrap();
        std::fs::rename(other.path(), image.path()).unwrap();
        let replaced = volume(&format!("file:path={path}"));
        assert_eq!(old.difference(&replaced).unwrap(), "its image changed");
        assert_eq!(old.difference(&volume(&format!("file:path={}", link.path().display()))), None);
    }

    #[test]
    fn contents_do_not_move_to_what_became_read_only() {
        let old = volume("null:size=4M");
        let read_only = HandedVolume { read_only: true, ..old.clone() };
        assert_eq!(old.refusal_of_contents(&read_only).unwrap(), "it is read-only now");
        assert_eq!(read_only.refusal_of_contents(&old), None);
        assert_eq!(read_only.refusal_of_contents(&read_only), None);
        assert_eq!(old.difference(&read_only), None);
    }

    #[test]
    fn client_goes_on_only_with_what_it_was_told() {
        use TransmissionFlags as Flags;
        let flags = Flags::HAS_FLAGS.with(Flags::SEND_FLUSH).with(Flags::CAN_MULTI_CONN);
        let info = |size: u64, min: u32, flags: Flags| ExportInfo {
            name: "disk".to_owned(),
            size,
            flags,
            block_sizes: BlockSizes { min, ..BlockSizes::default() },
            ..ExportInfo::default()
        };
        let whole = ExportRange::default();
        let old = ToldExport::new(&info(4 * MIB, 512, flags), VolumeId(3), whole);
        let cases = [
            (info(4 * MIB, 512, flags), None),
            (info(5 * MIB, 512, flags), None),
            (info(4 * MIB, 1, flags.with(Flags::SEND_CACHE)), None),
            (info(4 * MIB - 512, 512, flags), Some("less than")),
            (info(4 * MIB, 4096, flags), Some("its smallest block is 4096 bytes now and was 512")),
            (info(4 * MIB, 512, flags.with(Flags::READ_ONLY)), Some("it is read-only now")),
            (info(4 * MIB, 512, flags.without(Flags::CAN_MULTI_CONN)), Some("its cache mode")),
        ];
        for (new, expected) in cases {
            let found = old.difference(&new, whole);
            assert_eq!(found.is_some(), expected.is_some(), "{new:?}: {found:?}");
            assert!(found.unwrap_or_default().contains(expected.unwrap_or_default()), "{new:?}");
        }
        let read_only =
            ToldExport::new(&info(MIB, 1, flags.with(Flags::READ_ONLY)), VolumeId(0), whole);
        let now = read_only.difference(&info(MIB, 1, flags), whole);
        assert_eq!(now.unwrap(), "it is not read-only any more");
        let moved = old.difference(&info(5 * MIB, 512, flags), ExportRange::new(MIB, None));
        assert_eq!(moved.unwrap(), "it begins at byte 1048576 of its image now and began at 0");
    }
}
