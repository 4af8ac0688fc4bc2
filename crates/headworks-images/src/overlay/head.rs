//! The head of an overlay file: what the file is, and which base it is over.
//!
//! Two copies of 2 KiB in the first 4 KiB; the valid one with the higher number counts. A change writes the other copy, so a cut or a
//! torn write leaves one of the two. Numbers are little-endian:
//!
//! ```text
//!   0 magic:8  version:4  block size:4  volume size:8  number:8  task:4  base kind:4  uuid:16
//!   56 base size:8  base changed (mtime, ns):8  base uuid:16  length of path:4  path ..         2044 CRC-32C:4
//! ```
//!
//! A head may be hostile: everything it says is checked here or when the base is opened. The base's kind is stored, never guessed from its
//! first bytes, which the owner of a raw base could have written.

use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use super::checksum::crc32c;

/// Bytes of a block, the unit of the bitmap.
pub(super) const BLOCK: u64 = 4096;
/// Bytes of both copies of the head; the bitmap follows.
pub(super) const HEAD_BYTES: usize = 4096;
/// Largest volume of an overlay: its bitmaps take 4 GiB of memory.
pub(super) const VOLUME_MAX: u64 = 64 << 40;
/// Longest path of a base.
pub(super) const PATH_MAX: usize = 1024;
const COPY_BYTES: usize = HEAD_BYTES / 2;
const CHECKSUM_AT: usize = COPY_BYTES - 4;
const PATH_AT: usize = 92;
const DATA_ALIGN: u64 = 1 << 20;
const MAGIC: [u8; 8] = *b"\x89HWO\r\n\x1a\n";
const VERSION: u32 = 1;

/// What holds the blocks that the overlay does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BaseKind {
    /// Raw bytes: a file or a block device.
    Raw,
    /// Another overlay.
    Overlay,
    /// An image of QEMU's format.
    Qcow2,
    /// A VMDK descriptor.
    Vmdk,
    /// A device that is no file of this machine; the path is its specification.
    Remote,
}

/// The base as the overlay knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BaseRecord {
    pub kind: BaseKind,
    /// Path, relative to the directory of the overlay unless absolute; of a remote its specification.
    pub path: PathBuf,
    /// Size of the base's volume in bytes.
    pub size: u64,
    /// Modification time in nanoseconds since 1970; 0 of a block device, which has none that says anything.
    pub changed: u64,
    /// Of a base that is an overlay; zeros otherwise.
    pub uuid: [u8; 16],
}

/// Work on an overlay that has begun and not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    /// None.
    None,
    /// A commit into the base, which may have changed since.
    Commit,
    /// A reset: some blocks are given up.
    Reset,
}

impl Task {
    fn of(flags: u32) -> Option<Self> {
        [Self::None, Self::Commit, Self::Reset].into_iter().find(|task| *task as u32 == flags)
    }
}

/// A valid head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// Bytes of the blocks of the volume, which may end within the last one: [`Head::size`].
    pub volume_size: u64,
    /// Bytes of the last block that the volume does not have. They are zeros.
    pub beyond: u16,
    /// Counts the changes of the head.
    pub number: u64,
    pub task: Task,
    pub uuid: [u8; 16],
    pub base: BaseRecord,
}

/// Bytes of the bitmap of a volume, in whole pages.
pub(super) fn bitmap_bytes(volume_size: u64) -> u64 {
    volume_size.div_ceil(BLOCK).div_ceil(8).next_multiple_of(BLOCK)
}

/// Offset of the data in the file.
pub(super) fn data_start(volume_size: u64) -> u64 {
    (HEAD_BYTES as u64 + bitmap_bytes(volume_size)).next_multiple_of(DATA_ALIGN)
}

/// Offset of the tag of here bits in the file; the bits follow a page later.
pub(super) fn here_start(volume_size: u64) -> u64 {
    (data_start(volume_size) + volume_size).next_multiple_of(DATA_ALIGN)
}

/// Bytes of the file.
pub(super) fn file_bytes(volume_size: u64) -> u64 {
    here_start(volume_size) + super::here::TAG_PAGE + bitmap_bytes(volume_size)
}

/// Whether a volume of an overlay may have this size.
pub(super) fn is_possible_size(size: u64) -> bool {
    (1..=VOLUME_MAX).contains(&size)
}

/// The blocks of a volume of `size` bytes, as bytes, and how many of them are beyond its end.
pub(super) fn blocks_of(size: u64) -> (u64, u16) {
    let all = size.next_multiple_of(BLOCK);
    (all, (all - size) as u16)
}

/// Whether the bytes begin as an overlay does.
pub(super) fn has_magic(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

impl Head {
    /// Bytes of the volume.
    pub fn size(&self) -> u64 {
        self.volume_size - u64::from(self.beyond)
    }

    /// The newest valid copy of the head, or a phrase that says what is wrong with it.
    pub fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        let copies = || bytes.chunks_exact(COPY_BYTES).take(2);
        let valid = copies().filter_map(|copy| Self::decode_copy(copy).ok());
        match valid.max_by_key(|head| head.number) {
            Some(head) => Ok(head),
            None => Err(copies()
                .map(|copy| Self::decode_copy(copy).err().unwrap_or("is not an overlay"))
                .find(|why| *why != NO_MAGIC)
                .unwrap_or(NO_MAGIC)),
        }
    }

    fn decode_copy(copy: &[u8]) -> Result<Self, &'static str> {
        let int =
            |at: usize| u32::from_le_bytes([copy[at], copy[at + 1], copy[at + 2], copy[at + 3]]);
        let long = |at: usize| u64::from(int(at)) | u64::from(int(at + 4)) << 32;
        let uuid = |at: usize| -> [u8; 16] { copy[at..at + 16].try_into().unwrap_or_default() };
        if copy.len() != COPY_BYTES || !has_magic(copy) {
            return Err(NO_MAGIC);
        }
        if int(CHECKSUM_AT) != crc32c(&copy[..CHECKSUM_AT]) {
            return Err("has a damaged head: its checksum is wrong");
        }
        if int(8) != VERSION {
            return Err("is an overlay of a later version of Headworks");
        }
        let (size, path_len) = (long(16), int(88) as usize);
        let kind = match int(36) {
            0 => BaseKind::Raw,
            1 => BaseKind::Overlay,
            2 => BaseKind::Qcow2,
            3 => BaseKind::Vmdk,
            4 => BaseKind::Remote,
            _ => return Err("has a base of a kind that this version does not know"),
        };
        let is_possible = u64::from(int(12)) == BLOCK
            && is_possible_size(size)
            && (1..=PATH_MAX).contains(&path_len);
        let Some(task) = Task::of(int(32)).filter(|_| is_possible) else {
            return Err("has a head with impossible values");
        };
        let path = std::ffi::OsString::from_vec(copy[PATH_AT..PATH_AT + path_len].to_vec());
        let (volume_size, beyond) = blocks_of(size);
        Ok(Self {
            volume_size,
            beyond,
            number: long(24),
            task,
            uuid: uuid(40),
            base: BaseRecord {
                kind,
                path: path.into(),
                size: long(56),
                changed: long(64),
                uuid: uuid(72),
            },
        })
    }

    /// The copy that this head is written as, and its offset in the file: that of the copy with the lower number.
    pub fn encode(&self) -> (u64, [u8; COPY_BYTES]) {
        let mut copy = [0; COPY_BYTES];
        let path = self.base.path.as_os_str().as_bytes();
        let path = &path[..path.len().min(PATH_MAX)];
        let mut put = |at: usize, bytes: &[u8]| copy[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &MAGIC);
        put(8, &VERSION.to_le_bytes());
        put(12, &(BLOCK as u32).to_le_bytes());
        put(16, &self.size().to_le_bytes());
        put(24, &self.number.to_le_bytes());
        put(32, &(self.task as u32).to_le_bytes());
        put(36, &(self.base.kind as u32).to_le_bytes());
        put(40, &self.uuid);
        put(56, &self.base.size.to_le_bytes());
        put(64, &self.base.changed.to_le_bytes());
        put(72, &self.base.uuid);
        put(88, &(path.len() as u32).to_le_bytes());
        put(PATH_AT, path);
        let checksum = crc32c(&copy[..CHECKSUM_AT]);
        copy[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
        (self.number % 2 * COPY_BYTES as u64, copy)
    }
}

const NO_MAGIC: &str = "is not an overlay";

#[cfg(test)]
mod tests {
    use super::*;

    fn head(number: u64) -> Head {
        Head {
            volume_size: 1 << 30,
            beyond: 5,
            number,
            task: if number == 3 { Task::Commit } else { Task::None },
            uuid: [7; 16],
            base: BaseRecord {
                kind: BaseKind::Overlay,
                path: "golden/base.img".into(),
                size: 5 << 20,
                changed: 1_790_000_000_123_456_789,
                uuid: [9; 16],
            },
        }
    }

    fn file(heads: &[Head]) -> Vec<u8> {
        let mut bytes = vec![0; HEAD_BYTES];
        for head in heads {
            let (at, copy) = head.encode();
            bytes[at as usize..][..COPY_BYTES].copy_from_slice(&copy);
        }
        bytes
    }

    #[test]
    fn newest_valid_copy_counts() {
        assert_eq!(Head::decode(&file(&[head(0)])), Ok(head(0)));
        let mut bytes = file(&[head(2), head(3)]);
        assert_eq!(Head::decode(&bytes), Ok(head(3)));
        bytes[COPY_BYTES + 600] ^= 1;
        assert_eq!(Head::decode(&bytes), Ok(head(2)), "a torn copy leaves the older one");
        bytes[20] ^= 1;
        assert!(Head::decode(&bytes).unwrap_err().contains("checksum"));
    }

    #[test]
    fn any_changed_byte_is_noticed() {
        let good = file(&[head(0)]);
        for at in 0..COPY_BYTES {
            let mut bytes = good.clone();
            bytes[at] ^= 0x10;
            assert!(Head::decode(&bytes).is_err(), "byte {at}");
        }
        assert_eq!(Head::decode(&[0; HEAD_BYTES]), Err(NO_MAGIC));
        assert_eq!(Head::decode(&[]), Err(NO_MAGIC));
    }

    #[test]
    fn hostile_values_with_a_right_checksum_are_refused() {
        let wrong: [(usize, &[u8]); 7] = [
            (8, &2_u32.to_le_bytes()),
            (12, &512_u32.to_le_bytes()),
            (16, &0_u64.to_le_bytes()),
            (16, &u64::MAX.to_le_bytes()),
            (32, &3_u32.to_le_bytes()),
            (36, &9_u32.to_le_bytes()),
            (88, &u32::MAX.to_le_bytes()),
        ];
        for (at, value) in wrong {
            let mut bytes = file(&[head(0)]);
            bytes[at..at + value.len()].copy_from_slice(value);
            let checksum = crc32c(&bytes[..CHECKSUM_AT]);
            bytes[CHECKSUM_AT..COPY_BYTES].copy_from_slice(&checksum.to_le_bytes());
            assert!(Head::decode(&bytes).is_err(), "{at}");
        }
    }

    #[test]
    fn volume_may_end_within_a_block() {
        for (size, all, beyond) in [(1, 4096, 4095), (4096, 4096, 0), (4097, 8192, 4095)] {
            assert_eq!(blocks_of(size), (all, beyond));
            assert_eq!(data_start(size), data_start(all), "where the data are says nothing of it");
            assert_eq!((here_start(size), file_bytes(size)), (here_start(all), file_bytes(all)));
        }
        assert_eq!(Head::decode(&file(&[head(0)])).map(|head| head.size()), Ok((1 << 30) - 5));
    }

    #[test]
    fn data_begin_behind_the_bitmap_at_a_mebibyte() {
        for (size, bitmap, data) in [
            (4096, 4096, 1 << 20),
            (128 << 20, 4096, 1 << 20),
            ((128 << 20) + 4096, 8192, 1 << 20),
            (1 << 40, 32 << 20, 33 << 20),
        ] {
            assert_eq!((bitmap_bytes(size), data_start(size)), (bitmap, data), "{size}");
        }
    }
}
