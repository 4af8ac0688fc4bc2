//! What a run must have been through. A fault that never happened tested nothing, so a run that missed a point fails.

use std::fmt::Write;

use crate::scenario::CACHED;

/// Declares the points with the words that they are listed by.
macro_rules! points {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)+) => {
        /// Something that a run can go through.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Point { $($(#[$doc])* #[doc = $text] $name,)+ }

        impl Point {
            /// Every point.
            pub const ALL: &[Point] = &[$(Point::$name,)+];

            /// What it is listed by.
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
    WriteZeroesFast = "bio: write-zeroes, fast or not at all",
    BlockStatus = "bio: block status",
    Invalid = "bio: malformed, refused",
    ReadOnly = "bio: write to a read-only volume, refused",
    StageFinal = "reply: final",
    StageEarly = "reply: early, by time-out",
    StageReleased = "reply: released after early",
    ToldData = "reply: block status that tells of data",
    ToldZeros = "reply: block status that tells of zeros",
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
    NoticeSuspect = "notice: suspect volume",
    NoticeTimedOut = "notice: timed out",
    NoticeShortRead = "notice: short read",
    ControlAcknowledge = "control: acknowledge",
    Switched = "control: options changed under load",
    SwitchRefused = "control: a change refused",
    VolumeLeft = "change: a volume left, and another came in its place",
    DeviceLeft = "change: a device left and came again",
    VolumeJoined = "change: a volume came to a spare place",
    DeviceJoined = "change: a device came to a spare place",
    VolumeParted = "change: a volume left its spare place",
    DeviceParted = "change: a device left its spare place",
    PartedDiscarded = "change: a volume was discarded whole and left",
    CameResized = "change: a volume of another size came",
    Grown = "change: a volume became longer",
    Shrunk = "change: a volume became shorter",
    ShrunkBusy = "change: a volume became shorter with bios beyond its end",
    CutGuests = "change: power cut with guests",
    ChangeBusy = "change: refused while it was used",
    ChangeGivenUp = "change: a volume that could not be written out stayed",
    Timer = "timer came",
    RequestMerged = "request: bios merged into one command",
    RequestSplit = "request: bio split into several commands",
    RequestWaited = "request: more bios than tags",
    RequestRequeued = "request: refused and sent again",
    RequestContinued = "request: short transfer continued",
    DeviceFlush = "device: flush",
    DeviceFua = "device: write with FUA",
    DeviceDiscard = "device: discard",
    DeviceWriteZeroes = "device: write-zeroes",
    DeviceBlockStatus = "device: block status",
    DeviceZerosAsData = "device: zeros written as data",
    FaultBusy = "fault: refused",
    FaultLate = "fault: late",
    FaultMedium = "fault: input/output error by chance",
    FaultNoSpace = "fault: no space",
    FaultShort = "fault: short transfer",
    FaultNothing = "fault: nothing transferred",
    FaultFlush = "fault: failed flush",
    FaultZeroes = "fault: write-zeroes not supported after all",
    FaultBadRange = "fault: bad range",
    Prefetch = "cache: prefetch",
    MessageCaching = "cache: message: caching",
    NewerHere = "cache: block status answered without the device",
    Close = "cache: connection closed and came again",
    CloseBusy = "cache: connection closed with bios on their way",
    ClosePaused = "cache: connection closed while a writer of it paused",
    DirtySet = "cache: control: dirty options changed",
    ErrorHeard = "cache: a connection heard of an error that it was owed",
    FlushFailed = "cache: flush failed",
    CopyIn = "cache: bytes copied in",
    CopyOut = "cache: bytes copied out",
    ZeroFrames = "cache: frames zeroed",
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
    GhostHit = "cache: evicted folio came back",
    WaitFrame = "cache: wait for a frame",
    WaitCredit = "cache: wait for dirty credit",
    WaitPause = "cache: writer paused",
    WaitRange = "cache: wait for a locked range",
    WaitFolio = "cache: wait for a folio",
    ForBackground = "cache: write-out because much is dirty",
    ForAge = "cache: write-out because of age",
    ForFlush = "cache: write-out for a flush",
    ForFrames = "cache: write-out for frames",
    ForWriter = "cache: write-out on a writer's behalf",
    WriteOutFailed = "cache: write-out failed",
    ReadAhead = "cache: read-ahead",
    ReadAheadWasted = "cache: read-ahead evicted unused",
    FlushAnswered = "cache: flush answered",
    CutDirty = "cache: power cut with dirty blocks",
    CutHeld = "cache: power cut with held blocks",
    CutShadow = "cache: power cut with a shadow",
    GaveUp = "cache: failed blocks given up",
    CutWriting = "cache: power cut during write-out",
    CutSync = "cache: power cut during a flush with write-out",
    PowerCut = "power cut",
    PowerCutTorn = "power cut with commands in the device",
    ShardsOne = "world: one shard",
    ShardsTwo = "world: two shards",
    ShardsFour = "world: four shards",
    ModelImmediate = "device model: immediate",
    ModelConstant = "device model: constant latency",
    ModelSeek = "device model: seek",
}

impl Point {
    /// Every point that a long run passes whose worlds have this number of shards, or any.
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

/// How often each point was passed.
#[derive(Clone, Debug)]
pub struct Coverage(Vec<u64>);

impl Default for Coverage {
    fn default() -> Self {
        Self(vec![0; Point::ALL.len()])
    }
}

impl Coverage {
    /// `point` was passed.
    #[inline]
    pub fn hit(&mut self, point: Point) {
        self.0[point as usize] += 1;
    }

    /// `point` was passed `times` times.
    pub fn add(&mut self, point: Point, times: u64) {
        self.0[point as usize] += times;
    }

    /// How often.
    #[must_use]
    pub fn count(&self, point: Point) -> u64 {
        self.0[point as usize]
    }

    /// Another run's passes count too.
    pub fn merge(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(a, b)| *a += b);
    }

    /// What of `points` was never passed.
    #[must_use]
    pub fn missed<'a>(&self, points: impl IntoIterator<Item = &'a Point>) -> Vec<Point> {
        let points = points.into_iter().copied();
        points.filter(|&point| self.count(point) == 0).collect()
    }

    /// A table for people.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = String::new();
        for &point in Point::ALL {
            writeln!(text, "{:>12}  {}", self.count(point), point.name())
                .expect("a string takes everything");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_missed_is_named() {
        let (mut a, mut b) = (Coverage::default(), Coverage::default());
        a.hit(Point::Read);
        b.hit(Point::Write);
        a.merge(&b);
        let missed = a.missed(&[Point::Read, Point::Write, Point::Flush]);
        assert_eq!(missed, [Point::Flush]);
        assert_eq!(Point::ALL.len(), a.table().lines().count());
    }
}
