//! How much of a benchmark's range is holes or zeros: reads of these touch no disk, and their figures are not a disk's.
//!
//! A sparse image without data reads ten times faster than the same image with data. Block status tells after the run, in requests of a
//! GiB; a range of which not all is told after [`ASKS_MAX`] of them is judged by what was.

use headworks_core::{Extent, ExtentState};

/// Longest range of one question.
pub const ASKED_MAX: u64 = 1 << 30;
/// Most questions: a second's worth.
pub const ASKS_MAX: usize = 1024;

/// Bytes of a range, and those of them that read as zeros without a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holes {
    told: u64,
    zero: u64,
}

impl Holes {
    /// Asks for the extents of the first `size` bytes, with `ask(offset, length)`.
    pub fn of<E>(
        size: u64,
        mut ask: impl FnMut(u64, u32) -> Result<Vec<Extent>, E>,
    ) -> Result<Self, E> {
        let mut found = Self::default();
        for _ in 0..ASKS_MAX {
            let left = size.saturating_sub(found.told);
            if left == 0 {
                break;
            }
            let extents = ask(found.told, left.min(ASKED_MAX) as u32)?;
            if extents.is_empty() {
                break;
            }
            extents.iter().for_each(|extent| found.add(extent, size));
        }
        Ok(found)
    }

    fn add(&mut self, extent: &Extent, size: u64) {
        let len = u64::from(extent.len).min(size - self.told);
        self.told += len;
        if extent.state.contains(ExtentState::ZERO) {
            self.zero += len;
        }
    }

    /// Percentage of what was told.
    pub fn percent(self) -> f64 {
        100.0 * self.zero as f64 / self.told.max(1) as f64
    }

    /// A line of the report; none where less than a hundredth is zeros.
    pub fn line(self, cure: &str) -> Option<String> {
        let percent = self.percent();
        let whole = format!(
            "holes: {percent:.0} % of the range reads as zeros without a disk, which is faster than data; {cure}"
        );
        (percent >= 1.0).then_some(whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u32 = 1 << 20;

    #[test]
    fn zeros_are_counted_up_to_the_end_of_the_range() {
        let image = |at: u64, len: u32| {
            let state = if at == 0 { ExtentState::DATA } else { ExtentState::HOLE_ZERO };
            Ok::<_, ()>(vec![Extent { len: len.min(MIB), state }, Extent { len: MIB, state }])
        };
        let holes = Holes::of(5 * u64::from(MIB), image).expect("it tells all");
        assert_eq!(holes, Holes { told: 5 << 20, zero: 3 << 20 });
        let line = holes.line("fill it").expect("more than half");
        assert!(line.starts_with("holes: 60 % of the range"), "{line}");
    }

    #[test]
    fn one_that_tells_nothing_ends_the_questions() {
        let mut asked = 0;
        let silent = |_, _| {
            asked += 1;
            Ok::<_, ()>(Vec::new())
        };
        let holes = Holes::of(1 << 40, silent).expect("it answers");
        assert_eq!((holes.line("fill it"), asked), (None, 1));
    }
}
