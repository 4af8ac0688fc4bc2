//! The counters and sizes of a cache, for statistics.

/// Counters of a shard's cache. Blocks and units are 4 KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Units that the cache may use at most, at any time.
    pub room: u64,
    /// Units that it may use now.
    pub units: u64,
    /// Units in `units` that it does not use.
    pub free: u64,
    /// Units that are in folios.
    pub resident: u64,
    /// The number of folios, by order.
    pub folios: [u64; 10],
    /// Blocks that reads found in the cache.
    pub hits: u64,
    /// Blocks that reads had to wait for.
    pub misses: u64,
    /// Bios that read from a device into the pool.
    pub fills: u64,
    /// Blocks of the bios in `fills`.
    pub filled: u64,
    /// Bios in `fills` that read a part of a folio.
    pub fills_partial: u64,
    /// Bios that wrote from the pool to a device.
    pub writeouts: u64,
    /// Blocks of the bios in `writeouts`.
    pub written: u64,
    /// Blocks in `written` by reason: background, age, flush, frames, on a writer's behalf.
    pub written_for: [u64; 5],
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
    /// Searches, insertions and removals of the index.
    pub index_operations: u64,
    /// Buckets that those examined.
    pub index_probes: u64,
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
            (&mut self.room, other.room),
            (&mut self.units, other.units),
            (&mut self.free, other.free),
            (&mut self.resident, other.resident),
            (&mut self.hits, other.hits),
            (&mut self.misses, other.misses),
            (&mut self.fills, other.fills),
            (&mut self.filled, other.filled),
            (&mut self.fills_partial, other.fills_partial),
            (&mut self.writeouts, other.writeouts),
            (&mut self.written, other.written),
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
            (&mut self.index_operations, other.index_operations),
            (&mut self.index_probes, other.index_probes),
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
        add(&mut self.written_for, &other.written_for);
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
