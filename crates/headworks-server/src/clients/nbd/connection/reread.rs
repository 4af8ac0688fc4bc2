//! Data of replies that a slow client did not take: they give their buffers to other connections, and are read again
//! when the client takes more.
//!
//! ```text
//!   unsent data --drop_data: old, and the pool is short--> dropped --the socket took all before it--> due
//!      ^                                                                                              |
//!      `------ restore <--status ok-- read of a chunk in flight <--------- reread, with a buffer -----'
//!                                           `--status of an error--> fault: the connection ends
//! ```
//!
//! Invariant: at most one chunk of a connection is read again at a time, and only after the socket took everything
//! before it. So a client that takes nothing causes no read, and holds nothing of the pool.

use headworks_core::{BioFlags, Instant, ReplyStage, Status};

use super::session::{Reread, Session};
use super::{Connection, Intake, REREAD_ALIGN, Shares, Wire};
use headworks_front::front_waits::FrontWaits;
use headworks_front::window::InFlight;
use headworks_front::{FrontRequest, Origin, WaitsFor};
use headworks_house::Pool;
use headworks_nbd::transmission::Request;
use headworks_nbd::wire::{Command, CommandFlags};

/// The socket takes more: the next turn reads dropped data again. False if a read in flight or room in the window comes first, whose
/// completion leads here again, or if that read waits already.
pub(super) fn note_dropped_next(wire: &Wire, intake: &mut Intake, session: &Session) -> bool {
    let is_due = session.reread().is_none()
        && session.window().used() + intake.waiting().again() < session.bounds().requests
        && wire.outgoing().next_dropped().is_some();
    let begins = is_due && !intake.waiting().has_reread();
    if begins {
        let (command, flags) = (Command::Read, CommandFlags::NONE);
        let request = Request { cookie: 0, offset: 0, len: 0, command, flags };
        intake.waiting_mut().push(FrontRequest::new(request, Origin::Reread, Instant(0)));
    }
    begins
}

/// Reads the next dropped data again, if there are any; `Buffer` if none is free. The shard has a slot for it.
pub(super) fn reread(connection: &mut Connection, shares: &mut Shares<'_>) -> WaitsFor {
    let Connection { wire, intake, session } = connection;
    let dropped = wire.outgoing().next_dropped().filter(|_| session.reread().is_none());
    let Some((offset, len)) = dropped else { return WaitsFor::Nothing };
    if session.last_binding().is_none() {
        return WaitsFor::Nothing;
    }
    // A chunk is admitted by its size alone, see `memory`. The pool may have small blocks only.
    let limits = shares.memory.limits();
    let sizes = [limits.chunk(shares.pool.taken()), limits.guaranteed()];
    let taken = sizes.into_iter().find_map(|most| {
        let (from, end) = chunk_of(offset, len, most, session.block());
        let buffer = shares.pool.try_take((end - from) as usize)?;
        Some((from, end, buffer))
    });
    let Some((from, end, buffer)) = taken else { return WaitsFor::Buffer };
    intake.charge(buffer.len());
    let (command, flags, read) = (Command::Read, CommandFlags::NONE, (end - from) as u32);
    let request = Request { cookie: 0, offset: from, len: read, command, flags };
    let (skip, len) = ((offset - from) as usize, (end - offset) as usize);
    let (flags, waits) = (BioFlags::default(), FrontWaits::default());
    let sequence = session.submit(&request, flags, waits, Some(buffer), shares);
    session.begin_reread(Reread { sequence, skip, len });
    WaitsFor::Nothing
}

/// Takes the status of a read of dropped data.
pub(super) fn on_reread(
    connection: &mut Connection,
    now: Instant,
    sequence: u64,
    (status, hole, stage): (Status, bool, ReplyStage),
    pool: &mut Pool,
) {
    let Connection { wire, intake, session } = connection;
    if stage == ReplyStage::Early {
        // The device may still use the buffer; the client cannot get this reply any more.
        if let Some(in_flight) = session.window_mut().get(sequence) {
            in_flight.answered = true;
        }
        session.fail("a read that continues a reply timed out".to_owned());
        return;
    }
    let Some(Reread { skip, len, .. }) = session.end_reread() else { return };
    let Some(InFlight { buffer: Some(buffer), .. }) = session.take(sequence) else { return };
    intake.discharge(buffer.len());
    let fails = session.has_fault() || stage == ReplyStage::Released;
    match status {
        Ok(()) if !fails && wire.outgoing().next_dropped().is_some() => {
            if hole {
                pool.put(buffer);
                wire.outgoing_mut().restore(None, (0, len), now);
            } else {
                wire.outgoing_mut().restore(Some(buffer), (skip, len), now);
            }
            return;
        }
        Ok(()) => {}
        Err(error) => session.fail(format!("a read that continues a reply failed: {error}")),
    }
    pool.put(buffer);
}

/// First byte and end of the next range to be read again: at most about `most` bytes from `offset` on, aligned, within
/// the `len` bytes that were dropped.
fn chunk_of(offset: u64, len: usize, most: usize, block: u32) -> (u64, u64) {
    let align = REREAD_ALIGN.max(u64::from(block));
    let from = offset - offset % align;
    let end = (offset + len as u64).min(from + (most as u64).max(align));
    assert!(from <= offset && offset < end, "a chunk has bytes of the reply");
    (from, end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reread_chunks_are_aligned_and_end_with_the_reply() {
        assert_eq!(chunk_of(0, 1 << 20, 8192, 512), (0, 8192));
        assert_eq!(chunk_of(5000, 1 << 20, 8192, 512), (4096, 12288));
        assert_eq!(chunk_of(5000, 3192, 8192, 512), (4096, 8192));
        assert_eq!(chunk_of(70_000, 100_000, 4096, 65536), (65536, 131_072));
        assert_eq!(chunk_of(4095, 1, 4096, 1), (0, 4096));
    }
}
