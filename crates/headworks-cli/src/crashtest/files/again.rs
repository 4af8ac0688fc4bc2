//! A record again: read from its file; one of its states made, checked and kept.

use crate::shown::{Lines, print_line, print_text};
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use headworks_crash::{Model, Record, Walk, read_record, write_tree};

use super::super::arguments::{CrashtestArgs, StateWord};
use super::judge::{Judge, Verdict};
use super::workplace::Workplace;

/// Reads a record's file.
pub fn read(file: &Path) -> Result<Record, String> {
    let opened = File::open(file).and_then(|opened| read_record(BufReader::new(opened)));
    opened.map_err(|error| format!("{}: {error}", file.display()))
}

/// Makes one state and checks it. Returns whether it is broken.
pub fn state(
    options: &CrashtestArgs,
    place: &Workplace,
    record: &Record,
    check: &str,
    word: &StateWord,
) -> Result<bool, String> {
    let model = options.files.model.unwrap_or(Model::Journal);
    let mut walk = Walk::new(record, model, options.block(record));
    walk.go(word.state.place);
    let there = walk.place() == word.state.place;
    let choices = word.state.choices(walk.axes()).filter(|_| there).ok_or_else(|| {
        format!("the record has no state {} under the model {model}: --model and --sector are those of the report", word.state)
    })?;
    let trees = walk.trees(&choices);
    let hash = walk.hash(&trees);
    if word.hash.is_some_and(|expected| expected != hash) {
        return Err(format!(
            "state {} is another directory, {hash:016x}: the record is not the one of the report",
            word.state
        ));
    }
    if let Some(directory) = &options.files.keep_dir {
        write_tree(&trees[0], directory).map_err(|error| {
            format!("{} cannot be made, it must not exist: {error}", directory.display())
        })?;
    }
    let mut judge = Judge::new(place, "job-0", check, options.timeout);
    let verdict = judge.check(record, walk.place(), &trees)?;
    let broken = matches!(verdict, Verdict::Broken(_));
    let said = match &verdict {
        Verdict::Holds => "holds",
        Verdict::Broken(said) => said,
    };
    if options.json {
        print_line!(
            "{}",
            serde_json::json!({ "state": word.state.to_string(), "hash": format!("{hash:016x}"), "broken": broken, "said": said })
        );
    } else {
        let text = format!("state {}, directory {hash:016x}: {said}{}", word.state, judge.said());
        let mut lines = Lines::default();
        text.lines().for_each(|line| lines.push(line));
        print_text!("{}", lines.into_text());
    }
    Ok(broken)
}
