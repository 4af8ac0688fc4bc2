//! What must hold between any two batches, for tests: the tables agree with each other, and nothing is lost or counted twice.
//!
//! Conservation: frames in folios, free ones, granted ones and shadows are the pool; blocks in states are what the folios, the
//! volumes and the throttle have counted; who is parked is found by exactly one list.

use crate::cache::Cache;
use crate::cache::dirty::dirty_regions::DirtyRegions;
use crate::cache::pool::folio::{EvictionList, Folio, block};
use crate::cache::waiters::operation::WaitFor;
use crate::slab::NIL;

/// What was counted of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counted {
    unclean: u32,
    held: u32,
    folios: u32,
}

impl Cache {
    /// What every operation waits for, for whoever reads of a hang.
    #[must_use]
    pub fn told_waits(&self) -> String {
        let taken = (0..self.ops.capacity()).filter(|&slot| self.ops.is_taken(slot));
        let told = taken.map(|slot| {
            let op = &self.ops[slot];
            let (bio, done) = (&op.bio, op.done);
            format!(
                "[{slot}: {:?} of {:?} {}+{} at {done}, {} on their way, waits for {:?}]",
                op.step, bio.op, bio.offset, bio.len, op.pending, op.waits_for
            )
        });
        told.collect::<Vec<_>>().join(" ")
    }

    /// Checks every table.
    ///
    /// # Panics
    /// If anything does not hold.
    pub fn check(&self) {
        let mut counted = vec![Counted::default(); self.volumes.len()];
        let mut newer = DirtyRegions::new(self.folios.units());
        let mut dirty = vec![0_u64; self.flushers.len()];
        let mut writeback = vec![0_u64; self.flushers.len()];
        let mut filling = vec![0_u64; self.flushers.len()];
        let (mut resident, mut shadowed, mut parked) = (0, 0, 0);
        for unit in (0..self.folios.units()).filter(|&unit| self.folios[unit].is(Folio::PRESENT)) {
            let folio = &self.folios[unit];
            self.check_folio(unit);
            resident += folio.blocks();
            parked += self.waiters(unit);
            let volume = &self.volumes[usize::from(folio.key.volume().0)];
            let states = self.folios.states(unit, folio.blocks());
            let count =
                |bits: u8| states.iter().filter(|&state| state & bits == bits).count() as u32;
            let entry = &mut counted[usize::from(folio.key.volume().0)];
            entry.folios += 1;
            entry.unclean += u32::from(folio.dirty) + u32::from(folio.writeback);
            newer.add(folio.key, u32::from(folio.dirty) + u32::from(folio.writeback));
            entry.held += count(block::FAILED);
            shadowed += count(block::SHADOW);
            dirty[usize::from(volume.device.0)] += u64::from(folio.dirty);
            writeback[usize::from(volume.device.0)] += u64::from(folio.writeback);
            filling[usize::from(volume.device.0)] += u64::from(folio.filling);
        }
        let volume_of = |volume: &crate::cache::volumes::volume::CachedVolume| Counted {
            unclean: volume.unclean,
            held: volume.held,
            folios: volume.folios,
        };
        assert_eq!(self.volumes.iter().map(volume_of).collect::<Vec<_>>(), counted);
        assert!(
            newer.counts() == self.dirty_regions.counts(),
            "what is newer is counted where it lies"
        );
        assert_eq!(shadowed, self.shadows.used(), "every shadow is some block's");
        self.check_operations(resident, parked);
        for (account, line) in self.lines.bios.iter().enumerate() {
            assert!(line.head().is_none() || !self.may_send(account), "there is a bio: {account}");
        }
        let stats = self.throttle.stats();
        assert_eq!(stats.nr_dirty, dirty.iter().sum::<u64>());
        assert_eq!(stats.nr_writeback, writeback.iter().sum::<u64>());
        for (device, flusher) in self.flushers.iter().enumerate() {
            let fills = u64::from(self.filling.used(device));
            let counts = fills == filling[device] || self.defects.any();
            assert!(counts, "{fills} blocks of device {device}, not {}", filling[device]);
            assert_eq!(u64::from(flusher.in_flight()), writeback[device], "device {device}");
            let of_device = |v: &&crate::cache::volumes::volume::CachedVolume| {
                usize::from(v.device.0) == device
            };
            let held = self.volumes.iter().filter(of_device).map(|v| v.held).sum::<u32>();
            assert_eq!(flusher.held(), held, "device {device}");
        }
    }

    /// The invariants of one folio.
    fn check_folio(&self, unit: u32) {
        let folio = &self.folios[unit];
        let states = self.folios.states(unit, folio.blocks());
        let count = |bit: u8| states.iter().filter(|&state| state & bit != 0).count() as u16;
        let counts = (count(block::DIRTY), count(block::WRITEBACK), count(block::FILLING));
        assert_eq!(counts, (folio.dirty, folio.writeback, folio.filling), "{folio:?}");
        let held = states.iter().any(|state| state & block::FAILED != 0);
        assert!(!held || self.held.next(unit) == Some(unit), "what is held is found: {folio:?}");
        assert!(
            folio.late <= folio.writeback + folio.filling,
            "who is late is on its way: {folio:?}"
        );
        let (volume, first) = (folio.key.volume(), folio.key.block());
        assert_eq!(self.index.find(&self.folios, volume, first), Some(unit), "{folio:?}");
        assert!(folio.list != EvictionList::None, "a folio waits for its eviction");
        let mut to_write = false;
        for &state in states {
            let has = |bit: u8| state & bit != 0;
            assert!(!has(block::DIRTY) || has(block::UPTODATE), "what is dirty is there: {state}");
            let other = block::FILLING | block::USED | block::VOID;
            assert!(!has(block::FILLING) || state & !other == 0, "{state}");
            assert!(!has(block::SHADOW) || has(block::DIRTY) && has(block::WRITEBACK), "{state}");
            assert!(!has(block::FAILED) || has(block::DIRTY) && !has(block::WRITEBACK), "{state}");
            assert!(!has(block::NEWER) || has(block::DIRTY) || has(block::FILLING), "{state}");
            to_write |= has(block::DIRTY) && !has(block::FAILED);
        }
        assert_eq!(to_write, folio.group != NIL, "it is in a list while it is to be written");
    }

    fn waiters(&self, unit: u32) -> u32 {
        let (mut count, mut at) = (0, self.folios[unit].waiters);
        while at != NIL {
            assert_eq!(self.ops[at].waits_for, WaitFor::Folio(unit));
            count += 1;
            at = self.ops[at].next;
        }
        count
    }

    /// Operations: what they hold, and that whoever waits for a folio is in its list.
    fn check_operations(&self, resident: u32, parked: u32) {
        let taken = (0..self.ops.capacity()).filter(|&slot| self.ops.is_taken(slot));
        let (mut granted, mut credit, mut waiting) = (0, 0, 0);
        for slot in taken {
            let op = &self.ops[slot];
            granted += if op.frame.0 == NIL { 0 } else { 1 << op.frame.1 };
            credit += u64::from(op.credit);
            waiting += u32::from(matches!(op.waits_for, WaitFor::Folio(_)));
            assert!(op.waits_for != WaitFor::Own || op.pending > 0, "it waits for nothing: {op:?}");
            assert!(op.waits_for != WaitFor::Nothing, "nobody steps it: {op:?}");
        }
        assert_eq!(waiting, parked, "whoever waits for a folio is in its list");
        assert_eq!(credit, self.throttle.stats().reserved);
        let pool = resident + granted + self.frames.free() + self.shadows.units();
        assert_eq!(pool, self.folios.units(), "no frame is lost");
        let stats = self.throttle.stats();
        let used = stats.nr_dirty + stats.nr_writeback + stats.reserved;
        assert!(used <= stats.nr_dirty_threshold, "{used} blocks are more than the limit");
        assert!(self.lines.ready.head().is_none(), "whoever can go on has gone on");
    }
}
