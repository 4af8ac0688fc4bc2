//! Replies of the transmission phase: headers appended to the connection's send buffer.
//!
//! Reads use structured replies once these were negotiated; all other commands use the shorter simple form, which the protocol
//! allows. The caller sends a read's data behind the header, without a copy.
//!
//! ```text
//!                    simple                      structured
//!   read, data       reply(0) + bytes            OFFSET_DATA|DONE chunk + offset + bytes
//!   read, hole       (caller sends zeros)        OFFSET_HOLE|DONE chunk
//!   read, error      reply(error)                ERROR|DONE chunk with a message
//!   status           -                           see `status`; its errors as a read's
//!   others           reply(error or 0)           the same
//! ```
//!
//! Invariant: a call appends at most [`REPLY_BYTES_MAX`] bytes, and up to 1 KiB more for a block status, so a buffer with that
//! much room per reply never grows.

use super::wire::{
    CHUNK_HEADER_BYTES, NbdError, SIMPLE_REPLY_BYTES, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC,
    chunk,
};

/// Longest header of a reply in bytes: an error chunk with its message.
pub const REPLY_BYTES_MAX: usize = CHUNK_HEADER_BYTES + 6 + MESSAGE_BYTES_MAX;

/// The longest message of [`NbdError::message`]; a test keeps it true.
const MESSAGE_BYTES_MAX: usize = 38;

/// Encodes replies in the form that a connection negotiated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replies {
    /// Structured replies were negotiated.
    pub structured: bool,
}

impl Replies {
    /// Encodes a successful read; the caller sends `len` bytes behind it.
    #[inline]
    pub fn read_data(self, out: &mut Vec<u8>, cookie: u64, offset: u64, len: u32) {
        if !self.structured {
            return simple(out, cookie, 0);
        }
        let mut bytes = [0; CHUNK_HEADER_BYTES + 8];
        // Requests are at most 32 MiB long, so a read is always one chunk and satisfies DF.
        put_chunk(&mut bytes, chunk::OFFSET_DATA, cookie, len + 8);
        bytes[CHUNK_HEADER_BYTES..].copy_from_slice(&offset.to_be_bytes());
        out.extend_from_slice(&bytes);
    }

    /// Encodes a read whose data are all zeros. Returns false when the simple form needs `len` zeros from the caller.
    #[inline]
    #[must_use]
    pub fn read_hole(self, out: &mut Vec<u8>, cookie: u64, offset: u64, len: u32) -> bool {
        if !self.structured {
            simple(out, cookie, 0);
            return false;
        }
        let mut bytes = [0; CHUNK_HEADER_BYTES + 12];
        put_chunk(&mut bytes, chunk::OFFSET_HOLE, cookie, 12);
        bytes[CHUNK_HEADER_BYTES..CHUNK_HEADER_BYTES + 8].copy_from_slice(&offset.to_be_bytes());
        bytes[CHUNK_HEADER_BYTES + 8..].copy_from_slice(&len.to_be_bytes());
        out.extend_from_slice(&bytes);
        true
    }

    /// Encodes a failed read; no data follow.
    pub fn read_error(self, out: &mut Vec<u8>, cookie: u64, error: NbdError) {
        if !self.structured {
            return simple(out, cookie, error.code());
        }
        let message = error.message().as_bytes();
        let mut bytes = [0; CHUNK_HEADER_BYTES + 6];
        put_chunk(&mut bytes, chunk::ERROR, cookie, 6 + message.len() as u32);
        bytes[CHUNK_HEADER_BYTES..CHUNK_HEADER_BYTES + 4]
            .copy_from_slice(&error.code().to_be_bytes());
        bytes[CHUNK_HEADER_BYTES + 4..].copy_from_slice(&(message.len() as u16).to_be_bytes());
        out.extend_from_slice(&bytes);
        out.extend_from_slice(message);
    }

    /// Encodes the end of any command but a read or a block status.
    #[inline]
    pub fn done(self, out: &mut Vec<u8>, cookie: u64, outcome: Result<(), NbdError>) {
        simple(out, cookie, outcome.err().map_or(0, NbdError::code));
    }

    /// Encodes the reply to a request that the parser refused.
    pub fn refused(self, out: &mut Vec<u8>, refusal: super::Refusal) {
        if refusal.in_chunks {
            self.read_error(out, refusal.cookie, refusal.error);
        } else {
            self.done(out, refusal.cookie, Err(refusal.error));
        }
    }
}

#[inline]
fn simple(out: &mut Vec<u8>, cookie: u64, error: u32) {
    let mut bytes = [0; SIMPLE_REPLY_BYTES];
    bytes[0..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    bytes[4..8].copy_from_slice(&error.to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    out.extend_from_slice(&bytes);
}

/// Appends the header of a reply's only chunk.
#[inline]
pub(super) fn put_chunk(bytes: &mut [u8], kind: u16, cookie: u64, len: u32) {
    bytes[0..4].copy_from_slice(&STRUCTURED_REPLY_MAGIC.to_be_bytes());
    bytes[4..6].copy_from_slice(&chunk::DONE.to_be_bytes());
    bytes[6..8].copy_from_slice(&kind.to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    bytes[16..20].copy_from_slice(&len.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIMPLE: Replies = Replies { structured: false };
    const STRUCTURED: Replies = Replies { structured: true };
    const COOKIE: u64 = 0x0102_0304_0506_0708;

    fn bytes(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::new();
        encode(&mut out);
        out
    }

    #[test]
    fn simple_reply_has_sixteen_bytes() {
        let good = b"\x67\x44\x66\x98\0\0\0\0\x01\x02\x03\x04\x05\x06\x07\x08";
        let bad = b"\x67\x44\x66\x98\0\0\0\x1c\x01\x02\x03\x04\x05\x06\x07\x08";
        assert_eq!(bytes(|out| SIMPLE.read_data(out, COOKIE, 9, 9)), good);
        assert_eq!(bytes(|out| assert!(!SIMPLE.read_hole(out, COOKIE, 9, 9))), good);
        assert_eq!(bytes(|out| SIMPLE.read_error(out, COOKIE, NbdError::NoSpace)), bad);
        for replies in [SIMPLE, STRUCTURED] {
            assert_eq!(bytes(|out| replies.done(out, COOKIE, Ok(()))), good);
            assert_eq!(bytes(|out| replies.done(out, COOKIE, Err(NbdError::NoSpace))), bad);
        }
    }

    #[test]
    fn structured_read_has_offset_and_length() {
        let data = bytes(|out| STRUCTURED.read_data(out, COOKIE, 0x1000, 0x200));
        let drawn = b"\x66\x8e\x33\xef\0\x01\0\x01\x01\x02\x03\x04\x05\x06\x07\x08\0\0\x02\x08\
                      \0\0\0\0\0\0\x10\0";
        assert_eq!(data, drawn);
        let hole = bytes(|out| assert!(STRUCTURED.read_hole(out, COOKIE, 0x1000, 0x200)));
        let drawn = b"\x66\x8e\x33\xef\0\x01\0\x02\x01\x02\x03\x04\x05\x06\x07\x08\0\0\0\x0c\
                      \0\0\0\0\0\0\x10\0\0\0\x02\0";
        assert_eq!(hole, drawn);
        let error = bytes(|out| STRUCTURED.read_error(out, COOKIE, NbdError::Io));
        let drawn = b"\x66\x8e\x33\xef\0\x01\x80\x01\x01\x02\x03\x04\x05\x06\x07\x08\0\0\0\x18\
                      \0\0\0\x05\0\x12input/output error";
        assert_eq!(error, drawn);
    }

    #[test]
    fn reply_stays_within_reply_bytes_max() {
        for code in 0..200 {
            let error = NbdError::from_code(code);
            let reply = bytes(|out| STRUCTURED.read_error(out, COOKIE, error));
            assert!(reply.len() <= REPLY_BYTES_MAX, "{error}");
        }
    }
}
