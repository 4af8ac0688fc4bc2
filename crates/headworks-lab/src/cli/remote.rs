//! `headworks-lab run remote`: a device behind a simulated NBD server, by consecutive seeds.
//!
//! The world and its rules are [`headworks_nbd::device::world`]. Exit codes: 0 no rule was broken and every fault was met, 1 otherwise.

use headworks_nbd::device::world::{Met, run};
use serde_json::json;

/// Schedules after which every fault must have been met.
const MET_AFTER: u64 = 300;

/// Arguments of `headworks-lab run remote`.
#[derive(Clone, Copy, Debug)]
pub struct RemoteArgs {
    /// Seed of the first schedule.
    pub seed: u64,
    /// Number of schedules to run.
    pub schedules: u64,
    /// Prints the result as one JSON object.
    pub json: bool,
}

/// The command that repeats a schedule.
pub fn repeat(seed: u64) -> String {
    format!("headworks-lab run remote --seed {seed} --schedules 1")
}

/// Runs the schedules; returns the exit code. `begin` is called with each seed.
pub fn run_remote(args: RemoteArgs, begin: impl Fn(u64)) -> i32 {
    let RemoteArgs { seed, schedules, json } = args;
    let mut met = Met::default();
    for seed in seed..seed.saturating_add(schedules) {
        begin(seed);
        match run(seed) {
            Ok(one) => met.add(&one),
            Err(rule) => {
                print_failure(seed, &rule, json);
                return 1;
            }
        }
    }
    let faults = faults(&met);
    let missed: Vec<_> = faults.iter().filter(|(_, count)| *count == 0).map(|it| it.0).collect();
    if json {
        let faults: serde_json::Map<_, _> =
            faults.iter().map(|(name, count)| ((*name).to_owned(), json!(count))).collect();
        let hash = format!("{:016x}", met.hash);
        let object = json!({ "result": "passed", "seed": seed, "schedules": schedules,
            "commands": met.commands, "faults": faults, "hash": hash });
        println!("{object}");
    } else {
        let (commands, hash) = (met.commands, met.hash);
        println!(
            "{schedules} schedules from seed {seed}, {commands} commands, no violation; hash {hash:016x}"
        );
        for (name, count) in faults {
            println!("{count:>8} {name}");
        }
    }
    i32::from(schedules >= MET_AFTER && !missed.is_empty())
}

fn faults(met: &Met) -> [(&'static str, u64); 10] {
    [
        ("restarts", met.restarts),
        ("cuts", met.cuts),
        ("disconnects", met.disconnects),
        ("stalls", met.stalls),
        ("losses", met.losses),
        ("failed flushes", met.failed_flushes),
        ("refused changes", met.refused_changes),
        ("refused flushes", met.refused_flushes),
        ("refused kept writes", met.refused_repeats),
        ("reads with a gap", met.gaps),
    ]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_pass_and_meet_every_fault() {
        let args = RemoteArgs { seed: 1000, schedules: MET_AFTER, json: false };
        assert_eq!(run_remote(args, |_| {}), 0);
    }
}
