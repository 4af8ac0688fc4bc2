//! How bios of the jobs pass the limits in front of their shard.

use headworks_core::{Bio, Input, ShardId};

use super::{Environment, Event};
use crate::coverage::Point;

impl Environment {
    /// Returns a bio of a job that passes its limits now; one that does not waits. What reads the volumes for the checkers knows
    /// no limits.
    pub(super) fn admit(&mut self, index: usize, bio: Bio) -> Option<Bio> {
        if index >= self.scenario.jobs.len() {
            return Some(bio);
        }
        let home = self.connections[index].home;
        let passed = self.limits.admit(self.now, usize::from(home.0), index, bio);
        let passed = passed.unwrap_or_else(|violation| {
            self.fail(violation);
            None
        });
        if passed.is_none() {
            self.coverage.hit(Point::Limited);
            self.plan_limits(home);
        }
        passed
    }

    /// Submits everything that a connection has waiting for limits, more than the shard has room for if need be; returns the number
    /// of bios. The server forgets them with the connection.
    pub fn release(&mut self, index: usize, inbox: &mut Vec<Input>) -> usize {
        let home = usize::from(self.connections[index].home.0);
        let waiting = self.limits.release(self.now, home, index);
        let released = waiting.len();
        for bio in &waiting {
            if let Some(slot) = self.connections[index].slot(bio.id) {
                self.connections[index].slots[slot].was_released = true;
            }
        }
        inbox.extend(waiting.into_iter().map(Input::Bio));
        released
    }

    /// Passes bios whose limits agree now into the `inbox` of their shard, at most `room` of them.
    pub fn pass_limited(&mut self, shard: ShardId, room: usize, inbox: &mut Vec<Input>) {
        let home = usize::from(shard.0);
        for _ in 0..room {
            match self.limits.pass(self.now, home) {
                Ok(Some((index, bio))) => {
                    if let Some(slot) = self.connections[index].slot(bio.id) {
                        self.connections[index].slots[slot].since = self.now;
                    }
                    self.progress.made(self.now);
                    inbox.push(Input::Bio(bio));
                }
                Ok(None) => return self.plan_limits(shard),
                Err(violation) => return self.fail(violation),
            }
        }
        self.limits.wait_for_room(home);
    }

    /// Plans the next look at the limits in front of a shard.
    pub fn plan_limits(&mut self, shard: ShardId) {
        match self.limits.plan(self.now, usize::from(shard.0)) {
            Ok(Some(at)) => self.events.push(at, Event::Limits { shard }),
            Ok(None) => {}
            Err(violation) => self.fail(violation),
        }
    }
}
