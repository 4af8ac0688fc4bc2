//! The frame pools of the shards' caches: real bytes, poisoned at the start, and the commands that
//! use each frame.
//!
//! ```text
//!   free --Submit(Read)---> filling --Complete--> free          accessed only by the device
//!   free --Submit(Write)--> writing --Complete--> free          readable, not writable (stable pages)
//! ```
//!
//! A frame counts as used until the completion is delivered to its shard, because the policy cannot
//! know of it earlier. The checksum of a write's data must be the same at submission and
//! completion. A violation is reported and ends the run.

use std::collections::BTreeMap;

use headworks::driver::Span;
use headworks_core::cache::folio::BLOCK;
use headworks_core::{Action, CopyDirection, DeviceId, Op, RequestId, Segment, Submit, VolumeId};

use crate::sector_pattern::{POISON, SECTOR};

/// Commands that use a sector of a frame; a block may be covered by several.
#[derive(Clone, Copy, Debug, Default)]
struct FrameUse {
    /// Device reads into the sector.
    fills: u16,
    /// Device writes from the sector.
    writes: u16,
}

/// The frame pool of one shard.
struct Pool {
    base: *mut u8,
    bytes: usize,
    uses: Vec<FrameUse>,
}

// SAFETY: the memory behind `base` is owned by this value; spans of it are used only on the thread
// that runs the simulation.
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
        // SAFETY: just checked, and no device is running during the call.
        unsafe { std::slice::from_raw_parts(self.base.add(at), len) }
    }

    fn reset(&mut self) {
        self.uses.fill(FrameUse::default());
        // SAFETY: the whole allocation, after a power cut: no device holds a span of it.
        unsafe { self.base.write_bytes(POISON, self.bytes) };
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let memory = std::ptr::slice_from_raw_parts_mut(self.base, self.bytes);
        // SAFETY: made by `Box::into_raw` of a slice of this length, and dropped once, after its
        // devices or their power.
        drop(unsafe { Box::from_raw(memory) });
    }
}

/// A contiguous part of a command's data in a pool.
#[derive(Clone, Copy, Debug)]
struct FrameRange {
    pool: u16,
    fill: bool,
    at: usize,
    len: usize,
    checksum: u64,
}

/// A command in flight: its range on the volume, and its data.
#[derive(Debug)]
struct FrameCommand {
    volume: VolumeId,
    offset: u64,
    bytes: u32,
    pieces: Vec<FrameRange>,
}

/// The frame pools of all shards.
pub struct Frames {
    pools: Vec<Pool>,
    /// Commands in flight; only looked up, never iterated.
    commands: BTreeMap<(DeviceId, RequestId), FrameCommand>,
    /// Commands submitted in this turn, whose checksums are not computed yet.
    fresh: Vec<(DeviceId, RequestId)>,
    writing: usize,
}

impl Frames {
    /// Allocates a pool of `units` frames for each shard.
    #[must_use]
    pub fn new(shards: u16, units: u32) -> Self {
        let pools = (0..shards).map(|_| Pool::new(units)).collect();
        Self { pools, commands: BTreeMap::new(), fresh: Vec::new(), writing: 0 }
    }

    /// The memory of a shard's pool.
    #[must_use]
    pub fn span(&self, shard: u16) -> Span {
        let pool = &self.pools[usize::from(shard)];
        // SAFETY: the whole allocation, which the world drops after its devices.
        unsafe { Span::new(pool.base, pool.bytes) }
    }

    /// Number of write-out commands in flight.
    #[must_use]
    pub fn writing(&self) -> usize {
        self.writing
    }

    /// Forgets all commands and contents after a power cut.
    pub fn cut(&mut self) {
        self.commands.clear();
        self.fresh.clear();
        self.writing = 0;
        self.pools.iter_mut().for_each(Pool::reset);
    }

    /// Records a command that goes to its device; `pool_of` maps a segment to the shard whose pool
    /// has its bytes.
    ///
    /// # Errors
    /// A frame that is in conflicting use.
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

    /// Checks an action of `shard` that copies, zeroes or moves bytes.
    ///
    /// # Errors
    /// A frame that may not be accessed in this way now.
    pub fn check_access(&self, shard: u16, action: &Action) -> Result<(), String> {
        let check = |at, len, changes| {
            let (at, len) = frames(at, len);
            self.check(shard, at, len, changes)
        };
        let checked = match *action {
            Action::Copy { at, len, direction, .. } => {
                check(at, len, direction == CopyDirection::ToPool)
            }
            Action::Zero { at, len } | Action::Release { at, len } => check(at, len, true),
            Action::Move { from, to, len } => {
                check(from, len, false).and_then(|()| check(to, len, true))
            }
            _ => Ok(()),
        };
        checked.map_err(|wrong| format!("shard {shard}, {action:?}: {wrong}"))
    }

    /// Checks that a range may be read, or changed, now.
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

    /// Computes the checksums of the writes submitted in this turn, after the turn's copies are
    /// made.
    pub fn checksum_writes(&mut self) {
        for name in std::mem::take(&mut self.fresh) {
            let Some(flight) = self.commands.get_mut(&name) else { continue };
            for piece in flight.pieces.iter_mut().filter(|piece| !piece.fill) {
                piece.checksum =
                    checksum(self.pools[usize::from(piece.pool)].bytes(piece.at, piece.len));
            }
        }
    }

    /// Target of a command in flight: volume, offset, bytes.
    #[must_use]
    pub fn place(&self, device: DeviceId, id: RequestId) -> Option<(VolumeId, u64, u32)> {
        let flight = self.commands.get(&(device, id))?;
        Some((flight.volume, flight.offset, flight.bytes))
    }

    /// Whether all data of a command are frames being written out.
    #[must_use]
    pub fn is_writeout(&self, device: DeviceId, id: RequestId) -> bool {
        let flight = self.commands.get(&(device, id));
        flight.is_some_and(|flight| {
            let bytes: usize = flight.pieces.iter().map(|piece| piece.len).sum();
            flight.pieces.iter().all(|piece| !piece.fill) && bytes == flight.bytes as usize
        })
    }

    /// Ends a command, as its completion is delivered. Unknown ids come from lying devices and are
    /// ignored.
    ///
    /// # Errors
    /// The data changed between submission and completion.
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

/// The sectors touched by a range.
fn sectors(at: usize, len: usize) -> std::ops::Range<usize> {
    at / SECTOR..(at + len).div_ceil(SECTOR)
}

/// The whole frames touched by a range: the policy tracks blocks, not sectors.
fn frames(at: u64, len: u32) -> (usize, usize) {
    let start = at & !u64::from(BLOCK - 1);
    let end = (at + u64::from(len)).next_multiple_of(u64::from(BLOCK));
    (start as usize, (end - start) as usize)
}

/// Differs wherever the bytes differ in one word.
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
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
    fn frame_under_writeout_is_readable_and_frame_being_filled_is_not() {
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
    fn data_changed_during_writeout_are_detected() {
        let mut frames = Frames::new(1, 8);
        start(&mut frames, Op::Write, 1, 1).unwrap();
        // SAFETY: within the pool; simulates a stray write.
        unsafe { *frames.span(0).base().add(4096 + 8191) = 1 };
        assert!(end(&mut frames, 1).is_err());
    }
}
