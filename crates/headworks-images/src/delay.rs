//! `delay:` makes a device slower, to see how what is above copes.
//!
//! A command waits here first and is then given to the device below, so a read sees what was written while it waited, and
//! nothing is acknowledged before it is done. The waits of different commands overlap: this is latency, not bandwidth.
//! With `jitter` each wait is longer by a random time from 0 up to it, so commands overtake each other as on a real disk.
//!
//! ```text
//!   submit --no wait-----------------------------> device below --> completion
//!      `----> held (heap by due time) --on_timeout----^
//! ```
//!
//! Bounded: at most [`HELD_MAX`] commands are held, one more is `Busy`. Commands that are due together go down as one batch.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use headworks_core::prng::Prng;
use headworks_core::{Instant, IoError, Op};

use headworks::driver::{DiskDone, Span};
use headworks::{Command, CommandBatch, Device, DeviceIo};

/// The largest `queue_depth` there is.
const HELD_MAX: usize = 4096;

/// How long commands wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DelayOptions {
    /// By operation, in the order of their codes.
    pub wait_ns: [u64; Op::COUNT],
    /// A random time from 0 to this comes on top of each wait that is not 0.
    pub jitter_ns: u64,
    /// Of the random times.
    pub seed: u64,
}

/// A device that holds commands back.
pub struct DelayDevice {
    options: DelayOptions,
    below: Box<dyn Device>,
    prng: Prng,
    /// Slots of held commands; their span lists keep their memory from use to use.
    held: Vec<Held>,
    free: Vec<u32>,
    /// Due time, order of arrival, slot.
    due: BinaryHeap<Reverse<(Instant, u64, u32)>>,
    arrivals: u64,
    /// Scratch for a batch that has become due.
    commands: Vec<Command>,
    spans: Vec<Span>,
}

struct Held {
    command: Command,
    spans: Vec<Span>,
}

impl DelayDevice {
    /// Delays what `below` is given.
    #[must_use]
    pub fn new(options: DelayOptions, below: Box<dyn Device>) -> Self {
        Self {
            options,
            below,
            prng: Prng::new(options.seed),
            held: Vec::with_capacity(HELD_MAX),
            free: Vec::with_capacity(HELD_MAX),
            due: BinaryHeap::with_capacity(HELD_MAX),
            arrivals: 0,
            commands: Vec::with_capacity(256),
            spans: Vec::with_capacity(1024),
        }
    }

    fn wait_ns(&mut self, op: Op) -> u64 {
        let wait = self.options.wait_ns[op as usize];
        match wait {
            0 => 0,
            _ => wait + self.prng.between(0, self.options.jitter_ns),
        }
    }

    /// Keeps a command until `at`; false when too many are kept.
    fn hold(&mut self, at: Instant, command: &Command, spans: &[Span]) -> bool {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.held.len() < HELD_MAX => {
                let spans = Vec::new();
                let command = *command;
                self.held.push(Held { command, spans });
                (self.held.len() - 1) as u32
            }
            None => return false,
        };
        let held = &mut self.held[slot as usize];
        held.command = *command;
        held.spans.clear();
        held.spans.extend_from_slice(spans);
        self.arrivals += 1;
        self.due.push(Reverse((at, self.arrivals, slot)));
        true
    }

    /// Gives everything that is due to the device below, as one batch.
    fn release(&mut self, now: Instant, io: &mut DeviceIo<'_>) {
        while let Some(&Reverse((at, _, slot))) = self.due.peek()
            && at <= now
        {
            self.due.pop();
            self.free.push(slot);
            let held = &self.held[slot as usize];
            self.commands.push(Command { first_span: self.spans.len() as u32, ..held.command });
            self.spans.extend_from_slice(&held.spans);
        }
        if self.commands.is_empty() {
            return;
        }
        let batch = CommandBatch { commands: &self.commands, spans: &self.spans };
        // SAFETY: the promise made when these commands were submitted holds until their completion, which is still to come.
        unsafe { self.below.submit(now, batch, io) };
        self.commands.clear();
        self.spans.clear();
    }
}

impl Device for DelayDevice {
    unsafe fn submit(&mut self, now: Instant, batch: CommandBatch<'_>, io: &mut DeviceIo<'_>) {
        // Commands that do not wait go down in runs, as they came.
        let mut run = 0;
        for (index, command) in batch.commands.iter().enumerate() {
            let wait = self.wait_ns(command.op);
            if wait == 0 {
                continue;
            }
            if let Some(part) = batch.part(run..index) {
                // SAFETY: the caller's promise, passed on.
                unsafe { self.below.submit(now, part, io) };
            }
            run = index + 1;
            if !self.hold(now.after(wait), command, batch.spans_of(command)) {
                io.completions.push(command.failed(IoError::Busy));
            }
        }
        if let Some(rest) = batch.part(run..batch.commands.len()) {
            // SAFETY: as above.
            unsafe { self.below.submit(now, rest, io) };
        }
    }

    fn on_disk(&mut self, now: Instant, done: DiskDone, io: &mut DeviceIo<'_>) {
        self.below.on_disk(now, done, io);
    }

    fn on_ready(&mut self, now: Instant, place: u16, io: &mut DeviceIo<'_>) {
        self.below.on_ready(now, place, io);
    }

    fn on_timeout(&mut self, now: Instant, io: &mut DeviceIo<'_>) {
        self.release(now, io);
        if self.below.next_timeout().is_some_and(|at| at <= now) {
            self.below.on_timeout(now, io);
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        let due = self.due.peek().map(|&Reverse((at, ..))| at);
        due.into_iter().chain(self.below.next_timeout()).min()
    }

    fn below(&mut self) -> Option<&mut dyn Device> {
        Some(&mut *self.below)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks::{MemDevice, NullDevice};
    use headworks_core::BioFlags;
    use headworks_testing::{Bench, against_model};

    const NONE: BioFlags = BioFlags::NONE;

    fn options(read: u64, write: u64, jitter_ns: u64) -> DelayOptions {
        let mut options = DelayOptions { jitter_ns, seed: 1, ..DelayOptions::default() };
        options.wait_ns[Op::Read as usize] = read;
        options.wait_ns[Op::Write as usize] = write;
        options
    }

    #[test]
    fn each_operation_waits_for_its_own_delay() {
        let delay = DelayDevice::new(options(500, 70, 0), Box::new(NullDevice));
        let mut bench = Bench::new(delay);
        let start = bench.now;
        let (read, write) =
            (bench.submit(Op::Read, NONE, 0, 4096), bench.submit(Op::Write, NONE, 0, 4096));
        let flush = bench.submit(Op::Flush, NONE, 0, 0);
        let ids =
            |bench: &Bench<_>| bench.completions.iter().map(|done| done.id).collect::<Vec<_>>();
        assert_eq!(ids(&bench), [flush], "a flush does not wait here");
        assert!(bench.step());
        assert_eq!((ids(&bench), bench.now.since(start)), (vec![flush, write], 70));
        assert!(bench.step());
        assert_eq!((ids(&bench), bench.now.since(start)), (vec![flush, write, read], 500));
        assert!(!bench.step());
    }

    #[test]
    fn command_is_not_released_before_its_delay() {
        let mut bench = Bench::new(DelayDevice::new(options(500, 0, 0), Box::new(NullDevice)));
        bench.submit(Op::Read, NONE, 0, 4096);
        let (mut completions, mut disk) = (Vec::new(), headworks_testing::TestDisk::default());
        let mut io = DeviceIo {
            device: headworks_core::DeviceId(0),
            completions: &mut completions,
            disk: &mut disk,
            lost: &mut Vec::new(),
        };
        let due = bench.now.after(500);
        bench.device_mut().on_timeout(Instant(due.0 - 1), &mut io);
        assert!(io.completions.is_empty());
        bench.device_mut().on_timeout(due, &mut io);
        assert_eq!(io.completions.len(), 1);
    }

    #[test]
    fn data_are_transferred_after_the_delay() {
        let delay = DelayDevice::new(options(500, 0, 0), Box::new(MemDevice::new(4096).unwrap()));
        let mut bench = Bench::new(delay);
        bench.submit(Op::Read, NONE, 0, 512);
        let mut stamp = [9u8; 512];
        // SAFETY: `stamp` outlives the command.
        let spans = [unsafe { Span::new(stamp.as_mut_ptr(), 512) }];
        bench.submit_spans(Op::Write, NONE, 0, 512, &spans);
        assert_eq!(bench.drain().len(), 2);
        assert_eq!(bench.buffer()[..512], stamp);
    }

    #[test]
    fn commands_due_together_keep_their_own_data() {
        let mem = MemDevice::new(1 << 20).unwrap();
        let delay = DelayDevice::new(options(0, 500, 0), Box::new(mem));
        let mut bench = Bench::new(delay);
        let mut bytes: Vec<u8> = (0..8).flat_map(|value| [value; 512]).collect();
        for index in 0..8 {
            let at = &mut bytes[index * 512..(index + 1) * 512];
            let halves = [at.as_mut_ptr(), at[256..].as_mut_ptr()];
            // SAFETY: halves of a buffer that outlives the command.
            let spans = halves.map(|base| unsafe { Span::new(base, 256) });
            bench.submit_spans(Op::Write, NONE, index as u64 * 512, 512, &spans);
        }
        assert!(bench.step());
        assert_eq!(bench.completions.len(), 8, "one step of time releases them all");
        bench.drain();
        bench.run(Op::Read, NONE, 0, 4096);
        assert_eq!(bench.buffer()[..4096], bytes);
    }

    #[test]
    fn jitter_stays_in_range_and_repeats_with_seed() {
        let waits = || {
            let mut delay = DelayDevice::new(options(1000, 0, 300), Box::new(NullDevice));
            (0..500).map(|_| delay.wait_ns(Op::Read)).collect::<Vec<_>>()
        };
        let first = waits();
        assert!(first.iter().all(|wait| (1000..=1300).contains(wait)));
        assert!(first.iter().any(|&wait| wait < 1050) && first.iter().any(|&wait| wait > 1250));
        assert_eq!(first, waits());
    }

    #[test]
    fn random_commands_match_vector_model() {
        let mem = MemDevice::new(1 << 20).unwrap();
        let options = DelayOptions { wait_ns: [5; Op::COUNT], ..options(0, 0, 9) };
        let mut bench = Bench::new(DelayDevice::new(options, Box::new(mem)));
        against_model(&mut bench, 3, 1 << 20, 512, 300);
    }

    #[test]
    fn held_commands_are_bounded_and_slots_are_reused() {
        let mut bench = Bench::new(DelayDevice::new(options(9, 0, 5), Box::new(NullDevice)));
        for _ in 0..3 {
            for _ in 0..HELD_MAX + 3 {
                bench.submit(Op::Read, BioFlags::HOLE_OK, 0, 4096);
            }
            let done = bench.drain();
            assert_eq!(done.len(), HELD_MAX + 3);
            let busy = |done: &&headworks_core::Completion| done.status == Err(IoError::Busy);
            assert_eq!(done.iter().filter(busy).count(), 3);
        }
        assert_eq!(bench.device().held.capacity(), HELD_MAX);
    }

    #[test]
    fn delays_of_nested_devices_add_up() {
        let below = DelayDevice::new(options(300, 0, 0), Box::new(NullDevice));
        let mut bench = Bench::new(DelayDevice::new(options(40, 0, 0), Box::new(below)));
        let start = bench.now;
        assert_eq!(bench.run(Op::Read, NONE, 0, 4096).status, Ok(()));
        assert_eq!(bench.now.since(start), 340);
    }
}
