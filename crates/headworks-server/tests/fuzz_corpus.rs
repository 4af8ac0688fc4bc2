//! Every kept input of the fuzz targets, as tests.

extern crate self as libfuzzer_sys;

#[path = "../../../fuzz/replay.rs"]
mod replay;

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

pub(crate) use replay::fuzz_target;
use replay::replay;

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
