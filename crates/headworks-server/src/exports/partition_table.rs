//! Partition tables, GPT and MBR: where a partition of a disk begins, and how long it is.
//!
//! ```text
//!   sector 0: MBR --an entry of type EE--> GPT: header in sector 1, or its copy in the last one --> entries
//!               `--> four entries --the first extended one--> sector with a logical partition and the link to the next --> ...
//! ```
//!
//! Numbers are those of Linux: the place of an entry in a GPT; 1 to 4 in an MBR, and 5 onwards for logical partitions in the order of
//! their links. As in Linux a GPT counts only behind a protective MBR, and a sector whose boot flags are none is no MBR (boot sectors of
//! file systems end with the same signature).
//!
//! A table is untrusted input: a virtual machine may have written it. Invariants: nothing beyond the disk is read; at most
//! [`PARTITIONS_MAX`] partitions are known and [`ENTRIES_BYTES_MAX`] bytes of entries are read; no number is used before its bounds are
//! checked. What cannot be used is an error in a sentence when that partition is asked for, and keeps no other from being found.

use std::io;

use headworks::house::display_size;

/// Highest number of a partition, as many as the usual GPT has entries.
pub const PARTITIONS_MAX: u8 = 128;

/// Most bytes of the entries of a GPT; the usual one has 16 KiB.
const ENTRIES_BYTES_MAX: u64 = 1 << 20;

/// Sectors of an MBR. A table on a disk with larger ones is a GPT.
const SECTOR: u64 = 512;

/// Sectors that a GPT may count in.
const GPT_SECTORS: [u64; 2] = [512, 4096];

/// Partitions that an error lists.
const LISTED: usize = 16;

/// Reads bytes of the disk at an offset.
pub type ReadAt<'a> = &'a mut dyn FnMut(u64, &mut [u8]) -> io::Result<()>;

/// A partition as its table has it; it may lie beyond the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    number: u8,
    start: u64,
    len: u64,
    /// It is the one that holds the logical partitions.
    is_extended: bool,
}

impl Entry {
    /// Whether it has bytes of its own, all of them on a disk of `size` bytes.
    fn is_usable(&self, size: u64) -> bool {
        let is_within = self.start.checked_add(self.len).is_some_and(|end| end <= size);
        !self.is_extended && self.len > 0 && is_within
    }
}

/// The partitions of a disk.
#[derive(Debug)]
pub struct PartitionTable {
    /// Bytes of the disk.
    size: u64,
    entries: Vec<Entry>,
    /// Why there may be more that were not found, as a clause.
    fault: Option<&'static str>,
}

impl PartitionTable {
    /// Reads the table of a disk of `size` bytes.
    ///
    /// # Errors
    /// What is wrong, as a clause about the disk.
    pub fn read(size: u64, read: ReadAt<'_>) -> Result<Self, String> {
        let mut disk = Disk { size, read };
        let Some(mbr) = disk.mbr(0)? else {
            return Err("has no partition table, neither GPT nor MBR".to_owned());
        };
        match mbr.iter().any(|entry| entry.kind == PROTECTIVE) {
            true => disk.gpt().map(|entries| Self { size, entries, fault: None }),
            false => disk.partitions(&mbr).map(|(entries, fault)| Self { size, entries, fault }),
        }
    }

    /// Offset and length of a partition in bytes; it lies within the disk and is not empty.
    ///
    /// # Errors
    /// What is wrong, as a clause about the disk.
    pub fn find(&self, number: u8) -> Result<(u64, u64), String> {
        let Some(found) = self.entries.iter().find(|entry| entry.number == number) else {
            let fault = self.fault.map_or(String::new(), |fault| format!("; {fault}"));
            return Err(format!("has no partition {number}; {}{fault}", self.list()));
        };
        let Entry { start, len, .. } = *found;
        match found {
            found if found.is_usable(self.size) => Ok((start, len)),
            Entry { is_extended: true, .. } => Err(format!(
                "has an extended partition {number}, which only holds others; {}",
                self.list()
            )),
            Entry { len: 0, .. } => Err(format!("has a partition {number} without a length")),
            _ => Err(format!(
                "has a partition {number} of {} from {} on, beyond its own end at {}",
                display_size(len),
                display_size(start),
                display_size(self.size)
            )),
        }
    }

    /// The partitions that can be served, with their sizes.
    fn list(&self) -> String {
        let mut usable = self.entries.iter().filter(|entry| entry.is_usable(self.size));
        let said = |entry: &Entry| format!("{} ({})", entry.number, display_size(entry.len));
        let listed: Vec<String> = usable.by_ref().take(LISTED).map(said).collect();
        let more = match usable.count() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        match listed.is_empty() {
            true => "there is none in its table".to_owned(),
            false => format!("there are {}{more}", listed.join(", ")),
        }
    }
}

/// Type of the entry that says that the disk has a GPT.
const PROTECTIVE: u8 = 0xee;
/// Types of partitions that hold logical ones.
const EXTENDED: [u8; 3] = [0x05, 0x0f, 0x85];

/// An entry of an MBR, in sectors.
#[derive(Clone, Copy, Default)]
struct MbrEntry {
    kind: u8,
    start: u64,
    len: u64,
}

impl MbrEntry {
    fn is_extended(&self) -> bool {
        EXTENDED.contains(&self.kind)
    }

    fn is_used(&self) -> bool {
        self.kind != 0 && self.start != 0
    }
}

struct Disk<'a> {
    size: u64,
    read: ReadAt<'a>,
}

impl Disk<'_> {
    /// Reads a sector; none beyond the end.
    fn sector(&mut self, offset: u64, len: u64) -> Result<Option<Vec<u8>>, String> {
        if offset.checked_add(len).is_none_or(|end| end > self.size) {
            return Ok(None);
        }
        let mut bytes = vec![0; len as usize];
        (self.read)(offset, &mut bytes)
            .map_err(|error| format!("cannot be read for its partition table: {error}"))?;
        Ok(Some(bytes))
    }

    /// The four entries of an MBR, or of a sector that links to a logical partition; none if it is neither.
    fn mbr(&mut self, offset: u64) -> Result<Option<[MbrEntry; 4]>, String> {
        let Some(bytes) = self.sector(offset, SECTOR)?.filter(|bytes| bytes[510..] == [0x55, 0xaa])
        else {
            return Ok(None);
        };
        let mut entries = [MbrEntry::default(); 4];
        for (entry, bytes) in entries.iter_mut().zip(bytes[446..510].chunks_exact(16)) {
            if bytes[0] & 0x7f != 0 {
                return Ok(None);
            }
            let (kind, start, len) =
                (bytes[4], u64::from(le32(bytes, 8)), u64::from(le32(bytes, 12)));
            *entry = MbrEntry { kind, start, len };
        }
        Ok(Some(entries))
    }

    /// The partitions of an MBR, and why there may be more.
    fn partitions(
        &mut self,
        mbr: &[MbrEntry; 4],
    ) -> Result<(Vec<Entry>, Option<&'static str>), String> {
        let mut entries = Vec::new();
        for (number, one) in (1..).zip(mbr).filter(|(_, one)| one.is_used()) {
            let (start, len) = (one.start * SECTOR, one.len * SECTOR);
            entries.push(Entry { number, start, len, is_extended: one.is_extended() });
        }
        let fault = match mbr.iter().find(|one| one.is_used() && one.is_extended()) {
            Some(extended) => self.logical(extended.start, &mut entries)?,
            None => None,
        };
        Ok((entries, fault))
    }

    /// Adds the logical partitions of the extended one at sector `first`; returns why there may be more.
    fn logical(
        &mut self,
        first: u64,
        entries: &mut Vec<Entry>,
    ) -> Result<Option<&'static str>, String> {
        let (mut number, mut at, mut seen) = (5, first, Vec::new());
        loop {
            if seen.contains(&at) {
                return Ok(Some("the links of its logical partitions go in a circle"));
            }
            seen.push(at);
            let Some(sector) = self.mbr(at.saturating_mul(SECTOR))? else {
                return Ok(Some("the links of its logical partitions lead to none"));
            };
            let own = sector[..2].iter().find(|one| one.is_used() && !one.is_extended());
            if let Some(own) = own {
                let (start, len) = ((at + own.start) * SECTOR, own.len * SECTOR);
                entries.push(Entry { number, start, len, is_extended: false });
                number += 1;
            }
            let Some(next) = sector.iter().find(|one| one.is_used() && one.is_extended()) else {
                return Ok(None);
            };
            if number > PARTITIONS_MAX || seen.len() > usize::from(PARTITIONS_MAX) {
                return Ok(Some("it has more logical partitions than can be named"));
            }
            at = first + next.start;
        }
    }

    /// The partitions of a GPT.
    fn gpt(&mut self) -> Result<Vec<Entry>, String> {
        for sector in GPT_SECTORS {
            if let Some(entries) = self.gpt_at(1, sector)? {
                return Ok(entries);
            }
        }
        for sector in GPT_SECTORS {
            let last = (self.size / sector).saturating_sub(1);
            if let Some(entries) = self.gpt_at(last, sector)? {
                return Ok(entries);
            }
        }
        Err("has a damaged GPT: neither its header nor the copy at the end is whole".to_owned())
    }

    /// The partitions of the GPT whose header is in a sector; none if it is not whole.
    fn gpt_at(&mut self, place: u64, sector: u64) -> Result<Option<Vec<Entry>>, String> {
        let Some(mut header) = self.sector(place.saturating_mul(sector), sector)? else {
            return Ok(None);
        };
        let (bytes, checksum) = (le32(&header, 12) as usize, le32(&header, 16));
        let is_whole = header.starts_with(b"EFI PART") && (92..=header.len()).contains(&bytes);
        if !is_whole || le64(&header, 24) != place {
            return Ok(None);
        }
        header[16..20].fill(0);
        let (first, count, entry) = (le64(&header, 72), le32(&header, 80), le32(&header, 84));
        let len = u64::from(count) * u64::from(entry);
        let is_table = entry >= 128 && entry.is_multiple_of(8) && len <= ENTRIES_BYTES_MAX;
        if crc32(&header[..bytes]) != checksum || !is_table {
            return Ok(None);
        }
        let table = first.checked_mul(sector).map(|offset| self.sector(offset, len)).transpose()?;
        let Some(table) = table.flatten().filter(|table| crc32(table) == le32(&header, 88)) else {
            return Ok(None);
        };
        let used = |bytes: &&[u8]| bytes[..16] != [0; 16];
        let entries = (1..=PARTITIONS_MAX).zip(table.chunks_exact(entry as usize));
        let entries = entries.filter(|(_, bytes)| used(bytes)).map(|(number, bytes)| {
            let (first, last) = (le64(bytes, 32), le64(bytes, 40));
            let sectors = last.checked_sub(first).map_or(0, |more| more.saturating_add(1));
            let (start, len) = (first.saturating_mul(sector), sectors.saturating_mul(sector));
            Entry { number, start, len, is_extended: false }
        });
        Ok(Some(entries.collect()))
    }
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|index| bytes[at + index]))
}

fn le64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|index| bytes[at + index]))
}

/// The checksum of a GPT, CRC-32 of IEEE 802.3. It is computed once for each opening, so bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = !0_u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
        }
    }
    !crc
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A disk in memory, and its table.
    fn table(disk: &[u8]) -> Result<PartitionTable, String> {
        PartitionTable::read(disk.len() as u64, &mut |offset, bytes| {
            let from = offset as usize;
            bytes.copy_from_slice(&disk[from..from + bytes.len()]);
            Ok(())
        })
    }

    fn found(disk: &[u8], number: u8) -> Result<(u64, u64), String> {
        table(disk)?.find(number)
    }

    fn put(disk: &mut [u8], at: u64, bytes: &[u8]) {
        disk[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
    }

    /// Writes a sector with entries of a type, a first sector and a number of sectors.
    fn put_mbr(disk: &mut [u8], sector: u64, entries: &[(u8, u32, u32)]) {
        for (index, (kind, start, len)) in (0..).zip(entries) {
            let at = sector * SECTOR + 446 + 16 * index;
            put(disk, at + 4, &[*kind]);
            put(disk, at + 8, &start.to_le_bytes());
            put(disk, at + 12, &len.to_le_bytes());
        }
        put(disk, sector * SECTOR + 510, &[0x55, 0xaa]);
    }

    /// Writes a header in sector `place` of the size `sector` with its entries from `first` on.
    fn put_header(
        disk: &mut [u8],
        (place, first, sector): (u64, u64, u64),
        (count, entry): (u32, u32),
        partitions: &[(usize, u64, u64)],
    ) {
        let mut entries = vec![0; (count * entry) as usize];
        for (number, first, last) in partitions {
            let at = (number - 1) * entry as usize;
            entries[at] = 1;
            entries[at + 32..at + 40].copy_from_slice(&first.to_le_bytes());
            entries[at + 40..at + 48].copy_from_slice(&last.to_le_bytes());
        }
        let mut header = [0; 92];
        header[..8].copy_from_slice(b"EFI PART");
        header[12..16].copy_from_slice(&92_u32.to_le_bytes());
        header[24..32].copy_from_slice(&place.to_le_bytes());
        header[72..80].copy_from_slice(&first.to_le_bytes());
        header[80..84].copy_from_slice(&count.to_le_bytes());
        header[84..88].copy_from_slice(&entry.to_le_bytes());
        header[88..92].copy_from_slice(&crc32(&entries).to_le_bytes());
        let checksum = crc32(&header);
        header[16..20].copy_from_slice(&checksum.to_le_bytes());
        put(disk, place * sector, &header);
        put(disk, first * sector, &entries);
    }

    /// A disk of 8 MiB with a GPT and its copy.
    fn gpt(sector: u64, partitions: &[(usize, u64, u64)]) -> Vec<u8> {
        let mut disk = vec![0; 8 * MIB as usize];
        put_mbr(&mut disk, 0, &[(PROTECTIVE, 1, u32::MAX)]);
        put_header(&mut disk, (1, 2, sector), (128, 128), partitions);
        let last = 8 * MIB / sector - 1;
        let first = last - 16384 / sector;
        put_header(&mut disk, (last, first, sector), (128, 128), partitions);
        disk
    }

    #[test]
    fn checksum_is_the_known_one() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn gpt_partitions_are_found_in_either_sector_size() {
        for sector in GPT_SECTORS {
            let disk = gpt(sector, &[(1, 256, 511), (3, 768, 768), (128, 1024, 2047)]);
            assert_eq!(found(&disk, 1), Ok((256 * sector, 256 * sector)));
            assert_eq!(found(&disk, 3), Ok((768 * sector, sector)));
            assert_eq!(found(&disk, 128), Ok((1024 * sector, 1024 * sector)));
            let missing = found(&disk, 2).unwrap_err();
            assert!(missing.starts_with("has no partition 2; there are 1 ("), "{missing}");
        }
    }

    #[test]
    fn copy_of_a_gpt_is_used_where_the_header_is_damaged() {
        let mut disk = gpt(512, &[(2, 2048, 4095)]);
        disk[512 + 40] ^= 1;
        assert_eq!(found(&disk, 2), Ok((MIB, MIB)));
        let last = disk.len() - 512;
        disk[last] = 0;
        assert!(found(&disk, 2).unwrap_err().starts_with("has a damaged GPT"));
        // Without an entry that says so it is no GPT.
        let mut disk = gpt(512, &[(2, 2048, 4095)]);
        put_mbr(&mut disk, 0, &[(0x83, 4096, 2048)]);
        assert_eq!(found(&disk, 1), Ok((2 * MIB, MIB)));
    }

    #[test]
    fn mbr_has_primary_and_logical_partitions() {
        let mut disk = vec![0; 8 * MIB as usize];
        put_mbr(
            &mut disk,
            0,
            &[(0x83, 2048, 2048), (0, 0, 0), (0x0f, 6144, 8192), (0x07, 4096, 2048)],
        );
        put_mbr(&mut disk, 6144, &[(0x83, 2048, 1024), (0x05, 4096, 4096)]);
        put_mbr(&mut disk, 6144 + 4096, &[(0x82, 2048, 1)]);
        assert_eq!(found(&disk, 1), Ok((MIB, MIB)));
        assert_eq!(found(&disk, 4), Ok((2 * MIB, MIB)));
        assert_eq!(found(&disk, 5), Ok((4 * MIB, MIB / 2)));
        assert_eq!(found(&disk, 6), Ok((6 * MIB, 512)));
        assert_eq!(
            found(&disk, 7).unwrap_err(),
            "has no partition 7; there are 1 (1 MiB), 4 (1 MiB), 5 (512 KiB), 6 (512 bytes)"
        );
        let extended = found(&disk, 3).unwrap_err();
        assert!(extended.starts_with("has an extended partition 3, which only holds others"));
    }

    #[test]
    fn disk_without_a_table_says_so() {
        let mut disk = vec![0; MIB as usize];
        let none = "has no partition table, neither GPT nor MBR";
        assert_eq!(found(&disk, 1).unwrap_err(), none);
        assert_eq!(found(&disk[..100], 1).unwrap_err(), none);
        // A boot sector of a file system: the same end, and code where boot flags are.
        put_mbr(&mut disk, 0, &[]);
        assert_eq!(found(&disk, 1).unwrap_err(), "has no partition 1; there is none in its table");
        disk[446] = 0x33;
        assert_eq!(found(&disk, 1).unwrap_err(), none);
    }

    #[test]
    fn hostile_partitions_are_answered_one_by_one() {
        let mut disk = vec![0; MIB as usize];
        put_mbr(
            &mut disk,
            0,
            &[(0x83, 1024, 1024), (0x83, 1024, 1025), (0x83, 5, 0), (0x83, u32::MAX, u32::MAX)],
        );
        assert_eq!(found(&disk, 1), Ok((MIB / 2, MIB / 2)));
        let beyond = found(&disk, 2).unwrap_err();
        assert!(beyond.contains("beyond its own end at 1 MiB"), "{beyond}");
        assert_eq!(found(&disk, 3).unwrap_err(), "has a partition 3 without a length");
        assert!(found(&disk, 4).unwrap_err().contains("beyond"));
        let end = u64::MAX;
        let disk =
            gpt(512, &[(1, 9, 8), (2, 1, end), (3, end, end), (4, 0, end), (5, 2048, 16383)]);
        assert!(found(&disk, 1).unwrap_err().contains("without a length"));
        for number in 2..=4 {
            assert!(found(&disk, number).unwrap_err().contains("beyond"), "{number}");
        }
        assert_eq!(found(&disk, 5), Ok((MIB, 7 * MIB)));
    }

    #[test]
    fn hostile_links_end_and_keep_no_partition_from_being_found() {
        let primary = (0x83, 64, 64);
        let mut disk = vec![0; MIB as usize];
        put_mbr(&mut disk, 0, &[primary, (0x05, 128, 1024)]);
        put_mbr(&mut disk, 128, &[(0x83, 1, 1), (0x05, 64, 64)]);
        put_mbr(&mut disk, 192, &[(0x83, 1, 1), (0x05, 64, 64)]);
        let circle = found(&disk, 7).unwrap_err();
        assert!(
            circle.ends_with("; the links of its logical partitions go in a circle"),
            "{circle}"
        );
        assert_eq!(
            (found(&disk, 1), found(&disk, 6)),
            (Ok((64 * 512, 64 * 512)), Ok((193 * 512, 512)))
        );
        // A link to itself, beyond the disk, and into what is no table.
        put_mbr(&mut disk, 128, &[(0x83, 1, 1), (0x05, u32::MAX, 64)]);
        assert!(found(&disk, 6).unwrap_err().ends_with("lead to none"));
        put_mbr(&mut disk, 128, &[(0x83, 1, 1), (0x05, 65, 64)]);
        assert!(found(&disk, 6).unwrap_err().ends_with("lead to none"));
        assert_eq!(found(&disk, 5), Ok((129 * 512, 512)));
        // More than have numbers.
        let mut disk = vec![0; MIB as usize];
        put_mbr(&mut disk, 0, &[primary, (0x05, 128, 1024)]);
        for link in 0..200 {
            put_mbr(&mut disk, 128 + link, &[(0x83, 1, 1), (0x05, link as u32 + 1, 1)]);
        }
        assert!(found(&disk, 128).is_ok());
        let more = found(&disk, 3).unwrap_err();
        assert!(more.contains("and 109 more") && more.ends_with("than can be named"), "{more}");
        // Links without partitions.
        for link in 0..200 {
            put_mbr(&mut disk, 128 + link, &[(0, 0, 0), (0x05, link as u32 + 1, 1)]);
        }
        assert!(found(&disk, 5).unwrap_err().ends_with("than can be named"));
    }

    #[test]
    fn hostile_headers_are_damaged_ones() {
        let partitions = [(1, 2048, 4095)];
        for (count, entry) in
            [(u32::MAX, 128_u32), (128, 0), (1, 64), (8, 124), (1 << 14, 128), (0, 128)]
        {
            let mut disk = vec![0; 8 * MIB as usize];
            put_mbr(&mut disk, 0, &[(PROTECTIVE, 1, u32::MAX)]);
            put_header(&mut disk, (1, 2, 512), (128, 128), &partitions);
            put(&mut disk, 512 + 80, &count.to_le_bytes());
            put(&mut disk, 512 + 84, &entry.to_le_bytes());
            put(&mut disk, 512 + 16, &[0; 4]);
            let checksum = crc32(&disk[512..512 + 92]);
            put(&mut disk, 512 + 16, &checksum.to_le_bytes());
            assert!(
                found(&disk, 1).unwrap_err().starts_with("has a damaged GPT"),
                "{count} {entry}"
            );
        }
        for (at, bytes) in [(12, [0; 8]), (12, [0xff; 8]), (72, [0xff; 8]), (24, [2; 8])] {
            let mut disk = gpt(512, &partitions);
            let last = disk.len() as u64 - 512;
            put(&mut disk, last, &[0; 92]);
            put(&mut disk, 512 + at, &bytes);
            put(&mut disk, 512 + 16, &[0; 4]);
            let checksum = crc32(&disk[512..512 + 92]);
            put(&mut disk, 512 + 16, &checksum.to_le_bytes());
            assert!(found(&disk, 1).unwrap_err().starts_with("has a damaged GPT"), "{at}");
        }
    }

    #[test]
    fn changed_tables_are_read_within_the_disk_and_end() {
        let mut prng = headworks_core::prng::Prng::new(1);
        let mut mbr = vec![0; 8 * MIB as usize];
        put_mbr(&mut mbr, 0, &[(0x83, 2048, 2048), (0x0f, 6144, 8192)]);
        put_mbr(&mut mbr, 6144, &[(0x83, 2048, 1024), (0x05, 4096, 4096)]);
        put_mbr(&mut mbr, 6144 + 4096, &[(0x82, 2048, 1)]);
        let gpt = gpt(512, &[(1, 2048, 4095), (7, 8192, 12_287)]);
        for round in 0..4000 {
            let mut disk = if round % 2 == 0 { mbr.clone() } else { gpt.clone() };
            disk.truncate(
                (1 + prng.below(8 * MIB)) as usize | (prng.below(2) as usize * (8 << 20)),
            );
            disk.resize(disk.len().max(1024), 0);
            let size = disk.len() as u64;
            for _ in 0..1 + prng.below(4) {
                let sector = [0, 0, 1, 1, 2, 6144, 10_240][prng.below(7) as usize];
                let fields = [0, 8, 12, 24, 72, 80, 84, 446, 450, 454, 458, 462, 466, 470];
                let at = sector * SECTOR + fields[prng.below(14) as usize] + prng.below(8);
                if let Some(byte) = disk.get_mut(at as usize) {
                    *byte = [0, 1, 0x7f, 0x80, 0xff, 0x05, prng.below(256) as u8]
                        [prng.below(7) as usize];
                }
            }
            if round % 4 == 1 {
                disk[512 + 16..512 + 20].fill(0);
                let checksum = crc32(&disk[512..512 + 92]);
                put(&mut disk, 512 + 16, &checksum.to_le_bytes());
            }
            let Ok(table) = table(&disk) else { continue };
            for number in 0..=u8::MAX {
                match table.find(number) {
                    Ok((start, len)) => assert!(len > 0 && start.checked_add(len).unwrap() <= size),
                    Err(why) => assert!(!why.contains('\n'), "{why}"),
                }
            }
        }
    }

    #[test]
    fn unreadable_disk_says_why() {
        let read = &mut |_, _: &mut [u8]| Err(io::Error::other("medium error"));
        let error = PartitionTable::read(MIB, read).unwrap_err();
        assert_eq!(error, "cannot be read for its partition table: medium error");
    }
}
