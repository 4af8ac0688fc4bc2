//! Every kept input of the fuzz targets of vhost-user, as tests.
#![cfg(not(loom))]

extern crate self as libfuzzer_sys;

#[path = "../../../fuzz/replay.rs"]
mod replay;

#[path = "../../../fuzz/targets/vhost_messages.rs"]
mod vhost_messages;
#[path = "../../../fuzz/targets/vhost_rings.rs"]
mod vhost_rings;

pub(crate) use replay::fuzz_target;
use replay::replay;

#[test]
fn kept_messages_of_front_ends() {
    replay("vhost_messages", vhost_messages::target);
}

#[test]
fn kept_memory_of_drivers() {
    replay("vhost_rings", vhost_rings::target);
}
