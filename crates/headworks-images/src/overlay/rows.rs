//! Commands in flight and their pieces, in two bounded tables.
//!
//! A command ends when all of its pieces have ended. Its bytes count up to the first one that did not come; a failed piece fails the
//! command, and `Busy` counts only if nothing else failed.

use headworks_core::{Completion, IoError, Op};

use super::flush::FlushStep;
use super::here::{HereStep, SLOTS};
use headworks::Command;

/// Pieces that only steps of flushes and of here bits may take.
const STEPS: usize = 32;
const _: () = assert!(super::flush::WRITES_MAX + SLOTS <= STEPS);

/// A command in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub command: Command,
    /// Ends with a round of flushes: FUA.
    pub joins: bool,
    /// Reads as zeros, and the memory was not touched.
    pub hole: bool,
    /// Bytes from the start that have come; the end of the pieces that were started, at first.
    pub transferred: u32,
    pieces: u16,
    is_started: bool,
    failure: Option<IoError>,
}

/// What a piece is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Bytes of the command from `at` on.
    Data { at: u32 },
    /// A step of a flush; the row does not count.
    Flush(FlushStep),
    /// A step of here bits; the row does not count.
    Here(HereStep),
}

/// A command that was given to our file or to the base.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub row: u32,
    pub role: Role,
    pub len: u32,
}

/// Most entries of a table of pieces with room for `pieces` of commands.
pub(super) const fn pieces_most(pieces: usize) -> usize {
    pieces + STEPS
}

#[derive(Debug)]
struct Table<T> {
    entries: Vec<Option<T>>,
    free: Vec<u32>,
    most: usize,
}

impl<T> Table<T> {
    fn new(most: usize) -> Self {
        Self { entries: Vec::with_capacity(256), free: Vec::with_capacity(256), most }
    }

    fn room(&self) -> usize {
        self.most - self.entries.len() + self.free.len()
    }

    fn add(&mut self, entry: T) -> Option<u32> {
        if let Some(index) = self.free.pop() {
            self.entries[index as usize] = Some(entry);
            return Some(index);
        }
        let index = self.entries.len();
        (index < self.most).then(|| {
            self.entries.push(Some(entry));
            index as u32
        })
    }

    fn take(&mut self, index: u32) -> Option<T> {
        let entry = self.entries.get_mut(index as usize)?.take()?;
        self.free.push(index);
        Some(entry)
    }
}

/// The two tables.
#[derive(Debug)]
pub(super) struct Rows {
    rows: Table<Row>,
    pieces: Table<Piece>,
}

impl Rows {
    pub fn new(rows: usize, pieces: usize) -> Self {
        Self { rows: Table::new(rows), pieces: Table::new(pieces_most(pieces)) }
    }

    /// Adds a command; `None` when there is no room.
    pub fn add(&mut self, command: &Command) -> Option<u32> {
        self.rows.add(Row {
            command: *command,
            joins: false,
            hole: false,
            transferred: 0,
            pieces: 0,
            is_started: false,
            failure: None,
        })
    }

    pub fn get_mut(&mut self, row: u32) -> &mut Row {
        self.rows.entries[row as usize].as_mut().expect(TAKEN)
    }

    pub fn remove(&mut self, row: u32) -> Row {
        self.rows.take(row).expect(TAKEN)
    }

    /// Adds a piece of a command; `None` when there is no room.
    pub fn add_piece(&mut self, piece: Piece) -> Option<u32> {
        if self.pieces.room() <= STEPS {
            return None;
        }
        self.get_mut(piece.row).pieces += 1;
        self.pieces.add(piece)
    }

    /// Adds a step, of which there are few at a time.
    pub fn add_step(&mut self, role: Role) -> u32 {
        let piece = Piece { row: u32::MAX, role, len: 0 };
        self.pieces.add(piece).expect("steps are fewer than the pieces set aside for them")
    }

    /// Takes a piece whose answer has come.
    pub fn take_piece(&mut self, index: u32) -> Option<Piece> {
        self.pieces.take(index)
    }

    /// The pieces of the command reach to `end`, and no more are added.
    pub fn started(&mut self, row: u32, end: u32) {
        let row = self.get_mut(row);
        row.is_started = true;
        row.transferred = end;
        if row.pieces == 0 && (end == 0 || row.command.op != Op::Read) {
            // There was no room for any.
            row.failure = Some(IoError::Busy);
        }
    }

    /// A piece of the command has ended.
    pub fn on_piece(&mut self, row: u32, at: u32, len: u32, answer: &Completion) {
        let row = self.get_mut(row);
        row.pieces -= 1;
        match answer.status {
            // A hole may be short, too: its bytes were not touched.
            Ok(()) => {
                row.hole |= answer.hole;
                if answer.transferred < len {
                    row.transferred = row.transferred.min(at + answer.transferred);
                }
            }
            Err(error) => {
                let worse = row.failure.is_none_or(|failure| failure == IoError::Busy);
                row.failure = if worse { Some(error) } else { row.failure };
            }
        }
    }

    /// How a command ended: its bytes, or why not; `None` while pieces of it are in flight.
    pub fn end_of(&mut self, row: u32) -> Option<Result<u32, IoError>> {
        let Row { pieces, is_started, failure, transferred, .. } = *self.get_mut(row);
        let ended = is_started && pieces == 0;
        ended.then(|| failure.map_or(Ok(transferred), Err))
    }
}

const TAKEN: &str = "a row is kept until its command is answered";

#[cfg(test)]
mod tests {
    use headworks_core::{BioFlags, RequestId, VolumeId};

    use super::*;

    fn command() -> Command {
        Command {
            id: RequestId::default(),
            volume: VolumeId(0),
            op: Op::Read,
            flags: BioFlags::NONE,
            offset: 0,
            len: 12288,
            first_span: 0,
            spans: 0,
        }
    }

    fn ended(pieces: [(u32, Result<(), IoError>); 3]) -> Result<u32, IoError> {
        let mut rows = Rows::new(1, 3);
        let row = rows.add(&command()).unwrap();
        assert!(rows.add(&command()).is_none());
        for at in [0, 4096, 8192] {
            rows.add_piece(Piece { row, role: Role::Data { at }, len: 4096 }).unwrap();
        }
        assert!(rows.add_piece(Piece { row, role: Role::Data { at: 0 }, len: 1 }).is_none());
        rows.started(row, 12288);
        for (at, (transferred, status)) in [0, 4096, 8192].into_iter().zip(pieces) {
            assert_eq!(rows.end_of(row), None);
            let id = RequestId::default();
            rows.on_piece(row, at, 4096, &Completion { id, transferred, status, hole: false });
        }
        rows.end_of(row).unwrap()
    }

    #[test]
    fn short_hole_is_still_one() {
        let mut rows = Rows::new(1, 1);
        let row = rows.add(&command()).unwrap();
        rows.add_piece(Piece { row, role: Role::Data { at: 0 }, len: 12288 }).unwrap();
        rows.started(row, 12288);
        let id = RequestId::default();
        let answer = Completion { id, transferred: 4096, status: Ok(()), hole: true };
        rows.on_piece(row, 0, 12288, &answer);
        assert_eq!((rows.end_of(row), rows.get_mut(row).hole), (Some(Ok(4096)), true));
    }

    #[test]
    fn bytes_count_up_to_the_first_that_did_not_come() {
        let all = (4096, Ok(()));
        assert_eq!(ended([all, all, all]), Ok(12288));
        assert_eq!(ended([all, (512, Ok(())), (0, Ok(()))]), Ok(4608));
        assert_eq!(ended([(0, Ok(())), all, all]), Ok(0));
        let failed = |error| (0, Err(error));
        assert_eq!(ended([all, failed(IoError::Busy), all]), Err(IoError::Busy));
        let both = [failed(IoError::Busy), failed(IoError::Medium), failed(IoError::Busy)];
        assert_eq!(ended(both), Err(IoError::Medium));
    }
}
