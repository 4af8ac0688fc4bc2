//! Requests of a connection that wait for a limit: parked headers, which hold no buffer, slot or tag.
//!
//! ```text
//!   header --gate agrees--> buffer, payload, bio
//!     `-- parked, in order of its direction --[`LimitTree::pop`]--> passed --room--> buffer, payload, bio
//! ```
//!
//! Parked reads let the headers behind them through: at most as many as the connection may have in flight. A parked write has its
//! payload in the socket, so nothing is read behind it, and the client's sends fill the socket. Neither is anything read while the
//! newest parked request would wait for more than a second.
//!
//! Reads may pass while the payload of a write behind them is incomplete. One that finds no buffer then stays parked, as a passed one:
//! the payload has its buffer and goes on, and the read is tried again with each part of it.
//!
//! Invariants: the passed requests of a direction are its first ones; a write with a payload is the last one of its direction;
//! only a direction without parked requests asks the gate.

#[cfg(test)]
#[path = "limited_tests.rs"]
mod tests;

use std::collections::VecDeque;

use headworks_core::limits::{LimitDirection, LimitTree, LimitedIo, NodeId};
use headworks_core::{Instant, Op};
use headworks_nbd::transmission::Request;

use headworks_front::front_waits::FrontWaits;

use super::{Connection, LARGE_PAYLOAD, Phase, ReceiveContext, ReceiveOutcome, TURN_BIOS};

/// While the newest parked request waits for longer than this, nothing more is read.
const PARKED_NS: u64 = 1_000_000_000;

/// The limits on a connection's path.
pub struct LimitGate<'a> {
    /// Limits of the shard's exports.
    pub tree: &'a mut LimitTree,
    /// The connection's node in the tree.
    pub leaf: NodeId,
}

/// A request that waits for a limit, or has just passed it.
#[derive(Clone, Copy, Debug)]
struct ParkedRequest {
    request: Request,
    io: LimitedIo,
    since: Instant,
    /// What it costs of the limit that it costs most of.
    cost_ns: u64,
}

/// Parked requests of one direction, the first ones passed.
#[derive(Debug, Default)]
struct ParkedQueue {
    requests: VecDeque<ParkedRequest>,
    passed: usize,
    /// Costs of those that have not passed.
    cost_ns: u64,
}

/// Parked requests of a connection.
#[derive(Debug, Default)]
pub(super) struct Parked {
    queues: [ParkedQueue; 2],
    /// Nanoseconds that the newest one waits at least, as of its arrival.
    wait_ns: [u64; 2],
}

impl Parked {
    fn len(&self) -> usize {
        self.queues.iter().map(|queue| queue.requests.len()).sum()
    }

    fn has_passed(&self) -> bool {
        self.queues.iter().any(|queue| queue.passed > 0)
    }

    /// Whether nothing more may be read before a parked request has passed.
    fn stops_reading(&self) -> bool {
        let waits = |queue: &ParkedQueue| queue.requests.len() > queue.passed;
        let [_, writes] = &self.queues;
        let payload = writes.requests.back().is_some_and(|last| last.request.op() == Op::Write);
        payload
            || self.queues.iter().zip(self.wait_ns).any(|(queue, wait_ns)| {
                waits(queue) && wait_ns.saturating_add(queue.cost_ns) > PARKED_NS
            })
    }

    /// Headers of all parked requests; a write with a payload is the last.
    pub fn headers(&self) -> Vec<u8> {
        let all = self.queues.iter().flat_map(|queue| &queue.requests);
        all.flat_map(|parked| parked.request.header()).collect()
    }
}

impl ParkedQueue {
    /// Whether a request of its direction must queue behind another.
    fn is_waiting(&self) -> bool {
        self.requests.len() > self.passed
    }

    /// Lets the first one pass that has not; returns the one after it.
    fn pass(&mut self) -> Option<LimitedIo> {
        let first = self.requests.get(self.passed).expect("a parked request passes");
        self.cost_ns -= first.cost_ns;
        self.passed += 1;
        self.requests.get(self.passed).map(|next| next.io)
    }

    fn first_passed(&self) -> Option<&ParkedRequest> {
        self.requests.front().filter(|_| self.passed > 0)
    }

    fn take_passed(&mut self) -> Option<ParkedRequest> {
        self.passed = self.passed.checked_sub(1)?;
        self.requests.pop_front()
    }
}

impl Connection {
    /// Number of parked requests.
    #[must_use]
    pub fn parked(&self) -> usize {
        self.parked_requests().map_or(0, Parked::len)
    }

    /// Whether the connection is not read from because a parked request waits.
    #[must_use]
    pub fn is_held_by_limit(&self) -> bool {
        self.parked_requests().is_some_and(Parked::stops_reading)
    }

    fn parked_requests(&self) -> Option<&Parked> {
        match &self.phase {
            Phase::Transmission(transmission) => transmission.parked.as_deref(),
            _ => None,
        }
    }

    fn parked_queue(&mut self, direction: LimitDirection) -> Option<&mut ParkedQueue> {
        let Phase::Transmission(transmission) = &mut self.phase else { return None };
        transmission.parked.as_mut().map(|parked| &mut parked.queues[direction as usize])
    }

    /// Whether passed requests wait to be submitted.
    #[inline]
    pub(super) fn has_passed(&self) -> bool {
        self.parked_requests().is_some_and(Parked::has_passed)
    }

    /// Lets the first parked request of a direction pass; returns what limits know of the one behind it.
    pub fn pass(&mut self, direction: LimitDirection) -> Option<LimitedIo> {
        self.parked_queue(direction)?.pass()
    }

    /// Lets all parked requests pass: their export knows no limits any more.
    pub fn pass_all(&mut self) {
        for direction in LimitDirection::ALL {
            while self.parked_queue(direction).is_some_and(|queue| queue.is_waiting()) {
                self.pass(direction);
            }
        }
    }

    /// Parks a request that may not pass now; returns false if it may.
    pub(super) fn park(
        &mut self,
        request: &Request,
        now: Instant,
        gate: &mut LimitGate<'_>,
    ) -> bool {
        let Some(io) = LimitedIo::of(request.op(), request.len) else { return false };
        let Phase::Transmission(transmission) = &mut self.phase else { return false };
        let direction = io.direction as usize;
        let before = transmission.parked.as_ref();
        let is_behind = before.is_some_and(|parked| parked.queues[direction].is_waiting());
        if !is_behind && gate.tree.admit(now, gate.leaf, io) {
            return false;
        }
        let parked = transmission.parked.get_or_insert_default();
        if !is_behind {
            parked.wait_ns[direction] = gate.tree.wait_ns(gate.leaf, io.direction);
        }
        let cost_ns = gate.tree.cost_ns(gate.leaf, io);
        let queue = &mut parked.queues[direction];
        queue.cost_ns += cost_ns;
        queue.requests.push_back(ParkedRequest { request: *request, io, since: now, cost_ns });
        true
    }

    /// Submits passed requests as far as there is room; returns why it stopped, if nothing may be read then.
    pub(super) fn submit_passed(
        &mut self,
        context: &mut ReceiveContext<'_>,
    ) -> Option<ReceiveOutcome> {
        for _ in 0..TURN_BIOS {
            if self.holds_request() {
                // It comes first.
                return None;
            }
            let ready = LimitDirection::ALL.into_iter().find_map(|direction| {
                let first = *self.parked_queue(direction)?.first_passed()?;
                Some((direction, first))
            });
            let (direction, ParkedRequest { request, since, .. }) = ready?;
            let is_receiving = self.payload_is_expected();
            if !self.has_byte_room() {
                return (!is_receiving).then_some(ReceiveOutcome::Full);
            }
            if *context.room == 0 && !self.refuses {
                return Some(ReceiveOutcome::NoBuffer);
            }
            let reads = if request.op() == Op::Read { request.len as usize } else { 0 };
            if reads >= LARGE_PAYLOAD && *context.large_reads == 0 {
                return Some(ReceiveOutcome::NextTurn);
            }
            let waits = FrontWaits::for_limits(context.now.since(since));
            if context.frozen && request.op().is_write() {
                if is_receiving {
                    return None;
                }
                self.parked_queue(direction)?.take_passed();
                return Some(self.hold_frozen(request, waits, context.now));
            }
            if self.refuses && (*context.room == 0 || !self.has_window_room()) {
                self.parked_queue(direction)?.take_passed();
                self.refuse(request);
                continue;
            }
            let admitted = self.admit(request, waits, context);
            if !admitted && is_receiving {
                return None;
            }
            self.parked_queue(direction)?.take_passed();
            if !admitted {
                return Some(self.hold_for_buffer(request, waits, context.now));
            }
            if reads >= LARGE_PAYLOAD {
                *context.large_reads = context.large_reads.saturating_sub(reads);
            }
        }
        Some(ReceiveOutcome::Some)
    }

    /// Submits passed requests before the connection leaves; what finds no buffer is dropped.
    pub fn submit_before_leaving(&mut self, context: &mut ReceiveContext<'_>) {
        while self.has_passed() {
            if self.submit_passed(context) != Some(ReceiveOutcome::Some) {
                return;
            }
        }
    }
}
