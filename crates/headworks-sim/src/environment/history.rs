//! The last events of a run, for reports of a violation. Invariant: at most [`HISTORY`] entries are kept, the newest.

use headworks_core::{Bio, Instant, Op, ReplyStage, RequestId, Status};

use crate::sector_pattern::SECTOR;

/// Entries that are kept, and entries shown in a report.
const HISTORY: usize = 1 << 14;
const HISTORY_SHOWN: usize = 60;

/// An entry of the event history.
#[derive(Clone, Copy, Debug)]
struct HistoryEntry {
    now: Instant,
    bio: Bio,
    what: HistoryEvent,
}

/// What happened to a bio.
#[derive(Clone, Copy, Debug)]
pub(super) enum HistoryEvent {
    Submitted,
    Answered(Status, ReplyStage),
    /// A command sent by the cache.
    Sent(RequestId),
    Came(RequestId, Status),
    Closed,
}

/// The events of a run.
pub(super) struct History {
    entries: Vec<HistoryEntry>,
    /// Number of events so far.
    count: usize,
}

impl History {
    /// Creates an empty history, with its space if it will be `kept`.
    pub fn new(kept: bool) -> Self {
        Self { entries: Vec::with_capacity(if kept { HISTORY } else { 0 }), count: 0 }
    }

    /// Adds an event; the oldest one makes room.
    pub fn log(&mut self, now: Instant, bio: Bio, what: HistoryEvent) {
        let line = HistoryEntry { now, bio, what };
        if self.entries.len() < HISTORY {
            self.entries.push(line);
        } else {
            self.entries[self.count % HISTORY] = line;
        }
        self.count += 1;
    }

    /// Returns the events of a sector, or the last events of the run; oldest first.
    pub fn lines(&self, place: Option<(u16, u64)>) -> Vec<String> {
        let (old, new) = match self.entries.len() < HISTORY {
            true => (&self.entries[..], &[][..]),
            false => {
                let (new, old) = self.entries.split_at(self.count % HISTORY);
                (old, new)
            }
        };
        let concerns = |bio: &Bio| {
            place.is_none_or(|(volume, offset)| {
                let flush = bio.op == Op::Flush;
                let touches = bio.offset < offset + SECTOR as u64 && offset < bio.end();
                bio.id.volume.0 == volume && (flush || touches)
            })
        };
        let lines = old.iter().chain(new).rev();
        let lines = lines.filter(|line| concerns(&line.bio)).take(HISTORY_SHOWN);
        let mut lines: Vec<_> = lines.map(tell).collect();
        lines.reverse();
        lines
    }
}

fn tell(line: &HistoryEntry) -> String {
    let Bio { id, op, offset, len, flags, .. } = line.bio;
    let what = match line.what {
        HistoryEvent::Sent(id) => {
            format!("submitted by the cache as {}.{}", id.slot, id.generation)
        }
        HistoryEvent::Came(id, status) => {
            format!("{}.{} completed: {status:?}", id.slot, id.generation)
        }
        HistoryEvent::Closed => "connection closed".into(),
        HistoryEvent::Submitted => "submitted".into(),
        HistoryEvent::Answered(Ok(()), stage) => format!("{stage:?}"),
        HistoryEvent::Answered(Err(error), stage) => format!("{stage:?}: {error}"),
    };
    format!(
        "{:>14} ns  {}/{:#x} {:?} {}:{}+{} flags {:#x}  {what}",
        line.now.0, id.connection, id.sequence, op, id.volume.0, offset, len, flags.0
    )
}
