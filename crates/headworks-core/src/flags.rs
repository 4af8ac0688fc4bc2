//! Sets of flags: a newtype over an integer with the set operations.

/// Implements `NONE`, `contains`, `with` and `without` for a newtype over an unsigned integer.
///
/// ```
/// #[derive(Clone, Copy, Debug, PartialEq, Eq)]
/// pub struct Modes(u8);
///
/// headworks_core::flag_set!(Modes);
///
/// impl Modes {
///     /// The device accepts discards.
///     pub const DISCARD: Self = Self(1);
/// }
///
/// assert!(Modes::NONE.with(Modes::DISCARD).contains(Modes::DISCARD));
/// assert_eq!(Modes::DISCARD.without(Modes::DISCARD), Modes::NONE);
/// ```
#[macro_export]
macro_rules! flag_set {
    ($set:ident) => {
        impl $set {
            /// The empty set of flags.
            pub const NONE: Self = Self(0);

            /// Returns true when all flags of `other` are set.
            #[must_use]
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// The union of both sets.
            #[must_use]
            pub const fn with(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }

            /// This set without the flags of `other`.
            #[must_use]
            pub const fn without(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }
        }
    };
}
