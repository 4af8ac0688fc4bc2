//! State shared by all threads of a server: mailboxes and the progress of a stop.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Mutex, OnceLock};

use headworks_core::ShardId;

use crate::keeper::Keeper;
use crate::messages::ControlMessage;
use headworks::driver::Waker;

/// A figure that no shard has published.
const UNKNOWN: u64 = u64::MAX;

/// Mailboxes of the shards, and counters of a stop.
pub struct ServerShared {
    boxes: Mutex<Vec<Sender<ControlMessage>>>,
    wakers: OnceLock<Vec<Waker>>,
    shards: usize,
    waiting: AtomicUsize,
    failures: AtomicU64,
    unflushed: Vec<AtomicU64>,
    left: Vec<AtomicU64>,
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
            unflushed: (0..volumes).map(|_| AtomicU64::new(UNKNOWN)).collect(),
            left: (0..volumes).map(|_| AtomicU64::new(UNKNOWN)).collect(),
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
        self.unflushed.len()
    }

    /// Publishes the completed writes of a volume that no flush covers.
    pub fn publish(&self, volume: usize, writes: u64) {
        // Relaxed: shown to people only.
        self.unflushed[volume].store(writes, Ordering::Relaxed);
    }

    /// Publishes the bytes of a volume that are in the cache and not in the device.
    pub fn publish_left(&self, volume: usize, bytes: u64) {
        // Relaxed: shown to people only.
        self.left[volume].store(bytes, Ordering::Relaxed);
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

    /// Bytes by volume that are in the cache only; none without a cache or before a shard published.
    #[must_use]
    pub fn left(&self) -> Vec<Option<u64>> {
        figures(&self.left)
    }

    /// Unflushed writes by volume; none before a shard published.
    #[must_use]
    pub fn unflushed(&self) -> Vec<Option<u64>> {
        figures(&self.unflushed)
    }
}

fn figures(cells: &[AtomicU64]) -> Vec<Option<u64>> {
    // Relaxed: pairs with `publish` and `publish_left`.
    let figures = cells.iter().map(|cell| cell.load(Ordering::Relaxed));
    figures.map(|figure| (figure != UNKNOWN).then_some(figure)).collect()
}
