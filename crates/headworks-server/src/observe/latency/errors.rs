//! Error replies of clients, by operation and error, and the last of them.
//!
//! Rule: this is the one count of errors: `stats`, `why`, the log, the metrics and the status page read it.

use headworks_core::{Instant, IoError, Op};

/// An error reply to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorReply {
    /// Time of the reply.
    pub at: Instant,
    /// Operation of the request.
    pub op: Op,
    /// First byte of its range.
    pub offset: u64,
    /// The connection that it went to.
    pub connection: u32,
    /// The error that was returned.
    pub error: IoError,
}

/// The name of an error in capitals, as programs print it.
pub fn errno_name(error: IoError) -> &'static str {
    match error {
        IoError::Medium => "EIO",
        IoError::NoSpace | IoError::NotFlushed => "ENOSPC",
        IoError::TimedOut => "ETIMEDOUT",
        IoError::Invalid => "EINVAL",
        IoError::ReadOnly => "EPERM",
        IoError::Unsupported => "ENOTSUP",
        IoError::NoMemory => "ENOMEM",
        IoError::Busy => "EBUSY",
        IoError::ShutDown => "ESHUTDOWN",
    }
}

/// Counts of error replies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ErrorCounts {
    counts: [[u64; IoError::ALL.len()]; Op::COUNT],
    total: u64,
    last: Option<ErrorReply>,
}

impl ErrorCounts {
    /// Counts an error reply.
    #[cold]
    pub fn record(&mut self, reply: ErrorReply) {
        self.counts[reply.op as usize][reply.error as usize - 1] += 1;
        self.total += 1;
        self.last = Some(reply);
    }

    /// Number of all error replies.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Number of error replies to an operation.
    pub fn of_op(&self, op: Op) -> u64 {
        self.counts[op as usize].iter().sum()
    }

    /// The last error reply.
    pub fn last(&self) -> Option<ErrorReply> {
        self.last
    }

    /// Adds the counts of other connections.
    pub fn add(&mut self, other: &Self) {
        for (sums, counts) in self.counts.iter_mut().zip(&other.counts) {
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
        self.total += other.total;
        let at = |one: &Self| one.last.map(|last| last.at);
        if at(other) > at(self) {
            self.last = other.last;
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
        let reply =
            |at, op, error| ErrorReply { at: Instant(at), op, offset: 4096, connection: 3, error };
        counts.record(reply(1, Op::Read, IoError::Medium));
        counts.record(reply(2, Op::Flush, IoError::ShutDown));
        counts.record(reply(3, Op::Discard, IoError::ShutDown));
        let mut sum = counts;
        sum.add(&counts);
        assert_eq!((sum.total(), sum.of_op(Op::Flush), sum.last()), (6, 2, counts.last()));
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
