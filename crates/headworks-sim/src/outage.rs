//! Worlds in which a device does not answer for a time, or refuses everything, beside one that does.
//!
//! Every shard has a volume on each of the two devices. The worlds demand: no bio waits for longer
//! than twice `io_timeout` (a rule of every world with an outage); during the outage the healthy
//! device answers at least 0.9 of what it answers without; afterwards both work, and everything is checked as in other worlds.

use headworks_core::prng::Prng;
use headworks_core::time::{MS, SEC, US};
use headworks_core::writeback::DirtyOptions;
use headworks_core::{
    CacheOptions, DeviceConfig, DeviceId, QueueOptions, Scheduler, ShardId, VolumeConfig, VolumeId,
    VolumeOptions, WriteMode,
};

use crate::check::{Failure, violation};
use crate::disk::{DiskDefect, Faults, LatencyModel, Outage};
use crate::scenario::{DeviceScenario, Scenario};
use crate::workload::JobOptions;
use crate::world::{self, Outcome};

/// The time-out of both devices.
const TIMEOUT_NS: u64 = SEC;
/// The outage of the first device.
const FROM_NS: u64 = 2 * SEC;
/// See [`FROM_NS`].
const UNTIL_NS: u64 = 8 * SEC;
/// The least rate of the healthy device in an outage of the other, of its rate without, in percent.
const RATE_LEAST: u64 = 90;

/// Runs of which a rate is the mean, at first.
const SAMPLES_LEAST: u64 = 4;
/// Runs of which a rate is the mean that seems too low. One run varies by 0.11 where a rate has two values that each last
/// for seconds: then 0.1 is 1.3 standard deviations of the ratio of two means of 4 runs, and 3.7 of 32.
const SAMPLES_MOST: u64 = 32;

/// How the first device fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutageKind {
    /// It answers nothing that it is sent.
    Silent,
    /// It refuses everything.
    Refusing,
}

/// Builds a world of two devices; `outage` is that of the first.
#[must_use]
pub fn scenario(seed: u64, shards: u16, cached: bool, outage: Option<OutageKind>) -> Scenario {
    let mut prng = Prng::new(seed).split("outage");
    let mut pick = |values: &[u32]| values[prng.below(values.len() as u64) as usize];
    let queue = QueueOptions {
        nr_requests: pick(&[4, 16, 64]),
        queue_depth: pick(&[2, 8, 64]),
        scheduler: Scheduler::ALL[pick(&[0, 1]) as usize],
        write_cache: pick(&[0, 1]) == 1,
        fua: pick(&[0, 1]) == 1,
        io_timeout_ns: TIMEOUT_NS,
        read_ahead_kb: 0,
        ..QueueOptions::default()
    };
    let outage = outage.map(|kind| Outage {
        from_ns: FROM_NS,
        until_ns: UNTIL_NS,
        refuses: kind == OutageKind::Refusing,
    });
    let device = |owner: u16, outage| DeviceScenario {
        config: DeviceConfig { owner: ShardId(owner), queue },
        model: LatencyModel::Constant { latency_ns: 10 * MS, jitter_ns: MS, channels: 8 },
        faults: Faults { outage, ..Faults::default() },
        defect: DiskDefect::None,
    };
    // Much larger than the pool, which the sick device's clients use, too: hits are rare in any case.
    let size = 12 << 20;
    let mode = if cached { WriteMode::Writeback } else { WriteMode::None };
    let volumes: Vec<_> = (0..2 * shards)
        .map(|index| VolumeConfig {
            home: ShardId(index % shards),
            device: DeviceId(index / shards),
            options: VolumeOptions { size, block_size: 4096, mode, ..VolumeOptions::default() },
        })
        .collect();
    // More than a second device of eight channels answers before the end of the outage.
    let healthy_bios = 9_600;
    let job = |index: usize| {
        let sick = index < usize::from(shards);
        JobOptions {
            volume: VolumeId(index as u16),
            start: 0,
            end: size,
            block_size: 4096,
            depth: 8,
            batch: 8,
            // The sick device's clients go on past its outage, and are slower while they fail at once.
            bios: if sick { 400 } else { healthy_bios / u32::from(shards) },
            weights: [600, 300, 5, 10, 10, 0, 0],
            sizes: [4096, 4096, 8192, 16384],
            think_ns: if sick { 800 * MS } else { 0 },
            ..JobOptions::default()
        }
    };
    let jobs: Vec<_> = (0..volumes.len()).map(job).collect();
    let cache = match cached {
        true => CacheOptions { units: 256, flush_timeout_ns: 60 * SEC, ..CacheOptions::default() },
        false => CacheOptions::default(),
    };
    let devices = vec![device(0, outage), device(1 % shards, None)];
    let sizes_max = vec![size; volumes.len()];
    let dirty = DirtyOptions { dirty_expire_centisecs: 10, ..DirtyOptions::default() };
    Scenario {
        shards,
        sizes_max,
        cache,
        dirty,
        turn_max: 64,
        message_delay_ns: 5 * US,
        ..Scenario::plain(seed, devices, volumes, jobs)
    }
}

/// Returns the answers of the healthy device's jobs during the outage.
fn healthy_answers(shards: u16, outcome: &Outcome) -> u64 {
    let healthy = usize::from(shards)..2 * usize::from(shards);
    let seconds = (FROM_NS / SEC) as usize..(UNTIL_NS / SEC) as usize;
    let of_job = |answers: &Vec<u32>| -> u64 {
        let known = answers.iter().skip(seconds.start).take(seconds.len());
        known.map(|&count| u64::from(count)).sum()
    };
    outcome.answers[healthy].iter().map(of_job).sum()
}

/// Runs the world with and without the outage, and compares the rates of the healthy device.
///
/// # Errors
/// The violated rule.
pub fn run(
    seed: u64,
    shards: u16,
    cached: bool,
    kind: OutageKind,
) -> Result<Outcome, Box<Failure>> {
    const RATE: &str = "a healthy device keeps its rate beside one that does not answer";
    let run_one = |at: u64, outage| {
        let scenario = scenario(seed, shards, cached, outage);
        world::run(Scenario { seed: seed ^ at << 48, ..scenario })
    };
    let first = run_one(0, Some(kind))?;
    let mut others = healthy_answers(shards, &first);
    let mut alone = healthy_answers(shards, &run_one(0, None)?);
    for at in 1..SAMPLES_MOST {
        others += healthy_answers(shards, &run_one(at, Some(kind))?);
        alone += healthy_answers(shards, &run_one(at, None)?);
        let samples = at + 1;
        let suffices = alone > 0 && others * 100 >= alone * RATE_LEAST;
        if suffices && samples >= SAMPLES_LEAST && samples.is_power_of_two() {
            return Ok(first);
        }
    }
    let detail =
        format!("in {SAMPLES_MOST} runs it answered {alone} bios alone, {others} beside it");
    Err(Box::new(Failure {
        seed,
        at: first.at,
        violation: violation(RATE, detail),
        history: Vec::new(),
        state: String::new(),
    }))
}

/// Runs the world that is drawn from `seed`, with the given number of shards if any.
///
/// # Errors
/// The violated rule.
pub fn run_drawn(seed: u64, shards: Option<u16>) -> Result<Outcome, Box<Failure>> {
    let mut prng = Prng::new(seed).split("outage world");
    let drawn = [1, 2, 4][prng.below(3) as usize];
    let cached = prng.below(2) == 0;
    let kind = [OutageKind::Silent, OutageKind::Refusing][prng.below(2) as usize];
    run(seed, shards.unwrap_or(drawn), cached, kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coverage::Point;

    /// Bios that waited for leased tags were unanswered for up to 2.4 time-outs; the healthy device had 0.83 of its rate.
    #[test]
    fn device_that_is_sent_further_commands_delays_no_bio_and_no_other_device() {
        // The rate is compared in two of them: it takes nine worlds.
        for (shards, seed) in [(4, 217), (1, 256)] {
            let outcome = run(seed, shards, true, OutageKind::Silent);
            outcome.unwrap_or_else(|failure| panic!("{shards} {seed}: {failure}"));
        }
        for (shards, seed) in [(4, 230), (4, 1023), (1, 227), (1, 217)] {
            let outcome = world::run(scenario(seed, shards, true, Some(OutageKind::Silent)));
            outcome.unwrap_or_else(|failure| panic!("{shards} {seed}: {failure}"));
        }
    }

    #[test]
    fn outage_delays_no_bio_for_long_and_no_other_device() {
        let kinds = [OutageKind::Silent, OutageKind::Refusing];
        // Each kind with each number of shards, and with a cache and without.
        let worlds = [1, 2, 4].into_iter().flat_map(|shards| kinds.map(|kind| (shards, kind)));
        for (at, (shards, kind)) in worlds.enumerate() {
            let cached = matches!(at, 0 | 3 | 4);
            let outcome = run(7 + u64::from(shards), shards, cached, kind)
                .unwrap_or_else(|failure| panic!("{shards} {cached} {kind:?}: {failure}"));
            let stuck = outcome.coverage.count(Point::NoticeStuck);
            let live = outcome.coverage.count(Point::NoticeLive);
            assert!(stuck > 0 && live > 0, "{shards} {cached} {kind:?}: {stuck} {live}");
        }
    }
}
