//! Who asks, in the manner of fio: so many bios at a time, in batches, at places of a pattern.
//!
//! A job submits up to `batch_submit` bios together (one turn of the shard: one outermost plug), until `iodepth` are out. Then
//! it sleeps until `batch_complete` of them are answered, thinks, and fills up again. fio's psync is depth 1.

use headworks_core::prng::Prng;
use headworks_core::{Bio, BioFlags, BioId, ExportId, Instant, Ioprio, Op, VolumeId};

/// What a job asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobOptions {
    /// Read or write.
    pub op: Op,
    /// Of a hundred reads so many are writes instead, by chance.
    pub write_percent: u32,
    /// Random places, each aligned to `bs`; else one after the other.
    pub random: bool,
    /// Bytes of a bio.
    pub bs: u32,
    /// Bios out at a time.
    pub iodepth: u32,
    /// Bios that are submitted together.
    pub batch_submit: u32,
    /// Answers that it waits for when it may submit nothing more.
    pub batch_complete: u32,
    /// First byte of its part of the volume.
    pub start: u64,
    /// The byte after its part.
    pub end: u64,
    /// The way it came by.
    pub export: ExportId,
    /// Before whom it goes.
    pub ioprio: Ioprio,
    /// Between an answer and the next submission.
    pub think_ns: u64,
}

impl Default for JobOptions {
    fn default() -> Self {
        Self {
            op: Op::Read,
            write_percent: 0,
            random: true,
            bs: 4096,
            iodepth: 1,
            batch_submit: 1,
            batch_complete: 1,
            start: 0,
            end: 1 << 30,
            export: ExportId(0),
            ioprio: Ioprio::default(),
            think_ns: 0,
        }
    }
}

/// A job that runs. Its number is its connection.
#[derive(Debug)]
pub(super) struct Job {
    pub options: JobOptions,
    connection: u32,
    prng: Prng,
    /// When each bio that is out was submitted, by `sequence % iodepth`.
    submitted: Vec<Instant>,
    unused: Vec<u32>,
    issued: u64,
    next_at: u64,
    /// Answers since it last woke.
    answered: u32,
    /// It will submit without being woken.
    awake: bool,
}

impl Job {
    pub fn new(options: JobOptions, connection: u32, prng: Prng) -> Self {
        let (depth, bs) = (options.iodepth, u64::from(options.bs));
        assert!(depth > 0 && options.batch_submit > 0 && bs > 0, "a job asks for something");
        assert!(options.batch_complete <= depth, "a job waits for no more than is out");
        assert!(options.end >= options.start + bs, "a job has a place");
        Self {
            options,
            connection,
            prng,
            submitted: vec![Instant(0); depth as usize],
            unused: (0..depth).rev().collect(),
            issued: 0,
            next_at: options.start,
            answered: 0,
            awake: true,
        }
    }

    /// How many bios are out.
    pub fn out(&self) -> u32 {
        self.options.iodepth - self.unused.len() as u32
    }

    /// Its next batch; true if it goes on to submit another at once.
    pub fn submit(&mut self, now: Instant, mut take: impl FnMut(Bio)) -> bool {
        for _ in 0..self.options.batch_submit {
            let Some(slot) = self.unused.pop() else {
                break;
            };
            self.submitted[slot as usize] = now;
            let sequence = self.issued * u64::from(self.options.iodepth) + u64::from(slot);
            self.issued += 1;
            take(self.bio(sequence));
        }
        self.awake = !self.unused.is_empty();
        self.awake
    }

    fn bio(&mut self, sequence: u64) -> Bio {
        let options = &self.options;
        let bs = u64::from(options.bs);
        let offset = if options.random {
            options.start + self.prng.below((options.end - options.start) / bs) * bs
        } else {
            let at = if self.next_at + bs > options.end { options.start } else { self.next_at };
            self.next_at = at + bs;
            at
        };
        let writes =
            options.write_percent > 0 && self.prng.below(100) < options.write_percent.into();
        Bio {
            id: BioId {
                connection: self.connection,
                volume: VolumeId(0),
                export: options.export,
                sequence,
            },
            offset,
            len: options.bs,
            op: if writes { Op::Write } else { options.op },
            flags: BioFlags::SYNC,
            ioprio: options.ioprio,
        }
    }

    /// One of its bios is answered: how long it took, and whether the job wakes.
    pub fn answer(&mut self, now: Instant, sequence: u64) -> (u64, bool) {
        let slot = (sequence % u64::from(self.options.iodepth)) as u32;
        let took = now.since(self.submitted[slot as usize]);
        self.unused.push(slot);
        self.answered += 1;
        let wakes = !self.awake && self.answered >= self.options.batch_complete;
        if wakes {
            (self.awake, self.answered) = (true, 0);
        }
        (took, wakes)
    }
}
