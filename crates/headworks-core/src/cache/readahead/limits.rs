//! What bounds the windows of a read: the volume, its device's options and the pool.

/// The limits of read-ahead on a volume and its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadAheadLimits {
    /// The end of the volume, in blocks.
    pub end: u64,
    /// Blocks of the largest window (`read_ahead_kb`, and a small part of the pool, since a stream has up to two unused windows);
    /// 0 turns read-ahead off.
    pub window_max: u32,
    /// The largest order of a folio, `max_folio_order`.
    pub order_max: u8,
    /// Blocks of the pool, which all streams share.
    pub pool: u32,
}
