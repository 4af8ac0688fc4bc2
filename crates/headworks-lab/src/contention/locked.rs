//! The old way at its best: one elevator behind one lock, every job a dispatcher.
//!
//! ```text
//!   a job:   8 bios --lock: look for a merge-- (each)  --lock: insert-- (the plug's 8)
//!            then until nothing is queued:  --lock: take one--  up to 8 times,  or  --lock: take 8--
//!                                           issue the list, complete it to the jobs that they belong to
//! ```
//!
//! It is the kernel's way (blk_mq_sched_bio_merge, dd_insert_requests, __blk_mq_do_dispatch_sched) with what the kernel also
//! pays left out: tags, budgets, statistics, a second look for merges at the insertion, a lock at the completion, sleeping
//! and waking. The elevator and the merge index are the very objects of our own path. Requests are made once and reused;
//! only what changes is written under the lock. A request belongs to its job by its slot; answers come to a job as bits of a
//! word. A bio that finds a neighbour is counted and goes alone: over the size of the seed's disk there are a handful.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};

use headworks::core::elevator::{self, Batch, Done, Elevator};
use headworks::core::merge::{Limits, MergeIndex};
use headworks::core::request::{Request, SlotId, Slots, State};
use headworks::core::{BioFlags, Completion, Instant, Op, QueueOptions, RequestId, VolumeId};
use headworks::device::{Batch as Commands, Command, Device, DeviceIo, NullDevice};
use headworks::engine::{DiskOp, DiskQueue};
use headworks::memory::Span;
use headworks::primitive::CachePadded;
use headworks::server::Clock;

use super::job::{BLOCK, Stream, Watch};
use super::lock::{Lock, LockCounts, Purpose};
use super::{Dispatch, Load, OrderCounts};

/// What the lock guards.
pub(super) struct Elevators {
    slots: Slots,
    elevator: Box<dyn Elevator>,
    index: MergeIndex,
    limits: Limits,
    batch: Batch,
    queued: usize,
    /// Requests that left, ever.
    departed: u64,
}

/// A request that left the elevator.
#[derive(Clone, Copy)]
struct Departed {
    slot: SlotId,
    offset: u64,
    number: u64,
}

impl Elevators {
    fn new(queue: &QueueOptions, requests: u32) -> Self {
        let mut slots = Slots::new(requests);
        for _ in 0..requests {
            let slot = slots.try_take().expect("one for each");
            slots[slot] = template();
        }
        Self {
            slots,
            elevator: elevator::make(queue),
            index: MergeIndex::new(2 * requests),
            limits: Limits::new(queue),
            batch: Batch::with_capacity(requests as usize),
            queued: 0,
            departed: 0,
        }
    }

    #[inline]
    fn finds_neighbour(&self, incoming: &Request) -> bool {
        !self.index.is_empty()
            && self.index.find(&self.slots, incoming, &self.limits, true).is_some()
    }

    #[inline]
    fn insert(&mut self, now: Instant, requests: &[(SlotId, u64)], ids: &[SlotId]) {
        for &(slot, offset) in requests {
            let request = &mut self.slots[slot];
            request.offset = offset;
            request.state = State::Queued;
            request.stamps = [now; 4];
        }
        self.elevator.insert(now, &mut self.slots, ids);
        for &slot in ids {
            self.index.insert(&mut self.slots, slot);
        }
        self.queued += ids.len();
    }

    /// Takes up to `room` requests out; true if there are more.
    #[inline]
    fn dispatch(
        &mut self,
        now: Instant,
        room: usize,
        done: &mut Vec<Done>,
        out: &mut Vec<Departed>,
    ) -> bool {
        if !done.is_empty() {
            self.elevator.on_complete(now, done);
            done.clear();
        }
        self.batch.reset(room);
        self.elevator.dispatch(now, &mut self.slots, &mut self.batch);
        for &slot in self.batch.ids() {
            self.index.remove(&mut self.slots, slot);
            let request = &mut self.slots[slot];
            request.state = State::InFlight;
            self.departed += 1;
            out.push(Departed { slot, offset: request.offset, number: self.departed });
        }
        self.queued -= self.batch.ids().len();
        self.queued > 0
    }
}

fn template() -> Request {
    Request {
        len: BLOCK,
        segments: 1,
        bios: 1,
        op: Op::Write,
        flags: BioFlags::SYNC,
        parent: headworks::core::slab::NIL,
        ..Request::default()
    }
}

/// What the jobs of a cell share.
struct Shared<L> {
    lock: L,
    /// A bit for each answered slot of a job.
    answered: Vec<CachePadded<AtomicU64>>,
    watch: Option<Watch>,
    clock: Clock,
}

/// What a cell's jobs counted.
#[derive(Default)]
pub(super) struct Tally {
    pub answered: u64,
    pub locks: LockCounts,
    pub neighbours: u64,
}

/// Runs the jobs until they stop, and `meanwhile` on this thread.
pub(super) fn run<L: Lock<Elevators> + Send>(
    load: &Load<'_>,
    dispatch: Dispatch,
    meanwhile: impl FnOnce(),
) -> (Tally, Option<OrderCounts>) {
    let shared = Shared {
        lock: L::new(Elevators::new(&load.queue, load.jobs * load.iodepth)),
        answered: (0..load.jobs).map(|_| CachePadded::default()).collect(),
        watch: load.watched.then(Watch::default),
        clock: Clock::start(),
    };
    let start = Barrier::new(load.jobs as usize + 1);
    let tallies: Vec<Tally> = std::thread::scope(|scope| {
        let jobs: Vec<_> = (0..load.jobs)
            .map(|job| {
                let (shared, start) = (&shared, &start);
                scope.spawn(move || {
                    load.place(job);
                    let mut job = Job::new(load, shared, dispatch, job);
                    start.wait();
                    job.run();
                    job.tally
                })
            })
            .collect();
        start.wait();
        meanwhile();
        jobs.into_iter().map(|job| job.join().expect("a job does not panic")).collect()
    });
    let mut total = Tally::default();
    for tally in tallies {
        total.answered += tally.answered;
        total.neighbours += tally.neighbours;
        total.locks.add(&tally.locks);
    }
    (total, shared.watch.map(|watch| watch.counts()))
}

/// No disk operation leaves a null device.
struct NoDisk;

impl DiskQueue for NoDisk {
    fn push(&mut self, _op: DiskOp, _spans: &[Span]) -> bool {
        false
    }
}

/// One job: a generator and a dispatcher.
struct Job<'a, L> {
    shared: &'a Shared<L>,
    stream: Stream<'a>,
    dispatch: Dispatch,
    job: u32,
    depth: u32,
    submit: u64,
    complete: u32,
    /// Bits of own slots that are free.
    free: u64,
    /// Bits of own slots that are answered and not yet taken in.
    answered: u64,
    /// Bits of all jobs' slots, answered by the list that is being issued.
    answers: Vec<u64>,
    incoming: Request,
    requests: Vec<(SlotId, u64)>,
    ids: Vec<SlotId>,
    departed: Vec<Departed>,
    commands: Vec<Command>,
    completions: Vec<Completion>,
    done: Vec<Done>,
    device: NullDevice,
    tally: Tally,
}

impl<'a, L: Lock<Elevators>> Job<'a, L> {
    fn new(load: &Load<'a>, shared: &'a Shared<L>, dispatch: Dispatch, job: u32) -> Self {
        let room = load.batch as usize;
        Self {
            shared,
            stream: load.stream(job),
            dispatch,
            job,
            depth: load.iodepth,
            submit: load.batch.into(),
            complete: load.batch,
            free: u64::MAX >> (64 - load.iodepth),
            answered: 0,
            answers: vec![0; load.jobs as usize],
            incoming: template(),
            requests: Vec::with_capacity(room),
            ids: Vec::with_capacity(room),
            departed: Vec::with_capacity(room),
            commands: Vec::with_capacity(room),
            completions: Vec::with_capacity(room),
            done: Vec::with_capacity(room),
            device: NullDevice,
            tally: Tally::default(),
        }
    }

    fn run(&mut self) {
        let all = u64::MAX >> (64 - self.depth);
        loop {
            let mut over = false;
            while u64::from(self.free.count_ones()) >= self.submit {
                let now = self.shared.clock.now();
                over = !self.insert(now);
                if over {
                    break;
                }
                while self.dispatch(now) {}
            }
            let in_flight = self.depth - self.free.count_ones();
            if in_flight == 0 {
                break;
            }
            self.reap(if over { in_flight } else { self.complete });
            if over && self.free == all {
                break;
            }
        }
        self.tally.answered = self.stream.answered();
    }

    /// A batch of bios, from the generator into the elevator; false when the job is over.
    fn insert(&mut self, now: Instant) -> bool {
        let count = self.stream.grant(self.submit);
        let (shared, locks) = (self.shared, &mut self.tally.locks);
        for _ in 0..count {
            let slot = self.free.trailing_zeros();
            self.free &= self.free - 1;
            self.incoming.offset = self.stream.next_offset();
            let incoming = &self.incoming;
            let found =
                shared.lock.hold(Purpose::Merge, locks, |all| all.finds_neighbour(incoming));
            self.tally.neighbours += u64::from(found);
            self.requests.push((self.job * self.depth + slot, incoming.offset));
            self.ids.push(self.job * self.depth + slot);
        }
        if count == 0 {
            return false;
        }
        let (requests, ids) = (&self.requests, &self.ids);
        shared.lock.hold(Purpose::Insert, locks, |all| all.insert(now, requests, ids));
        self.requests.clear();
        self.ids.clear();
        true
    }

    /// Takes a list out of the elevator, whoever its requests belong to, and issues it; true if there may be more.
    fn dispatch(&mut self, now: Instant) -> bool {
        let room = self.submit as usize;
        let (departed, done) = (&mut self.departed, &mut self.done);
        let (lock, locks) = (&self.shared.lock, &mut self.tally.locks);
        let more = match self.dispatch {
            Dispatch::Batch => {
                lock.hold(Purpose::Dispatch, locks, |all| all.dispatch(now, room, done, departed))
            }
            Dispatch::OneByOne => loop {
                let more =
                    lock.hold(Purpose::Dispatch, locks, |all| all.dispatch(now, 1, done, departed));
                if !more || departed.len() == room {
                    break more;
                }
            },
        };
        self.issue(now);
        more
    }

    /// Gives the list to the device, which answers at once.
    fn issue(&mut self, now: Instant) {
        for departed in &self.departed {
            if let Some(watch) = &self.shared.watch {
                watch.note(departed.number);
            }
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
        let batch = Commands { commands: &self.commands, spans: &[] };
        let mut io = DeviceIo { completions: &mut self.completions, disk: &mut NoDisk };
        // SAFETY: a write without spans names no memory.
        unsafe { self.device.submit(now, batch, &mut io) };
        self.commands.clear();
        self.departed.clear();
        let mut answered_jobs = 0_u64;
        for completion in &self.completions {
            self.done.push(Done { ioprio: self.incoming.ioprio, op: Op::Write });
            let (job, slot) = (completion.id.slot / self.depth, completion.id.slot % self.depth);
            self.answers[job as usize] |= 1 << slot;
            answered_jobs |= 1 << job;
        }
        self.completions.clear();
        self.answered |= std::mem::take(&mut self.answers[self.job as usize]);
        answered_jobs &= !(1 << self.job);
        while answered_jobs != 0 {
            let job = answered_jobs.trailing_zeros() as usize;
            answered_jobs &= answered_jobs - 1;
            let answers = std::mem::take(&mut self.answers[job]);
            // Release: pairs with the Acquire in `reap`.
            self.shared.answered[job].0.fetch_or(answers, Ordering::Release);
        }
    }

    /// Waits for at least `least` answers and takes them in. Whoever holds the missing ones runs or is about to: no sleep.
    fn reap(&mut self, least: u32) {
        let word = &self.shared.answered[self.job as usize].0;
        let mut looks = 0_u32;
        loop {
            // Relaxed: a hint that keeps the line shared while there is nothing.
            if word.load(Ordering::Relaxed) != 0 {
                // Acquire: pairs with the Release in `issue`.
                self.answered |= word.swap(0, Ordering::Acquire);
            }
            if self.answered.count_ones() >= least {
                break;
            }
            looks += 1;
            match looks % 64 {
                0 => std::thread::yield_now(),
                _ => std::hint::spin_loop(),
            }
        }
        self.stream.note_answered(self.answered.count_ones().into());
        debug_assert!(self.free & self.answered == 0, "a slot is answered once");
        self.free |= self.answered;
        self.answered = 0;
    }
}
