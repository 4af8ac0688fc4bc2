//! A test bed for a tag policy alone: jobs that submit bios of some pieces, and a device of some slots and a constant latency.
//!
//! A job is a thread: while a bio of it waits for a tag it submits nothing else. What has a tag and no slot waits in order. The
//! device answers one command after the other, `latency / slots` apart, as one with a link or a head does.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use headworks_core::Instant;
use headworks_core::bio::ExportId;
use headworks_core::tags::{ByteBudget, Grant, Requester, ReturnedTags, TagOwner, TagRequest};

/// What runs on the bed.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub jobs: u32,
    /// Jobs, the first of all, for which nobody waits.
    pub asyncs: u32,
    /// Bios of a job at once.
    pub iodepth: u32,
    pub pieces: u16,
    /// Bios of a job in all.
    pub bios: u32,
    pub slots: usize,
    pub latency_ns: u64,
    /// From a bio's end to the job's next bio.
    pub think_ns: u64,
}

impl Default for Load {
    fn default() -> Self {
        Self {
            jobs: 512,
            asyncs: 0,
            iodepth: 1,
            pieces: 8,
            bios: u32::MAX,
            slots: 32,
            latency_ns: 1_000_000,
            think_ns: 20_000,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The device finished a piece of that job.
    Done(u32),
    /// The job looks whether it may submit.
    Submit(u32),
}

#[derive(Clone, Copy, Debug, Default)]
struct Job {
    left: u32,
    /// Bios submitted and not finished; their pieces finish in any order, so only the number counts.
    pieces_out: u32,
    /// Tags that its waiting bio still needs.
    owed: u16,
}

/// The bed, at some point of time.
pub struct Bed<T> {
    pub tags: T,
    pub now: u64,
    load: Load,
    jobs: Vec<Job>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    sequence: u64,
    slots_used: usize,
    answered_at: u64,
    line: VecDeque<u32>,
    last: Option<u32>,
    /// Pieces that got a tag, and those of them that followed a piece of the same job.
    pub grants: u64,
    pub sequential: u64,
    pub finished: u64,
}

impl<T: TagOwner> Bed<T> {
    pub fn new(tags: T, load: Load) -> Self {
        let mut bed = Self {
            tags,
            now: 0,
            load,
            jobs: vec![Job { left: load.bios, ..Job::default() }; load.jobs as usize],
            events: BinaryHeap::new(),
            sequence: 0,
            slots_used: 0,
            answered_at: 0,
            line: VecDeque::new(),
            last: None,
            grants: 0,
            sequential: 0,
            finished: 0,
        };
        (0..load.jobs).for_each(|job| bed.push(u64::from(job) * 1_000, Event::Submit(job)));
        bed
    }

    /// Runs until nothing will ever happen again.
    pub fn run_out(&mut self) {
        while let Some(next) = self.next() {
            self.step(next);
        }
    }

    /// Runs until `until`; false if nothing will ever happen again.
    pub fn run(&mut self, until: u64) -> bool {
        while let Some(next) = self.next().filter(|&next| next <= until) {
            self.step(next);
        }
        self.now = until;
        self.next().is_some()
    }

    fn next(&self) -> Option<u64> {
        let own = self.events.peek().map(|&Reverse((at, ..))| at);
        own.into_iter().chain(self.tags.next_timeout().map(|at| at.0)).min()
    }

    fn step(&mut self, next: u64) {
        self.now = self.now.max(next);
        while let Some(&Reverse((at, _, event))) = self.events.peek()
            && at <= self.now
        {
            self.events.pop();
            match event {
                Event::Done(job) => self.done(job),
                Event::Submit(job) => self.submit(job),
            }
        }
        while let Some(grant) = self.tags.next_grant(Instant(self.now), ByteBudget::Available) {
            self.grant(grant);
        }
    }

    /// Sleepers, nothing in flight, no event pending.
    pub fn hangs(&self) -> bool {
        self.tags.waiters() > 0
            && self.tags.free() == self.tags.depth()
            && self.tags.next_timeout().is_none()
            && self.events.is_empty()
    }

    /// The part of the pieces that got their tag right after another of the same bio.
    pub fn sequential_ratio(&self) -> f64 {
        self.sequential as f64 / self.grants as f64
    }

    pub fn forget(&mut self) {
        (self.grants, self.sequential) = (0, 0);
    }

    fn push(&mut self, at: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((at, self.sequence, event)));
    }

    fn submit(&mut self, number: u32) {
        let Load { pieces, iodepth, .. } = self.load;
        let job = &mut self.jobs[number as usize];
        let most = u32::from(pieces) * iodepth;
        if job.left == 0 || job.owed > 0 || job.pieces_out + u32::from(pieces) > most {
            return;
        }
        job.left -= 1;
        let want = self.tags.tags_for(pieces.into());
        (job.owed, job.pieces_out) = (want, job.pieces_out + u32::from(pieces));
        let ask = TagRequest {
            requester: Requester::Request(number),
            tags: want,
            bytes: u32::from(pieces) << 17,
            sync: number >= self.load.asyncs,
            connection: number,
            export: ExportId(0),
            weight: 100,
        };
        assert_eq!(self.tags.request(Instant(self.now), &[ask], 1), 0, "the baselines grant later");
    }

    fn grant(&mut self, grant: Grant) {
        let Requester::Request(number) = grant.requester else { panic!("only requests are here") };
        assert_eq!(grant.tags, 1, "tag by tag");
        let job = &mut self.jobs[number as usize];
        assert!(job.owed > 0, "no more than was asked for");
        job.owed -= 1;
        self.grants += 1;
        self.sequential += u64::from(self.last == Some(number));
        self.last = Some(number);
        if job.owed == 0 {
            // The thread is free to submit its next one.
            self.push(self.now + self.load.think_ns, Event::Submit(number));
        }
        self.line.push_back(number);
        self.fill();
    }

    fn fill(&mut self) {
        while self.slots_used < self.load.slots
            && let Some(job) = self.line.pop_front()
        {
            self.slots_used += 1;
            let apart = self.load.latency_ns / self.load.slots as u64;
            self.answered_at = (self.now + self.load.latency_ns).max(self.answered_at + apart);
            self.push(self.answered_at, Event::Done(job));
        }
    }

    fn done(&mut self, number: u32) {
        self.slots_used -= 1;
        self.fill();
        let asyncs = u32::from(number < self.load.asyncs);
        self.tags.put(Instant(self.now), ReturnedTags { count: 1, asyncs });
        let job = &mut self.jobs[number as usize];
        job.pieces_out -= 1;
        if job.pieces_out.is_multiple_of(self.load.pieces.into()) {
            self.finished += 1;
            self.push(self.now + self.load.think_ns, Event::Submit(number));
        }
    }
}
