//! Write-out on a writer's behalf: what FUA, writethrough and direct I/O wait for.
//!
//! The operation goes over its range once: what is dirty is sent, in its own name; what is on its way in an older version is
//! waited for and looked at again. It is done when all that it sent came back. A block that somebody else had written meanwhile
//! is on the device but perhaps not durable: then a flush of the device follows, for FUA.

use crate::bio::{Bio, BioFlags, Op};
use crate::cache::device_io::write_outs;
use crate::cache::dirty::writeout::{WriteoutReason, WriteoutRequest};
use crate::cache::pool::folio::{BLOCK, BLOCK_SHIFT, FolioKey, ORDER_MAX, block};
use crate::cache::waiters::operation::{OpStep, Operation, WaitFor};
use crate::cache::{Cache, Turn};
use crate::device_bio::DeviceBio;
use crate::error::IoError;
use crate::options::WriteMode;

/// Blocks (or 2 MiB of which none is newer than the device's) that are looked up in one turn: 0.5 ms.
const LOOK_MAX: u32 = 16_384;

impl Cache {
    /// Writes the range out; then the device's flush if one is needed; then the answer.
    pub(in crate::cache) fn step_clean(
        &mut self,
        turn: &mut Turn,
        op: &mut Operation,
        slot: u32,
    ) -> WaitFor {
        let flags = if op.is_fua() { BioFlags::FUA } else { BioFlags::NONE };
        if let Some(park) = self.clean_range(turn, op, slot, flags.with(BioFlags::SYNC)) {
            return park;
        }
        if op.status.is_err() {
            if self.volume(op.bio.id.volume).mode == WriteMode::Writethrough {
                self.give_up_range(&op.bio);
            }
            return self.finish(turn, op, op.status);
        }
        if op.is_fua() && op.wants_flush {
            self.pass_down(op, slot, Bio { op: Op::Flush, offset: 0, len: 0, ..op.bio });
            return WaitFor::Below;
        }
        self.finish(turn, op, Ok(()))
    }

    /// Sends what is dirty of the operation's range, whole blocks; `None` when all of it came back.
    pub(in crate::cache) fn clean_range(
        &mut self,
        turn: &mut Turn,
        op: &mut Operation,
        slot: u32,
        flags: BioFlags,
    ) -> Option<WaitFor> {
        let volume = op.bio.id.volume;
        let first = op.bio.offset >> BLOCK_SHIFT;
        let end = op.bio.end().div_ceil(u64::from(BLOCK));
        // `asked` counts blocks that are dealt with.
        let mut looks = 0;
        while first + u64::from(op.asked) < end {
            if looks >= LOOK_MAX {
                return Some(WaitFor::Turn);
            }
            looks += 1;
            let at = first + u64::from(op.asked);
            // Nearly all of a terabyte that is zeroed is not cached.
            let around = FolioKey::new(volume, at, ORDER_MAX);
            if !self.dirty_regions.any(around) {
                let next = (around.block() + (1 << ORDER_MAX)).min(end);
                op.wants_flush = true;
                op.asked += (next - at) as u32;
                continue;
            }
            let Some(unit) = self.index.find(&self.folios, volume, at) else {
                op.wants_flush = true;
                op.asked += 1;
                continue;
            };
            let from = (at - self.folios[unit].key.block()) as u32;
            let left = (end - at).min(u64::from(self.folios[unit].blocks() - from)) as u32;
            let states = self.folios.states(unit + from, left);
            if states[0] & block::WRITEBACK != 0 {
                if self.folios[unit].is_late() {
                    op.status = Err(IoError::TimedOut);
                    return (op.pending > 0).then_some(WaitFor::Own);
                }
                return Some(WaitFor::Folio(unit));
            }
            if states[0] & block::DIRTY == 0 {
                op.wants_flush = true;
                op.asked += 1;
                continue;
            }
            let ready = |s: &u8| s & (block::DIRTY | block::WRITEBACK) == block::DIRTY;
            let run = states.iter().position(|s| !ready(s)).unwrap_or(left as usize) as u32;
            let account = write_outs(usize::from(self.volume(volume).device.0));
            if !self.may_send(account) {
                return Some(WaitFor::Bios(account as u32));
            }
            self.unhold(unit, from, run);
            let connection = op.bio.id.connection;
            let sent = WriteoutRequest {
                cookie: slot,
                connection,
                flags,
                reason: WriteoutReason::Writer,
                most: run,
            };
            let (bios, _) = self.send_dirty(turn, unit, from, run, sent);
            op.pending += bios;
            op.asked += run;
        }
        (op.pending > 0).then_some(WaitFor::Own)
    }

    /// Hands a bio of the client to the device, in the operation's name.
    pub(in crate::cache) fn pass_down(&mut self, op: &mut Operation, slot: u32, bio: Bio) {
        op.step = OpStep::Below;
        let flags = bio.flags.without(BioFlags::DIRECT);
        self.down.push(DeviceBio { bio: Bio { flags, ..bio }, cookie: slot });
    }
}
