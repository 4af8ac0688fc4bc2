//! Hand-over of a running server to a new process of the same program, without closing connections.
//!
//! ```text
//!   old: standing() ---------------> pause() --------> the new process says that it serves --> exit
//!          |                          |   `--failure--> resume()
//!          v record, descriptors      v record, descriptors
//!   new: opens, maps, starts,         adopts clients and cache --adopted()--> serves
//!        frozen       `--live()-------^
//! ```
//!
//! The transport between the processes belongs to the program; this module defines what is handed over, and when. Invariant: until
//! the new process was told to serve, it changes nothing that the old one needs to continue.

mod request;
mod takeover;

use std::time::Duration;

use crate::Server;

pub(crate) use request::AnswerGuard;
pub use request::{UpgradeHook, UpgradeRefusal, UpgradeReport, UpgradeRequest, UpgradeResult};
pub use takeover::{Handover, Takeover, TakeoverStep, TakeoverSteps};

impl Server {
    /// Listeners, image locks, the cache's memory and settings, for a process that is to replace this one. The server goes on.
    ///
    /// # Errors
    /// A sentence why this server cannot be handed over.
    pub fn standing(&self) -> Result<Handover, String> {
        Err("not built yet".into())
    }

    /// Pauses the service: no accept, no read, no write-out, nothing in flight; then hands over connections and contents of caches.
    ///
    /// # Errors
    /// A sentence why requests in flight did not end within `limit`; the server already serves on.
    pub fn pause(&self, _limit: Duration) -> Result<Handover, String> {
        Err("not built yet".into())
    }

    /// Ends a pause: the server serves on.
    pub fn resume(&self) {}
}
