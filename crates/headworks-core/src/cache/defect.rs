//! What can be broken on purpose, to show that the checkers of the world see it.

/// A policy that loses data or lies. For negative tests only.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheDefect {
    /// Nothing.
    #[default]
    None,
    /// A flush is answered without a flush of the device.
    FlushStaysHere,
    /// A flush does not wait for write-out that is on its way.
    FlushIgnoresWriteout,
    /// A write goes into a frame that the device reads.
    NoShadow,
    /// A block that is filled counts as written by the client who came meanwhile.
    FillOverwrites,
    /// A block whose write-out failed counts as clean.
    FailedIsClean,
    /// Writethrough is answered when the cache has it.
    WritethroughEarly,
    /// The rest of a block that is written in part is zeros.
    NoReadBeforeWrite,
    /// A discard does not wait for write-out that is on its way.
    DiscardIgnoresWriteout,
    /// Dirty folios are evicted as if they were clean.
    EvictsDirty,
    /// Folios that a device is filling are evicted.
    EvictsFilling,
    /// A flush tells no error of write-out that another connection was told before it began.
    ErrorToldOnce,
    /// What is cached of a volume stays when the volume leaves.
    FoliosStay,
}
