//! Flushes: everything that was dirty when one began is written, then the device flushes.
//!
//! ```text
//!   begins: held blocks are released, the generation ends
//!      --> Flush: waits until nothing of that generation or an older one is left (flush_timeout fails it)
//!      --> Device: the device's flush, which the queue shares among bios that may share it
//!      --> completed: with an error if the device's flush failed, if blocks are held, or if the connection has not seen an error of
//!          write-out yet
//! ```
//!
//! Invariant: `Ok` means that every write of the volume that was acknowledged before the flush arrived is durable.

use crate::bio::Bio;
use crate::cache::context::{CallContext, TimerKind};
use crate::cache::state::CacheState;
use crate::cache::waiters::operation::{OpStep, Operation, WaitFor};
use crate::error::{IoError, Status};
use crate::slab::NIL;
use crate::time::Instant;

/// Creates the operation of a flush that arrives.
pub(in crate::cache) fn begin(
    state: &mut CacheState,
    ctx: &mut CallContext,
    bio: Bio,
) -> Operation {
    let mut op = Operation::new(ctx.now, bio, OpStep::Flush);
    let volume = bio.id.volume;
    op.writer = state.dirty.throttle_mut().writer(bio.id.connection).0;
    op.deadline = ctx.now.after(state.options.flush_timeout_ns);
    state.volumes.begin_errors(op.writer, &bio);
    op.progress = state.volumes.seen_errors(op.writer);
    if state.defects.error_reported_once() {
        op.progress = state.volumes[volume].errors().sample();
    }
    if state.volumes[volume].held() > 0 {
        state.unhold_volume(ctx.now, volume);
    }
    op
}

/// Waits for the write-out of older data, then passes the flush to the device.
pub(super) fn step(
    state: &mut CacheState,
    ctx: &mut CallContext,
    op: &mut Operation,
    slot: u32,
) -> WaitFor {
    if slot == NIL {
        return WaitFor::Slot;
    }
    if op.status.is_err() {
        count(state, op.status);
        return state.complete(ctx, op, op.status);
    }
    debug_assert!(op.bio.op == crate::bio::Op::Flush && !op.locked, "a flush locks no range");
    let volume = &mut state.volumes[op.bio.id.volume];
    if volume.is_truncating() {
        // Held or dirty blocks past the end are not waited for, and are no error.
        return WaitFor::NextTurn;
    }
    let begins = op.generation == 0;
    if begins {
        let Some(target) = volume.end_generation() else {
            // Flushes that timed out left data in every generation; perhaps no other flush waits for its write-out.
            volume.raise_target_to_ended();
            return WaitFor::Flush;
        };
        // 0 says that there is none yet.
        op.generation = target + 1;
    }
    let target = op.generation - 1;
    let left = match state.defects.flush_ignores_writeout() {
        true => volume.has_dirty(target),
        false => volume.is_left(target),
    };
    if left {
        volume.raise_target(target);
        if begins {
            let device = state.volumes.device_index(op.bio.id.volume);
            state.dirty.note_flush(device);
        }
        return WaitFor::Flush;
    }
    if state.defects.flush_skips_device() {
        return state.complete(ctx, op, Ok(()));
    }
    if state.is_late_for_device(ctx, op) {
        count(state, Err(IoError::TimedOut));
        return state.complete(ctx, op, Err(IoError::TimedOut));
    }
    let bio = op.bio;
    state.pass_to_device(op, slot, bio);
    WaitFor::Device
}

/// Completes a flush after the device's flush.
pub(super) fn end(
    state: &mut CacheState,
    ctx: &mut CallContext,
    op: &mut Operation,
    below: Status,
) {
    // A write-out that failed since the flush began was part of it, even if another flush has made its blocks dirty again.
    assert!(op.generation > 0, "the flush has waited for a generation");
    let missed = state.volumes[op.bio.id.volume].errors().check(&mut op.progress);
    if op.writer != NIL {
        state.volumes.set_seen_errors(op.writer, &op.bio, op.progress);
    }
    let volume = &state.volumes[op.bio.id.volume];
    let held = (volume.held() > 0).then(|| volume.last_error());
    let status = match (below, held.or(missed)) {
        (Err(error), _) | (Ok(()), Some(error)) => Err(error),
        (Ok(()), None) => Ok(()),
    };
    count(state, status);
    state.complete(ctx, op, status);
}

/// Counts a flush that completes.
pub(in crate::cache) fn count(state: &mut CacheState, status: Status) {
    state.stats.flushes += 1;
    state.stats.flushes_failed += u64::from(status.is_err());
}

/// Fails the flushes whose deadline has passed; their data stays dirty.
pub(in crate::cache) fn on_timeout(state: &mut CacheState, ctx: &mut CallContext) {
    let mut next: Option<Instant> = None;
    for volume in state.volumes.ids() {
        for started in [true, false] {
            while let Some(deadline) = state.waiters.next_flush_deadline(volume, started) {
                if deadline > ctx.now {
                    next = Some(next.map_or(deadline, |other| other.min(deadline)));
                    break;
                }
                state.waiters.fail_flush(volume, started, IoError::TimedOut);
            }
        }
    }
    state.set_timer(ctx, TimerKind::Flush, next);
}
