//! Ends of a process: power cuts, deaths and upgrades, and what of the environment ends with them.

use super::*;

impl Environment {
    /// As [`Environment::cut`] after the death of the process: everything acknowledged is to be there.
    pub fn die(&mut self) {
        self.oracle.die(!self.scenario.ends.cuts);
        self.cut();
    }

    /// Forgets messages, timers and bios after a power cut.
    pub fn cut(&mut self) {
        self.events.clear();
        self.ready.clear();
        self.timers.fill(None);
        self.flushes.cut();
        self.frames.cut();
        if let Some(memory) = &mut self.memory {
            memory.restart(self.now, &mut self.coverage);
        }
        self.lent = LentFrames::default();
        self.device_states.iter_mut().for_each(|device| device.outstanding = 0);
        self.connections.iter_mut().for_each(Connection::reset);
        self.oracle.cut();
        if self.scenario.checked {
            for (volume, config) in self.scenario.volumes.iter().enumerate() {
                self.oracle.forget_beyond(volume as u16, config.options.size);
            }
        }
        self.owed_errors.cut();
        self.operator.cut();
        self.tenants.cut();
        self.limits.cut(self.now);
    }

    /// Forgets the timers of the shards that an upgrade has replaced.
    pub fn upgrade(&mut self) {
        self.timers.fill(None);
        // The new shards take every device for one that answers.
        let until = self.now.after(MS);
        for device in &mut self.device_states {
            device.stuck_until = device.stuck_until.min(until);
        }
    }

    /// Counts the state that a power cut interrupts.
    pub fn cover_cut(&mut self) {
        self.coverage.hit(Point::PowerCut);
        self.coverage.add(Point::LimitCut, (self.limits.waiting() > 0).into());
        if self.frames.writing() == 0 {
            return;
        }
        self.coverage.hit(Point::CutWriting);
        let flights = self.connections.iter().flat_map(|connection| &connection.slots);
        let mut flights = flights.filter(|flight| flight.stage == BioStage::Waiting);
        if flights.any(|flight| {
            flight.bio.op == Op::Flush && self.scenario.is_cached(flight.bio.id.volume)
        }) {
            self.coverage.hit(Point::CutSync);
        }
    }
}
