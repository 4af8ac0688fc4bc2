//! Measures the CPU time of many uncached reads that wait at once, all of one block and spread over the volume.
//!
//! Run with `cargo run --release -p headworks-core --example hot_block`. Each line shows the number of waiting reads, the time
//! for both patterns in milliseconds and their ratio, which the merge index keeps below 1.5.

// The core itself has no clock; a program that measures it does.
#![allow(clippy::disallowed_types, clippy::disallowed_methods, clippy::disallowed_macros)]

use std::collections::VecDeque;
use std::time::Instant as Clock;

use headworks_core::{
    Action, Bio, BioFlags, BioId, Completion, DeviceId, Input, Instant, Op, QueueOptions, Shard,
    ShardConfig, VolumeOptions,
};

/// Reads that are submitted in one batch.
const BATCH: u64 = 64;
/// Commands that complete in one batch.
const COMPLETIONS: usize = 32;
/// Repetitions, of which the fastest counts.
const ROUNDS: usize = 5;

fn main() {
    println!("{:>6} {:>10} {:>10} {:>6}", "reads", "one block", "spread", "ratio");
    for reads in [1000, 2000, 4000, 8000] {
        let fastest =
            |stride| (0..ROUNDS).map(|_| milliseconds(reads, stride)).fold(f64::MAX, f64::min);
        let (hot, spread) = (fastest(0), fastest(8192));
        println!("{reads:>6} {hot:>10.2} {spread:>10.2} {:>6.2}", hot / spread);
    }
}

/// Submits `reads` reads of 4 KiB, `stride` bytes apart, completes them all and returns the time.
fn milliseconds(reads: u64, stride: u64) -> f64 {
    let queue = QueueOptions { nr_requests: 128, queue_depth: 128, ..QueueOptions::default() };
    let volume = VolumeOptions { size: 1 << 30, block_size: 512, ..VolumeOptions::default() };
    let config = ShardConfig::single(queue, volume, reads as u32 + 8);
    let mut shard = Shard::new(config).expect("the configuration is valid");
    let mut in_flight = VecDeque::new();
    let mut replies = 0;
    let start = Clock::now();
    let mut now = 0;
    let mut next = 0;
    while replies < reads {
        let inputs: Vec<Input> = if next < reads {
            let batch = next..reads.min(next + BATCH);
            next = batch.end;
            batch.map(|n| Input::Bio(read(n, n * stride))).collect()
        } else {
            let batch = in_flight.len().min(COMPLETIONS);
            in_flight.drain(..batch).collect()
        };
        now += 1000;
        shard.handle(Instant(now), &inputs);
        for action in &shard.actions().list {
            match *action {
                Action::Submit(command) => {
                    let (id, transferred) = (command.id, command.len);
                    let completion = Completion { id, transferred, status: Ok(()), hole: false };
                    in_flight.push_back(Input::Complete { device: DeviceId(0), completion });
                }
                Action::Reply { .. } => replies += 1,
                _ => {}
            }
        }
        shard.clear_actions();
    }
    start.elapsed().as_secs_f64() * 1e3
}

/// A synchronous read of 4 KiB.
fn read(sequence: u64, offset: u64) -> Bio {
    let id = BioId { sequence, ..BioId::default() };
    let (op, flags) = (Op::Read, BioFlags::SYNC);
    Bio { id, offset, len: 4096, op, flags, ..Bio::default() }
}
