//! Whether an export holds data: block status tells zeros, everything else is read and compared, up to a limit.
//!
//! The answer is that of one moment; other clients may write meanwhile.

use headworks_core::{Extent, ExtentState};

use super::{Client, ClientError};
use crate::wire::CommandFlags;

/// Bytes of one read.
const CHUNK: usize = 1 << 20;
/// Longest range of one block status request.
const ASKED_MAX: u64 = 1 << 30;

/// What [`Client::contents`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// Every byte of the range is zero.
    Zeros,
    /// The range has a byte that is not zero. The field is the offset of the block of at most 1 MiB that contains the first one.
    Data(u64),
    /// The limit of reads was reached at this offset; everything before it is zero.
    Unknown(u64),
}

impl Client {
    /// Looks for data in the first `size` bytes, or in the whole export if it is smaller; reads `read_max` bytes at most.
    ///
    /// # Errors
    /// The server failed a request or violated the protocol.
    pub fn contents(&mut self, size: u64, read_max: u64) -> Result<Contents, ClientError> {
        let unit = u64::from(self.export.block_sizes.map_or(1, |sizes| sizes.min).max(1));
        let end = size.min(self.export.size).next_multiple_of(unit).min(self.export.size);
        let (mut at, mut left) = (0, read_max);
        while at < end {
            for extent in self.extents(at, end)? {
                let len = u64::from(extent.len).min(end - at);
                if !extent.state.contains(ExtentState::ZERO)
                    && let Some(found) = self.look(at..at + len, &mut left)?
                {
                    return Ok(found);
                }
                at += len;
            }
        }
        Ok(Contents::Zeros)
    }

    /// Returns the next extents of `at..end`; one of data where the server cannot tell.
    fn extents(&mut self, at: u64, end: u64) -> Result<Vec<Extent>, ClientError> {
        let len = (end - at).min(ASKED_MAX) as u32;
        match self.export.allocation {
            Some(_) => self.block_status(at, len, CommandFlags::NONE),
            None => Ok(vec![Extent { len, state: ExtentState::DATA }]),
        }
    }

    /// Reads a range until there is data; none if it is zeros.
    fn look(
        &mut self,
        range: std::ops::Range<u64>,
        left: &mut u64,
    ) -> Result<Option<Contents>, ClientError> {
        let longest = self.export.block_sizes.map_or(CHUNK, |sizes| CHUNK.min(sizes.max as usize));
        let (mut bytes, zeros) = (vec![0; longest], vec![0; longest]);
        let mut at = range.start;
        while at < range.end {
            let len = (range.end - at).min(longest as u64) as usize;
            if *left < len as u64 {
                return Ok(Some(Contents::Unknown(at)));
            }
            self.read(at, &mut bytes[..len])?;
            if bytes[..len] != zeros[..len] {
                return Ok(Some(Contents::Data(at)));
            }
            *left -= len as u64;
            at += len as u64;
        }
        Ok(None)
    }
}
