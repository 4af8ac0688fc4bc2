//! Every kept input of the fuzz targets, as tests: what fuzzing found once stays found without the compiler's coverage flags.
//!
//! The targets are the files of `fuzz/targets`; here a macro of the same name as libFuzzer's makes a function of each.

/// Stands for `libfuzzer_sys::fuzz_target`: the target as a function.
macro_rules! fuzz_target {
    (|$data:ident: $type:ty| $body:block) => {
        pub(crate) fn target($data: $type) $body
    };
}
pub(crate) use fuzz_target;

extern crate self as libfuzzer_sys;

#[path = "../../../fuzz/targets/config.rs"]
mod config;
#[path = "../../../fuzz/targets/image.rs"]
mod image;
#[path = "../../../fuzz/targets/nbd_client.rs"]
mod nbd_client;
#[path = "../../../fuzz/targets/nbd_server.rs"]
mod nbd_server;
#[path = "../../../fuzz/targets/shard.rs"]
mod shard;

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

/// The text at the beginning, as libFuzzer takes it.
fn text(bytes: &[u8]) -> &str {
    let valid = std::str::from_utf8(bytes).map_or_else(|error| error.valid_up_to(), str::len);
    std::str::from_utf8(&bytes[..valid]).unwrap()
}

#[test]
fn kept_configuration_files() {
    replay("config", |bytes| config::target(text(bytes)));
}

#[test]
fn kept_images() {
    replay("image", image::target);
    fs::remove_dir_all(format!("/dev/shm/headworks-fuzz-{}", std::process::id())).unwrap();
}

#[test]
fn kept_streams_of_servers() {
    replay("nbd_client", nbd_client::target);
}

#[test]
fn kept_streams_of_clients() {
    replay("nbd_server", nbd_server::target);
}

#[test]
fn kept_steps_of_a_shard() {
    replay("shard", shard::target);
}
