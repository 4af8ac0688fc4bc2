//! A device model on a clock that does not wait for it.
//!
//! Events take effect at their own times, in their order, however late [`PacedDisk::advance`] is called: a late answer is late
//! for its client and does not move what the model does next. Invariant: no event before `now` is outstanding when a command is
//! submitted at `now`.

use headworks_core::Instant;
use headworks_disks::{DeviceModel, ModelCommand};
use headworks_nbd::client::Histogram;

/// A device model with the delays of its answers.
pub(super) struct PacedDisk {
    model: Box<dyn DeviceModel>,
    done: Vec<u64>,
    lateness: Histogram,
}

impl PacedDisk {
    /// A disk of this model at time 0.
    pub fn new(model: Box<dyn DeviceModel>) -> Self {
        Self { model, done: Vec::new(), lateness: Histogram::default() }
    }

    /// Submits a command at `now`, to which the disk has been advanced.
    pub fn submit(&mut self, now: Instant, command: ModelCommand) {
        assert!(self.model.next_timeout().is_none_or(|at| at >= now), "an event is overdue");
        self.model.submit(now, command);
    }

    /// The time of the next event.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.model.next_timeout()
    }

    /// Processes the events up to `now`; `ended` gets the token of each completed command.
    pub fn advance(&mut self, now: Instant, mut ended: impl FnMut(u64)) {
        while let Some(at) = self.model.next_timeout().filter(|&at| at <= now) {
            self.model.on_timeout(at, &mut self.done);
            for token in self.done.drain(..) {
                self.lateness.record(now.since(at));
                ended(token);
            }
        }
    }

    /// How long after its own time each completion was noticed, in nanoseconds.
    pub fn lateness(&self) -> &Histogram {
        &self.lateness
    }

    /// Number of times the head was positioned.
    pub fn positionings(&self) -> u64 {
        self.model.counters().positionings
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use headworks_core::Op;

    use super::*;

    /// Serves one command at a time, for 10 ns from the call that ended the one before.
    #[derive(Default)]
    struct OneByOne {
        queue: VecDeque<u64>,
        ends: Option<Instant>,
    }

    impl DeviceModel for OneByOne {
        fn submit(&mut self, now: Instant, command: ModelCommand) {
            self.queue.push_back(command.token);
            self.ends = self.ends.or(Some(now.after(10)));
        }

        fn next_timeout(&self) -> Option<Instant> {
            self.ends
        }

        fn on_timeout(&mut self, now: Instant, done: &mut Vec<u64>) {
            done.extend(self.queue.pop_front());
            self.ends = (!self.queue.is_empty()).then_some(now.after(10));
        }
    }

    #[test]
    fn late_calls_do_not_slow_the_model() {
        let mut disk = PacedDisk::new(Box::new(OneByOne::default()));
        let command = |token| ModelCommand { token, op: Op::Read, offset: 0, len: 4096 };
        (0..8).for_each(|token| disk.submit(Instant(0), command(token)));
        let mut ended = Vec::new();
        disk.advance(Instant(9), |token| ended.push(token));
        assert!(ended.is_empty());
        // Five have ended by then, the first of them 40 ns ago.
        disk.advance(Instant(50), |token| ended.push(token));
        assert_eq!(ended, [0, 1, 2, 3, 4]);
        assert_eq!((disk.lateness().count(), disk.lateness().max()), (5, 40));
        assert_eq!(disk.next_timeout(), Some(Instant(60)));
    }
}
