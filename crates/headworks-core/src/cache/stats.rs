//! What a cache and its write-back count, for people: plain numbers, copied when somebody asks.

/// The page cache of a shard. Figures of "now" are marked so; the others only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Frames of 4 KiB in the pool.
    pub units: u64,
    /// Frames that hold something, now.
    pub resident: u64,
    /// Frames that hold nothing, now.
    pub free: u64,
    /// Folios by order (4 KiB shifted left by the index), now.
    pub folios: [u64; 10],
    /// Blocks that were asked for and there.
    pub hits: u64,
    /// Blocks that were asked for and not there.
    pub misses: u64,
    /// Blocks filled from a device, read ahead of time included.
    pub fills: u64,
    /// Folios that were given up for others.
    pub evictions: u64,
    /// Look-ups in the index.
    pub lookups: u64,
    /// Places of the index looked at for them.
    pub probes: u64,
    /// Blocks read before somebody asked.
    pub read_ahead: u64,
    /// Of those, blocks that were given up before anybody asked.
    pub read_ahead_wasted: u64,
    /// Times that somebody had to wait for frames.
    pub frame_waits: u64,
    /// Blocks written by clients while they were under write-out: each took a shadow.
    pub shadows: u64,
}

/// What is dirty in a shard's cache, in blocks of 4 KiB; Linux's names of `/proc/vmstat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirtyStats {
    /// Dirty blocks, now, not those under write-out.
    pub nr_dirty: u64,
    /// Blocks under write-out, now.
    pub nr_writeback: u64,
    /// Blocks that became dirty.
    pub nr_dirtied: u64,
    /// Blocks that were written out.
    pub nr_written: u64,
    /// The limit, now.
    pub nr_dirty_threshold: u64,
    /// From here on the flusher writes, now.
    pub nr_dirty_background_threshold: u64,
    /// Blocks whose write-out failed and that are held, now.
    pub nr_failed: u64,
    /// Writers that pause, now.
    pub paused: u64,
    /// Pauses of writers.
    pub pauses: u64,
    /// Nanoseconds of all pauses together.
    pub paused_ns: u64,
    /// Estimated write bandwidth in bytes a second, now.
    pub write_bandwidth: u64,
    /// Bytes a second that a writer may make dirty, now.
    pub dirty_ratelimit: u64,
}

impl CacheStats {
    /// Both caches together.
    #[must_use]
    pub fn with(self, other: &Self) -> Self {
        let mut folios = self.folios;
        folios.iter_mut().zip(other.folios).for_each(|(sum, more)| *sum += more);
        Self {
            units: self.units + other.units,
            resident: self.resident + other.resident,
            free: self.free + other.free,
            folios,
            hits: self.hits + other.hits,
            misses: self.misses + other.misses,
            fills: self.fills + other.fills,
            evictions: self.evictions + other.evictions,
            lookups: self.lookups + other.lookups,
            probes: self.probes + other.probes,
            read_ahead: self.read_ahead + other.read_ahead,
            read_ahead_wasted: self.read_ahead_wasted + other.read_ahead_wasted,
            frame_waits: self.frame_waits + other.frame_waits,
            shadows: self.shadows + other.shadows,
        }
    }
}

impl DirtyStats {
    /// Both shards together.
    #[must_use]
    pub fn with(self, other: &Self) -> Self {
        let background = self.nr_dirty_background_threshold + other.nr_dirty_background_threshold;
        Self {
            nr_dirty: self.nr_dirty + other.nr_dirty,
            nr_writeback: self.nr_writeback + other.nr_writeback,
            nr_dirtied: self.nr_dirtied + other.nr_dirtied,
            nr_written: self.nr_written + other.nr_written,
            nr_dirty_threshold: self.nr_dirty_threshold + other.nr_dirty_threshold,
            nr_dirty_background_threshold: background,
            nr_failed: self.nr_failed + other.nr_failed,
            paused: self.paused + other.paused,
            pauses: self.pauses + other.pauses,
            paused_ns: self.paused_ns + other.paused_ns,
            write_bandwidth: self.write_bandwidth + other.write_bandwidth,
            dirty_ratelimit: self.dirty_ratelimit + other.dirty_ratelimit,
        }
    }
}
