//! Which child of a node is next, and whether it is within its part of the node's limit.
//!
//! ```text
//!   a child:   Forgotten --waits, or is charged--> Busy --no waiter, and its finish has passed--> Forgotten
//! ```
//!
//! A node's clock runs with real time, divided by the weights of its busy children: as fast as a child of weight 1 is served if
//! the limit is used up and divided by weight. A child's *finish* grows by the cost of what it is served, divided by its weight. So
//! `finish - clock` is the level of the child's *part*: a bucket whose rate is the child's share of the limit. The child with
//! the least finish is the one furthest behind its part, and is next.
//!
//! Order alone keeps no shares: a client with one request at a time waits for a large request of another after each of its own.
//! A small request of a child within its part therefore passes while the node's level is up to 4 ms over its size (`tree`), and
//! the others repay it.
//!
//! The clock runs at most the slack ahead of the waiter that is furthest behind, since a node above may be the one that limits.
//! Why not `shares`: its virtual time grows by service, so it knows no rate and no part; and here a child waits in two
//! directions, of which one may be held while the other passes.
//!
//! Invariants: a child that waits is busy; `weights` is the sum of the weights of busy children; a busy child that does not wait
//! is in `idle`, where its key is at most its finish.

use super::LimitDirection;
use super::bucket::SLACK_NS;
use crate::shares::heap::{Heap, HeapKey, HeapLink, HeapNode, is_before};
use crate::time::Instant;

/// Virtual time of a nanosecond at weight 1, as a shift.
const SHIFT: u32 = 24;

/// The largest cost, and the longest time between two looks, that are told from larger ones: 4.6 minutes.
const SPAN_MAX_NS: u64 = 1 << 38;

/// Index of the links of `idle`.
const IDLE: usize = 2;

/// Links of a child in one heap.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link(HeapLink);

impl Link {
    pub const UNLINKED: Self = Self(HeapLink::UNLINKED);
}

impl HeapNode for Link {
    fn heap_link(&self) -> &HeapLink {
        &self.0
    }

    fn heap_link_mut(&mut self) -> &mut HeapLink {
        &mut self.0
    }
}

/// A child among its siblings.
#[derive(Clone, Copy, Debug)]
struct Turn {
    weight: u32,
    /// Virtual time at which its part has leaked.
    finish: u64,
    busy: bool,
    /// It waits in a direction.
    waits: [bool; 2],
    /// Numbers of its waits; of equal finishes the earlier goes first.
    arrivals: [u64; 2],
    in_idle: bool,
}

impl Turn {
    fn is_waiting(&self) -> bool {
        self.waits[0] || self.waits[1]
    }

    fn key(&self, direction: LimitDirection) -> HeapKey {
        HeapKey { time: self.finish, arrival: self.arrivals[direction as usize] }
    }
}

/// The children of a node, in order.
#[derive(Clone, Copy, Debug)]
pub(super) struct TurnQueue {
    clock: u64,
    at: Instant,
    weights: u64,
    waiting: [Heap; 2],
    idle: Heap,
}

impl TurnQueue {
    /// Creates a queue without children.
    pub const fn new(now: Instant) -> Self {
        let waiting = [Heap::new(), Heap::new()];
        Self { clock: 0, at: now, weights: 0, waiting, idle: Heap::new() }
    }

    /// Returns the child that is next in a direction.
    #[inline]
    pub fn first(&self, direction: LimitDirection) -> Option<u32> {
        self.waiting[direction as usize].top()
    }

    /// Whether a child waits.
    #[inline]
    pub fn has_waiters(&self) -> bool {
        self.waiting.iter().any(|waiting| !waiting.is_empty())
    }

    /// Sum of the weights of busy children.
    pub fn weights(&self) -> u64 {
        self.weights
    }

    /// Virtual time of the slack.
    fn slack(&self) -> u64 {
        (SLACK_NS << SHIFT) / self.weights.max(1)
    }
}

/// The children of all nodes, by their numbers.
#[derive(Debug)]
pub(super) struct Turns {
    turns: Vec<Turn>,
    links: [Vec<Link>; 3],
    arrivals: u64,
}

impl Turns {
    /// Creates the table, with space for `children`.
    pub fn new(children: usize) -> Self {
        let links = [(); 3].map(|()| Vec::with_capacity(children));
        Self { turns: Vec::with_capacity(children), links, arrivals: 0 }
    }

    /// Enters a child under its number, which is the next one or free.
    pub fn put(&mut self, child: u32, weight: u32) {
        assert!(weight > 0, "a weight is at least 1");
        let turn = Turn {
            weight,
            finish: 0,
            busy: false,
            waits: [false; 2],
            arrivals: [0; 2],
            in_idle: false,
        };
        if child as usize == self.turns.len() {
            self.turns.push(turn);
            self.links.iter_mut().for_each(|links| links.push(Link::UNLINKED));
            return;
        }
        let before = std::mem::replace(&mut self.turns[child as usize], turn);
        assert!(!before.busy && !before.in_idle, "a number is used again after its child left");
    }

    /// Whether a child waits in a direction.
    #[inline]
    pub fn waits(&self, child: u32, direction: LimitDirection) -> bool {
        self.turns[child as usize].waits[direction as usize]
    }

    /// Advances a node's clock, and forgets children whose parts have leaked.
    #[inline]
    pub fn settle(&mut self, queue: &mut TurnQueue, now: Instant) {
        let passed = now.since(queue.at).min(SPAN_MAX_NS);
        queue.at = queue.at.max(now);
        if queue.weights > 0 && passed > 0 {
            self.advance(queue, passed);
        }
    }

    fn advance(&mut self, queue: &mut TurnQueue, passed: u64) {
        let mut clock = queue.clock.wrapping_add((passed << SHIFT) / queue.weights);
        if let Some(first) = self.earliest(queue) {
            let latest = first.wrapping_add(queue.slack());
            clock = if is_before(latest, clock) { latest } else { clock };
        }
        if is_before(queue.clock, clock) {
            queue.clock = clock;
        }
        while queue.idle.top_time(&self.links[IDLE]).is_some_and(|at| !is_before(queue.clock, at)) {
            let child = queue.idle.pop(&mut self.links[IDLE]).expect("the heap has a top");
            let turn = &mut self.turns[child as usize];
            turn.in_idle = false;
            if turn.is_waiting() {
                continue;
            }
            if is_before(queue.clock, turn.finish) {
                self.rest(queue, child);
            } else {
                turn.busy = false;
                queue.weights -= u64::from(turn.weight);
            }
        }
    }

    /// Returns the least finish of a waiting child.
    fn earliest(&self, queue: &TurnQueue) -> Option<u64> {
        let finish = |child: u32| self.turns[child as usize].finish;
        let firsts = queue.waiting.iter().filter_map(Heap::top).map(finish);
        firsts.reduce(|a, b| if is_before(b, a) { b } else { a })
    }

    /// Returns the virtual time at which a child's next request starts: a newcomer's with the clock, and not behind the waiter
    /// that is furthest behind.
    #[inline]
    pub fn start(&self, queue: &TurnQueue, child: u32) -> u64 {
        let turn = &self.turns[child as usize];
        if turn.busy {
            return turn.finish;
        }
        let first = self.earliest(queue).filter(|first| is_before(*first, queue.clock));
        first.unwrap_or(queue.clock)
    }

    /// Whether a request that starts at `start` goes before the first waiter of a direction.
    pub fn precedes(&self, queue: &TurnQueue, start: u64, direction: LimitDirection) -> bool {
        queue
            .first(direction)
            .is_none_or(|first| is_before(start, self.turns[first as usize].finish))
    }

    /// Returns the direction whose first waiter is before the other's, of those that are `ready`.
    pub fn earlier(&self, queue: &TurnQueue, ready: [bool; 2]) -> Option<LimitDirection> {
        let [read, write] = LimitDirection::ALL.map(|direction| {
            let first = queue.first(direction).filter(|_| ready[direction as usize]);
            first.map(|child| self.turns[child as usize].key(direction))
        });
        match (read, write) {
            (None, None) => None,
            (Some(_), None) => Some(LimitDirection::Read),
            (None, Some(_)) => Some(LimitDirection::Write),
            (Some(read), Some(write)) if write.precedes(read) => Some(LimitDirection::Write),
            (Some(_), Some(_)) => Some(LimitDirection::Read),
        }
    }

    /// Returns the nanoseconds until the part of a child whose next request starts at `start` has room; none if no sibling is busy.
    pub fn part_wait_ns(&self, queue: &TurnQueue, child: u32, start: u64) -> Option<u64> {
        let turn = &self.turns[child as usize];
        let own = if turn.busy { u64::from(turn.weight) } else { 0 };
        if queue.weights <= own {
            return None;
        }
        let over = start.wrapping_sub(queue.clock.wrapping_add(queue.slack())) as i64;
        let over = u128::from(over.max(0).unsigned_abs());
        Some(((over * u128::from(queue.weights)) >> SHIFT) as u64)
    }

    /// Adds a child to the waiters of a direction.
    pub fn join(&mut self, queue: &mut TurnQueue, child: u32, direction: LimitDirection) {
        let start = self.start(queue, child);
        self.arrivals += 1;
        let turn = &mut self.turns[child as usize];
        assert!(!turn.waits[direction as usize], "a child waits once in a direction");
        if !std::mem::replace(&mut turn.busy, true) {
            queue.weights += u64::from(turn.weight);
        }
        turn.finish = start;
        turn.waits[direction as usize] = true;
        turn.arrivals[direction as usize] = self.arrivals;
        let key = turn.key(direction);
        let links = &mut self.links[direction as usize];
        queue.waiting[direction as usize].push(links, child, key);
    }

    /// Removes a child from the waiters of a direction.
    pub fn leave(&mut self, queue: &mut TurnQueue, child: u32, direction: LimitDirection) {
        let turn = &mut self.turns[child as usize];
        assert!(turn.waits[direction as usize], "a waiter leaves");
        turn.waits[direction as usize] = false;
        let rests = !turn.is_waiting() && !turn.in_idle;
        queue.waiting[direction as usize].remove(&mut self.links[direction as usize], child);
        if rests {
            self.rest(queue, child);
        }
    }

    fn rest(&mut self, queue: &mut TurnQueue, child: u32) {
        let turn = &mut self.turns[child as usize];
        assert!(!turn.in_idle && turn.busy, "a busy child rests once");
        turn.in_idle = true;
        let key = HeapKey { time: turn.finish, arrival: 0 };
        queue.idle.push(&mut self.links[IDLE], child, key);
    }

    /// Charges a child for a request that takes `cost_ns` of the node's limit.
    #[inline]
    pub fn charge(&mut self, queue: &mut TurnQueue, child: u32, cost_ns: u64) {
        let start = self.start(queue, child);
        let turn = &mut self.turns[child as usize];
        if !std::mem::replace(&mut turn.busy, true) {
            queue.weights += u64::from(turn.weight);
        }
        let span = (cost_ns.min(SPAN_MAX_NS) << SHIFT) / u64::from(turn.weight);
        turn.finish = start.wrapping_add(span);
        if turn.is_waiting() {
            return self.reorder(queue, child);
        }
        if !turn.in_idle {
            self.rest(queue, child);
        }
    }

    /// Puts a waiting child where its new finish belongs.
    fn reorder(&mut self, queue: &mut TurnQueue, child: u32) {
        for direction in LimitDirection::ALL {
            let turn = &self.turns[child as usize];
            if turn.waits[direction as usize] {
                let (key, links) = (turn.key(direction), &mut self.links[direction as usize]);
                queue.waiting[direction as usize].remove(links, child);
                queue.waiting[direction as usize].push(links, child, key);
            }
        }
    }

    /// Removes a child from its node, with its past.
    pub fn remove(&mut self, queue: &mut TurnQueue, child: u32) {
        for direction in LimitDirection::ALL {
            if self.waits(child, direction) {
                self.leave(queue, child, direction);
            }
        }
        let turn = &mut self.turns[child as usize];
        if std::mem::take(&mut turn.in_idle) {
            queue.idle.remove(&mut self.links[IDLE], child);
        }
        if std::mem::take(&mut turn.busy) {
            assert!(queue.weights >= u64::from(turn.weight), "a busy child is counted");
            queue.weights -= u64::from(turn.weight);
        }
    }

    /// Sets the weight of a child, from now on.
    pub fn set_weight(&mut self, queue: &mut TurnQueue, child: u32, weight: u32) {
        assert!(weight > 0, "a weight is at least 1");
        let turn = &mut self.turns[child as usize];
        let before = std::mem::replace(&mut turn.weight, weight);
        if turn.busy {
            queue.weights = queue.weights - u64::from(before) + u64::from(weight);
        }
    }

    /// Weight of a child.
    pub fn weight(&self, child: u32) -> u32 {
        self.turns[child as usize].weight
    }
}
