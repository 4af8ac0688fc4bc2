//! Write-out: how dirty blocks of a folio leave for their device, whoever wants that.
//!
//! The flusher sends whole passes, a writer its own range (`clean`), and under the old throttling a chunk of what is oldest. Each
//! run of dirty blocks that are neither held nor on their way becomes a bio of the cache's own; the generation of its folio
//! goes with it, so that a flush waits for it.
//!
//! Invariants: a block is in one write-out at a time; a folio is on its group's list exactly while a block of it is to be written.

use crate::bio::{Bio, BioFlags, BioId, Ioprio, Op, VolumeId};
use crate::cache::device_io::write_outs;
use crate::cache::pool::folio::block;
use crate::cache::{Cache, Turn};
use crate::device_bio::DeviceBio;
use crate::slab::NIL;

/// The reason for a write-out, as the statistics count it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cache) enum WriteoutReason {
    /// The background threshold is exceeded.
    Background = 0,
    /// The data is older than `dirty_expire_centisecs`.
    Periodic = 1,
    /// A flush waits for it.
    Sync = 2,
    /// Reclaim found no clean folio.
    Frames = 3,
    /// A writer waits for it (FUA, writethrough, direct I/O).
    Writer = 4,
}

/// How dirty blocks are sent.
#[derive(Clone, Copy, Debug)]
pub(in crate::cache) struct WriteoutRequest {
    /// The operation that waits for them, or `NIL`.
    pub cookie: u32,
    /// In whose name: the flusher's account, or the writer that writes for itself.
    pub connection: u32,
    pub flags: BioFlags,
    pub reason: WriteoutReason,
    /// Most blocks.
    pub most: u32,
}

impl Cache {
    /// A writer writes out for itself (the old way): up to `quota` blocks of the oldest group; bios that were sent.
    pub(in crate::cache) fn write_for_itself(
        &mut self,
        turn: &mut Turn,
        (volume, connection): (VolumeId, u32),
        quota: u32,
        slot: u32,
    ) -> u32 {
        let Some(group) = self.groups.oldest(volume) else {
            return 0;
        };
        let device = usize::from(self.volume(volume).device.0);
        let mut sorted = std::mem::take(&mut self.scratch);
        self.collect(group, &mut sorted);
        let (mut bios, mut left) = (0, quota);
        for &unit in &sorted {
            if left == 0 || !self.may_write_out(device) {
                break;
            }
            let count = self.folios[unit].blocks();
            let (flags, reason) = (BioFlags::NONE, WriteoutReason::Writer);
            let sent = WriteoutRequest { cookie: slot, connection, flags, reason, most: left };
            let (more, blocks) = self.send_dirty(turn, unit, 0, count, sent);
            bios += more;
            left = left.saturating_sub(blocks);
        }
        self.scratch = sorted;
        if self.groups.exists(group) {
            // If all of it is on its way, the next writer looks elsewhere.
            let since = if bios == 0 { turn.now } else { self.groups[group].since };
            self.groups.requeue(since, group);
        }
        bios
    }

    /// Sends the dirty blocks of a part of a folio that are neither held nor on their way; bios and blocks that were sent.
    pub(in crate::cache) fn send_dirty(
        &mut self,
        turn: &mut Turn,
        unit: u32,
        first: u32,
        count: u32,
        sent: WriteoutRequest,
    ) -> (u32, u32) {
        self.cancel_cut(unit);
        let (mut bios, mut blocks) = (0, 0);
        let mut at = first;
        let end = first + count;
        let account = write_outs(usize::from(self.volume(self.folios[unit].key.volume()).device.0));
        while at < end && blocks < sent.most && self.may_send(account) {
            let states = self.folios.states(unit + at, (end - at).min(sent.most - blocks));
            let busy = block::WRITEBACK | block::FAILED;
            let ready = |state: &u8| state & (block::DIRTY | busy) == block::DIRTY;
            let Some(skip) = states.iter().position(ready) else {
                break;
            };
            let run = states[skip..].iter().position(|state| !ready(state));
            let run = run.unwrap_or(states.len() - skip) as u32;
            at += skip as u32;
            self.send_run(turn, unit, at, run, &sent);
            at += run;
            (bios, blocks) = (bios + 1, blocks + run);
        }
        if blocks > 0 {
            self.roll_generation(unit);
            self.settle_group(unit);
        }
        (bios, blocks)
    }

    fn send_run(
        &mut self,
        turn: &mut Turn,
        unit: u32,
        first: u32,
        run: u32,
        sent: &WriteoutRequest,
    ) {
        for state in self.folios.states_mut(unit + first, run) {
            *state = *state & !(block::DIRTY | block::NEWER) | block::WRITEBACK;
        }
        let folio = &mut self.folios[unit];
        folio.dirty -= run as u16;
        folio.writeback += run as u16;
        let (at, mark, group) =
            (folio.key.block() + u64::from(first), folio.generation, folio.group);
        let volume = folio.key.volume();
        let export = self.groups[group].export;
        let entry = &mut self.volumes[usize::from(volume.0)];
        entry.add_writing(mark);
        let device = entry.device;
        self.flushers[usize::from(device.0)].went_out(run);
        let cause = BioId { connection: sent.connection, volume, export, sequence: 0 };
        let id = self.internal_id(&cause, unit + first, mark);
        let (offset, len) = self.bytes_of(volume, at, run);
        let (op, flags, ioprio) = (Op::Write, sent.flags, Ioprio::default());
        self.down.push(DeviceBio {
            bio: Bio { id, offset, len, op, flags, ioprio },
            cookie: sent.cookie,
        });
        self.bios.add(write_outs(usize::from(device.0)), 1);
        self.throttle.on_writeout(turn.now, device, run);
        self.stats.writeouts += 1;
        self.stats.written += u64::from(run);
        self.stats.written_for[sent.reason as usize] += u64::from(run);
    }

    /// After a write-out: if all that is still dirty of a folio came after its generation had ended, it belongs to the next one.
    /// So a flush is not kept waiting by a folio that is written all the time.
    fn roll_generation(&mut self, unit: u32) {
        let folio = self.folios[unit];
        let volume = &mut self.volumes[usize::from(folio.key.volume().0)];
        if folio.dirty == 0 || folio.generation == volume.current() {
            return;
        }
        let states = self.folios.states(unit, folio.blocks());
        let waits = |s: &u8| s & (block::DIRTY | block::FAILED | block::NEWER) == block::DIRTY;
        if states.iter().any(waits) || folio.group == NIL {
            return;
        }
        let next = (folio.generation + 1) % 16;
        volume.sub_dirty(folio.generation);
        volume.add_dirty(next);
        self.folios[unit].generation = next;
        for state in self.folios.states_mut(unit, folio.blocks()) {
            let newer = if *state & block::FILLING == 0 { block::NEWER } else { 0 };
            *state &= !newer;
        }
        let id = folio.key.volume();
        self.advance(id);
    }

    /// Takes a folio off its group's list when nothing of it is to be written any longer.
    pub(in crate::cache) fn settle_group(&mut self, unit: u32) {
        let folio = self.folios[unit];
        if folio.group == NIL {
            return;
        }
        let states = self.folios.states(unit, folio.blocks());
        let to_write = |s: &u8| s & (block::DIRTY | block::FAILED) == block::DIRTY;
        if folio.dirty > 0 && states.iter().any(to_write) {
            return;
        }
        self.groups.remove(&mut self.folios, unit);
        let volume = folio.key.volume();
        self.volume(volume).sub_dirty(folio.generation);
        self.advance(volume);
    }
}
