//! How much of a turn each export may have, so that the bytes of one do not make another's requests wait.
//!
//! A turn visits each hot connection once. What it may receive and admit is bounded, so that the next turn comes soon; and the bound is
//! divided among the exports that have hot connections, by weight as buffers are (`memory::levels`). A connection whose export has
//! had its part comes first in the next turn. Within an export, connections take turns.
//!
//! ```text
//!   begin: credit of each export with hot connections = what it overdrew + its part
//!   left:  its credit, or nothing                      a receive may overdraw it by itself
//!   spend: credit - what was received
//! ```
//!
//! A thousand connections that each have sent a MiB so delay another export's small read by two turns, not by the time that all
//! their bytes take.
//!
//! Invariant: over many turns an export receives at most its parts and one receive.

use headworks_core::{ExportId, TenantId};

use crate::memory::levels::Tree;

/// Bytes of a turn, or of an export's part in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TurnBytes {
    /// Received, of any kind.
    pub received: usize,
    /// Of large payloads that are received.
    pub payloads: usize,
    /// Of large reads that are admitted.
    pub reads: usize,
}

impl TurnBytes {
    fn each(self) -> [usize; 3] {
        [self.received, self.payloads, self.reads]
    }
}

/// Parts of the exports in the current turn.
#[derive(Debug, Default)]
pub struct FairTurn {
    /// Exports with hot connections hold 1.
    hot: Tree,
    present: Vec<ExportId>,
    /// By export.
    credits: Vec<[i64; 3]>,
}

impl FairTurn {
    /// Sets the weight of an export, which may be new, among the exports of its tenant.
    pub fn set_weight(&mut self, export: ExportId, weight: u16) {
        self.hot.set_weight(export, weight);
    }

    /// Sets the weight of a tenant, which may be new.
    pub fn set_tenant_weight(&mut self, tenant: TenantId, weight: u16) {
        self.hot.set_tenant_weight(tenant, weight);
    }

    /// Moves an export to a tenant, or to none.
    pub fn set_tenant(&mut self, export: ExportId, tenant: TenantId) {
        self.hot.set_tenant(export, tenant);
    }

    /// Begins a turn of `budget` bytes with the exports of the hot connections, each of which may be named several times.
    pub fn begin(&mut self, budget: TurnBytes, hot: impl Iterator<Item = ExportId>) {
        let before = std::mem::take(&mut self.present);
        before.iter().for_each(|&export| self.hot.charge(export, 1, 0));
        let mut present = before;
        let was_present = present.len();
        for export in hot {
            let index = self.hot.add(export);
            if self.hot.held_by(export) == 0 {
                self.hot.charge(export, 0, 1);
                if self.credits.len() <= index {
                    self.credits.resize(index + 1, [0; 3]);
                }
                present.push(export);
            }
        }
        for &export in &present[..was_present] {
            // What an export has overdrawn is forgotten while it has no hot connection.
            if self.hot.held_by(export) == 0 {
                self.credits[usize::from(export.0)] = [0; 3];
            }
        }
        present.drain(..was_present);
        for &export in &present {
            let alone = present.len() == 1;
            let credits = self.credits[usize::from(export.0)].iter_mut();
            for (credit, bytes) in credits.zip(budget.each()) {
                let overdrawn = if alone { 0 } else { (*credit).min(0) };
                *credit = overdrawn + self.hot.quantum(export, bytes) as i64;
            }
        }
        self.present = present;
    }

    /// What an export may still have in this turn.
    #[must_use]
    pub fn left(&self, export: ExportId) -> TurnBytes {
        let credits = self.credits.get(usize::from(export.0)).copied().unwrap_or_default();
        let [received, payloads, reads] = credits.map(|credit| credit.max(0) as usize);
        TurnBytes { received, payloads, reads }
    }

    /// Counts what a connection of an export had.
    pub fn spend(&mut self, export: ExportId, bytes: TurnBytes) {
        if let Some(credits) = self.credits.get_mut(usize::from(export.0)) {
            credits.iter_mut().zip(bytes.each()).for_each(|(credit, had)| *credit -= had as i64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: usize = 1 << 10;
    const MIB: usize = 1 << 20;
    const BUDGET: TurnBytes = TurnBytes { received: 4 * MIB, payloads: MIB, reads: MIB };
    const A: ExportId = ExportId(0);
    const B: ExportId = ExportId(1);

    fn received(received: usize) -> TurnBytes {
        TurnBytes { received, ..TurnBytes::default() }
    }

    #[test]
    fn export_alone_has_the_whole_turn() {
        let mut turn = FairTurn::default();
        turn.set_weight(A, 1);
        for _ in 0..3 {
            turn.begin(BUDGET, [A; 1000].into_iter());
            assert_eq!((turn.left(A), turn.left(B)), (BUDGET, TurnBytes::default()));
            turn.spend(A, received(32 * MIB));
            assert_eq!(turn.left(A).received, 0);
        }
    }

    #[test]
    fn exports_divide_a_turn_by_weight_within_bounds() {
        let mut turn = FairTurn::default();
        turn.set_weight(A, 300);
        turn.set_weight(B, 100);
        turn.begin(BUDGET, [A, B, A].into_iter());
        assert_eq!((turn.left(A).received, turn.left(B).received), (3 * MIB, MIB));
        turn.set_weight(B, 1);
        turn.begin(BUDGET, [A, B].into_iter());
        assert_eq!(turn.left(B).payloads, MIB / 8, "a quarter of an equal part");
        turn.set_tenant(A, TenantId(0));
        turn.set_tenant(ExportId(2), TenantId(0));
        turn.set_weight(ExportId(2), 300);
        turn.set_weight(B, 100);
        turn.begin(BUDGET, [A, B, ExportId(2)].into_iter());
        let left = [A, B, ExportId(2)].map(|export| turn.left(export).received);
        assert_eq!(left, [MIB, 2 * MIB, MIB], "two exports of one tenant");
    }

    /// Connections of one export have each sent much; another export always has its part, and the first one receives its own part over
    /// many turns.
    #[test]
    fn what_an_export_overdraws_comes_off_its_next_turns() {
        let mut turn = FairTurn::default();
        let mut total = 0;
        for _ in 0..100 {
            turn.begin(BUDGET, [A, B].into_iter());
            assert_eq!(turn.left(B).received, 2 * MIB);
            while turn.left(A).received > 0 {
                turn.spend(A, received(MIB + 208 * KIB));
                total += MIB + 208 * KIB;
            }
        }
        assert!(total.abs_diff(200 * MIB) <= 2 * MIB, "{} MiB in 100 turns", total / MIB);
        turn.begin(BUDGET, [B].into_iter());
        turn.begin(BUDGET, [A, B].into_iter());
        assert_eq!(turn.left(A).received, 2 * MIB, "it had no hot connection in between");
    }
}
