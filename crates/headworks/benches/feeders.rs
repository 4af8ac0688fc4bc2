//! Cached 4 KiB reads by one feeder, by two of one owner, and by two with an owner each, which share nothing: what a read without the
//! right to drive could gain at most.
//!
//! Reads that copy through a slot, one at a time and in batches of 8; reads in place; reads in place that are copied before they are given
//! back. Two threads are on CPU 0 and 1. Cells run in turn; each is least / median / most of the runs. CPU time is the measure on a
//! machine that does other work, too.
//!
//! ```text
//! cargo bench -p headworks --bench feeders -- [MIB] [RUNS]
//! ```

use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use headworks::headworks_core::VolumeId;
use headworks::headworks_core::prng::Prng;
use headworks::house::pin_thread;
use headworks::{
    CacheOptions, DeviceSetup, Handle, Io, NotLent, NullDevice, Owner, OwnerOptions, VolumeOptions,
};

const BLOCK: usize = 4096;
const FILL: usize = 1 << 20;
const RUN: Duration = Duration::from_millis(200);

/// A handle, its volume, and the blocks of that.
struct Feeder {
    handle: Handle,
    volume: VolumeId,
    blocks: u64,
    prng: Prng,
}

#[derive(Clone, Copy)]
enum Kind {
    Slots { batch: usize },
    Lent { copies: bool },
}

const KINDS: [(&str, Kind); 4] = [
    ("copied, one at a time", Kind::Slots { batch: 1 }),
    ("copied, batches of 8", Kind::Slots { batch: 8 }),
    ("in place", Kind::Lent { copies: false }),
    ("in place, then copied", Kind::Lent { copies: true }),
];

/// An owner over a null device with `size` bytes in its cache.
fn start(handles: usize, size: u64) -> (Owner, Vec<Feeder>) {
    let blocks = size / BLOCK as u64;
    let cache = CacheOptions { units: (blocks * 5 / 4) as u32, ..CacheOptions::default() };
    let options = OwnerOptions { handles, slot_bytes: FILL, cache, ..OwnerOptions::default() };
    let (owner, handles) = Owner::start(options).unwrap();
    let device = DeviceSetup::new(NullDevice, NullDevice::queue_options());
    let device = owner.add_device(device).unwrap();
    let volume = VolumeOptions { size, block_size: 512, ..VolumeOptions::default() };
    let volume = owner.add_volume(device, volume).unwrap();
    let feeder = |(seed, handle)| Feeder { handle, volume, blocks, prng: Prng::new(seed) };
    let mut feeders: Vec<Feeder> = (1..).zip(handles).map(feeder).collect();
    let first = &mut feeders[0];
    let writes = (0..size).step_by(FILL).map(|offset| Io::write(offset, FILL as u32));
    // Written out, so that no flusher runs beside the reads.
    writes.chain([Io::flush()]).for_each(|io| first.run(&[io]));
    (owner, feeders)
}

impl Feeder {
    fn run(&mut self, batch: &[Io]) {
        for &io in batch {
            let slot = self.handle.slot().unwrap();
            self.handle.put(self.volume, slot, io).unwrap();
        }
        let mut completions = Vec::with_capacity(batch.len());
        self.handle.submit();
        while completions.len() < batch.len() {
            if self.handle.reap(batch.len(), &mut completions) == 0 {
                self.handle.wait();
            }
        }
        for completion in completions {
            completion.status.unwrap();
            self.handle.release(completion.slot.unwrap());
        }
    }

    fn read(&mut self, kind: Kind, buffer: &mut [u8]) -> u64 {
        let Self { blocks, prng, .. } = self;
        let mut offset = || prng.below(*blocks) * BLOCK as u64;
        match kind {
            Kind::Slots { batch } => {
                let batch: Vec<Io> = (0..batch).map(|_| Io::read(offset(), BLOCK as u32)).collect();
                self.run(&batch);
                batch.len() as u64
            }
            Kind::Lent { copies } => {
                let offset = offset();
                loop {
                    match self.handle.lend(self.volume, offset, BLOCK as u32) {
                        Ok(bytes) if copies => buffer.copy_from_slice(bytes.as_slice().unwrap()),
                        Ok(bytes) => _ = black_box(bytes.as_slice()),
                        Err(NotLent::Busy) => continue,
                        Err(NotLent::NotInMemory) => panic!("all blocks are cached"),
                    }
                    black_box(&mut *buffer);
                    return 1;
                }
            }
        }
    }

    /// Reads for a while on a CPU; returns the reads and the CPU time.
    fn measure(&mut self, kind: Kind, cpu: usize, begin: &Barrier) -> (u64, u64) {
        pin_thread(cpu);
        let (mut reads, mut buffer) = (0, vec![0; BLOCK]);
        begin.wait();
        let (end, before) = (Instant::now() + RUN, thread_cpu_ns());
        while Instant::now() < end {
            reads += (0..16).map(|_| self.read(kind, &mut buffer)).sum::<u64>();
        }
        (reads, thread_cpu_ns() - before)
    }
}

fn thread_cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills the struct it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Million reads a second and CPU time in ns for a read of feeders that run at once.
fn measure(feeders: &mut [&mut Feeder], kind: Kind) -> (f64, f64) {
    let begin = Barrier::new(feeders.len());
    let (mut reads, mut cpu) = (0, 0);
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (on, feeder) in feeders.iter_mut().enumerate() {
            let begin = &begin;
            threads.push(scope.spawn(move || feeder.measure(kind, on, begin)));
        }
        for thread in threads {
            let (some, spent) = thread.join().unwrap();
            (reads, cpu) = (reads + some, cpu + spent);
        }
    });
    (reads as f64 / RUN.as_secs_f64() / 1e6, cpu as f64 / reads as f64)
}

fn spread(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [values[0], values[values.len() / 2], values[values.len() - 1]]
}

fn main() {
    let mut numbers = std::env::args().filter_map(|word| word.parse::<u64>().ok());
    let (mib, runs) = (numbers.next().unwrap_or(64), numbers.next().unwrap_or(9));
    let (_both, mut of_both) = start(2, mib << 20);
    let (_other, mut of_other) = start(1, mib << 20);
    let mut cells = vec![(Vec::new(), Vec::new()); KINDS.len() * 3];
    for _ in 0..runs {
        for (index, (_, kind)) in KINDS.into_iter().enumerate() {
            let [first, second] = &mut of_both[..] else { return };
            let results = [
                measure(&mut [&mut *first], kind),
                measure(&mut [&mut *first, second], kind),
                measure(&mut [first, &mut of_other[0]], kind),
            ];
            for (cell, (rate, cpu)) in cells[3 * index..].iter_mut().zip(results) {
                cell.0.push(rate);
                cell.1.push(cpu);
            }
        }
    }
    println!("{mib} MiB, {runs} runs: M reads a second, ns of CPU for a read");
    let who = ["one feeder", "two, one owner", "two, an owner each"];
    for (index, (rates, cpu)) in cells.into_iter().enumerate() {
        let ([a, b, c], [d, e, f]) = (spread(rates), spread(cpu));
        let (what, who) = (KINDS[index / 3].0, who[index % 3]);
        println!("{what:24} {who:20} {a:5.2} / {b:5.2} / {c:5.2}   {d:5.0} / {e:5.0} / {f:5.0}");
    }
}
