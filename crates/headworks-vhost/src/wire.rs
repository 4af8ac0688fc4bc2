//! The messages of vhost-user as bytes: a header of 12, a body of at most 4 KiB, at most 32 descriptors beside it.
//!
//! Nothing here reads a socket: `channel` does. All integers are in the machine's byte order, little-endian on every machine that
//! Headworks runs on; the order is written out, so a recorded stream means the same everywhere.
//!
//! The crate `vhost` has these messages, too. Its handler reads the socket itself, blocks until a message is answered, and has calls that
//! end before a ring is drained; so neither a fuzzer could drive it without a socket nor a control thread wait for a shard inside it.

use std::os::fd::OwnedFd;

/// Bytes of a message's header.
pub const HEADER_BYTES: usize = 12;
/// Most bytes of a body.
pub const BODY_MAX: usize = 4096;
/// Most descriptors beside a message.
pub const FDS_MAX: usize = 32;

/// Version 1, the only one, in the flags of a header.
const VERSION: u32 = 1;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;

/// Numbers of the messages of a front end.
#[expect(missing_docs, reason = "the names are those of the protocol document")]
pub mod request {
    pub const GET_FEATURES: u32 = 1;
    pub const SET_FEATURES: u32 = 2;
    pub const SET_OWNER: u32 = 3;
    pub const RESET_OWNER: u32 = 4;
    pub const SET_MEM_TABLE: u32 = 5;
    pub const SET_LOG_BASE: u32 = 6;
    pub const SET_LOG_FD: u32 = 7;
    pub const SET_VRING_NUM: u32 = 8;
    pub const SET_VRING_ADDR: u32 = 9;
    pub const SET_VRING_BASE: u32 = 10;
    pub const GET_VRING_BASE: u32 = 11;
    pub const SET_VRING_KICK: u32 = 12;
    pub const SET_VRING_CALL: u32 = 13;
    pub const SET_VRING_ERR: u32 = 14;
    pub const GET_PROTOCOL_FEATURES: u32 = 15;
    pub const SET_PROTOCOL_FEATURES: u32 = 16;
    pub const GET_QUEUE_NUM: u32 = 17;
    pub const SET_VRING_ENABLE: u32 = 18;
    pub const SET_BACKEND_REQ_FD: u32 = 21;
    pub const GET_CONFIG: u32 = 24;
    pub const SET_CONFIG: u32 = 25;
    pub const GET_INFLIGHT_FD: u32 = 31;
    pub const SET_INFLIGHT_FD: u32 = 32;
    pub const RESET_DEVICE: u32 = 34;
    pub const GET_MAX_MEM_SLOTS: u32 = 36;
    pub const ADD_MEM_REG: u32 = 37;
    pub const REM_MEM_REG: u32 = 38;
}

/// Number of the message by which a back end says that the configuration space has changed.
pub const BACKEND_CONFIG_CHANGE: u32 = 2;

/// The header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Number of the message, see [`request`].
    pub request: u32,
    /// Bits 0-1 version, 2 reply, 3 need_reply.
    pub flags: u32,
    /// Bytes of the body.
    pub size: u32,
}

impl Header {
    /// Reads a header; the error is a sentence.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Self, String> {
        let [request, flags, size] = [0, 4, 8].map(|at| u32_at(bytes, at));
        if flags & 3 != VERSION {
            return Err(format!("message {request} has version {}, not 1", flags & 3));
        }
        if size as usize > BODY_MAX {
            return Err(format!("message {request} has {size} bytes, more than {BODY_MAX}"));
        }
        Ok(Self { request, flags, size })
    }

    /// Whether the front end asks for an answer to a message that has none of its own.
    #[must_use]
    pub const fn needs_reply(&self) -> bool {
        self.flags & NEED_REPLY != 0
    }

    /// Whether this is an answer.
    #[must_use]
    pub const fn is_reply(&self) -> bool {
        self.flags & REPLY != 0
    }
}

/// A message with its body and descriptors.
#[derive(Debug)]
pub struct Message {
    /// The header; its size is that of `body`.
    pub header: Header,
    /// The body, without the header.
    pub body: Vec<u8>,
    /// The descriptors, which are closed with the message unless they are taken.
    pub fds: Vec<OwnedFd>,
}

impl Message {
    /// A message of a front end.
    #[must_use]
    pub fn request(request: u32, body: Vec<u8>, fds: Vec<OwnedFd>, needs_reply: bool) -> Self {
        let flags = VERSION | if needs_reply { NEED_REPLY } else { 0 };
        Self { header: Header { request, flags, size: body.len() as u32 }, body, fds }
    }

    /// The answer to `request`.
    #[must_use]
    pub fn reply(request: u32, body: Vec<u8>, fds: Vec<OwnedFd>) -> Self {
        Self {
            header: Header { request, flags: VERSION | REPLY, size: body.len() as u32 },
            body,
            fds,
        }
    }

    /// The answer with one integer.
    #[must_use]
    pub fn reply_u64(request: u32, value: u64) -> Self {
        Self::reply(request, value.to_le_bytes().to_vec(), Vec::new())
    }

    /// The header and the body as bytes.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + self.body.len());
        for word in [self.header.request, self.header.flags, self.body.len() as u32] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(&self.body);
        bytes
    }
}

#[inline]
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

#[inline]
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

#[inline]
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

/// A memory region as a message describes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionDescription {
    /// Guest physical address of the first byte.
    pub guest: u64,
    /// Length of the region in bytes.
    pub size: u64,
    /// Virtual address in the front end.
    pub user: u64,
    /// Where the region begins in its file.
    pub file_offset: u64,
}

impl RegionDescription {
    /// Bytes of a description.
    pub const BYTES: usize = 32;

    pub(crate) fn parse(bytes: &[u8]) -> Self {
        let [guest, size, user, file_offset] = [0, 8, 16, 24].map(|at| u64_at(bytes, at));
        Self { guest, size, user, file_offset }
    }

    /// The description as a message has it.
    #[must_use]
    pub fn bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        for (place, value) in
            bytes.chunks_mut(8).zip([self.guest, self.size, self.user, self.file_offset])
        {
            place.copy_from_slice(&value.to_le_bytes());
        }
        bytes
    }
}

/// Where a ring is: virtual addresses of the front end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingAddresses {
    /// The table of descriptors.
    pub descriptors: u64,
    /// The ring of used descriptors, written by the device.
    pub used: u64,
    /// The ring of available descriptors, written by the driver.
    pub available: u64,
    /// Guest physical address by which writes of the used ring are logged; none: they are not.
    pub log: Option<u64>,
}

/// Body of SET_VRING_ADDR: queue, flags, descriptors, used, available, log address.
pub(crate) const ADDRESSES_BYTES: usize = 40;

impl RingAddresses {
    pub(crate) fn parse(body: &[u8]) -> (u32, Self) {
        let log = (u32_at(body, 4) & 1 != 0).then(|| u64_at(body, 32));
        let [descriptors, used, available] = [8, 16, 24].map(|at| u64_at(body, at));
        (u32_at(body, 0), Self { descriptors, used, available, log })
    }

    /// The body of SET_VRING_ADDR.
    #[must_use]
    pub fn bytes(&self, queue: u32) -> Vec<u8> {
        let mut body = queue.to_le_bytes().to_vec();
        body.extend(u32::from(self.log.is_some()).to_le_bytes());
        for address in [self.descriptors, self.used, self.available, self.log.unwrap_or(0)] {
            body.extend(address.to_le_bytes());
        }
        body
    }
}

/// Body of GET_INFLIGHT_FD and SET_INFLIGHT_FD.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InFlightDescription {
    /// Bytes of the region.
    pub size: u64,
    /// Where it begins in its file.
    pub offset: u64,
    /// Number of the queues in the region.
    pub queues: u16,
    /// Descriptors of each queue.
    pub queue_size: u16,
}

impl InFlightDescription {
    /// Bytes of a description.
    pub const BYTES: usize = 24;

    pub(crate) fn parse(body: &[u8]) -> Self {
        let [size, offset] = [0, 8].map(|at| u64_at(body, at));
        let [queues, queue_size] = [16, 18].map(|at| u16_at(body, at));
        Self { size, offset, queues, queue_size }
    }

    /// The description as a message has it.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut body = self.size.to_le_bytes().to_vec();
        body.extend(self.offset.to_le_bytes());
        body.extend(self.queues.to_le_bytes());
        body.extend(self.queue_size.to_le_bytes());
        body.resize(Self::BYTES, 0);
        body
    }
}
