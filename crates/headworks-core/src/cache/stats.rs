//! What a cache counted.

/// Counters of a shard's cache. Blocks and units are 4 KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Units of the pool.
    pub units: u64,
    /// Units that nobody has.
    pub free: u64,
    /// Units in folios.
    pub resident: u64,
    /// Folios, by order.
    pub folios: [u64; 10],
    /// Blocks that reads found.
    pub hits: u64,
    /// Blocks that reads had to wait for.
    pub misses: u64,
    /// Bios that read from a device into the pool, and their blocks.
    pub fills: u64,
    /// See `fills`.
    pub filled: u64,
    /// Of those bios, the ones that read a part of a folio.
    pub fills_partial: u64,
    /// Bios that wrote from the pool, and their blocks.
    pub writeouts: u64,
    /// See `writeouts`.
    pub written: u64,
    /// Of those, because much was dirty; because it was old; for a flush; for frames; on a writer's behalf.
    pub written_for: [u64; 5],
    /// Blocks whose write-out failed.
    pub failed: u64,
    /// Blocks that are held because their write-out failed.
    pub held: u64,
    /// Blocks written while they were on their way to the device.
    pub shadowed: u64,
    /// Blocks that have a shadow frame now.
    pub shadows: u64,
    /// Dirty blocks that a discard made void.
    pub discarded_dirty: u64,
    /// Dirty blocks that were written out because direct I/O came upon them.
    pub direct_dirty: u64,
    /// Blocks of which a part was written and the rest had to be read first.
    pub read_before_write: u64,
    /// Folios evicted, and their units.
    pub evicted_folios: u64,
    /// See `evicted_folios`.
    pub evicted: u64,
    /// Evicted folios that came back while they were remembered.
    pub ghost_hits: u64,
    /// Blocks read ahead, and how many of them were evicted unused.
    pub read_ahead: u64,
    /// See `read_ahead`.
    pub read_ahead_wasted: u64,
    /// Operations that had to wait for a frame, for credit, for a pause, for a shadow frame, for a range, for a folio.
    pub waits: [u64; 6],
    /// Bios that were waiting for the end of their writer's pause when its connection closed.
    pub closed_paused: u64,
    /// Look-ups, entries and removals of the index, and the lines that were looked at.
    pub index_operations: u64,
    /// See `index_operations`.
    pub index_probes: u64,
    /// Flushes that were answered, and those of them that failed.
    pub flushes: u64,
    /// See `flushes`.
    pub flushes_failed: u64,
}

impl CacheStats {
    /// Both caches together.
    #[must_use]
    pub fn with(mut self, other: &Self) -> Self {
        let pairs = [
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
