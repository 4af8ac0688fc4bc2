//! The contents of a written sector: its version and location, and 496 bytes derived from these.
//!
//! ```text
//!  word 0      word 1               words 2..64
//!  version     volume<<48 | sector  mix(word 0, word 1) + i * K
//! ```
//!
//! Version 0 is a sector of zeros. A sector that was there before anything was written has a version that names the volume that
//! has it ([`initial`]): the volumes on a base show the base's. Every byte is checked, so misplaced, torn and poisoned sectors
//! are recognised.

/// Bytes of a sector, the unit that devices write atomically.
pub const SECTOR: usize = 512;
/// The byte that fills released buffers.
pub const POISON: u8 = 0xdb;

/// Version of the first volume's initial sectors.
const INITIAL: u64 = 1 << 48;

const WORDS: usize = SECTOR / 8;
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The recognised contents of a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SectorContent {
    /// A complete sector of this version at its own location; 0 for zeros.
    Version(u64),
    /// A complete sector that belongs to another location.
    Misplaced {
        /// Version of the sector.
        version: u64,
        /// The volume it was written to.
        volume: u16,
        /// The sector it was written to.
        sector: u64,
    },
    /// The pattern of a released buffer.
    Poison,
    /// Any other contents.
    Garbage,
}

/// The version of the sectors that `volume` has from the start.
#[must_use]
pub const fn initial(volume: u16) -> u64 {
    INITIAL + volume as u64
}

/// What a sector of `volume` names as its location: an initial one names the volume that has it.
const fn place(version: u64, volume: u16, sector: u64) -> u64 {
    let volume = match version.checked_sub(INITIAL) {
        Some(owner) => owner & 0xffff,
        None => volume as u64,
    };
    volume << 48 | sector
}

/// Fills one sector with `version` of `sector` of `volume`.
pub fn fill(bytes: &mut [u8], version: u64, volume: u16, sector: u64) {
    assert!(version != 0, "version 0 is zeros");
    let place = place(version, volume, sector);
    let seed = seed(version, place);
    let (words, rest) = bytes.as_chunks_mut::<8>();
    assert!(words.len() == WORDS && rest.is_empty(), "one sector");
    for (index, word) in words.iter_mut().enumerate() {
        *word = seed.wrapping_add((index as u64).wrapping_mul(STEP)).to_le_bytes();
    }
    words[0] = version.to_le_bytes();
    words[1] = place.to_le_bytes();
}

/// Fills `bytes` with the part of a sector that starts at byte `at`.
pub fn fill_part(bytes: &mut [u8], version: u64, volume: u16, sector: u64, at: usize) {
    let mut whole = [0; SECTOR];
    fill(&mut whole, version, volume, sector);
    bytes.copy_from_slice(&whole[at..at + bytes.len()]);
}

/// The version named by the first word of a sector.
#[must_use]
pub fn named(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |word| u64::from_le_bytes(*word))
}

/// Whether `bytes` equal the part of a sector that starts at byte `at`.
#[must_use]
pub fn is_part(bytes: &[u8], version: u64, volume: u16, sector: u64, at: usize) -> bool {
    if version == 0 {
        return bytes.iter().all(|&byte| byte == 0);
    }
    let mut whole = [0; SECTOR];
    fill(&mut whole, version, volume, sector);
    bytes == &whole[at..at + bytes.len()]
}

/// Recognises the contents of one sector that was read at `sector` of `volume`.
#[must_use]
pub fn identify(bytes: &[u8], volume: u16, sector: u64) -> SectorContent {
    let (words, rest) = bytes.as_chunks::<8>();
    assert!(words.len() == WORDS && rest.is_empty(), "one sector");
    let (version, found) = (u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1]));
    if version == 0 {
        let any = words.iter().fold(0, |any, w| any | u64::from_le_bytes(*w));
        return if any == 0 { SectorContent::Version(0) } else { SectorContent::Garbage };
    }
    let seed = seed(version, found);
    let differs = words.iter().enumerate().skip(2).fold(0, |any, (i, word)| {
        any | (u64::from_le_bytes(*word) ^ seed.wrapping_add((i as u64).wrapping_mul(STEP)))
    });
    if differs != 0 {
        let poison = bytes.iter().all(|&byte| byte == POISON);
        return if poison { SectorContent::Poison } else { SectorContent::Garbage };
    }
    if found != place(version, volume, sector) {
        return SectorContent::Misplaced {
            version,
            volume: (found >> 48) as u16,
            sector: found & ((1 << 48) - 1),
        };
    }
    SectorContent::Version(version)
}

const fn seed(version: u64, place: u64) -> u64 {
    let z = (version ^ place.rotate_left(29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sector_contents_are_recognised() {
        let mut bytes = [0; SECTOR];
        assert_eq!(identify(&bytes, 1, 2), SectorContent::Version(0));
        fill(&mut bytes, 77, 1, 2);
        assert_eq!(identify(&bytes, 1, 2), SectorContent::Version(77));
        let elsewhere = SectorContent::Misplaced { version: 77, volume: 1, sector: 2 };
        assert_eq!(identify(&bytes, 1, 3), elsewhere);
        for at in [0, 8, 16, 300, 511] {
            let mut torn = bytes;
            torn[at] ^= 1;
            assert_ne!(identify(&torn, 1, 2), SectorContent::Version(77), "byte {at}");
        }
        assert_eq!(identify(&[POISON; SECTOR], 1, 2), SectorContent::Poison);
        let mut part = [0; 13];
        fill_part(&mut part, 77, 1, 2, 499);
        assert_eq!(part, bytes[499..]);
        assert!(is_part(&part, 77, 1, 2, 499) && !is_part(&part, 78, 1, 2, 499));
        fill(&mut bytes, initial(9), 1, 2);
        assert_eq!(identify(&bytes, 9, 2), SectorContent::Version(initial(9)));
        assert_eq!(identify(&bytes, 1, 2), SectorContent::Version(initial(9)), "on a base");
        assert!(is_part(&bytes[7..90], initial(9), 1, 2, 7));
        assert!(!is_part(&bytes[7..90], initial(8), 1, 2, 7));
        let elsewhere = SectorContent::Misplaced { version: initial(9), volume: 9, sector: 2 };
        assert_eq!(identify(&bytes, 1, 3), elsewhere);
        let mut dirt = [0; SECTOR];
        dirt[511] = 1;
        assert_eq!(identify(&dirt, 1, 2), SectorContent::Garbage);
    }
}
