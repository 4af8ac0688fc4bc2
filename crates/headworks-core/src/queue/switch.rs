//! Changing a queue's options while it works.
//!
//! ```text
//!         Set              all that was in the queue has ended          options, tags, elevator replaced
//!  Open ---------> Draining ---------------------------------> switch ----------------------------------> Open
//!                     |  bios are held, in order                             held bios enter, in order
//!                     |-- only commands that were given up hold tags, and the tags must be replaced: Busy --> Open
//!                     `-- the rest waits for what only those hold, tags or room in the device:       Busy --> Open
//! ```
//!
//! Nothing is in the queue when it changes, so no request ever meets two sets of limits, two elevators or two tag policies.
//! A drain ends: every command is answered or given up within `io_timeout`, leases are asked back at once, and new bios, new
//! flushes and new wishes for leases wait here. Bios that spend a lease already are let in: they are what the drain waits for;
//! but not for the tags of those that were given up, which come home when the device likes.
//! Invariants: one switch at a time; a value that is none leaves everything as it was; held bios enter in the order in which
//! they came, before any later one.

use super::admit::inflight_max;
use super::{Pools, Queue, TimerKind, Wish, clear_timers, timer_of};
use crate::action::{Action, Notice};
use crate::bio::ShardId;
use crate::elevator;
use crate::error::{IoError, Status};
use crate::input::Message;
use crate::list::Fifo;
use crate::merge::Limits;
use crate::options::{QueueOptions, Tunable};
use crate::request::{Request, Slots};
use crate::tags;
use crate::time::Instant;

/// What a queue keeps for a change.
#[derive(Debug)]
pub(super) struct Switch {
    /// The options to come and the token of the answer.
    next: Option<(QueueOptions, u32)>,
    /// Bios that came while the queue drained.
    held: Fifo,
    /// Wishes for leases that came while the queue drained, by shard.
    wishes: Vec<Option<Wish>>,
    /// Tags that the shard has request slots for.
    slots_for: u32,
}

impl Switch {
    pub fn new(shards: u16, options: &QueueOptions) -> Self {
        Self {
            next: None,
            held: Fifo::new(),
            wishes: vec![None; shards.into()],
            slots_for: options.nr_requests,
        }
    }
}

impl Queue {
    /// An option that the cache works with, not the queue: nothing is drained.
    pub fn set_caching(&mut self, tunable: Tunable, value: u64) -> Status {
        // What is being switched to was made from what held before.
        let next = self.switch.next.iter_mut().map(|(next, _)| next);
        let mut all = next.chain([&mut self.options]);
        all.try_for_each(|options| tunable.set(options, value)).map_err(|_| IoError::Invalid)
    }

    /// The operator wants another value: drains and switches, and answers then.
    pub fn set(&mut self, pools: &mut Pools, tunable: Tunable, value: u64, token: u32) {
        let mut next = self.options;
        let refused = match tunable.set(&mut next, value) {
            _ if self.is_draining() => Some(IoError::Busy),
            Err(_) => Some(IoError::Invalid),
            Ok(()) if !tunable.is_live() => Some(IoError::Unsupported),
            Ok(()) if !self.blocks_fit(&next) => Some(IoError::Invalid),
            Ok(()) => None,
        };
        match refused {
            Some(error) => tell(pools, token, Err(error)),
            None if next == self.options => tell(pools, token, Ok(())),
            None => self.switch.next = Some((next, token)),
        }
    }

    /// A request cannot be smaller than a block of any of the device's volumes.
    fn blocks_fit(&self, next: &QueueOptions) -> bool {
        let largest = self.volumes.iter().flatten().map(|volume| volume.block_size);
        largest.max().is_none_or(|block| block <= next.max_bytes())
    }

    /// Whether bios are to be held.
    pub fn is_draining(&self) -> bool {
        self.switch.next.is_some()
    }

    /// Keeps a bio until the switch is over.
    pub fn hold(&mut self, now: Instant, pools: &mut Pools, slot: u32) {
        pools.begin_wait(now, slot);
        self.switch.held.push(&mut pools.bios, slot);
    }

    /// The next bio that was held.
    pub fn next_held(&mut self, pools: &mut Pools) -> Option<u32> {
        self.switch.held.pop(&mut pools.bios)
    }

    /// Keeps a wish for a lease until the switch is over; a shard has one at most.
    pub(super) fn hold_wish(&mut self, from: ShardId, wish: Wish) {
        self.switch.wishes[usize::from(from.0)] = Some(wish);
    }

    /// Switches if everything has ended; true when the queue is open again and held bios may enter.
    pub(super) fn try_switch(&mut self, now: Instant, pools: &mut Pools) -> bool {
        let Some((next, token)) = self.switch.next else {
            return false;
        };
        if !self.only_given_up(&pools.slots) || !self.leases.are_home() {
            return false;
        }
        let waits = self.queued > 0 || self.tags.waiters() > 0;
        if waits && self.goes_on_by_itself() {
            return false;
        }
        self.switch.next = None;
        let status = if waits { Err(IoError::Busy) } else { self.apply(pools, next) };
        tell(pools, token, status);
        for shard in 0..self.switch.wishes.len() {
            if let Some(wish) = self.switch.wishes[shard].take() {
                self.on_tag_want(now, pools, ShardId(shard as u16), wish);
            }
        }
        true
    }

    /// Whether what waits will be moved by a timer, though the device is silent.
    fn goes_on_by_itself(&self) -> bool {
        let open = self.in_flight < self.options.queue_depth;
        self.busy
            || open && self.elevator.next_timeout().is_some()
            || self.tags.next_timeout().is_some()
    }

    /// Nothing is in the device but commands that were given up.
    fn only_given_up(&self, slots: &Slots) -> bool {
        self.flight.iter(slots).all(|id| slots[id].is(Request::TIMED_OUT))
    }

    fn apply(&mut self, pools: &mut Pools, next: QueueOptions) -> Status {
        let old = std::mem::replace(&mut self.options, next);
        let lessees_see = |options: &QueueOptions| (options.nr_requests, options.max_sectors_kb);
        if tags_differ(&old, &next, self.cached) {
            if self.tags.free() < self.tags.depth() {
                self.options = old;
                return Err(IoError::Busy);
            }
            self.make_room(pools);
            self.tags = tags::make(&self.options, self.asks.capacity(), self.cached);
        }
        // Of what was given up and is still in the device the elevator was told then; the new one hears nothing of it.
        self.done.clear();
        self.elevator = elevator::make(&self.options);
        self.needs_completions = self.elevator.needs_completions();
        self.tracks = self.needs_completions || next.hw_inflight_kb > 0;
        // It is set for a command that was sent under the old time-out; nothing that is out has one to come.
        pools.timers.clear(timer_of(self.device, TimerKind::Timeout));
        self.limits = Limits::new(&self.options);
        self.inflight_max = inflight_max(&self.options);
        if lessees_see(&old) != lessees_see(&next) {
            self.tell_limits(pools);
        }
        Ok(())
    }

    /// Other shards cut and count by these. Messages between two shards keep their order, so no tag overtakes this.
    pub(super) fn tell_limits(&self, pools: &mut Pools) {
        let QueueOptions { nr_requests, max_sectors_kb, .. } = self.options;
        self.tell_others(
            pools,
            Message::Limits { device: self.device, nr_requests, max_sectors_kb },
        );
    }

    /// Every other shard hears of it.
    pub(super) fn tell_others(&self, pools: &mut Pools, message: Message) {
        for shard in (0..self.switch.wishes.len() as u16).map(ShardId) {
            if shard != self.owner {
                pools.actions.list.push(Action::Send { to: shard, message });
            }
        }
    }

    /// The device leaves. Slots that were made for more tags than it began with stay, for others.
    pub fn leave(&self, pools: &mut Pools, began_with: u32) {
        pools.slots_left_over += self.switch.slots_for - began_with;
        clear_timers(pools, self.device);
    }

    /// More tags need more slots for pieces, and room in the lists of a batch. Once a switch, never per request.
    fn make_room(&mut self, pools: &mut Pools) {
        let more = self.options.nr_requests.saturating_sub(self.switch.slots_for);
        let left_over = more.min(pools.slots_left_over);
        pools.slots_left_over -= left_over;
        pools.slots.grow(more - left_over);
        self.switch.slots_for += more;
        let waiters_max = self.asks.capacity();
        self.ready.reserve_exact(waiters_max + self.options.nr_requests as usize);
        self.batch.grow((self.options.queue_depth + self.options.nr_requests) as usize);
        self.done.reserve_exact((pools.slots.taken() + pools.slots.free()) as usize);
    }
}

/// Whether the tag policy must be replaced.
fn tags_differ(old: &QueueOptions, next: &QueueOptions, cached: bool) -> bool {
    let made = |options: &QueueOptions| tags::TagOptions::new(options, 0, cached);
    made(old) != made(next)
}

fn tell(pools: &mut Pools, token: u32, status: Status) {
    pools.actions.list.push(Action::Notice(Notice::Set { token, status }));
}
