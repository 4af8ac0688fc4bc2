//! Allocations of warm engines and rings: none for an operation, a watch, a wake-up or a message.
//!
//! The global allocator counts over all threads, the pool's included. The file has a single test, because concurrent tests
//! would allocate, too.

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};

use headworks::EngineChoice;
use headworks::driver::{DiskKind, DiskOp, Engine, Event, Interest, Span, Wait, open_engine};
use headworks::house::{Sleeper, ring};
use headworks_core::{DeviceId, RequestId};
use std::sync::Arc;

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: `System` does all the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // Relaxed: a counter; it is read after the counted operations have ended.
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Executes a batch of writes with one or several spans, a sync, a watch that fires and a wake-up.
fn round(engine: &mut dyn Engine, fd: i32, pair: &mut (UnixStream, UnixStream), spans: &[Span]) {
    let mut expected = 2;
    engine.watch(0, pair.0.as_raw_fd(), Interest::Read);
    pair.1.write_all(b"x").unwrap();
    engine.waker().wake();
    let sync = (DiskKind::Sync, 1..1);
    let write = DiskKind::Write { dsync: false };
    let writes = (0..60).map(|slot| (write, 0..1 + slot % spans.len()));
    for (slot, (kind, range)) in writes.chain([sync]).enumerate() {
        let op = DiskOp {
            device: DeviceId(0),
            id: RequestId { slot: slot as u32, generation: 0 },
            fd,
            kind,
            offset: slot as u64 * 65536,
            len: 0,
        };
        // SAFETY: the caller keeps file and memory until the operation has ended.
        assert!(unsafe { engine.push(op, &spans[range]) });
        expected += 1;
    }
    let mut events = EVENTS.take();
    while events.len() < expected {
        engine.turn(Wait::For(1_000_000_000), &mut events).unwrap();
    }
    assert!(events.contains(&Event::Woken) && events.contains(&Event::Ready { token: 0 }));
    events.clear();
    EVENTS.set(events);
    pair.0.read_exact(&mut [0]).unwrap();
}

thread_local! {
    /// Event buffer, reused by all rounds as in a reactor.
    static EVENTS: std::cell::Cell<Vec<Event>> = const { std::cell::Cell::new(Vec::new()) };
}

#[test]
fn warm_engines_and_rings_do_not_allocate() {
    let path = std::env::temp_dir().join(format!("headworks-alloc-{}", std::process::id()));
    let file = OpenOptions::new().write(true).create(true).truncate(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let mut memory = vec![1_u8; 16 * 4096];
    let spans: Vec<_> = memory
        .chunks_mut(4096)
        // SAFETY: the chunks outlive the operations.
        .map(|chunk| unsafe { Span::new(chunk.as_mut_ptr(), chunk.len()) })
        .collect();
    let mut pair = UnixStream::pair().unwrap();
    for choice in [EngineChoice::Uring, EngineChoice::Threads] {
        let Ok((mut engine, _)) = open_engine(choice, 64) else {
            continue; // Forbidden on this machine.
        };
        // A thread allocates when it first runs, possibly late. An operation that allocates does so in all ten stretches.
        let counts = (0..10).map(|_| {
            let before = ALLOCATIONS.load(Ordering::Relaxed);
            (0..100).for_each(|_| round(&mut *engine, file.as_raw_fd(), &mut pair, &spans));
            ALLOCATIONS.load(Ordering::Relaxed) - before
        });
        let counts: Vec<_> = counts.take_while(|&count| count > 0).collect();
        assert!(counts.len() < 10, "{}: {counts:?}", engine.name());
    }

    let (mut producer, mut consumer) = ring(64, &Arc::new(Sleeper::default()));
    let (mut batch, mut out) = (Vec::with_capacity(64), Vec::with_capacity(64));
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    for _ in 0..1000 {
        batch.extend(0..40);
        let _ = producer.push(&mut batch);
        consumer.pop(64, &mut out);
        out.clear();
    }
    assert_eq!(ALLOCATIONS.load(Ordering::Relaxed) - before, 0, "ring");
}
