//! Block status of a range, and of a whole export.

use std::io::{Read, Write};

use headworks_core::{Extent, ExtentState};

use super::replies::Reply;
use super::{Client, ClientError, protocol};
use crate::wire::{Command, CommandFlags, be32};

/// Longest range of one request: whole pages below 4 GiB.
const ASKED_MAX: u64 = (1 << 32) - (64 << 10);

impl Client {
    /// Queries the extents of a range; returns at least one, maybe not all.
    ///
    /// # Errors
    /// The context was not negotiated, or the server failed the request or violated the protocol.
    pub fn block_status(
        &mut self,
        offset: u64,
        len: u32,
        flags: CommandFlags,
    ) -> Result<Vec<Extent>, ClientError> {
        let Some(context) = self.export.allocation else {
            return Err(ClientError::Refused("it does not support base:allocation".into()));
        };
        let header = self.header(Command::BlockStatus, flags, (offset, len));
        self.socket.write_all(&header.encode())?;
        let (mut failed, mut extents) = (None, Vec::new());
        loop {
            let reply = self.next_reply()?;
            if reply.cookie() != self.cookie {
                return Err(protocol("a reply that matches no request"));
            }
            match reply {
                Reply::Status { context: told, len, .. } => {
                    let mut bytes = vec![0; len as usize];
                    self.socket.read_exact(&mut bytes)?;
                    if told != context || !extents.is_empty() {
                        return Err(protocol("an unrequested block status"));
                    }
                    extents.extend(bytes.chunks_exact(8).map(|bytes| Extent {
                        len: be32(bytes, 0),
                        state: ExtentState(be32(bytes, 4)),
                    }));
                }
                Reply::Failed { error, .. } | Reply::Simple { error: Some(error), .. } => {
                    failed = Some(error);
                }
                Reply::Nothing { .. } => {}
                _ => return Err(protocol("unrequested data")),
            }
            if reply.is_last() {
                break;
            }
        }
        match failed {
            Some(error) => Err(ClientError::Request(error)),
            None if extents.iter().all(|extent| extent.len > 0) && !extents.is_empty() => {
                Ok(extents)
            }
            None => Err(protocol("an empty block status")),
        }
    }

    /// Iterates over the extents of the whole export.
    pub fn map(&mut self) -> Map<'_> {
        Map { client: self, at: 0, questions: 0 }
    }
}

/// An iteration over the extents of an export; adjacent extents may have the same state.
pub struct Map<'a> {
    client: &'a mut Client,
    at: u64,
    /// Number of requests sent so far.
    pub questions: u64,
}

impl Map<'_> {
    /// Returns the next extents and their offset; none at the end.
    ///
    /// # Errors
    /// As [`Client::block_status`].
    pub fn next_extents(&mut self) -> Result<Option<(u64, Vec<Extent>)>, ClientError> {
        let (at, size) = (self.at, self.client.export.size);
        if at >= size {
            return Ok(None);
        }
        let len = (size - at).min(ASKED_MAX) as u32;
        self.questions += 1;
        let mut extents = self.client.block_status(at, len, CommandFlags::NONE)?;
        // The last extent may exceed the requested range.
        for extent in &mut extents {
            extent.len = u64::from(extent.len).min(size - self.at) as u32;
            self.at += u64::from(extent.len);
        }
        Ok(Some((at, extents)))
    }
}
