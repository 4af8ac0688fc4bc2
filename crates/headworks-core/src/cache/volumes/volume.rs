//! What the cache knows of a volume: its mode, its generations, its errors.
//!
//! A flush must wait for what was dirty when it began, and for nothing that was dirtied since (else a busy writer would keep it
//! waiting for ever). So dirty folios carry the *generation* in which they were dirtied first; a flush ends the current one and
//! waits until nothing of it or before is left. 16 are kept apart; one more flush waits until the oldest is written.
//!
//! ```text
//!   oldest ... target | current        a flush waits while oldest <= target
//! ```
//!
//! Errors of write-out are told as by errseq of Linux: every connection hears of one at its next flush, once; one that comes
//! later hears of it only if nobody had heard before. Beside that, blocks whose write-out failed are *held*, and while any is,
//! every flush fails.

use crate::bio::DeviceId;
use crate::cache::volumes::truncation::Truncation;
use crate::error::IoError;
use crate::list::Fifo;
use crate::options::{ErrorPolicy, VolumeConfig, VolumeOptions, WriteMode};
use crate::time::Instant;

/// Where a vacant place has its bytes.
const NOBODYS_DEVICE: DeviceId = DeviceId(u16::MAX);

/// Generations that are kept apart.
const GENERATIONS: u64 = 16;

/// The last error, and how often somebody could have missed one.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::cache) struct ErrorSequence {
    error: Option<IoError>,
    count: u32,
    seen: bool,
}

impl ErrorSequence {
    /// Something went wrong.
    pub fn record(&mut self, error: IoError) {
        self.error = Some(error);
        // Only what somebody saw must be told from what comes now; so the count does not run away.
        self.count += u32::from(self.seen || self.count == 0);
        self.seen = false;
    }

    /// Where a new connection starts: behind what was told to somebody, before what was told to nobody.
    pub fn sample(&self) -> u32 {
        if self.seen { self.count } else { self.count.saturating_sub(1) }
    }

    /// The operator heard of it: connections that come later need not. Those that are there hear of it still.
    pub fn acknowledge(&mut self) {
        self.seen = true;
    }

    /// What a connection that has heard up to `since` has not heard yet.
    pub fn check(&mut self, since: &mut u32) -> Option<IoError> {
        if *since == self.count {
            return None;
        }
        *since = self.count;
        self.seen = true;
        self.error
    }
}

/// A volume.
#[derive(Debug)]
pub(in crate::cache) struct CachedVolume {
    pub device: DeviceId,
    pub size: u64,
    pub block_size: u32,
    pub mode: WriteMode,
    pub on_error: ErrorPolicy,
    /// The generation of what is dirtied now. 64 bits: a thousand flushes a second are 2^32 in seven weeks.
    pub generation: u64,
    /// The oldest of which anything is left; up to `generation`.
    pub oldest: u64,
    /// Folios that are dirty, by generation.
    dirty: [u32; GENERATIONS as usize],
    /// Blocks were dirtied in the current generation whose folios still count for an older one.
    newer: bool,
    /// Write-outs on their way, by generation.
    writing: [u32; GENERATIONS as usize],
    /// Flushes that wait for a generation, oldest target first.
    pub syncs: Fifo,
    /// Flushes that wait until a generation can be ended.
    pub sync_line: Fifo,
    /// The group that a flush's next pass looks at first.
    pub cursor: u32,
    /// The last generation that a flush waits for.
    pub target: Option<u64>,
    /// Blocks that are dirty or under write-out; one that is both counts twice.
    pub unclean: u32,
    /// What is beyond its end and still to be forgotten.
    pub truncation: Option<Truncation>,
    /// Blocks that are held because their write-out failed.
    pub held: u32,
    /// A write-out failed, and none has succeeded since with nothing held.
    pub failing: bool,
    /// Its folios.
    pub folios: u32,
    /// The last error of a write-out.
    pub last_error: IoError,
    pub errors: ErrorSequence,
    /// When held blocks are tried again, and how long after that.
    pub retry_at: Option<Instant>,
    pub backoff_ns: u64,
}

impl CachedVolume {
    pub fn new(config: &VolumeConfig) -> Self {
        Self {
            device: config.device,
            size: config.options.size,
            block_size: config.options.block_size,
            mode: config.options.mode,
            on_error: config.options.on_error,
            generation: 0,
            oldest: 0,
            dirty: [0; GENERATIONS as usize],
            newer: false,
            writing: [0; GENERATIONS as usize],
            syncs: Fifo::new(),
            sync_line: Fifo::new(),
            cursor: crate::slab::NIL,
            target: None,
            unclean: 0,
            truncation: None,
            held: 0,
            failing: false,
            folios: 0,
            last_error: IoError::Medium,
            errors: ErrorSequence::default(),
            retry_at: None,
            backoff_ns: 0,
        }
    }

    /// A place without a volume.
    pub fn vacant() -> Self {
        let options = VolumeOptions { mode: WriteMode::None, ..VolumeOptions::default() };
        Self::new(&VolumeConfig { device: NOBODYS_DEVICE, options, ..VolumeConfig::default() })
    }

    /// Another volume takes the place of this one. Connections that have heard of this one's errors hear of the other's, too: the
    /// count goes on. (There are folios left only if a defect left them.)
    pub fn replace(&mut self, other: Self) {
        let errors = ErrorSequence { error: None, seen: true, ..self.errors };
        *self = Self { errors, folios: self.folios, ..other };
    }

    /// Blocks of the volume, a last one in part included.
    pub fn blocks(&self) -> u64 {
        self.size.div_ceil(u64::from(crate::cache::pool::folio::BLOCK))
    }

    /// The current generation as folios carry it.
    pub fn current(&self) -> u8 {
        (self.generation % GENERATIONS) as u8
    }

    /// The generation that a folio's or a write-out's mark means.
    pub fn whole(&self, mark: u8) -> u64 {
        self.oldest + (u64::from(mark).wrapping_sub(self.oldest) & (GENERATIONS - 1))
    }

    /// A folio of that generation became dirty.
    pub fn add_dirty(&mut self, mark: u8) {
        self.dirty[usize::from(mark)] += 1;
    }

    /// A block became dirty whose folio counts for an older generation until its older blocks are written.
    pub fn add_newer(&mut self) {
        self.newer = true;
    }

    /// It is dirty no longer.
    pub fn sub_dirty(&mut self, mark: u8) {
        self.dirty[usize::from(mark)] -= 1;
    }

    /// A write-out of that generation went out.
    pub fn add_writing(&mut self, mark: u8) {
        self.writing[usize::from(mark)] += 1;
    }

    /// It ended.
    pub fn sub_writing(&mut self, mark: u8) {
        self.writing[usize::from(mark)] -= 1;
    }

    /// Forgets generations of which nothing is left.
    pub fn advance(&mut self) {
        while self.oldest < self.generation {
            let mark = (self.oldest % GENERATIONS) as usize;
            if self.dirty[mark] + self.writing[mark] > 0 {
                break;
            }
            self.oldest += 1;
        }
    }

    /// Ends the current generation for a flush: it waits for that one and those before. `None`: all are in use.
    pub fn end_generation(&mut self) -> Option<u64> {
        self.advance();
        let mark = usize::from(self.current());
        if self.dirty[mark] + self.writing[mark] == 0 && !self.newer {
            // Nothing of the current one: what is left is older, if anything is.
            return Some(self.generation.wrapping_sub(1))
                .filter(|_| self.generation > 0)
                .or(Some(0));
        }
        if self.generation - self.oldest + 1 >= GENERATIONS {
            return None;
        }
        self.newer = false;
        self.generation += 1;
        Some(self.generation - 1)
    }

    /// Whether anything up to generation `target` is dirty or on its way.
    pub fn is_left(&mut self, target: u64) -> bool {
        self.advance();
        if self.oldest == self.generation {
            let mark = usize::from(self.current());
            return target >= self.generation && self.dirty[mark] + self.writing[mark] > 0;
        }
        self.oldest <= target
    }

    /// Whether anything up to generation `target` still has to be sent.
    pub fn has_dirty(&self, target: u64) -> bool {
        (self.oldest..=target.min(self.generation))
            .any(|generation| self.dirty[(generation % GENERATIONS) as usize] > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume() -> CachedVolume {
        CachedVolume::new(&VolumeConfig::default())
    }

    #[test]
    fn a_flush_waits_for_what_was_dirty_and_not_for_what_comes() {
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
        assert!(volume.is_left(target) && !volume.has_dirty(target), "it is on its way");
        volume.sub_writing(first);
        assert!(!volume.is_left(target), "what came later is not waited for");
    }

    #[test]
    fn a_flush_of_nothing_ends_no_generation_and_waits_for_nothing() {
        let mut volume = volume();
        for _ in 0..100 {
            let target = volume.end_generation().unwrap();
            assert!(!volume.is_left(target));
        }
        assert_eq!(volume.generation, 0);
    }

    #[test]
    fn generations_are_bounded_and_come_round() {
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
            assert_eq!(volume.whole((volume.oldest % 16) as u8), volume.oldest);
            let target = volume.end_generation().unwrap();
            assert!(volume.is_left(target));
            volume.add_dirty(volume.current());
            assert_eq!(volume.end_generation(), None);
        }
    }

    #[test]
    fn a_volume_that_is_flushed_for_months_goes_on() {
        let mut volume = volume();
        let many = u32::MAX - 20;
        (volume.generation, volume.oldest) = (many.into(), many.into());
        for round in 0..40 {
            let mark = volume.current();
            volume.add_dirty(mark);
            let target = volume.end_generation().unwrap();
            assert!(volume.is_left(target) && volume.has_dirty(target), "round {round}");
            assert_eq!(volume.whole(mark), target);
            volume.sub_dirty(mark);
            assert!(!volume.is_left(target), "round {round}");
        }
    }

    #[test]
    fn a_flush_waits_for_what_was_dirtied_since_in_a_folio_that_counts_for_an_older_one() {
        let mut volume = volume();
        volume.add_dirty(0);
        let first = volume.end_generation().unwrap();
        // A block of the same folio: the folio goes over to the next generation when the older ones are written.
        volume.add_newer();
        let second = volume.end_generation().unwrap();
        assert_eq!((first, second), (0, 1));
        volume.sub_dirty(0);
        volume.add_dirty(1);
        assert!(!volume.is_left(first) && volume.is_left(second));
        volume.sub_dirty(1);
        assert!(!volume.is_left(second));
    }

    #[test]
    fn every_connection_hears_of_an_error_once_and_a_late_one_only_if_nobody_did() {
        let mut errors = ErrorSequence::default();
        let (mut a, mut b) = (errors.sample(), errors.sample());
        assert_eq!(errors.check(&mut a), None);
        errors.record(IoError::Medium);
        errors.record(IoError::NoSpace);
        let mut unseen = errors.sample();
        assert_eq!(errors.check(&mut a), Some(IoError::NoSpace), "the latest wins");
        let mut seen = errors.sample();
        assert_eq!(errors.check(&mut b), Some(IoError::NoSpace));
        assert_eq!(errors.check(&mut unseen), Some(IoError::NoSpace));
        assert_eq!(errors.check(&mut seen), None);
        assert_eq!((errors.check(&mut a), errors.check(&mut b)), (None, None));
        errors.record(IoError::Medium);
        for since in [&mut a, &mut b, &mut seen, &mut unseen] {
            assert_eq!(errors.check(since), Some(IoError::Medium));
        }
    }

    #[test]
    fn a_connection_that_outlived_a_volume_hears_of_the_next_ones_errors_and_of_no_old_ones() {
        let mut volume = volume();
        let mut heard = volume.errors.sample();
        let mut missed = volume.errors.sample();
        volume.errors.record(IoError::Medium);
        assert_eq!(volume.errors.check(&mut heard), Some(IoError::Medium));
        volume.replace(CachedVolume::vacant());
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

    #[test]
    fn what_was_acknowledged_is_no_news_to_those_who_come_later() {
        let mut errors = ErrorSequence::default();
        let mut there = errors.sample();
        errors.record(IoError::NoSpace);
        errors.acknowledge();
        let mut later = errors.sample();
        assert_eq!(errors.check(&mut later), None);
        assert_eq!(errors.check(&mut there), Some(IoError::NoSpace));
        errors.record(IoError::Medium);
        assert_eq!(errors.check(&mut later), Some(IoError::Medium));
    }
}
