//! Freezing: the cache starts nothing of its own, so that it becomes quiet whatever is dirty, and its contents can be handed over.
//!
//! ```text
//!   Freeze on:   pauses end, truncations end, the flushers send only what operations wait for (a flush, credit, a cap, a frame)
//!                --> every operation completes --> every write-out completes --> quiet; no timer of the flushers is set
//!   Freeze off:  retries that came due and the flushers run again
//! ```
//!
//! Operations that the cache accepted before it was frozen, or that are sent meanwhile, complete as usual: what they wait for is
//! still written. Without operations nothing is written, read ahead or tried again. A block that is written again during its
//! write-out is simply dirty when that ends.
//!
//! Invariant: while the cache is frozen and no operation waits, every outstanding bio was sent before.

use super::context::CallContext;
use super::state::CacheState;
use super::steps::resize;

impl CacheState {
    /// Freezes the cache, or lets it start write-out and read-ahead again.
    pub fn set_frozen(&mut self, ctx: &mut CallContext, frozen: bool) {
        if self.is_frozen() == frozen {
            return;
        }
        self.begin_freeze(frozen);
        self.needs_run = true;
        if frozen {
            resize::end_truncations(self, ctx);
            for writer in 0..self.waiters.writers() as u32 {
                self.waiters.end_pause(writer);
            }
        } else {
            self.pool.report_renamed(ctx.actions);
        }
        self.set_retry_timer(ctx);
    }

    /// Returns true if an operation waits for write-out of a device: a flush, one without credit, one whose payer is at its
    /// cap, or one without a frame.
    pub fn waits_for_writeout(&self, device: usize) -> bool {
        let flushes = |volume| {
            self.volumes.is_on(volume, device) && self.volumes[volume].flush_work().is_some()
        };
        let frames = self.dirty.wants_clean(device) && self.waiters.first_for_frame().is_some();
        let caps = self.waiters.waits_for_cap() && self.dirty.payers().is_pressed_on(device);
        frames
            || caps
            || self.waiters.first_for_credit(device).is_some()
            || self.volumes.ids().any(flushes)
    }
}
