//! The server's parser of the transmission phase: received bytes to checked [`Request`]s.
//!
//! A header is a valid request; or it is refused with an error and the connection continues (the parser skips the payload of a
//! refused write); or the stream cannot be parsed and the connection ends. The parser checks magic, command, flags that the
//! export offers, and lengths. The volume checks range and alignment.
//!
//! ```text
//!            +--------------------- Request (its payload is the caller's) <---+
//!            v                                                                |
//!        [header] -- fewer than 28 bytes --> NeedMore (kept)                      |
//!            |  ^------------------------ Refused ---------.
//!            +-- refused: a write drops its payload first: [skip] --> NeedMore
//!            +-- Disconnect | End
//! ```
//!
//! Invariants: a call consumes at most one header; a payload byte is never parsed as a header; no call allocates.

use std::fmt;

use headworks_core::{BioFlags, Op};

use super::export::Negotiated;
use super::wire::{
    Command, CommandFlags, NbdError, PAYLOAD_BYTES_MAX, REQUEST_BYTES, RequestHeader,
    TransmissionFlags,
};

/// A request that is valid by the protocol; the volume checks its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Opaque to the server; returned in the reply.
    pub cookie: u64,
    /// First byte on the export.
    pub offset: u64,
    /// Length in bytes; 0 for a flush.
    pub len: u32,
    /// Command of the request; never `Disconnect`, which is [`Parsed::Disconnect`].
    pub command: Command,
    /// Flags that fit the command and that the export offers.
    pub flags: CommandFlags,
}

impl Request {
    /// Returns the header as the client sent it.
    #[must_use]
    pub fn header(&self) -> [u8; REQUEST_BYTES] {
        let Self { cookie, offset, len, command, flags } = *self;
        RequestHeader { flags: flags.0, command: command as u16, cookie, offset, len }.encode()
    }

    /// Returns the bytes of payload that follow the header.
    #[inline]
    #[must_use]
    pub const fn payload(&self) -> u32 {
        match self.command {
            Command::Write => self.len,
            _ => 0,
        }
    }

    /// Returns the operation on the volume.
    #[inline]
    #[must_use]
    pub const fn op(&self) -> Op {
        match self.command {
            Command::Read => Op::Read,
            Command::Write => Op::Write,
            Command::Trim => Op::Discard,
            Command::WriteZeroes => Op::WriteZeroes,
            Command::Cache => Op::Prefetch,
            Command::BlockStatus => Op::BlockStatus,
            Command::Flush | Command::Disconnect => Op::Flush,
        }
    }

    /// Returns the flags of the bio. Clients wait for replies, so all bios are `SYNC`. A read accepts a hole as its result,
    /// because both reply forms can express it (the simple one by sending zeros).
    #[inline]
    #[must_use]
    pub const fn bio_flags(&self) -> BioFlags {
        let mut flags = BioFlags::SYNC;
        match self.command {
            Command::Read => flags = flags.with(BioFlags::HOLE_OK),
            Command::Write | Command::Trim | Command::WriteZeroes => {
                if self.flags.contains(CommandFlags::FUA) {
                    flags = flags.with(BioFlags::FUA);
                }
            }
            // A flush is durable by definition; some clients set FUA on it.
            Command::Flush | Command::Cache | Command::BlockStatus | Command::Disconnect => {}
        }
        if self.flags.contains(CommandFlags::REQ_ONE) {
            flags = flags.with(BioFlags::ONE_EXTENT);
        }
        if self.flags.contains(CommandFlags::NO_HOLE) {
            flags = flags.with(BioFlags::NO_UNMAP);
        }
        if self.flags.contains(CommandFlags::FAST_ZERO) {
            flags = flags.with(BioFlags::FAST_ZERO);
        }
        flags
    }
}

/// A request that the parser answers with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Opaque to the server; returned in the reply.
    pub cookie: u64,
    /// The request is a read or a block status: the reply has the structured form where it was negotiated.
    pub in_chunks: bool,
    /// Error of the reply.
    pub error: NbdError,
}

/// The reason why a connection ends. `Display` gives the line for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolError {
    /// A header does not begin with the magic number of a request.
    BadMagic(u32),
    /// A write's payload exceeds the limit; the server does not skip that much.
    PayloadTooLong(u32),
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProtocolError::BadMagic(magic) => {
                write!(f, "the client sent {magic:#010x} where a request must begin")
            }
            ProtocolError::PayloadTooLong(len) => write!(
                f,
                "the client sent a write of {len} bytes; at most {PAYLOAD_BYTES_MAX} are taken"
            ),
        }
    }
}

impl std::error::Error for ProtocolError {}

/// Result of one call of [`RequestParser::parse`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// All bytes are consumed; the next request is incomplete.
    NeedMore,
    /// A valid request. The next [`Request::payload`] bytes of the stream belong to the caller, not to the parser.
    Request(Request),
    /// A refused request to be answered; its payload was dropped.
    Refused(Refusal),
    /// An orderly disconnect: finish requests in flight, send no reply to this one, close.
    Disconnect,
    /// The stream cannot be parsed: log the error and close.
    End(ProtocolError),
}

/// The request parser of one connection; it never allocates.
#[derive(Clone, Debug)]
pub struct RequestParser {
    /// First bytes of an incomplete header.
    partial: [u8; REQUEST_BYTES],
    have: u8,
    terms: Negotiated,
    offered: TransmissionFlags,
    /// Bytes of a refused write's payload that are still to be dropped.
    skip: u32,
    /// Refusal to report when the payload is dropped.
    owed: Option<Refusal>,
}

impl RequestParser {
    /// Creates a parser for an export with these flags and this negotiation.
    #[must_use]
    pub const fn new(offered: TransmissionFlags, terms: Negotiated) -> Self {
        Self { partial: [0; REQUEST_BYTES], have: 0, terms, offered, skip: 0, owed: None }
    }

    /// Parses the next bytes of the stream; returns how many were consumed, and the result.
    ///
    /// Call it with the rest until it returns [`Parsed::NeedMore`]; after a write, take the payload first.
    #[inline]
    pub fn parse(&mut self, bytes: &[u8]) -> (usize, Parsed) {
        if self.have == 0
            && self.owed.is_none()
            && let Some(header) = bytes.first_chunk::<REQUEST_BYTES>()
        {
            return self.judged(REQUEST_BYTES, header, bytes);
        }
        self.parse_pieces(bytes)
    }

    /// Returns true when the stream may end here: between requests, with no payload to skip.
    #[must_use]
    pub const fn is_between_requests(&self) -> bool {
        self.have == 0 && self.owed.is_none()
    }

    /// Returns what was negotiated.
    #[must_use]
    pub const fn terms(&self) -> Negotiated {
        self.terms
    }

    /// Returns the bytes of an incomplete header, which another parser can begin with.
    #[must_use]
    pub fn partial(&self) -> &[u8] {
        &self.partial[..usize::from(self.have)]
    }

    /// Returns the bytes of a refused write's payload that are still to be dropped, and the refusal that follows them.
    #[must_use]
    pub fn skipping(&self) -> Option<(u32, Refusal)> {
        self.owed.map(|refusal| (self.skip, refusal))
    }

    /// Drops the next `bytes` of the stream, and then reports `refusal`: another parser was in the middle of a refused write.
    pub fn skip(&mut self, bytes: u32, refusal: Refusal) {
        (self.skip, self.owed) = (bytes, Some(refusal));
    }

    /// Slow path for a header that arrives in pieces.
    #[cold]
    fn parse_pieces(&mut self, bytes: &[u8]) -> (usize, Parsed) {
        if self.owed.is_some() {
            return self.skip_payload(bytes);
        }
        let have = usize::from(self.have);
        let taken = bytes.len().min(REQUEST_BYTES - have);
        self.partial[have..have + taken].copy_from_slice(&bytes[..taken]);
        if have + taken < REQUEST_BYTES {
            self.have = (have + taken) as u8;
            return (bytes.len(), Parsed::NeedMore);
        }
        self.have = 0;
        let header = self.partial;
        self.judged(taken, &header, bytes)
    }

    /// Checks a header that ended at `used` of `bytes`.
    #[inline]
    fn judged(
        &mut self,
        used: usize,
        header: &[u8; REQUEST_BYTES],
        bytes: &[u8],
    ) -> (usize, Parsed) {
        match self.judge(header) {
            Some(parsed) => (used, parsed),
            None => {
                let (skipped, parsed) = self.skip_payload(&bytes[used..]);
                (used + skipped, parsed)
            }
        }
    }

    /// Drops the payload of a refused write; the refusal is reported after its last byte.
    #[cold]
    fn skip_payload(&mut self, bytes: &[u8]) -> (usize, Parsed) {
        let skipped = bytes.len().min(self.skip as usize);
        self.skip -= skipped as u32;
        match (self.skip, self.owed) {
            (0, Some(refusal)) => {
                self.owed = None;
                (skipped, Parsed::Refused(refusal))
            }
            _ => (skipped, Parsed::NeedMore),
        }
    }

    #[inline]
    fn judge(&mut self, bytes: &[u8; REQUEST_BYTES]) -> Option<Parsed> {
        let header = match RequestHeader::decode(bytes) {
            Ok(header) => header,
            Err(magic) => return Some(Parsed::End(ProtocolError::BadMagic(magic))),
        };
        let command = Command::from_code(header.command);
        let writes = command == Some(Command::Write);
        if writes && header.len > PAYLOAD_BYTES_MAX {
            return Some(Parsed::End(ProtocolError::PayloadTooLong(header.len)));
        }
        match self.check(command, &header) {
            Ok(Command::Disconnect) => Some(Parsed::Disconnect),
            Ok(command) => Some(Parsed::Request(Request {
                cookie: header.cookie,
                offset: header.offset,
                len: header.len,
                command,
                flags: CommandFlags(header.flags),
            })),
            Err(error) => self.refuse(command, &header, error),
        }
    }

    /// Refuses a request; none when its payload must be dropped first. libnbd gives up on a server that answers a request which
    /// it has not finished sending.
    fn refuse(
        &mut self,
        command: Option<Command>,
        header: &RequestHeader,
        error: NbdError,
    ) -> Option<Parsed> {
        let in_chunks = matches!(command, Some(Command::Read | Command::BlockStatus));
        let refusal = Refusal { cookie: header.cookie, in_chunks, error };
        if command != Some(Command::Write) || header.len == 0 {
            return Some(Parsed::Refused(refusal));
        }
        self.skip = header.len;
        self.owed = Some(refusal);
        None
    }

    /// Checks the rules of the protocol for one request.
    #[inline]
    fn check(&self, command: Option<Command>, header: &RequestHeader) -> Result<Command, NbdError> {
        let Some(command) = command else {
            return Err(NbdError::Invalid);
        };
        if command == Command::Disconnect {
            return Ok(command);
        }
        if command.is_write() && self.offered.contains(TransmissionFlags::READ_ONLY) {
            return Err(NbdError::NotPermitted);
        }
        let allowed = self.allowed_flags(command).ok_or(NbdError::Invalid)?;
        if !allowed.contains(CommandFlags(header.flags)) {
            return Err(NbdError::Invalid);
        }
        match (command, header.len) {
            // Range and length of a flush are reserved and must be 0.
            (Command::Flush, 0) if header.offset == 0 => Ok(command),
            (Command::Flush, _) | (_, 0) => Err(NbdError::Invalid),
            (Command::Read, len) if len > PAYLOAD_BYTES_MAX => {
                let whole = CommandFlags(header.flags).contains(CommandFlags::DF);
                Err(if whole { NbdError::Overflow } else { NbdError::Invalid })
            }
            _ => Ok(command),
        }
    }

    /// Returns the flags allowed on a command; none when the export does not offer the command.
    #[inline]
    fn allowed_flags(&self, command: Command) -> Option<CommandFlags> {
        let offers = |flag| self.offered.contains(flag);
        // The protocol demands that FUA is accepted on every command once it is offered.
        let mut allowed = if offers(TransmissionFlags::SEND_FUA) {
            CommandFlags::FUA
        } else {
            CommandFlags::NONE
        };
        let offered = match command {
            Command::Read => {
                if self.terms.structured && offers(TransmissionFlags::SEND_DF) {
                    allowed = allowed.with(CommandFlags::DF);
                }
                true
            }
            Command::Write | Command::Disconnect => true,
            Command::Flush => offers(TransmissionFlags::SEND_FLUSH),
            Command::Trim => offers(TransmissionFlags::SEND_TRIM),
            Command::Cache => offers(TransmissionFlags::SEND_CACHE),
            Command::BlockStatus => {
                allowed = allowed.with(CommandFlags::REQ_ONE);
                self.terms.base_allocation
            }
            Command::WriteZeroes => {
                allowed = allowed.with(CommandFlags::NO_HOLE);
                if offers(TransmissionFlags::SEND_FAST_ZERO) {
                    allowed = allowed.with(CommandFlags::FAST_ZERO);
                }
                offers(TransmissionFlags::SEND_WRITE_ZEROES)
            }
        };
        offered.then_some(allowed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks_core::prng::Prng;

    const STRUCTURED: Negotiated = Negotiated { structured: true, base_allocation: true };

    const ALL: TransmissionFlags = TransmissionFlags(0xfff & !2);

    fn header(command: u16, flags: u16, offset: u64, len: u32) -> [u8; REQUEST_BYTES] {
        RequestHeader { flags, command, cookie: 77, offset, len }.encode()
    }

    /// What one header means to an export that offers `offered`.
    fn one(offered: TransmissionFlags, command: u16, flags: u16, len: u32) -> Parsed {
        let offset = if command == 3 { 0 } else { 4096 };
        let bytes = header(command, flags, offset, len);
        let mut parser = RequestParser::new(offered, STRUCTURED);
        let (consumed, parsed) = parser.parse(&bytes);
        assert_eq!(consumed, REQUEST_BYTES);
        if parsed != Parsed::NeedMore {
            return parsed;
        }
        // A refused write: its answer comes with the last byte of its payload, not before.
        let payload = vec![0; len as usize];
        assert!(!parser.is_between_requests());
        assert_eq!(parser.parse(&payload[1..]), (payload.len() - 1, Parsed::NeedMore));
        let (consumed, parsed) = parser.parse(&bytes);
        assert!(consumed == 1 && parser.is_between_requests());
        parsed
    }

    fn refused(parsed: Parsed) -> Option<NbdError> {
        match parsed {
            Parsed::Refused(refusal) => Some(refusal.error),
            _ => None,
        }
    }

    fn bio(command: u16, flags: u16, len: u32) -> (Op, BioFlags) {
        match one(ALL, command, flags, len) {
            Parsed::Request(request) => (request.op(), request.bio_flags()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn command_maps_to_operation() {
        let sync = BioFlags::SYNC;
        assert_eq!(bio(0, 0, 1), (Op::Read, sync.with(BioFlags::HOLE_OK)));
        assert_eq!(bio(0, 5, 1), (Op::Read, sync.with(BioFlags::HOLE_OK)));
        assert_eq!(bio(1, 0, 512), (Op::Write, sync));
        assert_eq!(bio(1, 1, 512), (Op::Write, sync.with(BioFlags::FUA)));
        assert_eq!(bio(3, 1, 0), (Op::Flush, sync));
        assert_eq!(bio(4, 1, u32::MAX), (Op::Discard, sync.with(BioFlags::FUA)));
        let zeroes = sync.with(BioFlags::NO_UNMAP).with(BioFlags::FAST_ZERO);
        assert_eq!(bio(6, 18, u32::MAX), (Op::WriteZeroes, zeroes));
        // Longer than any payload, and allowed on read-only exports.
        assert_eq!(bio(5, 1, u32::MAX), (Op::Prefetch, sync));
        assert_eq!(bio(7, 0, u32::MAX), (Op::BlockStatus, sync));
        assert_eq!(bio(7, 9, 1), (Op::BlockStatus, sync.with(BioFlags::ONE_EXTENT)));
        assert_eq!(one(ALL, 2, 0, 0), Parsed::Disconnect);
    }

    #[test]
    fn block_status_needs_its_context() {
        let without = Negotiated { structured: true, base_allocation: false };
        let (_, parsed) = RequestParser::new(ALL, without).parse(&header(7, 0, 0, 4096));
        let error = NbdError::Invalid;
        assert_eq!(parsed, Parsed::Refused(Refusal { cookie: 77, in_chunks: true, error }));
        assert_eq!(refused(one(ALL, 7, 0, 0)), Some(NbdError::Invalid), "of nothing");
        assert_eq!(refused(one(ALL, 7, 2, 512)), Some(NbdError::Invalid), "another's flag");
    }

    #[test]
    fn command_that_export_does_not_offer_is_refused() {
        let bare = TransmissionFlags::HAS_FLAGS;
        let asked = [(1, 1, 9), (3, 0, 0), (4, 0, 9), (5, 0, 9), (6, 0, 9), (0, 4, 9)];
        for (command, flags, len) in asked {
            let parsed = one(bare, command, flags, len);
            assert_eq!(refused(parsed), Some(NbdError::Invalid), "{command}");
        }
        let slow = ALL.without(TransmissionFlags::SEND_FAST_ZERO);
        assert_eq!(refused(one(slow, 6, 16, 9)), Some(NbdError::Invalid));
        let simple = RequestParser::new(ALL, Negotiated::default()).parse(&header(0, 4, 0, 9)).1;
        assert_eq!(refused(simple), Some(NbdError::Invalid));
        let read_only = ALL.with(TransmissionFlags::READ_ONLY);
        for command in [1, 4, 6] {
            let parsed = one(read_only, command, 0, 9);
            assert_eq!(refused(parsed), Some(NbdError::NotPermitted), "{command}");
        }
        assert_eq!(refused(one(read_only, 0, 0, 9)), None);
        assert_eq!(refused(one(read_only, 5, 0, 9)), None);
    }

    #[test]
    fn invalid_lengths_commands_and_flags_are_refused() {
        assert_eq!(refused(one(ALL, 0, 0, PAYLOAD_BYTES_MAX)), None);
        let long = PAYLOAD_BYTES_MAX + 1;
        assert_eq!(refused(one(ALL, 0, 0, long)), Some(NbdError::Invalid));
        assert_eq!(refused(one(ALL, 0, 4, long)), Some(NbdError::Overflow));
        assert_eq!(one(ALL, 1, 0, long), Parsed::End(ProtocolError::PayloadTooLong(long)));
        for command in [0, 1, 4, 6, 5, 7, 8, 999] {
            assert_eq!(refused(one(ALL, command, 0, 0)), Some(NbdError::Invalid), "{command}");
        }
        for command in [0, 1, 3, 4, 5] {
            let len = u32::from(command != 3);
            assert_eq!(refused(one(ALL, command, 2, len)), Some(NbdError::Invalid), "{command}");
        }
        assert_eq!(refused(one(ALL, 0, 1 << 15, 9)), Some(NbdError::Invalid));
        let placed = RequestParser::new(ALL, Negotiated::default()).parse(&header(3, 0, 512, 0)).1;
        assert_eq!(refused(placed), Some(NbdError::Invalid));
        let mut bytes = header(0, 0, 0, 9);
        bytes[0] = 0;
        let (_, parsed) = RequestParser::new(ALL, Negotiated::default()).parse(&bytes);
        assert_eq!(parsed, Parsed::End(ProtocolError::BadMagic(0x0060_9513)));
    }

    /// Feeds `stream` in the pieces that `cut` chooses; payloads of accepted writes are taken as a connection would.
    fn run(stream: &[u8], mut cut: impl FnMut() -> usize) -> Vec<Parsed> {
        let (mut parser, mut found) = (RequestParser::new(ALL, STRUCTURED), Vec::new());
        let (mut at, mut payload) = (0, 0);
        while at < stream.len() {
            let end = stream.len().min(at.saturating_add(cut().max(1)));
            while at < end {
                let taken = payload.min(end - at);
                (at, payload) = (at + taken, payload - taken);
                let (consumed, parsed) = parser.parse(&stream[at..end]);
                at += consumed;
                match parsed {
                    Parsed::NeedMore => assert_eq!(at, end),
                    Parsed::Request(request) => payload = request.payload() as usize,
                    _ => {}
                }
                if parsed != Parsed::NeedMore {
                    found.push(parsed);
                }
                if matches!(parsed, Parsed::End(_)) {
                    return found;
                }
            }
        }
        assert!(parser.is_between_requests());
        found
    }

    #[test]
    fn any_cut_of_the_stream_parses_the_same() {
        let mut stream = Vec::new();
        stream.extend(header(1, 0, 0, 50));
        stream.extend([0x25; 50]);
        stream.extend(header(1, 2, 0, 40)); // Refused: its payload must be skipped,
        stream.extend(header(2, 0, 0, 0)); // though it looks like a request.
        stream.extend([9; 12]);
        stream.extend(header(0, 0, 512, 4096));
        stream.extend(header(2, 0, 0, 0));
        let whole = run(&stream, || usize::MAX);
        assert_eq!(whole.len(), 4);
        assert_eq!(refused(whole[1]), Some(NbdError::Invalid));
        assert_eq!(whole[3], Parsed::Disconnect);
        for size in 1..stream.len() {
            assert_eq!(run(&stream, || size), whole, "pieces of {size}");
            let mut first = Some(size);
            let cut = || first.take().unwrap_or(usize::MAX);
            assert_eq!(run(&stream, cut), whole, "cut at {size}");
        }
    }

    #[test]
    fn random_bytes_end_at_first_wrong_magic() {
        let mut prng = Prng::new(3);
        for _ in 0..2000 {
            let mut stream = Vec::new();
            for _ in 0..prng.below(6) {
                let command = prng.below(9) as u16;
                let flags = prng.next() as u16 & prng.next() as u16;
                let len = prng.below(100) as u32;
                stream.extend(header(command, flags, prng.next(), len));
                if command == 1 {
                    stream.extend((0..len).map(|_| prng.next() as u8));
                }
            }
            let good = stream.len();
            stream.extend((0..prng.between(28, 99)).map(|_| prng.next() as u8));
            let expected = run(&stream, || usize::MAX);
            assert!(matches!(expected.last(), Some(Parsed::End(ProtocolError::BadMagic(_)))));
            assert!(run(&stream[..good], || 7).len() == expected.len() - 1);
            let pieces = run(&stream, || prng.between(1, 40) as usize);
            assert_eq!(pieces, expected);
        }
    }
}
