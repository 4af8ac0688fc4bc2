//! Bios of the cache's own: how many may be on their way, and whose they are.
//!
//! All devices share them. One that is slow would have them all in the end, and one that is dead would keep them: nobody else's
//! blocks would be read or written out any longer. So of each device fills and write-outs are two accounts, and each account
//! finds its floor free whatever the others do, as with dirty blocks (`writeback/credit.rs`):
//!
//! ```text
//!   on its way, all accounts + what is not used of the others' floors + 1  <=  bios
//! ```
//!
//! The same of the pool's frames: what is on its way from several devices takes half of them at most, each with a floor.
//!
//! Flushers leave a quarter of all to fills; a few of each device's write-outs go in any case. Whoever needs one for itself waits
//! in the line of its account.

use crate::cache::Cache;
use crate::cache::waiters::operation::{OpStep, WaitFor};

/// Bios of the cache's own that are kept for fills when write-out takes all it may: one in four.
const FILL_SHARE: u32 = 4;

/// The account of a device's fills.
pub(in crate::cache) const fn fills(device: usize) -> usize {
    2 * device
}

/// The account of its write-outs.
pub(in crate::cache) const fn write_outs(device: usize) -> usize {
    2 * device + 1
}

/// Blocks that may be on their way from so many devices: from one, all there are.
pub(in crate::cache) const fn filling_most(units: u32, devices: usize) -> u32 {
    if devices > 1 { units / 2 } else { units }
}

impl Cache {
    /// Bios of the cache's own that are on their way.
    pub(in crate::cache) fn in_flight(&self) -> u32 {
        self.bios.total()
    }

    /// Whether another bio of an account may go out.
    pub(in crate::cache) fn may_send(&self, account: usize) -> bool {
        let most = filling_most(self.folios.units(), self.filling.devices());
        let frames = account != fills(account / 2) || self.filling.fits(account / 2, 1, most);
        frames && self.bios.fits(account, 1, self.options.bios())
    }

    /// Whether a device's flusher may send another one.
    pub(in crate::cache) fn may_write_out(&self, device: usize) -> bool {
        let (bios, account) = (self.options.bios(), write_outs(device));
        let few = self.bios.used(account) < self.bios.floor();
        (few || self.bios.total() < bios - bios / FILL_SHARE) && self.may_send(account)
    }

    /// Lets those go on who wait for a bio, in turn: as many as there are.
    pub(in crate::cache) fn serve_bios(&mut self) {
        for account in 0..self.lines.bios.len() {
            if self.lines.bios[account].head().is_none() || !self.may_send(account) {
                continue;
            }
            let most = self.bios.ceiling(account, self.options.bios());
            for _ in self.bios.used(account)..most {
                let Some(slot) = self.lines.bios[account].pop(&mut self.ops) else {
                    break;
                };
                self.ready(slot);
            }
        }
    }

    /// Whoever is first in line for a frame, to fill it, and has no bio for that: it waits for one, and keeps nobody from the
    /// frame.
    pub(in crate::cache) fn defer_fill(&mut self, slot: u32) -> bool {
        let account = fills(self.device_of(slot));
        let defers = self.ops[slot].step == OpStep::Read && !self.may_send(account);
        if defers {
            self.lines.frames.pop(&mut self.ops);
            self.ops[slot].waits_for = WaitFor::Bios(account as u32);
            self.lines.bios[account].push(&mut self.ops, slot);
        }
        defers
    }
}
