//! The constants of the NBD protocol: magic numbers, option, command and error codes, flag sets, all in network byte order.
//!
//! Server and client share this file. It names numbers and lays out the fixed headers; the rules are in the files beside it:
//!
//! ```text
//!   request (28)   magic:4  flags:2  command:2  cookie:8  offset:8  length:4     then the payload of a write
//!   reply   (16)   magic:4  error:4  cookie:8                                    then the payload of a read
//!   chunk   (20)   magic:4  flags:2  type:2     cookie:8  length:4               then `length` bytes
//! ```

use headworks_core::{IoError, flag_set};

/// First word of the server's greeting, "NBDMAGIC".
pub const INIT_MAGIC: u64 = u64::from_be_bytes(*b"NBDMAGIC");
/// Second word of the newstyle greeting and first word of every option, "IHAVEOPT".
pub const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
/// First word of every option reply.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// First word of every request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// First word of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// First word of a chunk of a structured reply.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Bytes of the server's greeting.
pub const GREETING_BYTES: usize = 18;
/// Bytes of an option's header.
pub const OPTION_HEADER_BYTES: usize = 16;
/// Bytes of the header of an answer to an option.
pub const OPTION_REPLY_HEADER_BYTES: usize = 20;
/// Bytes of a request without payload.
pub const REQUEST_BYTES: usize = 28;
/// Bytes of a simple reply without payload.
pub const SIMPLE_REPLY_BYTES: usize = 16;
/// Bytes of the header of a structured reply's chunk.
pub const CHUNK_HEADER_BYTES: usize = 20;
/// The zeros after the answer to `EXPORT_NAME`, unless both sides agreed to leave them out.
pub const EXPORT_NAME_PADDING_BYTES: usize = 124;

/// Longest option that the server accepts, in bytes. Names are at most 4 KiB, so 64 KiB is ample.
pub const OPTION_BYTES_MAX: u32 = 64 << 10;
/// Longest string that the protocol allows, in bytes.
pub const STRING_BYTES_MAX: usize = 4096;
/// Longest read or write in bytes: what clients may send to a server that announces no limit, and qemu's limit.
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;

/// Handshake flags (server) and client flags; bits 0 and 1 mean the same in both.
pub mod handshake_flags {
    /// Options may follow and are answered.
    pub const FIXED_NEWSTYLE: u16 = 1;
    /// No padding after the answer to `EXPORT_NAME`.
    pub const NO_ZEROES: u16 = 2;
}

/// Codes of handshake options.
pub mod option {
    /// Choose an export; the oldest form, without errors and information.
    pub const EXPORT_NAME: u32 = 1;
    /// End the session before transmission.
    pub const ABORT: u32 = 2;
    /// List the names of the exports.
    pub const LIST: u32 = 3;
    /// Upgrade the connection to TLS.
    pub const STARTTLS: u32 = 5;
    /// Describe an export without opening it.
    pub const INFO: u32 = 6;
    /// Describe an export and enter transmission.
    pub const GO: u32 = 7;
    /// Use structured replies for reads.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// List the metadata contexts of block status.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Choose metadata contexts for this session.
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Codes of option replies. Error codes have bit 31 set.
pub mod option_reply {
    /// The option succeeded; ends its replies.
    pub const ACK: u32 = 1;
    /// One export of the list.
    pub const SERVER: u32 = 2;
    /// One piece of information about an export.
    pub const INFO: u32 = 3;
    /// A metadata context: its number and its name.
    pub const META_CONTEXT: u32 = 4;
    /// Set in every error code.
    pub const ERROR_BIT: u32 = 1 << 31;
    /// The option is unknown here.
    pub const ERR_UNSUP: u32 = ERROR_BIT + 1;
    /// The server is set up not to do this.
    pub const ERR_POLICY: u32 = ERROR_BIT + 2;
    /// The option's data is malformed.
    pub const ERR_INVALID: u32 = ERROR_BIT + 3;
    /// The server wants TLS first.
    pub const ERR_TLS_REQD: u32 = ERROR_BIT + 5;
    /// There is no such export.
    pub const ERR_UNKNOWN: u32 = ERROR_BIT + 6;
    /// The option is longer than the server takes.
    pub const ERR_TOO_BIG: u32 = ERROR_BIT + 9;
}

/// Types of information in an `INFO` reply.
pub mod info {
    /// Size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// The export's canonical name.
    pub const NAME: u16 = 1;
    /// A description in one sentence.
    pub const DESCRIPTION: u16 = 2;
    /// Minimum, preferred and maximum request size.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Chunk types of a structured reply.
pub mod chunk {
    /// No data; ends the reply.
    pub const NONE: u16 = 0;
    /// An offset and the bytes there.
    pub const OFFSET_DATA: u16 = 1;
    /// An offset and a length that read as zeros.
    pub const OFFSET_HOLE: u16 = 2;
    /// Extents of a range in one metadata context.
    pub const BLOCK_STATUS: u16 = 5;
    /// Set in every error type.
    pub const ERROR_BIT: u16 = 1 << 15;
    /// An error and its message.
    pub const ERROR: u16 = ERROR_BIT + 1;
    /// An error, its message, and where it happened.
    pub const ERROR_OFFSET: u16 = ERROR_BIT + 2;
    /// Flag: the last chunk of its reply.
    pub const DONE: u16 = 1;
}

/// A command of the transmission phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Command {
    /// Reads a range; the data follow the reply.
    Read = 0,
    /// Writes the payload to a range.
    Write = 1,
    /// Ends the session; has no reply.
    Disconnect = 2,
    /// Makes all acknowledged writes durable.
    Flush = 3,
    /// Discards the contents of a range.
    Trim = 4,
    /// Prefetches a range; transfers no data.
    Cache = 5,
    /// Writes zeros to a range.
    WriteZeroes = 6,
    /// Reports the extents of a range.
    BlockStatus = 7,
}

impl Command {
    /// Returns the command with this code; none if it is unknown.
    #[must_use]
    pub const fn from_code(code: u16) -> Option<Self> {
        match code {
            0 => Some(Command::Read),
            1 => Some(Command::Write),
            2 => Some(Command::Disconnect),
            3 => Some(Command::Flush),
            4 => Some(Command::Trim),
            5 => Some(Command::Cache),
            6 => Some(Command::WriteZeroes),
            7 => Some(Command::BlockStatus),
            _ => None,
        }
    }

    /// Returns true when the command changes the export.
    #[must_use]
    pub const fn is_write(self) -> bool {
        matches!(self, Command::Write | Command::Trim | Command::WriteZeroes)
    }
}

/// Flags of a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommandFlags(pub u16);

flag_set!(CommandFlags);

impl CommandFlags {
    /// The write is durable before the reply.
    pub const FUA: Self = Self(1);
    /// Write-zeroes: keep the range allocated.
    pub const NO_HOLE: Self = Self(2);
    /// Reads: reply in one chunk.
    pub const DF: Self = Self(4);
    /// Block status: report the first extent only.
    pub const REQ_ONE: Self = Self(8);
    /// Write-zeroes: fail at once rather than write zeros as data.
    pub const FAST_ZERO: Self = Self(16);
}

/// Transmission flags of an export: its properties and the commands that it offers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransmissionFlags(pub u16);

flag_set!(TransmissionFlags);

impl TransmissionFlags {
    /// Marks the field as valid; always set on the wire.
    pub const HAS_FLAGS: Self = Self(1);
    /// Writes fail with EPERM.
    pub const READ_ONLY: Self = Self(2);
    /// The export supports `Flush`.
    pub const SEND_FLUSH: Self = Self(4);
    /// The export supports the FUA flag.
    pub const SEND_FUA: Self = Self(8);
    /// The device is rotational: seeks cost time.
    pub const ROTATIONAL: Self = Self(16);
    /// The export supports `Trim`.
    pub const SEND_TRIM: Self = Self(32);
    /// The export supports `WriteZeroes`.
    pub const SEND_WRITE_ZEROES: Self = Self(64);
    /// The export supports the DF flag; only with structured replies.
    pub const SEND_DF: Self = Self(128);
    /// A flush on one connection covers all connections.
    pub const CAN_MULTI_CONN: Self = Self(256);
    /// The export supports `Cache`.
    pub const SEND_CACHE: Self = Self(1024);
    /// The export supports the FAST_ZERO flag.
    pub const SEND_FAST_ZERO: Self = Self(2048);

    /// The names that users see, in the order of the bits.
    pub const NAMES: [(Self, &'static str); 10] = [
        (Self::READ_ONLY, "read_only"),
        (Self::SEND_FLUSH, "flush"),
        (Self::SEND_FUA, "fua"),
        (Self::ROTATIONAL, "rotational"),
        (Self::SEND_TRIM, "trim"),
        (Self::SEND_WRITE_ZEROES, "write_zeroes"),
        (Self::SEND_DF, "df"),
        (Self::CAN_MULTI_CONN, "multi_conn"),
        (Self::SEND_CACHE, "cache"),
        (Self::SEND_FAST_ZERO, "fast_zero"),
    ];
}

/// An error of a reply. The protocol allows these numbers and no others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum NbdError {
    /// EPERM: the export is read-only.
    NotPermitted = 1,
    /// EIO: the device failed.
    Io = 5,
    /// ENOMEM: a resource of the server is exhausted.
    NoMemory = 12,
    /// EINVAL: the request is invalid.
    Invalid = 22,
    /// ENOSPC: the device is full.
    NoSpace = 28,
    /// EOVERFLOW: the reply does not fit one chunk.
    Overflow = 75,
    /// ENOTSUP: the device cannot do this.
    NotSupported = 95,
    /// ESHUTDOWN: the server is shutting down.
    ShutDown = 108,
}

impl NbdError {
    /// Returns the number on the wire.
    #[must_use]
    pub const fn code(self) -> u32 {
        self as u32
    }

    /// Returns the error with this number. An unknown number is EINVAL, as the protocol demands.
    #[must_use]
    pub const fn from_code(code: u32) -> Self {
        match code {
            1 => NbdError::NotPermitted,
            5 => NbdError::Io,
            12 => NbdError::NoMemory,
            28 => NbdError::NoSpace,
            75 => NbdError::Overflow,
            95 => NbdError::NotSupported,
            108 => NbdError::ShutDown,
            _ => NbdError::Invalid,
        }
    }

    /// Returns the message that people read.
    #[must_use]
    pub const fn message(self) -> &'static str {
        match self {
            NbdError::NotPermitted => "the export is read-only",
            NbdError::Io => "input/output error",
            NbdError::NoMemory => "the server has no slot or memory left",
            NbdError::Invalid => "invalid request",
            NbdError::NoSpace => "no space left on the device",
            NbdError::Overflow => "too long for an unfragmented reply",
            NbdError::NotSupported => "operation not supported",
            NbdError::ShutDown => "the server is shutting down",
        }
    }
}

impl From<IoError> for NbdError {
    fn from(error: IoError) -> Self {
        match error {
            IoError::Medium | IoError::TimedOut => NbdError::Io,
            IoError::NoSpace | IoError::NotFlushed => NbdError::NoSpace,
            IoError::Invalid => NbdError::Invalid,
            IoError::ReadOnly => NbdError::NotPermitted,
            IoError::Unsupported => NbdError::NotSupported,
            // A refusal that reaches a client: the server had no room, the client may retry.
            IoError::NoMemory | IoError::Busy => NbdError::NoMemory,
            IoError::ShutDown => NbdError::ShutDown,
        }
    }
}

impl std::fmt::Display for NbdError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.message())
    }
}

impl std::error::Error for NbdError {}

/// Reads a big-endian u16 at `at`; panics past the end, as an index does.
#[inline]
#[must_use]
pub fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// Reads a big-endian u32 at `at`; panics past the end, as an index does.
#[inline]
#[must_use]
pub fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// Reads a big-endian u64 at `at`; panics past the end, as an index does.
#[inline]
#[must_use]
pub fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// The fields of a request header, unchecked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestHeader {
    /// The [`CommandFlags`] of the request, unchecked.
    pub flags: u16,
    /// The code of a [`Command`], unchecked.
    pub command: u16,
    /// Opaque to the server; returned in the reply.
    pub cookie: u64,
    /// First byte on the export.
    pub offset: u64,
    /// Length of the range in bytes.
    pub len: u32,
}

impl RequestHeader {
    /// Encodes the header for the wire.
    #[inline]
    #[must_use]
    pub fn encode(&self) -> [u8; REQUEST_BYTES] {
        let mut bytes = [0; REQUEST_BYTES];
        bytes[0..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.command.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_be_bytes());
        bytes[24..28].copy_from_slice(&self.len.to_be_bytes());
        bytes
    }

    /// Decodes a header.
    ///
    /// # Errors
    /// The magic number that was found, when it is wrong.
    #[inline]
    pub fn decode(bytes: &[u8; REQUEST_BYTES]) -> Result<Self, u32> {
        let magic = be32(bytes, 0);
        if magic != REQUEST_MAGIC {
            return Err(magic);
        }
        Ok(Self {
            flags: be16(bytes, 4),
            command: be16(bytes, 6),
            cookie: be64(bytes, 8),
            offset: be64(bytes, 16),
            len: be32(bytes, 24),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_header_has_the_layout_of_the_protocol() {
        let request = RequestHeader {
            flags: 0x0102,
            command: 6,
            cookie: 0x1112_1314_1516_1718,
            offset: 0x2122_2324_2526_2728,
            len: 0x3132_3334,
        };
        let bytes = request.encode();
        let drawn = b"\x25\x60\x95\x13\x01\x02\x00\x06\x11\x12\x13\x14\x15\x16\x17\x18\
                      \x21\x22\x23\x24\x25\x26\x27\x28\x31\x32\x33\x34";
        assert_eq!(&bytes, drawn);
        assert_eq!(RequestHeader::decode(&bytes), Ok(request));
        assert_eq!(RequestHeader::decode(&[7; 28]), Err(0x0707_0707));
    }

    #[test]
    fn every_io_error_maps_to_an_allowed_number() {
        let allowed = [1, 5, 12, 22, 28, 75, 95, 108];
        for error in IoError::ALL {
            let sent = NbdError::from(error);
            assert!(allowed.contains(&sent.code()), "{error}");
            assert_eq!(NbdError::from_code(sent.code()), sent);
            let lost = matches!(error, IoError::TimedOut | IoError::Busy);
            assert_eq!(sent.code() as i32 == error.errno(), !lost, "{error}");
        }
        assert_eq!(NbdError::from_code(4), NbdError::Invalid);
    }
}
