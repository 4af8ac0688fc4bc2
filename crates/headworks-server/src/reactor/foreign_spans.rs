//! Memory of bios that other shards sent to this shard's devices, by bio.
//!
//! A chained hash table with room for all bios that other shards may have here, so the data path does not allocate. Memory
//! of entries is touched when they are first used. Invariant: every entry is in exactly one chain or in the free list.

use headworks::driver::Span;
use headworks_core::BioId;

/// Ends a chain and the free list.
const NIL: u32 = u32::MAX;

struct ForeignBio {
    id: BioId,
    span: Span,
    next: u32,
}

/// The spans of foreign bios.
pub(super) struct ForeignSpans {
    /// First entry of each chain; a power of two of them, or none.
    heads: Vec<u32>,
    entries: Vec<ForeignBio>,
    free: u32,
    used: usize,
}

impl ForeignSpans {
    /// Room for `bios` at once without an allocation.
    pub fn new(bios: usize) -> Self {
        let heads = vec![NIL; bios.max(1).next_power_of_two()];
        Self { heads, entries: Vec::with_capacity(bios), free: NIL, used: 0 }
    }

    /// Number of foreign bios.
    pub fn len(&self) -> usize {
        self.used
    }

    /// The span of a bio.
    pub fn get(&self, id: BioId) -> Option<Span> {
        let mut at = self.heads[self.chain(id)];
        while at != NIL {
            let entry = &self.entries[at as usize];
            if entry.id == id {
                return Some(entry.span);
            }
            at = entry.next;
        }
        None
    }

    /// Records the span of a bio, or replaces it.
    pub fn insert(&mut self, id: BioId, span: Span) {
        self.remove(id);
        let chain = self.chain(id);
        let entry = ForeignBio { id, span, next: self.heads[chain] };
        let at = if self.free == NIL {
            self.entries.push(entry);
            self.entries.len() as u32 - 1
        } else {
            let at = self.free;
            self.free = std::mem::replace(&mut self.entries[at as usize], entry).next;
            at
        };
        self.heads[chain] = at;
        self.used += 1;
    }

    /// Forgets a bio, if it is known.
    pub fn remove(&mut self, id: BioId) {
        let chain = self.chain(id);
        let (mut before, mut at) = (NIL, self.heads[chain]);
        while at != NIL {
            let next = self.entries[at as usize].next;
            if self.entries[at as usize].id == id {
                match before {
                    NIL => self.heads[chain] = next,
                    before => self.entries[before as usize].next = next,
                }
                self.entries[at as usize].next = self.free;
                self.free = at;
                assert!(self.used > 0, "an entry was in use");
                self.used -= 1;
                return;
            }
            (before, at) = (at, next);
        }
    }

    fn chain(&self, id: BioId) -> usize {
        // Sequences of a connection count up; its id spreads connections. The multiplier is 2^64 / phi.
        let key = id.sequence ^ u64::from(id.connection) << 32;
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & (self.heads.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn id(connection: u32, sequence: u64) -> BioId {
        BioId { connection, sequence, ..BioId::default() }
    }

    #[test]
    fn table_agrees_with_a_hash_map_and_does_not_grow() {
        let (mut table, mut model) = (ForeignSpans::new(64), HashMap::new());
        let mut seed = 1_u64;
        for round in 0..20_000_u64 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let id = id((seed >> 60) as u32, seed >> 40 & 0x1f);
            if seed >> 35 & 1 == 1 || model.len() == 64 {
                table.remove(id);
                model.remove(&id);
            } else {
                table.insert(id, Span::EMPTY);
                model.insert(id, round);
            }
            assert_eq!(
                (table.len(), table.get(id).is_some()),
                (model.len(), model.contains_key(&id))
            );
            assert!(table.entries.len() <= 64);
        }
    }
}
