//! `headworks crashtest`: cuts the power of a program at chosen places, and checks what is left. A program that works in `$dir` has its files
//! recorded once (`files/`); one that writes to `$uri` runs on a served disk again for each cut:
//!
//! ```text
//!   template (zeros, an image, after --setup)
//!      | copied for each cut
//!      v
//!   serve powercut:at=PLACE --run LOAD --> the server kills itself, the load is killed with it
//!      |  what survived
//!      v
//!   serve the image --run CHECK --> exit 0: holds      anything else: broken, with the command that repeats it
//! ```
//!
//! A cut is a place, one of the writes and flushes that reach the disk, and a seed that decides what survives. The first run cuts nothing
//! and counts them. A program that does the same each time meets the same end at the same cut.

mod arguments;
mod child;
mod files;
mod image;
mod junit;
mod session;

use crate::shown::{error_line, print_line};
use std::process::ExitCode;

use headworks_core::prng::Prng;

pub use arguments::CrashtestArgs;
use arguments::Cut;
#[cfg(test)]
pub use files::FileSystem;
use junit::Case;
use session::{Outcome, Session};

/// Cuts on a disk.
const CUTS: u64 = 100;
/// Exit code of a test that found a broken image or state.
const BROKEN: u8 = 1;

/// Runs the command with its arguments.
pub fn run(options: &CrashtestArgs) -> ExitCode {
    let tested = match options.misplaced() {
        Some(wrong) => Err(wrong),
        None if options.uses_files() => files::test(options),
        None => test(options).map(|verdict| verdict.broken.is_some()),
    };
    match tested {
        Ok(false) => ExitCode::SUCCESS,
        Ok(true) => ExitCode::from(BROKEN),
        Err(error) => {
            crate::complain(error);
            ExitCode::from(crate::USAGE)
        }
    }
}

/// What the cuts found.
#[derive(Default)]
struct Verdict {
    cuts: u64,
    /// Cuts that the load did not reach in its run.
    missed: u64,
    broken: Option<Cut>,
}

fn test(options: &CrashtestArgs) -> Result<Verdict, String> {
    let began = std::time::Instant::now();
    let session = Session::new(options)?;
    let mut verdict = Verdict::default();
    let commands = match options.cut {
        Some(cut) => cut.place,
        None => session.count()?,
    };
    let mut prng = Prng::new(options.seed);
    let cuts = if options.cut.is_some() { 1 } else { options.cuts.unwrap_or(CUTS) };
    let mut told = std::time::Instant::now();
    for index in 0..cuts {
        let cut = options.cut.unwrap_or_else(|| Cut::draw(&mut prng, index, cuts, commands));
        if told.elapsed().as_secs() >= 1 {
            told = std::time::Instant::now();
            error_line!(
                "cut {} of {cuts}, at write or flush {} of {commands}",
                index + 1,
                cut.place
            );
        }
        match session.cut(cut)? {
            Outcome::Holds => verdict.cuts += 1,
            Outcome::Finished => verdict.missed += 1,
            Outcome::Broken(said) => {
                verdict.cuts += 1;
                verdict.broken = Some(cut);
                report_broken(options, &session, cut, &said);
                let again = options.again(cut);
                let case = Case { name: "power cuts".into(), failure: Some(said), output: again };
                write_case(options, case, began)?;
                return Ok(finish(options, verdict, commands));
            }
        }
    }
    let output = format!("{} cuts, none broken", verdict.cuts);
    write_case(options, Case { name: "power cuts".into(), failure: None, output }, began)?;
    Ok(finish(options, verdict, commands))
}

fn write_case(
    options: &CrashtestArgs,
    case: Case,
    began: std::time::Instant,
) -> Result<(), String> {
    let path = options.junit.as_ref();
    path.map_or(Ok(()), |path| junit::write(path, &[case], began.elapsed().as_secs_f64()))
}

fn report_broken(options: &CrashtestArgs, session: &Session<'_>, cut: Cut, said: &str) {
    if options.json {
        return;
    }
    print_line!("broken after a power cut at write or flush {}: {said}", cut.place);
    for line in session.end_of_check() {
        print_line!("    {line}");
    }
    print_line!("image: {}", session.image().display());
    print_line!("again: {}", options.again(cut));
}

fn finish(options: &CrashtestArgs, verdict: Verdict, commands: u64) -> Verdict {
    let Verdict { cuts, missed, broken } = &verdict;
    if options.json {
        let again = broken.map(|cut| options.again(cut));
        let cut = broken.map(|cut| cut.to_string());
        print_line!(
            "{}",
            serde_json::json!({ "cuts": cuts, "missed": missed, "commands": commands, "broken": cut, "again": again })
        );
        return verdict;
    }
    let late = match missed {
        0 => String::new(),
        _ => format!(
            "; {missed} more came after the end of the load, which does not do the same each time"
        ),
    };
    let result = if broken.is_some() { "1 broken" } else { "none broken" };
    print_line!("{cuts} cuts in {commands} writes and flushes: {result}{late}");
    verdict
}
