//! What users see of the throttle, under Linux's names.

/// Of all devices together: `/proc/vmstat` and what Linux has no counter for. In blocks of 4 KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirtyStats {
    /// Dirty and not under writeback.
    pub nr_dirty: u64,
    /// Under writeback.
    pub nr_writeback: u64,
    /// Reserved by writers and not dirty yet.
    pub reserved: u64,
    /// Dirtied, ever.
    pub nr_dirtied: u64,
    /// Written, ever.
    pub nr_written: u64,
    /// The hard bound on dirty + writeback + reserved.
    pub nr_dirty_threshold: u64,
    /// The flusher runs above it.
    pub nr_dirty_background_threshold: u64,
    /// Writers with a weight now.
    pub writers: u64,
    /// Pauses that ended.
    pub pauses: u64,
    /// Their time in nanoseconds.
    pub paused_ns: u64,
    /// Times a pause was looked at, and went on.
    pub pauses_continued: u64,
    /// Reservations refused.
    pub refused: u64,
    /// Trace events that nobody fetched.
    pub traces_lost: u64,
}

impl DirtyStats {
    /// Both shards together.
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
        }
    }
}

/// Of one device: debugfs `bdi/<device>/stats`. In blocks of 4 KiB but for the rates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WritebackStats {
    /// `BdiWriteback`: under writeback.
    pub writeback: u64,
    /// `BdiReclaimable`: dirty and not under writeback.
    pub reclaimable: u64,
    /// Reserved and not dirty yet.
    pub reserved: u64,
    /// `BdiDirtyThresh`: the device's limit now.
    pub dirty_thresh: u64,
    /// `DirtyThresh`: of all devices.
    pub global_dirty_thresh: u64,
    /// `BackgroundThresh`: of all devices.
    pub background_thresh: u64,
    /// `BdiDirtied`, ever.
    pub dirtied: u64,
    /// `BdiWritten`, ever.
    pub written: u64,
    /// `BdiWriteBandwidth`: the estimate, blocks a second.
    pub write_bandwidth: u64,
    /// One writer's rate at the set point, bytes a second.
    pub dirty_ratelimit: u64,
    /// One writer's rate at the present position, bytes a second.
    pub task_ratelimit: u64,
    /// Writers, each counted by how much of its part it takes, in thousandths.
    pub writers_milli: u64,
    /// The position's factor in 1024ths.
    pub pos_ratio: u64,
}
