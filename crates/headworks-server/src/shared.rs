//! What the threads of a server tell each other outside the data path: mail, and how far a stop has come.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Mutex, OnceLock};

use headworks_core::ShardId;

use crate::messages::ControlMessage;
use headworks::driver::Waker;

/// Stands for a figure that no shard has told.
const UNKNOWN: u64 = u64::MAX;

/// Shared by all threads of a server.
pub struct ServerShared {
    boxes: Mutex<Vec<Sender<ControlMessage>>>,
    wakers: OnceLock<Vec<Waker>>,
    shards: usize,
    waiting: AtomicUsize,
    failures: AtomicU64,
    unflushed: Vec<AtomicU64>,
    left: Vec<AtomicU64>,
    /// Called when every shard waits, or one has died.
    ended: Box<dyn Fn() + Send + Sync>,
}

impl ServerShared {
    /// A board for the shards behind `boxes`.
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
            ended,
        }
    }

    /// All engines are open: this wakes them.
    pub fn set_wakers(&self, wakers: Vec<Waker>) {
        let _ = self.wakers.set(wakers);
    }

    /// Mail for one shard; wakes it.
    pub fn send(&self, shard: ShardId, mail: ControlMessage) {
        if let Ok(boxes) = self.boxes.lock() {
            // A shard that is gone needs no mail.
            let _ = boxes[usize::from(shard.0)].send(mail);
        }
        if let Some(wakers) = self.wakers.get() {
            wakers[usize::from(shard.0)].wake();
        }
    }

    /// The same mail for every shard.
    pub fn send_all(&self, mail: impl Fn() -> ControlMessage) {
        (0..self.shards as u16).for_each(|shard| self.send(ShardId(shard), mail()));
    }

    /// A shard has flushed and would end; the last one to say so wakes the others.
    pub fn wait(&self) {
        // AcqRel: pairs with the load in `all_waiting`; what a shard did before it waits is done for those who see it.
        if self.waiting.fetch_add(1, Ordering::AcqRel) + 1 == self.shards {
            self.send_all(|| ControlMessage::Wake);
            (self.ended)();
        }
    }

    /// A shard cannot go on: the others stop, and the main thread hears of it at once.
    pub fn break_off(&self) {
        self.send_all(|| ControlMessage::Stop);
        (self.ended)();
    }

    /// Whether every shard waits, so that nobody needs another's devices.
    #[must_use]
    pub fn all_waiting(&self) -> bool {
        // Acquire: pairs with `wait`.
        self.waiting.load(Ordering::Acquire) == self.shards
    }

    /// A flush at the end failed.
    pub fn note_failure(&self) {
        // Relaxed: a count that is read after the threads have ended.
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    /// How many flushes at the end failed.
    #[must_use]
    pub fn failures(&self) -> u64 {
        // Relaxed: pairs with `note_failure`.
        self.failures.load(Ordering::Relaxed)
    }

    /// How many volumes there are.
    #[must_use]
    pub fn volumes(&self) -> usize {
        self.unflushed.len()
    }

    /// Writes of a volume that no flush covers yet.
    pub fn publish(&self, volume: usize, writes: u64) {
        // Relaxed: a figure for people.
        self.unflushed[volume].store(writes, Ordering::Relaxed);
    }

    /// Bytes of a volume that are in the cache and not in the device.
    pub fn publish_left(&self, volume: usize, bytes: u64) {
        // Relaxed: a figure for people.
        self.left[volume].store(bytes, Ordering::Relaxed);
    }

    /// Those bytes, by volume; none where nothing is cached or no shard has told yet.
    #[must_use]
    pub fn left(&self) -> Vec<Option<u64>> {
        figures(&self.left)
    }

    /// The figures, by volume; none where no shard has told yet.
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
