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
//!
//! `standing` and `live` are the two parts, `record` their form; `give` is the old server's side, `take` the new one's, `takeover`
//! what its options say; `disk` the rule which disk a connection may go on with; `request` is an operator's request for all of it.

mod disk;
#[cfg(test)]
mod file_tests;
mod give;
mod live;
mod record;
mod request;
mod standing;
mod take;
mod takeover;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod world_tests;

pub(crate) use disk::{HandedVolume, ToldExport};
pub use give::PauseInProgress;
pub use record::Handover;
pub(crate) use request::AnswerGuard;
pub use request::{UpgradeHook, UpgradeRefusal, UpgradeReport, UpgradeRequest, UpgradeResult};
pub(crate) use standing::{HandedListener, HandedPartition, HandedRemote, ListenerRole};
pub(crate) use take::Adoption;
pub use takeover::{Takeover, TakeoverStep, TakeoverSteps, UnmatchedClients};
