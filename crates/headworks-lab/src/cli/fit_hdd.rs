//! `run fit-hdd`: a random search for the parameters of `HddProfile::seed_000`, against the seed's single-job table only. The
//! mean seek is constrained to 7 to 11.5 ms, as in data sheets of such drives; a local search around the best parameters follows.

use std::process::ExitCode;

use clap::Args;
use headworks_core::ConfigError;
use headworks_core::prng::Prng;
use headworks_disks::HddProfile;

use crate::cli::complain;
use crate::seed000::fit;

#[derive(Args)]
pub struct FitArgs {
    /// Cache of the disk in MiB
    #[arg(default_value_t = 32)]
    cache_mib: u64,
    /// Sets of parameters that are tried: half of them drawn, half near the best
    #[arg(default_value_t = 200)]
    trials: u64,
    /// Seed of the search
    #[arg(default_value_t = 1)]
    seed: u64,
}

/// Prints each set of parameters that is better than those before, and in the end its rows.
pub fn run(args: &FitArgs) -> ExitCode {
    match search(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(error);
            ExitCode::FAILURE
        }
    }
}

fn search(&FitArgs { cache_mib, trials, seed }: &FitArgs) -> Result<(), ConfigError> {
    let mut prng = Prng::new(seed);
    let mut best = (f64::MAX, HddProfile::seed_000(cache_mib));
    for trial in 0..trials {
        let profile =
            if trial < trials / 2 { draw(&mut prng, cache_mib) } else { near(&mut prng, best.1) };
        if trial > 0 && !(7_000_000..=11_500_000).contains(&profile.mean_seek_ns()) {
            continue;
        }
        let profile = if trial == 0 { best.1 } else { profile };
        let rms = fit::rms(&fit::rows(profile, 1, 20)?);
        if rms < best.0 {
            best = (rms, profile);
            println!("{trial:>5}: rms {:.2} %  {profile:?}", 100.0 * rms);
        }
    }
    let rows = fit::rows(best.1, 2, 60)?;
    for row in &rows {
        let (measured, sim) = fit::compare(row);
        println!(
            "{:>6} KiB: {measured} {sim:.1} {:+.1} %",
            row.int("bs_kib"),
            100.0 * (sim / measured - 1.0)
        );
    }
    println!("rms {:.2} % with another seed", 100.0 * fit::rms(&rows));
    Ok(())
}

fn draw(prng: &mut Prng, cache_mib: u64) -> HddProfile {
    HddProfile {
        seek_ns: prng.between(300, 1_500) * 1_000,
        stroke_ns: prng.between(8_000, 18_000) * 1_000,
        settle_ns: prng.between(0, 600) * 1_000,
        media_bytes_per_second: prng.between(90_000, 125_000) * 1_000,
        window: prng.between(8, 64) as usize,
        unit_bytes: prng.between(8, 16) << 17,
        ..HddProfile::seed_000(cache_mib)
    }
}

fn near(prng: &mut Prng, from: HddProfile) -> HddProfile {
    let mut about = |value: u64| value * prng.between(90, 110) / 100;
    HddProfile {
        seek_ns: about(from.seek_ns),
        stroke_ns: about(from.stroke_ns),
        settle_ns: about(from.settle_ns),
        media_bytes_per_second: about(from.media_bytes_per_second),
        window: about(from.window as u64) as usize,
        unit_bytes: prng.between(8, 16) << 17,
        ..from
    }
}
