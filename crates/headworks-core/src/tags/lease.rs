//! The other end of the owner: the tags that this shard holds of a device on another shard.
//!
//! ```text
//!             take            revoke: unused go back
//!   Idle  ------------> Wanting --------------------> Wanting (a grant covers the head's whole want, so it proceeds)
//!    ^  \  lease has it    | grant
//!    |   `---------------> Holding --idle timer or revoke--> returns unused; the rest as it falls free
//!    `------------------------'
//! ```
//!
//! Invariants: `used <= held`; at most one `TagWant` is out; a want is always the head's *whole* need, so a revocation while
//! it is out cannot starve the head; a revoked lease is not used before it is granted anew, so a busy shard cannot starve the
//! owner's line.

/// One device's lease on this shard.
#[derive(Debug, Default)]
pub struct Lease {
    held: u32,
    used: u32,
    wanting: bool,
    revoked: bool,
}

impl Lease {
    /// Uses `want` tags of the lease if they are unused and the owner does not want them back.
    pub fn try_take(&mut self, want: u16) -> bool {
        if self.revoked || self.held - self.used < u32::from(want) {
            return false;
        }
        self.used += u32::from(want);
        true
    }

    /// Whether a `TagWant` must be sent for the head now; from then on one is out.
    pub fn begin_request(&mut self) -> bool {
        !std::mem::replace(&mut self.wanting, true)
    }

    /// The owner's grant came.
    pub fn on_grant(&mut self, count: u16) {
        assert!(self.wanting, "a grant that nobody wanted");
        self.wanting = false;
        self.revoked = false;
        self.held += u32::from(count);
    }

    /// The owner wants them back: returns how many go now.
    pub fn on_revoke(&mut self) -> u32 {
        self.revoked = true;
        self.give_back()
    }

    /// `count` used tags fell free.
    pub fn put(&mut self, count: u16) {
        assert!(u32::from(count) <= self.used, "a leased tag came back twice");
        self.used -= u32::from(count);
    }

    /// After `put`s: how many go back because the owner revoked. Asks once a batch.
    pub fn settle(&mut self) -> u32 {
        if self.revoked { self.give_back() } else { 0 }
    }

    /// Nothing was used for a while: how many go back.
    pub fn on_idle(&mut self) -> u32 {
        self.give_back()
    }

    fn give_back(&mut self) -> u32 {
        let unused = self.held - self.used;
        self.held = self.used;
        unused
    }

    /// Nothing is held or wanted.
    #[must_use]
    pub fn is_released(&self) -> bool {
        self.held == 0 && !self.wanting
    }

    /// Tags of the lease.
    #[must_use]
    pub fn held(&self) -> u32 {
        self.held
    }

    /// Those of them that bios are using.
    #[must_use]
    pub fn used(&self) -> u32 {
        self.used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revoked_lease_returns_unused_now_and_used_as_they_fall_free() {
        let mut lease = Lease::default();
        assert!(!lease.try_take(2) && lease.begin_request() && !lease.begin_request());
        lease.on_grant(5);
        assert!(lease.try_take(2));
        assert_eq!(lease.on_revoke(), 3);
        assert!(!lease.try_take(1));
        assert_eq!((lease.held(), lease.used()), (2, 2));
        lease.put(1);
        assert!(!lease.try_take(1), "it is the owner's again");
        assert_eq!(lease.settle(), 1);
        lease.put(1);
        assert_eq!(lease.settle(), 1);
        assert_eq!((lease.held(), lease.settle()), (0, 0));
    }

    #[test]
    fn a_grant_after_a_revocation_serves_the_whole_want() {
        let mut lease = Lease::default();
        lease.begin_request();
        lease.on_grant(3);
        assert!(!lease.try_take(4) && lease.begin_request());
        assert_eq!(lease.on_revoke(), 3);
        assert!(!lease.is_released(), "a grant is on its way");
        lease.on_grant(4);
        assert!(lease.try_take(4));
        lease.put(4);
        assert_eq!(lease.settle(), 0, "a grant ends the revocation");
        assert!(!lease.is_released());
        assert_eq!(lease.on_idle(), 4);
        assert!(lease.is_released());
    }
}
