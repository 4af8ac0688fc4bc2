//! Requests of a file that become more than one bio: zeroes of any length, and the search for data or a hole.
//!
//! Pieces of zeroes are given one after the other as the window has room, and are in flight together; a search asks for the next extents
//! when those before are known. Invariant: a request is in the list until it is answered, and has a part that is left or in flight.

use headworks_core::extent::extents;
use headworks_core::{ExtentState, Status};
use headworks_nbd::transmission::Request;
use headworks_nbd::wire::{Command, CommandFlags};

/// Most bytes of a piece.
const PIECE: u64 = 1 << 30;

/// What is asked for.
#[derive(Clone, Copy, Debug)]
enum Work {
    Zero(CommandFlags),
    /// For a hole, or for data.
    Seek {
        hole: bool,
    },
}

/// A request, and what is left of it.
#[derive(Clone, Copy, Debug)]
struct Long {
    cookie: u64,
    work: Work,
    /// First byte that no piece has.
    next: u64,
    end: u64,
    in_flight: u32,
    status: Status,
}

impl Long {
    /// Whether another piece can be given.
    fn has_piece(&self) -> bool {
        let waits = matches!(self.work, Work::Seek { .. }) && self.in_flight > 0;
        self.next < self.end && !waits
    }
}

/// A request of which nothing is in flight, and what is left of it: for another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongRequest {
    /// Number by which it is answered.
    pub cookie: u64,
    /// What is asked for.
    pub kind: LongKind,
    /// First byte that no piece has; less than `end`.
    pub next: u64,
    /// The byte behind its last one.
    pub end: u64,
}

/// What a long request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LongKind {
    /// Zeroes, which may free the space.
    Punch,
    /// Zeroes that keep the space.
    Zero,
    /// The next data.
    Data,
    /// The next hole.
    Hole,
}

impl LongKind {
    /// Each kind with its name in a hand-over.
    pub const NAMES: [(Self, &'static str); 4] =
        [(Self::Punch, "punch"), (Self::Zero, "zero"), (Self::Data, "data"), (Self::Hole, "hole")];

    fn of(work: Work) -> Self {
        match work {
            Work::Zero(flags) if flags.contains(CommandFlags::NO_HOLE) => Self::Zero,
            Work::Zero(_) => Self::Punch,
            Work::Seek { hole: false } => Self::Data,
            Work::Seek { hole: true } => Self::Hole,
        }
    }

    fn work(self) -> Work {
        match self {
            Self::Punch => Work::Zero(CommandFlags::NONE),
            Self::Zero => Work::Zero(CommandFlags::NO_HOLE),
            Self::Data => Work::Seek { hole: false },
            Self::Hole => Work::Seek { hole: true },
        }
    }
}

/// How far a search has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Advance {
    /// It ends at this byte.
    Found(u64),
    /// There is no data up to the end.
    Nothing,
    /// More extents are asked for.
    GoesOn,
}

/// The long requests of a file.
#[derive(Debug, Default)]
pub(super) struct LongRequests(Vec<Long>);

impl LongRequests {
    /// Those of another process.
    pub fn resumed(left: Vec<LongRequest>) -> Self {
        let resumed = |LongRequest { cookie, kind, next, end }: LongRequest| {
            assert!(next < end, "a part of it is left");
            Long { cookie, work: kind.work(), next, end, in_flight: 0, status: Ok(()) }
        };
        Self(left.into_iter().map(resumed).collect())
    }

    /// What is left of them, for another process: nothing is in flight.
    pub fn left(&self) -> Vec<LongRequest> {
        let left = |one: &Long| {
            let Long { cookie, work, next, end, in_flight, status } = *one;
            // One that failed gives no further piece, so it has ended with those before.
            assert!(in_flight == 0 && status.is_ok(), "it goes on");
            LongRequest { cookie, kind: LongKind::of(work), next, end }
        };
        self.0.iter().map(left).collect()
    }

    /// Zeroes a range that is not empty.
    pub fn zero(&mut self, cookie: u64, (next, end): (u64, u64), flags: CommandFlags) {
        let work = Work::Zero(flags);
        self.0.push(Long { cookie, work, next, end, in_flight: 0, status: Ok(()) });
    }

    /// Searches a range that is not empty for a hole, or for data.
    pub fn seek(&mut self, cookie: u64, (next, end): (u64, u64), hole: bool) {
        let work = Work::Seek { hole };
        self.0.push(Long { cookie, work, next, end, in_flight: 0, status: Ok(()) });
    }

    /// Whether a piece can be given.
    pub fn has_next(&self) -> bool {
        self.0.iter().any(Long::has_piece)
    }

    /// Gives the next piece of any of them.
    pub fn next(&mut self) -> Option<Request> {
        let one = self.0.iter_mut().find(|one| one.has_piece())?;
        let (offset, len) = (one.next, (one.end - one.next).min(PIECE));
        one.in_flight += 1;
        let (command, flags) = match one.work {
            Work::Zero(flags) => {
                one.next += len;
                (Command::WriteZeroes, flags)
            }
            Work::Seek { .. } => (Command::BlockStatus, CommandFlags::NONE),
        };
        Some(Request { cookie: one.cookie, offset, len: len as u32, command, flags })
    }

    /// A piece of zeroes has ended; returns the outcome of its request if it was the last one.
    pub fn on_zeroed(&mut self, cookie: u64, status: Status) -> Option<Status> {
        let place = self.0.iter().position(|one| one.cookie == cookie)?;
        let one = &mut self.0[place];
        one.in_flight -= 1;
        one.status = one.status.and(status);
        if status.is_err() {
            one.next = one.end;
        }
        let is_over = one.in_flight == 0 && one.next == one.end;
        is_over.then(|| self.0.swap_remove(place).status)
    }

    /// Extents have come of the `len` bytes that were asked for.
    pub fn on_extents(&mut self, cookie: u64, list: &[u8], len: u32) -> Advance {
        let Some(place) = self.0.iter().position(|one| one.cookie == cookie) else {
            return Advance::GoesOn;
        };
        let one = &mut self.0[place];
        let Work::Seek { hole } = one.work else { return Advance::GoesOn };
        one.in_flight -= 1;
        let begun = one.next;
        let advance = follow(one, hole, list, len);
        // A device that tells nothing would be asked without end: what it does not know is data.
        let stuck = advance == Advance::GoesOn && one.next == begun;
        let advance = match (stuck, hole) {
            (true, false) => Advance::Found(begun),
            (true, true) => Advance::Found(one.end),
            _ => advance,
        };
        if advance != Advance::GoesOn {
            self.0.swap_remove(place);
        }
        advance
    }

    /// A request was answered with an error.
    pub fn forget(&mut self, cookie: u64) {
        self.0.retain(|one| one.cookie != cookie);
    }
}

fn follow(one: &mut Long, hole: bool, list: &[u8], len: u32) -> Advance {
    for extent in extents(list, len) {
        if extent.state.contains(ExtentState::ZERO) == hole {
            return Advance::Found(one.next);
        }
        one.next += u64::from(extent.len);
    }
    match (one.next < one.end, hole) {
        (true, _) => Advance::GoesOn,
        // Behind the end there is a hole, as every file has it.
        (false, true) => Advance::Found(one.end),
        (false, false) => Advance::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks_core::IoError;
    use headworks_core::extent::{EXTENTS_BYTES, EXTENTS_MAX, ExtentWriter};

    fn list(parts: &[(u64, ExtentState)]) -> Vec<u8> {
        let mut bytes = vec![0; EXTENTS_BYTES as usize];
        let len = parts.iter().map(|(len, _)| *len as u32).sum();
        let mut writer = ExtentWriter::new(&mut bytes, len, EXTENTS_MAX);
        for (len, state) in parts {
            writer.push(*len, *state);
        }
        writer.finish();
        bytes
    }

    #[test]
    fn zeroes_of_any_length_are_pieces_with_one_answer() {
        let mut long = LongRequests::default();
        long.zero(7, (512, 512 + 3 * PIECE), CommandFlags::NO_HOLE);
        let pieces: Vec<Request> = std::iter::from_fn(|| long.next()).collect();
        let bounds: Vec<_> = pieces.iter().map(|one| (one.offset, one.len as u64)).collect();
        assert_eq!(bounds, [0, 1, 2].map(|place| (512 + place * PIECE, PIECE)));
        assert_eq!(long.on_zeroed(7, Ok(())), None);
        assert_eq!(long.on_zeroed(7, Err(IoError::NoSpace)), None);
        assert_eq!(long.on_zeroed(7, Ok(())), Some(Err(IoError::NoSpace)));
        assert_eq!(long.on_zeroed(7, Ok(())), None, "it is answered");
    }

    #[test]
    fn no_piece_follows_one_that_failed() {
        let mut long = LongRequests::default();
        long.zero(7, (0, 4 * PIECE), CommandFlags::NONE);
        long.next().unwrap();
        assert_eq!(long.on_zeroed(7, Err(IoError::Medium)), Some(Err(IoError::Medium)));
        assert!(!long.has_next());
    }

    #[test]
    fn search_goes_from_extent_to_extent() {
        let (data, hole) = (ExtentState::DATA, ExtentState::HOLE_ZERO);
        let find = |from: u64, end: u64, wants_hole: bool, lists: &[&[(u64, ExtentState)]]| {
            let mut long = LongRequests::default();
            long.seek(1, (from, end), wants_hole);
            for parts in lists {
                let asked = long.next().unwrap();
                assert!(!long.has_next(), "one piece at a time");
                match long.on_extents(1, &list(parts), asked.len) {
                    Advance::GoesOn => {}
                    advance => return Some(advance),
                }
            }
            None
        };
        assert_eq!(find(4096, 8192, false, &[&[(4096, data)]]), Some(Advance::Found(4096)));
        assert_eq!(
            find(0, 8192, false, &[&[(4096, hole), (4096, data)]]),
            Some(Advance::Found(4096))
        );
        assert_eq!(
            find(0, 8192, true, &[&[(4096, data), (4096, hole)]]),
            Some(Advance::Found(4096))
        );
        assert_eq!(find(0, 8192, true, &[&[(8192, data)]]), Some(Advance::Found(8192)));
        assert_eq!(find(0, 8192, false, &[&[(8192, hole)]]), Some(Advance::Nothing));
        // A list may end early.
        assert_eq!(
            find(0, 8192, false, &[&[(4096, hole)], &[(1024, hole), (3072, data)]]),
            Some(Advance::Found(5120))
        );
        assert_eq!(
            find(0, 8192, false, &[&[]]),
            Some(Advance::Found(0)),
            "what is unknown is data"
        );
        assert_eq!(find(0, 8192, true, &[&[]]), Some(Advance::Found(8192)));
    }
}
