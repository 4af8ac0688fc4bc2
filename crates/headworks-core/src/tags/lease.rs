//! A lease: the tags that this shard holds of a device on another shard.
//!
//! ```text
//!             use                revoke: unused tags go back
//!   Idle  ------------> Requested --------------------> Requested (a grant covers the head's whole request, so it proceeds)
//!    ^  \  lease has it    | grant
//!    |   `---------------> Holding --idle timer or revoke--> returns unused tags; the others as they are put back
//!    `------------------------'
//! ```
//!
//! Invariants: used <= held; at most one `TagWant` message is outstanding; it asks for the head's *whole* need, so a revocation
//! meanwhile cannot starve the head; a revoked lease is not used before the next grant, so a busy shard cannot starve the
//! owner's waiters.

use crate::gauge::Gauge32;

/// The lease of one device on this shard.
#[derive(Debug, Default)]
pub struct Lease {
    held: Gauge32,
    used: Gauge32,
    /// A request to the owner is outstanding.
    requested: bool,
    /// The owner wants the tags back; cleared by the next grant.
    revoked: bool,
}

impl Lease {
    /// Uses `tags` tags if so many are unused and the lease is not revoked; returns whether it did.
    pub fn try_take(&mut self, tags: u16) -> bool {
        if self.revoked || self.unused() < u32::from(tags) {
            return false;
        }
        self.used.add(tags.into());
        debug_assert!(self.used <= self.held, "a lease is not overdrawn");
        true
    }

    /// Begins a request to the owner; returns false if one is outstanding.
    pub fn begin_request(&mut self) -> bool {
        !std::mem::replace(&mut self.requested, true)
    }

    /// Adds tags that the owner granted.
    pub fn on_grant(&mut self, count: u16) {
        assert!(self.requested, "a grant without a request");
        debug_assert!(count > 0, "a grant has tags");
        self.requested = false;
        self.revoked = false;
        self.held.add(count.into());
    }

    /// Revokes the lease; returns the number of unused tags, which go back now.
    pub fn on_revoke(&mut self) -> u32 {
        self.revoked = true;
        self.return_unused()
    }

    /// Ends the use of `count` tags.
    pub fn put(&mut self, count: u16) {
        assert!(u32::from(count) <= self.used.get(), "a leased tag was put back twice");
        self.used.sub(count.into());
    }

    /// Returns the number of tags that go back because the lease is revoked. Called once a batch, after `put`.
    pub fn settle(&mut self) -> u32 {
        if self.revoked { self.return_unused() } else { 0 }
    }

    /// Returns the number of tags that go back because none was used for a while.
    pub fn on_idle(&mut self) -> u32 {
        self.return_unused()
    }

    fn unused(&self) -> u32 {
        assert!(self.used <= self.held, "more leased tags are used than held");
        self.held.get() - self.used.get()
    }

    fn return_unused(&mut self) -> u32 {
        let unused = self.unused();
        self.held.sub(unused);
        unused
    }

    /// Returns true when no tag is held or requested.
    #[must_use]
    pub fn is_released(&self) -> bool {
        self.held.is_zero() && !self.requested
    }

    /// Returns the number of tags of the lease.
    #[must_use]
    pub fn held(&self) -> u32 {
        self.held.get()
    }

    /// Returns the number of tags that bios are using, at most [`Lease::held`].
    #[must_use]
    pub fn used(&self) -> u32 {
        self.used.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revoked_lease_returns_unused_tags_now_and_used_ones_later() {
        let mut lease = Lease::default();
        assert!(!lease.try_take(2) && lease.begin_request() && !lease.begin_request());
        lease.on_grant(5);
        assert!(lease.try_take(2));
        assert_eq!(lease.on_revoke(), 3);
        assert!(!lease.try_take(1));
        assert_eq!((lease.held(), lease.used()), (2, 2));
        lease.put(1);
        assert!(!lease.try_take(1), "the tag goes back to the owner");
        assert_eq!(lease.settle(), 1);
        lease.put(1);
        assert_eq!(lease.settle(), 1);
        assert_eq!((lease.held(), lease.settle()), (0, 0));
    }

    #[test]
    fn grant_after_revocation_serves_whole_request() {
        let mut lease = Lease::default();
        lease.begin_request();
        lease.on_grant(3);
        assert!(!lease.try_take(4) && lease.begin_request());
        assert_eq!(lease.on_revoke(), 3);
        assert!(!lease.is_released(), "a request is outstanding");
        lease.on_grant(4);
        assert!(lease.try_take(4));
        lease.put(4);
        assert_eq!(lease.settle(), 0, "a grant ends the revocation");
        assert!(!lease.is_released());
        assert_eq!(lease.on_idle(), 4);
        assert!(lease.is_released());
    }
}
