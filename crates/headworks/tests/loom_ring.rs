//! The ring, the sleep/wake handshake and the waker's flag under the model checker: every interleaving and every order that
//! the memory model allows.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p headworks --test loom_ring --release
//! ```
//!
//! Without that flag the file is empty. A shard's sleep is a mutex and a condition variable here, which behave as the
//! eventfd and the engine do: a wake-up before the sleep ends it at once. A lost wake-up is a deadlock, and loom reports it.
//! The models marked `should_panic` do one step wrongly on purpose: they show that the checker detects the fault.
#![cfg(loom)]

use headworks::house::{Arc, Consumer, Producer, Sleeper, WakeFlag, ring};
use loom::sync::atomic::{AtomicU32, Ordering::Relaxed};
use loom::sync::{Condvar, Mutex};
use loom::thread;
use std::mem::ManuallyDrop;

/// The primitive that a shard sleeps on.
#[derive(Default)]
struct Parker {
    woken: Mutex<bool>,
    changed: Condvar,
}

impl Parker {
    fn wake(&self) {
        *self.woken.lock().unwrap() = true;
        self.changed.notify_one();
    }

    fn sleep(&self) {
        let mut woken = self.woken.lock().unwrap();
        while !*woken {
            woken = self.changed.wait(woken).unwrap();
        }
        *woken = false;
    }
}

#[test]
fn messages_arrive_in_order_exactly_once() {
    loom::model(|| {
        let (mut producer, mut consumer) = ring(2, &Arc::new(Sleeper::default()));
        let sender = thread::spawn(move || {
            // More than fits, so that slots are used again while the consumer may still read them.
            let mut batch = vec![Box::new(1), Box::new(2), Box::new(3)];
            while !batch.is_empty() {
                let _ = producer.push(&mut batch);
                thread::yield_now();
            }
        });
        let mut out = Vec::new();
        while out.len() < 3 {
            consumer.pop(2, &mut out);
            thread::yield_now();
        }
        assert_eq!(out, [1, 2, 3].map(Box::new));
        sender.join().unwrap();
    });
}

#[test]
fn last_dropped_end_drops_remaining_messages() {
    loom::model(|| {
        let value = Arc::new(0);
        let (mut producer, mut consumer) = ring(2, &Arc::new(Sleeper::default()));
        let mut batch = vec![Arc::clone(&value), Arc::clone(&value)];
        let sender = thread::spawn(move || {
            let _ = producer.push(&mut batch);
        });
        consumer.pop(1, &mut Vec::new());
        drop(consumer);
        sender.join().unwrap();
        assert_eq!(Arc::strong_count(&value), 1);
    });
}

/// Sends one message and wakes the shard if the ring says so.
fn send(mut producer: Producer<u32>, parker: &Parker) {
    if producer.push(&mut vec![7]) {
        parker.wake();
    }
}

/// Runs a shard and `SENDERS` senders of one message each. `may_sleep` is the step under test.
fn handshake<const SENDERS: usize>(may_sleep: fn(&Sleeper, &mut [Consumer<u32>]) -> bool) {
    // Kept from being dropped when loom panics: its `Arc` would panic a second time.
    let sleeper = ManuallyDrop::new(Arc::new(Sleeper::default()));
    let parker = ManuallyDrop::new(Arc::new(Parker::default()));
    let (producers, consumers): (Vec<_>, Vec<_>) = (0..SENDERS).map(|_| ring(1, &sleeper)).unzip();
    let mut consumers = ManuallyDrop::new(consumers);
    let senders: Vec<_> = producers
        .into_iter()
        .map(|producer| {
            let parker = Arc::clone(&parker);
            thread::spawn(move || send(producer, &parker))
        })
        .collect();
    let mut out = Vec::new();
    while out.len() < SENDERS {
        if may_sleep(&sleeper, &mut consumers) {
            parker.sleep();
            sleeper.woken();
        }
        for consumer in consumers.iter_mut() {
            consumer.pop(1, &mut out);
        }
    }
    for sender in senders {
        sender.join().unwrap();
    }
    ManuallyDrop::into_inner(consumers);
    ManuallyDrop::into_inner(parker);
    ManuallyDrop::into_inner(sleeper);
}

fn all_empty(consumers: &mut [Consumer<u32>]) -> bool {
    consumers.iter_mut().all(Consumer::is_empty)
}

#[test]
fn sender_wakes_sleeping_receiver() {
    loom::model(|| {
        handshake::<1>(|sleeper, consumers| sleeper.may_sleep(|| all_empty(consumers)));
    });
}

#[test]
fn two_senders_wake_one_sleeping_receiver() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3); // All interleavings of three threads are too many; bugs need few preemptions.
    model.check(|| {
        handshake::<2>(|sleeper, consumers| sleeper.may_sleep(|| all_empty(consumers)));
    });
}

/// Mutant: announces sleep and does not check the rings again.
#[test]
#[should_panic(expected = "deadlock")]
fn sleep_without_second_check_loses_wake_up() {
    loom::model(|| handshake::<1>(|sleeper, _| sleeper.may_sleep(|| true)));
}

/// Mutant: checks the rings first and announces sleep afterwards.
#[test]
#[should_panic(expected = "deadlock")]
fn check_before_sleep_announcement_loses_wake_up() {
    loom::model(|| {
        handshake::<1>(|sleeper, consumers| {
            let idle = all_empty(consumers);
            sleeper.may_sleep(|| idle)
        });
    });
}

/// Two threads each store a word and wake the shard, which loops until it has read both words. `answer` is the step under
/// test: it sleeps, clears the flag and reads the words.
fn wake_flag(answer: fn(&WakeFlag, &Parker, &mut dyn FnMut())) {
    let shared =
        Arc::new(([AtomicU32::new(0), AtomicU32::new(0)], WakeFlag::default(), Parker::default()));
    let shared = ManuallyDrop::new(shared); // As above.
    let (words, flag, parker) = &**shared;
    let wakers: Vec<_> = (0..2)
        .map(|index| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (words, flag, parker) = &*shared;
                words[index].store(1, Relaxed); // The flag alone orders this store before the read.
                if flag.ring() {
                    parker.wake();
                }
            })
        })
        .collect();
    let mut seen = 0;
    while seen < 2 {
        answer(flag, parker, &mut || {
            seen = words.iter().map(|word| word.load(Relaxed)).sum();
        });
    }
    for waker in wakers {
        waker.join().unwrap();
    }
    ManuallyDrop::into_inner(shared);
}

#[test]
fn coalesced_wake_ups_lose_no_message() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        wake_flag(|flag, parker, read| {
            parker.sleep();
            flag.answer();
            read();
        });
    });
}

/// Mutant: clears the flag after the read, so a wake-up in between is suppressed and its word is never read.
#[test]
#[should_panic(expected = "deadlock")]
fn wake_flag_cleared_after_check_loses_wake_up() {
    loom::model(|| {
        wake_flag(|flag, parker, read| {
            parker.sleep();
            read();
            flag.answer();
        });
    });
}
