//! Deliberate violations of the cache's rules, for tests of the checkers.
//!
//! Each method of [`Defects`] guards one place where a rule can be broken. Without the Cargo feature `defects` all of them are the
//! constant `false`, and the compiler removes the guarded code.

/// Defines the defects, one test method each.
macro_rules! defects {
    ($($(#[$doc:meta])+ $variant:ident $method:ident)+) => {
        /// A violation of the cache's rules that loses data or reports a wrong result; for negative tests only.
        #[cfg(feature = "defects")]
        #[doc(hidden)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub enum CacheDefect {
            /// The cache follows its rules.
            #[default]
            None,
            $($(#[$doc])+ $variant,)+
        }

        /// The defect that is active in a cache; always none without the feature `defects`.
        #[derive(Clone, Copy, Debug, Default)]
        pub(in crate::cache) struct Defects {
            #[cfg(feature = "defects")]
            active: CacheDefect,
        }

        impl Defects {
            $(
                $(#[$doc])+
                #[inline(always)]
                pub fn $method(self) -> bool {
                    #[cfg(feature = "defects")]
                    return self.active == CacheDefect::$variant;
                    #[cfg(not(feature = "defects"))]
                    return false;
                }
            )+
        }
    };
}

defects! {
    /// A flush completes without a flush of the device.
    FlushSkipsDevice flush_skips_device
    /// A flush does not wait for outstanding write-outs.
    FlushIgnoresWriteout flush_ignores_writeout
    /// A write changes a frame that the device reads.
    NoShadow no_shadow
    /// A fill replaces the bytes of a write that arrived during the fill.
    FillOverwrites fill_overwrites
    /// A block whose write-out failed counts as clean.
    FailedIsClean failed_is_clean
    /// A writethrough write completes before its write-out.
    WritethroughEarly writethrough_early
    /// The rest of a partially written block reads as zeros.
    NoReadBeforeWrite no_read_before_write
    /// A discard does not wait for outstanding write-outs.
    DiscardIgnoresWriteout discard_ignores_writeout
    /// Reclaim evicts dirty folios like clean ones.
    EvictsDirty evicts_dirty
    /// Folios that a stream brought leave the cache although they are dirty.
    DropsDirtyBehind drops_dirty_behind
    /// The flushers do not write because of the background threshold.
    FlusherSleeps flusher_sleeps
    /// Reclaim evicts folios that a device is filling.
    EvictsFilling evicts_filling
    /// A flush omits write-out errors that another connection has seen.
    ErrorReportedOnce error_reported_once
    /// The dirty table keeps the entries of blocks that were written out.
    StaleEntry stale_entry
    /// The contents for another process name the first dirty folio as clean.
    HandoverCleans handover_cleans
    /// The contents for another process name no errors that connections have not seen.
    HandoverForgetsErrors handover_forgets_errors
    /// A change of a volume does not make its blocks the volume's own.
    ForgetsOwnBlocks forgets_own_blocks
    /// What was accepted before a volume was put on its base is not noted as its own.
    ForgetsEarlierChanges forgets_earlier_changes
    /// The folios of a removed volume stay in the cache.
    FoliosStay folios_stay
}

#[cfg(feature = "defects")]
impl Defects {
    /// Activates a defect, or none.
    pub fn set(&mut self, defect: CacheDefect) {
        self.active = defect;
    }
}

impl Defects {
    /// Returns true if any defect is active.
    pub fn any(self) -> bool {
        #[cfg(feature = "defects")]
        return self.active != CacheDefect::None;
        #[cfg(not(feature = "defects"))]
        return false;
    }
}
