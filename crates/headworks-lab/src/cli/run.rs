//! `headworks-lab run` and `headworks-lab replay`.
//!
//! `smoke` runs swarm scenarios from consecutive seeds, for a time or for a number; it prints the
//! hash after each hundred, so two runs of one seed can be compared up to the end of the shorter.
//! `null` measures the speed of the simulation. A violation is printed with the command that
//! reproduces it; so is a panic, before the process ends.
//!
//! Exit codes: 0 all checks passed, 1 a check failed, 2 invalid options.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use clap::Subcommand;
use headworks_core::prng::Prng;
use headworks_sim::joints::JointKind;
use headworks_sim::smoke::SmokeKind;
use headworks_sim::throughput::{Checking, run_null};
use headworks_sim::{Failure, SmokeRun};
use serde_json::json;

use crate::cli::{
    USAGE, bfq, bfq_linux, cached, complain, fit_hdd, front, handle, joints, list, receive_path,
    remote, seed002, seed003, tables, vhost_kill,
};
use crate::crash;
use crate::experiment::ExperimentName;

/// An experiment of `headworks-lab run`.
#[derive(Subcommand)]
pub enum Experiment {
    /// Tag allocation on a disk: 1 to 512 jobs of 1 MiB writes, split into 128 KiB requests
    #[command(name = "seed-000")]
    Seed000(tables::TableArgs),
    /// Batch dispatch: device order, merges, and requests outside the elevator
    #[command(name = "seed-001")]
    Seed001(tables::TableArgs),
    /// Dirty throttling: 1 to 10,000 writers, load steps, stalls, small files, on a device that
    /// favours sequential streams
    #[command(name = "seed-002")]
    Seed002(seed002::ThrottlingArgs),
    /// Large folios: index operations, folios, fills and requests per MiB, against single-block
    /// folios
    #[command(name = "seed-003")]
    Seed003(seed003::FolioArgs),
    /// Dirty throttling in real time: CPU per MB written, pausing writers against foreground
    /// write-back
    #[command(name = "seed-002-cpu")]
    Seed002Cpu(tables::TableArgs),
    /// Large folios in real time: cost of a hit of 64 KiB with small and with large folios
    #[command(name = "seed-003-cpu")]
    Seed003Cpu(tables::TableArgs),
    /// Large folios with the seed's threads: four volumes with 252 jobs each, and readers beside a trim; with --beside in the kernel, too
    #[command(name = "seed-003-jobs")]
    Seed003Jobs(seed003::JobsArgs),
    /// Plugging: how many of a batch's sequential reads become one request
    #[command(name = "seed-004")]
    Seed004(tables::TableArgs),
    /// Fair sharing of a device: a light reader against heavy ones, equal jobs, weights
    Fairness(tables::TableArgs),
    /// BFQ on modelled disks beside mq-deadline and none: shares, throughput, start-up of programs,
    /// soft real time, many exports, noisy neighbours
    Bfq(bfq::BfqArgs),
    /// The cases of bfq on a block device of the kernel, with the kernel's schedulers
    #[command(name = "bfq-linux")]
    BfqLinux(bfq_linux::LinuxArgs),
    /// One client of bfq-linux, which starts it
    #[command(name = "bfq-linux-client", hide = true)]
    BfqLinuxClient(bfq_linux::LinuxClientArgs),
    /// Buffered writers of tenants: parts of the device by weight, pauses, the dirty limit
    DirtyShares(tables::TableArgs),
    /// Cost of a call on cached blocks, in process and, with --beside, in the kernel
    Cached(cached::CachedArgs),
    /// Requests through one connection of the server and their replies back, without a shard: for counting instructions
    /// (benches/counts.sh)
    ReceivePath(receive_path::ReceivePathArgs),
    /// Reads through a handle of the library, in batches: for counting instructions (benches/counts.sh, benches/c-api.sh)
    Handle(handle::HandleArgs),
    /// Kills a vhost-user server again and again under verified requests, and connects again with the in-flight region
    VhostKill(vhost_kill::VhostKillArgs),
    /// Searches for the parameters of the disk of seed-000
    #[command(name = "fit-hdd", hide = true)]
    FitHdd(fit_hdd::FitArgs),
    /// Random simulated worlds with every fault, checked by an oracle
    Smoke {
        /// Seed of the first scenario; random by default
        #[arg(long)]
        seed: Option<u64>,
        /// Force the number of shards: 1, 2 or 4
        #[arg(long)]
        shards: Option<u16>,
        /// Run this many scenarios instead of for a time
        #[arg(long)]
        scenarios: Option<u64>,
        /// Minutes to run
        #[arg(long, default_value_t = 1)]
        minutes: u64,
        /// Run worlds with 50 tenants alone: limits, latency targets, weights, and changes of all of them
        #[arg(long)]
        many_tenants: bool,
        /// Run worlds with volumes on a base alone: what is cached of it is shared
        #[arg(long, conflicts_with = "many_tenants")]
        layers: bool,
        /// Print one JSON object at the end
        #[arg(long)]
        json: bool,
    },
    /// Power cuts at random moments under random load, with caches, checked by an oracle
    Crash {
        /// Seed of the first scenario; random by default
        #[arg(long)]
        seed: Option<u64>,
        /// Force the number of shards: 1, 2 or 4
        #[arg(long)]
        shards: Option<u16>,
        /// Number of power cuts
        #[arg(long, default_value_t = 10_000)]
        cuts: u64,
        /// Minutes to run, in place of a number of cuts
        #[arg(long)]
        minutes: Option<u64>,
        /// Print JSON, one object a line
        #[arg(long)]
        json: bool,
    },
    /// A device behind a simulated NBD server that restarts, stalls, cuts its streams and refuses
    /// writes and flushes, checked by a model
    Remote {
        /// Seed of the first schedule; random by default
        #[arg(long)]
        seed: Option<u64>,
        /// Number of schedules
        #[arg(long, default_value_t = 10_000)]
        schedules: u64,
        /// Print one JSON object at the end
        #[arg(long)]
        json: bool,
    },
    /// Joined worlds: overlays under kills and power cuts, images that change before a start, stops beside a hung device
    Joints {
        /// The first seed; random by default
        #[arg(long)]
        seed: Option<u64>,
        /// Number of seeds, each a world of every kind
        #[arg(long, default_value_t = 200)]
        worlds: u64,
        /// Minutes to run, in place of a number of seeds
        #[arg(long)]
        minutes: Option<u64>,
        /// Run worlds of this kind alone
        #[arg(long, value_parser = parse_kind)]
        kind: Option<JointKind>,
        /// Print one JSON object at the end
        #[arg(long)]
        json: bool,
    },
    /// Connections of the server with simulated clients: half-sent, slow, silent and vanishing ones, limits, freezes, hand-overs, a device that
    /// does not answer, checked by an oracle
    Front {
        /// Seed of the first world; random by default
        #[arg(long)]
        seed: Option<u64>,
        /// Number of worlds
        #[arg(long, default_value_t = 1000)]
        worlds: u64,
        /// Minutes to run, in place of a number of worlds
        #[arg(long)]
        minutes: Option<u64>,
        /// Print one JSON object at the end
        #[arg(long)]
        json: bool,
    },
    /// Speed of the simulation: simulated I/Os per real second
    Null {
        /// Seed of the run
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Number of bios without the oracle; a fifth of them with it
        #[arg(long, default_value_t = 5_000_000)]
        bios: u32,
        /// Print JSON, one object a line
        #[arg(long)]
        json: bool,
    },
}

impl Experiment {
    /// Its name on the command line.
    fn name(&self) -> &'static str {
        match self {
            Self::Seed000(_) => "seed-000",
            Self::Seed001(_) => "seed-001",
            Self::Seed002(_) => "seed-002",
            Self::Seed002Cpu(_) => "seed-002-cpu",
            Self::Seed003(_) => "seed-003",
            Self::Seed003Cpu(_) => "seed-003-cpu",
            Self::Seed003Jobs(_) => "seed-003-jobs",
            Self::Seed004(_) => "seed-004",
            Self::Fairness(_) => "fairness",
            Self::Bfq(_) => "bfq",
            Self::BfqLinux(_) => "bfq-linux",
            Self::BfqLinuxClient(_) => "bfq-linux-client",
            Self::DirtyShares(_) => "dirty-shares",
            Self::Cached(_) => "cached",
            Self::ReceivePath(_) => "receive-path",
            Self::Handle(_) => "handle",
            Self::VhostKill(_) => "vhost-kill",
            Self::FitHdd(_) => "fit-hdd",
            Self::Smoke { .. } => "smoke",
            Self::Crash { .. } => "crash",
            Self::Remote { .. } => "remote",
            Self::Joints { .. } => "joints",
            Self::Front { .. } => "front",
            Self::Null { .. } => "null",
        }
    }

    /// Seconds that its options say; none if they say nothing of time.
    fn given_seconds(&self) -> Option<u64> {
        match self {
            // As many as are asked for may take any time.
            Self::Smoke { scenarios: Some(_), .. } => Some(0),
            Self::Smoke { minutes, .. }
            | Self::Crash { minutes: Some(minutes), .. }
            | Self::Front { minutes: Some(minutes), .. }
            | Self::Joints { minutes: Some(minutes), .. } => Some(minutes.saturating_mul(60)),
            _ => None,
        }
    }
}

/// Runs an experiment; returns the exit code of the process.
pub fn run(experiment: Experiment) -> ExitCode {
    list::say_time(experiment.name(), experiment.given_seconds());
    let code = match experiment {
        Experiment::Null { seed, bios, json } => run_speed(seed, bios, json),
        Experiment::Seed000(options) => return options.run(ExperimentName::Seed000),
        Experiment::Seed001(options) => return options.run(ExperimentName::Seed001),
        Experiment::Seed002(options) => return options.run(),
        Experiment::Seed002Cpu(options) => return options.run(ExperimentName::Seed002Cpu),
        Experiment::Seed003(options) => return options.run(),
        Experiment::Seed003Cpu(options) => return options.run(ExperimentName::Seed003Cpu),
        Experiment::Seed003Jobs(options) => return options.run(),
        Experiment::Seed004(options) => return options.run(ExperimentName::Seed004),
        Experiment::Fairness(options) => return options.run(ExperimentName::Fairness),
        Experiment::Bfq(options) => return options.run(),
        Experiment::BfqLinux(options) => return options.run(),
        Experiment::BfqLinuxClient(options) => return options.run(),
        Experiment::DirtyShares(options) => return options.run(ExperimentName::DirtyShares),
        Experiment::Cached(options) => return options.run(),
        Experiment::ReceivePath(options) => return options.run(),
        Experiment::Handle(options) => return options.run(),
        Experiment::VhostKill(options) => return options.run(),
        Experiment::FitHdd(options) => return fit_hdd::run(&options),
        Experiment::Smoke { shards: Some(shards), .. }
        | Experiment::Crash { shards: Some(shards), .. }
            if ![1, 2, 4].contains(&shards) =>
        {
            complain(format!("invalid value {shards} for --shards; expected 1, 2 or 4"));
            return ExitCode::from(USAGE);
        }
        Experiment::Smoke { seed, shards, scenarios, minutes, many_tenants, layers, json } => {
            let seed = seed.unwrap_or_else(fresh_seed);
            let kind = match (many_tenants, layers) {
                (true, _) => SmokeKind::ManyTenants,
                (_, true) => SmokeKind::Layers,
                _ => SmokeKind::Mixed,
            };
            run_smoke(SmokeArgs { seed, shards, scenarios, minutes, kind, json })
        }
        Experiment::Crash { seed, shards, cuts, minutes, json } => {
            let seed = seed.unwrap_or_else(fresh_seed);
            run_crash(CrashArgs { seed, shards, cuts, minutes, json })
        }
        Experiment::Remote { seed, schedules, json } => {
            report_seed_on_panic(remote::repeat);
            let seed = seed.unwrap_or_else(fresh_seed);
            let args = remote::RemoteArgs { seed, schedules, json };
            remote::run_remote(args, |seed| SEED.store(seed, Ordering::Relaxed))
        }
        Experiment::Joints { seed, worlds, minutes, kind, json } => {
            report_seed_on_panic(joints::repeat_all);
            let seed = seed.unwrap_or_else(fresh_seed);
            let args = joints::JointsArgs { seed, worlds, minutes, kind, json };
            joints::run_joints(args, |seed| SEED.store(seed, Ordering::Relaxed))
        }
        Experiment::Front { seed, worlds, minutes, json } => {
            report_seed_on_panic(front::repeat);
            let seed = seed.unwrap_or_else(fresh_seed);
            let args = front::FrontArgs { seed, worlds, minutes, json };
            front::run_front(args, |seed| SEED.store(seed, Ordering::Relaxed))
        }
    };
    ExitCode::from(code as u8)
}

fn parse_kind(name: &str) -> Result<JointKind, String> {
    let names = JointKind::ALL.map(JointKind::name).join(", ");
    JointKind::named(name).ok_or_else(|| format!("expected one of {names}"))
}

/// A random seed for a run; reports name it, so failures can be reproduced.
fn fresh_seed() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Prng::new(since.map_or(0, |since| since.as_nanos() as u64)).below(1 << 40)
}

/// Arguments of `headworks-lab run smoke`.
#[derive(Clone, Copy, Debug)]
pub struct SmokeArgs {
    /// Seed of the first scenario.
    pub seed: u64,
    /// Forces the number of shards: 1, 2 or 4.
    pub shards: Option<u16>,
    /// Number of scenarios to run, in place of `minutes`.
    pub scenarios: Option<u64>,
    /// Minutes within which scenarios are started.
    pub minutes: u64,
    /// Which worlds it runs.
    pub kind: SmokeKind,
    /// Prints the result as one JSON object.
    pub json: bool,
}

/// The seed of the current scenario, for the panic hook. Relaxed: one thread writes and reads it.
static SEED: AtomicU64 = AtomicU64::new(0);

/// Runs scenarios until the time or number is reached; returns the exit code.
#[must_use]
pub fn run_smoke(options: SmokeArgs) -> i32 {
    report_seed_on_panic(move |seed| repeat(seed, options));
    let (mut smoke, start) = (SmokeRun::new(options.seed, options.shards), Instant::now());
    smoke.kind = options.kind;
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
            print_failure(&failure, repeat(failure.seed, options), options.json);
            return 1;
        }
        if smoke.scenarios.is_multiple_of(100) && !options.json {
            let (done, hash) = (smoke.scenarios, smoke.hash());
            println!("{done:>8} scenarios  hash {hash:016x}");
        }
    }
    print_summary(&smoke, options, start.elapsed());
    i32::from(!smoke.missed().is_empty())
}

/// Arguments of `headworks-lab run crash`.
#[derive(Clone, Copy, Debug)]
struct CrashArgs {
    seed: u64,
    shards: Option<u16>,
    cuts: u64,
    minutes: Option<u64>,
    json: bool,
}

/// Runs scenarios until the number of cuts or the time is reached; returns the exit code.
fn run_crash(options: CrashArgs) -> i32 {
    let CrashArgs { seed, shards, cuts, minutes, json } = options;
    report_seed_on_panic(move |seed| crash::repeat(seed, shards));
    let (start, mut told) = (Instant::now(), Instant::now());
    if !json {
        println!("seed {seed}");
    }
    let done = crash::run(crash::CrashOptions { seed, shards }, |crash| {
        SEED.store(crash.seed, Ordering::Relaxed);
        if told.elapsed() >= Duration::from_secs(5) {
            told = Instant::now();
            let (done, deaths, hash) = (crash.cuts, crash.deaths, crash.hash());
            eprintln!(
                "{done:>8} power cuts, {deaths} process deaths in {} scenarios  hash {hash:016x}",
                crash.scenarios
            );
        }
        match minutes {
            Some(minutes) => start.elapsed() < Duration::from_secs(60 * minutes),
            None => crash.cuts < cuts || crash.deaths < cuts,
        }
    });
    match done {
        Ok(crash) => {
            let wanted = if minutes.is_some() { crash.cuts.min(crash.deaths) } else { cuts };
            let report = crash::report(&crash, seed, wanted);
            print!("{}", if json { report.to_json() } else { report.to_text() });
            i32::from(!report.passes())
        }
        Err(failure) => {
            print_failure(&failure, crash::repeat(failure.seed, shards), json);
            1
        }
    }
}

fn repeat(seed: u64, options: SmokeArgs) -> String {
    let shards = options.shards.map_or(String::new(), |shards| format!(" --shards {shards}"));
    let kind = match options.kind {
        SmokeKind::Mixed => "",
        SmokeKind::ManyTenants => " --many-tenants",
        SmokeKind::Layers => " --layers",
    };
    format!("headworks-lab run smoke --seed {seed} --scenarios 1{shards}{kind}")
}

fn report_seed_on_panic(repeat: impl Fn(u64) -> String + Send + Sync + 'static) {
    let inner = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        inner(info);
        let seed = SEED.load(Ordering::Relaxed);
        eprintln!("headworks-lab: error: panic; repeat with: {}", repeat(seed));
    }));
}

pub(super) fn print_failure(failure: &Failure, command: String, json: bool) {
    if json {
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

fn print_summary(smoke: &SmokeRun, options: SmokeArgs, took: Duration) {
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
        "{} scenarios, {} bios ({per_second:.0}/s), no violation; hash {:016x}",
        smoke.scenarios,
        smoke.bios,
        smoke.hash()
    );
    for point in missed {
        println!("not covered: {point}");
    }
}

/// Measures the speed of the simulation with and without the oracle; returns the exit code.
#[must_use]
pub fn run_speed(seed: u64, bios: u32, json: bool) -> i32 {
    for (watch, name, bios) in
        [(Checking::Off, "null", bios), (Checking::Oracle, "null with the oracle", bios / 5)]
    {
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
