//! A file between two processes: what one knows of it, for another that goes on with the same device. The mount stays as it is.
//!
//! ```text
//!   old: read nothing more --> what was read ends, limits or not --> HandedFile        long requests: what no piece has been given of
//!   new: FuseClient::adopt --> begin, when the old one has left --> reads on
//! ```
//!
//! The kernel knows a request that was read by the open device, not by the process: an answer of either is one. So a request that was read and
//! not answered may be finished by the new process; here that are the long ones, of which most may be left. All others end before: they
//! have no bytes to be read again from, as those of a connection have.
//!
//! Invariants: only a file that takes requests moves, and only while nothing of it is in the shard; a request that moves has a part left, and no part of
//! it failed.

use std::os::fd::OwnedFd;

use super::*;
use crate::clients::nbd::connection::session::Resumption;
use headworks_core::Ioprio;
pub use long::{LongKind, LongRequest};

/// What was agreed on with the kernel when the mount began, which lasts as long as the mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgreedTerms {
    /// Minor version of the kernel's protocol.
    pub minor: u32,
    /// Flags that were agreed on, beside those that every file has.
    pub flags: u64,
    /// Bytes of the largest write.
    pub write_max: u32,
}

/// A file for another process.
#[derive(Debug)]
pub struct HandedFile {
    /// A descriptor of its device.
    pub device: OwnedFd,
    /// Its id in the old process.
    pub id: u32,
    /// Its directory and name.
    pub place: FilePlace,
    /// Class of its requests, if it has one of its own.
    pub ioprio: Option<Ioprio>,
    /// How many times it is open.
    pub opens: u64,
    /// The time of change that it shows.
    pub modified: Time,
    /// What was agreed on with the kernel; none before it has asked.
    pub terms: Option<AgreedTerms>,
    /// Requests that are not answered.
    pub long: Vec<LongRequest>,
}

impl FuseClient {
    /// What another process needs to go on with it; none if it takes no requests, or no descriptor is left.
    #[must_use]
    pub fn hand_over(&self) -> Option<HandedFile> {
        let file = &self.source;
        self.session.binding()?;
        let device = file.channel.as_ref()?.duplicate().ok()?;
        assert!(self.is_at_rest() && file.held.1.is_empty(), "what was read has ended");
        Some(HandedFile {
            device,
            id: self.session.id(),
            place: file.place.clone(),
            ioprio: self.session.own_ioprio(),
            opens: file.opens,
            modified: file.modified,
            terms: file.terms,
            long: file.long.left(),
        })
    }

    /// A file of another process, which takes requests once it has its export.
    ///
    /// # Errors
    /// The device is closed.
    pub fn adopt(
        handed: HandedFile,
        listener: Arc<str>,
        limits: ConnectionLimits,
        news: Sender<DirectoryNews>,
    ) -> io::Result<Self> {
        let HandedFile { device, place, ioprio, opens, modified, terms, long, .. } = handed;
        let mut client = Self::new(device, (place, listener), limits, news)?;
        let file = &mut client.source;
        (file.opens, file.modified, file.terms) = (opens, modified, terms);
        file.long = LongRequests::resumed(long);
        client.session.set_resumption(Resumption { ioprio, ..Resumption::default() });
        Ok(client)
    }
}
