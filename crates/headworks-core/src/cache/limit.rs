//! The limit of frames that the cache may use, which the operator moves while it runs: with the machine's free memory, say.
//!
//! A lower limit is approached turn by turn: clean folios are evicted in the order of eviction, and their frames are released. What is
//! dirty is written out first, and what is held or outstanding is waited for. Dirty limits follow the limit.
//!
//! Memory may be refused: a filesystem of fixed size that others fill has none. Where the driver answers for the memory of frames
//! ([`CacheOptions::backed`]), the pool uses none before it was had: an operation waits for a frame until the answer, as it does for a frame
//! that becomes clean. While memory is refused the limit is what the pool has.
//!
//! [`CacheOptions::backed`]: crate::CacheOptions::backed
//!
//! Invariant: a turn evicts and releases a bounded number of times; while nothing can be evicted the next completion tries again.

use super::Cache;
use super::context::CallContext;
use super::pool::folio::BLOCK_SHIFT;
use super::pool::{COMMON, Eviction};
use super::state::CacheState;
use crate::action::Action;

/// Releases of a turn: each is one or two system calls, 1 to 4 us.
const RELEASES_MAX: u32 = 32;

/// Ranges of frames that are named in a turn.
const PREPARES_MAX: usize = 32;

impl Cache {
    /// Sets how many frames the cache may use, and of how many at most parts may be dirty (0: as before).
    pub fn set_limit(&mut self, units: u32, dirtyable: u32) {
        self.state.pool.set_limit(units);
        if dirtyable > 0 {
            self.state.pool.set_dirtyable(dirtyable);
        }
        self.follow_limit();
    }

    /// Takes the answer to a part of [`Action::Prepare`]: frames have memory, or get none at present.
    pub fn on_memory(&mut self, (first, units): (u32, u32), had: bool) {
        let before = self.state.pool.limit();
        self.state.pool.on_memory(first, units, had);
        if self.state.pool.limit() != before {
            self.follow_limit();
        }
        // An operation may have waited for a frame.
        self.state.needs_run = true;
    }

    fn follow_limit(&mut self) {
        let state = &mut self.state;
        state.io.set_units(state.pool.limit());
        let (dirtyable, most) = (state.pool.dirtyable(), state.pool.dirty_most());
        state.dirty.throttle_mut().set_limit_units(dirtyable, most);
        state.apply_limits();
    }
}

impl CacheState {
    /// Names the frames that will be used next, and those that will not, after the tables have grown or the limit has moved.
    pub fn prepare(&mut self, ctx: &mut CallContext) {
        if self.is_frozen() {
            return;
        }
        let bytes =
            |(first, units): (u32, u32)| (u64::from(first) << BLOCK_SHIFT, units << BLOCK_SHIFT);
        if let Some((at, len)) = self.pool.unprepare().map(bytes) {
            ctx.actions.list.push(Action::Release { at, len });
        }
        for (at, len) in std::iter::from_fn(|| self.pool.prepare()).take(PREPARES_MAX).map(bytes) {
            ctx.actions.list.push(Action::Prepare { at, len });
        }
    }

    /// Releases frames beyond the limit, as many as one turn may; evicts for them.
    pub fn give_back(&mut self, ctx: &mut CallContext) {
        if self.pool.excess() == 0 || self.is_frozen() {
            return;
        }
        for _ in 0..RELEASES_MAX {
            if self.pool.excess() == 0 {
                return;
            }
            let Some((unit, units)) = self.release_some() else { return };
            let (at, len) = (u64::from(unit) << BLOCK_SHIFT, units << BLOCK_SHIFT);
            ctx.actions.list.push(Action::Release { at, len });
        }
        self.set_next_turn(ctx);
    }

    /// Withholds free frames, after an eviction if there are none; `None` if nothing can be evicted now.
    fn release_some(&mut self) -> Option<(u32, u32)> {
        if let Some(released) = self.pool.withhold() {
            return Some(released);
        }
        match self.pool.evict(&mut self.ahead, COMMON) {
            Eviction::Evicted(_) => self.pool.withhold(),
            Eviction::NoneClean => {
                self.dirty.want_clean();
                None
            }
            Eviction::Empty => None,
        }
    }
}
