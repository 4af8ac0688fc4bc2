//! A device model on a clock that does not wait for it.
//!
//! Events take effect at their own times, in their order, however late [`PacedDisk::advance`] is called: a late answer is late for its
//! client and does not move what the model does next, so delays do not add up. Invariants: no event before `now` is outstanding when a
//! command is submitted at `now`; no completion is reported before the model's time.

use headworks_core::Instant;

use crate::device_model::{DeviceModel, ModelCommand};

/// A device model whose events wait for the clock.
pub struct PacedDisk {
    model: Box<dyn DeviceModel + Send>,
    done: Vec<u64>,
}

impl PacedDisk {
    /// A disk of this model at time 0.
    #[must_use]
    pub fn new(model: Box<dyn DeviceModel + Send>) -> Self {
        Self { model, done: Vec::with_capacity(256) }
    }

    /// Submits a command at `now`, to which the disk has been advanced.
    pub fn submit(&mut self, now: Instant, command: ModelCommand) {
        assert!(self.model.next_timeout().is_none_or(|at| at >= now), "an event is overdue");
        self.model.submit(now, command);
    }

    /// The time of the next event.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        self.model.next_timeout()
    }

    /// Processes the events up to `now`; `ended` gets the token of each completed command and the model's time of its completion.
    pub fn advance(&mut self, now: Instant, mut ended: impl FnMut(u64, Instant)) {
        while let Some(at) = self.model.next_timeout().filter(|&at| at <= now) {
            self.model.on_timeout(at, &mut self.done);
            for token in self.done.drain(..) {
                ended(token, at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use headworks_core::Op;
    use headworks_core::prng::Prng;

    use super::*;
    use crate::Disk;

    /// Commands of a client that does not wait, submitted at their times while the disk is looked at every `nap()` nanoseconds: the
    /// model's time of each completion, and the number of completions that were reported before it.
    fn times(name: &str, mut nap: impl FnMut() -> u64) -> (Vec<(u64, Instant)>, u64) {
        let mut disk = PacedDisk::new(Disk::named(name).unwrap().model(1));
        let mut places = Prng::new(9);
        let (mut ended, mut early) = (Vec::new(), 0);
        let mut looked = Instant(0);
        for token in 0..2_000 {
            let submitted = Instant(token * 400_000);
            while looked < submitted {
                looked = looked.after(nap()).min(submitted);
                disk.advance(looked, |token, at| {
                    early += u64::from(at > looked);
                    ended.push((token, at));
                });
            }
            let op = if token % 3 == 0 { Op::Write } else { Op::Read };
            let offset = places.below(1 << 24) * 4096;
            disk.submit(submitted, ModelCommand { token, op, offset, len: 4096 });
        }
        while let Some(at) = disk.next_timeout() {
            looked = looked.max(at).after(nap());
            disk.advance(looked, |token, at| {
                early += u64::from(at > looked);
                ended.push((token, at));
            });
        }
        (ended, early)
    }

    #[test]
    fn late_calls_change_no_time_of_the_model() {
        for name in ["hdd-7200", "sata", "nvme", "virtual"] {
            let (prompt, early) = times(name, || 1_000);
            assert_eq!((prompt.len(), early), (2_000, 0), "{name}");
            let mut prng = Prng::new(4);
            let (late, early) = times(name, || prng.between(1, 9_000_000));
            assert_eq!(early, 0, "{name}");
            assert!(late == prompt, "{name}: a busy machine changes the model's times");
        }
    }
}
