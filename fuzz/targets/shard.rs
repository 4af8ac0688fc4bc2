//! A shard with a cache over a disk that fails, refuses, stops short and lies; the bytes decide the configuration and every
//! step. What a read finds, what FUA and flush promise and the tables of the cache are checked: see `headworks_sim::bed`.
#![no_main]

use headworks_sim::bed::{Bed, BedOptions, Tape};

const KIND: BedOptions = BedOptions { clients: 4, region: 20_000, faults: true };

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let mut tape = Tape(data);
    let config = KIND.draw(&mut tape);
    let mut bed = Bed::new(KIND, config, tape);
    while !bed.is_over() {
        bed.run(1, None);
    }
    bed.flush_and_compare();
});
