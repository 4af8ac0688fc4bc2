//! The tests of `headworks crashtest`: the program runs once, on a directory or a disk that records, and every state that a power cut may
//! leave is made from the record and checked.
//!
//! ```text
//!   --setup --> checkpoint --> --run, recorded --> record
//!        the check is tested: it holds without a loss, and fails on empty directories
//!        each model: states drawn, or all of a place --> directories --> --check --> shrunk --> causes
//!        --fs: the record repeated on file systems of the kernel, whose disk is cut --> which causes they show
//! ```
//!
//! A disk is an image, a file of the record (`disk`). The commands get directories as `$dir`, `$dir2` and `$state`; each line that `--run` prints is a promise, and `--check` reads those
//! that were printed before the cut on its standard input.

mod again;
mod causes;
mod disk;
mod explore;
mod file_system;
mod judge;
mod opinion;
mod program;
mod replayed;
mod report;
mod workplace;

use crate::shown::{error_line, print_line};
use std::time::{Duration, Instant};

use headworks_crash::{Model, Record, Walk};

use super::arguments::CrashtestArgs;
use super::child;
use causes::Causes;
use explore::{Explorer, Found};
pub use file_system::FileSystem;
use judge::{Judge, Verdict};
use opinion::Opinion;
use workplace::Workplace;

/// States that are drawn under each model.
const DRAWS: u64 = 1000;
/// States of a disk that are drawn: each is served to its check.
const DISK_DRAWS: u64 = 300;
/// Time for draws.
const DRAW_TIME: Duration = Duration::from_secs(60);

/// Tests a program. Returns whether something is broken; the error is a sentence.
pub fn test(options: &CrashtestArgs) -> Result<bool, String> {
    child::adopt_orphans();
    let began = Instant::now();
    // Before anything starts a thread: it may change what this process and its children see.
    let place = Workplace::new(options)?;
    let result = tested(options, &place, began);
    let left = child::kill_orphans();
    if left > 0 && !options.json {
        error_line!("{left} processes that the programs left behind were ended");
    }
    result
}

fn tested(options: &CrashtestArgs, place: &Workplace, began: Instant) -> Result<bool, String> {
    options.files.fs.iter().try_for_each(|kind| opinion::try_out(place, *kind))?;
    let (record, ran) = match &options.files.again {
        Some(file) => (again::read(file)?, None),
        None => {
            let began = Instant::now();
            let record = match options.uses_files() {
                true => program::record(options, place)?,
                false => disk::record(options, place)?,
            };
            (record, Some(began.elapsed()))
        }
    };
    let check = options.check.as_deref().or_else(|| record.command("check"));
    let check = check.ok_or("the record has no check: --check gives one")?;
    if let Some(state) = &options.files.state {
        return again::state(options, place, &record, check, state);
    }
    let described = report::recorded(&record, ran);
    if !options.json {
        print_line!("{described}");
    }
    test_the_check(options, place, &record, check)?;
    let models = match options.files.model {
        Some(model) => vec![model],
        // A disk has no names: every model loses the same of it.
        None if record.image().is_some() => vec![Model::Journal],
        None => Model::ALL.to_vec(),
    };
    let explorer = Explorer::new(options, place, &record, check);
    let mut found = explorer.explore(&models)?;
    let mut opinions = Vec::new();
    for kind in &options.files.fs {
        let mut causes = Causes::known(std::mem::take(&mut found.causes));
        opinions.push(opinion::ask(options, place, &explorer, *kind, &mut causes)?);
        found.causes = causes.sorted();
    }
    let failed = fails(options, &found, &opinions);
    let broken = !found.causes.is_empty();
    let record_file = place.keep_record(options, &record, broken)?;
    report::report(
        options,
        &record,
        (&found, &opinions),
        record_file.as_deref(),
        check,
        began.elapsed(),
    )?;
    Ok(failed)
}

/// Whether what was found is a failure: what POSIX alone allows is one if it was asked for.
fn fails(options: &CrashtestArgs, found: &Found, opinions: &[Opinion]) -> bool {
    let asked = options.files.strict || options.files.model.is_some();
    let unexplained = opinions.iter().any(|opinion| opinion.unexplained > 0);
    unexplained || found.causes.iter().any(|cause| asked || !cause.is_only_allowed())
}

/// Tests the check before it is believed: it holds at the end without a loss, and fails if all is gone after a promise.
fn test_the_check(
    options: &CrashtestArgs,
    place: &Workplace,
    record: &Record,
    check: &str,
) -> Result<(), String> {
    let promises = record.counts().promises;
    let uses_state = [&options.run, &options.check]
        .into_iter()
        .any(|program| program.as_ref().is_some_and(|program| program.contains("$state")));
    // A program finds $state in its environment, too: what it wrote there are its promises.
    let is_kept = |index: u8| record.disks[usize::from(index)].keeps_all;
    let notes = record.changes.iter().any(|change| is_kept(change.disk) && change.line().is_none());
    if promises == 0 && !uses_state && !notes {
        return Err("the program promised nothing: each line that it prints is a promise, and it printed none".into());
    }
    let mut judge = Judge::new(place, "check", check, options.timeout);
    let mut walk = Walk::new(record, Model::Journal, 4096);
    walk.go(usize::MAX);
    let mut trees = walk.trees(&vec![0; walk.axes().len()]);
    if let Verdict::Broken(said) = judge.check(record, walk.place(), &trees)? {
        let log = judge.said();
        return Err(format!("the check fails without a power cut: {said}{log}"));
    }
    for (tree, disk) in trees.iter_mut().zip(&record.disks) {
        if disk.is_image() {
            *tree = disk::zeroed(tree);
        } else if !disk.keeps_all {
            let (uid, gid) =
                tree.node(headworks_crash::ROOT).map_or((0, 0), |root| (root.uid, root.gid));
            *tree = headworks_crash::Tree::new(uid, gid);
        }
    }
    match judge.check(record, walk.place(), &trees)? {
        Verdict::Broken(_) => Ok(()),
        Verdict::Holds => Err(format!(
            "the check is blind: it accepts an empty {} after {promises} promises; it must fail if what its standard input promises is not there",
            if record.image().is_some() { "disk" } else { "directory" }
        )),
    }
}
