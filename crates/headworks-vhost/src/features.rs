//! Feature bits: which are offered, and what a front end's choice means for a ring and a request.
//!
//! Not offered: packed rings (in-flight tracking of them is a second format), IN_ORDER (requests complete out of order), secure
//! erase, zones. VERSION_1 is required: legacy drivers use another configuration space.

/// virtio-blk and virtio: at most `seg_max` data descriptors a request.
pub const SEG_MAX: u64 = 1 << 2;
/// The device is read-only.
pub const RO: u64 = 1 << 5;
/// `blk_size` of the configuration space is valid.
pub const BLK_SIZE: u64 = 1 << 6;
/// The device has a cache that FLUSH writes out.
pub const FLUSH: u64 = 1 << 9;
/// The topology fields of the configuration space are valid.
pub const TOPOLOGY: u64 = 1 << 10;
/// The driver may switch the cache with `writeback`.
pub const CONFIG_WCE: u64 = 1 << 11;
/// More than one queue.
pub const MQ: u64 = 1 << 12;
/// The driver may send DISCARD.
pub const DISCARD: u64 = 1 << 13;
/// The driver may send WRITE_ZEROES.
pub const WRITE_ZEROES: u64 = 1 << 14;
/// vhost: pages written by the device are marked in a log.
pub const LOG_ALL: u64 = 1 << 26;
/// Descriptors may name a table of descriptors.
pub const INDIRECT: u64 = 1 << 28;
/// Notifications are asked for by index.
pub const EVENT_IDX: u64 = 1 << 29;
/// vhost-user: protocol features are negotiated.
pub const PROTOCOL_FEATURES: u64 = 1 << 30;
/// The driver follows virtio 1.0.
pub const VERSION_1: u64 = 1 << 32;

/// Every device feature that this crate implements.
pub const ALL: u64 = SEG_MAX
    | RO
    | BLK_SIZE
    | FLUSH
    | TOPOLOGY
    | CONFIG_WCE
    | MQ
    | DISCARD
    | WRITE_ZEROES
    | LOG_ALL
    | INDIRECT
    | EVENT_IDX
    | PROTOCOL_FEATURES
    | VERSION_1;

/// Protocol features, bits of GET_PROTOCOL_FEATURES.
pub mod protocol {
    /// Several queues, and the message GET_QUEUE_NUM.
    pub const MQ: u64 = 1 << 0;
    /// The migration log is shared memory.
    pub const LOG_SHMFD: u64 = 1 << 1;
    /// A message may ask for an acknowledgement.
    pub const REPLY_ACK: u64 = 1 << 3;
    /// The back end has a socket for messages of its own.
    pub const BACKEND_REQ: u64 = 1 << 5;
    /// The messages GET_CONFIG and SET_CONFIG.
    pub const CONFIG: u64 = 1 << 9;
    /// The messages GET_INFLIGHT_FD and SET_INFLIGHT_FD.
    pub const INFLIGHT_SHMFD: u64 = 1 << 12;
    /// The message RESET_DEVICE, which resets all rings.
    pub const RESET_DEVICE: u64 = 1 << 13;
    /// Memory regions are added and removed one at a time.
    pub const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;

    /// Every protocol feature that this crate implements.
    pub const ALL: u64 = MQ
        | LOG_SHMFD
        | REPLY_ACK
        | BACKEND_REQ
        | CONFIG
        | INFLIGHT_SHMFD
        | RESET_DEVICE
        | CONFIGURE_MEM_SLOTS;
}

/// What the driver negotiated, as far as rings and requests depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features(u64);

impl Features {
    /// The feature set `bits`, which were offered.
    #[must_use]
    pub const fn new(bits: u64) -> Self {
        Self(bits)
    }

    /// The bits as the front end sent them.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Returns true when all of `bits` are negotiated.
    #[must_use]
    pub const fn has(self, bits: u64) -> bool {
        self.0 & bits == bits
    }
}
