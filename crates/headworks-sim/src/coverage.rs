//! Coverage points of a run. A fault that never happened tested nothing, so a long run that missed
//! a point fails.

use std::fmt::Write;

use headworks_core::cache::CacheStats;

use crate::scenario::CACHED;

/// Declares the points with their display names.
macro_rules! points {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)+) => {
        /// An event that a run can pass.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Point { $($(#[$doc])* #[doc = $text] $name,)+ }

        impl Point {
            /// All points, in display order.
            pub const ALL: &[Point] = &[$(Point::$name,)+];

            /// Display name of the point.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Point::$name => $text,)+ }
            }
        }
    };
}

points! {
    Read = "bio: read",
    Write = "bio: write",
    WriteFua = "bio: write with FUA",
    Flush = "bio: flush",
    Discard = "bio: discard",
    WriteZeroes = "bio: write-zeroes",
    WriteZeroesFast = "bio: write-zeroes with FAST_ZERO",
    BlockStatus = "bio: block status",
    Invalid = "bio: malformed, rejected",
    ReadOnly = "bio: write to a read-only volume, rejected",
    StageFinal = "reply: final",
    StageEarly = "reply: early, after a time-out",
    StageReleased = "reply: buffer released after an early reply",
    StatusData = "reply: block status with data extents",
    StatusZeros = "reply: block status with zero extents",
    Hole = "reply: read of zeros without data",
    ErrorMedium = "reply: input/output error",
    ErrorNoSpace = "reply: no space",
    ErrorTimedOut = "reply: timed out",
    ErrorUnsupported = "reply: unsupported",
    MessageBio = "message: bio",
    MessageDone = "message: done",
    MessageTagWant = "message: tag want",
    MessageLimits = "message: limits",
    MessageTagGrant = "message: tag grant",
    MessageTagRevoke = "message: tag revoke",
    MessageTagReturn = "message: tag return",
    MessageDeviceState = "message: device state",
    NoticeSuspect = "notice: suspect volume",
    NoticeTimedOut = "notice: timed out",
    NoticeShortRead = "notice: short read",
    NoticeStuck = "notice: device does not answer",
    NoticeLive = "notice: device answers again",
    ControlAcknowledge = "control: acknowledge",
    TunableChanged = "control: tunable changed under load",
    TunableRejected = "control: tunable change rejected",
    VolumeReplaced = "hot-plug: volume replaced",
    DeviceReplaced = "hot-plug: device removed and added again",
    VolumeAdded = "hot-plug: volume added to a free slot",
    DeviceAdded = "hot-plug: device added to a free slot",
    VolumeRemoved = "hot-plug: volume removed permanently",
    DeviceRemoved = "hot-plug: device removed permanently",
    DiscardedRemoved = "hot-plug: volume discarded and removed",
    ReplacedResized = "hot-plug: volume replaced by one of another size",
    Grown = "hot-plug: volume grown",
    Shrunk = "hot-plug: volume shrunk",
    ShrunkBusy = "hot-plug: volume shrunk with bios in flight beyond its end",
    CutHotplugged = "hot-plug: power cut with hot-plugged volumes present",
    ChangeBusy = "hot-plug: refused while in use",
    ChangeGivenUp = "hot-plug: removal given up because write-out fails",
    LayerSet = "layer: volume put on its base",
    LayerSetBusy = "layer: volume put on its base with bios in flight",
    LayerSetDirty = "layer: volume put on its base with dirty blocks",
    LayerRead = "layer: read gone on at the base",
    LayerUpgraded = "layer: put on its base again by new shards",
    BaseKept = "layer: removal of a base refused",
    StopHung = "stop: beside a device that does not answer",
    Snapshot = "overlay: new layer on an idle volume",
    SnapshotBusy = "overlay: new layer under load",
    Timer = "timer came",
    TenantChanged = "tenant: export moved, weight or part of the cache changed under load",
    TenantCapped = "tenant: at its cap of dirty data",
    Limited = "limit: bio waited for a limit",
    LimitChanged = "limit: changed under load",
    LimitClosed = "limit: connection closed with bios that wait",
    LimitCut = "limit: power cut while bios wait",
    RequestMerged = "request: bios merged into one command",
    RequestSplit = "request: bio split into several commands",
    RequestWaited = "request: more bios than tags",
    RequestRequeued = "request: rejected and requeued",
    RequestContinued = "request: short transfer continued",
    DeviceFlush = "device: flush",
    DeviceFua = "device: write with FUA",
    DeviceDiscard = "device: discard",
    DeviceWriteZeroes = "device: write-zeroes",
    DeviceBlockStatus = "device: block status",
    DeviceZerosAsData = "device: zeros written as data",
    FaultBusy = "fault: refused",
    FaultLate = "fault: late",
    FaultMedium = "fault: input/output error by rate",
    FaultNoSpace = "fault: no space",
    FaultShort = "fault: short transfer",
    FaultNothing = "fault: nothing transferred",
    FaultFlush = "fault: failed flush",
    FaultZeroes = "fault: write-zeroes not supported after all",
    FaultBadRange = "fault: bad range",
    Prefetch = "cache: prefetch",
    MessageCaching = "cache: message: caching",
    StatusFromCache = "cache: block status answered from the cache",
    Close = "cache: connection closed and reopened",
    CloseBusy = "cache: connection closed with bios in flight",
    ClosePaused = "cache: connection closed with a paused writer",
    DirtySet = "cache: control: write-back tunable changed",
    OwedErrorReported = "cache: owed write-back error reported to a connection",
    FlushFailed = "cache: flush failed",
    CopyIn = "cache: bytes copied in",
    CopyOut = "cache: bytes copied out",
    ReplyFromFrames = "cache: read answered from frames",
    ReplyFromFills = "cache: read answered from frames that it waited for",
    ReadReturned = "cache: read without a buffer returned",
    ReadReturnedLate = "cache: read without a buffer returned after a wait",
    ZeroFrames = "cache: frames zeroed",
    ReleaseFrames = "cache: frames released below a lower limit",
    MemoryHad = "memory: more frames have space",
    MemoryRefused = "memory: refused by a full filesystem",
    MemoryHadAgain = "memory: had after it was refused",
    MemoryReleased = "memory: given back with frames",
    MemoryStartRefused = "memory: a start refused by a full filesystem",
    MoveFrames = "cache: bytes moved to another frame",
    Fill = "cache: fill",
    FillPartial = "cache: fill of a part of a folio",
    DiscardDirty = "cache: discard of dirty blocks",
    DirectDirty = "cache: direct I/O over dirty blocks",
    WriteOut = "cache: write-out",
    WriteOutFua = "cache: write-out with FUA",
    CacheRemote = "cache: I/O on a device of another shard",
    Hit = "cache: hit",
    Miss = "cache: miss",
    ReadBeforeWrite = "cache: part of a block written, the rest read",
    Shadow = "cache: block written under write-out",
    Evicted = "cache: folio evicted",
    EvictedLarge = "cache: large folio evicted",
    GhostHit = "cache: refault of an evicted folio",
    DroppedBehind = "cache: folio left behind a stream",
    WaitFrame = "cache: wait for a frame",
    WaitCredit = "cache: wait for dirty credit",
    WaitPause = "cache: writer paused",
    WaitRange = "cache: wait for a locked range",
    WaitFolio = "cache: wait for a folio",
    ForBackground = "cache: write-out above the background limit",
    ForAge = "cache: write-out of expired data",
    ForFlush = "cache: write-out for a flush",
    ForFrames = "cache: write-out to free frames",
    ForWriter = "cache: write-out by a throttled writer",
    WriteOutFailed = "cache: write-out failed",
    ReadAhead = "cache: read-ahead",
    ReadAheadWasted = "cache: read-ahead evicted unused",
    FlushAnswered = "cache: flush answered",
    CutDirty = "cache: power cut with dirty blocks",
    CutHeld = "cache: power cut with held blocks",
    CutShadow = "cache: power cut with a shadow",
    FailedDiscarded = "cache: failed blocks discarded by the operator",
    CutWriting = "cache: power cut during write-out",
    CutSync = "cache: power cut during a flush with write-out",
    PowerCut = "power cut",
    ProcessDeath = "process death",
    DeathDirty = "process death with dirty blocks",
    DeathHeld = "process death with held blocks",
    DeathShadow = "process death with a shadow",
    DeathWriting = "process death during write-out",
    DeathInCopy = "process death within a copy to a clean block",
    DeathInOverwrite = "process death within a copy to a dirty block",
    DeathInMove = "process death within the move of a shadow",
    DeathBeforeEntry = "process death before an entry of the dirty table",
    Upgrade = "upgrade: new shards took over",
    UpgradeBusy = "upgrade: begun with bios in flight",
    UpgradeDirty = "upgrade: with dirty blocks",
    UpgradeHeld = "upgrade: with held blocks",
    UpgradeSuspect = "upgrade: with a suspect volume",
    UpgradeHit = "upgrade: cached folio read without the device",
    UpgradeAbandoned = "upgrade: abandoned, the old shards went on",
    UpgradeGivenUp = "upgrade: given up, the old shards were not quiet in time",
    UpgradeCut = "upgrade: power cut soon after one",
    DeathUpgraded = "process death soon after an upgrade",
    PowerCutTorn = "power cut with commands in the device",
    ShardsOne = "world: one shard",
    ShardsTwo = "world: two shards",
    ShardsFour = "world: four shards",
    ModelImmediate = "device model: immediate",
    ModelConstant = "device model: constant latency",
    ModelSeek = "device model: seek",
}

impl Point {
    /// Whether only worlds with process deaths can pass the point.
    #[must_use]
    pub fn is_of_death(self) -> bool {
        self.name().starts_with("process death")
    }

    /// Whether only joined worlds can pass the point.
    #[must_use]
    pub fn is_of_joints(self) -> bool {
        ["overlay:", "stop:", "memory:"].iter().any(|theirs| self.name().starts_with(theirs))
    }

    /// Whether a run of some hundreds of worlds may miss the point by chance.
    #[must_use]
    pub fn is_rare(self) -> bool {
        self == Self::UpgradeSuspect
    }

    /// The points that a long run with this number of shards, or with any number, must pass.
    pub fn asked(shards: Option<u16>) -> impl Iterator<Item = &'static Self> {
        let fits = move |point: &&Self| match shards {
            None => true,
            Some(shards) => {
                let all = [(Self::ShardsOne, 1), (Self::ShardsTwo, 2), (Self::ShardsFour, 4)];
                let alone = shards == 1 && point.name().contains("of another shard");
                let alone = alone || shards == 1 && point.name().contains("message:");
                let elsewhere = all.iter().any(|&(p, n)| p == **point && n != shards);
                !alone && !elsewhere
            }
        };
        let possible = |point: &&Self| CACHED || !point.name().starts_with("cache:");
        Self::ALL.iter().filter(possible).filter(fits)
    }
}

/// Number of times each point was passed.
#[derive(Clone, Debug)]
pub struct Coverage(Vec<u64>);

impl Default for Coverage {
    fn default() -> Self {
        Self(vec![0; Point::ALL.len()])
    }
}

impl Coverage {
    /// Adds the counters of a cache.
    pub fn add_cache(&mut self, stats: &CacheStats) {
        // A write that finds no shadow frame waits for the folio.
        let [frame, credit, pause, _, range, folio] = stats.waits;
        let [background, age, flush, frames, writer] = stats.writeouts.by_reason;
        let counts = [
            (Point::Hit, stats.hits),
            (Point::Miss, stats.misses),
            (Point::FillPartial, stats.fills.partial),
            (Point::DiscardDirty, stats.discarded_dirty),
            (Point::DirectDirty, stats.direct_dirty),
            (Point::ClosePaused, stats.closed_paused),
            (Point::ReadBeforeWrite, stats.read_before_write),
            (Point::Shadow, stats.shadowed),
            (Point::Evicted, stats.evicted_folios),
            // At least one of the evicted folios was larger than a block.
            (Point::EvictedLarge, stats.evicted - stats.evicted_folios),
            (Point::GhostHit, stats.ghost_hits),
            (Point::DroppedBehind, stats.dropped_behind),
            (Point::WaitFrame, frame),
            (Point::WaitCredit, credit),
            (Point::WaitPause, pause),
            (Point::WaitRange, range),
            (Point::WaitFolio, folio),
            (Point::ForBackground, background),
            (Point::ForAge, age),
            (Point::ForFlush, flush),
            (Point::ForFrames, frames),
            (Point::ForWriter, writer),
            (Point::WriteOutFailed, stats.failed),
            (Point::ReadAhead, stats.read_ahead),
            (Point::ReadAheadWasted, stats.read_ahead_wasted),
            (Point::FlushAnswered, stats.flushes),
        ];
        counts.into_iter().for_each(|(point, times)| self.add(point, times));
    }

    /// Counts `point` once more.
    #[inline]
    pub fn hit(&mut self, point: Point) {
        self.0[point as usize] += 1;
    }

    /// Counts `point` `times` times more.
    pub fn add(&mut self, point: Point, times: u64) {
        self.0[point as usize] += times;
    }

    /// How often `point` was passed.
    #[must_use]
    pub fn count(&self, point: Point) -> u64 {
        self.0[point as usize]
    }

    /// Adds the counts of another run.
    pub fn merge(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(a, b)| *a += b);
    }

    /// The points in `points` that were never passed.
    #[must_use]
    pub fn missed<'a>(&self, points: impl IntoIterator<Item = &'a Point>) -> Vec<Point> {
        let points = points.into_iter().copied();
        points.filter(|&point| self.count(point) == 0).collect()
    }

    /// A table of all counts, for people.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = String::new();
        for &point in Point::ALL {
            writeln!(text, "{:>12}  {}", self.count(point), point.name())
                .expect("writing to a string succeeds");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missed_points_are_listed() {
        let (mut a, mut b) = (Coverage::default(), Coverage::default());
        a.hit(Point::Read);
        b.hit(Point::Write);
        a.merge(&b);
        let missed = a.missed(&[Point::Read, Point::Write, Point::Flush]);
        assert_eq!(missed, [Point::Flush]);
        assert_eq!(Point::ALL.len(), a.table().lines().count());
    }
}
