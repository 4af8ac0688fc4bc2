//! Error replies of clients, by operation and error.

use headworks_core::{IoError, Op};

/// Counts of error replies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ErrorCounts {
    counts: [[u64; IoError::ALL.len()]; Op::COUNT],
}

impl ErrorCounts {
    /// Counts an error reply to an operation.
    #[cold]
    pub fn record(&mut self, op: Op, error: IoError) {
        self.counts[op as usize][error as usize - 1] += 1;
    }

    /// Adds the counts of other connections.
    pub fn add(&mut self, other: &Self) {
        for (sums, counts) in self.counts.iter_mut().zip(&other.counts) {
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
    }

    /// Errors that were returned: operation, error, count.
    pub fn all(&self) -> impl Iterator<Item = (Op, IoError, u64)> {
        let of_op = |op: Op| {
            let counts = self.counts[op as usize].into_iter();
            IoError::ALL.into_iter().zip(counts).map(move |(error, count)| (op, error, count))
        };
        Op::ALL.into_iter().flat_map(of_op).filter(|(_, _, count)| *count > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_counted_by_operation_and_kind() {
        let mut counts = ErrorCounts::default();
        counts.record(Op::Read, IoError::Medium);
        counts.record(Op::Flush, IoError::ShutDown);
        counts.record(Op::Discard, IoError::ShutDown);
        let mut sum = counts;
        sum.add(&counts);
        let found: Vec<_> = sum.all().collect();
        assert_eq!(
            found,
            [
                (Op::Read, IoError::Medium, 2),
                (Op::Flush, IoError::ShutDown, 2),
                (Op::Discard, IoError::ShutDown, 2)
            ]
        );
    }
}
