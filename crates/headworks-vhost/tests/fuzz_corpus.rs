//! Every kept input of the fuzz targets of vhost-user, as tests: what fuzzing found once stays found without the compiler's coverage flags.
//!
//! The targets are the files of `fuzz/targets`; here a macro of the same name as libFuzzer's makes a function of each.
#![cfg(not(loom))]

/// Stands for `libfuzzer_sys::fuzz_target`: the target as a function.
macro_rules! fuzz_target {
    (|$data:ident: $type:ty| $body:block) => {
        pub(crate) fn target($data: $type) $body
    };
}
pub(crate) use fuzz_target;

extern crate self as libfuzzer_sys;

#[path = "../../../fuzz/targets/vhost_messages.rs"]
mod vhost_messages;
#[path = "../../../fuzz/targets/vhost_rings.rs"]
mod vhost_rings;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Runs a target on each input of its corpus. A failure names the input.
fn replay(name: &str, target: impl Fn(&[u8])) {
    let folder = format!("{}/../../fuzz/corpus/{name}", env!("CARGO_MANIFEST_DIR"));
    let mut inputs: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    inputs.sort();
    assert!(inputs.len() > 50, "the corpus of {name} has {} inputs", inputs.len());
    for input in inputs {
        let bytes = fs::read(&input).unwrap();
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| target(&bytes))) {
            eprintln!("again with: scripts/fuzz --again {}", input.display());
            resume_unwind(panic);
        }
    }
}

#[test]
fn kept_messages_of_front_ends() {
    replay("vhost_messages", vhost_messages::target);
}

#[test]
fn kept_memory_of_drivers() {
    replay("vhost_rings", vhost_rings::target);
}
