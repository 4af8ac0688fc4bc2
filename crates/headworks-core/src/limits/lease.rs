//! A lease: the tokens that this shard holds of a node which lives on another one, its *home*.
//!
//! ```text
//!              used up, or a waiter needs more                 granted
//!   Resting  ---------------------------------->  Requested ------------->  Holding --unused for 10 ms--> returned: Resting
//!                                                  |     ^                     |
//!                          no answer for a second  v     | any answer          `-- half used: Requested, and goes on
//!                                                 Detached: own buckets at 1/shards of the rate
//! ```
//!
//! Tokens are charged at the home when they are leased, so the long run is exact. A lessee holds at most `min(2 ms, 4 ms /
//! shards)` of the rate, or what one request needs: the *quantum*. It asks for what its first waiter needs and for what it used
//! lately, doubled with each request for tokens, so one message serves up to a quantum, and a lessee that rests asks for nothing.
//!
//! A small request within its part passes at once, before its tokens are there: the balance may fall to half a quantum below 0 for
//! each direction, and what is owed is asked for first. So light requests do not wait for messages, nor behind a large request.
//!
//! **Bound.** With R the rate, L the largest request, and e the latest wake-up (messages included): an interval T admits at most
//! `R T + R e + 8 ms R + n L` on n shards: 4 ms of leases, 4 ms used in advance, and one request that travels to each shard.
//!
//! A home that does not answer for a second does not hold its lessees up: each then admits its part of the rate by itself,
//! until there is an answer. The home says that a request waits four times a second, so a long wait is no silence.
//!
//! Invariants: at most one request of a direction is outstanding; a balance is at most what was granted and at least the overdraft
//! below 0; tokens of an answer to another request than the outstanding one are not used.

use super::LimitDirection;
use super::tokens::{LeaseMessage, LeaseRequest, Tokens};
use crate::bio::ShardId;
use crate::time::{Instant, MS, SEC};

/// Unused tokens are returned after this time.
const IDLE_NS: u64 = 10 * MS;
/// A home that gives no sign of life for this long does not answer.
const SILENCE_NS: u64 = SEC;
/// Time after which a refused request is made again.
const RETRY_NS: u64 = 10 * MS;
/// The most that one lessee holds, as time of the rate.
const HELD_NS: u64 = 2 * MS;
/// The most that all lessees hold, as time of the rate.
const HELD_BY_ALL_NS: u64 = 4 * MS;

/// The quantum of one of `shards` shards, as time of the rate.
pub(super) fn quantum_ns(shards: u16) -> u64 {
    HELD_NS.min(HELD_BY_ALL_NS / u64::from(shards.max(1)))
}

/// A request for tokens that was not answered.
#[derive(Clone, Copy, Debug)]
struct Outstanding {
    serial: u32,
    /// What it asks for beyond debts.
    most: Tokens,
    /// What it asks for.
    whole: Tokens,
    /// The last sign of life of the home.
    heard: Instant,
}

/// One direction of a lease.
#[derive(Clone, Copy, Debug, Default)]
struct Side {
    balance: Tokens,
    /// What is to be held, so that requests need not wait for messages.
    target: Tokens,
    outstanding: Option<Outstanding>,
    used: Instant,
    /// When a refused request may be made again.
    retry: Option<Instant>,
}

impl Side {
    /// What it holds or may be granted.
    fn held(&self) -> Tokens {
        let asked = self.outstanding.map_or(Tokens::ZERO, |asked| asked.most);
        self.balance.surplus().plus(asked)
    }
}

/// The lease of a node on this shard.
#[derive(Clone, Debug)]
pub(super) struct Lease {
    home: ShardId,
    serial: u32,
    sides: [Side; 2],
    detached: bool,
}

impl Lease {
    /// A lease without tokens.
    pub fn new(home: ShardId) -> Self {
        Self { home, serial: 0, sides: [Side::default(); 2], detached: false }
    }

    /// The shard on which the node lives.
    pub fn home(&self) -> ShardId {
        self.home
    }

    /// Follows the node to another home, which has been told what was charged.
    pub fn follow(&mut self, home: ShardId) {
        self.home = home;
        self.detached = false;
        self.forget_requests();
    }

    /// Forgets outstanding requests: what they ask for is out of date. The next ones replace them.
    pub fn forget_requests(&mut self) {
        self.sides.iter_mut().for_each(|side| side.outstanding = None);
    }

    /// Whether the home does not answer, so that this shard admits its part by itself.
    pub fn is_detached(&self) -> bool {
        self.detached
    }

    /// Whether the balance admits a cost when it may fall to `overdraft` below 0.
    #[inline]
    pub fn covers(&self, direction: LimitDirection, cost: Tokens, overdraft: Tokens) -> bool {
        self.sides[direction as usize].balance.covers(cost, Tokens::ZERO.minus(overdraft))
    }

    /// Whether bytes are what a cost lacks, rather than I/Os.
    pub fn lacks_bytes(&self, direction: LimitDirection, cost: Tokens) -> bool {
        self.sides[direction as usize].balance.bytes < cost.bytes
    }

    /// Takes the cost of a request that passes.
    #[inline]
    pub fn spend(&mut self, now: Instant, direction: LimitDirection, cost: Tokens) {
        let side = &mut self.sides[direction as usize];
        side.balance = side.balance.minus(cost);
        side.used = now;
    }

    /// What the other direction holds.
    pub fn held_by_other(&self, direction: LimitDirection) -> Tokens {
        self.sides[direction.other() as usize].held()
    }

    /// The request for tokens that is due now, if any: for a first waiter that needs `need`, and for what is used ahead of the
    /// messages, within `quantum`. `weight` is the sum of the weights of what is busy here.
    pub fn request(
        &mut self,
        now: Instant,
        direction: LimitDirection,
        (need, quantum): (Tokens, Tokens),
        weight: u32,
    ) -> Option<LeaseRequest> {
        let side = &mut self.sides[direction as usize];
        if side.outstanding.is_some() || side.retry.is_some_and(|at| at > now) {
            return None;
        }
        let owed = side.balance.debt();
        let lacks = need.minus(side.balance.surplus()).surplus();
        if owed.is_zero() && lacks.is_zero() && !side.balance.is_below_half(side.target) {
            return None;
        }
        let used = side.target.max(need).max(owed);
        side.target = used.times(2).min(quantum).surplus();
        let ahead = side.target.minus(side.balance.surplus()).minus(lacks).surplus();
        self.serial = self.serial.wrapping_add(1);
        let (serial, most) = (self.serial, lacks.plus(ahead));
        side.outstanding = Some(Outstanding { serial, most, whole: most.plus(owed), heard: now });
        side.retry = None;
        Some(LeaseRequest::new(direction, serial, weight, (owed, lacks, ahead)))
    }

    /// Takes an answer of the home in; returns whether anything may pass that could not before.
    pub fn on_message(&mut self, now: Instant, from: ShardId, message: LeaseMessage) -> bool {
        if from != self.home {
            return false;
        }
        let returned = std::mem::take(&mut self.detached);
        match message {
            LeaseMessage::Grant { direction, serial, tokens } => {
                let side = &mut self.sides[direction as usize];
                let Some(asked) = side.outstanding.filter(|asked| asked.serial == serial) else {
                    return returned;
                };
                side.outstanding = None;
                side.balance = side.balance.plus(tokens);
                if !tokens.covers(asked.whole, Tokens::ZERO) {
                    // The home lends less than that now.
                    side.target = side.target.min(side.balance.surplus());
                }
                side.used = now;
                true
            }
            LeaseMessage::Queued { direction, serial } => {
                let asked = &mut self.sides[direction as usize].outstanding;
                if let Some(asked) = asked.as_mut().filter(|asked| asked.serial == serial) {
                    asked.heard = now;
                }
                returned
            }
            LeaseMessage::Refused { direction, serial } => {
                let side = &mut self.sides[direction as usize];
                if side.outstanding.is_some_and(|asked| asked.serial == serial) {
                    side.outstanding = None;
                    side.retry = Some(now.after(RETRY_NS));
                }
                returned
            }
            _ => returned,
        }
    }

    /// Reduces what a direction holds to `quantum`, and what it owes to `overdraft`, after the rates were changed; returns what
    /// goes back.
    pub fn trim(
        &mut self,
        direction: LimitDirection,
        quantum: Tokens,
        overdraft: Tokens,
    ) -> Option<Tokens> {
        let side = &mut self.sides[direction as usize];
        let excess = side.balance.minus(quantum).surplus();
        side.balance = side.balance.minus(excess).max(Tokens::ZERO.minus(overdraft));
        side.target = side.target.min(quantum);
        (!excess.is_zero()).then_some(excess)
    }

    /// Takes everything out that a direction holds, or owes: the node lives here from now on.
    pub fn close(&mut self, direction: LimitDirection) -> Tokens {
        std::mem::take(&mut self.sides[direction as usize]).balance
    }

    /// Notices a silent home, and returns what a direction without a waiter has not used for a while.
    pub fn on_timeout(
        &mut self,
        now: Instant,
        direction: LimitDirection,
        waits: bool,
    ) -> Option<Tokens> {
        let side = &mut self.sides[direction as usize];
        side.retry = side.retry.filter(|at| *at > now);
        if side.outstanding.is_some_and(|asked| asked.heard.after(SILENCE_NS) <= now) {
            self.detached = true;
        }
        if waits || side.used.after(IDLE_NS) > now {
            return None;
        }
        side.target = Tokens::ZERO;
        let unused = side.balance.surplus();
        side.balance = side.balance.minus(unused);
        (!unused.is_zero()).then_some(unused)
    }

    /// When [`Lease::on_timeout`] has something to do.
    pub fn next_timeout(&self, waits: [bool; 2]) -> Option<Instant> {
        let of_side = |(side, waits): (&Side, bool)| {
            let asked = side.outstanding.filter(|_| !self.detached);
            let silence = asked.map(|asked| asked.heard.after(SILENCE_NS));
            let rests = side.balance.surplus().is_zero() && side.target.is_zero();
            let idle = (!rests && !waits).then_some(side.used.after(IDLE_NS));
            [silence, idle, side.retry].into_iter().flatten().min()
        };
        self.sides.iter().zip(waits).filter_map(of_side).min()
    }
}
