//! The state of a cached volume: its options, its flush generations, and its held blocks.
//!
//! A flush waits for everything that was dirty when it began, and for nothing dirtied later; otherwise a busy writer would delay it
//! forever. Dirty folios therefore carry the *generation* in which they were first dirtied. A flush ends the current generation
//! and waits until nothing of it or of an older one is left. At most 16 generations exist at a time; one more flush waits until
//! the oldest is written.
//!
//! ```text
//!   oldest ... target | current        a flush waits while oldest <= target
//! ```
//!
//! Invariants: `oldest <= generation < oldest + 16`; `dirty[g % 16]` counts the dirty folios of generation g, `writing[g % 16]`
//! its outstanding write-outs.

use super::errors::ErrorSequence;
use super::layer::Layer;
use super::truncation::Truncation;
use crate::bio::DeviceId;
use crate::cache::pool::folio::BLOCK;
use crate::error::{IoError, Status};
use crate::gauge::Gauge32;
use crate::options::{ErrorPolicy, VolumeConfig, VolumeOptions, WriteMode};
use crate::slab::NIL;
use crate::time::{Instant, SEC};

/// The device of a free volume slot.
const NO_DEVICE: DeviceId = DeviceId(u16::MAX);

/// Generations that exist at a time; a folio names its own modulo this.
pub(in crate::cache) const GENERATIONS: u64 = 16;

/// The first delay before held blocks are written again.
const BACKOFF_MIN: u64 = SEC;
/// The longest delay before held blocks are written again.
const BACKOFF_MAX: u64 = 30 * SEC;

/// The state of a cached volume.
#[derive(Debug)]
pub(in crate::cache) struct CachedVolume {
    device: DeviceId,
    size: u64,
    block_size: u32,
    mode: WriteMode,
    on_error: ErrorPolicy,
    /// The generation of blocks that are dirtied now. 64 bits: a thousand flushes a second end 2^32 generations in seven weeks.
    generation: u64,
    /// The oldest generation of which anything is left; at most `generation`.
    oldest: u64,
    /// Dirty folios, by generation.
    dirty: [Gauge32; GENERATIONS as usize],
    /// Blocks of folios of an older generation were dirtied in the current one.
    has_newer: bool,
    /// Outstanding write-outs, by generation.
    writing: [Gauge32; GENERATIONS as usize],
    /// The group at which the next pass of a flush starts.
    cursor: u32,
    /// The last generation that a flush waits for.
    target: Option<u64>,
    /// Dirty blocks and blocks under write-out; a block that is both counts twice.
    unclean: Gauge32,
    /// The blocks past a lowered end that are still to be dropped.
    pub(super) truncation: Option<Truncation>,
    /// Held blocks: their write-out failed.
    held: Gauge32,
    /// A write-out failed, and none has succeeded since with nothing held.
    failing: bool,
    /// The error of the last failed write-out.
    last_error: IoError,
    errors: ErrorSequence,
    /// The time at which held blocks are written again.
    retry_at: Option<Instant>,
    /// The delay that led to `retry_at`.
    backoff_ns: u64,
    /// The base of the volume, whose cached blocks it shares.
    layer: Option<Box<Layer>>,
}

impl CachedVolume {
    /// Creates the state of a clean volume.
    pub fn new(config: &VolumeConfig) -> Self {
        Self {
            device: config.device,
            size: config.options.size,
            block_size: config.options.block_size,
            mode: config.options.mode,
            on_error: config.options.on_error,
            generation: 0,
            oldest: 0,
            dirty: [Gauge32::default(); GENERATIONS as usize],
            has_newer: false,
            writing: [Gauge32::default(); GENERATIONS as usize],
            cursor: NIL,
            target: None,
            unclean: Gauge32::default(),
            truncation: None,
            held: Gauge32::default(),
            failing: false,
            last_error: IoError::Medium,
            errors: ErrorSequence::default(),
            retry_at: None,
            backoff_ns: 0,
            layer: None,
        }
    }

    /// Creates the state of a free volume slot.
    pub fn free_slot() -> Self {
        let options = VolumeOptions { mode: WriteMode::None, ..VolumeOptions::default() };
        Self::new(&VolumeConfig { device: NO_DEVICE, options, ..VolumeConfig::default() })
    }

    /// Replaces this volume by another one. The error count continues, so that a connection that has seen errors of this volume
    /// reports those of the next one.
    pub fn replace(&mut self, other: Self) {
        assert!(self.unclean.is_zero() && self.held.is_zero(), "a volume that leaves is clean");
        *self = Self { errors: self.errors.for_next_volume(), ..other };
    }

    /// Returns true if no volume is in the slot.
    pub fn is_free_slot(&self) -> bool {
        self.device == NO_DEVICE
    }

    /// Returns the device that holds the volume.
    #[inline]
    pub fn device(&self) -> DeviceId {
        self.device
    }

    /// Returns the size in bytes.
    #[inline]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Sets the size in bytes.
    pub fn set_size(&mut self, size: u64) {
        self.size = size;
    }

    /// Returns the base of the volume, if it shares what is cached of one.
    #[inline]
    pub fn layer(&self) -> Option<&Layer> {
        self.layer.as_deref()
    }

    /// Returns the base of the volume, to note changes.
    #[inline]
    pub fn layer_mut(&mut self) -> Option<&mut Layer> {
        self.layer.as_deref_mut()
    }

    /// Puts the volume on a base.
    pub fn set_layer(&mut self, layer: Layer) {
        assert!(self.layer.is_none() && !self.is_free_slot(), "a volume is put on one base, once");
        self.layer = Some(Box::new(layer));
    }

    /// Returns the block size that clients must align to, in bytes.
    #[inline]
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Returns when a write completes.
    #[inline]
    pub fn mode(&self) -> WriteMode {
        self.mode
    }

    /// Returns true if what streams bring leaves the cache behind them.
    #[inline]
    pub fn drops_behind(&self) -> bool {
        self.mode == WriteMode::Stream
    }

    /// Returns the number of blocks, a partial last one included.
    #[inline]
    pub fn blocks(&self) -> u64 {
        self.size.div_ceil(u64::from(BLOCK))
    }

    /// Returns the bytes of `count` blocks from `block` on, as offset and length; the last block may be partial.
    #[inline]
    pub fn bytes_of(&self, block: u64, count: u32) -> (u64, u32) {
        debug_assert!(count > 0, "a bio has blocks");
        let offset = block * u64::from(BLOCK);
        let len = (u64::from(count) * u64::from(BLOCK)).min(self.size.saturating_sub(offset));
        (offset, len as u32)
    }

    /// Returns the current generation as folios carry it.
    #[inline]
    pub fn current(&self) -> u8 {
        (self.generation % GENERATIONS) as u8
    }

    /// Returns the generation that a folio's or a write-out's mark means.
    pub fn generation_of(&self, mark: u8) -> u64 {
        debug_assert!(u64::from(mark) < GENERATIONS);
        let generation =
            self.oldest + (u64::from(mark).wrapping_sub(self.oldest) & (GENERATIONS - 1));
        debug_assert!(generation <= self.generation, "the mark of a generation in use");
        generation
    }

    /// Counts a folio that became dirty in a generation.
    pub fn add_dirty(&mut self, mark: u8) {
        self.dirty[usize::from(mark)].add(1);
    }

    /// Notes that a block of a folio of an older generation became dirty.
    pub fn note_newer(&mut self) {
        self.has_newer = true;
    }

    /// Counts a folio of a generation that is no longer dirty.
    pub fn sub_dirty(&mut self, mark: u8) {
        self.dirty[usize::from(mark)].sub(1);
    }

    /// Counts a write-out of a generation that was sent.
    pub fn add_writing(&mut self, mark: u8) {
        self.writing[usize::from(mark)].add(1);
    }

    /// Counts a write-out of a generation that ended.
    pub fn sub_writing(&mut self, mark: u8) {
        self.writing[usize::from(mark)].sub(1);
    }

    /// Returns true if something of the volume is under write-out.
    pub fn is_writing(&self) -> bool {
        self.writing.iter().any(|count| !count.is_zero())
    }

    /// Returns true if a generation has dirty folios or outstanding write-outs.
    fn is_in_use(&self, mark: u8) -> bool {
        let mark = usize::from(mark);
        !self.dirty[mark].is_zero() || !self.writing[mark].is_zero()
    }

    /// Skips old generations of which nothing is left.
    pub fn advance(&mut self) {
        while self.oldest < self.generation {
            if self.is_in_use((self.oldest % GENERATIONS) as u8) {
                break;
            }
            self.oldest += 1;
        }
        debug_assert!(self.generation - self.oldest < GENERATIONS);
    }

    /// Ends the current generation for a flush and returns the generation to wait for; `None` if all 16 are in use.
    pub fn end_generation(&mut self) -> Option<u64> {
        self.advance();
        if !self.is_in_use(self.current()) && !self.has_newer {
            // The current generation is empty; whatever is left is older.
            return Some(self.generation.saturating_sub(1));
        }
        if self.generation - self.oldest + 1 >= GENERATIONS {
            return None;
        }
        self.has_newer = false;
        self.generation += 1;
        assert!(!self.is_in_use(self.current()), "a new generation is empty");
        Some(self.generation - 1)
    }

    /// Returns true if anything up to generation `target` is dirty or under write-out.
    pub fn is_left(&mut self, target: u64) -> bool {
        self.advance();
        if self.oldest == self.generation {
            return target >= self.generation && self.is_in_use(self.current());
        }
        self.oldest <= target
    }

    /// Returns true if anything up to generation `target` is still to be sent.
    pub fn has_dirty(&self, target: u64) -> bool {
        debug_assert!(self.generation - self.oldest < GENERATIONS);
        (self.oldest..=target.min(self.generation))
            .any(|generation| !self.dirty[(generation % GENERATIONS) as usize].is_zero())
    }

    /// Returns the last generation that a flush waits for, if any of it is still to be sent.
    pub fn flush_work(&self) -> Option<u64> {
        self.target.filter(|&target| self.has_dirty(target))
    }

    /// Raises the last generation that a flush waits for.
    pub fn raise_target(&mut self, target: u64) {
        assert!(target <= self.generation, "a flush waits for a generation that exists");
        self.target = Some(self.target.map_or(target, |other| other.max(target)));
    }

    /// Raises it to the last generation that has ended: every one is in use, and a flush waits until one is free.
    pub fn raise_target_to_ended(&mut self) {
        assert!(self.generation > 0, "generations have ended");
        self.raise_target(self.generation - 1);
    }

    /// Forgets the last generation that a flush waits for: no flush waits.
    pub fn clear_target(&mut self) {
        self.target = None;
    }

    /// Returns the group at which the next pass of a flush starts.
    pub fn cursor(&self) -> u32 {
        self.cursor
    }

    /// Sets the group at which the next pass of a flush starts.
    pub fn set_cursor(&mut self, group: u32) {
        self.cursor = group;
    }

    /// Returns the dirty blocks and blocks under write-out; a block that is both counts twice.
    #[inline]
    pub fn unclean(&self) -> u32 {
        self.unclean.get()
    }

    /// Counts blocks that became dirty, or dirty again.
    pub fn add_unclean(&mut self, blocks: u32) {
        self.unclean.add(blocks);
    }

    /// Counts blocks that were written or cancelled.
    pub fn sub_unclean(&mut self, blocks: u32) {
        self.unclean.sub(blocks);
    }

    /// Returns the number of held blocks.
    #[inline]
    pub fn held(&self) -> u32 {
        self.held.get()
    }

    /// Counts held blocks that were added or released; returns true if the volume began or ceased to hold any.
    pub(super) fn count_held(&mut self, more: u32, less: u32) -> bool {
        let before = self.held.is_zero();
        self.held.add(more);
        self.held.sub(less);
        assert!(self.held <= self.unclean, "held blocks are dirty");
        before != self.held.is_zero()
    }

    /// Returns the error of the last failed write-out.
    pub fn last_error(&self) -> IoError {
        self.last_error
    }

    /// Returns true if a write-out failed and it is not known that the next one would succeed.
    pub fn is_failing(&self) -> bool {
        !self.held.is_zero() || self.failing && !self.unclean.is_zero()
    }

    /// Returns the errors of write-out, to be handed over.
    pub fn error_sequence(&self) -> &ErrorSequence {
        &self.errors
    }

    /// Continues the errors of another process, in the form of [`ErrorSequence::parts`].
    pub fn adopt_errors(&mut self, parts: (Status, u32, bool)) {
        if let Err(error) = parts.0 {
            self.last_error = error;
        }
        self.errors = ErrorSequence::of_parts(parts);
    }

    /// Returns the errors of write-out, as connections see them.
    pub fn errors(&mut self) -> &mut ErrorSequence {
        &mut self.errors
    }

    /// Records a write-out that failed.
    pub fn on_write_failed(&mut self, error: IoError) {
        (self.last_error, self.failing) = (error, true);
        self.errors.record(error);
    }

    /// Records a write-out that passed its time-out.
    pub fn on_write_timed_out(&mut self) {
        self.errors.record(IoError::TimedOut);
        self.last_error = IoError::TimedOut;
    }

    /// Records a write-out that succeeded.
    pub fn on_write_succeeded(&mut self) {
        if self.held.is_zero() {
            (self.backoff_ns, self.failing) = (0, false);
        }
    }

    /// Discards what failed: the next retry begins with the shortest delay, and new connections see no old errors.
    pub fn on_failed_discarded(&mut self) {
        self.backoff_ns = 0;
        self.errors.acknowledge();
    }

    /// Plans the next retry of held blocks, if the volume's policy or a passing error asks for one and none is planned.
    pub fn plan_retry(&mut self, now: Instant, error: IoError) -> bool {
        let passing = matches!(error, IoError::TimedOut | IoError::NoSpace | IoError::NoMemory);
        if self.retry_at.is_some() || self.on_error == ErrorPolicy::Hold && !passing {
            return false;
        }
        self.backoff_ns = (self.backoff_ns * 2).clamp(BACKOFF_MIN, BACKOFF_MAX);
        self.retry_at = Some(now.after(self.backoff_ns));
        debug_assert!(self.retry_at > Some(now), "a retry is delayed");
        true
    }

    /// Returns the time of the next retry.
    pub fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Takes a retry whose time has come; true if there are blocks to write again.
    pub fn take_retry(&mut self, now: Instant) -> bool {
        if self.retry_at.is_none_or(|at| at > now) {
            return false;
        }
        self.retry_at = None;
        !self.held.is_zero()
    }

    /// Returns true while blocks past a lowered end are still to be dropped.
    pub fn is_truncating(&self) -> bool {
        self.truncation.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume() -> CachedVolume {
        CachedVolume::new(&VolumeConfig::default())
    }

    #[test]
    fn flush_waits_for_older_dirty_data_only() {
        let mut volume = volume();
        let first = volume.current();
        volume.add_dirty(first);
        let target = volume.end_generation().unwrap();
        let second = volume.current();
        assert_ne!(first, second);
        volume.add_dirty(second);
        assert!(volume.is_left(target) && volume.has_dirty(target));
        volume.sub_dirty(first);
        volume.add_writing(first);
        assert!(volume.is_left(target) && !volume.has_dirty(target), "under write-out");
        volume.sub_writing(first);
        assert!(!volume.is_left(target), "later data is not waited for");
    }

    #[test]
    fn flush_of_clean_volume_ends_no_generation() {
        let mut volume = volume();
        for _ in 0..100 {
            let target = volume.end_generation().unwrap();
            assert!(!volume.is_left(target));
        }
        assert_eq!(volume.generation, 0);
    }

    #[test]
    fn generation_numbers_are_bounded_and_wrap() {
        let mut volume = volume();
        let mut targets = Vec::new();
        loop {
            volume.add_dirty(volume.current());
            match volume.end_generation() {
                Some(target) => targets.push(target),
                None => break,
            }
        }
        assert_eq!(targets.len(), 15);
        for round in 0..100 {
            let oldest = volume.oldest;
            volume.sub_dirty((oldest % 16) as u8);
            volume.advance();
            assert!(!volume.is_left(oldest) && volume.is_left(oldest + 1), "round {round}");
            assert_eq!(volume.generation_of((volume.oldest % 16) as u8), volume.oldest);
            let target = volume.end_generation().unwrap();
            assert!(volume.is_left(target));
            volume.add_dirty(volume.current());
            assert_eq!(volume.end_generation(), None);
        }
    }

    #[test]
    fn generations_exceed_32_bits() {
        let mut volume = volume();
        let many = u32::MAX - 20;
        (volume.generation, volume.oldest) = (many.into(), many.into());
        for round in 0..40 {
            let mark = volume.current();
            volume.add_dirty(mark);
            let target = volume.end_generation().unwrap();
            assert!(volume.is_left(target) && volume.has_dirty(target), "round {round}");
            assert_eq!(volume.generation_of(mark), target);
            volume.sub_dirty(mark);
            assert!(!volume.is_left(target), "round {round}");
        }
    }

    #[test]
    fn flush_waits_for_newer_blocks_of_older_folios() {
        let mut volume = volume();
        volume.add_dirty(0);
        let first = volume.end_generation().unwrap();
        // A block of the same folio: the folio moves to the next generation when its older blocks are written.
        volume.note_newer();
        let second = volume.end_generation().unwrap();
        assert_eq!((first, second), (0, 1));
        volume.sub_dirty(0);
        volume.add_dirty(1);
        assert!(!volume.is_left(first) && volume.is_left(second));
        volume.sub_dirty(1);
        assert!(!volume.is_left(second));
    }

    #[test]
    fn connection_sees_only_errors_of_the_replacing_volume() {
        let mut volume = volume();
        let mut heard = volume.errors.sample();
        let mut missed = volume.errors.sample();
        volume.errors.record(IoError::Medium);
        assert_eq!(volume.errors.check(&mut heard), Some(IoError::Medium));
        volume.replace(CachedVolume::free_slot());
        volume.replace(CachedVolume::new(&VolumeConfig::default()));
        let mut new = volume.errors.sample();
        for since in [&mut heard, &mut missed, &mut new] {
            assert_eq!(volume.errors.check(since), None);
        }
        volume.errors.record(IoError::NoSpace);
        for since in [&mut heard, &mut missed, &mut new] {
            assert_eq!(volume.errors.check(since), Some(IoError::NoSpace));
        }
    }
}
