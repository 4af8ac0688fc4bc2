//! The buckets of a node, and what requests cost there.
//!
//! Reads and writes cost their length and one I/O, or one for each `iops-size` bytes (a fraction) if that is more. Discards and
//! zeroing cost 512 bytes and one I/O of a write, whatever their length. Prefetches cost as reads. Flushes, block status and what
//! the server does by itself are free.
//!
//! Invariant: the buckets of a node are settled (leaked until now) before they are asked.

use super::bucket::{Bucket, PARTS, SLACK_NS};
use super::tokens::Tokens;
use super::{LimitDirection, LimitKind, Limits};
use crate::bio::Op;
use crate::time::{Instant, SEC};

/// What a discard or a zeroing counts as.
const DISCARD_BYTES: u32 = 512;

/// A request, as limits see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitedIo {
    /// Direction of its limits.
    pub direction: LimitDirection,
    /// Bytes that it costs.
    pub bytes: u32,
}

impl LimitedIo {
    /// Describes a request; none if limits do not apply to it.
    #[inline]
    #[must_use]
    pub const fn of(op: Op, len: u32) -> Option<Self> {
        match op {
            Op::Read | Op::Prefetch => Some(Self { direction: LimitDirection::Read, bytes: len }),
            Op::Write => Some(Self { direction: LimitDirection::Write, bytes: len }),
            Op::Discard | Op::WriteZeroes => {
                Some(Self { direction: LimitDirection::Write, bytes: DISCARD_BYTES })
            }
            Op::Flush | Op::BlockStatus => None,
        }
    }
}

/// One limit of a node.
#[derive(Clone, Copy, Debug)]
struct LimitEntry {
    kind: LimitKind,
    /// The average rate; with a burst its size is what a burst admits beyond the average.
    main: Bucket,
    /// The rate of a burst.
    burst: Option<Bucket>,
}

impl LimitEntry {
    fn new(now: Instant, kind: LimitKind, limits: &Limits) -> Self {
        let rate = limits.rate(kind);
        if rate.max == 0 {
            return Self { kind, main: Bucket::new(now, rate.average), burst: None };
        }
        let length = if rate.max_length_ns == 0 { SEC } else { rate.max_length_ns };
        let main = Bucket::burst(now, rate.average, rate.max, length);
        Self { kind, main, burst: Some(Bucket::new(now, rate.max)) }
    }

    #[inline]
    fn wait_ns(&self, extra_ns: u64) -> u64 {
        let burst = self.burst.map_or(0, |burst| burst.wait_ns(extra_ns));
        self.main.wait_ns(extra_ns).max(burst)
    }
}

/// The buckets of a node; none for a node without limits.
#[derive(Clone, Debug, Default)]
pub(super) struct BucketSet {
    entries: Vec<LimitEntry>,
    iops_size: u64,
}

impl BucketSet {
    /// Whether the node limits nothing.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Replaces the limits; what was admitted before still counts.
    pub fn replace(&mut self, now: Instant, limits: &Limits) {
        self.settle(now);
        let before = std::mem::take(&mut self.entries);
        let limited = |kind: &LimitKind| limits.rate(*kind).average > 0;
        for kind in LimitKind::ALL.into_iter().filter(limited) {
            let mut entry = LimitEntry::new(now, kind, limits);
            if let Some(old) = before.iter().find(|old| old.kind == kind) {
                entry.main.follow(&old.main);
                if let (Some(burst), Some(old)) = (&mut entry.burst, &old.burst) {
                    burst.follow(old);
                }
            }
            self.entries.push(entry);
        }
        self.iops_size = limits.iops_size;
    }

    /// Lowers all levels by what has leaked until now.
    #[inline]
    pub fn settle(&mut self, now: Instant) {
        for entry in &mut self.entries {
            entry.main.settle(now);
            if let Some(burst) = &mut entry.burst {
                burst.settle(now);
            }
        }
    }

    /// Returns the nanoseconds until all limits of a direction admit, and the limit that takes longest. With `extra`, every
    /// bucket holds the usual slack more.
    #[inline]
    pub fn wait(&self, direction: LimitDirection, extra: bool) -> (u64, Option<LimitKind>) {
        let extra_ns = if extra { SLACK_NS } else { 0 };
        let own = self.entries.iter().filter(|entry| entry.kind.covers(direction));
        own.fold((0, None), |longest, entry| {
            let wait = entry.wait_ns(extra_ns);
            if wait > longest.0 { (wait, Some(entry.kind)) } else { longest }
        })
    }

    /// Whether the limits of one direction alone admit a request of it.
    pub fn directional_is_ready(&self, direction: LimitDirection) -> bool {
        let own = |entry: &&LimitEntry| !entry.kind.is_total() && entry.kind.covers(direction);
        self.entries.iter().filter(own).all(|entry| entry.wait_ns(0) == 0)
    }

    /// Charges every limit that covers a request.
    #[inline]
    pub fn charge(&mut self, io: LimitedIo) {
        let (bytes, ios) = self.parts(io);
        for entry in self.entries.iter_mut().filter(|entry| entry.kind.covers(io.direction)) {
            let parts = if entry.kind.is_bytes() { bytes } else { ios };
            entry.main.charge(parts);
            if let Some(burst) = &mut entry.burst {
                burst.charge(parts);
            }
        }
    }

    /// Returns what a request costs of the limits that cover it.
    #[inline]
    pub fn tokens(&self, io: LimitedIo) -> Tokens {
        let (bytes, ios) = (u64::from(io.bytes), self.parts(io).1);
        let own = self.entries.iter().filter(|entry| entry.kind.covers(io.direction));
        own.fold(Tokens::ZERO, |cost, entry| match entry.kind.is_bytes() {
            true => cost.max(Tokens::new(bytes, 0)),
            false => cost.max(Tokens::new(0, ios)),
        })
    }

    /// Charges tokens of a direction.
    pub fn charge_tokens(&mut self, direction: LimitDirection, tokens: Tokens) {
        let (bytes, ios) = tokens.parts();
        for entry in self.entries.iter_mut().filter(|entry| entry.kind.covers(direction)) {
            let parts = if entry.kind.is_bytes() { bytes } else { ios };
            entry.main.charge(parts);
            if let Some(burst) = &mut entry.burst {
                burst.charge(parts);
            }
        }
    }

    /// Takes tokens of a direction back that were not used.
    pub fn refund(&mut self, direction: LimitDirection, tokens: Tokens) {
        let (bytes, ios) = tokens.parts();
        for entry in self.entries.iter_mut().filter(|entry| entry.kind.covers(direction)) {
            let parts = if entry.kind.is_bytes() { bytes } else { ios };
            entry.main.refund(parts);
            if let Some(burst) = &mut entry.burst {
                burst.refund(parts);
            }
        }
    }

    /// Returns the tokens that the average rates admit in a time; nothing of what no limit covers.
    pub fn tokens_in(&self, direction: LimitDirection, ns: u64) -> Tokens {
        self.least_tokens(direction, |entry| entry.main.units_in(ns))
    }

    /// The same at the rates of bursts.
    pub fn burst_tokens_in(&self, direction: LimitDirection, ns: u64) -> Tokens {
        self.least_tokens(direction, |entry| entry.burst.unwrap_or(entry.main).units_in(ns))
    }

    /// The same at the rates that are admitted now.
    pub fn present_tokens_in(&self, direction: LimitDirection, ns: u64) -> Tokens {
        self.least_tokens(direction, |entry| {
            let of_burst = entry.burst.map_or(0, |burst| burst.units_in(ns));
            let is_burst = entry.main.has_room(of_burst.saturating_mul(PARTS));
            if is_burst && of_burst > 0 { of_burst } else { entry.main.units_in(ns) }
        })
    }

    fn least_tokens(
        &self,
        direction: LimitDirection,
        units: impl Fn(&LimitEntry) -> u64,
    ) -> Tokens {
        let least = |is_bytes: bool| {
            let of_kind = |entry: &&LimitEntry| entry.kind.is_bytes() == is_bytes;
            let own = self.entries.iter().filter(|entry| entry.kind.covers(direction));
            own.filter(of_kind).map(&units).min().unwrap_or(0)
        };
        Tokens::new(least(true), least(false).saturating_mul(PARTS))
    }

    /// Returns the part of tokens that total limits count, so that both directions share it.
    pub fn shared(&self, tokens: Tokens) -> Tokens {
        let is_shared = |is_bytes: bool| {
            self.entries
                .iter()
                .any(|entry| entry.kind.is_total() && entry.kind.is_bytes() == is_bytes)
        };
        let keep = |value: i64, is_bytes: bool| if is_shared(is_bytes) { value } else { 0 };
        Tokens { bytes: keep(tokens.bytes, true), ios: keep(tokens.ios, false) }
    }

    /// Returns the limit of bytes or of I/Os that covers a direction.
    pub fn kind_of(&self, direction: LimitDirection, is_bytes: bool) -> Option<LimitKind> {
        let mut kinds = self.entries.iter().map(|entry| entry.kind);
        kinds.find(|kind| kind.is_bytes() == is_bytes && kind.covers(direction))
    }

    /// Returns the time that tokens take of the limit that they take longest of.
    pub fn tokens_ns(&self, direction: LimitDirection, tokens: Tokens) -> u64 {
        let (bytes, ios) = tokens.parts();
        self.longest_ns(direction, bytes, ios)
    }

    /// What every limit has admitted and has not leaked, as time at its rates.
    pub fn levels(&self) -> impl Iterator<Item = (LimitKind, u64, u64)> + '_ {
        let level = |entry: &LimitEntry| {
            let burst_ns = entry.burst.map_or(0, |burst| burst.level_ns());
            (entry.kind, entry.main.level_ns(), burst_ns)
        };
        self.entries.iter().map(level)
    }

    /// Charges time of one limit, as far as there is such a limit.
    pub fn charge_ns(&mut self, kind: LimitKind, main_ns: u64, burst_ns: u64) {
        for entry in self.entries.iter_mut().filter(|entry| entry.kind == kind) {
            entry.main.charge_ns(main_ns);
            if let Some(burst) = &mut entry.burst {
                burst.charge_ns(burst_ns);
            }
        }
    }

    /// Returns the cost of a request as time of the limit that it takes longest of.
    #[inline]
    pub fn cost_ns(&self, io: LimitedIo) -> u64 {
        let (bytes, ios) = self.parts(io);
        self.longest_ns(io.direction, bytes, ios)
    }

    #[inline]
    fn longest_ns(&self, direction: LimitDirection, bytes: u64, ios: u64) -> u64 {
        let own = self.entries.iter().filter(|entry| entry.kind.covers(direction));
        let cost = |entry: &LimitEntry| {
            entry.main.span_ns(if entry.kind.is_bytes() { bytes } else { ios })
        };
        own.map(cost).max().unwrap_or(0)
    }

    /// Returns a request's cost in parts of bytes and of I/Os.
    #[inline]
    fn parts(&self, io: LimitedIo) -> (u64, u64) {
        let bytes = u64::from(io.bytes) * PARTS;
        let ios = match self.iops_size {
            0 => PARTS,
            size => PARTS.max(bytes / size),
        };
        (bytes, ios)
    }
}
