//! What the cache is called with, and the small types that its files share.

use crate::action::{Action, Actions};
use crate::bio::Bio;
use crate::error::Status;
use crate::input::ReplyStage;
use crate::options::QueueOptions;
use crate::time::Instant;
use crate::timer::TimerWheel;
use crate::wait_times::WaitTimes;

/// What the shard lends the cache for a call: the time, the list of actions, the timers.
pub(crate) struct CallContext<'a> {
    /// Time of the current call.
    pub now: Instant,
    /// The actions of this batch.
    pub actions: &'a mut Actions,
    /// The shard's timers; the cache's own begin at its base.
    pub timers: &'a mut TimerWheel,
}

impl CallContext<'_> {
    /// Answers a bio that waited for nothing.
    pub(super) fn reply(&mut self, bio: &Bio, status: Status, stage: ReplyStage) {
        self.reply_after(bio, status, stage, WaitTimes::NONE);
    }

    /// Answers a bio that waited.
    pub(super) fn reply_after(
        &mut self,
        bio: &Bio,
        status: Status,
        stage: ReplyStage,
        wait_times: WaitTimes,
    ) {
        let id = bio.id;
        let reply = Action::Reply { id, status, hole: false, stage, wait_times };
        self.actions.list.push(reply);
    }

    /// Returns a read that needs a buffer.
    pub(super) fn return_bio(&mut self, bio: &Bio, wait_times: WaitTimes) {
        debug_assert!(bio.has_no_buffer(), "a bio with a buffer is answered");
        self.actions.list.push(Action::NeedsBuffer { id: bio.id, wait_times });
    }
}

/// The cache's timers on the shard's wheel, counted from its base; a writer's timer is `Writer` and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum TimerKind {
    /// The throttle updates its estimates.
    Throttle = 0,
    /// The flushers search for old data.
    Periodic = 1,
    /// A waiting flush times out.
    Flush = 2,
    /// Held blocks are written again.
    Retry = 3,
    /// Operations that used up their budget continue.
    NextTurn = 4,
    /// An operation has waited for too long.
    Expiry = 5,
    /// The pause of the first writer ends.
    Writer = 6,
}

/// How the blocks of a device's volumes are cached.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceCaching {
    /// The largest window of read-ahead, in KiB.
    pub read_ahead_kb: u32,
    /// The largest order of a folio.
    pub max_folio_order: u8,
    /// How long an operation may wait for something of the device, in nanoseconds.
    pub io_timeout_ns: u64,
}

impl DeviceCaching {
    /// Returns the caching that a device's options ask for.
    pub fn of(queue: &QueueOptions) -> Self {
        let QueueOptions { read_ahead_kb, max_folio_order, io_timeout_ns, .. } = *queue;
        Self { read_ahead_kb, max_folio_order, io_timeout_ns }
    }
}
