//! Tokens of a limit, which one shard lets another use, and the messages that carry them.
//!
//! Tokens are bytes and I/Os of one direction. I/Os are counted in parts (billionths), since a request may cost a fraction more
//! than one. A balance of tokens may be negative.

use super::bucket::PARTS;
use super::{LimitDirection, LimitKind};

/// Bytes and I/Os of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Bytes.
    pub(super) bytes: i64,
    /// I/Os in parts.
    pub(super) ios: i64,
}

impl Tokens {
    pub(super) const ZERO: Self = Self { bytes: 0, ios: 0 };

    /// Tokens of so many bytes and parts of I/Os, as far as they can be counted.
    pub(super) fn new(bytes: u64, ios: u64) -> Self {
        let counted = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        Self { bytes: counted(bytes), ios: counted(ios) }
    }

    fn map2(self, other: Self, f: impl Fn(i64, i64) -> i64) -> Self {
        Self { bytes: f(self.bytes, other.bytes), ios: f(self.ios, other.ios) }
    }

    pub(super) fn plus(self, other: Self) -> Self {
        self.map2(other, i64::saturating_add)
    }

    pub(super) fn minus(self, other: Self) -> Self {
        self.map2(other, i64::saturating_sub)
    }

    pub(super) fn min(self, other: Self) -> Self {
        self.map2(other, i64::min)
    }

    pub(super) fn max(self, other: Self) -> Self {
        self.map2(other, i64::max)
    }

    pub(super) fn times(self, factor: u16) -> Self {
        let factor = i64::from(factor);
        self.map2(Self::ZERO, |value, _| value.saturating_mul(factor))
    }

    /// What is above 0.
    pub(super) fn surplus(self) -> Self {
        self.max(Self::ZERO)
    }

    /// What is missing to 0.
    pub(super) fn debt(self) -> Self {
        Self::ZERO.minus(self).surplus()
    }

    pub(super) fn is_zero(self) -> bool {
        self == Self::ZERO
    }

    /// Whether a balance is at least `least` after `cost` is taken from it; what costs nothing needs nothing.
    pub(super) fn covers(self, cost: Self, least: Self) -> bool {
        let agrees = |balance: i64, cost: i64, least: i64| {
            cost == 0 || balance.saturating_sub(cost) >= least
        };
        agrees(self.bytes, cost.bytes, least.bytes) && agrees(self.ios, cost.ios, least.ios)
    }

    /// Whether a balance is below half of `target`.
    pub(super) fn is_below_half(self, target: Self) -> bool {
        let is_low = |balance: i64, target: i64| target > 0 && balance < target / 2;
        is_low(self.bytes, target.bytes) || is_low(self.ios, target.ios)
    }

    /// Parts of bytes and of I/Os, as buckets count them; what is negative counts as nothing.
    pub(super) fn parts(self) -> (u64, u64) {
        let bytes = u64::try_from(self.bytes).unwrap_or(0);
        (bytes.saturating_mul(PARTS), u64::try_from(self.ios).unwrap_or(0))
    }
}

/// What shards tell each other about the limits of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseMessage {
    /// To the home: tokens are needed. It replaces the request for this direction before it.
    Request(LeaseRequest),
    /// To a lessee: tokens, charged at the home.
    Grant {
        /// Direction of the tokens.
        direction: LimitDirection,
        /// The request that they answer.
        serial: u32,
        /// The tokens.
        tokens: Tokens,
    },
    /// To a lessee: its request waits for the limit. A sign of life.
    Queued {
        /// Direction of the request.
        direction: LimitDirection,
        /// The request.
        serial: u32,
    },
    /// To a lessee: the node does not live here, or not any more.
    Refused {
        /// Direction of the request.
        direction: LimitDirection,
        /// The request.
        serial: u32,
    },
    /// To the home: tokens that were not used.
    Return {
        /// Direction of the tokens.
        direction: LimitDirection,
        /// The tokens.
        tokens: Tokens,
    },
    /// To the new home of a node: what the limit of a kind has admitted, as time at its rates.
    Carry {
        /// The limit.
        kind: LimitKind,
        /// Nanoseconds of the average rate.
        main_ns: u64,
        /// Nanoseconds of the rate of a burst.
        burst_ns: u64,
    },
}

/// A request for tokens of one direction. Entries of rings are as large as their largest message, so bytes are 32 bits wide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseRequest {
    ios: [i64; 3],
    bytes: [u32; 3],
    /// Sum of the weights of what is busy there.
    pub(super) weight: u32,
    pub(super) serial: u32,
    pub(super) direction: LimitDirection,
}

impl LeaseRequest {
    /// A request for what small requests have used in advance, what the first waiter needs, and what else will be used soon.
    pub(super) fn new(
        direction: LimitDirection,
        serial: u32,
        weight: u32,
        (owed, need, ahead): (Tokens, Tokens, Tokens),
    ) -> Self {
        let all = [owed, need, ahead];
        let bytes = all.map(|tokens| u32::try_from(tokens.bytes).unwrap_or(u32::MAX));
        Self { ios: all.map(|tokens| tokens.ios), bytes, weight, serial, direction }
    }

    fn tokens(&self, index: usize) -> Tokens {
        Tokens { bytes: self.bytes[index].into(), ios: self.ios[index] }
    }

    /// What small requests have used in advance.
    pub(super) fn owed(&self) -> Tokens {
        self.tokens(0)
    }

    /// What the first waiter needs.
    pub(super) fn need(&self) -> Tokens {
        self.tokens(1)
    }

    /// What else will be used soon.
    pub(super) fn ahead(&self) -> Tokens {
        self.tokens(2)
    }
}
