//! Devices and volumes join and leave while the shard runs.

use super::Shard;
use crate::options::{Change, ChangeError};
use crate::time::Instant;

impl Shard {
    /// Makes a change, between two batches: after the actions of the last one were carried out and cleared. What it makes the
    /// shard do is among the actions of the next [`Shard::handle`], which may have no inputs and should follow soon.
    ///
    /// Every shard is told of every change, in this order:
    ///
    /// - `AddDevice`, then `AddVolume`: the owner of the device first, then the others, each change everywhere before the next.
    ///   A bio may come and an option of the device may be set when all have agreed.
    /// - `RemoveVolume`: the shard where it lives first, until it agrees; from then on its bios are answered
    ///   [`IoError::Invalid`](crate::IoError::Invalid). Then the owner of its device, then the others.
    /// - `RemoveDevice`: the owner last, each until it agrees.
    ///
    /// The place of what was removed may be used again as soon as all have agreed.
    ///
    /// # Errors
    /// [`ChangeError::Busy`]: something of it is on its way or dirty here; ask again later. [`ChangeError::Invalid`]: it cannot
    /// be (the place is taken, or vacant; no spare tags are left; a number is out of its range). Nothing was changed.
    pub fn change(&mut self, _now: Instant, change: &Change) -> Result<(), ChangeError> {
        let _ = change;
        Err(ChangeError::Busy("not done yet"))
    }
}
