//! Jobs in the manner of fio: a fixed depth, batches, and an access pattern.
//!
//! A job submits up to `batch_submit` bios together (one turn of the shard: one outermost plug)
//! until `iodepth` are outstanding. Then it sleeps until `batch_complete` of them are answered,
//! thinks, and submits again. fio's psync is depth 1.
//!
//! A job with a period submits one bio each period, whatever is answered. A job with a program starts it again and again, with a
//! rest of `think_ns` between two starts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use headworks_core::prng::Prng;
use headworks_core::{Bio, BioFlags, BioId, ExportId, Instant, Ioprio, Op, VolumeId};

use super::program::{Program, ProgramRead};

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
    /// The volume that its bios belong to; volumes are equal parts of the device.
    pub volume: u16,
    /// A flush follows so many bios; 0: none.
    pub flush_every: u32,
    /// Its bios are written through the device's cache.
    pub fua: bool,
    /// The export that its bios belong to.
    pub export: ExportId,
    /// I/O priority of its bios.
    pub ioprio: Ioprio,
    /// Time between an answer and the next submission; between two starts of a program.
    pub think_ns: u64,
    /// Whether its bios are synchronous.
    pub sync: bool,
    /// Time between two submissions of an open loop of up to `iodepth` bios; 0: a closed loop.
    pub period_ns: u64,
    /// Time of the first submission; 0: staggered by the number of the job.
    pub start_ns: u64,
    /// Jobs with the same number take the blocks of one sequential stream in turn; 0: a stream of its own.
    pub stream: u32,
    /// The program that it starts, with `iodepth` of at least its depth.
    pub program: Option<Program>,
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
            volume: 0,
            flush_every: 0,
            fua: false,
            export: ExportId(0),
            ioprio: Ioprio::default(),
            think_ns: 0,
            sync: true,
            period_ns: 0,
            start_ns: 0,
            stream: 0,
            program: None,
        }
    }
}

impl JobOptions {
    /// A job that starts a program in `start..end`.
    #[must_use]
    pub fn starting(program: Program, start: u64, end: u64, think_ns: u64) -> Self {
        let iodepth = program.depth();
        Self { iodepth, program: Some(program), start, end, think_ns, ..Self::default() }
    }

    /// The time of the first submission of job `number`: staggered, as a thousand threads do not start at once.
    pub(crate) fn first_at(&self, number: u32) -> Instant {
        Instant(if self.start_ns > 0 { self.start_ns } else { u64::from(number) * 1_000 })
    }
}

/// A start of a program.
#[derive(Debug, Default)]
struct ProgramStart {
    reads: Vec<ProgramRead>,
    /// Reads submitted of the present start.
    submitted: usize,
    began: Instant,
}

/// What an answer means for a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AnswerOutcome {
    /// Latency of the answer.
    pub took_ns: u64,
    /// Bytes of the answered bio.
    pub bytes: u32,
    /// Time until the job submits again.
    pub wakes_after_ns: Option<u64>,
    /// Time that a program's start took, if the answer ends it.
    pub started_in_ns: Option<u64>,
}

/// A job in progress; its index is its connection number.
#[derive(Debug)]
pub(crate) struct Job {
    pub options: JobOptions,
    connection: u32,
    prng: Prng,
    /// Submission time of each outstanding bio, by `sequence % iodepth`.
    submitted: Vec<Instant>,
    /// Bytes of each outstanding bio.
    lens: Vec<u32>,
    unused: Vec<u32>,
    issued: u64,
    /// Bios since the last flush.
    unflushed: u32,
    /// Position of a sequential stream, which several jobs may share. Relaxed: the jobs of a stream take turns in one thread; a job
    /// on a kernel's device moves between threads, one after the other.
    next_at: Arc<AtomicU64>,
    program: ProgramStart,
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
    /// The jobs of a run, numbered in their order; `seed` decides their random offsets.
    pub fn all(seed: u64, options: Vec<JobOptions>) -> Vec<Self> {
        let root = Prng::new(seed).split("jobs");
        let jobs = (0u32..).zip(options).map(|(number, options)| {
            Self::new(options, number, Prng::new(root.clone().next() ^ u64::from(number)))
        });
        let mut jobs: Vec<Self> = jobs.collect();
        for index in 1..jobs.len() {
            let (before, rest) = jobs.split_at_mut(index);
            let number = rest[0].options.stream;
            let first = before.iter().find(|job| number > 0 && job.options.stream == number);
            first.into_iter().for_each(|first| rest[0].share_stream(first));
        }
        jobs
    }

    fn new(options: JobOptions, connection: u32, prng: Prng) -> Self {
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
            lens: vec![0; depth as usize],
            unused: (0..depth).rev().collect(),
            issued: 0,
            unflushed: 0,
            next_at: Arc::new(AtomicU64::new(options.start)),
            program: ProgramStart {
                reads: options.program.map(|program| program.list()).unwrap_or_default(),
                ..ProgramStart::default()
            },
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

    /// Makes the job continue the stream of another.
    fn share_stream(&mut self, other: &Self) {
        self.next_at = Arc::clone(&other.next_at);
    }

    /// Time so far of a program's start that has not ended.
    pub fn unfinished_ns(&self, now: Instant) -> u64 {
        if self.program.submitted == 0 { 0 } else { now.since(self.program.began) }
    }

    /// Submits what it may; returns the time of its next submission that waits for no answer.
    pub fn submit(&mut self, now: Instant, mut take: impl FnMut(Bio)) -> Option<Instant> {
        if self.out() == 0 {
            self.unanswered_since = now;
        }
        if self.issued == 0 {
            self.started = now;
        }
        if self.options.program.is_some() {
            self.submit_program(now, take);
            return None;
        }
        let period_ns = self.options.period_ns;
        let batch = if period_ns > 0 { 1 } else { self.options.batch_submit };
        for _ in 0..batch {
            let Some(slot) = self.unused.pop() else {
                break;
            };
            let flush_every = self.options.flush_every;
            if flush_every > 0 && self.unflushed == flush_every {
                if self.out() > 1 {
                    // Its flush covers what was answered: it waits for the rest.
                    self.unused.push(slot);
                    self.awake = false;
                    return None;
                }
                self.unflushed = 0;
                take(self.flush(now, slot));
                break;
            }
            self.unflushed += 1;
            let offset = self.next_offset();
            take(self.bio(now, slot, offset, self.options.bs));
        }
        if period_ns > 0 {
            return Some(now.after(period_ns));
        }
        self.awake = !self.unused.is_empty();
        self.awake.then_some(now)
    }

    /// Submits the next read of the program with the read-ahead behind it.
    fn submit_program(&mut self, now: Instant, mut take: impl FnMut(Bio)) {
        if self.program.submitted == 0 {
            self.program.began = now;
        }
        while let Some(&read) = self.program.reads.get(self.program.submitted) {
            if read.waits && self.out() > 0 {
                break;
            }
            let slot = self.unused.pop().expect("the depth is that of the program");
            let len = u64::from(read.len);
            let mut offset = self.next_at.load(Ordering::Relaxed);
            if read.far || offset + len > self.options.end {
                let blocks = (self.options.end - self.options.start - len) / 4096;
                offset = self.options.start + self.prng.below(blocks + 1) * 4096;
            }
            self.next_at.store(offset + len, Ordering::Relaxed);
            self.program.submitted += 1;
            take(self.bio(now, slot, offset, read.len));
        }
    }

    fn next_offset(&mut self) -> u64 {
        let options = &self.options;
        let bs = u64::from(options.bs);
        if options.random {
            return options.start + self.prng.below((options.end - options.start) / bs) * bs;
        }
        let at = self.next_at.load(Ordering::Relaxed);
        let at = if at + bs > options.end { options.start } else { at };
        self.next_at.store(at + bs, Ordering::Relaxed);
        at
    }

    fn flush(&mut self, now: Instant, slot: u32) -> Bio {
        Bio { op: Op::Flush, flags: BioFlags::NONE, ..self.bio(now, slot, 0, 0) }
    }

    fn bio(&mut self, now: Instant, slot: u32, offset: u64, len: u32) -> Bio {
        self.submitted[slot as usize] = now;
        self.lens[slot as usize] = len;
        let sequence = self.issued * u64::from(self.options.iodepth) + u64::from(slot);
        self.issued += 1;
        let options = &self.options;
        let writes =
            options.write_percent > 0 && self.prng.below(100) < options.write_percent.into();
        Bio {
            id: BioId {
                connection: self.connection,
                volume: VolumeId(options.volume),
                export: options.export,
                sequence,
            },
            offset,
            len,
            op: if writes { Op::Write } else { options.op },
            flags: {
                let sync = if options.sync { BioFlags::SYNC } else { BioFlags::NONE };
                if options.fua { sync.with(BioFlags::FUA) } else { sync }
            },
            ioprio: options.ioprio,
        }
    }

    /// Handles the answer to a bio.
    pub fn answer(&mut self, now: Instant, sequence: u64) -> AnswerOutcome {
        let slot = (sequence % u64::from(self.options.iodepth)) as u32;
        let took_ns = now.since(self.submitted[slot as usize]);
        let bytes = self.lens[slot as usize];
        self.unanswered_max_ns = self.unanswered_ns(now);
        self.unanswered_since = now;
        self.unused.push(slot);
        let outcome = AnswerOutcome { took_ns, bytes, ..AnswerOutcome::default() };
        if self.options.program.is_some() {
            return self.answer_program(now, outcome);
        }
        self.answered += 1;
        let wakes = !self.awake
            && self.options.period_ns == 0
            && self.answered >= self.options.batch_complete;
        if wakes {
            (self.awake, self.answered) = (true, 0);
        }
        AnswerOutcome { wakes_after_ns: wakes.then_some(self.options.think_ns), ..outcome }
    }

    fn answer_program(&mut self, now: Instant, outcome: AnswerOutcome) -> AnswerOutcome {
        if self.out() > 0 {
            return outcome;
        }
        if self.program.submitted < self.program.reads.len() {
            return AnswerOutcome { wakes_after_ns: Some(0), ..outcome };
        }
        self.program.submitted = 0;
        AnswerOutcome {
            wakes_after_ns: Some(self.options.think_ns),
            started_in_ns: Some(now.since(self.program.began)),
            ..outcome
        }
    }
}
