//! The blocks that one queue of a benchmark reads and writes, and what is known of their contents.
//!
//! ```text
//!   Fill (each own block once, in order) --> Pattern (as the benchmark says) --> ReadBack (each own block whose contents are known)
//! ```
//!
//! Invariant: with verification a block has at most one request in flight.

use headworks_core::prng::Prng;

use super::bench::{Pattern, Verify};
use super::stamp::{self, Expected, Versions};

/// Random draws of a block before a slot stays empty for a turn because all drawn blocks are busy.
const DRAWS_MAX: u32 = 32;

/// How the next block is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Each own block once, to be written.
    Fill,
    /// The pattern of the benchmark.
    Pattern,
    /// Each own block whose contents are known, to be read.
    ReadBack,
}

/// What a benchmark does to a range of blocks.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Directions of requests, and the order of blocks.
    pub pattern: Pattern,
    /// Which contents are verified.
    pub verify: Verify,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Seed of the stamps.
    pub seed: u64,
}

/// A request for a block.
#[derive(Clone, Copy, Debug, Default)]
pub struct BlockRequest {
    /// Number of the block in its range.
    pub block: u64,
    /// Offset of its first byte in the export.
    pub offset: u64,
    /// Whether it is a write.
    pub is_write: bool,
}

/// The blocks of one queue.
#[derive(Debug)]
pub struct Blocks {
    work: Work,
    /// First block of the range, and number of blocks.
    first: u64,
    count: u64,
    /// Range of blocks (from, to) that only this queue fills.
    own: (u64, u64),
    prng: Prng,
    /// Next block in order.
    next: u64,
    /// Present with verification only.
    versions: Option<Versions>,
}

impl Blocks {
    /// The blocks of queue `index` of `queues`, of a range of `blocks`. Random patterns without verification share the range.
    #[must_use]
    pub fn new(work: Work, blocks: u64, (index, queues): (u64, u64), prng: Prng) -> Self {
        assert!(index < queues, "queues are numbered from 0");
        let (begin, end) = (blocks * index / queues, blocks * (index + 1) / queues);
        let is_sequential = matches!(work.pattern, Pattern::Read | Pattern::Write);
        let divides = is_sequential || work.verify != Verify::Off;
        let (first, count) = if divides { (begin, end - begin) } else { (0, blocks) };
        let untouched = match work.verify {
            Verify::Off => None,
            Verify::Written => Some(Expected::Anything),
            Verify::FromZeros => Some(Expected::Zeros),
        };
        let versions = untouched.map(|content| Versions::new(count as usize, content));
        Self { work, first, count, own: (begin - first, end - first), prng, next: 0, versions }
    }

    /// Fills a buffer with incompressible bytes.
    pub fn fill_randomly(&mut self, buffer: &mut [u8]) {
        for word in buffer.chunks_mut(8) {
            word.copy_from_slice(&self.prng.next().to_le_bytes()[..word.len()]);
        }
    }

    /// Begins with an order.
    pub fn begin(&mut self, order: Order) {
        self.next = match order {
            Order::Pattern => 0,
            Order::Fill | Order::ReadBack => self.own.0,
        };
    }

    /// Chooses the next block and its direction; none when the order is at its end or all drawn blocks are busy.
    #[inline]
    pub fn choose(&mut self, order: Order) -> Option<BlockRequest> {
        let (block, is_write) = match order {
            Order::Pattern => self.follow_pattern()?,
            Order::Fill => (self.in_order(|_, _| true)?, true),
            Order::ReadBack => {
                let tells =
                    |versions: &Versions, block| versions.expected(block) != Expected::Anything;
                (self.in_order(tells)?, false)
            }
        };
        if let Some(versions) = &mut self.versions {
            versions.begin(block as usize);
        }
        let offset = (self.first + block) * u64::from(self.work.block_bytes);
        Some(BlockRequest { block, offset, is_write })
    }

    #[inline]
    fn follow_pattern(&mut self) -> Option<(u64, bool)> {
        let is_write = match self.work.pattern {
            Pattern::Read | Pattern::RandRead => false,
            Pattern::Write | Pattern::RandWrite => true,
            Pattern::RandRw { read_percent } => self.prng.below(100) >= u64::from(read_percent),
        };
        if matches!(self.work.pattern, Pattern::Read | Pattern::Write) {
            let block = self.next;
            if self.is_busy(block) {
                return None;
            }
            self.next = (block + 1) % self.count;
            return Some((block, is_write));
        }
        let mut draws = (0..DRAWS_MAX).map(|_| self.prng.below(self.count));
        let versions = &self.versions;
        let is_free = |block: &u64| {
            versions.as_ref().is_none_or(|versions| !versions.is_busy(*block as usize))
        };
        draws.find(is_free).map(|block| (block, is_write))
    }

    fn in_order(&mut self, wanted: impl Fn(&Versions, usize) -> bool) -> Option<u64> {
        while self.next < self.own.1 {
            let block = self.next;
            self.next += 1;
            if self.versions.as_ref().is_none_or(|versions| wanted(versions, block as usize)) {
                return Some(block);
            }
        }
        None
    }

    #[inline]
    fn is_busy(&self, block: u64) -> bool {
        self.versions.as_ref().is_some_and(|versions| versions.is_busy(block as usize))
    }

    /// Puts stamps into a part of a write's data that begins at byte `at`, if contents are verified.
    #[inline]
    pub fn stamp(&self, request: &BlockRequest, at: u64, part: &mut [u8]) {
        if let Some(versions) = &self.versions {
            stamp::fill(part, self.work.seed, at, versions.next(request.block as usize));
        }
    }

    /// Ends a request; returns what its data have to be, if they are to be checked.
    #[inline]
    pub fn end(&mut self, request: &BlockRequest, is_done: bool) -> Option<Expected> {
        let versions = self.versions.as_mut()?;
        let block = request.block as usize;
        versions.end(block);
        if request.is_write {
            versions.on_written(block, is_done);
            return None;
        }
        let expected = versions.expected(block);
        (is_done && expected != Expected::Anything).then_some(expected)
    }

    /// Compares a part of a read's data that begins at byte `at` with what it has to be.
    ///
    /// # Errors
    /// One sentence about the first wrong sector.
    pub fn check(&self, part: &[u8], at: u64, expected: Expected) -> Result<(), String> {
        stamp::check(part, self.work.seed, at, expected)
    }
}
