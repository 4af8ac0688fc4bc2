//! What the operations of the cache wait for, for a client that asks.

use super::Cache;
use super::waiters::operation::WaitFor;
use crate::bio::{BioId, VolumeId};
use crate::wait_times::WaitKind;

/// What an operation waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OperationWait {
    /// Something that the cache itself gives.
    For(WaitKind),
    /// A bio of its own, which has this slot as its cookie.
    OwnBio(u32),
    /// The fill or the write-out of the folio at this unit.
    Frames(u32),
    /// What the device has of others of its volume.
    Others,
}

impl Cache {
    /// Returns the volume whose data the operation of a client's bio is about, the base's where it reads that, and what it waits for.
    pub fn operation_wait(&self, id: BioId) -> Option<(VolumeId, OperationWait)> {
        let mut all = self.state.waiters.iter().filter(|(_, op)| !op.answered);
        let (slot, op) = all.find(|(_, op)| {
            (op.bio.id.connection, op.bio.id.sequence) == (id.connection, id.sequence)
        })?;
        let wait = match op.waits_for {
            WaitFor::Pause | WaitFor::Credit(_) | WaitFor::Cap(..) => {
                OperationWait::For(WaitKind::Dirty)
            }
            WaitFor::Nothing | WaitFor::NextTurn | WaitFor::Slot | WaitFor::Frame => {
                OperationWait::For(WaitKind::Cache)
            }
            WaitFor::Device | WaitFor::Writeouts => OperationWait::OwnBio(slot),
            WaitFor::Folio(unit) => OperationWait::Frames(unit),
            WaitFor::Bios(_) | WaitFor::Range(_) | WaitFor::Flush => OperationWait::Others,
        };
        Some((op.bio.id.volume, wait))
    }
}
