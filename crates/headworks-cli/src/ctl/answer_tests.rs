//! What `headworks ctl` and `top` print of every answer of the server's own test, and what they ask: `ctl/answers.txt` beside this file.
//!
//! After a change that is meant, `ANSWERS=write cargo test -p headworks-cli ctl_answer_tests` makes the file again.

use std::collections::BTreeMap;

use clap::{CommandFactory, FromArgMatches};
use serde_json::Value;

use crate::ctl::{self, CtlArgs};
use crate::top;

const GIVEN: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../headworks-server/src/server/answers.txt");
const SHOWN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/ctl/answers.txt");

/// The command of these words.
fn command(words: &str) -> CtlArgs {
    let line = ["headworks", "ctl", "/run/x.ctl"].into_iter().chain(words.split(' '));
    let matches = crate::Cli::command().try_get_matches_from(line).unwrap();
    CtlArgs::from_arg_matches(matches.subcommand().unwrap().1).unwrap()
}

/// Command lines for the answers of a method.
fn lines(method: &str, params: &Value) -> Vec<String> {
    let word = |name: &str| params[name].as_str().unwrap_or_default();
    let words = match method {
        "get" => vec![format!("get {}", word("path"))],
        "set" => vec!["set a=1 b 2".to_owned()],
        "stats" => vec!["stats".to_owned(), "latency".to_owned()],
        "histograms" if params["export"].is_null() => Vec::new(),
        "histograms" => vec![format!("latency {}", word("export"))],
        "why" if params["op"].is_string() => vec![format!("why --op {} --since 5s", word("op"))],
        "add" => vec![format!("add --read-only {}", word("spec"))],
        "add-tenant" | "remove-tenant" => vec![format!("{method} {}", word("tenant"))],
        "add-listener" | "remove-listener" => vec![format!("{method} {}", word("listener"))],
        "resize" => vec![format!("resize {} {}", word("export"), word("size"))],
        "snapshot" => vec![format!("snapshot {} {}", word("export"), word("file"))],
        "freeze" => vec!["freeze a b* --timeout 1.5s".to_owned()],
        "thaw" | "refuse-clients" => vec![format!("{method} a b*")],
        "accept-clients" => vec!["accept-clients --all".to_owned()],
        "discard-failed" if params["confirm"] == true => vec!["discard-failed x --yes".to_owned()],
        "log-level" => vec![format!("log-level {}", word("level"))],
        _ => vec![format!("{method} {}", word("export"))],
    };
    words.iter().map(|words| words.trim_end().to_owned()).collect()
}

/// Calls with their answers; a refusal has a code.
fn given() -> Vec<(String, Value, Value)> {
    let text = std::fs::read_to_string(GIVEN).unwrap();
    let calls = text.split("\n\n").filter_map(|call| call.split_once('\n'));
    let call = |(head, answer): (&str, &str)| {
        let (method, params) = head.split_once(' ').unwrap();
        let value = |text: &str| serde_json::from_str(text).unwrap();
        (method.to_owned(), value(params), value(answer))
    };
    calls.map(call).collect()
}

#[test]
fn answers_print_as_before() {
    let (mut text, mut last) = (String::new(), BTreeMap::new());
    for (method, params, answer) in given() {
        if answer.get("code").is_some() {
            text += &format!(
                "refused {method} {params}\n{}\n\n",
                headworks_control::client::refusal(&answer)
            );
            continue;
        }
        for line in lines(&method, &params) {
            let command = command(&line);
            let (method, params) = ctl::asked(&command);
            // It differs by where the test runs.
            let params = params
                .to_string()
                .replace(&*std::env::current_dir().unwrap().to_string_lossy(), "/DIR");
            let shown = ctl::shown(&command, &answer);
            text += &format!("ctl {line}: {method} {params}\n{shown}\n");
        }
        last.entry(method).or_insert(answer);
    }
    let told = |name: &str| last[name].clone();
    text += &top::testing::shown(["stats", "histograms", "diskstats", "exports", "why"].map(told));
    if std::env::var_os("ANSWERS").is_some_and(|what| what == "write") {
        std::fs::write(SHOWN, &text).unwrap();
    }
    let before = std::fs::read_to_string(SHOWN).unwrap();
    let differs =
        text.lines().zip(before.lines()).enumerate().find(|(_, (now, before))| now != before);
    assert_eq!(differs, None, "line, now and before");
    assert_eq!(text.len(), before.len());
}
