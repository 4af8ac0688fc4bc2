//! The counters and sizes of a cache, for statistics.

/// The sizes of a shard's cache, in units of 4 KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheSize {
    /// Units that the cache may use at most, at any time.
    pub room: u64,
    /// Units that it may use now.
    pub units: u64,
    /// Units in `units` that it does not use.
    pub free: u64,
    /// Units that are in folios.
    pub resident: u64,
}

/// What was read from devices into the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fills {
    /// The number of bios.
    pub bios: u64,
    /// Blocks of those bios.
    pub blocks: u64,
    /// Bios that read a part of a folio.
    pub partial: u64,
}

/// What was written from the pool to devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Writeouts {
    /// The number of bios.
    pub bios: u64,
    /// Blocks of those bios.
    pub blocks: u64,
    /// Those blocks by reason: background, age, flush, frames, on a writer's behalf.
    pub by_reason: [u64; 5],
}

/// The work of an index of folios.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexUse {
    /// Searches, insertions and removals.
    pub operations: u64,
    /// Buckets that those examined.
    pub probes: u64,
}

/// Counters of a shard's cache. Blocks and units are 4 KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// The sizes that it has now.
    pub size: CacheSize,
    /// The number of folios, by order.
    pub folios: [u64; 10],
    /// Blocks that reads found in the cache.
    pub hits: u64,
    /// Blocks that reads had to wait for.
    pub misses: u64,
    /// What was read from devices into the pool.
    pub fills: Fills,
    /// What was written from the pool to devices.
    pub writeouts: Writeouts,
    /// Blocks whose write-out failed.
    pub failed: u64,
    /// Blocks that are held now because their write-out failed.
    pub held: u64,
    /// Blocks that were written while under write-out.
    pub shadowed: u64,
    /// Blocks that have a shadow frame now.
    pub shadows: u64,
    /// Dirty blocks that a discard cancelled.
    pub discarded_dirty: u64,
    /// Dirty blocks that were written out for direct I/O.
    pub direct_dirty: u64,
    /// Blocks that were read because a part of them was written.
    pub read_before_write: u64,
    /// The number of evicted folios.
    pub evicted_folios: u64,
    /// Units of the folios in `evicted_folios`.
    pub evicted: u64,
    /// Folios that were read again while on the ghost list.
    pub ghost_hits: u64,
    /// Units of folios that left the cache behind a stream.
    pub dropped_behind: u64,
    /// Blocks that were read ahead.
    pub read_ahead: u64,
    /// Blocks in `read_ahead` that were evicted unused.
    pub read_ahead_wasted: u64,
    /// Waits of operations by kind: frame or bio, credit, pause, shadow frame, range, folio.
    pub waits: [u64; 6],
    /// Bios that waited for the end of a pause when their connection closed.
    pub closed_paused: u64,
    /// The work of the index.
    pub index: IndexUse,
    /// The number of completed flushes.
    pub flushes: u64,
    /// Flushes in `flushes` that failed.
    pub flushes_failed: u64,
}

impl CacheStats {
    /// Returns the sums over two caches.
    #[must_use]
    pub fn with(mut self, other: &Self) -> Self {
        let pairs = [
            (&mut self.size.room, other.size.room),
            (&mut self.size.units, other.size.units),
            (&mut self.size.free, other.size.free),
            (&mut self.size.resident, other.size.resident),
            (&mut self.hits, other.hits),
            (&mut self.misses, other.misses),
            (&mut self.fills.bios, other.fills.bios),
            (&mut self.fills.blocks, other.fills.blocks),
            (&mut self.fills.partial, other.fills.partial),
            (&mut self.writeouts.bios, other.writeouts.bios),
            (&mut self.writeouts.blocks, other.writeouts.blocks),
            (&mut self.failed, other.failed),
            (&mut self.held, other.held),
            (&mut self.shadowed, other.shadowed),
            (&mut self.shadows, other.shadows),
            (&mut self.discarded_dirty, other.discarded_dirty),
            (&mut self.direct_dirty, other.direct_dirty),
            (&mut self.read_before_write, other.read_before_write),
            (&mut self.evicted_folios, other.evicted_folios),
            (&mut self.evicted, other.evicted),
            (&mut self.ghost_hits, other.ghost_hits),
            (&mut self.dropped_behind, other.dropped_behind),
            (&mut self.read_ahead, other.read_ahead),
            (&mut self.read_ahead_wasted, other.read_ahead_wasted),
            (&mut self.closed_paused, other.closed_paused),
            (&mut self.index.operations, other.index.operations),
            (&mut self.index.probes, other.index.probes),
            (&mut self.flushes, other.flushes),
            (&mut self.flushes_failed, other.flushes_failed),
        ];
        for (sum, more) in pairs {
            *sum += more;
        }
        let add = |sums: &mut [u64], more: &[u64]| {
            sums.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
        };
        add(&mut self.folios, &other.folios);
        add(&mut self.writeouts.by_reason, &other.writeouts.by_reason);
        add(&mut self.waits, &other.waits);
        self
    }
}

/// The dirty blocks of a tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TenantDirty {
    /// Blocks that are reserved for its writers, dirty or under write-out, without those that are held.
    pub used: u32,
    /// Blocks that were held and count again, since the start.
    pub released: u64,
    /// The most of them; `u32::MAX` for no cap.
    pub cap: u32,
    /// Blocks that were written for it since the start.
    pub written: u64,
}
