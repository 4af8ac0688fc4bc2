//! The right to drive under the model checker, with real rings: every interleaving and every order that the memory model allows.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p headworks --test loom_combining --release
//! ```
//!
//! Without that flag the file is empty. What is driven are the consumers of the rings; a batch that no thread reads, or that waits for
//! a thread that is never woken, fails the model. The models marked `should_panic` do one step wrongly on purpose.
#![cfg(loom)]

use headworks::house::{
    Arc, Consumer, Driving, DrivingRight, Leave, OwnerCall, Producer, Sleeper, Take, ring,
};
use loom::sync::atomic::{AtomicU32, Ordering::Relaxed};
use loom::sync::{Condvar, Mutex};
use loom::thread;
use std::mem::ManuallyDrop;

/// The driven value: the rings, the number of messages that were read, and of operations that wait for the owner.
struct Rings {
    consumers: Vec<Consumer<u32>>,
    read: u32,
    left: u32,
}

impl Rings {
    fn read_one(&mut self, ring: usize) {
        let mut out = Vec::new();
        self.read += self.consumers[ring].pop(4, &mut out) as u32;
    }

    fn read_all(&mut self) {
        (0..self.consumers.len()).for_each(|ring| self.read_one(ring));
    }
}

/// What the threads of a model share.
struct Model {
    right: DrivingRight<Rings>,
    call: OwnerCall,
    sleeper: Arc<Sleeper>,
    /// Wake-ups of the owner's thread: a number, and whether one is pending.
    wakes: AtomicU32,
    woken: Mutex<bool>,
    changed: Condvar,
}

type Shared = ManuallyDrop<Arc<Model>>; // Not dropped when loom panics: its `Arc` would panic a second time.

impl Model {
    fn new(rings: usize) -> (Shared, Vec<Producer<u32>>) {
        let sleeper = Arc::new(Sleeper::default());
        let (producers, consumers) = (0..rings).map(|_| ring(4, &sleeper)).unzip();
        let model = Model {
            right: DrivingRight::new(Rings { consumers, read: 0, left: 0 }),
            call: OwnerCall::new(Arc::clone(&sleeper)),
            sleeper,
            wakes: AtomicU32::new(0),
            woken: Mutex::new(false),
            changed: Condvar::new(),
        };
        (ManuallyDrop::new(Arc::new(model)), producers)
    }

    fn wake_owner(&self) {
        self.wakes.fetch_add(1, Relaxed);
        *self.woken.lock().unwrap() = true;
        self.changed.notify_one();
    }

    /// The owner's thread: takes the right, or sleeps until it is woken.
    fn take_as_owner(&self) -> Driving<'_, Rings> {
        loop {
            if let Some(driving) = self.right.take_as_owner() {
                return driving;
            }
            self.sleep();
        }
    }

    /// Sleeps until it is woken, once.
    fn sleep(&self) {
        let mut woken = self.woken.lock().unwrap();
        while !*woken {
            woken = self.changed.wait(woken).unwrap();
        }
        *woken = false;
    }

    /// Drives until no batch came meanwhile; `only` one ring at first.
    fn drive(&self, mut driving: Driving<'_, Rings>, only: Option<usize>) {
        driving.with(|rings| match only {
            Some(ring) => rings.read_one(ring),
            None => rings.read_all(),
        });
        while let Some(again) = self.left(driving.leave(false)) {
            driving = again;
            driving.with(Rings::read_all);
        }
    }

    fn left<'a>(&self, leave: Leave<'a, Rings>) -> Option<Driving<'a, Rings>> {
        match leave {
            Leave::Again(driving) => return Some(driving),
            Leave::WakeOwner => self.wake_owner(),
            Leave::Left => {}
        }
        None
    }

    /// A feeder after publishing.
    fn on_publish(&self, ring: usize) {
        match self.right.take_or_leave() {
            Take::Taken(driving, others) => self.drive(driving, (!others).then_some(ring)),
            Take::Left | Take::LeftToOwner => {}
        }
    }

    /// The messages that were read, when every feeder has ended.
    fn read(&self) -> u32 {
        self.right.take_as_owner().expect("nobody drives").close().read
    }
}

fn publish(producer: &mut Producer<u32>) {
    producer.push_silent(&mut vec![7]);
}

fn check(preemptions: usize, model: fn()) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// One feeder publishes twice beside another: the second time it may find PENDING set by itself.
fn two_feeders(on_publish: fn(&Model, usize)) {
    let (model, mut producers) = Model::new(2);
    let (mut second, mut first) = (producers.pop().unwrap(), producers.pop().unwrap());
    let there = Arc::clone(&model);
    let feeder = thread::spawn(move || {
        for _ in 0..2 {
            publish(&mut second);
            on_publish(&there, 1);
        }
    });
    publish(&mut first);
    on_publish(&model, 0);
    feeder.join().unwrap();
    assert_eq!((model.wakes.load(Relaxed), model.read()), (0, 3), "a batch is left behind");
    ManuallyDrop::into_inner(model);
}

#[test]
fn driver_leaves_no_batch_behind() {
    check(4, || two_feeders(Model::on_publish));
}

#[test]
fn third_feeder_may_rely_on_the_mark_of_the_second() {
    check(2, || {
        let (model, producers) = Model::new(3);
        let feed = |(ring, mut producer)| {
            let model = Arc::clone(&model);
            thread::spawn(move || {
                publish(&mut producer);
                model.on_publish(ring);
            })
        };
        let feeders: Vec<_> = producers.into_iter().enumerate().map(feed).collect();
        feeders.into_iter().for_each(|feeder| feeder.join().unwrap());
        assert_eq!(model.read(), 3);
        ManuallyDrop::into_inner(model);
    });
}

/// Mutant: asks for the right and publishes afterwards.
#[test]
#[should_panic(expected = "left behind")]
fn batch_published_after_the_question_is_left_behind() {
    check(3, || {
        let (model, mut producers) = Model::new(2);
        let (mut second, mut first) = (producers.pop().unwrap(), producers.pop().unwrap());
        let there = Arc::clone(&model);
        let feeder = thread::spawn(move || match there.right.take_or_leave() {
            Take::Taken(driving, _) => {
                publish(&mut second);
                there.drive(driving, Some(1));
            }
            _ => publish(&mut second),
        });
        publish(&mut first);
        model.on_publish(0);
        feeder.join().unwrap();
        assert_eq!(model.read(), 2, "a batch is left behind");
        ManuallyDrop::into_inner(model);
    });
}

/// Mutant: does not read the rings again although a batch came.
#[test]
#[should_panic(expected = "left behind")]
fn driver_that_leaves_at_its_second_try_loses_a_batch() {
    check(3, || {
        two_feeders(|model, ring| {
            let Take::Taken(mut driving, _) = model.right.take_or_leave() else { return };
            driving.with(|rings| rings.read_one(ring));
            while let Some(again) = model.left(driving.leave(false)) {
                driving = again;
            }
        });
    });
}

/// A driver that has done enough after its own ring, beside a feeder that spins `stop` by `stop`.
fn hand_over(spins: bool) {
    let (model, mut producers) = Model::new(2);
    let (mut second, mut first) = (producers.pop().unwrap(), producers.pop().unwrap());
    let there = Arc::clone(&model);
    let feeder = thread::spawn(move || {
        publish(&mut second);
        there.on_publish(1);
        if spins && there.right.spin() {
            if let Some(driving) = there.right.take_pending() {
                there.drive(driving, None);
            }
            if let Some(driving) = there.right.stop_spinning() {
                there.drive(driving, None);
            }
        }
    });
    publish(&mut first);
    if let Take::Taken(mut driving, _) = model.right.take_or_leave() {
        driving.with(|rings| rings.read_one(0));
        model.left(driving.leave(true));
    }
    feeder.join().unwrap();
    // Without a wake-up of the owner's thread all is read; with one, the owner reads the rest.
    let wakes = model.wakes.load(Relaxed);
    let mut driving = model.right.take_as_owner().expect("nobody drives");
    let read = driving.with(|rings| rings.read);
    assert!(read == 2 || wakes > 0, "a batch is left behind");
    driving.with(Rings::read_all);
    assert_eq!(driving.close().read, 2);
    ManuallyDrop::into_inner(model);
}

#[test]
fn what_a_driver_leaves_at_its_bound_is_driven_by_a_feeder_that_spins_or_the_owner() {
    check(4, || hand_over(true));
    check(4, || hand_over(false));
}

#[test]
fn owner_gets_the_right_and_leaves_no_batch_behind() {
    check(4, || {
        let (model, mut producers) = Model::new(1);
        let (mut producer, there) = (producers.pop().unwrap(), Arc::clone(&model));
        let feeder = thread::spawn(move || {
            for _ in 0..2 {
                publish(&mut producer);
                there.on_publish(0);
            }
        });
        let mut driving = model.take_as_owner();
        driving.with(Rings::read_all);
        while let Leave::Again(again) = driving.leave_as_owner(false) {
            driving = again;
            driving.with(Rings::read_all);
        }
        feeder.join().unwrap();
        assert_eq!(model.read(), 2);
        ManuallyDrop::into_inner(model);
    });
}

#[test]
fn owner_at_its_bound_leaves_the_rest_to_a_feeder_that_spins() {
    check(3, || {
        let (model, mut producers) = Model::new(1);
        let (mut producer, there) = (producers.pop().unwrap(), Arc::clone(&model));
        let feeder = thread::spawn(move || {
            let spins = there.right.spin();
            publish(&mut producer);
            there.on_publish(0);
            if spins && let Some(driving) = there.right.stop_spinning() {
                there.drive(driving, None);
            }
        });
        if let Leave::Again(mut driving) = model.take_as_owner().leave_as_owner(true) {
            driving.with(Rings::read_all);
            while let Leave::Again(again) = driving.leave_as_owner(false) {
                driving = again;
                driving.with(Rings::read_all);
            }
        }
        feeder.join().unwrap();
        assert_eq!(model.read(), 1);
        ManuallyDrop::into_inner(model);
    });
}

/// The owner's thread: takes what feeders left, and sleeps without the right until it has `total`.
fn owner_takes(model: &Model, total: u32, may_sleep: fn(&Model) -> bool) -> u32 {
    let mut taken = 0;
    loop {
        model.call.answer();
        if let Some(mut driving) = model.right.take_as_owner() {
            loop {
                taken += driving.with(|rings| std::mem::take(&mut rings.left));
                // What is in the ring the owner does itself.
                taken += driving.with(|rings| {
                    rings.read_all();
                    std::mem::take(&mut rings.read)
                });
                match driving.leave_as_owner(false) {
                    Leave::Again(again) => driving = again,
                    _ => break,
                }
            }
        }
        if taken == total {
            return taken;
        }
        if may_sleep(model) {
            model.sleep();
        }
        model.call.woken();
    }
}

/// A feeder whose bio becomes an operation in its turn, or in one of the owner's; it leaves the right by `leave`.
fn feeder_leaves(
    model: &Model,
    producer: &mut Producer<u32>,
    leave: fn(&Model, Driving<'_, Rings>),
) {
    publish(producer);
    match model.right.take_or_leave() {
        Take::Taken(mut driving, _) => {
            driving.with(|rings| {
                rings.read_one(0);
                rings.left += std::mem::take(&mut rings.read);
            });
            leave(model, driving);
        }
        Take::LeftToOwner if producer.must_wake() => model.wake_owner(),
        _ => {}
    }
}

fn leave_and_call(model: &Model, driving: Driving<'_, Rings>) {
    assert!(!matches!(driving.leave(false), Leave::Again(_)), "no other feeder publishes");
    if model.call.call() {
        model.wake_owner();
    }
}

fn operations_left(
    times: u32,
    leave: fn(&Model, Driving<'_, Rings>),
    may_sleep: fn(&Model) -> bool,
) {
    let (model, mut producers) = Model::new(1);
    let (mut producer, there) = (producers.pop().unwrap(), Arc::clone(&model));
    let feeder = thread::spawn(move || {
        (0..times).for_each(|_| feeder_leaves(&there, &mut producer, leave));
    });
    assert_eq!(owner_takes(&model, times, may_sleep), times);
    feeder.join().unwrap();
    ManuallyDrop::into_inner(model);
}

#[test]
fn owner_does_not_sleep_over_operations_that_feeders_left() {
    check(4, || operations_left(1, leave_and_call, |model| model.call.may_sleep()));
    check(3, || operations_left(2, leave_and_call, |model| model.call.may_sleep()));
}

/// Mutant: leaves the right and tells nobody.
#[test]
#[should_panic(expected = "deadlock")]
fn operation_without_a_call_is_slept_over() {
    fn leave(model: &Model, driving: Driving<'_, Rings>) {
        if matches!(driving.leave(false), Leave::WakeOwner) && model.call.call() {
            model.wake_owner();
        }
    }
    check(3, || operations_left(1, leave, |model| model.call.may_sleep()));
}

/// Mutant: an owner that looks whether it was called before it announces its sleep, as if the fence between them were missing.
#[test]
#[should_panic(expected = "deadlock")]
fn owner_that_looks_before_it_announces_sleeps_over_a_call() {
    fn looks_first(model: &Model) -> bool {
        let called = model.call.is_called();
        model.sleeper.may_sleep(|| true) && !called
    }
    check(3, || operations_left(1, leave_and_call, looks_first));
}
