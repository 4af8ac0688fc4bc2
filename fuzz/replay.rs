//! Replays the kept inputs of a fuzz target in a test, without the compiler's coverage flags: what fuzzing found once stays found.
//!
//! A test includes this file as a module at its root, and calls itself `libfuzzer_sys`: the targets, which are the files of `targets`,
//! find a macro of the same name as libFuzzer's there, which makes a function of each.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Stands for `libfuzzer_sys::fuzz_target`: the target as a function.
macro_rules! fuzz_target {
    (|$data:ident: $type:ty| $body:block) => {
        pub(crate) fn target($data: $type) $body
    };
}
pub(crate) use fuzz_target;

/// Runs a target on each input of its corpus. A failure names the input.
pub fn replay(name: &str, target: impl Fn(&[u8])) {
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
