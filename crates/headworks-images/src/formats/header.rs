//! Checks a qcow2 image before its format's code reads it: what is not read is refused here with a sentence, and every number
//! from which memory or time follows is compared with the file.
//!
//! After this check: a table of the image lies inside the file, the L1 table covers the disk, and the L2 tables together have at
//! most [`CLUSTERS_MAX`] entries. Field offsets are those of QEMU's docs/interop/qcow2.txt.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Most clusters that allocated L2 tables may describe: 16 TiB with clusters of 64 KiB, a walk of about half a minute.
const CLUSTERS_MAX: u64 = 1 << 28;
/// QEMU's limit of L1 entries.
const L1_ENTRIES_MAX: u64 = 4 << 20;
/// Bits 9 to 55 of an entry: an offset in the file.
const OFFSET_MASK: u64 = 0x00ff_ffff_ffff_fe00;
/// Bytes of the header that are looked at; the compression type is the last one.
const HEADER_BYTES: u64 = 105;
/// QEMU's limit of a backing file's name in bytes.
const NAME_MAX: u32 = 1023;

const DIRTY: u64 = 1 << 0;
const CORRUPT: u64 = 1 << 1;
const DATA_FILE: u64 = 1 << 2;
const COMPRESSION_TYPE: u64 = 1 << 3;
const EXTENDED_L2: u64 = 1 << 4;

const BACKING_FORMAT: u32 = 0xe279_2aca;
const DATA_FILE_NAME: u32 = 0x4441_5441;

/// What an image says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Size of the disk in bytes.
    pub size: u64,
    /// Size of a cluster in bytes.
    pub cluster_size: u64,
    /// Name of the backing file, as it is written.
    pub backing: Option<String>,
    /// Format of the backing file, as it is written.
    pub backing_format: Option<String>,
    /// Whether the clusters are in another file.
    pub has_data_file: bool,
    /// Name of that file, as it is written.
    pub data_file: Option<String>,
}

/// Why an image is not read: a clause that begins with a verb, for "PATH ...".
pub(crate) type Refusal = String;

/// Advice for what a copy by qemu-img does not have.
const COPY: &str = "make a copy without it: qemu-img convert -O qcow2 IMAGE COPY";

/// Reads and checks the header and the L1 table of an image, whose file has `file_size` bytes.
pub(crate) fn check(file: &File, file_size: u64) -> Result<Header, Refusal> {
    let bytes = Bytes::read(file, 0, file_size.min(HEADER_BYTES) as usize)?;
    if !bytes.0.starts_with(crate::formats::magic::QCOW2) {
        return Err("is no qcow2 image".to_owned());
    }
    let version = bytes.u32(4)?;
    if version != 2 && version != 3 {
        return Err(format!(
            "is a qcow2 image of version {version}, and versions 2 and 3 are read; {COPY}"
        ));
    }
    let cluster_bits = bytes.u32(20)?;
    if !(9..=21).contains(&cluster_bits) {
        return Err(damaged(&format!(
            "its clusters would have 2^{cluster_bits} bytes, and 512 to 2 MiB are possible"
        )));
    }
    if bytes.u32(32)? != 0 {
        return Err(format!("is an encrypted qcow2 image, which is not read; {COPY}"));
    }
    let (features, header_len) = match version {
        2 => (0, 72),
        _ => (bytes.u64(72)?, u64::from(bytes.u32(100)?)),
    };
    let cluster_size = 1 << cluster_bits;
    if header_len > cluster_size || (version == 3 && header_len < 104) {
        return Err(damaged(&format!("its header would have {header_len} bytes")));
    }
    check_features(features, &bytes, header_len)?;
    let size = bytes.u64(24)?;
    let mut header = Header {
        size,
        cluster_size,
        backing: None,
        backing_format: None,
        has_data_file: features & DATA_FILE != 0,
        data_file: None,
    };
    if size == 0 {
        return Err("has a disk of 0 bytes".to_owned());
    }
    if size > 1 << 62 {
        return Err(damaged(&format!("its disk would have {size} bytes")));
    }
    header.read_names(file, &bytes, header_len)?;
    check_tables(file, file_size, &header, (bytes.u64(40)?, bytes.u32(36)?.into()))?;
    Ok(header)
}

/// Refuses incompatible features that are not read.
fn check_features(features: u64, bytes: &Bytes, header_len: u64) -> Result<(), Refusal> {
    let repair = "repair it first: qemu-img check -r all IMAGE";
    if features & CORRUPT != 0 {
        return Err(format!("is marked as corrupt; {repair}"));
    }
    if features & DIRTY != 0 {
        return Err(format!("is marked as dirty, its last writer did not close it; {repair}"));
    }
    if features & EXTENDED_L2 != 0 {
        return Err(format!("has extended L2 entries, which are not read; {COPY}"));
    }
    if features & COMPRESSION_TYPE != 0 {
        let zstd = header_len > 104 && bytes.0.get(104) == Some(&1);
        let how = if zstd { "zstd" } else { "an unknown method" };
        return Err(format!("is compressed by {how}, and zlib alone is read; {COPY}"));
    }
    match features & !DATA_FILE {
        0 => Ok(()),
        unknown => Err(format!("needs unknown features ({unknown:#x}); {COPY}")),
    }
}

impl Header {
    /// Reads the names of other files from the first cluster.
    fn read_names(&mut self, file: &File, bytes: &Bytes, header_len: u64) -> Result<(), Refusal> {
        let (offset, len) = (bytes.u64(8)?, bytes.u32(16)?);
        if offset != 0 {
            if len > NAME_MAX
                || offset.checked_add(len.into()).is_none_or(|end| end > self.cluster_size)
            {
                return Err(damaged(
                    "the name of its backing file is outside of the first cluster",
                ));
            }
            self.backing = Some(Bytes::read(file, offset, len as usize)?.text()?);
        }
        let end = if offset == 0 { self.cluster_size } else { offset };
        let mut at = header_len;
        // What follows a header of version 2 without extensions is zeros, too.
        while at + 8 <= end {
            let head = Bytes::read(file, at, 8)?;
            let (kind, len) = (head.u32(0)?, u64::from(head.u32(4)?));
            if kind == 0 {
                break;
            }
            if at + 8 + len > end {
                return Err(damaged("a header extension is outside of the first cluster"));
            }
            let text = || Bytes::read(file, at + 8, len as usize)?.text();
            match kind {
                BACKING_FORMAT => self.backing_format = Some(text()?),
                DATA_FILE_NAME => self.data_file = Some(text()?),
                _ => {}
            }
            at += 8 + len.next_multiple_of(8);
        }
        Ok(())
    }
}

/// Checks that the L1 table covers the disk and that it and the L2 tables lie inside the file.
fn check_tables(
    file: &File,
    file_size: u64,
    header: &Header,
    (l1_offset, l1_entries): (u64, u64),
) -> Result<(), Refusal> {
    let entries_of_l2 = header.cluster_size / 8;
    let needed = header.size.div_ceil(header.cluster_size * entries_of_l2);
    let truncated = |what: &str| {
        format!("is truncated: {what} lies beyond its end at {file_size}; copy the image again")
    };
    if l1_entries < needed || l1_entries > L1_ENTRIES_MAX {
        return Err(damaged(&format!(
            "its L1 table has {l1_entries} entries, and its disk needs {needed}, at most {L1_ENTRIES_MAX}"
        )));
    }
    if l1_offset % header.cluster_size != 0 {
        return Err(damaged("its L1 table begins inside a cluster"));
    }
    if l1_offset.checked_add(8 * l1_entries).is_none_or(|end| end > file_size) {
        return Err(truncated("the L1 table"));
    }
    let table = Bytes::read(file, l1_offset, 8 * l1_entries as usize)?;
    let (entries, _) = table.0.as_chunks::<8>();
    let mut tables = 0;
    for entry in &entries[..needed as usize] {
        let offset = u64::from_be_bytes(*entry) & OFFSET_MASK;
        if offset == 0 {
            continue;
        }
        tables += 1;
        if offset.checked_add(header.cluster_size).is_none_or(|end| end > file_size) {
            return Err(truncated(&format!("the L2 table at {offset}")));
        }
    }
    let clusters = tables * entries_of_l2;
    match clusters > CLUSTERS_MAX {
        true => Err(format!(
            "has tables of {clusters} clusters, and {CLUSTERS_MAX} are read; make a copy with larger clusters: qemu-img convert -O qcow2 -o cluster_size=2M IMAGE COPY"
        )),
        false => Ok(()),
    }
}

fn damaged(how: &str) -> Refusal {
    format!("is damaged: {how}")
}

fn unreadable(error: io::Error) -> Refusal {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "is truncated: its header is incomplete".to_owned(),
        _ => format!("cannot be read: {error}"),
    }
}

/// Big-endian numbers in a part of a file.
struct Bytes(Vec<u8>);

impl Bytes {
    fn read(file: &File, offset: u64, len: usize) -> Result<Self, Refusal> {
        let mut bytes = vec![0; len];
        file.read_exact_at(&mut bytes, offset).map_err(unreadable)?;
        Ok(Self(bytes))
    }

    fn array<const N: usize>(&self, at: usize) -> Result<[u8; N], Refusal> {
        let found = self.0.get(at..).and_then(|rest| rest.first_chunk::<N>());
        found.copied().ok_or_else(|| unreadable(io::ErrorKind::UnexpectedEof.into()))
    }

    fn u32(&self, at: usize) -> Result<u32, Refusal> {
        self.array(at).map(u32::from_be_bytes)
    }

    fn u64(&self, at: usize) -> Result<u64, Refusal> {
        self.array(at).map(u64::from_be_bytes)
    }

    fn text(self) -> Result<String, Refusal> {
        String::from_utf8(self.0).map_err(|_| damaged("the name of another file is not UTF-8"))
    }
}
