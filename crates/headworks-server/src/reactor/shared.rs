//! State shared by all threads of a server: mailboxes and the progress of a stop.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, OnceLock};

use headworks_core::{ShardId, VolumeId};

use crate::reactor::messages::ControlMessage;
use crate::successor::keeper::Keeper;
use headworks::driver::Waker;

/// A figure that no shard has published.
const UNKNOWN: u64 = u64::MAX;
/// Most threads that remove marks at a stop.
const MARK_THREADS_MAX: usize = 64;

/// Phases of a volume's stop, in order.
///
/// ```text
///   Serving --stop--> Draining --its clients have left--> Flushing --written out, flushed--> Closing --mark gone--> Closed
///                                                             '--- write-out or flush failed ---> Failed
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum VolumeStop {
    /// No stop has begun, or the volume has no place in it.
    Serving,
    /// Requests of its clients are in flight.
    Draining,
    /// Its last flush is in flight.
    Flushing,
    /// Everything is on the image; its mark is being removed.
    Closing,
    /// Nothing of the volume is left for the next start.
    Closed,
    /// Acknowledged writes may not be on the image; its mark stays.
    Failed,
}

impl VolumeStop {
    const ALL: [Self; 6] =
        [Self::Serving, Self::Draining, Self::Flushing, Self::Closing, Self::Closed, Self::Failed];

    /// Whether the stop of the volume has ended.
    #[must_use]
    pub fn has_ended(self) -> bool {
        matches!(self, Self::Closed | Self::Failed)
    }
}

/// How far the stop of a volume is, as its shards have published it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeProgress {
    /// Phase of the stop.
    pub stop: VolumeStop,
    /// Requests in flight of its clients.
    pub requests: u64,
    /// Bytes that are in the cache only; none without a cache or before a shard published.
    pub left: Option<u64>,
    /// Completed writes that no flush covers; none before a shard published.
    pub unflushed: Option<u64>,
    /// A flush of its device has failed.
    pub suspect: bool,
}

/// What is published of a volume's stop.
struct VolumeFigures {
    stop: AtomicU8,
    requests: AtomicU64,
    unflushed: AtomicU64,
    left: AtomicU64,
    suspect: AtomicBool,
}

impl Default for VolumeFigures {
    fn default() -> Self {
        Self {
            stop: AtomicU8::new(VolumeStop::Serving as u8),
            requests: AtomicU64::new(0),
            unflushed: AtomicU64::new(UNKNOWN),
            left: AtomicU64::new(UNKNOWN),
            suspect: AtomicBool::new(false),
        }
    }
}

impl VolumeFigures {
    fn progress(&self) -> VolumeProgress {
        let known = |figure: &AtomicU64| {
            // Relaxed: pairs with `publish` and `publish_left`.
            Some(figure.load(Ordering::Relaxed)).filter(|figure| *figure != UNKNOWN)
        };
        VolumeProgress {
            // Acquire: pairs with `publish_stop`.
            stop: VolumeStop::ALL[usize::from(self.stop.load(Ordering::Acquire))],
            // Relaxed: shown to people only.
            requests: self.requests.load(Ordering::Relaxed),
            left: known(&self.left),
            unflushed: known(&self.unflushed),
            // Relaxed: shown to people only.
            suspect: self.suspect.load(Ordering::Relaxed),
        }
    }
}

/// Mailboxes of the shards, and counters of a stop.
pub struct ServerShared {
    boxes: Mutex<Vec<Sender<ControlMessage>>>,
    wakers: OnceLock<Vec<Waker>>,
    shards: usize,
    waiting: AtomicUsize,
    failures: AtomicU64,
    volumes: Vec<VolumeFigures>,
    /// Threads that remove marks.
    mark_threads: AtomicUsize,
    /// Memory and marks for the next server.
    keeper: Keeper,
    /// Dirty bytes of all shards when each began the stop.
    dirty_at_stop: AtomicU64,
    /// Called when every shard waits, or one has failed.
    ended: Box<dyn Fn() + Send + Sync>,
}

impl ServerShared {
    /// State for the shards behind `boxes`.
    #[must_use]
    pub fn new(
        boxes: Vec<Sender<ControlMessage>>,
        volumes: usize,
        ended: Box<dyn Fn() + Send + Sync>,
    ) -> Self {
        Self {
            shards: boxes.len(),
            boxes: Mutex::new(boxes),
            wakers: OnceLock::new(),
            waiting: AtomicUsize::new(0),
            failures: AtomicU64::new(0),
            volumes: (0..volumes).map(|_| VolumeFigures::default()).collect(),
            mark_threads: AtomicUsize::new(0),
            keeper: Keeper::default(),
            dirty_at_stop: AtomicU64::new(0),
            ended,
        }
    }

    /// The same with memory and marks for the next server.
    #[must_use]
    pub fn with_keeper(self, keeper: Keeper) -> Self {
        Self { keeper, ..self }
    }

    /// Memory and marks for the next server.
    #[must_use]
    pub fn keeper(&self) -> &Keeper {
        &self.keeper
    }

    /// Number of the server's shards.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.shards
    }

    /// Sets the wakers once all engines are open.
    pub fn set_wakers(&self, wakers: Vec<Waker>) {
        let _ = self.wakers.set(wakers);
    }

    /// Sends a message to one shard and wakes it.
    pub fn send(&self, shard: ShardId, mail: ControlMessage) {
        if let Ok(boxes) = self.boxes.lock() {
            // A shard that has ended needs no message.
            let _ = boxes[usize::from(shard.0)].send(mail);
        }
        if let Some(wakers) = self.wakers.get() {
            wakers[usize::from(shard.0)].wake();
        }
    }

    /// Sends a message to every shard.
    pub fn send_all(&self, mail: impl Fn() -> ControlMessage) {
        (0..self.shards as u16).for_each(|shard| self.send(ShardId(shard), mail()));
    }

    /// Records that a shard has flushed; the last one wakes the others.
    pub fn wait(&self) {
        // AcqRel: pairs with the load in `all_waiting`; everything that a shard did before it waits is visible.
        if self.waiting.fetch_add(1, Ordering::AcqRel) + 1 == self.shards {
            self.send_all(|| ControlMessage::Wake);
            (self.ended)();
        }
    }

    /// Stops the other shards after one has failed, and notifies the main thread.
    pub fn break_off(&self) {
        self.send_all(|| ControlMessage::Stop);
        (self.ended)();
    }

    /// Whether every shard waits, so that no shard needs another's devices.
    #[must_use]
    pub fn all_waiting(&self) -> bool {
        // Acquire: pairs with `wait`.
        self.waiting.load(Ordering::Acquire) == self.shards
    }

    /// Counts a last flush that failed.
    pub fn note_failure(&self) {
        // Relaxed: read after the threads have ended.
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of last flushes that failed.
    #[must_use]
    pub fn failures(&self) -> u64 {
        // Relaxed: pairs with `note_failure`.
        self.failures.load(Ordering::Relaxed)
    }

    /// Number of volume slots.
    #[must_use]
    pub fn volumes(&self) -> usize {
        self.volumes.len()
    }

    /// Publishes the completed writes of a volume that no flush covers, and whether a flush has failed.
    pub fn publish(&self, volume: usize, (writes, suspect): (u64, bool)) {
        // Relaxed: shown to people only.
        self.volumes[volume].unflushed.store(writes, Ordering::Relaxed);
        self.volumes[volume].suspect.store(suspect, Ordering::Relaxed);
    }

    /// Publishes the bytes of a volume that are in the cache and not in the device.
    pub fn publish_left(&self, volume: usize, bytes: u64) {
        // Relaxed: shown to people only.
        self.volumes[volume].left.store(bytes, Ordering::Relaxed);
    }

    /// Publishes how far the stop of a volume is, and how many requests of its clients are in flight.
    pub fn publish_stop(&self, volume: VolumeId, stop: VolumeStop, requests: u64) {
        let figures = &self.volumes[usize::from(volume.0)];
        // Relaxed: shown to people only.
        figures.requests.store(requests, Ordering::Relaxed);
        // Release: pairs with `stop_of`.
        figures.stop.store(stop as u8, Ordering::Release);
    }

    /// How far the stop of a volume is.
    #[must_use]
    pub fn progress_of(&self, volume: VolumeId) -> VolumeProgress {
        self.volumes[usize::from(volume.0)].progress()
    }

    /// Removes the mark of a volume that is written out and flushed, on a thread of its own, which then wakes its shard: a
    /// file system that does not answer delays no other volume.
    pub fn close_volume(self: &Arc<Self>, volume: VolumeId, home: ShardId) {
        let close = {
            let shared = Arc::clone(self);
            move || {
                shared.keeper.close(volume);
                shared.publish_stop(volume, VolumeStop::Closed, 0);
                shared.send(home, ControlMessage::Wake);
            }
        };
        if !self.keeper.has_mark(volume) {
            return close();
        }
        self.publish_stop(volume, VolumeStop::Closing, 0);
        // Relaxed: it counts threads, and orders nothing. Beyond the bound the shard itself waits.
        if self.mark_threads.fetch_add(1, Ordering::Relaxed) < MARK_THREADS_MAX {
            let (shared, close) = (Arc::clone(self), close.clone());
            let thread = std::thread::Builder::new().name("headworks-mark".into());
            let spawned = thread.spawn(move || {
                close();
                shared.mark_threads.fetch_sub(1, Ordering::Relaxed);
            });
            match spawned {
                Ok(_) => return,
                Err(error) => tracing::debug!(%error, "no thread for the mark of an image"),
            }
        }
        self.mark_threads.fetch_sub(1, Ordering::Relaxed);
        close();
    }

    /// Adds the dirty bytes with which a shard begins the stop.
    pub fn add_dirty_at_stop(&self, bytes: u64) {
        // Relaxed: shown to people only.
        self.dirty_at_stop.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Dirty bytes with which the shards began the stop.
    #[must_use]
    pub fn dirty_at_stop(&self) -> u64 {
        // Relaxed: pairs with `add_dirty_at_stop`.
        self.dirty_at_stop.load(Ordering::Relaxed)
    }

    /// Bytes of all volumes that are in the cache only, as far as shards have published them.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.volumes.iter().filter_map(|volume| volume.progress().left).sum()
    }
}
