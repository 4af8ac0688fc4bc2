//! What every option of `serve` answers to a wrong value.

use std::ffi::OsString;

use headworks_program::value_words::sentence;

fn said(line: &str) -> String {
    let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
    let command = crate::command();
    match command.clone().try_get_matches_from(&words) {
        Ok(_) => "good".to_owned(),
        Err(error) => {
            sentence(&error, &command, &words).unwrap_or_else(|| error.render().to_string())
        }
    }
}

#[test]
fn wrong_values_are_answered_by_what_is_right() {
    for (options, expected) in [
        ("-p http", "port: `http` is no port; 0 to 65535 are, and 10809 is that of NBD"),
        ("-p -1", "port: `-1` is no port"),
        ("-p 70000", "port: `70000` is no port"),
        ("-i localhost", "ip-addr: `localhost` is no IP address; 127.0.0.1, "),
        ("--poll-us 1ms", "poll-us: `1ms` is not a whole number such as 50"),
        ("--shards two", "shards: `two` is not a whole number such as 1"),
        ("--shards 100000", "shards: 100000 is not within 0..=65535"),
        ("--requests 99999999999999999999", "is too large a number"),
        ("--cpus 0-3", "cpus: `0-3` is no number of a CPU; a list is written 0,1,2,3"),
        ("--log file", "log: `file` is none of stderr, syslog, null"),
        ("--log sdterr", "; the nearest is `stderr`"),
        ("--sandbox yes", "sandbox: `yes` is none of on, off"),
        ("--spread=x", "spread: `x` is neither on nor off"),
        ("--buffers abc", "buffers: `abc` is not a size"),
        ("--metrics 9100", "metrics: `9100` is not an address and a port such as"),
        ("--nr-requests many", "nr-requests: `many` is not a whole number such as 16"),
        ("--limit iops=5", "limit: `iops` is no limit; did you mean iops-total?"),
        ("--stop-timeout -5", "stop-timeout: `-5` is not a time"),
    ] {
        let said = said(&format!("headworks serve disk.img {options}"));
        assert!(said.contains(expected) && !said.contains('\n'), "{options}: {said}");
    }
}

/// Every option of `serve` with three values that hardly one takes.
#[test]
fn no_option_answers_in_words_of_a_parser() {
    let command = crate::command();
    let serve = command.find_subcommand("serve").unwrap();
    for arg in serve.get_arguments().filter(|arg| arg.get_action().takes_values()) {
        let Some(long) = arg.get_long() else { continue };
        for value in ["nonsense words", "-1", "99999999999999999999"] {
            let line =
                ["headworks", "serve", &format!("--{long}={value}"), "x"].map(OsString::from);
            let Err(error) = command.clone().try_get_matches_from(&line) else { continue };
            let said = sentence(&error, &command, &line)
                .unwrap_or_else(|| panic!("--{long}={value}: {}", error.render()));
            let is_plain = said.starts_with(&format!("{long}: ")) && said.contains(value);
            let is_foreign = ["digit", "syntax", "invalid"].iter().any(|word| said.contains(word));
            assert!(is_plain && !is_foreign && !said.contains('\n'), "--{long}={value}: {said}");
        }
    }
}
