//! Statistics of write-back under Linux's names.

/// Statistics of all devices together (`/proc/vmstat` and more), in blocks of 4 KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirtyStats {
    /// Blocks dirty and not under writeback.
    pub nr_dirty: u64,
    /// Blocks under writeback now.
    pub nr_writeback: u64,
    /// Blocks reserved and not dirty yet.
    pub reserved: u64,
    /// Blocks dirtied since the start.
    pub nr_dirtied: u64,
    /// Blocks written since the start.
    pub nr_written: u64,
    /// The hard bound on dirty + writeback + reserved.
    pub nr_dirty_threshold: u64,
    /// The threshold above which the flusher runs.
    pub nr_dirty_background_threshold: u64,
    /// Active writers, light ones in part, rounded up.
    pub writers: u64,
    /// Number of pauses that ended.
    pub pauses: u64,
    /// Total time of these pauses, in nanoseconds.
    pub paused_ns: u64,
    /// Number of times that a pause was extended.
    pub pauses_continued: u64,
    /// Number of refused reservations.
    pub refused: u64,
    /// Number of dropped trace events.
    pub traces_lost: u64,
    /// Bytes a second that the devices with dirty blocks take, as far as it was measured.
    pub write_rate: u64,
}

impl DirtyStats {
    /// The statistics of two shards together.
    #[must_use]
    pub fn with(self, other: &Self) -> Self {
        let background = self.nr_dirty_background_threshold + other.nr_dirty_background_threshold;
        Self {
            nr_dirty: self.nr_dirty + other.nr_dirty,
            nr_writeback: self.nr_writeback + other.nr_writeback,
            reserved: self.reserved + other.reserved,
            nr_dirtied: self.nr_dirtied + other.nr_dirtied,
            nr_written: self.nr_written + other.nr_written,
            nr_dirty_threshold: self.nr_dirty_threshold + other.nr_dirty_threshold,
            nr_dirty_background_threshold: background,
            writers: self.writers + other.writers,
            pauses: self.pauses + other.pauses,
            paused_ns: self.paused_ns + other.paused_ns,
            pauses_continued: self.pauses_continued + other.pauses_continued,
            refused: self.refused + other.refused,
            traces_lost: self.traces_lost + other.traces_lost,
            write_rate: self.write_rate + other.write_rate,
        }
    }
}

/// Statistics of one device (debugfs `bdi/<device>/stats`), in blocks of 4 KiB except for the rates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WritebackStats {
    /// `BdiWriteback`: blocks under writeback.
    pub writeback: u64,
    /// `BdiReclaimable`: blocks dirty and not under writeback.
    pub reclaimable: u64,
    /// Blocks reserved and not dirty yet.
    pub reserved: u64,
    /// `BdiDirtyThresh`: the device's current limit.
    pub dirty_thresh: u64,
    /// `DirtyThresh`: the threshold of all devices.
    pub global_dirty_thresh: u64,
    /// `BackgroundThresh`: the background threshold of all devices.
    pub background_thresh: u64,
    /// `BdiDirtied`: blocks dirtied since the start.
    pub dirtied: u64,
    /// `BdiWritten`: blocks written since the start.
    pub written: u64,
    /// `BdiWriteBandwidth`: estimated blocks a second.
    pub write_bandwidth: u64,
    /// One writer's rate at the set point, bytes a second.
    pub dirty_ratelimit: u64,
    /// One writer's rate at the present position, bytes a second.
    pub task_ratelimit: u64,
    /// Writers in thousandths, each counted by the fraction of its share that it takes.
    pub writers_milli: u64,
    /// The rate factor of the position, in 1024ths.
    pub pos_ratio: u64,
}
