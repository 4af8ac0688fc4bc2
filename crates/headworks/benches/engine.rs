//! What the engines and the ring cost: `cargo bench -p headworks --bench engine`.
//!
//! Each figure is the median of seven runs, with the lowest and the highest. CPU is that of the whole process, kernel
//! included. The file lies in the temporary folder (`TMPDIR`) and is read past the page cache where the filesystem allows it.

use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Instant;

use headworks::EngineChoice;
use headworks::driver::{
    DiskKind, DiskOp, Engine, Event, Interest, Span, Wait, Waker, open_engine,
};
use headworks::house::{Sleeper, ring};
use headworks_core::prng::Prng;
use headworks_core::{DeviceId, RequestId};

const RUNS: usize = 7;

/// Runs `measure` and prints the median of what it gives.
fn report(what: &str, unit: &str, mut measure: impl FnMut() -> f64) {
    let mut figures: Vec<_> = (0..RUNS).map(|_| measure()).collect();
    figures.sort_by(f64::total_cmp);
    let (low, median, high) = (figures[0], figures[RUNS / 2], figures[RUNS - 1]);
    println!("{what:<58} {median:>9.1} {unit:<6} ({low:.1} .. {high:.1})");
}

/// Nanoseconds for each of `count` repetitions.
fn time_each(count: u32, mut step: impl FnMut()) -> f64 {
    let start = Instant::now();
    (0..count).for_each(|_| step());
    start.elapsed().as_nanos() as f64 / f64::from(count)
}

fn cpu_ns() -> f64 {
    // SAFETY: a zeroed timespec is valid, and alive during the call.
    let time = unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time);
        time
    };
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

fn pin(cpu: usize) {
    // SAFETY: a zeroed set is valid, and alive during the calls.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set);
    }
}

fn turns(choice: EngineChoice) {
    let (mut engine, _) = open_engine(choice, 32).unwrap();
    let name = engine.name();
    let mut events = Vec::with_capacity(64);
    report(&format!("{name}: turn, polling, nothing to do"), "ns", || {
        time_each(100_000, || engine.turn(Wait::Poll, &mut events).unwrap())
    });
    let waker = engine.waker();
    report(&format!("{name}: wake oneself and turn"), "ns", || {
        time_each(50_000, || {
            waker.wake();
            engine.turn(Wait::Forever, &mut events).unwrap();
            events.clear();
        })
    });
    let (mut socket, mut peer) = UnixStream::pair().unwrap();
    let fd = socket.as_raw_fd();
    report(&format!("{name}: watch, write, turn, Ready, read"), "ns", || {
        time_each(50_000, || {
            engine.watch(0, fd, Interest::Read);
            peer.write_all(b"x").unwrap();
            while events.is_empty() {
                engine.turn(Wait::Forever, &mut events).unwrap();
            }
            events.clear();
            socket.read_exact(&mut [0]).unwrap();
        })
    });
    report("    of that, write and read alone", "ns", || {
        time_each(50_000, || {
            peer.write_all(b"x").unwrap();
            socket.read_exact(&mut [0]).unwrap();
        })
    });
}

#[derive(Clone)]
#[repr(align(4096))]
struct Block([u8; 4096]);

fn push_read(engine: &mut dyn Engine, fd: RawFd, slot: u32, block: u64, buffers: &mut [Block]) {
    let op = DiskOp {
        device: DeviceId(0),
        id: RequestId { slot, generation: 0 },
        fd,
        kind: DiskKind::Read,
        offset: block * 4096,
        len: 4096,
    };
    // SAFETY: file and buffers outlive the engine, and a slot's buffer has one read at a time.
    let pushed = unsafe {
        let span = Span::new(buffers[slot as usize].0.as_mut_ptr(), 4096);
        engine.push(op, &[span])
    };
    assert!(pushed, "there is room for the depth");
}

/// Random 4 KiB reads at `depth`: thousands a second, and CPU nanoseconds for each.
fn reads(engine: &mut dyn Engine, fd: RawFd, blocks: u64, depth: u32, count: u32) -> (f64, f64) {
    let mut prng = Prng::new(1);
    let mut buffers = vec![Block([0; 4096]); depth as usize];
    let mut events = Vec::with_capacity(depth as usize);
    let (start, cpu) = (Instant::now(), cpu_ns());
    for slot in 0..depth {
        push_read(engine, fd, slot, prng.below(blocks), &mut buffers);
    }
    let mut done = 0;
    let mut started = depth;
    while done < count {
        engine.turn(Wait::Forever, &mut events).unwrap();
        for event in events.drain(..) {
            let Event::Disk(end) = event else { continue };
            assert_eq!(end.result, 4096);
            done += 1;
            if started < count {
                push_read(engine, fd, end.id.slot, prng.below(blocks), &mut buffers);
                started += 1;
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let thousands = f64::from(count) / seconds / 1e3;
    (thousands, (cpu_ns() - cpu) / f64::from(count))
}

fn disk(folder: &str, flags: i32) {
    const BLOCKS: u64 = 1 << 16;
    let path = format!("{folder}/headworks-bench-{}", std::process::id());
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(true);
    let mut file = options.open(&path).unwrap();
    for _ in 0..BLOCKS / 256 {
        file.write_all(&vec![7; 1 << 20]).unwrap();
    }
    file.sync_all().unwrap();
    let direct = OpenOptions::new().read(true).custom_flags(flags).open(&path);
    fs::remove_file(&path).unwrap();
    let (file, how) = match direct {
        Ok(direct) if flags != 0 => (direct, "O_DIRECT"),
        _ => (file, "buffered"),
    };
    for (depth, count) in [(1, 5_000), (32, 40_000), (128, 40_000)] {
        for choice in [EngineChoice::Uring, EngineChoice::Threads] {
            let Ok((mut engine, _)) = open_engine(choice, 128) else {
                continue;
            };
            let what = format!("{}: {folder} {how} 4k randread, depth {depth}", engine.name());
            let mut cpu = Vec::new();
            report(&what, "k/s", || {
                let (rate, each) = reads(&mut *engine, file.as_raw_fd(), BLOCKS, depth, count);
                cpu.push(each);
                rate
            });
            cpu.sort_by(f64::total_cmp);
            println!("    CPU {:.0} ns each", cpu[RUNS / 2]);
        }
    }
}

/// Waits until woken, then wakes the other, `count` times.
fn play(engine: &mut dyn Engine, other: &Waker, count: u32) {
    let mut events = Vec::with_capacity(4);
    for _ in 0..count {
        while events.is_empty() {
            engine.turn(Wait::Forever, &mut events).unwrap();
        }
        events.clear();
        other.wake();
    }
}

/// Round trip between two sleeping engines, on the CPUs given.
fn ping_pong(choice: EngineChoice, cpus: [usize; 2], count: u32) -> f64 {
    let (to_main, from_thread) = std::sync::mpsc::channel();
    let (to_thread, from_main) = std::sync::mpsc::channel::<Waker>();
    let ready = Arc::new(Barrier::new(2));
    let at_barrier = Arc::clone(&ready);
    let other = thread::spawn(move || {
        pin(cpus[1]);
        let (mut engine, _) = open_engine(choice, 1).unwrap();
        to_main.send(engine.waker()).unwrap();
        let main = from_main.recv().unwrap();
        at_barrier.wait();
        play(&mut *engine, &main, count);
    });
    let here = thread::spawn(move || {
        pin(cpus[0]);
        let (mut engine, _) = open_engine(choice, 1).unwrap();
        to_thread.send(engine.waker()).unwrap();
        let thread = from_thread.recv().unwrap();
        ready.wait();
        let start = Instant::now();
        thread.wake();
        play(&mut *engine, &thread, count - 1);
        let mut events = Vec::new();
        while events.is_empty() {
            engine.turn(Wait::Forever, &mut events).unwrap();
        }
        start.elapsed().as_nanos() as f64 / f64::from(count)
    });
    let each = here.join().unwrap();
    other.join().unwrap();
    each / 1e3
}

fn messages() {
    let sleeper = std::sync::Arc::new(Sleeper::default());
    let (mut producer, mut consumer) = ring::<[u64; 6]>(1024, &sleeper);
    let (mut batch, mut out) = (Vec::with_capacity(32), Vec::with_capacity(32));
    for count in [1, 32] {
        let what = format!("ring: push and pop {count}, 48 bytes, each, one thread");
        report(&what, "ns", || {
            time_each(200_000, || {
                batch.resize(count, [1; 6]);
                let _ = std::hint::black_box(producer.push(&mut batch));
                out.clear();
                consumer.pop(32, &mut out);
            }) / count as f64
        });
    }
}

fn main() {
    let engines: Vec<_> = [EngineChoice::Uring, EngineChoice::Threads]
        .into_iter()
        .filter(|&choice| open_engine(choice, 1).is_ok())
        .collect();
    messages();
    for &choice in &engines {
        turns(choice);
    }
    for &choice in &engines {
        for (cpus, where_) in [([0, 0], "one CPU"), ([0, 1], "two CPUs")] {
            let name = open_engine(choice, 1).unwrap().0.name();
            let what = format!("{name}: wake and be woken, both asleep, {where_}");
            report(&what, "us", || ping_pong(choice, cpus, 5_000));
        }
    }
    disk("/dev/shm", 0);
    disk(std::env::temp_dir().to_str().unwrap_or("/tmp"), libc::O_DIRECT);
}
