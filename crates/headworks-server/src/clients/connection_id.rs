//! Ids of connections, unique over all shards of a server.
//!
//! ```text
//!   31      26 25          12 11         0
//!   [ shard  ] [ generation ] [  slot    ]
//! ```
//!
//! A slot's generation changes with each connection, so a late completion of a closed connection matches none. The last two
//! slots of a shard are never given to a client: they name the shard's cache and its own flushes.

use headworks_core::ShardId;

/// Most connections of one shard; the last two slots are reserved.
pub const CONNECTIONS_MAX: usize = (1 << 12) - 2;

/// The id of flushes that a shard submits itself: for `drain` and at shutdown.
pub const OWN_FLUSHES: u32 = u32::MAX;

/// The id of the writes that restore what a dead server left.
pub const RESTORES: u32 = OWN_FLUSHES & !RESTORE_BIT;

/// The bit of a generation by which [`RESTORES`] differs from [`OWN_FLUSHES`]; both are in a slot that no client has.
const RESTORE_BIT: u32 = 1 << 12;

const GENERATIONS: u32 = 1 << 14;

/// The id of a connection in `slot` of a shard.
pub fn connection_id(shard: ShardId, generation: u32, slot: u32) -> u32 {
    assert!((slot as usize) < CONNECTIONS_MAX && generation < GENERATIONS);
    u32::from(shard.0) << 26 | generation << 12 | slot
}

/// The generation of the next connection in a slot.
pub fn next_generation(generation: u32) -> u32 {
    (generation + 1) % GENERATIONS
}

/// The account of a shard's cache: it writes out under this id.
pub fn cache_account(shard: ShardId) -> u32 {
    u32::from(shard.0) << 26 | 0x3ff_fffe
}

/// Whether an id belongs to `shard`, as a connection or as its cache.
#[inline]
pub fn is_of_shard(id: u32, shard: ShardId) -> bool {
    id >> 26 == u32::from(shard.0) && id | RESTORE_BIT != OWN_FLUSHES
}

/// Whether an id is that of a client; the server's own requests have no connection, or one in a slot that no client has.
pub fn is_client(id: u32) -> bool {
    id != 0 && (slot_of(id) as usize) < CONNECTIONS_MAX
}

/// The slot that an id names.
#[inline]
pub fn slot_of(id: u32) -> u32 {
    id & 0xfff
}
