//! The contract of both engines. Each test runs once on each engine.
//!
//! No test waits for a fixed time: a test waits for an event and fails after ten seconds. To show that an event does *not*
//! arrive, a test calls the waker and checks that `Woken` arrives alone.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::*;

mod disk;
mod fallback;
mod sockets;

const SEC: u64 = 1_000_000_000;

/// Runs `body` on a fresh engine of each kind that this machine allows.
fn on_both(disk_depth: usize, body: impl Fn(&mut dyn Engine)) {
    for choice in [EngineChoice::Uring, EngineChoice::Threads] {
        match open_engine(choice, disk_depth) {
            Ok((mut engine, _)) => body(&mut *engine),
            // A container forbids io_uring. `fallback.rs` tests the fallback.
            Err(error) => eprintln!("left out: {error}"),
        }
    }
}

/// Runs turns until `enough` accepts the events so far, and returns them.
fn turn_until(engine: &mut dyn Engine, mut enough: impl FnMut(&[Event]) -> bool) -> Vec<Event> {
    let start = Instant::now();
    let mut events = Vec::new();
    while !enough(&events) {
        assert!(start.elapsed() < Duration::from_secs(10), "only {events:?}");
        engine.turn(Wait::For(SEC), &mut events).unwrap();
    }
    events
}

/// Returns all pending events: those reported up to and after a wake-up that is sent last.
fn pending_events(engine: &mut dyn Engine) -> Vec<Event> {
    engine.waker().wake();
    let mut events = turn_until(engine, |events| events.contains(&Event::Woken));
    engine.turn(Wait::Poll, &mut events).unwrap();
    events.retain(|event| *event != Event::Woken);
    events
}

fn results(events: &[Event]) -> Vec<(u32, i32)> {
    let result = |event: &Event| match event {
        Event::Disk(done) => Some((done.id.slot, done.result)),
        _ => None,
    };
    let mut results: Vec<_> = events.iter().filter_map(result).collect();
    results.sort_unstable();
    results
}

/// Queues an operation.
fn push(engine: &mut dyn Engine, op: DiskOp, spans: &[Span]) -> bool {
    // SAFETY: tests keep files and blocks until the operation has ended or the engine is dropped, which waits for it.
    unsafe { engine.push(op, spans) }
}

/// Executes one operation and returns its result.
fn run(engine: &mut dyn Engine, op: DiskOp, spans: &[Span]) -> i32 {
    assert!(push(engine, op, spans));
    let events = turn_until(engine, |events| !results(events).is_empty());
    assert_eq!(results(&events).len(), 1);
    results(&events)[0].1
}

fn op(slot: u32, fd: RawFd, kind: DiskKind, offset: u64, len: u64) -> DiskOp {
    let id = RequestId { slot, generation: 9 };
    let device = DeviceId(3);
    DiskOp { device, id, fd, kind, offset, len }
}

fn ready(token: u32) -> Event {
    Event::Ready { token }
}

/// A file without a name. `direct` asks for O_DIRECT and is ignored where the filesystem does not support it.
fn file(folder: &str, direct: bool) -> File {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let path = format!("{folder}/headworks-engine-{}-{count}", std::process::id());
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);
    if direct {
        options.custom_flags(libc::O_DIRECT);
    }
    let file = options
        .open(&path)
        .or_else(|_| options.custom_flags(0).create_new(false).create(true).open(&path));
    fs::remove_file(&path).unwrap();
    file.unwrap()
}

fn files() -> [File; 2] {
    [file("/dev/shm", false), file(std::env::temp_dir().to_str().unwrap(), true)]
}

/// A turn may end early without an event (a signal, an interest armed late), so its caller turns again for the time that is
/// left. What must not happen is that it turns in vain.
#[test]
fn turns_without_events_last_until_their_time_out() {
    on_both(1, |engine| {
        for ns in [0, 1, 200_000, 3_000_000] {
            let (start, mut events) = (Instant::now(), Vec::new());
            engine.turn(Wait::Poll, &mut events).unwrap();
            let mut turns = 0;
            while let Some(left) = Duration::from_nanos(ns).checked_sub(start.elapsed()) {
                engine.turn(Wait::For(left.as_nanos() as u64), &mut events).unwrap();
                turns += 1;
            }
            assert_eq!(events, []);
            assert!(turns <= 8, "{turns} turns within {ns} ns");
        }
    });
}

#[test]
fn wake_ups_coalesce_without_loss() {
    on_both(1, |engine| {
        let waker = engine.waker();
        for _ in 0..100 {
            waker.wake();
        }
        let mut events = turn_until(engine, |events| !events.is_empty());
        engine.turn(Wait::Poll, &mut events).unwrap();
        assert_eq!(events, [Event::Woken], "a hundred wake-ups coalesce into one");

        // Each message is sent only after the answer to the previous one, so each needs its own wake-up.
        let (to_shard, inbox) = mpsc::channel();
        let (to_thread, answers) = mpsc::channel();
        let other = thread::spawn(move || {
            for round in 0..2000 {
                to_shard.send(round).unwrap();
                waker.wake();
                assert_eq!(answers.recv(), Ok(round));
            }
        });
        for round in 0..2000 {
            // After a lost wake-up `Forever` would hang; this call fails.
            turn_until(engine, |events| events.contains(&Event::Woken));
            assert_eq!(inbox.try_recv(), Ok(round));
            to_thread.send(round).unwrap();
        }
        other.join().unwrap();
    });
}

#[test]
fn disk_socket_and_waker_events_arrive_together() {
    on_both(64, |engine| {
        let file = file("/dev/shm", false);
        let (socket, mut peer) = UnixStream::pair().unwrap();
        engine.watch(1, socket.as_raw_fd(), Interest::Read);
        peer.write_all(b"x").unwrap();
        engine.waker().wake();
        for slot in 0..64 {
            assert!(push(engine, op(slot, file.as_raw_fd(), DiskKind::Sync, 0, 0), &[]));
        }
        let events = turn_until(engine, |events| events.len() >= 66);
        assert_eq!(results(&events).len(), 64);
        assert!(events.contains(&ready(1)) && events.contains(&Event::Woken));
        let device =
            |event: &Event| matches!(event, Event::Disk(done) if done.device != DeviceId(3));
        assert!(!events.iter().any(device), "the device id is returned unchanged");
    });
}

/// A signal that interrupts system calls and does nothing else.
pub(super) fn interrupting_signal() -> i32 {
    extern "C" fn nothing(_signal: i32) {}
    // SAFETY: the handler does nothing, and lacks SA_RESTART on purpose. No other test uses this signal.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(i32) as usize;
        let installed = libc::sigaction(libc::SIGUSR2, &raw const action, std::ptr::null_mut());
        assert_eq!(installed, 0);
    }
    libc::SIGUSR2
}

#[test]
fn signal_ends_turn_early_without_error() {
    let signal = interrupting_signal();
    on_both(1, |engine| {
        let over = AtomicBool::new(false);
        // SAFETY: no arguments.
        let sleeper = unsafe { libc::pthread_self() };
        thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    // SAFETY: the thread lives until this scope ends.
                    unsafe { libc::pthread_kill(sleeper, signal) };
                    thread::yield_now();
                }
            });
            let mut events = Vec::new();
            engine.turn(Wait::Forever, &mut events).unwrap();
            engine.turn(Wait::For(100 * SEC), &mut events).unwrap();
            over.store(true, Ordering::Relaxed);
            assert_eq!(events, []);
        });
    });
}
