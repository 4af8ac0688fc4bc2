//! What goes wrong, by rate and by place, and the defects that only tests inject.

use headworks_core::prng::Prng;
use headworks_core::{Op, VolumeId};

/// Bytes that cannot be read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadRange {
    /// On which volume.
    pub volume: VolumeId,
    /// First bad byte.
    pub start: u64,
    /// The byte after the last.
    pub end: u64,
}

/// The plan of a device: rates are per million commands that the fault can happen to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Refused, not started.
    pub busy: u32,
    /// Answered after `io_timeout`.
    pub late: u32,
    /// Fails with EIO, some of it done.
    pub medium: u32,
    /// A write fails with ENOSPC, some of it done.
    pub no_space: u32,
    /// Ends early, with success.
    pub short: u32,
    /// A data command that moves nothing, with success.
    pub nothing: u32,
    /// A flush fails.
    pub flush: u32,
    /// The device cannot zero after all.
    pub zeroes: u32,
    /// Where every data command fails.
    pub bad: Option<BadRange>,
}

/// What goes wrong with one command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// See [`Faults`].
    Busy,
    /// See [`Faults`].
    Late,
    /// See [`Faults`].
    Medium,
    /// See [`Faults`].
    NoSpace,
    /// See [`Faults`].
    Short,
    /// See [`Faults`].
    Nothing,
    /// See [`Faults`].
    Flush,
    /// See [`Faults`].
    Zeroes,
    /// See [`Faults`].
    BadRange,
}

impl Fault {
    /// How many kinds there are.
    pub const COUNT: usize = 9;
}

impl Faults {
    /// Whether anything can go wrong.
    #[must_use]
    pub fn any(&self) -> bool {
        *self != Self::default()
    }

    /// Whether `op` on the range touches bad bytes.
    #[must_use]
    pub fn is_bad(&self, volume: VolumeId, op: Op, offset: u64, len: u32) -> bool {
        self.bad.is_some_and(|bad| {
            let end = offset + u64::from(len);
            op.has_data() && bad.volume == volume && offset < bad.end && bad.start < end
        })
    }

    /// What happens to a command. One draw, so that two plans of one seed differ only where a rate differs.
    #[must_use]
    pub fn draw(&self, op: Op, prng: &mut Prng) -> Option<Fault> {
        let write = matches!(op, Op::Write | Op::WriteZeroes);
        let table = [
            (true, self.busy, Fault::Busy),
            (true, self.late, Fault::Late),
            (op != Op::Flush, self.medium, Fault::Medium),
            (write, self.no_space, Fault::NoSpace),
            (op.has_data(), self.short, Fault::Short),
            (op.has_data(), self.nothing, Fault::Nothing),
            (op == Op::Flush, self.flush, Fault::Flush),
            (op == Op::WriteZeroes, self.zeroes, Fault::Zeroes),
        ];
        let mut left = prng.below(1_000_000) as u32;
        for (applies, rate, fault) in table {
            if applies && left < rate {
                return Some(fault);
            }
            left = left.saturating_sub(if applies { rate } else { 0 });
        }
        None
    }
}

/// A lie built into a device, for the tests that show that the checkers see it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiskDefect {
    /// None: the device keeps its word.
    #[default]
    None,
    /// Flushes are acknowledged and do nothing.
    SkipsFlush,
    /// FUA is acknowledged and does nothing.
    SkipsFua,
    /// Every so often an answer comes twice. The path must put up with it.
    AnswersTwice,
    /// Every so often more bytes are claimed than were asked for. The path must put up with it.
    ClaimsTooMuch,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_kept_and_only_where_they_apply() {
        let faults =
            Faults { busy: 100_000, flush: 500_000, no_space: 200_000, ..Faults::default() };
        let mut prng = Prng::new(3);
        let mut count =
            |op, fault| (0..10_000).filter(|_| faults.draw(op, &mut prng) == Some(fault)).count();
        assert!((900..1100).contains(&count(Op::Read, Fault::Busy)));
        assert!((1800..2200).contains(&count(Op::Write, Fault::NoSpace)));
        assert!((4800..5200).contains(&count(Op::Flush, Fault::Flush)));
        assert_eq!(count(Op::Read, Fault::NoSpace), 0);
        assert_eq!(count(Op::Write, Fault::Medium), 0);
    }
}
