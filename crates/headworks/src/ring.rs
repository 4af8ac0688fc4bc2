//! Messages between two shards: a bounded ring with one producer and one consumer, and how a consumer goes to sleep.
//!
//! Both ends work in batches: many messages, one published index. The indices are free-running and masked; each end keeps
//! its own index in a local and a stale copy of the other's, so a batch touches the other CPU's cache line at most once.
//!
//! ```text
//!        head (written by the consumer)         tail (written by the producer)
//!          v                                      v
//!   ...| .. | m0 | m1 | m2 | m3 | m4 | m5 | m6 | .. | ..       tail - head <= capacity
//!           '------ the consumer's ----------''-- the producer's --
//! ```
//!
//! A shard sleeps in its engine, and all rings that lead to it share its [`Sleeper`]. The handshake:
//!
//! ```text
//!   producer                              consumer
//!   publish tail                          asleep = true
//!   ---- fence (SeqCst) ----              ---- fence (SeqCst) ----
//!   asleep? -> take it and wake           any ring not empty? -> asleep = false, go on working
//! ```
//!
//! Of two fences one comes first. If the producer's does, the consumer sees the message and does not sleep; if the consumer's
//! does, the producer sees `asleep` and wakes it. So no message is slept over. Of several producers one takes the flag: one
//! wake-up, not one each (a wake-up of another CPU costs 22-25 us).
//!
//! Invariant: a ring has room for all messages that its producer's slots can have under way, so `push` takes everything; what
//! does not fit stays with the caller, is never lost and the ring never grows.

use std::mem::MaybeUninit;

use crate::sync::{Arc, AtomicBool, AtomicUsize, CachePadded, Ordering, UnsafeCell, fence};

/// Where a shard says that it is about to sleep. One per shard, shared by all rings that lead to it.
#[derive(Debug)]
pub struct Sleeper {
    asleep: CachePadded<AtomicBool>,
}

impl Default for Sleeper {
    fn default() -> Self {
        Self { asleep: CachePadded(AtomicBool::new(false)) }
    }
}

impl Sleeper {
    /// Announces sleep, then checks `idle` once more: no ring has a message. Returns true if the consumer may sleep; the next
    /// push wakes it.
    pub fn may_sleep(&self, idle: impl FnOnce() -> bool) -> bool {
        self.asleep.0.store(true, Ordering::Relaxed);
        // SeqCst: pairs with the fence in `must_wake`; the look below must not be done before the announcement is out.
        fence(Ordering::SeqCst);
        if idle() {
            return true;
        }
        self.woken();
        false
    }

    /// Takes the announcement back. To be called when sleep ended, for whatever reason.
    pub fn woken(&self) {
        // Relaxed: pairs with the load in `must_wake`. A producer that still sees the announcement wakes in vain, no more.
        self.asleep.0.store(false, Ordering::Relaxed);
    }

    /// After publishing: whether this caller, and no other, has to wake the shard.
    pub(crate) fn must_wake(&self) -> bool {
        // SeqCst: pairs with the fence in `may_sleep`; the publication must be out before the flag is read.
        fence(Ordering::SeqCst);
        // Relaxed, all: pair with the stores of `may_sleep` and `woken`; the fences order them. Load first, because an
        // exchange takes the cache line away from a consumer that is awake, which is the common case. No swap: it would
        // write even when it finds the flag down (and loom lets that write pass a later announcement, which C++ forbids).
        let flag = &self.asleep.0;
        flag.load(Ordering::Relaxed)
            && flag.compare_exchange(true, false, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// What both ends hold.
struct Shared<T> {
    /// Next message to take. Written by the consumer only.
    head: CachePadded<AtomicUsize>,
    /// Next slot to fill. Written by the producer only.
    tail: CachePadded<AtomicUsize>,
    slots: Box<[UnsafeCell<MaybeUninit<T>>]>,
    sleeper: Arc<Sleeper>,
}

// SAFETY: a slot is the producer's or the consumer's, never both's: the indices say whose, and the Release/Acquire pairs on
// them hand its content over. So messages only move between threads, which is what `T: Send` allows.
unsafe impl<T: Send> Sync for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Shared<T> {}

impl<T> Shared<T> {
    fn slot(&self, index: usize) -> &UnsafeCell<MaybeUninit<T>> {
        &self.slots[index & (self.slots.len() - 1)]
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        // Relaxed, both: both ends are gone, and the last `Arc` to go has seen all they did.
        let tail = self.tail.0.load(Ordering::Relaxed);
        let mut head = self.head.0.load(Ordering::Relaxed);
        while head != tail {
            // SAFETY: slots from head to tail hold messages, and both ends are gone.
            self.slot(head).with_mut(|slot| unsafe { (*slot).assume_init_drop() });
            head = head.wrapping_add(1);
        }
    }
}

/// A ring for `capacity` messages (rounded up to a power of two) to the shard that sleeps at `sleeper`.
#[must_use]
pub fn ring<T: Send>(capacity: usize, sleeper: &Arc<Sleeper>) -> (Producer<T>, Consumer<T>) {
    let capacity = capacity.max(1).next_power_of_two();
    let slots = (0..capacity).map(|_| UnsafeCell::new(MaybeUninit::uninit()));
    let shared = Arc::new(Shared {
        head: CachePadded(AtomicUsize::new(0)),
        tail: CachePadded(AtomicUsize::new(0)),
        slots: slots.collect(),
        sleeper: Arc::clone(sleeper),
    });
    let producer = Producer { shared: Arc::clone(&shared), tail: 0, published: 0, head_seen: 0 };
    let consumer = Consumer { shared, head: 0, tail_seen: 0 };
    (producer, consumer)
}

/// The end that messages go in.
pub struct Producer<T> {
    shared: Arc<Shared<T>>,
    /// Next slot to fill; the consumer does not see messages from `published` to here.
    tail: usize,
    published: usize,
    /// `head` as last read: at most as far as it really is, so the room computed from it is really there.
    head_seen: usize,
}

impl<T: Send> Producer<T> {
    /// Moves messages from the front of `batch` into the ring and publishes them together. What does not fit stays in
    /// `batch`. True: the consumer sleeps, and this caller must wake it, once.
    #[must_use = "a sleeping consumer is not woken by the ring itself"]
    pub fn push(&mut self, batch: &mut Vec<T>) -> bool {
        self.push_silent(batch) && self.must_wake()
    }

    /// As [`Producer::push`] without the check whether the consumer sleeps, for callers that tell it in another way. Returns true if
    /// anything was published.
    pub fn push_silent(&mut self, batch: &mut Vec<T>) -> bool {
        if self.room() < batch.len() {
            self.load_head();
        }
        let count = self.room().min(batch.len());
        for message in batch.drain(..count) {
            self.write(message);
        }
        self.publish_silent()
    }

    /// Puts one message into the ring; the consumer sees it after [`Producer::publish`].
    ///
    /// # Errors
    /// The message, if the ring is full.
    #[inline]
    pub fn put(&mut self, message: T) -> Result<(), T> {
        if self.room() == 0 {
            self.load_head();
            if self.room() == 0 {
                return Err(message);
            }
        }
        self.write(message);
        Ok(())
    }

    /// Publishes what was put. True: the consumer sleeps, and this caller must wake it, once.
    #[must_use = "a sleeping consumer is not woken by the ring itself"]
    pub fn publish(&mut self) -> bool {
        self.publish_silent() && self.must_wake()
    }

    /// As [`Producer::publish`] without the check whether the consumer sleeps. Returns true if anything was published.
    #[inline]
    pub fn publish_silent(&mut self) -> bool {
        if self.published == self.tail {
            return false;
        }
        self.published = self.tail;
        // Release: pairs with the Acquire in `Consumer::load_tail`; the messages are written before they can be seen.
        self.shared.tail.0.store(self.tail, Ordering::Release);
        true
    }

    /// The check after publishing. True: the consumer sleeps, and this caller must wake it, once.
    #[must_use = "a sleeping consumer is not woken by the ring itself"]
    pub fn must_wake(&self) -> bool {
        self.shared.sleeper.must_wake()
    }

    /// Whether the consumer has taken everything. Loads its position again.
    pub fn is_empty(&mut self) -> bool {
        self.load_head();
        self.head_seen == self.tail
    }

    #[inline]
    fn write(&mut self, message: T) {
        // SAFETY: slots from tail to head + capacity are the producer's, and empty.
        self.shared.slot(self.tail).with_mut(|slot| unsafe { (*slot).write(message) });
        self.tail = self.tail.wrapping_add(1);
    }

    /// Loads how far the consumer is.
    fn load_head(&mut self) {
        // Acquire: pairs with the Release in `Consumer::release`; what it took out is out before we write there.
        self.head_seen = self.shared.head.0.load(Ordering::Acquire);
    }

    fn room(&self) -> usize {
        let used = self.tail.wrapping_sub(self.head_seen);
        assert!(used <= self.shared.slots.len(), "the ring never overflows");
        self.shared.slots.len() - used
    }
}

impl<T> Drop for Producer<T> {
    fn drop(&mut self) {
        // What was put and not published goes with the rest. Release: as in `publish`.
        self.shared.tail.0.store(self.tail, Ordering::Release);
    }
}

/// The end that messages come out of, in order.
pub struct Consumer<T> {
    shared: Arc<Shared<T>>,
    head: usize,
    /// `tail` as last read: at most as far as it really is.
    tail_seen: usize,
}

impl<T: Send> Consumer<T> {
    /// Moves up to `limit` messages to the end of `out`, oldest first; returns how many.
    pub fn pop(&mut self, limit: usize, out: &mut Vec<T>) -> usize {
        let count = self.ready(limit);
        for _ in 0..count {
            out.push(self.read());
        }
        self.release(count);
        count
    }

    /// As `pop`, but hands each message to `take`, for those who turn it into something else at once.
    #[inline]
    pub fn pop_each(&mut self, limit: usize, mut take: impl FnMut(T)) -> usize
    where
        // Else a panic in `take` would leave messages that are out in the ring.
        T: Copy,
    {
        let count = self.ready(limit);
        for _ in 0..count {
            take(self.read());
        }
        self.release(count);
        count
    }

    /// How many of `limit` there are.
    #[inline]
    fn ready(&mut self, limit: usize) -> usize {
        if self.tail_seen.wrapping_sub(self.head) < limit {
            self.load_tail();
        }
        self.tail_seen.wrapping_sub(self.head).min(limit)
    }

    #[inline]
    fn read(&mut self) -> T {
        debug_assert!(self.head != self.tail_seen, "only what is ready is read");
        // SAFETY: slots from head to tail hold messages and are the consumer's; head moves past, so it is read once.
        let message =
            self.shared.slot(self.head).with(|slot| unsafe { (*slot).assume_init_read() });
        self.head = self.head.wrapping_add(1);
        message
    }

    #[inline]
    fn release(&self, count: usize) {
        if count > 0 {
            // Release: pairs with the Acquire in `Producer::load_head`; the messages are out before the slots are reused.
            self.shared.head.0.store(self.head, Ordering::Release);
        }
    }

    /// Whether nothing is waiting. Loads the producer's position again, so it may stand in [`Sleeper::may_sleep`].
    pub fn is_empty(&mut self) -> bool {
        self.load_tail();
        self.tail_seen == self.head
    }

    /// Loads how far the producer has published.
    fn load_tail(&mut self) {
        // Acquire: pairs with the Release in `Producer::publish`.
        self.tail_seen = self.shared.tail.0.load(Ordering::Acquire);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn push_to_full_ring_leaves_remaining_messages_with_caller() {
        let (mut producer, mut consumer) = ring(4, &Arc::default());
        let mut batch = vec![1, 2, 3, 4, 5, 6];
        assert!(!producer.push(&mut batch), "the consumer is awake");
        assert_eq!(batch, [5, 6]);
        assert!(!producer.push(&mut batch));
        assert_eq!(batch, [5, 6], "full");

        let mut out = vec![];
        assert_eq!(consumer.pop(1, &mut out), 1);
        assert!(!producer.push(&mut batch));
        assert_eq!(batch, [6]);
        assert_eq!(consumer.pop(usize::MAX, &mut out), 4);
        assert_eq!(out, [1, 2, 3, 4, 5]);
        assert!(consumer.is_empty());
    }

    #[test]
    fn push_wakes_sleeper_once_and_only_if_asleep() {
        let sleeper = Arc::new(Sleeper::default());
        let (mut first, mut inbox) = ring(8, &sleeper);
        let (mut second, _other_inbox) = ring(8, &sleeper);
        assert!(!first.push(&mut vec![1]), "awake");
        assert!(!sleeper.may_sleep(|| inbox.is_empty()), "a message is pending");
        assert!(!first.push(&mut vec![2]), "the sleep was refused");

        inbox.pop(8, &mut vec![]);
        assert!(sleeper.may_sleep(|| inbox.is_empty()));
        assert!(!first.push(&mut vec![]), "no message");
        assert!(first.push(&mut vec![3]), "asleep: the first push wakes");
        assert!(!second.push(&mut vec![4]), "already woken by the first push");

        assert!(sleeper.may_sleep(|| true));
        sleeper.woken();
        assert!(!second.push(&mut vec![5]), "woken by another event");
    }

    #[test]
    fn dropped_ring_drops_remaining_messages() {
        let token = std::sync::Arc::new(());
        let (mut producer, mut consumer) = ring(8, &Arc::default());
        let mut batch: Vec<_> = (0..5).map(|_| std::sync::Arc::clone(&token)).collect();
        assert!(!producer.push(&mut batch));
        let mut out = vec![];
        consumer.pop(2, &mut out);
        assert_eq!(std::sync::Arc::strong_count(&token), 6);
        drop((producer, consumer));
        assert_eq!(std::sync::Arc::strong_count(&token), 3);
        drop(out);
        assert_eq!(std::sync::Arc::strong_count(&token), 1);
    }

    #[test]
    fn message_is_visible_after_publish_and_dropped_if_unpublished() {
        let sleeper = Arc::default();
        let (mut producer, mut consumer) = ring(2, &sleeper);
        assert_eq!((producer.put(1), producer.put(2), producer.put(3)), (Ok(()), Ok(()), Err(3)));
        assert!(consumer.is_empty(), "not published");
        assert!(sleeper.may_sleep(|| consumer.is_empty()));
        assert!(producer.publish(), "the consumer sleeps");
        assert!(!producer.publish(), "no new message");
        assert!(!producer.is_empty());
        let mut sum = 0;
        assert_eq!(consumer.pop_each(usize::MAX, |message| sum += message), 2);
        assert_eq!((sum, producer.is_empty()), (3, true));

        let token = std::sync::Arc::new(());
        let (mut producer, consumer) = ring(2, &sleeper);
        assert!(producer.put(std::sync::Arc::clone(&token)).is_ok());
        drop((producer, consumer));
        assert_eq!(std::sync::Arc::strong_count(&token), 1);
    }

    #[test]
    fn order_is_kept_between_threads_when_ring_wraps() {
        const COUNT: u32 = 100_000;
        let (mut producer, mut consumer) = ring(64, &Arc::default());
        let sender = std::thread::spawn(move || {
            let mut next = 0;
            let mut batch = Vec::new();
            while next < COUNT || !batch.is_empty() {
                while batch.len() < 1 + (next as usize * 7) % 90 && next < COUNT {
                    batch.push(next);
                    next += 1;
                }
                let _ = producer.push(&mut batch);
                std::thread::yield_now();
            }
        });
        let mut out = Vec::new();
        while out.len() < COUNT as usize {
            if consumer.pop(50, &mut out) == 0 {
                std::thread::yield_now();
            }
        }
        sender.join().unwrap();
        assert!(out.iter().copied().eq(0..COUNT));
    }
}
