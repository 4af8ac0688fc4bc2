//! What a test found, as text, as one JSON object, for CI systems, and for GitHub as annotations.

use crate::shown::{error_line, print_line, print_text};
use std::path::Path;
use std::time::Duration;

use headworks::house::display_size;
use headworks_core::escape_controls;
use headworks_crash::Record;

use super::super::arguments::{CrashtestArgs, quoted};
use super::super::junit::{self, Case};
use super::causes::Cause;
use super::explore::Found;
use super::opinion::Opinion;

/// Column at which the states of a cause begin.
const COLUMN: usize = 70;

/// The line about a record.
pub fn recorded(record: &Record, ran: Option<Duration>) -> String {
    let counts = record.counts();
    let size = record.trees(record.changes.len()).iter().map(headworks_crash::Tree::used).sum();
    let time = ran.map(|ran| format!(" in {:.2} s", ran.as_secs_f64())).unwrap_or_default();
    let (changes, syncs, place) = match record.image() {
        Some(_) => ("writes", "flushes", "disk"),
        None => ("changes", "syncs", "directory"),
    };
    format!(
        "recorded: {} {changes}{time}, {} {syncs}, {} promises; {place} {}",
        counts.changes,
        counts.syncs,
        counts.promises,
        display_size(size)
    )
}

/// Reports a test in every form that was asked for.
pub fn report(
    options: &CrashtestArgs,
    record: &Record,
    (found, opinions): (&Found, &[Opinion]),
    file: Option<&Path>,
    check: &str,
    time: Duration,
) -> Result<(), String> {
    let again = |cause: &Cause| file.map(|file| again(options, cause, file, check));
    if options.json {
        print_line!("{}", json(record, found, opinions, &again));
    } else {
        print_text!("{}", text(found, opinions, &again));
    }
    if let Some(path) = &options.junit {
        junit::write(path, &cases(options, found, opinions, &again), time.as_secs_f64())?;
    }
    if std::env::var_os("GITHUB_ACTIONS").is_some() {
        found.causes.iter().for_each(|cause| error_line!("{}", annotation(cause)));
    }
    Ok(())
}

/// A cause as GitHub's actions show it: one line, in which a percent sign is an escape.
fn annotation(cause: &Cause) -> String {
    let text = format!("{}: {}", cause.said, cause.why.join("; "));
    format!("::error title=crashtest::{}", escape_controls(&text).replace('%', "%25"))
}

/// The command that repeats the first state of a cause.
fn again(options: &CrashtestArgs, cause: &Cause, file: &Path, check: &str) -> String {
    let sector = match &options.files.sector {
        None => String::new(),
        Some(sector) => format!(" --sector {sector}"),
    };
    let file = quoted(&file.display().to_string());
    // A state inside a recovery has no record of its own: its check is run again, up to the state before.
    let (state, hash) = match &cause.within {
        Some(state) => (state, String::new()),
        None => (&cause.first, format!("@{:016x}", cause.hash)),
    };
    let check = quoted(check);
    format!(
        "headworks crashtest --again {file} --state {state}{hash} --model {}{sector} --check {check}",
        cause.model
    )
}

fn text(found: &Found, opinions: &[Opinion], again: &dyn Fn(&Cause) -> Option<String>) -> String {
    let Found { states, distinct, broken, places, beyond, causes, .. } = found;
    let mut text = format!("{states} states at {} cuts, {distinct} distinct: ", places.0);
    text += &match (broken, causes.len()) {
        (0, _) => "none broken".to_owned(),
        (broken, 1) => format!("{broken} broken, 1 cause"),
        (broken, causes) => format!("{broken} broken, {causes} causes"),
    };
    text += &format!("    {:.1} s\n", found.time.as_secs_f64());
    if *beyond > 0 {
        text += &format!(
            "{beyond} of {} cuts have more states than --exhaustive allows; some were drawn there\n",
            places.0
        );
    }
    if found.recoveries.0 > 0 {
        text += &format!(
            "{} states whose recovery writes, {} cuts inside it\n",
            found.recoveries.0, found.recoveries.1
        );
    }
    if found.timed_out {
        text += &format!("--time ended it, at {} of {} cuts\n", places.0, places.1);
    }
    opinions.iter().for_each(|opinion| text += &opinion_text(opinion));
    let mut posix = false;
    for (number, cause) in (1..).zip(causes) {
        if cause.is_only_allowed() && !posix {
            posix = true;
            text += "not on ext4, XFS or btrfs, as far as tested; POSIX allows it:\n";
        }
        text += &cause_text(number, cause);
        text += &shown_by(cause, opinions);
        if let Some(again) = again(cause) {
            text += &format!("     again: {again}\n");
        }
    }
    text
}

/// What a file system of the kernel left.
fn opinion_text(opinion: &Opinion) -> String {
    let Opinion { kind, kernel, cuts, states, members, unknown, strangers, broken, .. } = opinion;
    let model = kind.model();
    let mut text = format!(
        "{kind} of Linux {kernel}: {cuts} cuts, {broken} broken; {states} states, {members} of them in {model}"
    );
    if *unknown > 0 {
        text += &format!(", {unknown} cannot be told");
    }
    text += if opinion.timed_out { "; --time ended it\n" } else { "\n" };
    if *strangers > 0 {
        text += &format!(
            "     {strangers} are not in {model}, which lacks something that {kind} does:\n"
        );
    }
    if opinion.unexplained > 0 {
        text += &format!(
            "     {} broken cuts are among them, and have no cause here\n",
            opinion.unexplained
        );
    }
    for one in &opinion.described {
        text += &format!("       {}\n", escape_controls(one));
    }
    text
}

/// Which file systems of the kernel showed a cause.
fn shown_by(cause: &Cause, opinions: &[Opinion]) -> String {
    let mut text = String::new();
    for Opinion { kind, kernel, cuts, .. } in opinions {
        text += &match cause.seen_on(kind.name()) {
            _ if cause.within.is_some() => continue,
            Some(seen) => {
                let asked = match seen.undisturbed {
                    0 => ", all with a write-back or commit that the program did not ask for",
                    _ => "",
                };
                format!(
                    "     confirmed by {kind} of Linux {kernel}: {} of {cuts} cuts{asked}\n",
                    seen.cuts
                )
            }
            None => format!("     not seen in {cuts} cuts of {kind} of Linux {kernel}\n"),
        };
    }
    text
}

fn cause_text(number: usize, cause: &Cause) -> String {
    let states = match cause.states {
        1 => "1 state".to_owned(),
        states => format!("{states} states"),
    };
    let first = match &cause.within {
        Some(state) => format!("{} in the recovery of {state}", cause.first),
        None => cause.first.to_string(),
    };
    // What the check says, and names of files.
    let said = escape_controls(&cause.said);
    let mut text = format!("{number:<3}{said:COLUMN$} {states}, first {first}\n");
    for why in &cause.why {
        text += &format!("     {}\n", escape_controls(why));
    }
    if cause.unasked {
        text += "     needs a write-back that the program did not ask for\n";
    }
    text
}

fn json(
    record: &Record,
    found: &Found,
    opinions: &[Opinion],
    again: &dyn Fn(&Cause) -> Option<String>,
) -> serde_json::Value {
    let counts = record.counts();
    let causes: Vec<serde_json::Value> = found
        .causes
        .iter()
        .map(|cause| {
            let effects = cause.effects.iter().map(|effect| {
                serde_json::json!({ "op": effect.operation, "path": effect.path, "offset": effect.offset, "len": effect.length })
            });
            serde_json::json!({
                "said": cause.said,
                "why": cause.why,
                "model": cause.model.name(),
                "states": cause.states,
                "first": cause.first.to_string(),
                "within": cause.within.as_ref().map(ToString::to_string),
                "hash": format!("{:016x}", cause.hash),
                "unasked": cause.unasked,
                "confirmed": cause.seen.iter().map(|seen| serde_json::json!({ "fs": seen.kind, "cuts": seen.cuts, "undisturbed": seen.undisturbed })).collect::<Vec<_>>(),
                "effects": effects.collect::<Vec<_>>(),
                "again": again(cause),
            })
        })
        .collect();
    serde_json::json!({
        "changes": counts.changes,
        "syncs": counts.syncs,
        "promises": counts.promises,
        "states": found.states,
        "distinct": found.distinct,
        "broken": found.broken,
        "cuts": found.places.0,
        "beyond": found.beyond,
        "recoveries": found.recoveries.0,
        "timed_out": found.timed_out,
        "fs": opinions.iter().map(opinion_json).collect::<Vec<_>>(),
        "causes": causes,
    })
}

fn opinion_json(opinion: &Opinion) -> serde_json::Value {
    serde_json::json!({
        "fs": opinion.kind.name(),
        "kernel": opinion.kernel,
        "model": opinion.kind.model().name(),
        "cuts": opinion.cuts,
        "broken": opinion.broken,
        "unexplained": opinion.unexplained,
        "states": opinion.states,
        "members": opinion.members,
        "strangers": opinion.strangers,
        "unknown": opinion.unknown,
        "described": opinion.described,
        "timed_out": opinion.timed_out,
    })
}

fn cases(
    options: &CrashtestArgs,
    found: &Found,
    opinions: &[Opinion],
    again: &dyn Fn(&Cause) -> Option<String>,
) -> Vec<Case> {
    let asked = options.files.strict || options.files.model.is_some();
    let case = |cause: &Cause| {
        let counts = asked || !cause.is_only_allowed();
        let failure = format!("{}\n{}{}", cause.said, cause.why.join("\n"), cause.log);
        let mut output = shown_by(cause, opinions) + &again(cause).unwrap_or_default();
        if !counts {
            output = format!("POSIX allows it: {failure}\n{output}");
        }
        Case {
            name: cause.why.last().cloned().unwrap_or_default(),
            failure: counts.then_some(failure),
            output,
        }
    };
    match found.causes.is_empty() {
        true => vec![Case {
            name: "power cuts".into(),
            failure: None,
            output: format!("{} states, none broken", found.distinct),
        }],
        false => found.causes.iter().map(case).collect(),
    }
}

#[cfg(test)]
mod tests {
    use headworks_crash::{Model, State};

    use super::*;

    #[test]
    fn what_checks_say_and_names_of_files_end_no_line_and_move_no_cursor() {
        let cause = Cause {
            model: Model::Journal,
            said: "50 % \u{1b}[2J".into(),
            why: vec!["rename of /a\n::error::x was not durable".into()],
            effects: Vec::new(),
            states: 1,
            first: State::new(0, &[]),
            within: None,
            hash: 0,
            unasked: false,
            log: String::new(),
            seen: Vec::new(),
        };
        assert_eq!(cause_text(1, &cause).matches('\n').count(), 2);
        for text in [cause_text(1, &cause).replace('\n', ""), annotation(&cause)] {
            assert!(!text.contains(char::is_control), "{text:?}");
        }
        assert!(annotation(&cause).starts_with("::error title=crashtest::50 %25 "));
    }
}
