//! When the shards of a simulated world are replaced by new ones, and what those have adopted.
//!
//! Invariant: no more upgrades are drawn in a round than the scenario has.

use headworks_core::cache::CacheContents;
use headworks_core::prng::Prng;

/// Turns after an upgrade that count as soon.
const SOON: u64 = 64;

/// The upgrades of a simulated world.
pub(super) struct Upgrades {
    /// Draws when an upgrade is, and what becomes of it.
    pub prng: Prng,
    /// The turn of the next one.
    at: Option<u64>,
    /// Upgrades that are left in this round.
    left: u32,
    /// The turn of the last one.
    last: Option<u64>,
    /// What each shard adopted last.
    adopted: Vec<CacheContents>,
    done: u64,
}

impl Upgrades {
    pub fn new(prng: Prng) -> Self {
        Self { prng, at: None, left: 0, last: None, adopted: Vec::new(), done: 0 }
    }

    /// Number of upgrades so far.
    pub fn done(&self) -> u64 {
        self.done
    }

    /// Draws the turn of the next upgrade, after turn `now`; early ones are as many as late ones.
    fn plan(&mut self, now: u64) {
        let most = 1 << self.prng.between(2, 12);
        self.at = (self.left > 0).then(|| now + self.prng.between(most / 2, most));
        self.left = self.left.saturating_sub(1);
    }

    /// Begins a round of `upgrades` after turn `now`; in half of those that are cut, one is just before.
    pub fn begin_round(&mut self, upgrades: u32, now: u64, cut_after: Option<u64>) {
        (self.left, self.last) = (upgrades, None);
        if upgrades == 0 {
            return;
        }
        self.plan(now);
        if let Some(cut) = cut_after
            && self.prng.below(2) == 0
        {
            self.at = Some(now + cut.saturating_sub(self.prng.between(1, 16)));
        }
    }

    /// Ends a round at turn `now`; true if an upgrade was soon before.
    pub fn end_round(&mut self, now: u64) -> bool {
        self.at = None;
        self.last.is_some_and(|last| now < last + SOON)
    }

    /// Whether an upgrade is to begin at turn `now`.
    pub fn is_due(&self, now: u64) -> bool {
        self.at.is_some_and(|at| now >= at)
    }

    /// Notes an upgrade that has ended at turn `now`, or was given up, and draws the next one.
    pub fn ended(&mut self, now: u64) {
        self.last = Some(now);
        self.plan(now);
    }

    /// Forgets what is planned and adopted, before an upgrade out of turn.
    pub fn clear(&mut self) {
        self.left = 0;
        self.adopted.clear();
    }

    /// Notes what the new shards have adopted.
    pub fn completed(&mut self, adopted: Vec<CacheContents>) {
        self.adopted = adopted;
        self.done += 1;
    }

    /// What each shard adopted last.
    pub fn take_adopted(&mut self) -> Vec<CacheContents> {
        std::mem::take(&mut self.adopted)
    }
}
