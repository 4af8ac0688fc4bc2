//! What the throttle did, for graphs: Linux's two trace events, field by field, in a bounded ring. Off by default.
//!
//! The author of the original credits his graphs of these events with making the algorithm possible. Rates are KiB/s and
//! times are milliseconds, as in Linux; positions are blocks of 4 KiB. When nobody fetches, the oldest are lost and counted.

use std::collections::VecDeque;

use crate::time::Instant;

/// Events that are kept until somebody fetches them.
const RING: usize = 1024;

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceEvent {
    /// A writer was looked at: it pauses, or may go on.
    BalanceDirtyPages(BalanceDirtyPages),
    /// A device's rates were computed anew.
    BdiDirtyRatelimit(BdiDirtyRatelimit),
}

/// `balance_dirty_pages`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BalanceDirtyPages {
    /// When.
    pub at: Instant,
    /// The device.
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
    /// The same at the present position, KiB/s.
    pub task_ratelimit: u64,
    /// Blocks dirtied since the writer was last looked at.
    pub dirtied: u32,
    /// After so many it is looked at.
    pub dirtied_pause: u32,
    /// Paused so far in this pause, ms.
    pub paused: u64,
    /// To pause now, ms; not above 0: none, and that much credit.
    pub pause: i64,
    /// What the blocks cost at the rate, ms.
    pub period: u64,
    /// What the writer spent elsewhere since its last pause, ms.
    pub think: u64,
}

/// `bdi_dirty_ratelimit`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BdiDirtyRatelimit {
    /// When.
    pub at: Instant,
    /// The device.
    pub bdi: u16,
    /// The last bandwidth sample, KiB/s.
    pub write_bw: u64,
    /// The estimate, KiB/s.
    pub awrite_bw: u64,
    /// What was dirtied since the event before, KiB/s.
    pub dirty_rate: u64,
    /// One writer's rate at the set point, KiB/s.
    pub dirty_ratelimit: u64,
    /// The same at the present position, KiB/s.
    pub task_ratelimit: u64,
    /// The bandwidth over the writers, which is `dirty_ratelimit` here: it needs no balancing, the writers are counted.
    pub balanced_dirty_ratelimit: u64,
}

/// The ring.
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
    /// Starts or stops; what was kept is dropped.
    pub fn set(&mut self, on: bool) {
        self.on = on;
        self.events.clear();
    }

    /// Whether events are wanted: ask before making one.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.on
    }

    /// Keeps one.
    pub fn push(&mut self, event: TraceEvent) {
        if self.events.len() == RING {
            self.events.pop_front();
            self.lost += 1;
        }
        self.events.push_back(event);
    }

    /// Moves all to `into`.
    pub fn take(&mut self, into: &mut Vec<TraceEvent>) {
        into.extend(self.events.drain(..));
    }

    /// Events that nobody fetched in time, ever.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_are_lost_and_counted() {
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
