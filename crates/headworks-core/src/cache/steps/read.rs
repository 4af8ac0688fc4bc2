//! Reads: block by block from what is there, waiting for what is not.

use crate::action::{Action, CopyDirection};
use crate::cache::pool::folio::{BLOCK, BLOCK_SHIFT, Folio, block};
use crate::cache::pool::reclaim::Reclaim;
use crate::cache::waiters::operation::{Operation, WaitFor};
use crate::cache::{COPY_MAX, Cache, Turn};
use crate::error::IoError;

impl Cache {
    /// Copies up to the first block that is missing; asks for that and waits.
    pub(in crate::cache) fn step_read(&mut self, turn: &mut Turn, op: &mut Operation) -> WaitFor {
        if op.status.is_err() {
            return self.finish(turn, op, op.status);
        }
        let volume = op.bio.id.volume;
        let enough = op.done.saturating_add(COPY_MAX);
        while op.done < op.bio.len {
            if op.done >= enough {
                return WaitFor::Turn;
            }
            let at = op.at() >> BLOCK_SHIFT;
            let Some((unit, first)) = self.index.locate(&self.folios, volume, at) else {
                match self.ask(turn, op) {
                    Ok(()) => continue,
                    Err(park) => return park,
                }
            };
            if let Some(again) = self.copy_run(turn, op, unit, first) {
                self.touch(turn, op, unit, at, again);
                continue;
            }
            let state = self.folios.states(unit + first, 1)[0];
            // What is written out and yet not there is what a smaller volume cut off: its frame is the device's still.
            if state & self.busy_bits() != 0 {
                if self.folios[unit].is_late() {
                    return self.finish(turn, op, Err(IoError::TimedOut));
                }
                let end = ((at + 1) << BLOCK_SHIFT) - op.bio.offset;
                if op.done >= op.asked {
                    // Somebody else asked for it.
                    self.stats.misses += 1;
                    op.asked = end.min(u64::from(op.bio.len)) as u32;
                }
                return WaitFor::Folio(unit);
            }
            if let Err(park) = self.ask(turn, op) {
                return park;
            }
        }
        self.finish(turn, op, Ok(()))
    }

    /// Copies what is there of a folio from its block `first` on, as far as the bio wants it: whether that block was used before.
    /// `None` if it is not there.
    fn copy_run(
        &mut self,
        turn: &mut Turn,
        op: &mut Operation,
        unit: u32,
        first: u32,
    ) -> Option<bool> {
        let within = (op.at() % u64::from(BLOCK)) as u32;
        let left = op.bio.len - op.done;
        let wanted = (within + left).div_ceil(BLOCK);
        let blocks = self.folios[unit].blocks();
        let states = self.folios.states(unit + first, wanted.min(blocks - first));
        let plain = |state: &u8| state & (block::UPTODATE | block::SHADOW) == block::UPTODATE;
        let run = states.iter().position(|state| !plain(state)).unwrap_or(states.len()) as u32;
        let (from, run) = match run {
            0 if states[0] & block::SHADOW != 0 => (self.shadows.of(unit + first), 1),
            0 => return None,
            run => (unit + first, run),
        };
        let again = states[0] & block::USED != 0;
        if !again {
            self.folios.states_mut(unit + first, run).iter_mut().for_each(|s| *s |= block::USED);
        }
        let len = left.min(run * BLOCK - within);
        turn.actions.list.push(Action::Copy {
            bio: op.bio.id,
            offset: op.done,
            len,
            at: u64::from(from) << BLOCK_SHIFT | u64::from(within),
            direction: CopyDirection::ToBuffer,
        });
        self.stats.hits += u64::from(run);
        op.done += len;
        Some(again)
    }

    /// A read used a folio: eviction hears of it, and a marker starts the next window.
    fn touch(&mut self, turn: &mut Turn, op: &Operation, unit: u32, at: u64, again: bool) {
        // Only a block that is asked for again makes its folio worth keeping: a scan uses each block of a large folio once.
        if again {
            Reclaim::touch(&mut self.folios, unit);
        }
        let folio = &mut self.folios[unit];
        if folio.marks & (Folio::MARKER | Folio::UNUSED) == 0 {
            return;
        }
        if folio.is(Folio::UNUSED) {
            self.ahead.on_used(op.bio.id.volume, folio.blocks());
        }
        let marker = folio.is(Folio::MARKER);
        folio.marks &= !(Folio::MARKER | Folio::UNUSED);
        if marker {
            self.stirred = true;
            let bio = op.bio;
            let blocks = (bio.end().div_ceil(u64::from(BLOCK)) - at) as u32;
            if let Some(window) = self.window(&bio, at, blocks, true) {
                self.read_ahead(turn, &bio, &window, window.start);
            }
        }
    }
}
