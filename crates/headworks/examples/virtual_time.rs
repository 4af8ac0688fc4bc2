//! Drives a shard in virtual time: `cargo run --example virtual_time`.
//!
//! The core has no clock and no I/O, so a program may model both. Here the device serves one command at a time, with a fixed
//! time for each command and a time for each KiB. Every run prints the same timeline, in which neighbouring writes are merged.

use std::collections::VecDeque;

use headworks::headworks_core::{
    Action, Bio, BioFlags, BioId, Completion, DeviceId, Input, Instant, Op, Shard, ShardConfig,
};
use headworks::{ConfigError, QueueOptions, VolumeOptions};

/// Time of each command in nanoseconds.
const COMMAND_NS: u64 = 100_000;
/// Time for each KiB in nanoseconds.
const KIB_NS: u64 = 1_000;

/// Runs the model until every bio is complete; returns the time of the last completion.
pub fn run() -> Result<Instant, ConfigError> {
    let queue = QueueOptions { queue_depth: 2, ..QueueOptions::default() };
    let volume = VolumeOptions { size: 1 << 30, block_size: 512, ..VolumeOptions::default() };
    let mut shard = Shard::new(ShardConfig::single(queue, volume, 64))?;
    // Eight writes of 4 KiB, in two sequential runs.
    let mut inputs: Vec<Input> = (0..8).map(|n| Input::Bio(write(n, n % 2, n / 2))).collect();
    let mut in_flight: VecDeque<(Instant, Completion)> = VecDeque::new();
    let mut timer: Option<Instant> = None;
    let (mut now, mut idle_at) = (Instant(0), Instant(0));
    let mut pending = inputs.len();
    loop {
        shard.handle(now, &inputs);
        inputs.clear();
        for action in &shard.actions().list {
            match *action {
                Action::Submit(command) => {
                    let service = COMMAND_NS + u64::from(command.len >> 10) * KIB_NS;
                    idle_at = Instant(idle_at.0.max(now.0) + service);
                    let (id, transferred) = (command.id, command.len);
                    let completion = Completion { id, transferred, status: Ok(()), hole: false };
                    in_flight.push_back((idle_at, completion));
                    let [at, len] = [command.offset, u64::from(transferred)].map(|n| n >> 10);
                    println!("{:>5} us  submit {len} KiB at {at} KiB", now.0 / 1000);
                }
                Action::Reply { id, .. } => {
                    pending -= 1;
                    println!("{:>5} us  reply to bio {}", now.0 / 1000, id.sequence);
                }
                Action::Timer { at } => timer = Some(at),
                _ => {}
            }
        }
        shard.clear_actions();
        if pending == 0 {
            return Ok(now);
        }
        // The clock jumps to the next event.
        let completes = in_flight.front().map(|(at, _)| *at);
        now = completes.into_iter().chain(timer).min().expect("a bio waits for an event").max(now);
        if timer.is_some_and(|at| at <= now) {
            timer = None;
            inputs.push(Input::Timer);
        }
        while in_flight.front().is_some_and(|(at, _)| *at <= now) {
            let Some((_, completion)) = in_flight.pop_front() else { break };
            inputs.push(Input::Complete { device: DeviceId(0), completion });
        }
    }
}

/// A write of 4 KiB: the block `block` of the run that begins at `run` MiB.
fn write(sequence: u64, run: u64, block: u64) -> Bio {
    let id = BioId { sequence, ..BioId::default() };
    let offset = (run << 20) + block * 4096;
    Bio { id, offset, len: 4096, op: Op::Write, flags: BioFlags::SYNC, ..Bio::default() }
}

/// Runs the model and prints its timeline.
pub fn main() -> Result<(), ConfigError> {
    let end = run()?;
    println!("{:>5} us  all bios are complete", end.0 / 1000);
    Ok(())
}
