//! `headworks-lab run joints`: joined worlds, by consecutive seeds.
//!
//! The worlds and their rules are [`headworks_sim::joints`]. Exit codes: 0 no rule was broken, 1 otherwise.

use std::time::{Duration, Instant};

use headworks_sim::joints::{COVERED_AFTER, JointKind, JointsRun};
use serde_json::json;

use super::run::print_failure;

/// Arguments of `headworks-lab run joints`.
#[derive(Clone, Copy, Debug)]
pub struct JointsArgs {
    /// Seed of the first world of each kind.
    pub seed: u64,
    /// Number of seeds to run, of each kind.
    pub worlds: u64,
    /// Minutes to run, in place of a number.
    pub minutes: Option<u64>,
    /// The one kind to run; all without it.
    pub kind: Option<JointKind>,
    /// Prints the result as one JSON object.
    pub json: bool,
}

/// The command that repeats a world.
fn repeat(seed: u64, kind: JointKind) -> String {
    format!("headworks-lab run joints --kind {} --seed {seed} --worlds 1", kind.name())
}

/// The command that repeats the worlds of a seed.
pub fn repeat_all(seed: u64) -> String {
    format!("headworks-lab run joints --seed {seed} --worlds 1")
}

/// Runs the worlds; returns the exit code. `begin` is called with each seed.
pub fn run_joints(args: JointsArgs, begin: impl Fn(u64)) -> i32 {
    let JointsArgs { seed, worlds, minutes, kind, json } = args;
    let kinds: Vec<_> =
        JointKind::ALL.into_iter().filter(|it| kind.is_none_or(|kind| kind == *it)).collect();
    let (mut run, start, mut done) = (JointsRun::default(), Instant::now(), 0);
    let goes_on = |done| match minutes {
        Some(minutes) => start.elapsed() < Duration::from_secs(60 * minutes),
        None => done < worlds,
    };
    while goes_on(done) {
        for &kind in &kinds {
            let seed = seed.wrapping_add(done);
            begin(seed);
            if let Err(failure) = run.run(seed, kind) {
                print_failure(&failure, repeat(seed, kind), json);
                return 1;
            }
        }
        done += 1;
    }
    let missed = if done < COVERED_AFTER { Vec::new() } else { run.missed(&kinds) };
    print_summary(&run, args, done);
    for point in &missed {
        eprintln!("headworks-lab: error: never passed: {}", point.name());
    }
    i32::from(!missed.is_empty())
}

fn print_summary(run: &JointsRun, args: JointsArgs, seeds: u64) {
    let JointsRun { worlds, cuts, deaths, .. } = run;
    let hash = format!("{:016x}", run.hash());
    if args.json {
        let object = json!({ "result": "passed", "seed": args.seed, "seeds": seeds, "worlds": worlds, "cuts": cuts,
            "deaths": deaths, "hash": hash });
        println!("{object}");
    } else {
        println!(
            "{worlds} worlds of {seeds} seeds from {}, {cuts} power cuts, {deaths} process deaths, no violation; hash {hash}",
            args.seed
        );
        let images = &run.images;
        println!(
            "kept blocks of {} volumes: {} to their image, {} elsewhere, {} that could not be told",
            images.volumes, images.restored, images.beside, images.not_told
        );
    }
}
