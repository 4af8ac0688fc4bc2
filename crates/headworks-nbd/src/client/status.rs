//! Block status by the client: one question, and a whole export from question to question.

use std::io::{Read, Write};

use headworks_core::{Extent, ExtentState};

use super::replies::Reply;
use super::{Client, ClientError, protocol};
use crate::wire::{Command, CommandFlags, be32};

/// The longest range that is asked about at once: whole pages below 4 GiB.
const ASKED_MAX: u64 = (1 << 32) - (64 << 10);

impl Client {
    /// What `len` bytes from `offset` on are made of, as far as the server tells: at least one extent.
    ///
    /// # Errors
    /// The context was not agreed on, or the server refuses or breaks the protocol.
    pub fn block_status(
        &mut self,
        offset: u64,
        len: u32,
        flags: CommandFlags,
    ) -> Result<Vec<Extent>, ClientError> {
        let Some(context) = self.export.allocation else {
            return Err(ClientError::Refused("it does not tell what its blocks are".into()));
        };
        let header = self.header(Command::BlockStatus, flags, (offset, len));
        self.socket.write_all(&header.encode())?;
        let (mut failed, mut extents) = (None, Vec::new());
        loop {
            let reply = self.next_reply()?;
            if reply.cookie() != self.cookie {
                return Err(protocol("a reply to nobody's request"));
            }
            match reply {
                Reply::Status { context: told, len, .. } => {
                    let mut bytes = vec![0; len as usize];
                    self.socket.read_exact(&mut bytes)?;
                    if told != context || !extents.is_empty() {
                        return Err(protocol("a status that nobody asked for"));
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
                _ => return Err(protocol("data that nobody asked for")),
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
            None => Err(protocol("a status of nothing")),
        }
    }

    /// Goes over all of the export.
    pub fn map(&mut self) -> Map<'_> {
        Map { client: self, at: 0, questions: 0 }
    }
}

/// The extents of an export, one after the other; neighbours of a kind are joined by whoever prints them.
pub struct Map<'a> {
    client: &'a mut Client,
    at: u64,
    /// How many requests it took so far.
    pub questions: u64,
}

impl Map<'_> {
    /// The next extents, with where they begin; nothing at the end.
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
        // The last one may say more than was asked.
        for extent in &mut extents {
            extent.len = u64::from(extent.len).min(size - self.at) as u32;
            self.at += u64::from(extent.len);
        }
        Ok(Some((at, extents)))
    }
}
