//! Writes of which pieces are in the shard: one record each, from the first piece to the answer.
//!
//! ```text
//!   begin --> open, pieces go and come --`is_last`--> all given --last answer--> ended, one reply with the first error
//!                       `--refuse: what is left of the payload is dropped ------'
//! ```

use headworks_core::{Instant, IoError, Op, Status, WaitTimes};
use headworks_nbd::transmission::Request;

use crate::window::CompletedRequest;

/// A write of which pieces are in the shard.
#[derive(Debug)]
struct SplitWrite {
    number: u32,
    request: Request,
    /// Pieces in the shard.
    pieces: u16,
    /// The first error that a piece had.
    status: Status,
    /// More of its payload is to come.
    open: bool,
    /// Its waits before the bios, once all is given; none if it was refused.
    front: Option<WaitTimes>,
    /// When its payload was whole.
    since: Instant,
}

/// The split writes of a connection.
#[derive(Debug, Default)]
pub struct SplitWrites {
    all: Vec<SplitWrite>,
    /// Number of the last one.
    last: u32,
}

/// What the answer to a piece means for its write.
#[derive(Debug)]
pub enum PieceEnd {
    /// More of the payload is to come; what is said of the pieces so far.
    Open(Status),
    /// Other pieces are in the shard.
    Others,
    /// It was the last one.
    Last(EndedWrite),
}

/// A write all pieces of which were answered.
#[derive(Debug)]
pub struct EndedWrite {
    /// The client's name for it.
    pub cookie: u64,
    /// First byte of its range.
    pub offset: u64,
    /// The first error that a piece had.
    pub status: Status,
    /// The whole request, to be counted; none if it was refused.
    pub completed: Option<CompletedRequest>,
}

impl SplitWrites {
    /// Begins a record; returns its number, which is not 0.
    pub fn begin(&mut self, request: Request) -> u32 {
        self.last = self.last.wrapping_add(1).max(1);
        self.all.push(SplitWrite {
            number: self.last,
            request,
            pieces: 0,
            status: Ok(()),
            open: true,
            front: None,
            since: Instant(0),
        });
        self.last
    }

    /// Pieces of a write in the shard.
    #[must_use]
    pub fn pieces_of(&self, number: u32) -> u16 {
        self.all.iter().find(|split| split.number == number).map_or(0, |split| split.pieces)
    }

    /// Counts a piece that is given to the shard; the last one comes with the waits of the whole and the time at which it was there.
    pub fn give(&mut self, number: u32, is_last: bool, (front, since): (WaitTimes, Instant)) {
        if let Some(split) = self.all.iter_mut().find(|split| split.number == number) {
            assert!(split.open, "no piece follows the last one");
            split.pieces += 1;
            split.open = !is_last;
            split.since = since;
            split.front = is_last.then_some(front);
        }
    }

    /// Ends a write whose bytes all have come with an error; false if no piece of it is in the shard: it is answered now.
    pub fn refuse(&mut self, number: u32, error: IoError) -> bool {
        let Some(index) = self.all.iter().position(|split| split.number == number) else {
            return false;
        };
        let split = &mut self.all[index];
        if split.pieces == 0 {
            self.all.swap_remove(index);
            return false;
        }
        split.open = false;
        split.status = split.status.and(Err(error));
        true
    }

    /// Counts a piece that the shard has answered; none if its write is not known.
    pub fn on_piece(&mut self, now: Instant, number: u64, status: Status) -> Option<PieceEnd> {
        let index = self.all.iter().position(|split| u64::from(split.number) == number)?;
        let split = &mut self.all[index];
        assert!(split.pieces > 0, "each piece is answered once");
        split.pieces -= 1;
        split.status = split.status.and(status);
        if split.open {
            return Some(PieceEnd::Open(split.status));
        }
        if split.pieces > 0 {
            return Some(PieceEnd::Others);
        }
        let SplitWrite { request, status, front, since, .. } = self.all.swap_remove(index);
        let Request { cookie, offset, len, .. } = request;
        let total_ns = now.since(since);
        let completed =
            front.map(|front| CompletedRequest { op: Op::Write, offset, len, total_ns, front });
        Some(PieceEnd::Last(EndedWrite { cookie, offset, status, completed }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks_nbd::wire::{Command, CommandFlags};

    fn write() -> Request {
        let (command, flags) = (Command::Write, CommandFlags::NONE);
        Request { cookie: 7, offset: 0, len: 3 << 20, command, flags }
    }

    const NEVER: (WaitTimes, Instant) = (WaitTimes::NONE, Instant(5));

    #[test]
    fn write_is_answered_after_its_last_piece_with_the_first_error() {
        let mut splits = SplitWrites::default();
        let number = splits.begin(write());
        let other = splits.begin(write());
        assert!(number > 0 && other != number);
        splits.give(number, false, NEVER);
        splits.give(number, false, NEVER);
        let first = splits.on_piece(Instant(6), number.into(), Err(IoError::Medium));
        assert!(matches!(first, Some(PieceEnd::Open(Err(IoError::Medium)))));
        splits.give(number, true, NEVER);
        assert_eq!((splits.pieces_of(number), splits.pieces_of(other)), (2, 0));
        let next = splits.on_piece(Instant(7), number.into(), Err(IoError::NoSpace));
        assert!(matches!(next, Some(PieceEnd::Others)));
        let Some(PieceEnd::Last(ended)) = splits.on_piece(Instant(9), number.into(), Ok(())) else {
            panic!("the last one");
        };
        assert_eq!((ended.cookie, ended.status), (7, Err(IoError::Medium)));
        assert_eq!(ended.completed.map(|whole| whole.total_ns), Some(4));
        assert!(splits.on_piece(Instant(9), number.into(), Ok(())).is_none(), "once");
    }

    #[test]
    fn refused_write_waits_for_its_pieces_and_is_not_counted() {
        let mut splits = SplitWrites::default();
        let [with, without] = [(); 2].map(|()| splits.begin(write()));
        splits.give(with, false, NEVER);
        assert!(splits.refuse(with, IoError::TimedOut));
        assert!(!splits.refuse(without, IoError::TimedOut) && !splits.refuse(99, IoError::Medium));
        let Some(PieceEnd::Last(ended)) = splits.on_piece(Instant(9), with.into(), Ok(())) else {
            panic!("the last one");
        };
        assert_eq!(ended.status, Err(IoError::TimedOut));
        assert!(ended.completed.is_none() && splits.all.is_empty());
    }
}
