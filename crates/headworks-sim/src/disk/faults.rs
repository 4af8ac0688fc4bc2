//! Faults of simulated devices, by rate and by range, and the defects that tests inject.

use headworks_core::prng::Prng;
use headworks_core::{Instant, Op, VolumeId};

/// A range that cannot be read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadRange {
    /// Volume of the range.
    pub volume: VolumeId,
    /// First byte of the bad range.
    pub start: u64,
    /// The byte after the last bad one.
    pub end: u64,
}

/// A time in which a device answers nothing that it is sent, or refuses everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outage {
    /// Virtual time of the first affected command.
    pub from_ns: u64,
    /// Virtual time of the end: what was not answered is answered then.
    pub until_ns: u64,
    /// Commands are refused instead of kept.
    pub refuses: bool,
}

/// Fault rates of a device, per million commands that the fault applies to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Rate of commands rejected with Busy before they start.
    pub busy: u32,
    /// Rate of commands completed after `io_timeout`.
    pub late: u32,
    /// Rate of EIO with partial transfer.
    pub medium: u32,
    /// Rate of ENOSPC on writes, with partial transfer.
    pub no_space: u32,
    /// Rate of successful short transfers.
    pub short: u32,
    /// Rate of data commands that succeed without transferring anything.
    pub nothing: u32,
    /// Rate of failed flushes.
    pub flush: u32,
    /// Rate of write-zeroes answered as unsupported.
    pub zeroes: u32,
    /// The range in which every data command fails.
    pub bad: Option<BadRange>,
    /// The time in which the device does not answer.
    pub outage: Option<Outage>,
}

/// A fault of one command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Rejected with Busy, see [`Faults::busy`].
    Busy,
    /// Completed too late, see [`Faults::late`].
    Late,
    /// Failed with EIO, see [`Faults::medium`].
    Medium,
    /// Failed with ENOSPC, see [`Faults::no_space`].
    NoSpace,
    /// Short transfer, see [`Faults::short`].
    Short,
    /// Nothing was transferred, see [`Faults::nothing`].
    Nothing,
    /// Failed flush, see [`Faults::flush`].
    Flush,
    /// Write-zeroes unsupported, see [`Faults::zeroes`].
    Zeroes,
    /// Touched the bad range, see [`Faults::bad`].
    BadRange,
    /// Not answered before the end of the outage, see [`Faults::outage`].
    Hang,
}

impl Fault {
    /// Number of fault kinds.
    pub const COUNT: usize = 10;
}

impl Faults {
    /// Whether any fault can occur.
    #[must_use]
    pub fn any(&self) -> bool {
        *self != Self::default()
    }

    /// Whether a data command of `op` touches the bad range.
    #[must_use]
    pub fn is_bad(&self, volume: VolumeId, op: Op, offset: u64, len: u32) -> bool {
        self.bad.is_some_and(|bad| {
            let end = offset + u64::from(len);
            op.has_data() && bad.volume == volume && offset < bad.end && bad.start < end
        })
    }

    /// Returns the fault of any command at `now`, if the device has an outage then.
    #[must_use]
    pub fn outage_at(&self, now: Instant) -> Option<Fault> {
        let outage = self.outage?;
        let fault = if outage.refuses { Fault::Busy } else { Fault::Hang };
        (outage.from_ns..outage.until_ns).contains(&now.0).then_some(fault)
    }

    /// Draws the fault of a command. One draw, so that two plans of one seed differ only where a
    /// rate differs.
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

/// A defect built into a device, for tests of the checkers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiskDefect {
    /// The device has no defect.
    #[default]
    None,
    /// Flushes are acknowledged and not performed.
    SkipsFlush,
    /// FUA is acknowledged and not performed.
    SkipsFua,
    /// Some commands are completed twice; the path must tolerate it.
    AnswersTwice,
    /// Of the files of overlays: the sync between data and bits is answered and not performed.
    SkipsDataSync,
    /// The sync behind the bits is.
    SkipsBitsSync,
    /// A bit is missing from some writes of bits.
    LosesBits,
    /// A write of here bits is left out now and then.
    LosesHereBits,
    /// A boot has the id of the one before.
    SameBoot,
    /// Some completions report more bytes than requested; the path must tolerate it.
    ClaimsTooMuch,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_rates_hold_and_apply_to_their_operations() {
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
