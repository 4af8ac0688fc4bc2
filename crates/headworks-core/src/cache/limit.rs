//! The limit of frames that the cache may use, which the operator moves while it runs: with the machine's free memory, say.
//!
//! A lower limit is approached turn by turn: clean folios are evicted in the order of eviction, and their frames are released. What is
//! dirty is written out first, and what is held or outstanding is waited for. Dirty limits follow the limit.
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

impl Cache {
    /// Sets how many frames the cache may use.
    pub fn set_limit(&mut self, units: u32) {
        let state = &mut self.state;
        state.pool.set_limit(units);
        state.io.set_units(state.pool.limit());
        state.dirty.throttle_mut().set_limit_units(state.pool.dirtyable());
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
        if let Some((at, len)) = self.pool.prepare().map(bytes) {
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
