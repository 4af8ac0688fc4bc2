//! Every kept input of the fuzz target of FUSE's requests, as a test.

extern crate self as libfuzzer_sys;

#[path = "../../../fuzz/targets/fuse_requests.rs"]
mod fuse_requests;
#[path = "../../../fuzz/replay.rs"]
mod replay;

pub(crate) use replay::fuzz_target;
use replay::replay;

#[test]
fn kept_requests_of_kernels() {
    replay("fuse_requests", fuse_requests::target);
}
