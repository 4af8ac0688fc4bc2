//! The client's parser of the transmission phase: received bytes to [`Reply`]s.
//!
//! A pure function over a slice that starts at a reply. The data of a read follow the header and belong to the caller; an error's
//! message is part of its reply and is dropped.
//!
//! ```text
//!   16 bytes: simple reply          20 bytes + len: structured chunk
//!     error                            NONE, ERROR, ERROR_OFFSET, OFFSET_HOLE: complete with their payload
//!     success -> bytes of a read       OFFSET_DATA: 8 bytes of offset, then len - 8 bytes of the read
//!                                      BLOCK_STATUS: 4 bytes of context, then len - 4 bytes of extents
//! ```

use super::{ClientError, protocol};
use crate::wire::{
    CHUNK_HEADER_BYTES, NbdError, SIMPLE_REPLY_BYTES, SIMPLE_REPLY_MAGIC, STRING_BYTES_MAX,
    STRUCTURED_REPLY_MAGIC, be16, be32, be64, chunk,
};

/// One reply, or one chunk of a structured reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A simple reply. After a successful read the data follow.
    Simple { cookie: u64, error: Option<NbdError> },
    /// A chunk of data: `len` bytes of a read follow.
    Data { cookie: u64, offset: u64, len: u32, last: bool },
    /// A hole: a part of a read is zeros.
    Hole { cookie: u64, offset: u64, len: u32, last: bool },
    /// Block status: `len` bytes of extents in this context follow.
    Status { cookie: u64, context: u32, len: u32, last: bool },
    /// An error chunk: the request failed.
    Failed { cookie: u64, error: NbdError, last: bool },
    /// The end of a structured reply without data.
    Nothing { cookie: u64 },
}

impl Reply {
    pub fn cookie(&self) -> u64 {
        match *self {
            Reply::Simple { cookie, .. }
            | Reply::Data { cookie, .. }
            | Reply::Hole { cookie, .. }
            | Reply::Status { cookie, .. }
            | Reply::Failed { cookie, .. }
            | Reply::Nothing { cookie } => cookie,
        }
    }

    pub fn is_last(&self) -> bool {
        match *self {
            Reply::Simple { .. } | Reply::Nothing { .. } => true,
            Reply::Data { last, .. }
            | Reply::Hole { last, .. }
            | Reply::Status { last, .. }
            | Reply::Failed { last, .. } => last,
        }
    }
}

/// Result of parsing one reply by [`parse`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// A reply and its length in bytes.
    Reply(usize, Reply),
    /// At least this many bytes are needed.
    Needs(usize),
}

/// Upper bound of [`Next::Needs`]: an error chunk with the longest message and an offset.
pub const REPLY_BYTES_MAX: usize = CHUNK_HEADER_BYTES + 6 + STRING_BYTES_MAX + 8;

/// Longest list of extents that is accepted, in bytes.
const STATUS_BYTES_MAX: u32 = 1 << 20;

/// Parses the reply at the start of `bytes`.
#[inline]
pub fn parse(bytes: &[u8]) -> Result<Next, ClientError> {
    if bytes.len() < SIMPLE_REPLY_BYTES {
        return Ok(Next::Needs(SIMPLE_REPLY_BYTES));
    }
    match be32(bytes, 0) {
        SIMPLE_REPLY_MAGIC => {
            let error = be32(bytes, 4);
            let reply = Reply::Simple {
                cookie: be64(bytes, 8),
                error: (error != 0).then(|| NbdError::from_code(error)),
            };
            Ok(Next::Reply(SIMPLE_REPLY_BYTES, reply))
        }
        STRUCTURED_REPLY_MAGIC => parse_chunk(bytes),
        magic => Err(protocol(format!("{magic:#010x} in place of the magic number of a reply"))),
    }
}

fn parse_chunk(bytes: &[u8]) -> Result<Next, ClientError> {
    if bytes.len() < CHUNK_HEADER_BYTES {
        return Ok(Next::Needs(CHUNK_HEADER_BYTES));
    }
    let (flags, kind, len) = (be16(bytes, 4), be16(bytes, 6), be32(bytes, 16));
    let (cookie, last) = (be64(bytes, 8), flags & chunk::DONE != 0);
    let is_error = kind & chunk::ERROR_BIT != 0;
    let fits = match kind {
        chunk::NONE => len == 0 && last,
        chunk::OFFSET_DATA => len > 8,
        chunk::OFFSET_HOLE => len == 12,
        chunk::BLOCK_STATUS => len >= 12 && (len - 4).is_multiple_of(8) && len <= STATUS_BYTES_MAX,
        _ => is_error && len >= 6 && len as usize <= REPLY_BYTES_MAX - CHUNK_HEADER_BYTES,
    };
    if !fits {
        return Err(protocol(format!("a chunk of kind {kind:#x} has {len} bytes")));
    }
    let own = match kind {
        chunk::OFFSET_DATA => 8,
        chunk::BLOCK_STATUS => 4,
        _ => len as usize,
    };
    let whole = CHUNK_HEADER_BYTES + own;
    if bytes.len() < whole {
        return Ok(Next::Needs(whole));
    }
    let body = &bytes[CHUNK_HEADER_BYTES..whole];
    if kind == chunk::OFFSET_HOLE && be32(body, 8) == 0 {
        return Err(protocol("a hole of 0 bytes"));
    }
    let reply = match kind {
        chunk::NONE => Reply::Nothing { cookie },
        chunk::OFFSET_DATA => Reply::Data { cookie, offset: be64(body, 0), len: len - 8, last },
        chunk::OFFSET_HOLE => {
            Reply::Hole { cookie, offset: be64(body, 0), len: be32(body, 8), last }
        }
        chunk::BLOCK_STATUS => Reply::Status { cookie, context: be32(body, 0), len: len - 4, last },
        _ => Reply::Failed { cookie, error: NbdError::from_code(be32(body, 0)), last },
    };
    Ok(Next::Reply(whole, reply))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Replies;
    use headworks_core::prng::Prng;

    /// Encodes with the server's codec and parses at every cut.
    fn read_back(encode: impl FnOnce(&mut Vec<u8>)) -> Reply {
        let mut bytes = Vec::new();
        encode(&mut bytes);
        for cut in 0..bytes.len() {
            let Ok(Next::Needs(wanted)) = parse(&bytes[..cut]) else {
                panic!("cut at {cut}");
            };
            assert!(wanted > cut && wanted <= bytes.len());
        }
        match parse(&bytes) {
            Ok(Next::Reply(len, reply)) if len == bytes.len() => reply,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn replies_of_the_server_codec_parse() {
        let (simple, structured) = (Replies { structured: false }, Replies { structured: true });
        let (cookie, offset, len, last) = (5, 1 << 40, 4096, true);
        let good = Reply::Simple { cookie, error: None };
        assert_eq!(read_back(|out| simple.read_data(out, 5, 0, 9)), good);
        assert_eq!(read_back(|out| structured.done(out, 5, Ok(()))), good);
        let error = NbdError::NoSpace;
        let bad = Reply::Simple { cookie, error: Some(error) };
        assert_eq!(read_back(|out| structured.done(out, 5, Err(error))), bad);
        let failed = Reply::Failed { cookie, error, last };
        assert_eq!(read_back(|out| structured.read_error(out, 5, error)), failed);
        let data = Reply::Data { cookie, offset, len, last };
        assert_eq!(read_back(|out| structured.read_data(out, 5, offset, len)), data);
        let hole = Reply::Hole { cookie, offset, len, last };
        assert_eq!(read_back(|out| assert!(structured.read_hole(out, 5, offset, len))), hole);
    }

    #[test]
    fn invalid_chunks_are_errors() {
        let chunk = |kind: u16, flags: u16, len: u32| {
            let mut bytes = STRUCTURED_REPLY_MAGIC.to_be_bytes().to_vec();
            bytes.extend(flags.to_be_bytes());
            bytes.extend(kind.to_be_bytes());
            bytes.extend([0; 8]);
            bytes.extend(len.to_be_bytes());
            bytes.extend(vec![0; len.min(9000) as usize]);
            parse(&bytes)
        };
        assert!(chunk(0, 0, 0).is_err() && chunk(0, 1, 1).is_err());
        assert!(chunk(1, 1, 8).is_err() && chunk(2, 1, 13).is_err() && chunk(2, 1, 12).is_err());
        assert!(
            chunk(5, 1, 8).is_err() && chunk(5, 1, 16).is_err() && chunk(5, 1, 2 << 20).is_err()
        );
        assert!(chunk(7, 1, 20).is_err() && chunk(0x8001, 1, 5).is_err());
        assert!(chunk(0x8001, 1, 1 << 20).is_err());
        let nothing = Next::Reply(20, Reply::Nothing { cookie: 0 });
        assert_eq!(chunk(0, 1, 0).expect("NONE"), nothing);
        assert!(matches!(chunk(0x8099, 0, 6), Ok(Next::Reply(26, Reply::Failed { .. }))));
        assert!(parse(&[0; 16]).is_err());
    }

    #[test]
    fn random_bytes_never_need_more_than_the_limit() {
        let mut prng = Prng::new(5);
        for _ in 0..100_000 {
            let mut bytes: Vec<u8> = (0..40).map(|_| prng.next() as u8).collect();
            bytes[..4].copy_from_slice(&STRUCTURED_REPLY_MAGIC.to_be_bytes());
            bytes[6] &= 0x80;
            bytes[7] &= 3;
            if prng.below(2) == 0 {
                bytes[16..19].fill(0);
            }
            match parse(&bytes) {
                Ok(Next::Needs(wanted)) => assert!(wanted > 40 && wanted <= REPLY_BYTES_MAX),
                Ok(Next::Reply(len, _)) => assert!(len <= 40),
                Err(_) => {}
            }
        }
    }
}
