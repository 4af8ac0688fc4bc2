//! Analysis of the slow requests of the last minute: a sentence, figures, and hints.
//!
//! Considered are the slowest 1 % of requests (at least ten), as far as `latency::slow` keeps them. Their waits are
//! added up; the rest of their total time is `elsewhere`. The hint is for the stage with the largest share: hints for several stages
//! may contradict each other.

use std::collections::BTreeMap;

use headworks_control::answers;
use headworks_core::stats::QueueStats;
use headworks_core::{DeviceState, Instant, Op, QueueOptions, WaitKind};

use super::blame::Blame;
use super::elevator::ServedMeanwhile;
use super::in_flight::InFlight;
use super::latency::micros;
use super::report;
use super::targets::{HeldByTarget, OwnTarget};
use super::verdict::{MORE_THAN_ONE, Verdict, beyond, may_be_slow, threshold_ns};
use crate::observe::latency::errors::{ErrorCounts, errno_name};
use crate::observe::latency::request_name;
use crate::observe::latency::slow::{SECONDS, SlowFilter, SlowRequest, considered};
use crate::reactor::messages::query::BufferUser;

/// Requests that are listed one by one.
const WORST: usize = 5;
/// Smallest share of the time that is mentioned: 5 %.
pub(super) const WORTH: f64 = 0.05;

/// State of the export and its device at the time of the query.
#[derive(Clone, Debug, Default)]
pub struct WhySnapshot {
    /// Name of the export's device.
    pub device: String,
    /// Whether the device answers.
    pub device_state: DeviceState,
    /// The server that the device is behind, and the state of its connections.
    pub remote: Option<String>,
    /// How late the modelled disk is that the device takes the time of.
    pub model: Option<answers::Model>,
    /// Whether the time in the cache is that of flushes, see [`Slowness::waits_for_write_out`].
    pub waits_for_write_out: bool,
    /// Name of the export in paths.
    pub export: String,
    /// Number of tags of the device.
    pub nr_requests: u32,
    /// Name of the device's elevator.
    pub scheduler: &'static str,
    /// Dirty bytes and their limit; none without a cache.
    pub dirty: Option<(u64, u64)>,
    /// Write-back bandwidth of the device in bytes per second.
    pub write_bandwidth: u64,
    /// Bytes of the cache that are in use, and those that it may use; none without one.
    pub cache: Option<(u64, u64)>,
    /// Which exports and connections held what the slow requests waited for.
    pub blame: Option<Blame>,
    /// The limit that holds the export's clients back most.
    pub limit: Option<LongestLimit>,
    /// What the device takes for one request alone, by operation: the smallest time seen.
    pub alone_ns: [Option<u64>; Op::COUNT],
    /// Requests in the device on average while the slow ones were under way; none if they waited for something else.
    pub in_device: Option<f64>,
    /// What was used up when requests waited for a place in the device.
    pub place: PlaceWait,
    /// Its image was frozen meanwhile, which counts as a wait for a limit.
    pub frozen: bool,
    /// What the elevator served in the last minute, if it serves in slots.
    pub served: Option<ServedMeanwhile>,
    /// Its latency target, and how well that is kept.
    pub target: Option<OwnTarget>,
    /// The latency target of others for which its requests waited in the last minute.
    pub held: Option<HeldByTarget>,
    /// Its clients' requests that are not answered yet.
    pub in_flight: InFlight,
    /// What its state is and why, unless it serves, as sentences without its name.
    pub troubles: Vec<String>,
    /// Its error replies, and the answered requests of the operation of the last one.
    pub errors: (ErrorCounts, u64),
    /// Its requests that wait for a buffer now.
    pub buffer_wait: Option<BufferWait>,
}

/// A limit on an export's path.
#[derive(Clone, Debug, Default)]
pub struct LongestLimit {
    /// Node, limit and rate: `export db: bps-write 20971520`.
    pub words: String,
    /// The path of its value, and twice the present one: `exports/db/bps-write 40M`.
    pub doubled: String,
}

/// What requests waited for before the device, in the stage `tag`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlaceWait {
    /// One of its tags.
    #[default]
    Tag,
    /// Room within the limit that is found by measuring: bytes, 0 without one now.
    Depth(u64),
    /// Room within `hw_inflight_kb`.
    Bytes(u32),
    /// Room within `queue_depth`.
    Commands(u32),
}

impl PlaceWait {
    /// What requests waited for from `since` on. Tags come first: while a limit holds requests back before, no tag is used up.
    pub fn of(options: &QueueOptions, queue: &QueueStats, since: Instant) -> Self {
        let recent = |at: Option<Instant>| at.is_some_and(|at| at >= since);
        let QueueStats { depth, waits, .. } = queue;
        match (recent(waits.tags), recent(waits.bytes), recent(waits.commands)) {
            (false, true, _) if options.hw_inflight_kb > 0 => Self::Bytes(options.hw_inflight_kb),
            (false, true, _) => Self::Depth(depth.map_or(0, |depth| depth.limit)),
            (false, false, true) => Self::Commands(options.queue_depth),
            _ => Self::Tag,
        }
    }

    fn reason(self, device: &str, tags: u32) -> String {
        match self {
            Self::Tag => format!("waiting for one of the {tags} tags of {device}"),
            Self::Depth(0) => format!("held back while the depth of {device} was measured"),
            Self::Depth(limit) => format!(
                "held back by the measured depth of {device}, which takes about {} at once",
                size(limit)
            ),
            Self::Bytes(kib) => format!("{device} takes {kib} KiB at once, hw_inflight_kb"),
            Self::Commands(count) => {
                format!("{device} takes {count} requests at once, queue_depth")
            }
        }
    }

    fn hint(self, facts: &WhySnapshot) -> String {
        let (device, export) = (&facts.device, &facts.export);
        let share = format!("exports/{export}/weight is the share of this export");
        match self {
            Self::Tag => format!(
                "tag: {device}/queue/nr_requests ({} now) is its number of tags, queue_depth how many commands the device takes; {share} in them",
                facts.nr_requests
            ),
            Self::Depth(_) => format!(
                "tag: {device} has as much as it needs for its throughput, and more would wait inside it; {share}, a faster disk takes more"
            ),
            Self::Bytes(kib) => format!(
                "tag: {device}/queue/hw_inflight_kb ({kib} now) is how much it takes at once; {share} of that"
            ),
            Self::Commands(count) => format!(
                "tag: queue_depth ({count} now) is how many requests {device} takes at once; {share} of them"
            ),
        }
    }
}

/// Requests of an export that wait for a buffer now, and what holds most of the buffers.
#[derive(Clone, Debug)]
pub struct BufferWait {
    /// Number of the requests.
    pub waiting: usize,
    /// Name of the export that holds most.
    pub holder: String,
    /// What that export holds.
    pub held: BufferUser,
}

impl BufferWait {
    /// `5 requests of b wait for a buffer; a holds 41.0 MiB, 9.0 MiB of it of incomplete payloads`.
    fn note(&self, export: &str) -> String {
        let Self { waiting, holder, held } = self;
        let requests = match waiting {
            1 => format!("a request of {export} waits"),
            waiting => format!("{waiting} requests of {export} wait"),
        };
        let payloads = match held.payload_bytes {
            0 => String::new(),
            bytes => format!(", {} of it of incomplete payloads", size(bytes as u64)),
        };
        format!("{requests} for a buffer; {holder} holds {}{payloads}", size(held.bytes as u64))
    }
}

impl WhySnapshot {
    /// Whether a twentieth of the cache is free: then nothing waits for a frame.
    fn has_free_frames(&self) -> bool {
        self.cache.is_some_and(|(used, limit)| used < limit - limit / 20)
    }
}

/// Nanoseconds of each wait of a request, then the rest of its total.
pub(super) fn parts(slow: &SlowRequest) -> [f64; WaitKind::COUNT + 1] {
    let waits = WaitKind::ALL.map(|wait| slow.wait_times.at_most(wait) as f64);
    let (sum, total) = (waits.iter().sum::<f64>(), slow.total_ns as f64);
    // A bucket's bound may exceed the total, and a request that joined another one carries all waits of that one.
    let scale = if sum > total { total / sum } else { 1.0 };
    let mut all = [0.0; WaitKind::COUNT + 1];
    for (part, wait) in all.iter_mut().zip(waits) {
        *part = wait * scale;
    }
    all[WaitKind::COUNT] = (total - sum * scale).max(0.0);
    all
}

fn name(part: usize) -> &'static str {
    WaitKind::ALL.get(part).map_or("elsewhere", |wait| wait.name())
}

/// The slow requests of an export, and where they spent their time.
#[derive(Debug)]
pub struct Slowness<'a> {
    filter: SlowFilter,
    pub(super) requests: u64,
    /// The slowest ones, in descending order.
    pub(super) slowest: &'a [SlowRequest],
    /// Number and share of each part that is worth mentioning, and of all others; in descending order.
    shares: Vec<(usize, f64)>,
}

impl<'a> Slowness<'a> {
    /// Adds up the waits of the slowest of `requests`, which are in descending order.
    pub fn of(filter: SlowFilter, requests: u64, slowest: &'a [SlowRequest]) -> Self {
        let slowest = &slowest[..considered(requests, slowest)];
        let total: f64 = slowest.iter().map(|slow| slow.total_ns as f64).sum();
        let mut sums = [0.0; WaitKind::COUNT + 1];
        for slow in slowest {
            sums.iter_mut().zip(parts(slow)).for_each(|(sum, part)| *sum += part);
        }
        let share = |sum: &f64| if total > 0.0 { sum / total } else { 0.0 };
        let mut shares: Vec<(usize, f64)> = sums.iter().map(share).enumerate().collect();
        shares.sort_by(|a, b| b.1.total_cmp(&a.1));
        Self { filter, requests, slowest, shares }
    }

    /// Whether it is worth a look at what held the requests.
    pub fn may_be_slow(&self) -> bool {
        may_be_slow(self.slowest)
    }

    /// The share of a stage.
    pub fn share_of(&self, wait: WaitKind) -> f64 {
        let of = self.shares.iter().find(|(part, _)| *part == wait as usize);
        of.map_or(0.0, |(_, share)| *share)
    }

    /// The stage with the largest share; none is `elsewhere`.
    pub fn main_stage(&self) -> Option<WaitKind> {
        WaitKind::ALL.get(self.shares[0].0).copied()
    }

    /// Whether most of the time in the cache is that of flushes: they wait there until what they cover is in the device.
    pub fn waits_for_write_out(&self) -> bool {
        let in_cache = |slow: &SlowRequest| slow.wait_times.at_most(WaitKind::Cache);
        let all: u64 = self.slowest.iter().map(in_cache).sum();
        let flushes = self.slowest.iter().filter(|slow| slow.op == Op::Flush);
        flushes.map(in_cache).sum::<u64>() > all / 2
    }

    /// From when to when each of them was under way, without those that lie in another one.
    pub fn times(&self) -> Vec<(Instant, Instant)> {
        let mut times: Vec<(Instant, Instant)> = Vec::new();
        let mut all: Vec<(Instant, Instant)> = self
            .slowest
            .iter()
            .map(|slow| (Instant(slow.at.0.saturating_sub(slow.total_ns)), slow.at))
            .collect();
        all.sort_unstable();
        for (from, to) in all {
            match times.last_mut() {
                Some(last) if from <= last.1 => last.1 = last.1.max(to),
                _ => times.push((from, to)),
            }
        }
        times
    }

    /// When the first of them came.
    pub fn since(&self) -> Instant {
        let came = self.slowest.iter().map(|slow| slow.at.0.saturating_sub(slow.total_ns));
        Instant(came.min().unwrap_or(u64::MAX))
    }

    fn told(&self) -> Vec<(usize, f64)> {
        self.shares.iter().copied().filter(|(_, part)| *part >= WORTH).collect()
    }

    /// `of the last minute`.
    fn when(&self) -> String {
        match self.filter.seconds {
            60 => "of the last minute".to_owned(),
            1 => "of the last second".to_owned(),
            seconds => format!("of the last {seconds} seconds"),
        }
    }

    /// What is counted: `requests`, or those of one operation.
    fn what(&self, count: u64) -> &'static str {
        requests(self.filter.op, count)
    }
}

/// The word for `count` requests, all or of one operation.
pub(super) fn requests(op: Option<Op>, count: u64) -> &'static str {
    let (one, several) = match op {
        None => ("request", "requests"),
        Some(Op::Read) => ("read", "reads"),
        Some(Op::Write) => ("write", "writes"),
        Some(Op::Flush) => ("flush", "flushes"),
        Some(Op::Discard) => ("trim", "trims"),
        Some(Op::WriteZeroes) => ("zeroing", "zeroings"),
        Some(Op::Prefetch) => ("prefetch", "prefetches"),
        Some(Op::BlockStatus) => ("query of block status", "queries of block status"),
    };
    if count == 1 { one } else { several }
}

/// Makes the report for clients of the control socket.
pub fn why(facts: &WhySnapshot, now: Instant, slowness: &Slowness<'_>) -> answers::Why {
    let Slowness { filter, requests, slowest, ref shares } = *slowness;
    let above_ns = slowest.last().map_or(0, |slow| slow.total_ns);
    let verdict = Verdict::of(facts, slowness);
    let slow = verdict == Verdict::Slow;
    let findings = findings(facts, now, filter.seconds);
    let mut sentences = findings.clone();
    let at = if verdict == Verdict::Stuck { 0 } else { sentences.len() };
    let is_calm = findings.is_empty();
    sentences.insert(at, sentence(facts, slowness, (verdict, above_ns), is_calm));
    let mut sentences = sentences.into_iter();
    let sentence = sentences.next().unwrap_or_default();
    let told = slow || verdict == Verdict::Limited;
    let hints: Vec<String> = match told {
        true => hint(facts, hinted(verdict, shares)).into_iter().collect(),
        false => Vec::new(),
    };
    let blame = facts.blame.as_ref().filter(|_| slow);
    let notes = sentences.chain(blame.map(Blame::sentence));
    let remote = facts.remote.iter().map(|told| format!("{} is {told}", facts.device));
    let notes = notes.chain(remote);
    let late = facts.model.iter().filter_map(|model| model.told.as_ref());
    let notes = notes.chain(late.map(|told| format!("{}: {told}", facts.device)));
    let notes = notes.chain(facts.buffer_wait.iter().map(|wait| wait.note(&facts.export)));
    let notes = notes.chain(facts.target.iter().map(OwnTarget::note));
    let notes: Vec<String> = notes.chain(facts.held.iter().map(HeldByTarget::note)).collect();
    answers::Why {
        export: Some(facts.export.clone()),
        sentence,
        device_state: Some(facts.device_state.name().to_owned()),
        model: facts.model.clone(),
        state: verdict.name().to_owned(),
        slow,
        seconds: filter.seconds.min(SECONDS as u64),
        op: filter.op.map(|op| request_name(op).to_owned()),
        requests,
        considered: slowest.len(),
        in_flight: Some(facts.in_flight.answer()),
        errors: Some(report::errors(now, &facts.errors.0)),
        findings,
        above_us: micros(above_ns),
        shares: shares.iter().map(|(part, share)| (name(*part).to_owned(), *share)).collect(),
        stages: stages(slowest),
        worst: slowest.iter().take(WORST).map(|slow| one(now, slow)).collect(),
        by_whom: blame.map(Blame::answer),
        latency_target: facts.target.as_ref().map(OwnTarget::answer),
        held_for_target: facts.held.as_ref().map(HeldByTarget::answer),
        served_meanwhile: facts.served.as_ref().map(ServedMeanwhile::answer),
        notes,
        hints,
    }
}

/// What is wrong now, the worst first, each as a sentence that names the export.
fn findings(facts: &WhySnapshot, now: Instant, seconds: u64) -> Vec<String> {
    let troubles = facts.troubles.iter().cloned();
    let all = troubles.chain(facts.in_flight.finding()).chain(failed(facts, now, seconds));
    all.map(|finding| format!("{}: {finding}", facts.export)).collect()
}

/// `10 of 41 writes failed, the last 2.0 s ago: EIO at offset 4096, connection 3`, if the last is within these seconds.
fn failed(facts: &WhySnapshot, now: Instant, seconds: u64) -> Option<String> {
    let (errors, answered) = &facts.errors;
    let last = errors.last()?;
    let ago = now.since(last.at);
    if ago > seconds.saturating_mul(1_000_000_000) {
        return None;
    }
    let count = errors.of_op(last.op);
    let all = (*answered).max(count);
    let others = match errors.total() - count {
        0 => String::new(),
        others => format!("; {} of other kinds failed, too", grouped(others)),
    };
    Some(format!(
        "{} of {} {} failed, the last {:.1} s ago: {} at offset {}, connection {}{others}",
        grouped(count),
        grouped(all),
        requests(Some(last.op), all),
        ago as f64 / 1e9,
        errno_name(last.error),
        last.offset,
        last.connection
    ))
}

/// What happened to the requests that have completed, in one sentence. `is_calm`: nothing else is wrong.
fn sentence(
    facts: &WhySnapshot,
    slowness: &Slowness<'_>,
    (verdict, above_ns): (Verdict, u64),
    is_calm: bool,
) -> String {
    let Slowness { requests, slowest, .. } = *slowness;
    let (export, device) = (&facts.export, &facts.device);
    let (when, what, count) = (slowness.when(), slowness.what(requests), grouped(requests));
    if facts.device_state == DeviceState::Stuck {
        return format!(
            "{export}: device {device} does not answer: new requests fail at once; {count} {what} {when} ended"
        );
    }
    if requests == 0 {
        let when = when.replacen("of", "in", 1);
        return format!("{export}: no {} completed {when}", slowness.what(1));
    }
    if verdict == Verdict::Quiet {
        let nothing = if is_calm { "nothing is slow: " } else { "" };
        let longest = match slowest.first().map_or(0, |slow| slow.total_ns) {
            0 => "one turn of its shard".into(),
            ns => time(ns),
        };
        return format!(
            "{export}: {nothing}none of the {count} {what} {when} took longer than {longest}{}",
            evidence(facts, slowness)
        );
    }
    let limited = if verdict == Verdict::Limited { "limited, not slow: " } else { "" };
    let which = match slowest.len() as u64 == requests.div_ceil(100) {
        true => format!("slowest 1 % of {count}"),
        false => format!("slowest {} of {count}", grouped(slowest.len() as u64)),
    };
    format!(
        "{export}: {limited}the {which} {what} {when} ({} and more) spent {}",
        time(above_ns),
        words(facts, &slowness.told())
    )
}

/// Why nothing is slow though some took long: `; 2 took longer than 6.0 ms, too few to say why`, or what the device takes alone.
fn evidence(facts: &WhySnapshot, slowness: &Slowness<'_>) -> String {
    let Some(slowest) = slowness.slowest.first() else { return String::new() };
    let threshold = threshold_ns(facts, slowness, slowest.op);
    match (beyond(facts, slowness).0, facts.alone_ns[slowest.op as usize]) {
        (0, Some(alone)) => format!("; {} alone takes {}", facts.device, time(alone)),
        (0, None) => String::new(),
        (few, _) => format!("; {few} took longer than {}, too few to say why", time(threshold)),
    }
}

/// The part that a hint is for: the largest, of slow requests without their waits for limits.
fn hinted(verdict: Verdict, shares: &[(usize, f64)]) -> usize {
    let limit = WaitKind::Limit as usize;
    let is_meant = |&(part, _): &(usize, f64)| (part == limit) == (verdict == Verdict::Limited);
    let meant = shares.iter().copied().find(is_meant);
    meant.map_or(shares[0].0, |(part, _)| part)
}

/// `86 % of their time in dirty (the reason), 9 % in device`.
fn words(facts: &WhySnapshot, told: &[(usize, f64)]) -> String {
    let one = |(index, (part, share)): (usize, &(usize, f64))| {
        let percent = format!("{:.0} %", share * 100.0);
        match index {
            0 => format!("{percent} of their time in {} ({})", name(*part), reason(facts, *part)),
            _ => format!("{percent} in {}", name(*part)),
        }
    };
    told.iter().enumerate().map(one).collect::<Vec<_>>().join(", ")
}

fn reason(facts: &WhySnapshot, part: usize) -> String {
    let device = &facts.device;
    match WaitKind::ALL.get(part) {
        Some(WaitKind::Dirty) => {
            let of = facts.dirty.map_or_else(String::new, |(dirty, limit)| {
                format!("{} of at most {} are dirty, ", size(dirty), size(limit))
            });
            let rate = size(facts.write_bandwidth);
            format!("the writer was paused: {of}device {device} writes {rate}/s")
        }
        Some(WaitKind::Cache) if facts.waits_for_write_out => {
            format!("flushes, until what they cover is written to device {device}")
        }
        Some(WaitKind::Cache) if facts.has_free_frames() => {
            "in the page cache, which has free frames: copying its bytes, waiting for a locked range or for older data".into()
        }
        Some(WaitKind::Cache) => {
            "waiting in the page cache for a free frame, a locked range or older data".into()
        }
        Some(WaitKind::Buffer) => "all request buffers were in use".into(),
        Some(WaitKind::Plug) => {
            format!("the queue of {device} was drained to change an option")
        }
        Some(WaitKind::Tag) => match &facts.held {
            Some(held) => held.reason(),
            None => facts.place.reason(device, facts.nr_requests),
        },
        Some(WaitKind::Scheduler) => {
            let scheduler = facts.scheduler;
            match facts.served.as_ref().and_then(ServedMeanwhile::reason) {
                Some(served) => format!("the elevator {scheduler} served others first: {served}"),
                None => format!("the elevator {scheduler} held them back: {device} took no more"),
            }
        }
        Some(WaitKind::Device) if facts.remote.is_some() => {
            format!("the server behind device {device} took that long")
        }
        Some(WaitKind::Device) => format!("device {device} took that long"),
        Some(WaitKind::Limit) => match &facts.limit {
            Some(limit) if facts.frozen => format!("a freeze of the image, or {}", limit.words),
            None if facts.frozen => "a freeze of the image".into(),
            Some(limit) => limit.words.clone(),
            None => "a limit that is no longer set".into(),
        },
        None => "between shards, or behind other work of their shard".into(),
    }
}

/// A hint for a kind of wait: the options that change it.
fn hint(facts: &WhySnapshot, part: usize) -> Option<String> {
    let (device, export) = (&facts.device, &facts.export);
    if facts.held.is_none()
        && part != WaitKind::Limit as usize
        && let Some(hint) = facts.blame.as_ref().and_then(Blame::hint)
    {
        return Some(format!("{}: {hint}", name(part)));
    }
    Some(match WaitKind::ALL.get(part)? {
        WaitKind::Dirty => format!(
            "dirty: writers produce dirty data faster than {device} writes it; vm/dirty_bytes and vm/dirty_background_bytes limit it, exports/{export}/weight is the share of this export"
        ),
        WaitKind::Cache if facts.waits_for_write_out => format!(
            "cache: {device} writes what a flush waits for; a lower vm/dirty_background_bytes has it written earlier"
        ),
        WaitKind::Cache if facts.has_free_frames() => {
            "cache: smaller requests are copied in shorter turns; flushes and discards lock what they cover".into()
        }
        WaitKind::Buffer => "buffer: a larger --buffers has more".into(),
        WaitKind::Cache => format!(
            "cache: a larger --cache has more frames; {device}/queue/read_ahead_kb reads further ahead; fewer flushes and discards wait less for each other"
        ),
        WaitKind::Plug => return None,
        WaitKind::Tag if facts.held.is_some() => format!(
            "tag: a looser latency target (`ctl set`) of the others lets more of this export into {device}; exports/{export}/latency-target gives this one its own"
        ),
        WaitKind::Tag => facts.place.hint(facts),
        WaitKind::Scheduler if facts.served.is_some() => format!(
            "sched: {device}/queue/iosched/state shows slots and queues; exports/{export}/weight is the share of this export, {device}/queue/iosched/low_latency=0 raises no client"
        ),
        WaitKind::Scheduler => format!(
            "sched: {device}/queue/scheduler and {device}/queue/iosched/read_expire set the order; the wait itself comes from a busy device"
        ),
        WaitKind::Limit if facts.frozen => {
            "limit: `ctl freeze` lets what changes the image wait until `ctl thaw`, or its time limit".into()
        }
        WaitKind::Limit => match &facts.limit {
            Some(LongestLimit { doubled, .. }) => {
                let path = doubled.split(' ').next().unwrap_or_default();
                format!("limit: `ctl set {doubled}` doubles it, `ctl set {path} none` removes it")
            }
            None => format!(
                "limit: exports/{export}/io.max and server/io.max show the limits of now"
            ),
        },
        WaitKind::Device if facts.remote.is_some() => {
            format!("device: what {device} is behind takes that long: its server, or the network to it")
        }
        WaitKind::Device if facts.in_device.is_none_or(|count| count <= MORE_THAN_ONE) => format!(
            "device: {device} takes that long for one request at a time: a faster disk, or a cache, helps"
        ),
        WaitKind::Device => format!(
            "device: {device} itself is slow: admit fewer requests ({device}/queue/nr_requests, {} now), or use a faster disk",
            facts.nr_requests
        ),
    })
}

fn stages(slowest: &[SlowRequest]) -> BTreeMap<String, answers::StageTimes> {
    let row = |name: &str, mut times: Vec<u64>| {
        times.sort_unstable();
        let at = |part: usize| times.get(times.len() * part / 100).copied().unwrap_or(0);
        let waited = times.iter().filter(|ns| **ns > 0).count();
        let (p50_us, p99_us) = (micros(at(50)), micros(at(99)));
        (name.to_owned(), answers::StageTimes { requests: waited, p50_us, p99_us })
    };
    let total = row("total", slowest.iter().map(|slow| slow.total_ns).collect());
    let waits = WaitKind::ALL
        .into_iter()
        .map(|wait| row(wait.name(), slowest.iter().map(|slow| waited(slow, wait)).collect()));
    std::iter::once(total).chain(waits).collect()
}

/// A wait is the upper bound of its bucket, the total is exact: no wait is shown longer than the total.
fn waited(slow: &SlowRequest, wait: WaitKind) -> u64 {
    slow.wait_times.at_most(wait).min(slow.total_ns)
}

fn one(now: Instant, slow: &SlowRequest) -> answers::SlowRequest {
    let waits = WaitKind::ALL.into_iter().filter(|wait| slow.wait_times.bucket(*wait) > 0);
    answers::SlowRequest {
        op: request_name(slow.op).to_owned(),
        offset: slow.offset,
        len: slow.len,
        connection: slow.connection,
        age_s: now.since(slow.at) as f64 / 1e9,
        total_us: micros(slow.total_ns),
        stages_us: waits.map(|wait| (wait.name().to_owned(), micros(waited(slow, wait)))).collect(),
    }
}

/// A number with commas: 12,345.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

pub(super) fn time(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.1} s", ns as f64 / 1e9),
    }
}

pub(super) fn size(bytes: u64) -> String {
    match bytes {
        0..1_048_576 => format!("{:.0} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}

#[cfg(test)]
mod tests;
