//! A disk that stores nothing and completes in order after a constant time, to measure the path and
//! the simulation.

use std::collections::VecDeque;

use headworks::{CommandBatch, Device, DeviceIo};
use headworks_core::{Completion, Instant, RequestId};

/// A disk without data.
pub struct NullDisk {
    latency_ns: u64,
    flying: VecDeque<(Instant, RequestId, u32)>,
}

impl NullDisk {
    /// A disk that completes after `latency_ns` (at once if 0), with room for `depth` commands.
    #[must_use]
    pub fn new(latency_ns: u64, depth: usize) -> Self {
        Self { latency_ns, flying: VecDeque::with_capacity(depth) }
    }
}

impl Device for NullDisk {
    unsafe fn submit(&mut self, now: Instant, batch: CommandBatch<'_>, io: &mut DeviceIo<'_>) {
        let at = now.after(self.latency_ns);
        let commands = batch.commands.iter();
        self.flying.extend(commands.map(|command| (at, command.id, command.len)));
        self.on_timeout(now, io);
    }

    fn on_timeout(&mut self, now: Instant, io: &mut DeviceIo<'_>) {
        while let Some(&(at, id, transferred)) = self.flying.front() {
            if at > now {
                return;
            }
            self.flying.pop_front();
            io.completions.push(Completion { id, transferred, status: Ok(()), hole: false });
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.flying.front().map(|&(at, ..)| at)
    }
}
