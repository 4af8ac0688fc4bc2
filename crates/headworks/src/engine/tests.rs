//! What both engines owe their users: each test runs once on each of them.
//!
//! Nothing here waits for time to pass: a test waits for an event (ten seconds at most, then it has failed), and where it
//! has to show that an event does *not* come, it rings the waker and sees that `Woken` comes alone.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use headworks_core::prng::Prng;

use super::*;

const SEC: u64 = 1_000_000_000;

/// Runs `body` on a fresh engine of each kind that this machine allows.
fn on_both(disk_depth: usize, body: impl Fn(&mut dyn Engine)) {
    for choice in [EngineChoice::Uring, EngineChoice::Threads] {
        match open(choice, disk_depth) {
            Ok((mut engine, _)) => body(&mut *engine),
            // A container that forbids io_uring. The fallback itself is tested below.
            Err(error) => eprintln!("left out: {error}"),
        }
    }
}

/// Turns until `enough` is satisfied with all that came.
fn turn_until(engine: &mut dyn Engine, mut enough: impl FnMut(&[Event]) -> bool) -> Vec<Event> {
    let start = Instant::now();
    let mut events = Vec::new();
    while !enough(&events) {
        assert!(start.elapsed() < Duration::from_secs(10), "only {events:?}");
        engine.turn(Wait::For(SEC), &mut events).unwrap();
    }
    events
}

/// What comes until everything that could come has: a wake-up is the last in line.
fn all_there_is(engine: &mut dyn Engine) -> Vec<Event> {
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

/// Does one operation and gives its result.
fn run(engine: &mut dyn Engine, op: DiskOp, spans: &[Span]) -> i32 {
    assert!(engine.push(op, spans));
    let events = turn_until(engine, |events| !results(events).is_empty());
    assert_eq!(results(&events).len(), 1);
    results(&events)[0].1
}

fn op(slot: u32, fd: RawFd, kind: DiskKind, offset: u64, len: u64) -> DiskOp {
    let id = RequestId {
        slot,
        generation: 9,
    };
    let device = DeviceId(3);
    DiskOp {
        device,
        id,
        fd,
        kind,
        offset,
        len,
    }
}

const PLAIN: DiskKind = DiskKind::Write { dsync: false };

#[derive(Clone)]
#[repr(align(4096))]
struct Block([u8; 4096]);

fn span(block: &mut Block) -> Span {
    Span {
        base: block.0.as_mut_ptr(),
        len: 4096,
    }
}

/// A file without a name. `direct` asks for O_DIRECT and is given up where the filesystem has none.
fn file(folder: &str, direct: bool) -> File {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let path = format!("{folder}/headworks-engine-{}-{count}", std::process::id());
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);
    if direct {
        options.custom_flags(libc::O_DIRECT);
    }
    let file = options.open(&path).or_else(|_| {
        options
            .custom_flags(0)
            .create_new(false)
            .create(true)
            .open(&path)
    });
    fs::remove_file(&path).unwrap();
    file.unwrap()
}

fn files() -> [File; 2] {
    [
        file("/dev/shm", false),
        file(std::env::temp_dir().to_str().unwrap(), true),
    ]
}

#[test]
fn many_operations_move_the_right_bytes() {
    const BLOCKS: u32 = 600; // More than the ring's entries and far more than the pool's threads.
    on_both(BLOCKS as usize, |engine| {
        for file in files() {
            let fd = file.as_raw_fd();
            let mut written = vec![Block([0; 4096]); BLOCKS as usize];
            for (index, block) in written.iter_mut().enumerate() {
                block.0.fill(index as u8);
                block.0[..4].copy_from_slice(&(index as u32).to_le_bytes());
            }
            for (index, block) in written.iter_mut().enumerate() {
                let offset = index as u64 * 4096;
                assert!(engine.push(op(index as u32, fd, PLAIN, offset, 0), &[span(block)]));
            }
            let all: Vec<_> = (0..BLOCKS).map(|slot| (slot, 4096)).collect();
            let complete = |events: &[Event]| results(events).len() == all.len();
            assert_eq!(results(&turn_until(engine, complete)), all);

            let mut read = vec![Block([0; 4096]); BLOCKS as usize];
            let mut order: Vec<_> = (0..BLOCKS).collect();
            let mut prng = Prng::new(7);
            for index in (1..BLOCKS).rev() {
                order.swap(index as usize, prng.below(u64::from(index) + 1) as usize);
            }
            for slot in order {
                let block = &mut read[slot as usize];
                let offset = u64::from(slot) * 4096;
                assert!(engine.push(op(slot, fd, DiskKind::Read, offset, 0), &[span(block)]));
            }
            assert_eq!(results(&turn_until(engine, complete)), all);
            assert!(
                read.iter()
                    .map(|block| block.0)
                    .eq(written.iter().map(|block| block.0))
            );
        }
    });
}

#[test]
fn several_spans_are_one_operation() {
    on_both(8, |engine| {
        for file in files() {
            let fd = file.as_raw_fd();
            let mut blocks: Vec<_> = (1..=40).map(|byte| Block([byte; 4096])).collect();
            let mut spans: Vec<_> = blocks.iter_mut().map(span).collect();
            let dsync = DiskKind::Write { dsync: true };
            // The spans are copied: what the caller does with its list afterwards is its own affair.
            assert!(engine.push(op(1, fd, PLAIN, 0, 0), &spans[..30]));
            assert!(engine.push(op(2, fd, dsync, 30 * 4096, 0), &spans[30..]));
            spans.fill(Span {
                base: std::ptr::null_mut(),
                len: 1 << 40,
            });
            let done = turn_until(engine, |events| results(events).len() == 2);
            assert_eq!(results(&done), [(1, 30 * 4096), (2, 10 * 4096)]);

            let mut back = vec![Block([0; 4096]); 40];
            let spans: Vec<_> = back.iter_mut().rev().map(span).collect();
            assert_eq!(
                run(engine, op(3, fd, DiskKind::Read, 0, 0), &spans),
                40 * 4096
            );
            let expected = (1..=40).rev();
            assert!(
                back.iter()
                    .map(|block| block.0)
                    .eq(expected.map(|byte| [byte; 4096]))
            );
        }
    });
}

#[test]
fn sync_and_allocate() {
    on_both(8, |engine| {
        for file in files() {
            let fd = file.as_raw_fd();
            let mut block = Block([1; 4096]);
            let grow = DiskKind::Allocate { mode: 0 };
            assert_eq!(run(engine, op(1, fd, grow, 4096, 8192), &[]), 0);
            assert_eq!(file.metadata().unwrap().len(), 12288);

            assert_eq!(
                run(engine, op(1, fd, PLAIN, 4096, 0), &[span(&mut block)]),
                4096
            );
            assert_eq!(run(engine, op(2, fd, DiskKind::Sync, 0, 0), &[]), 0);
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            let punch = DiskKind::Allocate { mode };
            assert_eq!(run(engine, op(3, fd, punch, 4096, 4096), &[]), 0);
            let read = op(4, fd, DiskKind::Read, 4096, 0);
            assert_eq!(run(engine, read, &[span(&mut block)]), 4096);
            assert_eq!(block.0, [0; 4096]);
        }
    });
}

#[test]
fn what_goes_wrong_is_an_errno_and_short_is_short() {
    on_both(8, |engine| {
        let file = file("/dev/shm", false);
        file.write_all_at(&[7; 100], 0).unwrap();
        let fd = file.as_raw_fd();
        let read_only = File::open("/dev/zero").unwrap();
        let mut block = Block([0; 4096]);
        let spans = [span(&mut block)];
        let mut two = [spans[0], spans[0]];
        (two[0].len, two[1].len) = (50, 100);

        let read = DiskKind::Read;
        assert_eq!(run(engine, op(1, -1, read, 0, 0), &spans), -libc::EBADF);
        assert_eq!(run(engine, op(1, -1, read, 0, 0), &two), -libc::EBADF);
        assert_eq!(
            run(engine, op(1, 9999, DiskKind::Sync, 0, 0), &[]),
            -libc::EBADF
        );
        let zero = read_only.as_raw_fd();
        assert_eq!(run(engine, op(1, zero, PLAIN, 0, 0), &spans), -libc::EBADF);
        let unknown = DiskKind::Allocate { mode: 1 << 30 };
        assert_eq!(
            run(engine, op(1, fd, unknown, 0, 4096), &[]),
            -libc::EOPNOTSUPP
        );
        assert_eq!(run(engine, op(1, fd, read, 0, 0), &spans), 100);
        assert_eq!(run(engine, op(1, fd, read, 0, 0), &two), 100);
        assert_eq!(run(engine, op(1, fd, read, 100, 0), &spans), 0);
        assert_eq!(
            run(engine, op(1, fd, read, 1 << 63, 0), &spans),
            -libc::EINVAL
        );
    });
}

#[test]
fn a_full_engine_refuses_and_recovers() {
    on_both(4, |engine| {
        let file = file("/dev/shm", false);
        let fd = file.as_raw_fd();
        for round in 0..3 {
            for slot in 0..4 {
                assert!(engine.push(op(slot, fd, DiskKind::Sync, 0, 0), &[]));
            }
            let full = !engine.push(op(4, fd, DiskKind::Sync, 0, 0), &[]);
            assert!(full, "round {round}");
            let done = turn_until(engine, |events| results(events).len() == 4);
            assert_eq!(results(&done), [(0, 0), (1, 0), (2, 0), (3, 0)]);
        }
        assert_eq!(all_there_is(engine), []);
    });
}

#[test]
fn dropping_an_engine_finishes_what_was_pushed() {
    let file = file("/dev/shm", false);
    for (byte, choice) in [(1, EngineChoice::Auto), (2, EngineChoice::Threads)] {
        let mut blocks = vec![Block([byte; 4096]); 64];
        let (mut engine, _) = open(choice, 64).unwrap();
        for (index, block) in blocks.iter_mut().enumerate() {
            let op = op(
                index as u32,
                file.as_raw_fd(),
                PLAIN,
                index as u64 * 4096,
                0,
            );
            assert!(engine.push(op, &[span(block)]));
        }
        drop(engine);
        let mut back = vec![0; 64 * 4096];
        file.read_exact_at(&mut back, 0).unwrap();
        assert!(back.iter().all(|&read| read == byte));
    }
}

fn ready(token: u32) -> Event {
    Event::Ready { token }
}

#[test]
fn readiness_comes_once_for_each_watch() {
    on_both(1, |engine| {
        let (socket, mut peer) = UnixStream::pair().unwrap();
        let fd = socket.as_raw_fd();
        engine.watch(5, fd, Interest::Read);
        assert_eq!(all_there_is(engine), [], "nothing to read");

        peer.write_all(b"x").unwrap();
        assert_eq!(turn_until(engine, |events| !events.is_empty()), [ready(5)]);
        peer.write_all(b"y").unwrap();
        assert_eq!(all_there_is(engine), [], "not watched");
        engine.watch(5, fd, Interest::Read);
        engine.watch(5, fd, Interest::Read);
        assert_eq!(
            all_there_is(engine),
            [ready(5)],
            "what was there before counts"
        );

        // Watched again before the next turn, as a connection does.
        engine.watch(5, fd, Interest::Read);
        assert_eq!(all_there_is(engine), [ready(5)]);
    });
}

#[test]
fn a_watch_replaces_the_one_before() {
    on_both(1, |engine| {
        let (socket, mut peer) = UnixStream::pair().unwrap();
        let fd = socket.as_raw_fd();
        engine.watch(0, fd, Interest::Read);
        assert_eq!(all_there_is(engine), []);
        engine.watch(0, fd, Interest::Write);
        assert_eq!(all_there_is(engine), [ready(0)], "there is room");
        peer.write_all(b"x").unwrap();
        assert_eq!(all_there_is(engine), [], "the first watch is gone");

        engine.watch(0, fd, Interest::ReadWrite);
        assert_eq!(all_there_is(engine), [ready(0)], "one event for both");
        let (other, _its_peer) = UnixStream::pair().unwrap();
        engine.watch(0, fd, Interest::Read);
        engine.watch(0, other.as_raw_fd(), Interest::Read);
        assert_eq!(
            all_there_is(engine),
            [],
            "the token belongs to the other socket now"
        );
    });
}

#[test]
fn many_sockets_are_watched_at_once() {
    on_both(1, |engine| {
        let mut pairs: Vec<_> = (0..400).map(|_| UnixStream::pair().unwrap()).collect();
        for (token, (socket, _)) in pairs.iter().enumerate() {
            engine.watch(token as u32, socket.as_raw_fd(), Interest::Read);
        }
        assert_eq!(all_there_is(engine), []);
        for (_, peer) in pairs.iter_mut().step_by(2) {
            peer.write_all(b"x").unwrap();
        }
        let mut events = turn_until(engine, |events| events.len() >= 200);
        events.sort_by_key(|event| match event {
            Event::Ready { token } => *token,
            _ => u32::MAX,
        });
        assert!(events.into_iter().eq((0..400).step_by(2).map(ready)));
    });
}

/// Another name for the same open socket.
fn duplicate(socket: &UnixStream) -> OwnedFd {
    socket.try_clone().unwrap().into()
}

/// Gives `fd` to `socket` instead of what it was.
fn reuse(fd: OwnedFd, socket: &UnixStream) -> OwnedFd {
    let number = fd.as_raw_fd();
    // SAFETY: dup2 closes the fd we own and opens it anew, in one step, so that no other test can take the number.
    unsafe {
        std::mem::forget(fd);
        assert_eq!(libc::dup2(socket.as_raw_fd(), number), number);
        OwnedFd::from_raw_fd(number)
    }
}

#[test]
fn forgotten_means_silent_though_token_and_fd_are_reused() {
    on_both(1, |engine| {
        let (former, mut its_peer) = UnixStream::pair().unwrap();
        let (next, mut next_peer) = UnixStream::pair().unwrap();
        // `former` stays open under another number, so a poll left behind would still fire.
        for fired_before in [false, true] {
            let fd = duplicate(&former);
            let number = fd.as_raw_fd();
            engine.watch(7, number, Interest::Read);
            if !fired_before {
                assert_eq!(all_there_is(engine), []);
            }
            its_peer.write_all(b"x").unwrap();
            engine.forget(7, number);
            let fd = reuse(fd, &next);
            engine.watch(7, number, Interest::Read);
            assert_eq!(all_there_is(engine), [], "fired before: {fired_before}");

            next_peer.write_all(b"x").unwrap();
            assert_eq!(all_there_is(engine), [ready(7)]);
            let mut byte = [0];
            std::io::Read::read_exact(&mut &next, &mut byte).unwrap();
            std::io::Read::read_exact(&mut &former, &mut byte).unwrap();
            engine.forget(7, number);
            drop(fd);
        }
        engine.forget(1000, 5); // Never watched.
    });
}

#[test]
fn a_hang_up_is_readiness_and_then_rests() {
    on_both(1, |engine| {
        let (socket, peer) = UnixStream::pair().unwrap();
        engine.watch(1, socket.as_raw_fd(), Interest::Read);
        drop(peer);
        assert_eq!(turn_until(engine, |events| !events.is_empty()), [ready(1)]);
        // A socket in this state that nobody watches must not keep the engine awake.
        let (start, mut events) = (Instant::now(), Vec::new());
        let mut turns = 0;
        while start.elapsed() < Duration::from_millis(20) {
            engine.turn(Wait::For(SEC / 50), &mut events).unwrap();
            turns += 1;
        }
        assert_eq!(events, []);
        assert!(turns < 10, "it slept instead of turning {turns} times");
    });
}

#[test]
fn what_cannot_be_watched_is_ready_so_that_its_owner_sees_why() {
    on_both(1, |engine| {
        let regular = file("/dev/shm", false);
        engine.watch(2, regular.as_raw_fd(), Interest::Read);
        engine.watch(3, 9999, Interest::Read);
        let mut events = turn_until(engine, |events| events.len() >= 2);
        events.sort_by_key(|event| *event != ready(2));
        assert_eq!(events, [ready(2), ready(3)]);
        assert_eq!(all_there_is(engine), []);
    });
}

#[test]
fn a_turn_ends_when_its_time_is_over() {
    on_both(1, |engine| {
        for ns in [0, 1, 200_000, 3_000_000] {
            let (start, mut events) = (Instant::now(), Vec::new());
            engine.turn(Wait::Poll, &mut events).unwrap();
            engine.turn(Wait::For(ns), &mut events).unwrap();
            assert_eq!(events, []);
            assert!(start.elapsed() >= Duration::from_nanos(ns));
        }
    });
}

#[test]
fn wake_ups_coalesce_and_none_is_lost() {
    on_both(1, |engine| {
        let waker = engine.waker();
        for _ in 0..100 {
            waker.wake();
        }
        let mut events = turn_until(engine, |events| !events.is_empty());
        engine.turn(Wait::Poll, &mut events).unwrap();
        assert_eq!(events, [Event::Woken], "a hundred are one");

        // Each message is sent only after the one before was answered, so each needs a wake-up of its own.
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
            // `Forever` would hang on a lost one; this fails.
            turn_until(engine, |events| events.contains(&Event::Woken));
            assert_eq!(inbox.try_recv(), Ok(round));
            to_thread.send(round).unwrap();
        }
        other.join().unwrap();
    });
}

#[test]
fn disk_socket_and_waker_share_a_turn() {
    on_both(64, |engine| {
        let file = file("/dev/shm", false);
        let (socket, mut peer) = UnixStream::pair().unwrap();
        engine.watch(1, socket.as_raw_fd(), Interest::Read);
        peer.write_all(b"x").unwrap();
        engine.waker().wake();
        for slot in 0..64 {
            assert!(engine.push(op(slot, file.as_raw_fd(), DiskKind::Sync, 0, 0), &[]));
        }
        let events = turn_until(engine, |events| events.len() >= 66);
        assert_eq!(results(&events).len(), 64);
        assert!(events.contains(&ready(1)) && events.contains(&Event::Woken));
        let device =
            |event: &Event| matches!(event, Event::Disk(done) if done.device != DeviceId(3));
        assert!(!events.iter().any(device), "given back as given");
    });
}

#[test]
fn choices_have_names_and_limits() {
    assert_eq!("uring".parse(), Ok(EngineChoice::Uring));
    assert_eq!("threads".parse(), Ok(EngineChoice::Threads));
    assert_eq!("auto".parse(), Ok(EngineChoice::Auto));
    assert_eq!("aio".parse::<EngineChoice>().unwrap_err().option, "engine");
    for depth in [0, DISK_DEPTH_MAX + 1] {
        assert_eq!(
            open(EngineChoice::Auto, depth).err().unwrap().option,
            "disk_depth"
        );
    }
    let (engine, why) = open(EngineChoice::Threads, 1).unwrap();
    assert_eq!(engine.name(), "threads");
    assert_eq!(why, "threads (epoll and a thread pool; as asked)");
}

/// Runs `body` on a thread for which `call` fails with `errno`: what a container does, on a small scale.
fn forbidding(call: libc::c_long, errno: i32, body: impl FnOnce() + Send) {
    let statement = |code: u32, jump_true, k| libc::sock_filter {
        code: code as u16,
        jt: jump_true,
        jf: 0,
        k,
    };
    let mut filter = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0), // the call's number
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, call as u32),
        statement(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
        statement(
            libc::BPF_RET | libc::BPF_K,
            0,
            libc::SECCOMP_RET_ERRNO | errno as u32,
        ),
    ];
    thread::scope(|scope| {
        scope.spawn(|| {
            let program = libc::sock_fprog {
                len: filter.len() as u16,
                filter: filter.as_mut_ptr(),
            };
            // SAFETY: the program lives during the call; it concerns this thread only.
            unsafe {
                assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
                let mode = libc::SECCOMP_MODE_FILTER;
                assert_eq!(
                    libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program),
                    0
                );
            }
            body();
        });
    });
}

#[test]
fn where_io_uring_is_forbidden_auto_takes_threads_and_says_why() {
    let cases = [
        (
            libc::SYS_io_uring_setup,
            libc::EPERM,
            "io_uring is forbidden here",
        ),
        (
            libc::SYS_io_uring_setup,
            libc::ENOSYS,
            "this kernel has no io_uring",
        ),
        (
            libc::SYS_io_uring_setup,
            libc::EINVAL,
            "io_uring needs Linux 6.1",
        ),
        (
            libc::SYS_io_uring_setup,
            libc::ENOMEM,
            "there is not enough memory",
        ),
        (
            libc::SYS_io_uring_setup,
            libc::EMFILE,
            "io_uring does not work here",
        ),
        (
            libc::SYS_io_uring_enter,
            libc::EPERM,
            "io_uring is forbidden here",
        ),
    ];
    for (call, errno, reason) in cases {
        if call == libc::SYS_io_uring_enter && open(EngineChoice::Uring, 1).is_err() {
            continue; // This machine forbids it by itself.
        }
        forbidding(call, errno, || {
            let (mut engine, why) = open(EngineChoice::Auto, 4).unwrap();
            assert_eq!(engine.name(), "threads");
            assert!(why.contains(reason), "{why}");
            let file = file("/dev/shm", false);
            let sync = op(1, file.as_raw_fd(), DiskKind::Sync, 0, 0);
            assert_eq!(run(&mut *engine, sync, &[]), 0);

            let error = open(EngineChoice::Uring, 4).err().unwrap();
            assert_eq!(error.option, "engine");
            assert!(error.message.starts_with(reason), "{error}");
        });
    }
}

#[test]
fn without_fine_waits_milliseconds_do() {
    for errno in [libc::ENOSYS, libc::EPERM] {
        forbidding(libc::SYS_epoll_pwait2, errno, || {
            let (mut engine, _) = open(EngineChoice::Threads, 1).unwrap();
            for _ in 0..3 {
                let start = Instant::now();
                engine.turn(Wait::For(1_200_000), &mut Vec::new()).unwrap();
                assert!(start.elapsed() >= Duration::from_nanos(1_200_000));
            }
        });
    }
}

#[test]
fn without_a_single_thread_operations_are_to_be_tried_again() {
    let file = file("/dev/shm", false);
    forbidding(libc::SYS_clone3, libc::EAGAIN, || {
        let (mut engine, _) = open(EngineChoice::Threads, 4).unwrap();
        let sync = op(1, file.as_raw_fd(), DiskKind::Sync, 0, 0);
        assert_eq!(run(&mut *engine, sync, &[]), -libc::EAGAIN);
    });
}
