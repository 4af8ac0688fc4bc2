//! The product's methods: jobs feed an owner (`headworks::Owner`), whose real shard over the real null
//! device is driven by them or by its thread.
//!
//! There is no lock; the counterparts of lock acquisitions are pushes of batches and wake-ups,
//! which must be rare. In an observed run, an elevator that logs departures and a device that
//! compares arrivals wrap the real ones.

use std::collections::VecDeque;
use std::sync::{Arc, Barrier, Mutex, PoisonError};

use headworks::RingCounts as Counts;
use headworks::{
    CommandBatch as Commands, Device, DeviceIo, DeviceSetup, Handle, Io, IoCompletion, NullDevice,
    Owner, OwnerOptions, Slot, WaitOutcome,
};
use headworks_core::VolumeId;
use headworks_core::elevator::{self, Batch, Elevator, EndedRequest, MergeEdge};
use headworks_core::request::{SlotId, Slots};
use headworks_core::shares::ShareChange;
use headworks_core::{Instant, VolumeOptions};

use super::job::{BLOCK, OrderWatch, Stream};
use super::{CellLoad, CellRun, RingCounts, Round};

/// Runs the jobs until they stop, and `meanwhile` on this thread.
///
/// # Errors
/// The owner could not start, or failed.
pub(super) fn run(load: &CellLoad<'_>, meanwhile: impl FnOnce()) -> Result<CellRun, String> {
    let watched = load.watched.then(Watched::default);
    let device: Box<dyn Device> = match &watched {
        Some(watched) => Box::new(WatchedDevice { inner: NullDevice, watched: watched.clone() }),
        None => Box::new(NullDevice),
    };
    let volume = VolumeOptions { size: load.size, block_size: 1, ..VolumeOptions::default() };
    let elevator = watched.clone().map(|watched| -> Box<dyn Elevator> {
        Box::new(WatchedElevator {
            inner: elevator::make(&load.queue, load.jobs * load.iodepth),
            watched,
        })
    });
    let options = OwnerOptions {
        handles: load.jobs as usize,
        depth: load.iodepth,
        slot_bytes: BLOCK as usize,
        cpu: load.owner_cpu(),
        drive: load.drive,
        tags_max: load.queue.nr_requests,
        ..OwnerOptions::default()
    };
    let text = |error: headworks_core::ConfigError| error.to_string();
    let (owner, handles) = Owner::start(options).map_err(text)?;
    let device =
        owner.add_device(DeviceSetup { device, queue: load.queue, elevator }).map_err(text)?;
    let volume = owner.add_volume(device, volume).map_err(text)?;
    let start = Barrier::new(handles.len() + 1);
    let (mut answered, mut errors, mut feeders) = (0, 0, Counts::default());
    std::thread::scope(|scope| {
        let feed = |(job, handle)| {
            let start = &start;
            scope.spawn(move || {
                load.place(job);
                let stream = load.stream(job);
                start.wait();
                Feeder::new(load, stream, handle, volume).run()
            })
        };
        let jobs: Vec<_> = (0..).zip(handles).map(feed).collect();
        start.wait();
        meanwhile();
        for job in jobs {
            let (one, failed, counts) = job.join().expect("a feeder does not panic");
            answered += one;
            errors += failed;
            feeders.messages += counts.messages;
            feeders.pushes += counts.pushes;
            feeders.wakes += counts.wakes;
            feeders.sleeps += counts.sleeps;
        }
    });
    let ended = owner.join().map_err(|error| error.to_string())?;
    let rings = RingCounts {
        feeders,
        owner: ended.counts,
        turns: ended.turns,
        feeder_turns: ended.feeder_turns,
        hand_overs: ended.hand_overs,
    };
    let order = watched.map(|watched| watched.watch.counts());
    let round = Round { counted_requests: answered, errors, rings, ..Round::default() };
    Ok(CellRun { round, order })
}

/// One job that feeds the owner.
struct Feeder<'a> {
    stream: Stream<'a>,
    handle: Handle,
    volume: VolumeId,
    batch: usize,
    free: Vec<Slot>,
    completions: Vec<IoCompletion>,
    errors: u64,
}

impl<'a> Feeder<'a> {
    fn new(load: &CellLoad<'_>, stream: Stream<'a>, mut handle: Handle, volume: VolumeId) -> Self {
        Self {
            stream,
            batch: load.batch as usize,
            free: std::iter::from_fn(|| handle.slot()).collect(),
            volume,
            completions: Vec::with_capacity(handle.depth() as usize),
            handle,
            errors: 0,
        }
    }

    fn run(mut self) -> (u64, u64, Counts) {
        let depth = self.handle.depth() as usize;
        loop {
            let mut over = false;
            while !over && self.free.len() >= self.batch {
                over = !self.put();
            }
            let in_flight = depth - self.free.len();
            if in_flight == 0 {
                break;
            }
            if !self.reap(if over { in_flight } else { self.batch }) {
                break;
            }
        }
        (self.stream.answered(), self.errors, self.handle.counts())
    }

    /// Submits a batch of bios; returns false at the end of the job.
    fn put(&mut self) -> bool {
        let count = self.stream.grant(self.batch as u64);
        for _ in 0..count {
            let slot = self.free.pop().expect("looked before");
            let offset = self.stream.next_offset();
            let put = self.handle.put(self.volume, slot, Io::write(offset, BLOCK));
            put.expect("a slot holds a block");
        }
        self.handle.submit();
        count > 0
    }

    /// Waits for at least `least` answers and takes all there are; returns false if the owner has
    /// ended.
    fn reap(&mut self, least: usize) -> bool {
        let depth = self.handle.depth() as usize;
        while self.completions.len() < least {
            if self.handle.reap(depth, &mut self.completions) == 0
                && self.handle.wait() != WaitOutcome::Ready
            {
                return false;
            }
        }
        self.stream.record_answers(self.completions.len() as u64);
        for completion in self.completions.drain(..) {
            self.errors += u64::from(completion.status.is_err());
            self.free.extend(completion.slot);
        }
        true
    }
}

/// Requests that left the elevator and have not reached the device, with their numbers.
#[derive(Clone, Default)]
struct Watched {
    departed: Arc<Mutex<DepartureLog>>,
    watch: Arc<OrderWatch>,
}

#[derive(Default)]
struct DepartureLog {
    count: u64,
    under_way: VecDeque<(SlotId, u64)>,
}

impl Watched {
    fn depart(&self, slots: &[SlotId]) {
        let mut departed = self.departed.lock().unwrap_or_else(PoisonError::into_inner);
        for &slot in slots {
            departed.count += 1;
            let number = departed.count;
            departed.under_way.push_back((slot, number));
        }
    }

    fn arrive(&self, slot: SlotId) {
        let mut departed = self.departed.lock().unwrap_or_else(PoisonError::into_inner);
        let place = departed.under_way.iter().position(|&(other, _)| other == slot);
        let (_, number) = place
            .and_then(|place| departed.under_way.remove(place))
            .expect("what comes to the device has left the elevator");
        self.watch.record(number);
    }
}

/// An elevator that logs departures.
struct WatchedElevator {
    inner: Box<dyn Elevator>,
    watched: Watched,
}

impl Elevator for WatchedElevator {
    fn owns_shares(&self) -> bool {
        self.inner.owns_shares()
    }

    fn change_shares(&mut self, change: ShareChange) {
        self.inner.change_shares(change);
    }

    fn insert(&mut self, now: Instant, slots: &mut Slots, ids: &[SlotId]) {
        self.inner.insert(now, slots, ids);
    }

    fn dispatch(&mut self, now: Instant, slots: &mut Slots, batch: &mut Batch) -> usize {
        let before = batch.ids().len();
        let count = self.inner.dispatch(now, slots, batch);
        self.watched.depart(&batch.ids()[before..]);
        count
    }

    fn on_complete(&mut self, now: Instant, slots: &Slots, done: &[EndedRequest]) {
        self.inner.on_complete(now, slots, done);
    }

    fn remove(&mut self, slots: &mut Slots, id: SlotId) {
        self.inner.remove(slots, id);
    }

    fn on_merge(&mut self, slots: &mut Slots, kept: SlotId, gone: Option<SlotId>, edge: MergeEdge) {
        self.inner.on_merge(slots, kept, gone, edge);
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.inner.next_timeout()
    }
}

/// A null device that compares arrivals with the log.
struct WatchedDevice {
    inner: NullDevice,
    watched: Watched,
}

impl Device for WatchedDevice {
    unsafe fn submit(&mut self, now: Instant, batch: Commands<'_>, io: &mut DeviceIo<'_>) {
        batch.commands.iter().for_each(|command| self.watched.arrive(command.id.slot));
        // SAFETY: the caller's promise, passed on.
        unsafe { self.inner.submit(now, batch, io) };
    }
}
