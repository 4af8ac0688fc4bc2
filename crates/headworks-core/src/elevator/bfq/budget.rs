//! The end of a slot: why it ends, what is charged for it, and the budget of the next one.
//!
//! | reason (synchronous, not raised) | next budget |
//! |---|---|
//! | too idle | with requests in the device twice as much; else less by four times the least budget |
//! | timed out | twice as much |
//! | used up | four times as much |
//! | no more requests | what it was served |
//! | preempted | as before |
//! | any, raised; any, asynchronous | twice the least; the largest |
//!
//! On a device that does not rotate, without strict guarantees, a queue that has no requests at the end, whatever the reason:
//! what it was served, however little; raised, at most twice the least. The tree places a queue by its budget and charges its
//! service. With a budget of more than its request, a client of one request at a time is served when V has passed what it is
//! charged, and the time of the request in the device is lost to it: 1000 such clients were 12 % off their weights. On a disk a
//! least budget is worth the seek to the queue.
//!
//! A queue that is slow for its slot pays for the time, on a rotating device: seeky queues have equal shares of time, not of bytes.
//! Source: Linux (`__bfq_bfqq_recalc_budget`, `bfq_bfqq_is_slow`, `bfq_bfqq_charge_time`).

use super::settings::{SHORT_NS, Settings};
use crate::time::MS;

/// The reason for the end of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotEnd {
    /// The queue was waited for and sent nothing.
    TooIdle,
    /// The slot lasted too long.
    TimedOut,
    /// The next request is larger than what is left of the budget.
    UsedUp,
    /// The queue has no request and is not worth waiting for.
    NoMore,
    /// Another queue goes first.
    Preempted,
}

impl SlotEnd {
    /// Returns the reason in words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::TooIdle => "too idle",
            Self::TimedOut => "timed out",
            Self::UsedUp => "used up",
            Self::NoMore => "no more requests",
            Self::Preempted => "preempted",
        }
    }
}

/// A slot that ends, for its budgets.
#[derive(Clone, Copy, Debug)]
pub(super) struct EndedSlot {
    pub end: SlotEnd,
    pub sync: bool,
    pub raised: bool,
    pub seeky: bool,
    /// The queue has no request left.
    pub empty: bool,
    /// Requests are in the device.
    pub outstanding: bool,
    /// Its length; without the time for which the queue was waited for in vain.
    pub ns: u64,
    pub budget: u32,
    pub service: u32,
    pub max_budget: u32,
}

/// Returns the least budget where the largest is `most`.
pub(super) const fn least(most: u32) -> u32 {
    let least = most / 32;
    if least < 8 { 8 } else { least }
}

impl EndedSlot {
    /// Returns what the slot is charged in sectors, at least what was served; `most` is the largest budget.
    pub fn charge(&self, settings: &Settings, most: u32) -> u32 {
        if self.raised || !settings.rotational {
            return self.service;
        }
        let (slow, ns) = self.speed(settings, most);
        let unused = self.budget.saturating_sub(self.service);
        let timed_out = self.end == SlotEnd::TimedOut && unused >= self.budget / 3;
        if !slow && !timed_out {
            return self.service;
        }
        let by_time = u64::from(most) * ns.min(settings.timeout_ns) / settings.timeout_ns;
        self.service.max(by_time as u32)
    }

    /// Returns whether the queue was slow for its slot, and the time that counts.
    fn speed(&self, settings: &Settings, most: u32) -> (bool, u64) {
        if !self.sync {
            return (false, 0);
        }
        // Too short to be measured: what its pattern says.
        if self.ns < MS {
            let usual = if settings.rotational { settings.slice_idle_ns } else { SHORT_NS };
            return (self.seeky, usual);
        }
        let slow = if self.ns > 20 * MS { self.service < most / 2 } else { self.seeky };
        (slow, self.ns)
    }

    /// Returns the next budget, at most `most`.
    pub fn next_budget(&self, settings: &Settings, most: u32) -> u32 {
        let (least, now) = (least(most), self.max_budget);
        let next = match self.end {
            _ if !self.sync => most,
            _ if self.empty && !settings.waits() => {
                let most = if self.raised { 2 * least } else { most };
                self.service.clamp(1, most)
            }
            _ if self.raised => 2 * least,
            SlotEnd::TooIdle if self.outstanding => now.saturating_mul(2),
            SlotEnd::TooIdle if now > 5 * least => now - 4 * least,
            SlotEnd::TooIdle => least,
            SlotEnd::TimedOut => now.saturating_mul(2),
            SlotEnd::UsedUp => now.saturating_mul(4),
            SlotEnd::NoMore => self.service.max(least),
            SlotEnd::Preempted => now,
        };
        debug_assert!(next > 0, "a budget serves something");
        next.min(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::QueueOptions;

    const SLOT: EndedSlot = EndedSlot {
        end: SlotEnd::NoMore,
        sync: true,
        raised: false,
        seeky: false,
        empty: true,
        outstanding: false,
        ns: 10 * MS,
        budget: 6400,
        service: 1000,
        max_budget: 1600,
    };

    /// P14: each row of the table.
    #[test]
    fn next_budget_follows_the_reason() {
        let most = 3200;
        let disk = Settings::new(&QueueOptions { rotational: true, ..QueueOptions::default() });
        let flash = Settings::new(&QueueOptions::default());
        let next = |slot: EndedSlot| slot.next_budget(&disk, most);
        let ended = |end| EndedSlot { end, ..SLOT };
        assert_eq!(next(EndedSlot { outstanding: true, ..ended(SlotEnd::TooIdle) }), 3200);
        assert_eq!(next(ended(SlotEnd::TooIdle)), 1200);
        assert_eq!(next(EndedSlot { max_budget: 500, ..ended(SlotEnd::TooIdle) }), 100);
        assert_eq!(next(ended(SlotEnd::TimedOut)), 3200);
        assert_eq!(next(EndedSlot { max_budget: 300, ..ended(SlotEnd::TimedOut) }), 600);
        assert_eq!(next(EndedSlot { max_budget: 300, ..ended(SlotEnd::UsedUp) }), 1200);
        assert_eq!(next(ended(SlotEnd::UsedUp)), most);
        assert_eq!(next(ended(SlotEnd::NoMore)), 1000);
        assert_eq!(next(EndedSlot { service: 3, ..ended(SlotEnd::NoMore) }), 100);
        assert_eq!(next(ended(SlotEnd::Preempted)), 1600);
        assert_eq!(next(EndedSlot { raised: true, ..ended(SlotEnd::UsedUp) }), 200);
        assert_eq!(next(EndedSlot { sync: false, ..ended(SlotEnd::NoMore) }), most);
        let next = |slot: EndedSlot| slot.next_budget(&flash, most);
        for end in [SlotEnd::NoMore, SlotEnd::TimedOut, SlotEnd::Preempted] {
            let small = EndedSlot { service: 8, ..ended(end) };
            assert_eq!(next(small), 8, "{end:?}");
            assert_eq!(next(EndedSlot { raised: true, ..small }), 8, "{end:?}");
            assert_eq!(next(EndedSlot { raised: true, ..ended(end) }), 200, "{end:?}");
        }
        assert_eq!(next(EndedSlot { empty: false, ..ended(SlotEnd::TimedOut) }), 3200);
    }

    #[test]
    fn slow_slot_pays_for_its_time() {
        let disk = Settings::new(&QueueOptions { rotational: true, ..QueueOptions::default() });
        let flash = Settings::new(&QueueOptions::default());
        let most = 12_500;
        let charge = |slot: EndedSlot| slot.charge(&disk, most);
        assert_eq!(charge(SLOT), 1000, "10 ms without a seek is fast");
        assert_eq!(charge(EndedSlot { seeky: true, ..SLOT }), 1000, "10 of 125 ms: served as much");
        assert_eq!(charge(EndedSlot { seeky: true, ns: 15 * MS, ..SLOT }), 1500);
        assert_eq!(charge(EndedSlot { ns: 21 * MS, ..SLOT }), 2100, "little for so long");
        assert_eq!(charge(EndedSlot { ns: 21 * MS, service: 6250, ..SLOT }), 6250);
        assert_eq!(charge(EndedSlot { ns: 900 * MS, ..SLOT }), most, "at most a whole slot");
        assert_eq!(charge(EndedSlot { ns: 0, seeky: true, service: 8, ..SLOT }), 800, "8 ms");
        let timed_out = EndedSlot { end: SlotEnd::TimedOut, ns: 18 * MS, ..SLOT };
        assert_eq!(charge(timed_out), 1800, "a third and more of the budget is unused");
        assert_eq!(charge(EndedSlot { service: 4300, ns: 50 * MS, ..timed_out }), 5000);
        assert_eq!(charge(EndedSlot { raised: true, seeky: true, ns: 90 * MS, ..SLOT }), 1000);
        assert_eq!(charge(EndedSlot { sync: false, ns: 90 * MS, ..timed_out }), 1000);
        assert_eq!(EndedSlot { seeky: true, ns: 90 * MS, ..SLOT }.charge(&flash, most), 1000);
    }
}
