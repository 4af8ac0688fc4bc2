//! Rounds of flushes: the order in which data and bits become durable.
//!
//! ```text
//!            no bit new since the last round
//!   Idle ----------------------------------------> Sync data ----------------------------------------> Idle
//!     `--> covered := live --> Sync data --> Write bits (several at once) --> Sync bits ----------------^
//! ```
//!
//! **The rule: a bit reaches the disk only after a sync that began when its data had completed.** `covered` is taken before the first
//! sync begins, bits are set when their data have completed, and only `covered` is written. One round at a time: a flush that arrives
//! during a round waits for the next one, because the sync of the current one may have begun before data that the flush is to cover. A
//! failed step fails the flushes of its round, and its bits wait for the next.
//!
//! **A write of bits that finds no room loses nothing**: the bits are still in memory, and the data are in the file. Its flushes fail
//! with [`IoError::NotFlushed`], and with room again the next one succeeds. A sync that fails is a loss, whatever its error is.

use headworks_core::{IoError, Status};

use super::bitmap::Bitmap;

/// Most writes of bitmap pages in flight.
pub(super) const WRITES_MAX: usize = 16;
/// Most pages in a write.
const PAGES_MAX: usize = 64;
/// Most flushes that wait for the next round; one more is `Busy`.
const WAITING_MAX: usize = 256;

/// A step of a round for the device to carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlushStep {
    /// A sync of our file.
    Sync,
    /// A write of pages of `covered`.
    WriteBits {
        /// The first page.
        page: u32,
        /// Number of pages.
        pages: usize,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Idle,
    SyncData,
    WriteBits,
    SyncBits,
}

/// The flushes of an overlay; `W` names a waiting command.
#[derive(Debug)]
pub(super) struct Flushes<W> {
    stage: Stage,
    /// Whether the round writes bits.
    has_bits: bool,
    /// Pages of the round that were handed out.
    started: usize,
    in_flight: usize,
    /// The first failure of the round.
    failure: Option<IoError>,
    /// Steps that the device has not taken yet: a sync, or nothing.
    sync_due: bool,
    served: Vec<W>,
    waiting: Vec<W>,
}

impl<W> Flushes<W> {
    pub fn new() -> Self {
        Self {
            stage: Stage::Idle,
            has_bits: false,
            started: 0,
            in_flight: 0,
            failure: None,
            sync_due: false,
            served: Vec::with_capacity(WAITING_MAX),
            waiting: Vec::with_capacity(WAITING_MAX),
        }
    }

    /// Whether no round is under way.
    pub fn is_idle(&self) -> bool {
        self.stage == Stage::Idle
    }

    /// Adds a command that ends with the next round to begin. Returns false when too many wait.
    pub fn join(&mut self, waiter: W) -> bool {
        let has_room = self.waiting.len() < WAITING_MAX;
        if has_room {
            self.waiting.push(waiter);
        }
        has_room
    }

    /// The next step that may start now; begins a round if commands wait for one.
    pub fn next_step(&mut self, bitmap: &mut Bitmap) -> Option<FlushStep> {
        if self.stage == Stage::Idle && !self.waiting.is_empty() {
            std::mem::swap(&mut self.waiting, &mut self.served);
            self.has_bits = bitmap.begin_round();
            (self.stage, self.started, self.failure) = (Stage::SyncData, 0, None);
            self.sync_due = true;
        }
        if std::mem::take(&mut self.sync_due) {
            self.in_flight += 1;
            return Some(FlushStep::Sync);
        }
        let is_writing = self.stage == Stage::WriteBits && self.failure.is_none();
        if !is_writing || self.in_flight == WRITES_MAX {
            return None;
        }
        let (page, pages) = bitmap.pages_to_write(self.started, PAGES_MAX)?;
        self.started += pages;
        self.in_flight += 1;
        Some(FlushStep::WriteBits { page, pages })
    }

    /// A step has ended. When it was the round's last one, `answer` is called for each of its commands.
    pub fn on_end(
        &mut self,
        status: Status,
        bitmap: &mut Bitmap,
        mut answer: impl FnMut(W, Status),
    ) {
        self.in_flight -= 1;
        if let Err(error) = status
            && self.failure.is_none_or(|failure| failure == IoError::NotFlushed)
        {
            self.failure = Some(error);
        }
        if self.in_flight > 0 {
            return;
        }
        let all_started = bitmap.pages_to_write(self.started, 1).is_none();
        match (self.stage, self.failure) {
            (_, Some(_)) => {}
            (Stage::SyncData, None) if self.has_bits => {
                self.stage = Stage::WriteBits;
                return;
            }
            (Stage::WriteBits, None) => {
                if all_started {
                    (self.stage, self.sync_due) = (Stage::SyncBits, true);
                }
                return;
            }
            _ => {}
        }
        let result = self.failure.map_or(Ok(()), Err);
        bitmap.end_round(result.is_ok());
        self.stage = Stage::Idle;
        self.served.drain(..).for_each(|waiter| answer(waiter, result));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::bitmap::{LiveBits, PAGE_BLOCKS};
    use super::*;

    fn bitmap(pages: u64) -> Bitmap {
        Bitmap::new(Arc::new(LiveBits::new(pages * PAGE_BLOCKS * 4096).unwrap())).unwrap()
    }

    /// Carries out all steps; returns them and the answers.
    fn run(flushes: &mut Flushes<u32>, bitmap: &mut Bitmap) -> (Vec<FlushStep>, Vec<u32>) {
        let (mut steps, mut answers) = (Vec::new(), Vec::new());
        while let Some(step) = flushes.next_step(bitmap) {
            steps.push(step);
            flushes.on_end(Ok(()), bitmap, |waiter, status| {
                assert_eq!(status, Ok(()));
                answers.push(waiter);
            });
        }
        (steps, answers)
    }

    #[test]
    fn flush_without_new_bits_is_one_sync() {
        let (mut flushes, mut bitmap) = (Flushes::new(), bitmap(1));
        assert_eq!(flushes.next_step(&mut bitmap), None);
        assert!(flushes.join(1) && flushes.join(2));
        assert_eq!(run(&mut flushes, &mut bitmap), (vec![FlushStep::Sync], vec![1, 2]));
    }

    #[test]
    fn new_bits_are_written_between_two_syncs() {
        let (mut flushes, mut bitmap) = (Flushes::new(), bitmap(100));
        (0..100).for_each(|page| bitmap.set(page * PAGE_BLOCKS + 5, 1, |_| {}));
        flushes.join(1);
        let (steps, _) = run(&mut flushes, &mut bitmap);
        let expected = [
            FlushStep::Sync,
            FlushStep::WriteBits { page: 0, pages: 64 },
            FlushStep::WriteBits { page: 64, pages: 36 },
            FlushStep::Sync,
        ];
        assert_eq!(steps, expected);
        flushes.join(2);
        assert_eq!(run(&mut flushes, &mut bitmap), (vec![FlushStep::Sync], vec![2]));
    }

    #[test]
    fn flush_during_a_round_waits_for_the_next() {
        let (mut flushes, mut bitmap) = (Flushes::new(), bitmap(1));
        flushes.join(1);
        assert_eq!(flushes.next_step(&mut bitmap), Some(FlushStep::Sync));
        flushes.join(2);
        assert_eq!(flushes.next_step(&mut bitmap), None);
        let mut answers = Vec::new();
        flushes.on_end(Ok(()), &mut bitmap, |waiter, _| answers.push(waiter));
        assert_eq!(answers, [1]);
        assert_eq!(run(&mut flushes, &mut bitmap), (vec![FlushStep::Sync], vec![2]));
    }

    #[test]
    fn failed_step_fails_its_round_and_the_next_writes_the_bits() {
        for fails in 0..4 {
            let (mut flushes, mut bitmap) = (Flushes::new(), bitmap(3));
            bitmap.set(0, 1, |_| {});
            bitmap.set(2 * PAGE_BLOCKS, 1, |_| {});
            flushes.join(1);
            let (mut step, mut answers) = (0, Vec::new());
            while flushes.next_step(&mut bitmap).is_some() {
                let status = if step == fails { Err(IoError::NoSpace) } else { Ok(()) };
                flushes.on_end(status, &mut bitmap, |_, status| answers.push(status));
                step += 1;
            }
            assert_eq!((answers, step), (vec![Err(IoError::NoSpace)], fails + 1));
            flushes.join(2);
            assert_eq!(run(&mut flushes, &mut bitmap).0.len(), 4, "failed at step {fails}");
        }
    }

    #[test]
    fn waiting_flushes_are_bounded() {
        let mut flushes = Flushes::new();
        assert_eq!((0..1000).filter(|index| flushes.join(*index)).count(), WAITING_MAX);
    }
}
