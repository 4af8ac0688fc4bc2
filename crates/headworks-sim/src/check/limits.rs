//! Whether limits of bytes and I/Os a second let too much through, by arithmetic of its own: per limit a level that leaks at the rate and rises
//! by what passed. From any instant on a limit admits at most `R T + 2 slack + L` ([`headworks_core::limits`]), and a burst its size more: a level above
//! that is a violation.

use headworks_core::Instant;
use headworks_core::limits::{LimitKind, LimitedIo, Limits, Rate};
use headworks_core::time::{MS, SEC};

/// Slack of a limit: a wake-up that is late by less loses nothing.
const SLACK_NS: u64 = 4 * MS;
/// The longest bio of a simulated world, in bytes.
const LONGEST: u64 = 64 << 20;
/// Parts of a byte or an I/O in the checker's levels.
const PARTS: u64 = 1 << 20;

/// What the checker knows of limits that are set on something.
#[derive(Clone, Debug, Default)]
pub struct Watched {
    limits: Limits,
    /// By kind, in parts times the nanoseconds of a second.
    levels: [u128; LimitKind::COUNT],
    at: Instant,
}

impl Watched {
    /// Takes new limits: what passed under the old ones is forgotten.
    pub fn set(&mut self, now: Instant, limits: &Limits) {
        *self = Self { limits: *limits, at: now, ..Self::default() };
    }

    /// Counts a bio that passed; returns the limit that it exceeds.
    pub fn pass(&mut self, now: Instant, io: LimitedIo) -> Option<LimitKind> {
        let elapsed = u128::from(now.since(self.at));
        self.at = now;
        let mut broken = None;
        for kind in LimitKind::ALL {
            let rate = self.limits.rate(kind);
            let level = &mut self.levels[kind as usize];
            let leaked = elapsed * u128::from(rate.average) * u128::from(PARTS);
            *level = level.saturating_sub(leaked);
            if rate.average == 0 || !kind.covers(io.direction) {
                continue;
            }
            let passed = u128::from(self.parts(kind, io.bytes.into())) * u128::from(SEC);
            let longest = u128::from(self.parts(kind, LONGEST)) * u128::from(SEC);
            let level = &mut self.levels[kind as usize];
            *level += passed;
            let burst = rate.max.saturating_sub(rate.average);
            let burst = u128::from(burst) * u128::from(length(rate));
            let slack = 2 * u128::from(rate.average.max(rate.max)) * u128::from(SLACK_NS);
            let most = (burst + slack) * u128::from(PARTS) + longest;
            broken = broken.or((*level > most).then_some(kind));
        }
        broken
    }

    /// The limits that hold at present.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// What a bio counts as for a limit.
    fn parts(&self, kind: LimitKind, bytes: u64) -> u64 {
        match (kind.is_bytes(), self.limits.iops_size) {
            (true, _) => bytes * PARTS,
            (false, 0) => PARTS,
            (false, size) => PARTS.max(bytes * PARTS / size),
        }
    }
}

/// Nanoseconds that a burst lasts.
fn length(rate: Rate) -> u64 {
    if rate.max_length_ns == 0 { SEC } else { rate.max_length_ns }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks_core::limits::LimitDirection;

    fn limits(rate: Rate) -> Limits {
        let mut limits = Limits::default();
        limits.rates[LimitKind::IopsWrite as usize] = rate;
        limits
    }

    /// Passes a write each `every_ns` for a second; returns the limit that was exceeded.
    fn exceeded(rate: Rate, every_ns: u64) -> Option<LimitKind> {
        let mut node = Watched::default();
        node.set(Instant(0), &limits(rate));
        let write = LimitedIo { direction: LimitDirection::Write, bytes: 4096 };
        let read = LimitedIo { direction: LimitDirection::Read, bytes: 4096 };
        (0..SEC / every_ns).find_map(|number| {
            let now = Instant(number * every_ns);
            assert_eq!(node.pass(now, read), None, "the limit is not of reads");
            node.pass(now, write)
        })
    }

    #[test]
    fn checker_takes_what_passes_at_the_rate_and_no_more() {
        let plain = Rate { average: 1000, ..Rate::default() };
        assert_eq!(exceeded(plain, MS), None);
        assert_eq!(exceeded(plain, 9 * MS / 10), Some(LimitKind::IopsWrite));
        let burst = Rate { average: 1000, max: 2000, max_length_ns: 100 * MS };
        assert_eq!(exceeded(burst, MS), None);
        assert_eq!(exceeded(burst, 9 * MS / 10), None, "111 more in a second, of a burst of 100");
        assert_eq!(exceeded(burst, 8 * MS / 10), Some(LimitKind::IopsWrite));
    }
}
