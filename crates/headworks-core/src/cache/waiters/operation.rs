//! A client's bio that could not be answered at once: where it is, and what it waits for.
//!
//! It has a cursor and is parked on exactly one thing at a time. What it waits for steps it on from its cursor; it holds no
//! pin while it waits, so nobody can be stuck behind it.
//!
//! ```text
//!            .----------- a fill or a write-out of the folio at its cursor ended ----------.
//!            v                                                                             |
//!   Read ----+--- copied to the end ---> answered                                        Folio
//!   Write ---+--- applied ---> answered, or (FUA, writethrough) Clean ---> Below ---> answered
//!      waits for: Writer (its connection pauses) -> Credit -> Frames -> Folio -> Range (somebody discards there)
//!   Range ---> nothing of the range on its way ---> Below (the device has it) ---> answered
//!   Status --> newer here than there: answered, else --> Below (the device knows) ----> answered
//!   Sync ----> all that was dirty is written -----> Below (the device flushes) --> answered
//! ```

use crate::bio::{Bio, BioFlags};
use crate::error::Status;
use crate::list::Chained;
use crate::slab::NIL;
use crate::time::Instant;

/// What an operation is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::cache) enum OpStep {
    /// Copies blocks to the client, filling what is missing.
    #[default]
    Read,
    /// Copies the client's bytes (or zeros) into blocks.
    Write,
    /// Writes its own range out and waits for that.
    Clean,
    /// Waits until nothing of its range is on its way, then hands the bio to the device.
    Range,
    /// Waits until all that was dirty at its start is written.
    Sync,
    /// Tells what its range is made of, or asks the device.
    Status,
    /// The device has its bio.
    Below,
}

/// What an operation waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::cache) enum WaitFor {
    /// Nothing: it is being stepped.
    #[default]
    Nothing,
    /// An event of the folio at this unit.
    Folio(u32),
    /// A frame for a folio of `0`'s order.
    Frames,
    /// A bio of the cache's own, of that account.
    Bios(u32),
    /// Dirty credit for so many blocks.
    Credit(u32),
    /// The pause of its writer.
    Writer,
    /// The end of the range operation in this slot.
    Range(u32),
    /// Write-outs of its own.
    Own,
    /// Its next turn: it has copied as much as one may.
    Turn,
    /// Its volume's write-out.
    Sync,
    /// The device's answer.
    Below,
    /// Nothing, but it needs a slot to go on.
    Slot,
}

/// One operation.
#[derive(Clone, Debug)]
pub(in crate::cache) struct Operation {
    /// What the client asked for.
    pub bio: Bio,
    /// Bytes of the bio that are done.
    pub done: u32,
    /// Where the part of the bio that is written now ends (an unaligned zeroing has three parts).
    pub until: u32,
    /// Read: bytes of the bio for which fills were asked. Sync: what its connection had heard of errors before.
    pub asked: u32,
    /// Range: how far nothing of it is on its way any longer, a place in a walk over its folios.
    pub walk: u64,
    /// What it is doing.
    pub step: OpStep,
    /// What it waits for.
    pub waits_for: WaitFor,
    /// Where its waits are added up; `NIL`: it has not waited.
    pub waits: u32,
    /// Next in the list that it is parked on.
    pub next: u32,
    /// Its connection, as the throttle knows it.
    pub writer: u32,
    /// Dirty credit that it holds, in blocks.
    pub credit: u32,
    /// A frame that was granted to it, and its order.
    pub frame: (u32, u8),
    /// Write-outs of its own that are on their way.
    pub pending: u32,
    /// Sync: the last generation that it waits for.
    pub generation: u64,
    /// Sync: it is given up at this time.
    pub deadline: Instant,
    /// The first thing that went wrong.
    pub status: Status,
    /// Its range is locked.
    pub locked: bool,
    /// The device must flush before it is answered.
    pub wants_flush: bool,
    /// It was answered by time-out; the device still has its buffer.
    pub answered: bool,
    /// It goes past the cache as `O_DIRECT` does.
    pub direct: bool,
    /// Range: what is dirty of it is written out, not cancelled.
    pub cleans: bool,
}

impl Default for Operation {
    fn default() -> Self {
        Self {
            bio: Bio::default(),
            done: 0,
            until: 0,
            asked: 0,
            walk: 0,
            step: OpStep::Read,
            waits_for: WaitFor::Nothing,
            waits: NIL,
            next: NIL,
            writer: NIL,
            credit: 0,
            frame: (NIL, 0),
            pending: 0,
            generation: 0,
            deadline: Instant(0),
            status: Ok(()),
            locked: false,
            wants_flush: false,
            answered: false,
            direct: false,
            cleans: false,
        }
    }
}

impl Operation {
    /// The operation of a bio that nothing was done of.
    pub fn new(bio: Bio, step: OpStep) -> Self {
        Self { bio, step, until: bio.len, ..Self::default() }
    }

    /// The byte of the volume at its cursor.
    pub fn at(&self) -> u64 {
        self.bio.offset + u64::from(self.done)
    }

    /// Whether it must be durable when it is answered.
    pub fn is_fua(&self) -> bool {
        self.bio.flags.contains(BioFlags::FUA)
    }
}

impl Chained for Operation {
    fn next(&mut self) -> &mut u32 {
        &mut self.next
    }
}
