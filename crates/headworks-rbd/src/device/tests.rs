//! The device over an image in memory, whose completions come when a test says so.

use std::any::Any;
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex};

use headworks::driver::Span;
use headworks::house::Loss;
use headworks_core::extent::extents;
use headworks_core::{BioFlags, ExtentState, IoError, Op};
use headworks_testing::Bench;

use super::*;

const SIZE: usize = 64 << 10;

/// Operation, offset and length, memory, argument.
type Started = (Operation, (u64, u64), Vec<Span>, u64);

#[derive(Default)]
struct State {
    bytes: Vec<u8>,
    started: VecDeque<Started>,
    completed: VecDeque<(u64, i64)>,
    /// Answers of the next starts and completions.
    refuse: VecDeque<i32>,
    fail: VecDeque<i64>,
    kept: Option<Box<dyn Any + Send>>,
}

/// An image that a test completes.
struct Fake {
    state: Arc<Mutex<State>>,
    fd: OwnedFd,
}

impl Backend for Fake {
    unsafe fn start(
        &mut self,
        operation: Operation,
        range: (u64, u64),
        spans: &[Span],
        argument: u64,
    ) -> Result<(), i32> {
        let mut state = self.state.lock().unwrap();
        match state.refuse.pop_front() {
            Some(errno) if errno != 0 => Err(errno),
            _ => {
                state.started.push_back((operation, range, spans.to_vec(), argument));
                Ok(())
            }
        }
    }

    fn collect(&mut self, most: usize, into: &mut Vec<(u64, i64)>) -> bool {
        let mut state = self.state.lock().unwrap();
        let count = most.min(state.completed.len());
        into.extend(state.completed.drain(..count));
        let more = !state.completed.is_empty();
        if !more {
            let mut count = [0u8; 8];
            // SAFETY: our descriptor and our bytes.
            unsafe { libc::read(self.fd.as_raw_fd(), count.as_mut_ptr().cast(), 8) };
        }
        more
    }

    fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    fn close(self, keep: Box<dyn Any + Send>) {
        self.state.lock().unwrap().kept = Some(keep);
    }
}

struct World {
    state: Arc<Mutex<State>>,
    fd: RawFd,
    bench: Bench<RbdDevice<Fake>>,
}

impl World {
    fn new() -> Self {
        // SAFETY: a new descriptor.
        let fd = unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_NONBLOCK)) };
        let state = Arc::new(Mutex::new(State { bytes: vec![0; SIZE], ..State::default() }));
        let raw = fd.as_raw_fd();
        let fake = Fake { state: Arc::clone(&state), fd };
        let device = RbdDevice::new("rbd a/b".to_owned(), fake, SIZE as u64, true);
        Self { state, fd: raw, bench: Bench::new(device) }
    }

    /// Completes an operation that was started, by its place in the order.
    fn complete(&mut self, index: usize) {
        let mut state = self.state.lock().unwrap();
        let (operation, (offset, len), spans, argument) = state.started.remove(index).unwrap();
        let (mut at, mut moved) = (offset as usize, 0);
        for span in spans {
            // SAFETY: the bench keeps its buffer, and the device its probe.
            let bytes = unsafe { span.bytes_mut() };
            let range = at..at + bytes.len();
            match operation {
                Operation::Read => bytes.copy_from_slice(&state.bytes[range]),
                _ => state.bytes[range].copy_from_slice(bytes),
            }
            (at, moved) = (at + bytes.len(), moved + bytes.len());
        }
        if let Operation::Zero { .. } = operation {
            state.bytes[at..at + len as usize].fill(0);
        }
        let result = state.fail.pop_front().unwrap_or(moved as i64);
        state.completed.push_back((argument, result));
        // SAFETY: the descriptor lives as long as the device.
        unsafe { libc::write(self.fd, 1u64.to_ne_bytes().as_ptr().cast(), 8) };
    }

    fn started(&self) -> usize {
        self.state.lock().unwrap().started.len()
    }

    /// Runs one command to its end.
    fn run(&mut self, op: Op, offset: u64, len: u32) -> Completion {
        self.bench.submit(op, BioFlags::NONE, offset, len);
        while self.bench.completions.is_empty() {
            self.complete(0);
            while self.bench.step_now() {}
        }
        let done = self.bench.completions.remove(0);
        assert!(self.bench.completions.is_empty());
        done
    }
}

#[test]
fn commands_move_bytes_and_are_answered_once() {
    let mut world = World::new();
    world.bench.buffer()[..16384].fill(7);
    assert_eq!(world.run(Op::Write, 4096, 16384).status, Ok(()));
    world.bench.buffer()[..20480].fill(9);
    let read = world.run(Op::Read, 0, 20480);
    assert_eq!((read.status, read.transferred), (Ok(()), 20480));
    let bytes = world.bench.buffer();
    assert!(bytes[..4096].iter().all(|&byte| byte == 0));
    assert!(bytes[4096..20480].iter().all(|&byte| byte == 7));
    for (op, at) in [(Op::WriteZeroes, 4096), (Op::Discard, 8192)] {
        assert_eq!(world.run(op, at, 4096).status, Ok(()));
    }
    assert_eq!(world.run(Op::Flush, 0, 0).status, Ok(()));
    world.run(Op::Read, 0, 20480);
    assert!(world.bench.buffer()[4096..12288].iter().all(|&byte| byte == 0));
    assert!(world.bench.buffer()[12288..20480].iter().all(|&byte| byte == 7));
    let beyond = world.run(Op::Read, SIZE as u64 - 512, 1024);
    assert_eq!(beyond.status, Err(IoError::Invalid));
    assert_eq!(world.run(Op::BlockStatus, 0, 8192).status, Ok(()));
    let told: Vec<_> = extents(world.bench.buffer(), 8192).map(|it| (it.len, it.state)).collect();
    assert_eq!(told, [(8192, ExtentState::DATA)]);
}

#[test]
fn completions_come_in_any_order_and_stale_ones_change_nothing() {
    let mut world = World::new();
    let ids: Vec<_> =
        (0..4).map(|at| world.bench.submit(Op::Read, BioFlags::NONE, at * 512, 512)).collect();
    let stale = world.state.lock().unwrap().started[3].3;
    for index in [3, 0, 1, 0] {
        world.complete(index);
    }
    while world.bench.step_now() {}
    let order: Vec<_> = world.bench.completions.drain(..).map(|done| done.id).collect();
    assert_eq!(order, [ids[3], ids[0], ids[2], ids[1]]);
    // The slot is used again, and the old completion comes once more.
    let ids: Vec<_> =
        (0..4).map(|_| world.bench.submit(Op::Read, BioFlags::NONE, 0, 512)).collect();
    world.state.lock().unwrap().completed.push_back((stale, 0));
    world.complete(0);
    while world.bench.step_now() {}
    assert_eq!(world.bench.completions.len(), 1);
    assert_eq!(world.bench.completions[0].id, ids[0]);
}

#[test]
fn many_completions_take_several_turns_and_one_too_many_is_busy() {
    let mut world = World::new();
    for _ in 0..SLOTS {
        world.bench.submit(Op::Read, BioFlags::NONE, 0, 512);
    }
    assert!(world.bench.completions.is_empty());
    world.bench.submit(Op::Read, BioFlags::NONE, 0, 512);
    assert_eq!(world.bench.completions.pop().unwrap().status, Err(IoError::Busy));
    for _ in 0..SLOTS {
        world.complete(0);
    }
    assert!(world.bench.step_now());
    assert_eq!(world.bench.completions.len(), TURN);
    while world.bench.step_now() {}
    assert_eq!(world.bench.completions.len(), SLOTS);
}

#[test]
fn errors_are_answered_and_leave_the_device_as_it_was() {
    let mut world = World::new();
    for (errno, error) in [
        (libc::ENOSPC, IoError::NoSpace),
        (libc::EDQUOT, IoError::NoSpace),
        (libc::EINVAL, IoError::Invalid),
        (libc::EBUSY, IoError::Medium),
        (libc::ENOENT, IoError::Medium),
    ] {
        world.state.lock().unwrap().refuse.push_back(errno);
        world.bench.submit(Op::Write, BioFlags::NONE, 0, 512);
        assert_eq!(world.bench.completions.pop().unwrap().status, Err(error));
        world.state.lock().unwrap().fail.push_back(-i64::from(errno));
        let failed = world.run(Op::Write, 0, 512);
        assert_eq!((failed.status, failed.transferred), (Err(error), 0));
        assert_eq!(world.run(Op::Read, 0, 512).status, Ok(()));
    }
    assert!(world.bench.lost.is_empty());
}

#[test]
fn client_that_is_shut_out_fails_everything_and_says_so() {
    for errno in [libc::ESHUTDOWN, libc::EROFS] {
        let mut world = World::new();
        world.run(Op::Read, 0, 512);
        for _ in 0..3 {
            world.bench.submit(Op::Write, BioFlags::NONE, 0, 512);
        }
        world.state.lock().unwrap().fail.extend([-i64::from(errno); 3]);
        for _ in 0..3 {
            world.complete(0);
        }
        while world.bench.step_now() {}
        let failed: Vec<_> = world.bench.completions.drain(..).map(|done| done.status).collect();
        assert_eq!(failed, [Err(IoError::ShutDown); 3]);
        assert_eq!(world.bench.lost.first(), Some(&Loss::Everything(world.bench.volume)));
        for op in [Op::Read, Op::Write, Op::Flush, Op::BlockStatus, Op::Discard] {
            world.bench.submit(op, BioFlags::NONE, 0, 0);
            assert_eq!(world.bench.completions.pop().unwrap().status, Err(IoError::ShutDown));
        }
        assert_eq!(
            (world.started(), headworks::Device::next_timeout(world.bench.device())),
            (0, None)
        );
    }
}

#[test]
fn idle_device_asks_the_cluster_and_a_busy_one_does_not() {
    let mut world = World::new();
    let tick = |world: &mut World| {
        let at = headworks::Device::next_timeout(world.bench.device()).unwrap();
        world.bench.now = at.max(world.bench.now);
        let now = world.bench.now;
        world.bench.call(|device, io| device.on_timeout(now, io));
    };
    // It was just opened; then each period without an answer asks once.
    tick(&mut world);
    assert_eq!(world.started(), 0);
    tick(&mut world);
    assert_eq!(world.started(), 1);
    // A question that is not answered is not repeated.
    tick(&mut world);
    assert_eq!(world.started(), 1);
    world.complete(0);
    while world.bench.step_now() {}
    world.run(Op::Read, 0, 512);
    tick(&mut world);
    assert_eq!(world.started(), 0);
    // The answer of the question says that the lock is lost, without a command.
    tick(&mut world);
    world.state.lock().unwrap().fail.push_back(-i64::from(libc::ESHUTDOWN));
    world.complete(0);
    while world.bench.step_now() {}
    assert_eq!(world.bench.lost, [Loss::Everything(world.bench.volume)]);
    assert!(world.bench.completions.is_empty());
}

#[test]
fn arrays_outlive_a_device_that_is_dropped() {
    let mut world = World::new();
    world.bench.submit(Op::Read, BioFlags::NONE, 0, 16384);
    let state = Arc::clone(&world.state);
    drop(world.bench);
    let mut state = state.lock().unwrap();
    let kept = state.kept.take().unwrap().downcast::<Held>().unwrap();
    assert!(kept.slots.iter().any(|slot| slot.spans.len() == state.started[0].2.len()));
}
