//! A process dies between any two stores of the in-flight region, the rings and its answers; the next one loses and doubles nothing (V5).
//!
//! The scenario is run once to count the stores, then once for each of them with a death there, then with a second death at each store of
//! the recovery. The driver is the one of `driver`, whose memory outlives the processes.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::testing::{Death, FEATURES, Machine, Mortal, Process, small};
use crate::{Disk, RequestOp, StoreObserver};

const BLOCK: usize = 4096;
const BLOCKS: usize = 16;
const DEPTH: u16 = 4;

/// The driver with what it expects, and the disk, which survive every process.
struct World {
    machine: Machine,
    disk: Vec<u8>,
    /// Content of each block as acknowledged.
    model: Vec<u8>,
    /// Block and content of each slot in flight.
    flying: Vec<Option<(usize, u8, RequestOp)>>,
    to_send: u8,
    answered: Vec<u8>,
}

impl World {
    fn new() -> Self {
        Self {
            machine: Machine::new(small(DEPTH), FEATURES),
            disk: vec![0; BLOCK * BLOCKS],
            model: vec![0; BLOCKS],
            flying: vec![None; usize::from(DEPTH)],
            to_send: 1,
            answered: Vec::new(),
        }
    }

    /// Puts what slots are free for: mostly writes of known content, some flushes and discards.
    fn send(&mut self, until: u8) {
        for slot in 0..DEPTH {
            if self.flying[usize::from(slot)].is_some() || self.to_send > until {
                continue;
            }
            let mark = self.to_send;
            self.to_send += 1;
            let block = usize::from(mark) * 7 % BLOCKS;
            let op = match mark % 5 {
                3 => RequestOp::Flush,
                4 => RequestOp::Discard,
                _ => RequestOp::Write,
            };
            self.flying[usize::from(slot)] = Some((block, mark, op));
            let queue = &mut self.machine.queues[0];
            queue.buffer(slot).fill(mark);
            let offset = (block * BLOCK) as u64;
            let len = if op == RequestOp::Flush { 0 } else { BLOCK as u32 };
            queue.put(slot, op, offset, len, 0);
        }
        self.machine.queues[0].submit();
    }

    fn reap(&mut self) {
        let Self { machine, flying, model, answered, .. } = self;
        machine.queues[0].reap(|answer| {
            let slot = usize::from(answer.slot);
            let (block, mark, op) = flying[slot].take().expect("answered once");
            assert_eq!((answer.status, answer.written), (0, 1), "request {mark}");
            answered.push(mark);
            match op {
                RequestOp::Write => model[block] = mark,
                RequestOp::Discard => model[block] = 0,
                _ => {}
            }
        });
        assert_eq!(machine.queues[0].counts().strays, 0, "no answer twice");
    }

    /// One process: it serves until all of `until` are answered, in batches and out of order.
    fn serve(&mut self, until: u8) {
        let mut process = Process::new(Disk::new(self.disk.len() as u64), 1, true);
        self.machine.connect(&mut process);
        let mut turns = 0;
        while self.to_send <= until || self.flying.iter().any(Option::is_some) {
            self.send(until);
            process.take();
            // Two of three answers of a turn, the newest first: batches of several heads, and heads that wait.
            let keep = if turns % 3 == 2 { 0 } else { process.below.len() / 3 };
            while process.below.len() > keep {
                let request = process.below.pop_back().unwrap();
                process.carry_out(request, &mut self.disk);
            }
            process.device.publish();
            assert_eq!(process.broken(), None);
            self.reap();
            turns += 1;
            assert!(turns < 1000, "requests stay unanswered: {:?}", self.flying);
        }
    }

    /// Serves with a death at the store after `stores`; true: it died.
    fn serve_until_death(&mut self, until: u8, stores: u64) -> bool {
        Mortal::dies_after(Some(stores));
        let result = catch_unwind(AssertUnwindSafe(|| self.serve(until)));
        Mortal::dies_after(None);
        match result {
            Ok(()) => false,
            Err(panic) if panic.is::<Death>() => true,
            Err(panic) => resume_unwind(panic),
        }
    }

    fn check(&mut self) {
        self.answered.sort_unstable();
        let all: Vec<u8> = (1..self.to_send).collect();
        assert_eq!(self.answered, all, "each request is answered once");
        for (block, content) in self.model.iter().enumerate() {
            let bytes = &self.disk[block * BLOCK..][..BLOCK];
            assert!(bytes.iter().all(|byte| byte == content), "block {block} is not {content}");
        }
    }
}

/// More than the ring has entries, so that indices and heads are used again.
const REQUESTS: u8 = 24;

#[test]
fn process_dies_at_the_chosen_store_and_once() {
    Mortal::dies_after(Some(2));
    Mortal::before_store();
    Mortal::before_store();
    let death = catch_unwind(Mortal::before_store).unwrap_err();
    assert!(death.is::<Death>());
    Mortal::before_store();
}

#[test]
fn death_at_any_store_loses_and_doubles_nothing() {
    let mut deaths = 0;
    for stores in 0.. {
        let mut world = World::new();
        let died = world.serve_until_death(REQUESTS, stores);
        world.serve(REQUESTS);
        world.check();
        if !died {
            break;
        }
        deaths += 1;
    }
    assert!(deaths > 7 * u64::from(REQUESTS), "only {deaths} stores were tried");
}

#[test]
fn second_death_during_recovery_loses_and_doubles_nothing() {
    // Every ninth first death, each with every second one.
    for first in (0..).step_by(9) {
        let mut second = 0;
        let is_last = loop {
            let mut world = World::new();
            if !world.serve_until_death(REQUESTS, first) {
                break true;
            }
            let died_again = world.serve_until_death(REQUESTS, second);
            world.serve(REQUESTS);
            world.check();
            // The stores of recovery and of the first turns after it.
            if !died_again || second > 60 {
                break false;
            }
            second += 1;
        };
        if is_last {
            break;
        }
    }
}

#[test]
fn region_made_for_a_used_ring_takes_requests_from_its_index() {
    let mut world = World::new();
    let disk = Disk::new(world.disk.len() as u64);
    let mut process = Process::new(disk, 1, false);
    world.machine.connect(&mut process);
    world.send(6);
    while world.flying.iter().any(Option::is_some) {
        process.turn(&mut world.disk);
        world.reap();
        world.send(6);
    }
    drop(process);
    // The new region's process dies before its first answer.
    world.machine.in_flight = None;
    let mut process = Process::new(disk, 1, true);
    world.machine.connect(&mut process);
    world.send(10);
    process.take();
    drop(process);
    world.serve(12);
    world.check();
}

/// The slots of the requests that a process has below it.
fn slots(process: &Process) -> Vec<u16> {
    process.below.iter().map(|request| request.ticket.head / 3).collect()
}

#[test]
fn requests_are_submitted_again_in_the_order_of_taking() {
    let mut machine = Machine::new(small(DEPTH), FEATURES);
    let disk = Disk::new((BLOCK * BLOCKS) as u64);
    let begin = |machine: &mut Machine, new: &[u16]| {
        let mut process = Process::new(disk, 1, true);
        machine.connect(&mut process);
        for slot in new {
            machine.queues[0].put(*slot, RequestOp::Write, 0, BLOCK as u32, 0);
        }
        machine.queues[0].submit();
        process.take();
        process
    };
    assert_eq!(slots(&begin(&mut machine, &[2, 0])), [2, 0]);
    assert_eq!(slots(&begin(&mut machine, &[3, 1])), [2, 0, 3, 1]);
    let mut process = begin(&mut machine, &[]);
    assert_eq!(slots(&process), [2, 0, 3, 1]);
    process.turn(&mut vec![0; BLOCK * BLOCKS]);
    let mut answered = Vec::new();
    machine.queues[0].reap(|answer| answered.push(answer.slot));
    assert_eq!(answered, [2, 0, 3, 1]);
}
