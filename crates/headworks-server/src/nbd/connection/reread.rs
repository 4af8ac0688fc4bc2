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

use headworks_core::{BioFlags, Instant, Op, ReplyStage, Status};

use super::{Connection, ExportBinding, Phase, REREAD_ALIGN, Reread, Shares};
use headworks::driver::Pool;
use headworks_front::front_waits::FrontWaits;
use headworks_front::memory::{MemoryLimits, Wanted};
use headworks_front::window::InFlight;
use headworks_front::{FrontRequest, Origin, WaitsFor};
use headworks_nbd::transmission::Request;
use headworks_nbd::wire::{Command, CommandFlags};

impl Connection {
    /// Whether the client leaves data of replies unread.
    #[must_use]
    pub fn is_stalled(&self, now: Instant) -> bool {
        self.outgoing.is_stalled(now)
    }

    /// Bytes of buffers that [`Connection::drop_data`] can return.
    #[must_use]
    pub fn droppable(&self, now: Instant) -> usize {
        self.outgoing.droppable(now)
    }

    /// Time of the oldest unsent data.
    #[must_use]
    pub fn oldest_data(&self) -> Option<Instant> {
        self.outgoing.oldest_data()
    }

    /// Drops old unsent data of at least `wanted` bytes, if there are as many. Returns the bytes of the buffers and the
    /// number of replies.
    pub fn drop_data(&mut self, now: Instant, wanted: usize, pool: &mut Pool) -> (usize, usize) {
        self.outgoing.drop_data(now, wanted, pool)
    }

    /// Removes and returns the reason why the connection cannot continue.
    pub fn take_fault(&mut self) -> Option<String> {
        self.fault.take()
    }

    /// The socket takes more: the next turn reads dropped data again. False if a read in flight or room in the window comes first, whose
    /// completion leads here again, or if that read waits already.
    pub fn note_dropped_next(&mut self) -> bool {
        let is_due = self.reread.is_none()
            && self.window.used() + self.waiting.again() < self.limits.requests
            && self.outgoing.next_dropped().is_some();
        let begins = is_due && !self.waiting.has_reread();
        if begins {
            let (command, flags) = (Command::Read, CommandFlags::NONE);
            let request = Request { cookie: 0, offset: 0, len: 0, command, flags };
            self.waiting.push(FrontRequest::new(request, Origin::Reread, Instant(0)));
        }
        begins
    }

    /// Reads the next dropped data again, if there are any; `Buffer` if none is free. The shard has a slot for it.
    pub(super) fn reread(&mut self, shares: &mut Shares<'_>) -> WaitsFor {
        let Some((offset, len)) = self.outgoing.next_dropped().filter(|_| self.reread.is_none())
        else {
            return WaitsFor::Nothing;
        };
        if self.last_binding().is_none() {
            return WaitsFor::Nothing;
        }
        // A chunk is admitted by its size alone, see `memory`. The pool may have small blocks only.
        let limits = shares.memory.limits();
        let sizes = [limits.chunk(shares.pool.taken()), limits.guaranteed()];
        let taken = sizes.into_iter().find_map(|most| {
            let (from, end) = chunk_of(offset, len, most, self.block);
            let buffer = shares.pool.try_take((end - from) as usize)?;
            Some((from, end, buffer))
        });
        let Some((from, end, buffer)) = taken else { return WaitsFor::Buffer };
        self.buffer_bytes += buffer.len();
        let (command, flags, read) = (Command::Read, CommandFlags::NONE, (end - from) as u32);
        let request = Request { cookie: 0, offset: from, len: read, command, flags };
        let (skip, len) = ((offset - from) as usize, (end - offset) as usize);
        let (flags, waits) = (BioFlags::default(), FrontWaits::default());
        let sequence = self.submit(&request, flags, waits, Some(buffer), shares);
        self.reread = Some(Reread { sequence, skip, len });
        WaitsFor::Nothing
    }

    /// Takes the status of a read of dropped data.
    pub(super) fn on_reread(
        &mut self,
        now: Instant,
        sequence: u64,
        (status, hole, stage): (Status, bool, ReplyStage),
        pool: &mut Pool,
    ) {
        if stage == ReplyStage::Early {
            // The device may still use the buffer; the client cannot get this reply any more.
            if let Some(in_flight) = self.window.get(sequence) {
                in_flight.answered = true;
            }
            self.fail("a read that continues a reply timed out".to_owned());
            return;
        }
        let Some(Reread { skip, len, .. }) = self.reread.take() else { return };
        let Some(InFlight { buffer: Some(buffer), .. }) = self.window.remove(sequence) else {
            return;
        };
        assert!(self.buffer_bytes >= buffer.len(), "buffers in flight are counted");
        self.buffer_bytes -= buffer.len();
        let fails = self.fault.is_some() || stage == ReplyStage::Released;
        match status {
            Ok(()) if !fails && self.outgoing.next_dropped().is_some() => {
                if hole {
                    pool.put(buffer);
                    self.outgoing.restore(None, (0, len), now);
                } else {
                    self.outgoing.restore(Some(buffer), (skip, len), now);
                }
                return;
            }
            Ok(()) => {}
            Err(error) => self.fail(format!("a read that continues a reply failed: {error}")),
        }
        pool.put(buffer);
    }

    fn fail(&mut self, sentence: String) {
        if !matches!(self.phase, Phase::Dead) {
            self.fault.get_or_insert(sentence);
        }
    }

    /// What the connection waits for, if it waits for a buffer or a bio slot.
    #[must_use]
    pub fn wanted(&self, limits: &MemoryLimits) -> Wanted {
        let block = |len: usize| Pool::block_bytes(len).unwrap_or(Pool::LARGEST);
        let waits = |one: &&FrontRequest| one.waits_for() == WaitsFor::Buffer;
        let Some(one) = self.waiting.all().find(waits) else { return Wanted::Slot };
        if one.origin == Origin::Reread {
            return Wanted::Chunk { bytes: block(limits.guaranteed()) };
        }
        if one.has_payload() {
            return self.wanted_by_payload(one, limits.guaranteed());
        }
        let len = one.request.op().buffer_len(one.request.len) as usize;
        Wanted::Block { bytes: block(len), reads: one.request.op() == Op::Read }
    }

    /// The binding, also of a connection that has left transmission.
    pub(super) fn last_binding(&self) -> Option<ExportBinding> {
        self.binding().or(self.binding_left)
    }
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
