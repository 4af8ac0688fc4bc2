//! The pools of the shards' caches: real bytes, poisoned at the start, and who is using which frame.
//!
//! ```text
//!   free --Submit(Read)---> filling --Complete--> free          touched by nobody but the device
//!   free --Submit(Write)--> leaving --Complete--> free          read by anybody, changed by nobody (stable bytes)
//! ```
//!
//! A frame counts as used until its shard was told of the completion: before that the policy cannot know of it. The checksum of
//! what was submitted must still be the same then. Whatever breaks this is told, and ends the run.

use std::collections::BTreeMap;

use headworks::memory::Span;
use headworks_core::cache::folio::BLOCK;
use headworks_core::{Action, CopyDirection, DeviceId, Op, RequestId, Segment, Submit, VolumeId};

use crate::sector_pattern::{POISON, SECTOR};

/// Who uses a sector of a frame: a device may get a block in several commands.
#[derive(Clone, Copy, Debug, Default)]
struct FrameUse {
    /// Reads of a device into it.
    fills: u16,
    /// Writes of a device out of it.
    writes: u16,
}

/// The pool of one shard.
struct Pool {
    base: *mut u8,
    bytes: usize,
    uses: Vec<FrameUse>,
}

// SAFETY: the memory behind `base` belongs to this value alone; spans of it are used on the thread that runs the world.
unsafe impl Send for Pool {}

impl Pool {
    fn new(units: u32) -> Self {
        let bytes = units as usize * BLOCK as usize;
        let memory = vec![POISON; bytes].into_boxed_slice();
        let uses = vec![FrameUse::default(); bytes / SECTOR];
        Self { base: Box::into_raw(memory).cast(), bytes, uses }
    }

    fn bytes(&self, at: usize, len: usize) -> &[u8] {
        assert!(at <= self.bytes && len <= self.bytes - at, "within the pool");
        // SAFETY: just checked, and no device is running while the world looks at it.
        unsafe { std::slice::from_raw_parts(self.base.add(at), len) }
    }

    fn reset(&mut self) {
        self.uses.fill(FrameUse::default());
        // SAFETY: the whole allocation, and the power failed: no device has a span of it.
        unsafe { self.base.write_bytes(POISON, self.bytes) };
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let memory = std::ptr::slice_from_raw_parts_mut(self.base, self.bytes);
        // SAFETY: made by `Box::into_raw` of a slice of this length, and dropped once, after its devices or their power.
        drop(unsafe { Box::from_raw(memory) });
    }
}

/// A part of a command: bytes of a pool.
#[derive(Clone, Copy, Debug)]
struct FrameRange {
    pool: u16,
    fill: bool,
    at: usize,
    len: usize,
    checksum: u64,
}

/// A command: where it goes, and its parts.
#[derive(Debug)]
struct FrameCommand {
    volume: VolumeId,
    offset: u64,
    bytes: u32,
    pieces: Vec<FrameRange>,
}

/// See the head of this file.
pub struct Frames {
    pools: Vec<Pool>,
    /// By command. Looked up only by name.
    commands: BTreeMap<(DeviceId, RequestId), FrameCommand>,
    /// Commands of this turn whose bytes are not summed yet.
    fresh: Vec<(DeviceId, RequestId)>,
    writing: usize,
}

impl Frames {
    /// A pool of `units` frames for each shard.
    #[must_use]
    pub fn new(shards: u16, units: u32) -> Self {
        let pools = (0..shards).map(|_| Pool::new(units)).collect();
        Self { pools, commands: BTreeMap::new(), fresh: Vec::new(), writing: 0 }
    }

    /// The memory of a shard's pool.
    #[must_use]
    pub fn span(&self, shard: u16) -> Span {
        let pool = &self.pools[usize::from(shard)];
        Span { base: pool.base, len: pool.bytes }
    }

    /// Commands that are writing frames out.
    #[must_use]
    pub fn writing(&self) -> usize {
        self.writing
    }

    /// The power failed: nothing is on its way, and nothing is in memory.
    pub fn cut(&mut self) {
        self.commands.clear();
        self.fresh.clear();
        self.writing = 0;
        self.pools.iter_mut().for_each(Pool::reset);
    }

    /// A command goes to its device; `pool_of` tells whose pool an internal bio's bytes are in.
    ///
    /// # Errors
    /// A frame that is in other use.
    pub fn submit(
        &mut self,
        submit: &Submit,
        segments: &[Segment],
        pool_of: impl Fn(&Segment) -> u16,
    ) -> Result<(), String> {
        let fill = submit.op == Op::Read;
        let mut pieces = Vec::new();
        for segment in segments {
            let Some(unit) = segment.bio.unit() else { continue };
            let at = unit as usize * BLOCK as usize + segment.offset as usize;
            let piece = FrameRange {
                pool: pool_of(segment),
                fill,
                at,
                len: segment.len as usize,
                checksum: 0,
            };
            self.begin(piece).map_err(|wrong| format!("{submit:?}: {wrong}"))?;
            pieces.push(piece);
        }
        if !pieces.is_empty() {
            let name = (submit.device, submit.id);
            self.writing += usize::from(!fill);
            self.fresh.push(name);
            let Submit { volume, offset, len: bytes, .. } = *submit;
            self.commands.insert(name, FrameCommand { volume, offset, bytes, pieces });
        }
        Ok(())
    }

    fn begin(&mut self, piece: FrameRange) -> Result<(), String> {
        let FrameRange { pool, fill, at, len, .. } = piece;
        self.check(pool, at, len, fill)?;
        for uses in self.uses_mut(pool, at, len) {
            if fill {
                uses.fills += 1;
            } else {
                uses.writes += 1;
            }
        }
        Ok(())
    }

    /// Bytes are about to be moved by `shard`.
    ///
    /// # Errors
    /// A frame that may not be touched so now.
    pub fn check_access(&self, shard: u16, action: &Action) -> Result<(), String> {
        let check = |at, len, changes| {
            let (at, len) = frames(at, len);
            self.check(shard, at, len, changes)
        };
        let checked = match *action {
            Action::Copy { at, len, direction, .. } => {
                check(at, len, direction == CopyDirection::ToPool)
            }
            Action::Zero { at, len } => check(at, len, true),
            Action::Move { from, to, len } => {
                check(from, len, false).and_then(|()| check(to, len, true))
            }
            _ => Ok(()),
        };
        checked.map_err(|wrong| format!("shard {shard}, {action:?}: {wrong}"))
    }

    /// Whether a range may be read, or changed, now.
    fn check(&self, pool: u16, at: usize, len: usize, changes: bool) -> Result<(), String> {
        let pool = &self.pools[usize::from(pool)];
        if at > pool.bytes || len > pool.bytes - at {
            return Err(format!("{at}+{len} is not within the pool"));
        }
        for (sector, uses) in sectors(at, len).zip(&pool.uses[sectors(at, len)]) {
            let unit = sector * SECTOR / BLOCK as usize;
            if uses.fills > 0 {
                return Err(format!("frame {unit} is being filled"));
            }
            if changes && uses.writes > 0 {
                return Err(format!("frame {unit} is being written out"));
            }
        }
        Ok(())
    }

    /// The turn's copies were made: what its commands write is what they must write.
    pub fn checksum_writes(&mut self) {
        for name in std::mem::take(&mut self.fresh) {
            let Some(flight) = self.commands.get_mut(&name) else { continue };
            for piece in flight.pieces.iter_mut().filter(|piece| !piece.fill) {
                piece.checksum =
                    checksum(self.pools[usize::from(piece.pool)].bytes(piece.at, piece.len));
            }
        }
    }

    /// Where a command goes that is on its way: volume, offset, bytes.
    #[must_use]
    pub fn place(&self, device: DeviceId, id: RequestId) -> Option<(VolumeId, u64, u32)> {
        let flight = self.commands.get(&(device, id))?;
        Some((flight.volume, flight.offset, flight.bytes))
    }

    /// Whether a command writes frames out, and nothing else.
    #[must_use]
    pub fn is_writeout(&self, device: DeviceId, id: RequestId) -> bool {
        let flight = self.commands.get(&(device, id));
        flight.is_some_and(|flight| {
            let bytes: usize = flight.pieces.iter().map(|piece| piece.len).sum();
            flight.pieces.iter().all(|piece| !piece.fill) && bytes == flight.bytes as usize
        })
    }

    /// The shard is told that a command is over. Names that are not in flight are a device's lies and change nothing.
    ///
    /// # Errors
    /// What it wrote is not what it was given.
    pub fn complete(&mut self, device: DeviceId, id: RequestId) -> Result<(), String> {
        let Some(FrameCommand { pieces, .. }) = self.commands.remove(&(device, id)) else {
            return Ok(());
        };
        self.writing -= usize::from(pieces.iter().any(|piece| !piece.fill));
        let mut checked = Ok(());
        for FrameRange { pool, fill, at, len, checksum: was } in pieces {
            for uses in self.uses_mut(pool, at, len) {
                if fill {
                    uses.fills -= 1;
                } else {
                    uses.writes -= 1;
                }
            }
            if !fill && checksum(self.pools[usize::from(pool)].bytes(at, len)) != was {
                checked = Err(format!(
                    "{id:?} of device {}: bytes {at}+{len} of pool {pool} changed",
                    device.0
                ));
            }
        }
        checked
    }

    fn uses_mut(&mut self, pool: u16, at: usize, len: usize) -> &mut [FrameUse] {
        &mut self.pools[usize::from(pool)].uses[sectors(at, len)]
    }
}

/// The sectors that a range touches.
fn sectors(at: usize, len: usize) -> std::ops::Range<usize> {
    at / SECTOR..(at + len).div_ceil(SECTOR)
}

/// The whole frames that a range touches: the policy knows a block's state, not a sector's.
fn frames(at: u64, len: u32) -> (usize, usize) {
    let start = at & !u64::from(BLOCK - 1);
    let end = (at + u64::from(len)).next_multiple_of(u64::from(BLOCK));
    (start as usize, (end - start) as usize)
}

/// Differs wherever the bytes differ in one word.
fn checksum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mix = |checksum: u64, word: u64| {
        (checksum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
    };
    let checksum = words.iter().fold(1, |checksum, word| mix(checksum, u64::from_le_bytes(*word)));
    rest.iter().fold(checksum, |checksum, &byte| mix(checksum, byte.into()))
}

#[cfg(test)]
mod tests {
    use headworks_core::{BioFlags, BioId, ExportId};

    use super::*;

    const COPY: [CopyDirection; 2] = [CopyDirection::ToPool, CopyDirection::ToBuffer];

    fn start(frames: &mut Frames, op: Op, generation: u32, unit: u32) -> Result<(), String> {
        let submit = Submit {
            id: RequestId { slot: 0, generation },
            device: DeviceId(0),
            volume: VolumeId(0),
            op,
            flags: BioFlags::NONE,
            offset: 0,
            len: 8192,
            first_segment: 0,
            segments: 1,
        };
        let bio = BioId::internal(0, VolumeId(0), ExportId(0), 0, unit);
        let done = frames.submit(&submit, &[Segment { bio, offset: 0, len: 8192 }], |_| 0);
        frames.checksum_writes();
        done
    }

    fn end(frames: &mut Frames, generation: u32) -> Result<(), String> {
        frames.complete(DeviceId(0), RequestId { slot: 0, generation })
    }

    /// Whether a byte of `unit` may be (changed, read).
    fn may(frames: &Frames, unit: u64) -> [bool; 2] {
        COPY.map(|direction| {
            let at = unit * u64::from(BLOCK) + 7;
            let copy = Action::Copy { bio: BioId::default(), offset: 0, len: 1, at, direction };
            frames.check_access(0, &copy).is_ok()
        })
    }

    #[test]
    fn a_frame_under_write_out_may_be_read_and_one_that_is_filled_may_not() {
        let mut frames = Frames::new(1, 8);
        start(&mut frames, Op::Write, 1, 1).unwrap();
        start(&mut frames, Op::Read, 2, 4).unwrap();
        let all: Vec<_> = (0..8).map(|unit| may(&frames, unit)).collect();
        let (free, leaving, filling) = ([true; 2], [false, true], [false; 2]);
        assert_eq!(all, [free, leaving, leaving, free, filling, filling, free, free]);
        assert!(start(&mut frames, Op::Read, 3, 0).is_err());
        end(&mut frames, 1).unwrap();
        end(&mut frames, 2).unwrap();
        assert!((0..8).all(|unit| may(&frames, unit) == free));
        assert_eq!(frames.writing(), 0);
    }

    #[test]
    fn bytes_that_change_under_write_out_are_found() {
        let mut frames = Frames::new(1, 8);
        start(&mut frames, Op::Write, 1, 1).unwrap();
        // SAFETY: within the pool, as a stray write would be.
        unsafe { *frames.span(0).base.add(4096 + 8191) = 1 };
        assert!(end(&mut frames, 1).is_err());
    }
}
