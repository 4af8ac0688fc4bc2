//! `headworks lab run`: the world in virtual time, from the command line.
//!
//! `smoke` runs swarm scenarios from consecutive seeds, for a time or for a number; it prints the hash of each hundred, so two
//! runs of one seed can be compared as far as the shorter one goes. `null` measures how fast the world turns. A broken rule is
//! told with the one command that repeats it; so is a panic, which is told before the process ends.
//!
//! Exit codes: 0 all checks met, 1 a check failed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use headworks_sim::throughput::{Watch, run_null};
use headworks_sim::{Failure, Smoke};
use serde_json::json;

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct SmokeOptions {
    /// The first scenario's seed.
    pub seed: u64,
    /// Forces the number of shards: 1, 2 or 4.
    pub shards: Option<u16>,
    /// Run this many scenarios; `minutes` does not count then.
    pub scenarios: Option<u64>,
    /// Run as many whole scenarios as start within this time.
    pub minutes: u64,
    /// Say what was found as one JSON object.
    pub json: bool,
}

/// The seed of the scenario that runs, for the panic hook. Relaxed: one thread writes and reads it.
static SEED: AtomicU64 = AtomicU64::new(0);

/// Runs scenarios until the time or the number is up; the exit code.
#[must_use]
pub fn run_smoke(options: SmokeOptions) -> i32 {
    tell_seed_on_panic(options.shards);
    let (mut smoke, start) = (Smoke::new(options.seed, options.shards), Instant::now());
    let time = Duration::from_secs(60 * options.minutes);
    loop {
        let enough = match options.scenarios {
            Some(scenarios) => smoke.scenarios >= scenarios,
            None => start.elapsed() >= time,
        };
        if enough {
            break;
        }
        SEED.store(smoke.seed, Ordering::Relaxed);
        if let Err(failure) = smoke.run_next() {
            tell_failure(&failure, options);
            return 1;
        }
        if smoke.scenarios.is_multiple_of(100) && !options.json {
            let (done, hash) = (smoke.scenarios, smoke.hash());
            println!("{done:>8} scenarios  hash {hash:016x}");
        }
    }
    tell_end(&smoke, options, start.elapsed());
    i32::from(!smoke.missed().is_empty())
}

fn repeat(seed: u64, shards: Option<u16>) -> String {
    let shards = shards.map_or(String::new(), |shards| format!(" --shards {shards}"));
    format!("headworks lab run smoke --seed {seed} --scenarios 1{shards}")
}

fn tell_seed_on_panic(shards: Option<u16>) {
    let inner = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        inner(info);
        let seed = SEED.load(Ordering::Relaxed);
        eprintln!(
            "headworks: error: a panic; repeat with: {}",
            repeat(seed, shards)
        );
    }));
}

fn tell_failure(failure: &Failure, options: SmokeOptions) {
    let command = repeat(failure.seed, options.shards);
    if options.json {
        let object = json!({
            "result": "failed",
            "seed": failure.seed,
            "rule": failure.violation.rule,
            "detail": failure.violation.detail,
            "at_ns": failure.at.0,
            "repeat": command,
        });
        println!("{object}");
    } else {
        print!("{failure}");
        println!("repeat with: {command}");
    }
}

fn tell_end(smoke: &Smoke, options: SmokeOptions, took: Duration) {
    let missed: Vec<_> = smoke.missed().iter().map(|point| point.name()).collect();
    let per_second = smoke.bios as f64 / took.as_secs_f64();
    if options.json {
        let object = json!({
            "result": if missed.is_empty() { "passed" } else { "uncovered" },
            "seed": options.seed,
            "scenarios": smoke.scenarios,
            "bios": smoke.bios,
            "hash": format!("{:016x}", smoke.hash()),
            "not_covered": missed,
        });
        println!("{object}");
        return;
    }
    println!(
        "{} scenarios, {} bios ({per_second:.0}/s), nothing broken; hash {:016x}",
        smoke.scenarios,
        smoke.bios,
        smoke.hash()
    );
    for point in missed {
        println!("never happened: {point}");
    }
}

/// Measures how fast the world turns, without and with the oracle; the exit code.
#[must_use]
pub fn run_speed(seed: u64, bios: u32, json: bool) -> i32 {
    for (watch, name, bios) in [
        (Watch::Nothing, "null", bios),
        (Watch::Oracle, "null with the oracle", bios / 5),
    ] {
        let start = Instant::now();
        match run_null(seed, bios, watch) {
            Err(failure) => {
                print!("{failure}");
                return 1;
            }
            Ok(outcome) => {
                let rate = outcome.bios as f64 / start.elapsed().as_secs_f64();
                let hash = format!("{:016x}", outcome.hash);
                if json {
                    println!(
                        "{}",
                        json!({"device": name, "bios": outcome.bios, "per_second": rate, "hash": hash})
                    );
                } else {
                    println!(
                        "{name}: {} simulated I/Os, {rate:.0} per second, hash {hash}",
                        outcome.bios
                    );
                }
            }
        }
    }
    0
}
