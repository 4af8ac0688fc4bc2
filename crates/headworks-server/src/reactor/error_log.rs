//! Error replies in the log: of each export a line at the first, then at most one in ten seconds with their number.
//!
//! Counters of connections are read at the tick, once a second while anything happens, so a reply costs nothing for it. A client can
//! cause errors without end; its export takes one line in ten seconds.

use headworks_core::{ExportId, Instant};
use tracing::warn;

use super::door::Door;
use super::shard_io::ShardIo;
use crate::observe::latency::errors::{ErrorCounts, ErrorReply, errno_name};
use crate::observe::latency::request_name;

/// Time between two lines of an export: ten seconds.
const PAUSE_NS: u64 = 10_000_000_000;

/// The error replies of an export.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    /// Number of replies at this tick.
    now: u64,
    /// Number of replies at the last line.
    told: u64,
    told_at: Option<Instant>,
    last: Option<ErrorReply>,
}

impl Entry {
    /// The number of replies since the last line, if a line is due.
    fn due(&mut self, now: Instant) -> Option<u64> {
        // An export that was removed leaves its id to another one.
        self.told = self.told.min(self.now);
        let new = self.now - self.told;
        let may_tell = self.told_at.is_none_or(|at| now.since(at) >= PAUSE_NS);
        if new == 0 || !may_tell {
            return None;
        }
        (self.told, self.told_at) = (self.now, Some(now));
        Some(new)
    }
}

/// What the log has said of error replies, by export.
#[derive(Debug, Default)]
pub(super) struct ErrorLog {
    entries: Vec<Entry>,
}

impl ErrorLog {
    /// The last error reply of each export that had one.
    pub fn last(&self) -> Vec<(ExportId, ErrorReply)> {
        let all = (0..).map(ExportId).zip(&self.entries);
        all.filter_map(|(export, entry)| Some((export, entry.last?))).collect()
    }

    /// Reads the counters and logs what is new; true while there is something to log later.
    pub fn check(&mut self, now: Instant, door: &Door, io: &mut ShardIo) -> bool {
        self.entries.iter_mut().for_each(|entry| (entry.now, entry.last) = (0, None));
        for slot in io.slots() {
            let Some(export) = door.export_of(slot) else { continue };
            let Some((connection, _)) = io.connection(slot) else { continue };
            if let Some((_, table)) = connection.latency().filter(|(_, table)| table.has_errors()) {
                let mut sum = ErrorCounts::default();
                table.add_errors_to(&mut sum);
                self.count(export, &sum);
            }
        }
        for export in io.latency.known(ExportId(0)) {
            if let Some(gone) = io.latency.gone(export).filter(|gone| gone.errors().total() > 0) {
                self.count(export, gone.errors());
            }
        }
        let mut later = false;
        for (export, entry) in (0..).map(ExportId).zip(&mut self.entries) {
            if let (Some(new), Some(last)) = (entry.due(now), entry.last) {
                warn!("export {}: {}", door.exports.shown(export), line(new, &last));
            }
            later |= entry.now > entry.told;
        }
        later
    }

    fn count(&mut self, export: ExportId, errors: &ErrorCounts) {
        let index = usize::from(export.0);
        if self.entries.len() <= index {
            self.entries.resize(index + 1, Entry::default());
        }
        let entry = &mut self.entries[index];
        entry.now += errors.total();
        let at = |last: Option<ErrorReply>| last.map(|last| last.at);
        if at(errors.last()) > at(entry.last) {
            entry.last = errors.last();
        }
    }
}

/// `a write at offset 4096 failed: input/output error (EIO), connection 3; 383 more in the last 10 s`.
fn line(new: u64, last: &ErrorReply) -> String {
    let ErrorReply { op, offset, connection, error, .. } = last;
    let (op, errno) = (request_name(*op), errno_name(*error));
    let more = match new {
        1 => String::new(),
        new => format!("; {} more in the last 10 s", new - 1),
    };
    format!("a {op} at offset {offset} failed: {error} ({errno}), connection {connection}{more}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks_core::{IoError, Op};

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn export_has_one_line_in_ten_seconds_with_the_number_of_errors() {
        let mut entry = Entry::default();
        let mut due = |second: u64, now: u64| {
            entry.now = now;
            entry.due(Instant(second * SECOND))
        };
        assert_eq!([due(1, 0), due(2, 3), due(3, 9), due(11, 50)], [None, Some(3), None, None]);
        assert_eq!([due(12, 50), due(13, 50), due(23, 51)], [Some(47), None, Some(1)]);
        assert_eq!(due(40, 1), None, "another export with its number");
        assert_eq!(due(41, 2), Some(1));
        let last = ErrorReply {
            at: Instant(0),
            op: Op::Write,
            offset: 4096,
            connection: 3,
            error: IoError::Medium,
        };
        let one = "a write at offset 4096 failed: input/output error (EIO), connection 3";
        assert_eq!(line(1, &last), one);
        assert_eq!(line(384, &last), format!("{one}; 383 more in the last 10 s"));
    }
}
