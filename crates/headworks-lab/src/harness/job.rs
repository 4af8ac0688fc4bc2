//! Jobs in the manner of fio: a fixed depth, batches, and an access pattern.
//!
//! A job submits up to `batch_submit` bios together (one turn of the shard: one outermost plug)
//! until `iodepth` are outstanding. Then it sleeps until `batch_complete` of them are answered,
//! thinks, and submits again. fio's psync is depth 1.

use headworks_core::prng::Prng;
use headworks_core::{Bio, BioFlags, BioId, ExportId, Instant, Ioprio, Op, VolumeId};

/// Options of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobOptions {
    /// The operation of its bios.
    pub op: Op,
    /// Percentage of reads replaced by writes at random.
    pub write_percent: u32,
    /// Random offsets aligned to `bs`; otherwise sequential.
    pub random: bool,
    /// Bytes of each bio.
    pub bs: u32,
    /// Maximum number of outstanding bios.
    pub iodepth: u32,
    /// Number of bios submitted together.
    pub batch_submit: u32,
    /// Number of answers it waits for when it may submit no more.
    pub batch_complete: u32,
    /// First byte of its region.
    pub start: u64,
    /// The byte after its region.
    pub end: u64,
    /// The export that its bios belong to.
    pub export: ExportId,
    /// I/O priority of its bios.
    pub ioprio: Ioprio,
    /// Time between an answer and the next submission.
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

/// A job in progress; its index is its connection number.
#[derive(Debug)]
pub(super) struct Job {
    pub options: JobOptions,
    connection: u32,
    prng: Prng,
    /// Submission time of each outstanding bio, by `sequence % iodepth`.
    submitted: Vec<Instant>,
    unused: Vec<u32>,
    issued: u64,
    next_at: u64,
    /// Answers since the last wake-up.
    answered: u32,
    /// The job submits without a wake-up.
    awake: bool,
    /// Time of the last answer, or of the submission that ended a time without outstanding bios.
    unanswered_since: Instant,
    /// The longest time with outstanding bios and without an answer.
    unanswered_max_ns: u64,
    /// Time of the first submission.
    started: Instant,
}

impl Job {
    pub fn new(options: JobOptions, connection: u32, prng: Prng) -> Self {
        let (depth, bs) = (options.iodepth, u64::from(options.bs));
        assert!(
            depth > 0 && options.batch_submit > 0 && bs > 0,
            "a job has a depth, a batch and a size"
        );
        assert!(options.batch_complete <= depth, "a job waits for at most its depth");
        assert!(options.end >= options.start + bs, "a job has a region of at least one bio");
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
            unanswered_since: Instant(0),
            unanswered_max_ns: 0,
            started: Instant(0),
        }
    }

    /// Wait so far of the oldest outstanding bio.
    pub fn waiting_ns(&self, now: Instant) -> u64 {
        let mut out = vec![true; self.submitted.len()];
        self.unused.iter().for_each(|&slot| out[slot as usize] = false);
        let waits = self.submitted.iter().zip(out).filter(|(_, out)| *out);
        waits.map(|(&at, _)| now.since(at)).max().unwrap_or(0)
    }

    /// Whether the job got no answer for `bound_ns` while it had bios outstanding, or none at all
    /// since it started, if it started later.
    pub fn is_starved(&self, now: Instant, bound_ns: u64) -> bool {
        let bound = bound_ns.min(now.since(self.started));
        self.issued > 0 && self.unanswered_ns(now) >= bound
    }

    fn unanswered_ns(&self, now: Instant) -> u64 {
        let last = if self.out() > 0 { now.since(self.unanswered_since) } else { 0 };
        self.unanswered_max_ns.max(last)
    }

    /// Number of outstanding bios.
    pub fn out(&self) -> u32 {
        self.options.iodepth - self.unused.len() as u32
    }

    /// Submits the next batch; returns true if another follows at once.
    pub fn submit(&mut self, now: Instant, mut take: impl FnMut(Bio)) -> bool {
        if self.out() == 0 {
            self.unanswered_since = now;
        }
        if self.issued == 0 {
            self.started = now;
        }
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

    /// Handles an answer; returns its latency, and whether the job wakes up.
    pub fn answer(&mut self, now: Instant, sequence: u64) -> (u64, bool) {
        let slot = (sequence % u64::from(self.options.iodepth)) as u32;
        let took = now.since(self.submitted[slot as usize]);
        self.unanswered_max_ns = self.unanswered_ns(now);
        self.unanswered_since = now;
        self.unused.push(slot);
        self.answered += 1;
        let wakes = !self.awake && self.answered >= self.options.batch_complete;
        if wakes {
            (self.awake, self.answered) = (true, 0);
        }
        (took, wakes)
    }
}
