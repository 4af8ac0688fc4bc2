//! A simulation of a tag policy alone: jobs that submit bios of several pieces, and a device with slots and constant latency.
//!
//! A job is a thread: while its bio waits for a tag it submits nothing else. A piece with a tag but no slot waits in order. The
//! device completes commands one by one, `latency / slots` apart, like a device with one link or head.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use headworks_core::Instant;
use headworks_core::bio::{ExportId, TenantId};
use headworks_core::tags::{ByteBudget, Grant, Requester, ReturnedTags, TagOwner, TagRequest};

/// The workload of a simulation.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub jobs: u32,
    /// Number of jobs, from the first on, whose bios are asynchronous.
    pub asyncs: u32,
    /// Outstanding bios of a job.
    pub iodepth: u32,
    pub pieces: u16,
    /// Total number of bios of a job.
    pub bios: u32,
    pub slots: usize,
    pub latency_ns: u64,
    /// Time from the end of a bio to the next one of the job.
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
    /// The device completed a piece of that job.
    Done(u32),
    /// The job submits a bio if it may.
    Submit(u32),
}

#[derive(Clone, Copy, Debug, Default)]
struct Job {
    left: u32,
    /// Pieces of outstanding bios; they complete in any order, so only the number counts.
    pieces_out: u32,
    /// Tags that the waiting bio still needs.
    owed: u16,
}

/// A running simulation.
pub struct Simulation<T> {
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
    /// Pieces that got a tag.
    pub grants: u64,
    /// Those of them that followed a piece of the same job.
    pub sequential: u64,
    pub finished: u64,
}

impl<T: TagOwner> Simulation<T> {
    pub fn new(tags: T, load: Load) -> Self {
        let mut sim = Self {
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
        (0..load.jobs).for_each(|job| sim.push(u64::from(job) * 1_000, Event::Submit(job)));
        sim
    }

    /// Runs until no event is left.
    pub fn run_out(&mut self) {
        while let Some(next) = self.next() {
            self.step(next);
        }
    }

    /// Runs until `until`; returns false if no event is left.
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

    /// Returns whether a task sleeps while no tag is in use and no event is pending.
    pub fn hangs(&self) -> bool {
        self.tags.waiters() > 0
            && self.tags.free() == self.tags.depth()
            && self.tags.next_timeout().is_none()
            && self.events.is_empty()
    }

    /// Returns the fraction of pieces that got their tag directly after a piece of the same job.
    pub fn sequential_ratio(&self) -> f64 {
        self.sequential as f64 / self.grants as f64
    }

    /// Restarts the counters of pieces.
    pub fn restart_counters(&mut self) {
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
        let request = TagRequest {
            cost: 1,
            requester: Requester::Request(number),
            tags: want,
            bytes: u32::from(pieces) << 17,
            sync: number >= self.load.asyncs,
            connection: number,
            export: ExportId(0),
            weight: 100,
            tenant: TenantId::NONE,
            tenant_weight: 100,
            target_us: 0,
        };
        assert_eq!(
            self.tags.request(Instant(self.now), &[request], 1),
            0,
            "old policies grant later"
        );
    }

    fn grant(&mut self, grant: Grant) {
        let Requester::Request(number) = grant.requester else { panic!("only requests wait") };
        assert_eq!(grant.tags, 1, "tag by tag");
        let job = &mut self.jobs[number as usize];
        assert!(job.owed > 0, "at most as many as requested");
        job.owed -= 1;
        self.grants += 1;
        self.sequential += u64::from(self.last == Some(number));
        self.last = Some(number);
        if job.owed == 0 {
            // The thread may submit its next bio.
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
