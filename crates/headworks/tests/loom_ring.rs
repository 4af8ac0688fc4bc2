//! The ring, the sleep/wake handshake and the waker's bell under the model checker: every interleaving, every order that the
//! memory model allows.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p headworks --test loom_ring --release
//! ```
//!
//! Without that flag the file is empty. A shard's sleep is a mutex and a condition variable here, which behave as the
//! eventfd and the engine do: noise made before the sleep ends it at once. A lost wake-up is a deadlock, and loom reports it.
//! The models marked `should_panic` do one step wrongly on purpose: they show that the checker would see it.
#![cfg(loom)]

use headworks::driver::sync::Arc;
use headworks::driver::{Consumer, Producer, Sleeper, WakeFlag, ring};
use loom::sync::atomic::{AtomicU32, Ordering::Relaxed};
use loom::sync::{Condvar, Mutex};
use loom::thread;
use std::mem::ManuallyDrop;

/// What a shard sleeps on.
#[derive(Default)]
struct Bed {
    noise: Mutex<bool>,
    heard: Condvar,
}

impl Bed {
    fn make_noise(&self) {
        *self.noise.lock().unwrap() = true;
        self.heard.notify_one();
    }

    fn sleep(&self) {
        let mut noise = self.noise.lock().unwrap();
        while !*noise {
            noise = self.heard.wait(noise).unwrap();
        }
        *noise = false;
    }
}

#[test]
fn messages_come_whole_in_order_and_once() {
    loom::model(|| {
        let (mut producer, mut consumer) = ring(2, &Arc::new(Sleeper::default()));
        let sender = thread::spawn(move || {
            // More than fits, so that slots are used again while the consumer may still be at them.
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
fn what_is_left_is_dropped_by_whoever_goes_last() {
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
fn send(mut producer: Producer<u32>, bed: &Bed) {
    if producer.push(&mut vec![7]) {
        bed.make_noise();
    }
}

/// A shard and as many senders as `SENDERS`. `may_sleep` is the step under test.
fn handshake<const SENDERS: usize>(may_sleep: fn(&Sleeper, &mut [Consumer<u32>]) -> bool) {
    // Kept from being dropped when loom panics: its `Arc` would panic a second time.
    let sleeper = ManuallyDrop::new(Arc::new(Sleeper::default()));
    let bed = ManuallyDrop::new(Arc::new(Bed::default()));
    let (producers, consumers): (Vec<_>, Vec<_>) = (0..SENDERS).map(|_| ring(1, &sleeper)).unzip();
    let mut consumers = ManuallyDrop::new(consumers);
    let senders: Vec<_> = producers
        .into_iter()
        .map(|producer| {
            let bed = Arc::clone(&bed);
            thread::spawn(move || send(producer, &bed))
        })
        .collect();
    let mut out = Vec::new();
    while out.len() < SENDERS {
        if may_sleep(&sleeper, &mut consumers) {
            bed.sleep();
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
    ManuallyDrop::into_inner(bed);
    ManuallyDrop::into_inner(sleeper);
}

fn all_empty(consumers: &mut [Consumer<u32>]) -> bool {
    consumers.iter_mut().all(Consumer::is_empty)
}

#[test]
fn no_message_is_slept_over() {
    loom::model(|| {
        handshake::<1>(|sleeper, consumers| sleeper.may_sleep(|| all_empty(consumers)));
    });
}

#[test]
fn two_senders_share_one_sleeper() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3); // All interleavings of three threads are too many; bugs need few preemptions.
    model.check(|| {
        handshake::<2>(|sleeper, consumers| sleeper.may_sleep(|| all_empty(consumers)));
    });
}

/// Mutant: announces sleep and does not look again.
#[test]
#[should_panic(expected = "deadlock")]
fn without_the_second_look_a_message_is_slept_over() {
    loom::model(|| handshake::<1>(|sleeper, _| sleeper.may_sleep(|| true)));
}

/// Mutant: looks first and announces afterwards.
#[test]
#[should_panic(expected = "deadlock")]
fn looking_before_announcing_a_message_is_slept_over() {
    loom::model(|| {
        handshake::<1>(|sleeper, consumers| {
            let idle = all_empty(consumers);
            sleeper.may_sleep(|| idle)
        });
    });
}

/// Two threads say something and wake; the shard turns until it has seen both. `answer` is the step under test: it hears
/// the noise and then looks at what was said.
fn bell(answer: fn(&WakeFlag, &Bed, &mut dyn FnMut())) {
    let shared =
        Arc::new(([AtomicU32::new(0), AtomicU32::new(0)], WakeFlag::default(), Bed::default()));
    let shared = ManuallyDrop::new(shared); // As above.
    let (said, bell, bed) = &**shared;
    let wakers: Vec<_> = (0..2)
        .map(|who| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (said, bell, bed) = &*shared;
                said[who].store(1, Relaxed); // The bell alone has to make it seen.
                if bell.ring() {
                    bed.make_noise();
                }
            })
        })
        .collect();
    let mut heard = 0;
    while heard < 2 {
        answer(bell, bed, &mut || {
            heard = said.iter().map(|word| word.load(Relaxed)).sum();
        });
    }
    for waker in wakers {
        waker.join().unwrap();
    }
    ManuallyDrop::into_inner(shared);
}

#[test]
fn coalesced_wake_ups_lose_nothing() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        bell(|bell, bed, look| {
            bed.sleep();
            bell.answer();
            look();
        });
    });
}

/// Mutant: lowers the flag after looking, so a wake-up in between is silent and what it said unseen.
#[test]
#[should_panic(expected = "deadlock")]
fn a_flag_lowered_too_late_loses_a_wake_up() {
    loom::model(|| {
        bell(|bell, bed, look| {
            bed.sleep();
            look();
            bell.answer();
        });
    });
}
