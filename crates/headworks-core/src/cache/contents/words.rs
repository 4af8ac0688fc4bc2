//! The encoding of a cache's contents as words, and the checks of words that another process sent.
//!
//! ```text
//!   head       version | units | volumes, positions | folios, groups            (two counts in a word: high, low half)
//!   volume     id | size | error, seen, error count                             ascending by id
//!   position   connection, volume | errors seen
//!   folio      volume, block | unit, order, list ... | if its blocks differ: bits of valid, dirty, used blocks, 64 in a word
//!   group      volume, overdue, folios | age in ns | the place of each folio
//! ```
//!
//! Decoding accepts what [`CacheContents::encode`] can have written and refuses everything else with a sentence; no input makes it
//! panic, or allocate more than a fixed multiple of its length and of the pool's tables.

use super::{
    CacheContents, CachedFolio, CachedVolumeContents, ContentsError, DirtyGroup, ErrorPosition,
};
use crate::bio::VolumeId;
use crate::cache::pool::folio::ORDER_MAX;
use crate::error::IoError;
use crate::options::CacheOptions;

/// The first word: a mark in the upper bytes, the version of the format in the last one.
const VERSION: u64 = 0x4857_4341_4348_4501;

/// Bits of a word that name a block; the bits above name its volume.
const BLOCK_BITS: u32 = 48;

/// The second word of a folio, above the unit: where each field begins.
mod field {
    pub const ORDER: u32 = 32;
    pub const MAIN: u32 = 36;
    pub const FREQ: u32 = 37;
    pub const UNUSED: u32 = 39;
    /// The blocks differ: words of bits follow.
    pub const MIXED: u32 = 40;
    /// The states of all blocks, if they do not differ.
    pub const STATES: u32 = 41;
    /// The first bit without a meaning.
    pub const END: u32 = STATES + super::BITS.len() as u32;
}

/// The states of a block, in the order of their bits.
const BITS: [u8; 3] = [CachedFolio::VALID, CachedFolio::DIRTY, CachedFolio::USED];

/// The largest access count of a folio: two bits.
const FREQ_MAX: u64 = 3;

impl CacheContents {
    /// Encodes the contents as words, which [`CacheContents::decode`] reads.
    #[must_use]
    pub fn encode(&self) -> Vec<u64> {
        let members: usize = self.groups.iter().map(|group| group.folios.len()).sum();
        let lists = 3 * self.volumes.len() + 2 * self.positions.len() + 2 * self.groups.len();
        let mut words = Vec::with_capacity(4 + lists + members + 2 * self.folios.len());
        words.extend([VERSION, self.units.into()]);
        words.push(pair(self.volumes.len() as u32, self.positions.len() as u32));
        words.push(pair(self.folios.len() as u32, self.groups.len() as u32));
        for volume in &self.volumes {
            let seen = u64::from(volume.seen) << 8;
            let errors = pair(volume.errors, 0) | seen | u64::from(IoError::code(volume.error));
            words.extend([volume.volume.0.into(), volume.size, errors]);
        }
        for position in &self.positions {
            words.push(pair(position.connection, position.volume.0.into()));
            words.push(position.position.into());
        }
        self.folios.iter().for_each(|folio| self.encode_folio(folio, &mut words));
        for group in &self.groups {
            let overdue = u64::from(group.overdue) << 32;
            let volume = u64::from(group.volume.0) << BLOCK_BITS;
            words.extend([volume | overdue | group.folios.len() as u64, group.age_ns]);
            words.extend(group.folios.iter().map(|&place| u64::from(place)));
        }
        words
    }

    fn encode_folio(&self, folio: &CachedFolio, words: &mut Vec<u64>) {
        let states = self.states(folio);
        let mixed = states.iter().any(|&state| state != states[0]);
        let mut word = u64::from(folio.unit)
            | u64::from(folio.order) << field::ORDER
            | u64::from(folio.main) << field::MAIN
            | u64::from(folio.freq) << field::FREQ
            | u64::from(folio.unused) << field::UNUSED
            | u64::from(mixed) << field::MIXED;
        if !mixed {
            for (index, bit) in BITS.into_iter().enumerate() {
                word |= u64::from(states[0] & bit != 0) << (field::STATES + index as u32);
            }
        }
        words.extend([u64::from(folio.volume.0) << BLOCK_BITS | folio.block, word]);
        if mixed {
            for bit in BITS {
                words.extend(states.chunks(64).map(|states| {
                    let bits = states
                        .iter()
                        .zip(0..)
                        .map(|(state, at)| (u64::from(state & bit != 0)) << at);
                    bits.fold(0, |word, bit: u64| word | bit)
                }));
            }
        }
    }

    /// Decodes words that another process encoded.
    ///
    /// # Errors
    /// What is wrong with the words, in one sentence.
    pub fn decode(words: &[u64]) -> Result<Self, ContentsError> {
        let mut words = Reader { words, at: 0 };
        if words.next()? != VERSION {
            return Err(ContentsError::new(
                "the contents of the cache are in a format that this version does not know",
            ));
        }
        let units = words.next()?;
        if units > CacheOptions::UNITS_MAX.into() {
            return Err(bad(format!("a pool of {units} frames")));
        }
        let (volumes, positions) = halves(words.next()?);
        let (folios, groups) = halves(words.next()?);
        let mut contents = Self { units: units as u32, ..Self::default() };
        for _ in 0..volumes {
            contents.decode_volume(&mut words)?;
        }
        for _ in 0..positions {
            contents.decode_position(&mut words)?;
        }
        words.expect(u64::from(folios) * 2)?;
        contents.folios.reserve_exact(folios as usize);
        for _ in 0..folios {
            contents.decode_folio(&mut words)?;
        }
        contents.check_overlaps()?;
        let mut grouped = vec![false; folios as usize];
        for _ in 0..groups {
            contents.decode_group(&mut words, &mut grouped)?;
        }
        match words.left() {
            0 => Ok(contents),
            left => Err(bad(format!("{left} words after their end"))),
        }
    }

    fn decode_volume(&mut self, words: &mut Reader) -> Result<(), ContentsError> {
        let (id, size, errors) = (words.next()?, words.next()?, words.next()?);
        let (count, rest) = halves(errors);
        let known = rest < 1 << 9 && (rest & 0xff) as usize <= IoError::ALL.len();
        let follows = self.volumes.last().is_none_or(|last| u64::from(last.volume.0) < id);
        if id > u16::MAX.into() || !follows || !known || size.div_ceil(4096) > 1 << BLOCK_BITS {
            return Err(bad(format!("volume {id} of {size} bytes with the errors {errors:#x}")));
        }
        self.volumes.push(CachedVolumeContents {
            volume: VolumeId(id as u16),
            size,
            error: IoError::from_code(rest as u8),
            errors: count,
            seen: rest >> 8 != 0,
        });
        Ok(())
    }

    fn decode_position(&mut self, words: &mut Reader) -> Result<(), ContentsError> {
        let ((connection, volume), position) = (halves(words.next()?), words.next()?);
        if u32::try_from(position).is_err() || self.blocks_of(volume.into()).is_none() {
            return Err(bad(format!("position {position} in the errors of volume {volume}")));
        }
        let volume = VolumeId(volume as u16);
        self.positions.push(ErrorPosition { connection, volume, position: position as u32 });
        Ok(())
    }

    /// Returns the blocks of a volume that is in the contents.
    fn blocks_of(&self, volume: u64) -> Option<u64> {
        let place = self.volumes.binary_search_by_key(&volume, |known| known.volume.0.into());
        Some(self.volumes[place.ok()?].blocks())
    }

    fn decode_folio(&mut self, words: &mut Reader) -> Result<(), ContentsError> {
        let (key, word) = (words.next()?, words.next()?);
        let (volume, block) = (key >> BLOCK_BITS, key & ((1 << BLOCK_BITS) - 1));
        let (unit, order) = (word as u32, (word >> field::ORDER & 15) as u8);
        let freq = word >> field::FREQ & FREQ_MAX;
        let wrong = |what| bad(format!("block {block} of volume {volume} {what}"));
        if order > ORDER_MAX || word >> field::END != 0 {
            return Err(wrong("in a folio of an unknown kind"));
        }
        let Some(present) = self.blocks_of(volume) else {
            return Err(wrong("but not the volume"));
        };
        let size = 1_u32 << order;
        let aligned = unit.is_multiple_of(size) && block.is_multiple_of(size.into());
        if !aligned || u64::from(unit) + u64::from(size) > self.units.into() {
            return Err(wrong("in frames that are not in the pool"));
        }
        let first_state = self.states.len() as u32;
        if u64::from(first_state) + u64::from(size) > self.units.into() {
            return Err(bad("more blocks than the pool has frames".into()));
        }
        self.decode_states(words, word, size)?;
        let states = &self.states[first_state as usize..];
        let valid = states.iter().rposition(|&state| state & CachedFolio::VALID != 0);
        let whole = |state: &u8| state & CachedFolio::VALID != 0 || *state == 0;
        if valid.is_none_or(|last| block + last as u64 >= present) || !states.iter().all(whole) {
            return Err(wrong("in a state that no block can have"));
        }
        self.folios.push(CachedFolio {
            volume: VolumeId(volume as u16),
            block,
            unit,
            order,
            main: word >> field::MAIN & 1 != 0,
            freq: freq as u8,
            unused: word >> field::UNUSED & 1 != 0,
            first_state,
        });
        Ok(())
    }

    /// Decodes the states of the blocks of a folio.
    fn decode_states(
        &mut self,
        words: &mut Reader,
        word: u64,
        size: u32,
    ) -> Result<(), ContentsError> {
        let first = self.states.len();
        self.states.resize(first + size as usize, 0);
        let states = &mut self.states[first..];
        let mixed = word >> field::MIXED & 1 != 0;
        for (index, bit) in BITS.into_iter().enumerate() {
            let all = word >> (field::STATES + index as u32) & 1 != 0;
            if mixed && all {
                return Err(bad("a folio with two states".into()));
            }
            for states in states.chunks_mut(64) {
                let bits = match mixed {
                    true => words.next()?,
                    false => u64::MAX * u64::from(all),
                };
                if mixed && states.len() < 64 && bits >> states.len() != 0 {
                    return Err(bad("states of blocks after the end of a folio".into()));
                }
                for (at, state) in states.iter_mut().enumerate() {
                    *state |= if bits >> at & 1 != 0 { bit } else { 0 };
                }
            }
        }
        let states = &self.states[first..];
        if mixed && states.iter().all(|&state| state == states[0]) {
            return Err(bad("a folio with two states".into()));
        }
        Ok(())
    }

    /// Checks that no frame holds two blocks, and that no block is in two frames.
    fn check_overlaps(&self) -> Result<(), ContentsError> {
        let by_unit = |folio: &CachedFolio| (u64::from(folio.unit), folio.blocks().into());
        let by_block = |folio: &CachedFolio| {
            let key = u64::from(folio.volume.0) << BLOCK_BITS | folio.block;
            (key, u64::from(folio.blocks()))
        };
        let overlaps = |range: &dyn Fn(&CachedFolio) -> (u64, u64)| {
            let mut ranges: Vec<(u64, u64)> = self.folios.iter().map(range).collect();
            ranges.sort_unstable();
            ranges.windows(2).any(|two| two[1].0 - two[0].0 < two[0].1)
        };
        match overlaps(&by_unit) || overlaps(&by_block) {
            true => Err(bad("two folios that overlap".into())),
            false => Ok(()),
        }
    }

    fn decode_group(
        &mut self,
        words: &mut Reader,
        grouped: &mut [bool],
    ) -> Result<(), ContentsError> {
        let (word, age_ns) = (words.next()?, words.next()?);
        let (volume, members) = (VolumeId((word >> BLOCK_BITS) as u16), word as u32);
        words.expect(members.into())?;
        let mut folios = Vec::with_capacity(members as usize);
        for _ in 0..members {
            let place = words.next()?;
            let folio = usize::try_from(place).ok().and_then(|place| self.folios.get(place));
            let dirty =
                folio.filter(|folio| folio.volume == volume && self.dirty_blocks_of(folio) > 0);
            if dirty.is_none() || std::mem::replace(&mut grouped[place as usize], true) {
                return Err(bad(format!("folio {place} in a list of dirty ones")));
            }
            folios.push(place as u32);
        }
        let overdue = word >> 32 & 1 != 0;
        if members == 0 || word >> 33 & 0x7fff != 0 {
            return Err(bad("a list of dirty folios of an unknown kind".into()));
        }
        self.groups.push(DirtyGroup { volume, age_ns, overdue, folios });
        Ok(())
    }
}

/// Words that are decoded one after the other.
struct Reader<'a> {
    words: &'a [u64],
    at: usize,
}

impl Reader<'_> {
    /// Returns the next word.
    fn next(&mut self) -> Result<u64, ContentsError> {
        self.expect(1)?;
        self.at += 1;
        Ok(self.words[self.at - 1])
    }

    /// Checks that there are so many words at least.
    fn expect(&self, count: u64) -> Result<(), ContentsError> {
        match self.left() as u64 >= count {
            true => Ok(()),
            false => Err(ContentsError::new("the contents of the cache end too early")),
        }
    }

    /// Returns the number of words that follow.
    fn left(&self) -> usize {
        self.words.len() - self.at
    }
}

fn bad(what: String) -> ContentsError {
    ContentsError::new(format!("the contents of the cache name {what}"))
}

const fn pair(high: u32, low: u32) -> u64 {
    (high as u64) << 32 | low as u64
}

const fn halves(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}
