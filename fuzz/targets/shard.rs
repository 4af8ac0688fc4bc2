//! A shard with a cache over a disk that fails, refuses, stops short and lies; the bytes decide the configuration and every
//! step. What a read finds, what FUA and flush promise and the tables of the cache are checked: see `headworks_sim::harness`.
#![cfg_attr(fuzzing, no_main)]

use headworks_sim::harness::{ByteChoices, Harness, HarnessOptions};

const KIND: HarnessOptions = HarnessOptions { clients: 4, region: 20_000, faults: true };

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let mut tape = ByteChoices(data);
    let config = KIND.draw(&mut tape);
    let mut harness = Harness::new(KIND, config, tape);
    while !harness.is_exhausted() {
        harness.run(1, None);
    }
    harness.flush_and_compare();
});
