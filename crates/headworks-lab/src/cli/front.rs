//! `headworks-lab run front`: connections of the server with simulated clients, by consecutive seeds.
//!
//! The world and its rules are [`headworks_server::front_world`]. Exit codes: 0 no rule was broken and every fault was met, 1 otherwise.

use std::time::{Duration, Instant};

use headworks_server::front_world::{Met, run};
use serde_json::json;

/// Worlds after which every fault must have been met.
const MET_AFTER: u64 = 150;

/// Arguments of `headworks-lab run front`.
#[derive(Clone, Copy, Debug)]
pub struct FrontArgs {
    /// Seed of the first world.
    pub seed: u64,
    /// Number of worlds to run.
    pub worlds: u64,
    /// Minutes to run, in place of a number.
    pub minutes: Option<u64>,
    /// Prints the result as one JSON object.
    pub json: bool,
}

/// The command that repeats a world.
pub fn repeat(seed: u64) -> String {
    format!("headworks-lab run front --seed {seed} --worlds 1")
}

/// Runs the worlds; returns the exit code. `begin` is called with each seed.
pub fn run_front(args: FrontArgs, begin: impl Fn(u64)) -> i32 {
    let FrontArgs { seed, worlds, minutes, json } = args;
    let (mut met, start) = (Met::default(), Instant::now());
    let goes_on = |done| match minutes {
        Some(minutes) => start.elapsed() < Duration::from_secs(60 * minutes),
        None => done < worlds,
    };
    while goes_on(met.worlds) {
        let seed = seed.wrapping_add(met.worlds);
        begin(seed);
        match run(seed) {
            Ok(one) => met.add(&one),
            Err(rule) => {
                print_failure(seed, &rule, json);
                return 1;
            }
        }
    }
    print_summary(&met, seed, json);
    let missed = met.faults().into_iter().filter(|(_, count)| *count == 0);
    let missed: Vec<_> = missed.filter(|_| met.worlds >= MET_AFTER).map(|(name, _)| name).collect();
    for name in &missed {
        eprintln!("headworks-lab: error: never met: {name}");
    }
    i32::from(!missed.is_empty())
}

fn print_summary(met: &Met, seed: u64, json: bool) {
    let (worlds, answers, hash) = (met.worlds, met.answers, format!("{:016x}", met.hash));
    if json {
        let faults: serde_json::Map<_, _> =
            met.faults().iter().map(|(name, count)| ((*name).to_owned(), json!(count))).collect();
        let object = json!({ "result": "passed", "seed": seed, "worlds": worlds, "answers": answers,
            "faults": faults, "longest_ms": met.longest_ms, "longest_buffer_us": met.longest_buffer_us,
            "hash": hash });
        println!("{object}");
        return;
    }
    println!(
        "{worlds} worlds from seed {seed}, {answers} requests answered, no violation; hash {hash}"
    );
    for (name, count) in met.faults() {
        println!("{count:>8} {name}");
    }
    println!("{:>8} ms: the longest request of a client without a fault", met.longest_ms);
    println!("{:>8} us: the longest wait for a buffer on a quiet export", met.longest_buffer_us);
}

fn print_failure(seed: u64, rule: &str, json: bool) {
    if json {
        let object =
            json!({ "result": "failed", "seed": seed, "detail": rule, "repeat": repeat(seed) });
        println!("{object}");
    } else {
        println!("seed {seed}: {rule}\nrepeat with: {}", repeat(seed));
    }
}
