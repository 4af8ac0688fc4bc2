//! The reply to BLOCK_STATUS: a device's extents, rounded to the export's blocks.
//!
//! ```text
//!   BLOCK_STATUS|DONE chunk:  context id:4   ( length:4 flags:4 )*          flags: 1 hole, 2 zeros, as in the list
//! ```
//!
//! Extents are multiples of the export's smallest block; a block that is partly data counts as data. The last extent ends with the
//! request or before. An empty list is a fault of the device and becomes an input/output error.

use headworks_core::ExtentState;
use headworks_core::extent::{EXTENTS_BYTES, EXTENTS_MAX, ExtentWriter, extents};

use super::Replies;
use super::meta::BASE_ALLOCATION_ID;
use super::reply::put_chunk;
use super::wire::{CHUNK_HEADER_BYTES, NbdError, chunk};

/// A block status request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusQuery {
    /// Cookie of the request.
    pub cookie: u64,
    /// First byte of the range.
    pub offset: u64,
    /// Length of the range in bytes.
    pub len: u32,
    /// Smallest block of the export in bytes, a power of two.
    pub block: u32,
    /// The client asked for the first extent only.
    pub one: bool,
}

impl Replies {
    /// Encodes the reply to a block status request from a device's list of extents.
    pub fn block_status(self, out: &mut Vec<u8>, question: &StatusQuery, list: &[u8]) {
        let mut rounded = [0; EXTENTS_BYTES as usize];
        let count = round(list, question, &mut rounded);
        if count == 0 {
            return self.read_error(out, question.cookie, NbdError::Io);
        }
        let mut header = [0; CHUNK_HEADER_BYTES];
        put_chunk(&mut header, chunk::BLOCK_STATUS, question.cookie, 4 + 8 * count as u32);
        out.extend_from_slice(&header);
        out.extend_from_slice(&BASE_ALLOCATION_ID.to_be_bytes());
        for extent in extents(&rounded, question.len) {
            out.extend_from_slice(&extent.len.to_be_bytes());
            out.extend_from_slice(&(extent.state.0 & ExtentState::HOLE_ZERO.0).to_be_bytes());
        }
    }
}

/// Copies a list with its edges rounded to blocks; returns the number of extents.
fn round(list: &[u8], question: &StatusQuery, rounded: &mut [u8]) -> usize {
    let StatusQuery { offset, len, block, one, .. } = *question;
    let mut writer = ExtentWriter::new(rounded, len, if one { 1 } else { EXTENTS_MAX });
    let block = u64::from(block.max(1));
    // End of the extents written so far, and start of the rest of the list.
    let (mut told, mut start) = (offset, offset);
    for extent in extents(list, len) {
        let end = start + u64::from(extent.len);
        let (from, until) = match extent.state {
            ExtentState::DATA => (start, start),
            _ => (start.next_multiple_of(block).max(told), end & !(block - 1)),
        };
        // The last extent ends with the range, even within a block.
        let until = if end == offset + u64::from(len) { end } else { until };
        start = end;
        if extent.state == ExtentState::DATA || from >= until {
            continue;
        }
        if from > told && !writer.push(from - told, ExtentState::DATA) {
            return writer.finish();
        }
        if !writer.push(until - from, extent.state) {
            return writer.finish();
        }
        told = until;
    }
    writer.push(start.next_multiple_of(block).saturating_sub(told), ExtentState::DATA);
    writer.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    const D: ExtentState = ExtentState::DATA;
    const H: ExtentState = ExtentState::HOLE_ZERO;

    fn list(parts: &[(u64, ExtentState)]) -> Vec<u8> {
        let mut bytes = vec![0xee; EXTENTS_BYTES as usize];
        let mut writer = ExtentWriter::new(&mut bytes, u32::MAX, EXTENTS_MAX);
        for &(len, state) in parts {
            writer.push(len, state);
        }
        writer.finish();
        bytes
    }

    fn told(question: &StatusQuery, parts: &[(u64, ExtentState)]) -> Vec<(u32, u32)> {
        let mut rounded = [0; EXTENTS_BYTES as usize];
        round(&list(parts), question, &mut rounded);
        extents(&rounded, question.len).map(|extent| (extent.len, extent.state.0)).collect()
    }

    const ASKED: StatusQuery =
        StatusQuery { cookie: 0x0102_0304_0506_0708, offset: 0, len: 16_384, block: 1, one: false };

    #[test]
    fn block_status_has_the_layout_of_the_protocol() {
        let mut out = Vec::new();
        let bytes = list(&[(4096, H), (8192, D)]);
        Replies { structured: true }.block_status(&mut out, &ASKED, &bytes);
        let drawn = b"\x66\x8e\x33\xef\0\x01\0\x05\x01\x02\x03\x04\x05\x06\x07\x08\0\0\0\x14\
                      \0\0\0\x01\0\0\x10\0\0\0\0\x03\0\0\x20\0\0\0\0\0";
        assert_eq!(out, drawn);
        out.clear();
        Replies { structured: true }.block_status(&mut out, &ASKED, &[0; 1024]);
        assert_eq!(out[6..8], [0x80, 1], "no extent: an error");
    }

    #[test]
    fn block_with_some_data_counts_as_data() {
        let coarse = StatusQuery { offset: 8192, block: 4096, ..ASKED };
        assert_eq!(told(&coarse, &[(100, H), (100, D), (16_184, H)]), [(4096, 0), (12_288, 3)]);
        assert_eq!(told(&coarse, &[(4097, D), (8190, H), (4097, D)]), [(16_384, 0)]);
        assert_eq!(
            told(&coarse, &[(5000, H), (3192, D), (8192, H)]),
            [(4096, 3), (4096, 0), (8192, 3)]
        );
        assert_eq!(told(&coarse, &[(5000, D)]), [(8192, 0)], "a short list");
        assert_eq!(told(&coarse, &[(5000, H)]), [(4096, 3), (4096, 0)]);
        assert_eq!(told(&ASKED, &[(100, H), (100, D), (1, H)]), [(100, 3), (100, 0), (1, 3)]);
    }

    #[test]
    fn req_one_reports_one_extent_within_the_request() {
        let one = StatusQuery { one: true, ..ASKED };
        assert_eq!(told(&one, &[(100, H), (100, D)]), [(100, 3)]);
        assert_eq!(told(&one, &[(1 << 30, D)]), [(16_384, 0)]);
        assert_eq!(told(&ASKED, &[(1 << 30, H)]), [(16_384, 3)]);
        // A range that is not aligned to blocks: cached exports accept any.
        let odd = StatusQuery { offset: 7, len: 10, ..ASKED };
        assert_eq!(told(&odd, &[(10, H)]), [(10, 3)]);
    }
}
