//! The baseline: one elevator behind one lock, every job a dispatcher.
//!
//! ```text
//!   a job:   8 bios --lock: look for a merge-- (each)  --lock: insert-- (the plug's 8)
//!            then until nothing is queued:  --lock: take one--  up to 8 times,  or  --lock: take 8--
//!                                           issue the list, complete it to the jobs that they belong to
//! ```
//!
//! This follows the kernel (blk_mq_sched_bio_merge, dd_insert_requests, __blk_mq_do_dispatch_sched)
//! without its other costs: tags, budgets, statistics, a second merge lookup at insertion, a lock
//! at completion, sleeping and waking. Elevator and merge index are the code of the product.
//! Requests are allocated once and reused; only changes are written under the lock. A request
//! belongs to a job by its slot; completions reach a job as bits of a word. A bio that finds a
//! merge candidate is counted and submitted alone: over the size of the seed's disk there are only
//! a few.

use std::os::fd::RawFd;

use headworks::driver::{DiskOp, DiskQueue, Interest, Span, Watch};
use headworks::{Command, CommandBatch as Commands, Device, DeviceIo, NullDevice};
use headworks_core::elevator::{self, Batch, Elevator, EndedRequest};
use headworks_core::merge::MergeIndex;
use headworks_core::request::{BioChain, Request, RequestState, SlotId, Slots};
use headworks_core::request_limits::RequestLimits;
use headworks_core::{
    BioFlags, Completion, DeviceId, Instant, Op, QueueOptions, RequestId, VolumeId,
};

use super::job::{BLOCK, OrderCounts, OrderWatch};
use super::lock::{Lock, LockCounts, Purpose};
use super::window::{Path, Window};
use super::{CellLoad, Dispatch};

/// The data protected by the lock.
pub(super) struct Elevators {
    slots: Slots,
    elevator: Box<dyn Elevator>,
    index: MergeIndex,
    limits: RequestLimits,
    batch: Batch,
    queued: usize,
    /// Total number of requests that left the elevator.
    departed: u64,
    /// The latest time of any call; jobs read the clock before they take the lock.
    latest: Instant,
    /// Bios that found a merge candidate.
    merge_candidates: u64,
}

/// A request that left the elevator.
#[derive(Clone, Copy)]
struct DepartedRequest {
    slot: SlotId,
    offset: u64,
    number: u64,
    ended: EndedRequest,
}

impl Elevators {
    fn new(queue: &QueueOptions, jobs: u32, iodepth: u32) -> Self {
        let requests = jobs * iodepth;
        let mut slots = Slots::new(requests);
        for _ in 0..requests {
            let slot = slots.try_take().expect("one slot for each request");
            // A job is a connection.
            slots[slot] = Request { connection: slot / iodepth, ..template() };
        }
        Self {
            slots,
            elevator: elevator::make(queue, requests),
            index: MergeIndex::new(2 * requests),
            limits: RequestLimits::new(queue),
            batch: Batch::with_capacity(requests as usize),
            queued: 0,
            departed: 0,
            latest: Instant(0),
            merge_candidates: 0,
        }
    }

    /// Time as the elevator sees it: it does not go back.
    #[inline]
    fn advance(&mut self, now: Instant) -> Instant {
        self.latest = self.latest.max(now);
        self.latest
    }

    #[inline]
    fn find_merge_candidate(&mut self, incoming: &Request) {
        if !self.index.is_empty() {
            let found = self.index.find(&self.slots, incoming, &self.limits, true);
            self.merge_candidates += u64::from(found.is_some());
        }
    }

    #[inline]
    fn insert(&mut self, now: Instant, requests: &[(SlotId, u64)], ids: &[SlotId]) {
        let now = self.advance(now);
        for &(slot, offset) in requests {
            let request = &mut self.slots[slot];
            request.offset = offset;
            request.state = RequestState::Queued;
            request.stamps = [now; 4];
        }
        self.elevator.insert(now, &mut self.slots, ids);
        for &slot in ids {
            self.index.insert(&mut self.slots, slot);
        }
        self.queued += ids.len();
    }

    /// Dispatches up to `room` requests; returns true if more are queued.
    #[inline]
    fn dispatch(
        &mut self,
        now: Instant,
        room: usize,
        done: &mut Vec<EndedRequest>,
        out: &mut Vec<DepartedRequest>,
    ) -> bool {
        let now = self.advance(now);
        if !done.is_empty() {
            self.elevator.on_complete(now, &self.slots, done);
            done.clear();
        }
        self.batch.reset(room);
        self.elevator.dispatch(now, &mut self.slots, &mut self.batch);
        for &slot in self.batch.ids() {
            self.index.remove(&mut self.slots, slot);
            let request = &mut self.slots[slot];
            request.state = RequestState::InFlight;
            self.departed += 1;
            let (offset, ended) = (request.offset, EndedRequest::of(request));
            out.push(DepartedRequest { slot, offset, number: self.departed, ended });
        }
        self.queued -= self.batch.ids().len();
        self.queued > 0
    }
}

fn template() -> Request {
    Request {
        len: BLOCK,
        bios: BioChain::of(headworks_core::slab::NIL, 1),
        op: Op::Write,
        flags: BioFlags::SYNC,
        parent: headworks_core::slab::NIL,
        ..Request::default()
    }
}

/// State shared by the jobs of a cell.
struct Shared<L> {
    lock: L,
    watch: Option<OrderWatch>,
}

/// Runs the jobs until they stop, and `meanwhile` on this thread.
pub(super) fn run<L: Lock<Elevators> + Send>(
    load: &CellLoad<'_>,
    dispatch: Dispatch,
    meanwhile: impl FnOnce(),
) -> (u64, LockCounts, Option<OrderCounts>) {
    let shared = Shared {
        lock: L::new(Elevators::new(&load.queue, load.jobs, load.iodepth)),
        watch: load.watched.then(OrderWatch::default),
    };
    let (answered, locks) = load.run_jobs(|| ElevatorPath::new(load, &shared, dispatch), meanwhile);
    (answered, locks, shared.watch.map(|watch| watch.counts()))
}

/// A null device does no disk operations.
struct NoDisk;

impl Watch for NoDisk {
    fn watch_place(&mut self, _: DeviceId, _: u16, _: RawFd, _: Interest) {
        unreachable!("a null device has no descriptors");
    }

    fn forget_place(&mut self, _: DeviceId, _: u16) {}
}

impl DiskQueue for NoDisk {
    unsafe fn push(&mut self, _op: DiskOp, _spans: &[Span]) -> bool {
        false
    }
}

/// The dispatching state of one job.
struct ElevatorPath<'a, L> {
    shared: &'a Shared<L>,
    dispatch: Dispatch,
    room: usize,
    incoming: Request,
    ids: Vec<SlotId>,
    departed: Vec<DepartedRequest>,
    commands: Vec<Command>,
    completions: Vec<Completion>,
    done: Vec<EndedRequest>,
    device: NullDevice,
}

impl<'a, L: Lock<Elevators>> ElevatorPath<'a, L> {
    fn new(load: &CellLoad<'_>, shared: &'a Shared<L>, dispatch: Dispatch) -> Self {
        let room = load.batch as usize;
        Self {
            shared,
            dispatch,
            room,
            incoming: template(),
            ids: Vec::with_capacity(room),
            departed: Vec::with_capacity(room),
            commands: Vec::with_capacity(room),
            completions: Vec::with_capacity(room),
            done: Vec::with_capacity(room),
            device: NullDevice,
        }
    }

    /// Takes a list out of the elevator, of any job's requests; returns true if there may be more.
    fn depart(&mut self, now: Instant, locks: &mut LockCounts) -> bool {
        let (lock, room, done, departed) =
            (&self.shared.lock, self.room, &mut self.done, &mut self.departed);
        let mut take = |room| {
            lock.hold(Purpose::Dispatch, locks, |all| all.dispatch(now, room, done, departed))
        };
        match self.dispatch {
            Dispatch::Batch => take(room),
            Dispatch::OneByOne => {
                let mut left = room;
                loop {
                    let more = take(1);
                    left -= 1;
                    if !more || left == 0 {
                        return more;
                    }
                }
            }
        }
    }

    /// Submits the list to the device, which completes at once.
    fn issue(&mut self, now: Instant, window: &mut Window<'_>) {
        for departed in self.departed.drain(..) {
            if let Some(watch) = &self.shared.watch {
                watch.record(departed.number);
            }
            self.done.push(departed.ended);
            self.commands.push(Command {
                id: RequestId { slot: departed.slot, generation: 0 },
                volume: VolumeId(0),
                op: Op::Write,
                flags: BioFlags::SYNC,
                offset: departed.offset,
                len: BLOCK,
                first_span: 0,
                spans: 0,
            });
        }
        issue(&mut self.device, now, &mut self.commands, &mut self.completions);
        for completion in self.completions.drain(..) {
            window.answer(completion.id.slot);
        }
        window.deliver();
    }
}

/// Submits commands without data to a null device.
pub(super) fn issue(
    device: &mut NullDevice,
    now: Instant,
    commands: &mut Vec<Command>,
    completions: &mut Vec<Completion>,
) {
    let batch = Commands { commands, spans: &[] };
    let lost = &mut Vec::new();
    let mut io = DeviceIo { device: DeviceId(0), completions, disk: &mut NoDisk, lost };
    // SAFETY: a write without spans accesses no memory.
    unsafe { device.submit(now, batch, &mut io) };
    commands.clear();
}

impl<L: Lock<Elevators>> Path for ElevatorPath<'_, L> {
    fn submit(
        &mut self,
        now: Instant,
        batch: &[(u32, u64)],
        window: &mut Window<'_>,
        locks: &mut LockCounts,
    ) {
        let lock = &self.shared.lock;
        for &(slot, offset) in batch {
            self.incoming.offset = offset;
            let incoming = &self.incoming;
            lock.hold(Purpose::Merge, locks, |all| all.find_merge_candidate(incoming));
            self.ids.push(slot);
        }
        let ids = &self.ids;
        lock.hold(Purpose::Insert, locks, |all| all.insert(now, batch, ids));
        self.ids.clear();
        loop {
            let more = self.depart(now, locks);
            self.issue(now, window);
            if !more {
                break;
            }
        }
    }
}
