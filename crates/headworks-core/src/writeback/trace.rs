//! Trace events of the throttle in a bounded ring: Linux's two events, field by field. Off by default.
//!
//! Rates are in KiB/s and times in milliseconds, as in Linux; positions are in blocks of 4 KiB. When the ring is full the oldest
//! events are dropped and counted.

use std::collections::VecDeque;

use crate::time::Instant;

/// Capacity of the ring, in events.
const RING: usize = 1024;

/// One event of the throttle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceEvent {
    /// A writer was charged and pauses or continues.
    BalanceDirtyPages(BalanceDirtyPages),
    /// A device's rates were recomputed.
    BdiDirtyRatelimit(BdiDirtyRatelimit),
}

/// The event `balance_dirty_pages`: a writer was charged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BalanceDirtyPages {
    /// Time of the event.
    pub at: Instant,
    /// Id of the device.
    pub bdi: u16,
    /// The writer's connection, in place of Linux's process.
    pub connection: u32,
    /// Hard limit of all devices.
    pub limit: u32,
    /// Set point of all devices.
    pub setpoint: u32,
    /// Dirty, under writeback and reserved, of all devices.
    pub dirty: u32,
    /// The device's own set point.
    pub bdi_setpoint: u32,
    /// The device's own dirty, under writeback and reserved.
    pub bdi_dirty: u32,
    /// One writer's rate at the set point, KiB/s.
    pub dirty_ratelimit: u64,
    /// One writer's rate at the current number of dirty blocks: `dirty_ratelimit` times the position ratio, KiB/s.
    pub task_ratelimit: u64,
    /// Blocks dirtied since the writer was last charged.
    pub dirtied: u32,
    /// Blocks after which the writer is charged.
    pub dirtied_pause: u32,
    /// Paused so far in this pause, ms.
    pub paused: u64,
    /// Pause from now, ms; 0 or less: no pause, and that much credit.
    pub pause: i64,
    /// Time that the blocks cost at the rate, ms.
    pub period: u64,
    /// Time since the writer's last pause, ms.
    pub think: u64,
}

/// The event `bdi_dirty_ratelimit`: a device's rates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BdiDirtyRatelimit {
    /// Time of the event.
    pub at: Instant,
    /// Id of the device.
    pub bdi: u16,
    /// The last bandwidth sample, KiB/s.
    pub write_bw: u64,
    /// The estimate, KiB/s.
    pub awrite_bw: u64,
    /// Rate of dirtying since the event before, KiB/s.
    pub dirty_rate: u64,
    /// One writer's rate at the set point, KiB/s.
    pub dirty_ratelimit: u64,
    /// One writer's rate at the current number of dirty blocks: `dirty_ratelimit` times the position ratio, KiB/s.
    pub task_ratelimit: u64,
    /// Bandwidth divided by the writers: equal to `dirty_ratelimit`, because writers are counted.
    pub balanced_dirty_ratelimit: u64,
}

/// The ring of trace events.
#[derive(Clone, Debug)]
pub struct Trace {
    events: VecDeque<TraceEvent>,
    on: bool,
    lost: u64,
}

impl Default for Trace {
    fn default() -> Self {
        Self { events: VecDeque::with_capacity(RING), on: false, lost: 0 }
    }
}

impl Trace {
    /// Turns tracing on or off and drops all events.
    pub fn set(&mut self, on: bool) {
        self.on = on;
        self.events.clear();
    }

    /// Whether tracing is on; events are made only then.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.on
    }

    /// Adds an event, dropping the oldest if the ring is full.
    pub fn push(&mut self, event: TraceEvent) {
        if self.events.len() == RING {
            self.events.pop_front();
            self.lost += 1;
        }
        debug_assert!(self.on && self.events.len() < RING);
        self.events.push_back(event);
    }

    /// Moves all events to `into`.
    pub fn take(&mut self, into: &mut Vec<TraceEvent>) {
        into.extend(self.events.drain(..));
    }

    /// Number of events dropped so far.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_ring_drops_and_counts_the_oldest() {
        let mut trace = Trace::default();
        trace.set(true);
        for at in 0..RING as u64 + 3 {
            let event = BdiDirtyRatelimit { at: Instant(at), ..Default::default() };
            trace.push(TraceEvent::BdiDirtyRatelimit(event));
        }
        assert_eq!(trace.lost(), 3);
        let mut events = Vec::new();
        trace.take(&mut events);
        assert_eq!(events.len(), RING);
        assert!(
            matches!(events[0], TraceEvent::BdiDirtyRatelimit(event) if event.at == Instant(3))
        );
        trace.take(&mut events);
        assert_eq!(events.len(), RING);
    }
}
