//! What the program knows and the guides do not: every type of a SPEC with its keys, every key of an export and of a tenant, every
//! command, and every option of `serve` and `ctl` has a place in docs/guide. That the guides name nothing which the program does not know is
//! tried by `tests/interop/guides.test.sh`, with the commands themselves.

use std::collections::BTreeSet;
use std::path::Path;

use headworks_server::{ExportOptions, Layer, TenantOptions};

/// The words of all guides: letters, digits, `-` and `_`.
fn words() -> BTreeSet<String> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide"));
    let pages = std::fs::read_dir(folder).unwrap().map(|page| page.unwrap().path());
    let texts = pages.map(|page| std::fs::read_to_string(page).unwrap());
    let in_word = |letter: char| letter.is_alphanumeric() || "-_".contains(letter);
    let words = texts.flat_map(|text| {
        text.split(|letter| !in_word(letter)).map(str::to_owned).collect::<Vec<_>>()
    });
    words.collect()
}

/// Names of a command's subcommands and long options, hidden ones left out.
fn names(command: &clap::Command) -> Vec<String> {
    let options = command.get_arguments().filter(|one| !one.is_hide_set());
    let options = options.filter_map(|one| one.get_long()).map(|long| format!("--{long}"));
    let commands = command.get_subcommands().filter(|one| !one.is_hide_set());
    options.chain(commands.map(|one| one.get_name().to_owned())).collect()
}

#[test]
fn guides_have_a_word_of_everything_that_the_program_knows() {
    let words = words();
    let mut command = crate::command();
    command.build();
    let mut known = names(&command);
    for name in ["serve", "ctl", "image", "check", "top", "crashtest", "info", "disks", "dir"] {
        known.extend(names(command.find_subcommand(name).unwrap()));
    }
    known.extend(Layer::kinds().map(|(kind, _)| kind.to_owned()));
    for (kind, _) in Layer::kinds() {
        known.extend(Layer::keys(kind).map(str::to_owned));
    }
    known.extend(ExportOptions::keys().map(str::to_owned));
    known.extend(TenantOptions::keys().map(|(key, _)| key.to_owned()));
    // The page on limits says once what these endings mean.
    let limit = |name: String| {
        let stem = name.trim_end_matches("-length").trim_end_matches("-max").to_owned();
        if name.starts_with("bps-") || name.starts_with("iops-") { stem } else { name }
    };
    let mut known: Vec<String> = known.into_iter().map(limit).collect();
    // Help of the command line itself.
    let own = ["--help", "--version", "help"];
    known.retain(|name| !own.contains(&name.as_str()) && !words.contains(name));
    known.sort();
    known.dedup();
    assert_eq!(known, Vec::<String>::new(), "words that no guide has");
}
