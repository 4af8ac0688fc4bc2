//! Counters of a run from the end of the ramp to the end of the run.

use headworks_core::cache::CacheStats;
use headworks_core::stats::QueueStats;
use headworks_core::tags::TagStats;
use headworks_disks::ModelCounters;
use headworks_nbd::client::Histogram;

use crate::report::jain;

/// The counters of one job.
#[derive(Clone, Debug, Default)]
pub struct JobCounts {
    /// Number of bios answered.
    pub bios: u64,
    /// Bytes of the answered bios.
    pub bytes: u64,
    /// Latencies of the answered bios.
    pub latency: Histogram,
    /// Wait so far of the oldest bio that is outstanding at the end of the run.
    pub waiting_ns: u64,
    /// Times of the starts of its program that ended.
    pub starts_ns: Vec<u64>,
    /// Time so far of the start that has not ended.
    pub unfinished_ns: u64,
}

impl JobCounts {
    /// The longest wait of a bio, answered or outstanding at the end.
    #[must_use]
    pub fn longest_ns(&self) -> u64 {
        self.latency.max().max(self.waiting_ns)
    }
}

/// The counters of a whole run.
#[derive(Clone, Debug, Default)]
pub struct RunCounts {
    /// Number of bios answered.
    pub bios: u64,
    /// Bytes of the answered bios.
    pub bytes: u64,
    /// Latencies of all jobs' bios.
    pub latency: Histogram,
    /// Counters, one per job.
    pub jobs: Vec<JobCounts>,
    /// Number of completed requests.
    pub requests: u64,
    /// Merges into existing requests.
    pub merges: u64,
    /// Commands submitted to the device.
    pub issued: u64,
    /// Commands that start where the previous one ended.
    pub sequential: u64,
    /// Counters of the tag policy.
    pub tags: TagStats,
    /// Internal counters of the device.
    pub device: ModelCounters,
    /// Counters of the cache; folio counts are those at the end.
    pub cache: CacheStats,
    /// Folios created during the run.
    pub folios_made: u64,
    /// Maximum number of requests dispatched and not completed.
    pub in_device_max: u32,
    /// Commands that the device refused, the ramp included.
    pub refused: u64,
    /// Number of failed bios.
    pub errors: u64,
    /// Number of notices to the operator.
    pub notices: u64,
    /// No event was pending while bios were outstanding: a wake-up was lost.
    pub stuck: bool,
    /// Jobs that got no answer for [`super::STARVED_NS`], or in a whole shorter run, although they
    /// had bios outstanding; the ramp included.
    pub starved: u32,
    /// Jain's index of the jobs' answers over windows, if requested.
    pub windows: AnswerWindows,
    /// Hash of all inputs and actions, including the ramp.
    pub hash: u64,
    /// The settings of the queue that differ from the defaults.
    pub settings: String,
    /// Bytes of the commands in the device, by slot.
    pub(super) lens: RequestLengths,
    since: Snapshot,
}

/// Jain's index of the jobs' answers over windows of an equal number of answers.
///
/// A window of `jobs * rounds` answers is the time in which each job could be answered `rounds`
/// times, at the rate at which bios are answered meanwhile.
#[derive(Clone, Debug, Default)]
pub struct AnswerWindows {
    /// Number of answers in a window; 0 if no windows are counted.
    len: u64,
    answered: u64,
    jobs: Vec<u32>,
    /// Number of complete windows.
    pub count: u64,
    /// Index of the least fair window; 1 without windows.
    pub least: f64,
    sum: f64,
}

impl AnswerWindows {
    pub(super) fn new(jobs: usize, rounds: u32) -> Self {
        let len = jobs as u64 * u64::from(rounds);
        Self { len, jobs: vec![0; jobs], least: 1.0, ..Self::default() }
    }

    /// The mean index of all windows; 1 without windows.
    #[must_use]
    pub fn mean(&self) -> f64 {
        if self.count == 0 { 1.0 } else { self.sum / self.count as f64 }
    }

    fn answer(&mut self, job: u32) {
        if self.len == 0 {
            return;
        }
        self.jobs[job as usize] += 1;
        self.answered += 1;
        if self.answered == self.len {
            let index = jain(self.jobs.iter().map(|&answers| f64::from(answers)));
            (self.least, self.sum) = (self.least.min(index), self.sum + index);
            self.count += 1;
            self.answered = 0;
            self.jobs.fill(0);
        }
    }

    fn restart(&mut self) {
        self.answered = 0;
        self.jobs.fill(0);
        (self.count, self.least, self.sum) = (0, 1.0, 0.0);
    }
}

/// Values of external counters at one time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Snapshot {
    pub queue: QueueStats,
    pub tags: TagStats,
    pub merges: u64,
    pub requests: u64,
    pub device: ModelCounters,
    pub cache: CacheStats,
}

/// Lengths of commands, by slot.
#[derive(Clone, Debug, Default)]
pub(super) struct RequestLengths(Vec<u32>);

impl RequestLengths {
    pub fn put(&mut self, slot: u32, len: u32) {
        let slot = slot as usize;
        if self.0.len() <= slot {
            self.0.resize(slot + 1, 0);
        }
        self.0[slot] = len;
    }

    pub fn take(&mut self, slot: u32) -> u32 {
        std::mem::take(&mut self.0[slot as usize])
    }
}

impl RunCounts {
    pub(super) fn new(jobs: usize) -> Self {
        Self { jobs: vec![JobCounts::default(); jobs], ..Self::default() }
    }

    pub(super) fn answer(&mut self, number: u32, bytes: u32, took: u64) {
        let job = &mut self.jobs[number as usize];
        job.bios += 1;
        job.bytes += u64::from(bytes);
        job.latency.record(took);
        self.bios += 1;
        self.bytes += u64::from(bytes);
        self.windows.answer(number);
    }

    /// The longest wait of a bio of any job.
    #[must_use]
    pub fn longest_ns(&self) -> u64 {
        self.jobs.iter().map(JobCounts::longest_ns).max().unwrap_or(0)
    }

    /// Discards the counts of the ramp.
    pub(super) fn restart(&mut self, since: Snapshot) {
        let Self { jobs, lens, in_device_max, refused, errors, notices, mut windows, .. } =
            std::mem::take(self);
        windows.restart();
        let kept = Self {
            lens,
            in_device_max,
            refused,
            errors,
            notices,
            windows,
            since,
            ..Self::default()
        };
        *self = Self { jobs: vec![JobCounts::default(); jobs.len()], ..kept };
    }

    pub(super) fn end(&mut self, at: Snapshot, hash: u64) {
        let since = &self.since;
        self.merges = at.merges - since.merges;
        self.requests = at.requests - since.requests;
        self.issued = at.queue.issued - since.queue.issued;
        self.sequential = at.queue.sequential - since.queue.sequential;
        self.device.positionings = at.device.positionings - since.device.positionings;
        self.device.media_bytes = at.device.media_bytes - since.device.media_bytes;
        self.count_cache(&at.cache);
        // Maxima cannot be subtracted: the tag policy's counts cover the whole run.
        self.tags = at.tags;
        self.hash = hash;
        for job in &self.jobs {
            self.latency.add(&job.latency);
        }
    }

    fn count_cache(&mut self, at: &CacheStats) {
        let since = &self.since.cache;
        let mut cache = *at;
        // Folios created: net growth plus evictions.
        let there = |stats: &CacheStats| stats.folios.iter().sum::<u64>();
        let gone = at.evicted_folios - since.evicted_folios;
        self.folios_made = (there(at) + gone).saturating_sub(there(since));
        for (count, before) in [
            (&mut cache.hits, since.hits),
            (&mut cache.misses, since.misses),
            (&mut cache.fills.bios, since.fills.bios),
            (&mut cache.fills.blocks, since.fills.blocks),
            (&mut cache.writeouts.bios, since.writeouts.bios),
            (&mut cache.writeouts.blocks, since.writeouts.blocks),
            (&mut cache.shadowed, since.shadowed),
            (&mut cache.read_before_write, since.read_before_write),
            (&mut cache.evicted_folios, since.evicted_folios),
            (&mut cache.evicted, since.evicted),
            (&mut cache.read_ahead, since.read_ahead),
            (&mut cache.index.operations, since.index.operations),
            (&mut cache.index.probes, since.index.probes),
        ] {
            *count -= before;
        }
        self.cache = cache;
    }
}
