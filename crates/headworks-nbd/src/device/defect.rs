//! Deliberate violations of the device's rules, for tests of the world that checks them.
//!
//! Each method of [`Defects`] guards one place where a rule can be broken. Outside of tests all of them are the constant `false`, and the
//! compiler removes the guarded code.

/// Defines the defects, one test method each.
macro_rules! defects {
    ($($(#[$doc:meta])+ $variant:ident $method:ident)+) => {
        /// A violation of the device's rules that loses data or reports a wrong result.
        #[cfg(test)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub enum Defect {
            /// The device follows its rules.
            #[default]
            None,
            $($(#[$doc])+ $variant,)+
        }

        #[cfg(test)]
        impl Defect {
            /// All violations, for tests which find them.
            pub const ALL: &[Self] = &[$(Self::$variant),+];
        }

        /// The defect that is active in a device; always none outside of tests.
        #[derive(Clone, Copy, Debug, Default)]
        pub(super) struct Defects {
            #[cfg(test)]
            pub active: Defect,
        }

        impl Defects {
            $(
                $(#[$doc])+
                #[inline(always)]
                pub fn $method(self) -> bool {
                    #[cfg(test)]
                    return self.active == Defect::$variant;
                    #[cfg(not(test))]
                    return false;
                }
            )+
        }
    };
}

defects! {
    /// A loss of acknowledged writes is not told.
    UntoldLoss untold_loss
    /// A flush covers writes that were acknowledged after it was sent.
    FlushCoversLater flush_covers_later
    /// A flush in flight at a loss is sent again as if nothing had been lost.
    FlushForgetsLoss flush_forgets_loss
    /// Old connections stay open while commands are sent again on new ones.
    OldConnectionsKept old_connections_kept
    /// A write in flight at a loss counts as done.
    WriteForgotten write_forgotten
    /// FUA is not passed on to a remote that has it.
    FuaDropped fua_dropped
    /// A command keeps what it had received before a loss.
    PartialReadKept partial_read_kept
    /// Kept writes are not sent again.
    KeptNotRepeated kept_not_repeated
    /// Kept writes that overlap are sent again at once, whole.
    OverlappingAtOnce overlapping_at_once
    /// Other commands are sent while kept writes are.
    OthersBeforeKept others_before_kept
    /// A durable write is not kept behind one that is.
    DurableNotKept durable_not_kept
    /// A flush releases writes that were acknowledged after it was sent.
    FlushReleasesAll flush_releases_all
    /// What newer kept writes have replaced is sent again before them, so that it stays when the newer ones are refused.
    OlderRepeated older_repeated
    /// A kept write that is refused when it is sent again counts as written.
    RefusedRepeatIgnored refused_repeat_ignored
    /// A flush that was refused covers what one that succeeds does.
    RefusedFlushCovers refused_flush_covers
}
