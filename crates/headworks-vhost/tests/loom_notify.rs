//! Both notification handshakes of a ring under the model checker: every interleaving and every order that the memory model allows.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p headworks-vhost --test loom_notify --release
//! ```
//!
//! Without that flag the file is empty. A driver publishes requests and a device answers; each sleeps on a parker, which behaves as an
//! eventfd does: a signal before the sleep ends it at once. A lost notification is a deadlock, and loom reports it (V3). The models marked
//! `should_panic` leave a step out: they show that the checker detects the fault.
#![cfg(loom)]

use headworks_vhost::notify::{self, NO_NOTIFY, Wish};
use loom::sync::atomic::{AtomicU16, Ordering::*};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use std::mem::ManuallyDrop;

/// An eventfd that a side sleeps on.
#[derive(Default)]
struct Parker {
    count: Mutex<u64>,
    changed: Condvar,
}

impl Parker {
    fn signal(&self) {
        *self.count.lock().unwrap() += 1;
        self.changed.notify_one();
    }

    fn sleep(&self) {
        let mut count = self.count.lock().unwrap();
        while *count == 0 {
            count = self.changed.wait(count).unwrap();
        }
        *count = 0;
    }
}

/// One direction of a ring: the index of the publisher, the wish of the waiter, and the waiter's eventfd.
struct Direction {
    index: AtomicU16,
    wish: AtomicU16,
    parker: Parker,
}

/// A direction whose waiter polls at first: it wants no notification.
fn polling(wish: Wish) -> Direction {
    let word = match wish {
        // Half of the numbers away: no publication of these models passes it.
        Wish::EventIndex => 0x8000,
        Wish::Flags => NO_NOTIFY,
    };
    Direction { index: AtomicU16::new(0), wish: AtomicU16::new(word), parker: Parker::default() }
}

type Publish = fn(&AtomicU16, &AtomicU16, Wish, u16, u16) -> bool;
type Arm = fn(&AtomicU16, &AtomicU16, Wish, u16) -> bool;

fn publish(to: &Direction, wish: Wish, old: u16, step: Publish) {
    if step(&to.index, &to.wish, wish, old, old + 1) {
        to.parker.signal();
    }
}

/// Waits until more than `seen` is published; returns the index.
fn wait(from: &Direction, wish: Wish, seen: u16, step: Arm) -> u16 {
    loop {
        let index = from.index.load(Acquire);
        if index != seen {
            return index;
        }
        if !step(&from.index, &from.wish, wish, seen) {
            from.parker.sleep();
        }
        notify::disarm(&from.wish, wish);
    }
}

/// A publisher of `count` entries, one at a time, and a waiter for all of them.
fn one_way(wish: Wish, count: u16, arm: Arm, step: Publish) {
    loom::model(move || {
        // Kept from being dropped when loom panics: its `Arc` would panic a second time.
        let direction = ManuallyDrop::new(Arc::new(polling(wish)));
        let other = Arc::clone(&direction);
        let publisher = thread::spawn(move || {
            (0..count).for_each(|old| publish(&other, wish, old, step));
        });
        let mut seen = 0;
        while seen != count {
            seen = wait(&direction, wish, seen, arm);
        }
        publisher.join().unwrap();
        ManuallyDrop::into_inner(direction);
    });
}

/// A driver sends one request after the other and waits for each answer; the device sleeps between.
fn there_and_back(wish: Wish, requests: u16) {
    loom::model(move || {
        let available = ManuallyDrop::new(Arc::new(polling(wish)));
        let used = ManuallyDrop::new(Arc::new(polling(wish)));
        let (requests_in, answers_out) = (Arc::clone(&available), Arc::clone(&used));
        let device = thread::spawn(move || {
            for seen in 0..requests {
                wait(&requests_in, wish, seen, notify::arm);
                publish(&answers_out, wish, seen, notify::publish);
            }
        });
        for seen in 0..requests {
            publish(&available, wish, seen, notify::publish);
            wait(&used, wish, seen, notify::arm);
        }
        device.join().unwrap();
        ManuallyDrop::into_inner(available);
        ManuallyDrop::into_inner(used);
    });
}

#[test]
fn no_publication_is_slept_through_with_an_event_index() {
    one_way(Wish::EventIndex, 2, notify::arm, notify::publish);
}

#[test]
fn no_publication_is_slept_through_with_flags() {
    one_way(Wish::Flags, 2, notify::arm, notify::publish);
}

#[test]
fn request_and_answer_wake_both_sides_with_an_event_index() {
    there_and_back(Wish::EventIndex, 2);
}

#[test]
fn request_and_answer_wake_both_sides_with_flags() {
    there_and_back(Wish::Flags, 1);
}

fn arm_without_a_second_look(_: &AtomicU16, wish_word: &AtomicU16, wish: Wish, seen: u16) -> bool {
    wish_word.store(if wish == Wish::EventIndex { seen } else { 0 }, Relaxed);
    loom::sync::atomic::fence(SeqCst);
    false
}

fn arm_without_a_fence(index: &AtomicU16, wish_word: &AtomicU16, wish: Wish, seen: u16) -> bool {
    wish_word.store(if wish == Wish::EventIndex { seen } else { 0 }, Relaxed);
    index.load(Acquire) != seen
}

fn publish_without_a_fence(
    index: &AtomicU16,
    wish_word: &AtomicU16,
    wish: Wish,
    old: u16,
    new: u16,
) -> bool {
    index.store(new, Release);
    let word = wish_word.load(Relaxed);
    if wish == Wish::EventIndex { notify::passes(word, old, new) } else { word & NO_NOTIFY == 0 }
}

#[test]
#[should_panic(expected = "deadlock")]
fn arming_without_a_second_look_loses_a_notification() {
    one_way(Wish::EventIndex, 1, arm_without_a_second_look, notify::publish);
}

#[test]
#[should_panic(expected = "deadlock")]
fn arming_without_a_fence_loses_a_notification() {
    one_way(Wish::EventIndex, 1, arm_without_a_fence, notify::publish);
}

#[test]
#[should_panic(expected = "deadlock")]
fn publishing_without_a_fence_loses_a_notification() {
    one_way(Wish::Flags, 1, notify::arm, publish_without_a_fence);
}
