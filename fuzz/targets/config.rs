//! What may stand in a configuration file: it is refused with places, or it is written again as what says the same.
#![cfg_attr(fuzzing, no_main)]

use headworks_nbd::tls::TlsMode;
use headworks_server::FileOwner;
use headworks_server::config::{ConfigFile, ListenDefaults};

libfuzzer_sys::fuzz_target!(|text: &str| {
    // What is written is longer than what was read, and there is a limit.
    if text.len() > 32 << 10 {
        return;
    }
    let Ok(file) = ConfigFile::parse("f", text) else { return };
    let planned = file.plan(Some(1 << 20), false);
    let written = file.to_string();
    let again = ConfigFile::parse("f", &written).expect("what was written can be read");
    assert_eq!(
        format!("{:?}", again.plan(Some(1 << 20), false).ok()),
        format!("{:?}", planned.ok()),
        "{written}"
    );
    let defaults = ListenDefaults {
        mode: 0o600,
        tls: TlsMode::Off,
        certificates: Some("/pki".into()),
        verify_peer: true,
        owner: &|_| Ok(FileOwner { user: Some(7), group: None }),
    };
    assert_eq!(again.plan_access(&defaults).ok(), file.plan_access(&defaults).ok(), "{written}");
    let full = file.with_defaults();
    let again = ConfigFile::parse("f", &full.to_string()).expect("defaults can be read, too");
    assert_eq!(again.queue.len(), full.queue.len());
});
