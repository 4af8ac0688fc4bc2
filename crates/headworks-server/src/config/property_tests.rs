//! Properties for any text: parsing does not panic, and a valid text is written as an equivalent one.

use headworks_core::QueueOptions;
use headworks_core::prng::Prng;
use headworks_nbd::tls::TlsMode;

use super::{ConfigFile, ListenDefaults};
use crate::exports::assemble::ExportSpec;
use crate::listen::FileOwner;

/// Words of the grammar and similar ones, valid and invalid.
const WORDS: [&str; 88] = [
    "[[template]]\n",
    "[template.tenant]\n",
    "[template.export]\n",
    "[template.listen]\n",
    "names = ",
    "'{}'",
    "[[listen]]\n",
    "unix = ",
    "address = ",
    "mode = ",
    "certificates = ",
    "'127.0.0.1:7'",
    "[[tenant]]\n",
    "tenant = ",
    "exports = ",
    "ioprio-max = ",
    "[server]\n",
    "[server.vm]\n",
    "[server.queue]\n",
    "[server.queue.iosched]\n",
    "[[device]]\n",
    "[device.queue]\n",
    "[device.queue.iosched]\n",
    "[[export]]\n",
    "[export]\n",
    "[[server]]\n",
    "name = ",
    "device = ",
    "weight = ",
    "ioprio = ",
    "cache = ",
    "on-error = ",
    "read-only = ",
    "file = ",
    "mem = ",
    "null = ",
    "wrap = ",
    "delay = ",
    "error = ",
    "queue = ",
    "vm = ",
    "nr_requests = ",
    "scheduler = ",
    "fifo_batch = ",
    "iosched.fifo_batch = ",
    "dirty_bytes = ",
    "dirty_ratio = ",
    "dirty_background_bytes = ",
    "hw_throttle = ",
    "port = ",
    "\"a b\" = ",
    "'x.y' = ",
    "\"\\u0001\" = ",
    "1",
    "400",
    "-5",
    "0o17",
    "0.5",
    "nan",
    "true",
    "1979-05-27",
    "'fast'",
    "''",
    "\"a\\\"b\\\\\"",
    "\"\\u007f\\u0000\"",
    "\"\\n\"",
    "'rt:0'",
    "'writeback'",
    "'hold'",
    "'mq-deadline'",
    "'10G'",
    "'1M'",
    "'none'",
    "[1, 'a', true]",
    "[]",
    "{}",
    "{ path = '/x,y', size = '1M' }",
    "{ size = 65536 }",
    "{ size = '1M', size = 1 }",
    "[{ delay = { read = '5ms' } }]",
    "[{ error = { rate = 0.01 } }, { delay = { all = 1 } }]",
    "{ path = '\u{e9}\u{1f600}' }",
    "\n",
    "\n",
    "\n",
    " # ",
    ",",
    "\u{0}",
];

fn text(prng: &mut Prng) -> String {
    if prng.below(4) == 0 {
        return soup(prng);
    }
    let mut text = String::new();
    for _ in 0..prng.below(4) {
        text += ["[server]\nport = 1\n", "[server.vm]\ndirty_ratio = 9\n", "[server.queue]\n"]
            [prng.below(3) as usize];
        text += ["", "x = [1, '']\n", "nr_requests = 7\n"][prng.below(3) as usize];
    }
    for device in 0..prng.below(3) {
        text += &format!("[[device]]\nname = 'd{device}'\n");
        text += ["", "queue.nr_requests = 9\n", "queue.iosched.fifo_batch = 3\n"]
            [prng.below(3) as usize];
    }
    for tenant in 0..prng.below(3) {
        text += &format!("[[tenant]]\nname = 't{tenant}'\n");
        text += ["", "weight = 9\n", "ioprio-max = 'idle'\n", "enabled = false\n"]
            [prng.below(4) as usize];
        text += ["", "exports = ['e*', '?']\n", "exports = 'e0'\n"][prng.below(3) as usize];
        text += ["", "certificates = ['*.x', 'a\\b']\n"][prng.below(2) as usize];
    }
    for listener in 0..prng.below(3) {
        text += &format!("[[listen]]\nname = 'l{listener}'\n");
        text += &["", "unix = '/l'\n", "address = '127.0.0.1:7'\n", "enabled = false\n"]
            [prng.below(4) as usize]
            .replace("/l", &format!("/l{listener}"));
        text += ["", "mode = '0660'\n", "mode = 640\n", "owner = '7:8'\n"][prng.below(4) as usize];
        text += ["", "exports = ['e*', '?']\n", "tenant = 't0'\n"][prng.below(3) as usize];
    }
    for export in 0..prng.below(4) {
        let name = ["e", "\\u0001 \\\"", "\\\\ \u{e9}"][prng.below(3) as usize];
        text += &format!("[[export]]\nname = \"{name}{export}\"\nmem.size = '{}M'\n", export + 1);
        text += ["", "weight = 7\n", "device = 'd0'\n", "wrap = [{ delay = { all = 1 } }]\n"]
            [prng.below(4) as usize];
        text += ["", "cache = 'unsafe'\n", "read-only = true\n", "ioprio = 'idle'\n"]
            [prng.below(4) as usize];
        text += ["", "", "tenant = 't0'\n", "tenant = 'none'\n"][prng.below(4) as usize];
        text += ["", "", "certificates = 'e'\n"][prng.below(3) as usize];
    }
    if prng.below(3) == 0 {
        let places: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        if let Some(at) = places.get(prng.below(places.len().max(1) as u64) as usize) {
            text.insert_str(*at, WORDS[prng.below(WORDS.len() as u64) as usize]);
        }
    }
    text
}

fn soup(prng: &mut Prng) -> String {
    (0..prng.below(20)).map(|_| WORDS[prng.below(WORDS.len() as u64) as usize]).collect()
}

/// The configuration without origins.
fn bare(file: &ConfigFile) -> String {
    file.to_string().replace("# file again:", "# file f:").lines().map(without_line).collect()
}

fn without_line(line: &str) -> String {
    line.rsplit_once("# file f:").map_or(line, |(said, _)| said).to_owned() + "\n"
}

/// The resulting exports; defaults may be explicit or not.
fn effect(exports: &[ExportSpec]) -> String {
    let mut exports = exports.to_vec();
    let mut queues = Vec::new();
    for device in exports.iter_mut().filter_map(|export| export.device.as_mut()) {
        let mut queue = QueueOptions::default();
        for (tunable, value) in std::mem::take(&mut device.queue) {
            tunable.set(&mut queue, value).expect("it was checked when it was read");
        }
        queues.push(queue);
    }
    format!("{exports:?} {queues:?}")
}

fn listen_defaults() -> ListenDefaults<'static> {
    ListenDefaults {
        mode: 0o600,
        tls: TlsMode::Off,
        certificates: None,
        verify_peer: false,
        owner: &|_| Ok(FileOwner { user: Some(7), group: Some(8) }),
    }
}

#[test]
fn valid_text_round_trips_and_no_text_panics() {
    let (mut good, mut full, mut listeners) = (0, 0, 0);
    for seed in 0..4_000 {
        let mut prng = Prng::new(seed);
        let text = text(&mut prng);
        let Ok(file) = ConfigFile::parse("f", &text) else { continue };
        let planned = file.plan(None, false);
        let tenants = file.plan_tenants().map_err(drop);
        let file = if prng.below(2) == 0 { file.with_defaults() } else { file };
        let written = file.to_string();
        let again = ConfigFile::parse("again", &written)
            .unwrap_or_else(|problems| panic!("seed {seed}: {problems}\n{text}\n{written}"));
        assert_eq!(bare(&again), bare(&file).replace("# default\n", "\n"), "seed {seed}\n{text}");
        let replanned = again.plan(None, false);
        assert_eq!(tenants, again.plan_tenants().map_err(drop), "seed {seed}\n{text}");
        let access = |file: &ConfigFile| file.plan_access(&listen_defaults()).map_err(drop);
        assert_eq!(access(&file), access(&again), "seed {seed}\n{text}");
        listeners += access(&file).map_or(0, |access| access.listeners.len());
        assert_eq!(planned.is_ok(), replanned.is_ok(), "seed {seed}\n{text}");
        if let (Ok(first), Ok(second)) = (planned, replanned) {
            assert_eq!(effect(&first), effect(&second), "seed {seed}\n{text}");
            full += usize::from(!first.is_empty());
        }
        good += 1;
    }
    assert!(listeners > 100, "only {listeners} listeners were planned");
    assert!(good > 1_000 && full > 400, "only {good} texts were good, {full} had exports");
}
