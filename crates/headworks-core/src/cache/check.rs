//! Checks of what must hold between any two batches, for tests: the owners agree with each other, and nothing is lost or counted
//! twice.
//!
//! Conservation: frames in folios + free frames + granted frames + shadows == the pool; the blocks in each state are what the
//! folios, the volumes and the throttle have counted; a waiting operation is on exactly one list.

use super::Cache;
use super::pool::folio::{EvictionList, Folio, block};
use super::waiters::operation::WaitFor;
use crate::dirty_entry::DirtyEntry;
use crate::slab::NIL;

/// The blocks and folios of a volume, counted anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counted {
    unclean: u32,
    held: u32,
    folios: u32,
}

impl Cache {
    /// Describes what every operation waits for, for the report of a hang.
    #[must_use]
    pub fn describe_waits(&self) -> String {
        let described = self.state.waiters.iter().map(|(slot, op)| {
            let (bio, done) = (&op.bio, op.done);
            format!(
                "[{slot}: {:?} of {:?} {}+{} at {done}, {} write-outs pending, waits for {:?}]",
                op.step, bio.op, bio.offset, bio.len, op.pending, op.waits_for
            )
        });
        described.collect::<Vec<_>>().join(" ")
    }

    /// Checks every table.
    ///
    /// # Panics
    /// If anything does not hold.
    pub fn check(&self) {
        let state = &self.state;
        let (pool, volumes) = (&state.pool, &state.volumes);
        let mut counted = vec![Counted::default(); volumes.len()];
        let devices = volumes.devices();
        let mut dirty = vec![0_u64; devices];
        let mut writeback = vec![0_u64; devices];
        let mut filling = vec![0_u64; devices];
        let (mut resident, mut shadowed, mut parked) = (0, 0, 0);
        let mut regions = Vec::new();
        for unit in (0..pool.units()).filter(|&unit| pool.folio(unit).is(Folio::PRESENT)) {
            let folio = pool.folio(unit);
            self.check_folio(unit);
            resident += folio.blocks();
            parked += self.count_waiters(unit);
            let volume = folio.key.volume();
            let states = pool.states(unit, folio.blocks());
            let count =
                |bits: u8| states.iter().filter(|&state| state & bits == bits).count() as u32;
            let unclean = u32::from(folio.dirty) + u32::from(folio.writeback);
            let entry = &mut counted[usize::from(volume.0)];
            entry.folios += 1;
            entry.unclean += unclean;
            regions.push((folio.key, unclean));
            entry.held += count(block::FAILED);
            shadowed += count(block::SHADOW);
            let device = volumes.device_index(volume);
            dirty[device] += u64::from(folio.dirty);
            writeback[device] += u64::from(folio.writeback);
            filling[device] += u64::from(folio.filling);
        }
        for volume in volumes.ids() {
            let entry = &volumes[volume];
            let (unclean, held) = (entry.unclean(), entry.held());
            let expected = Counted { unclean, held, folios: pool.folios_of(volume) };
            assert_eq!(expected, counted[usize::from(volume.0)], "{volume:?}");
        }
        let regions_match = state.dirty.regions_match(pool.room(), regions.into_iter());
        assert!(regions_match, "the regions count every dirty block");
        assert_eq!(shadowed, pool.shadow_frames().0, "every shadow belongs to a block");
        self.check_operations(resident, parked);
        state.waiters.check_without_buffer();
        self.check_flushers();
        for account in 0..state.waiters.bio_accounts() {
            let waits = state.waiters.waits_for_bio(account);
            assert!(!waits || !state.io.may_send(account), "account {account} has a bio");
        }
        let stats = state.dirty.throttle().stats();
        assert_eq!(stats.nr_dirty, dirty.iter().sum::<u64>());
        assert_eq!(stats.nr_writeback, writeback.iter().sum::<u64>());
        for device in 0..devices {
            let fills = u64::from(state.io.filling(device));
            let matches = fills == filling[device] || state.defects.any();
            assert!(matches, "{fills} blocks of device {device}, not {}", filling[device]);
            let sums = state.dirty.payers().sums(device);
            assert_eq!(sums, (dirty[device], writeback[device]), "payers of device {device}");
            let in_flight = u64::from(state.dirty.in_flight(device));
            assert_eq!(in_flight, writeback[device], "device {device}");
            let of_device = volumes.ids().filter(|&volume| volumes.is_on(volume, device));
            let held = of_device.map(|volume| volumes[volume].held()).sum::<u32>();
            assert_eq!(state.dirty.held(device), held, "device {device}");
        }
    }

    /// Checks that a paused writer implies a running flusher: nothing else lowers what it is paused for.
    ///
    /// # Panics
    /// If a writer waits for a device whose flusher may write and has nothing under way.
    pub fn check_flushers(&self) {
        let state = &self.state;
        for (_, op) in state.waiters.iter() {
            let device = state.volumes.device_index(op.bio.id.volume);
            let dirty = &state.dirty;
            // Held blocks wait for their device, a frozen cache for its end.
            let may_run = !state.is_frozen() && !dirty.is_silent(device) && dirty.held(device) == 0;
            let waits = matches!(op.waits_for, WaitFor::Pause | WaitFor::Credit(_));
            if waits && may_run && dirty.over_background(device) {
                let runs = dirty.in_flight(device) > 0 || !state.io.may_write_out(device);
                assert!(runs, "device {device} writes nothing for {op:?}");
            }
        }
    }

    /// Checks a dirty table that follows [`crate::Action::SetDirty`], one entry for each frame.
    ///
    /// # Panics
    /// If a block that is dirty or under write-out is not entered, or any other is.
    pub fn check_dirty_table(&self, table: &[DirtyEntry]) {
        let pool = &self.state.pool;
        let mut expected = vec![DirtyEntry::CLEAN; table.len()];
        for unit in (0..pool.units()).filter(|&unit| pool.folio(unit).is(Folio::PRESENT)) {
            let folio = pool.folio(unit);
            let states = pool.states(unit, folio.blocks());
            for ((frame, state), at) in (unit..).zip(states).zip(folio.key.block()..) {
                let volume = folio.key.volume();
                if state & (block::DIRTY | block::WRITEBACK) != 0 {
                    expected[frame as usize] = DirtyEntry::new(volume, at);
                }
                if state & block::SHADOW != 0 {
                    let shadow = pool.shadow_of(frame) as usize;
                    expected[shadow] = DirtyEntry::of_shadow(volume, at);
                }
            }
        }
        for (frame, (entry, expected)) in table.iter().zip(&expected).enumerate() {
            assert_eq!(entry, expected, "the entry of frame {frame}");
        }
    }

    /// Checks the invariants of one folio.
    fn check_folio(&self, unit: u32) {
        let pool = &self.state.pool;
        let folio = pool.folio(unit);
        let states = pool.states(unit, folio.blocks());
        let count = |bit: u8| states.iter().filter(|&state| state & bit != 0).count() as u16;
        let counts = (count(block::DIRTY), count(block::WRITEBACK), count(block::FILLING));
        assert_eq!(counts, (folio.dirty, folio.writeback, folio.filling), "{folio:?}");
        let held = states.iter().any(|state| state & block::FAILED != 0);
        let found = self.state.dirty.next_held(unit) == Some(unit);
        assert!(!held || found, "a search finds held blocks: {folio:?}");
        assert!(folio.late <= folio.writeback + folio.filling, "late is outstanding: {folio:?}");
        let (volume, first) = (folio.key.volume(), folio.key.block());
        assert_eq!(pool.find(volume, first), Some(unit), "{folio:?}");
        assert!(folio.eviction.list() != EvictionList::None, "a folio is on an eviction list");
        let mut to_write = false;
        for &state in states {
            let has = |bit: u8| state & bit != 0;
            assert!(!has(block::DIRTY) || has(block::UPTODATE), "dirty is valid: {state}");
            let other = block::FILLING | block::USED | block::VOID;
            assert!(!has(block::FILLING) || state & !other == 0, "{state}");
            assert!(!has(block::SHADOW) || has(block::DIRTY) && has(block::WRITEBACK), "{state}");
            assert!(!has(block::FAILED) || has(block::DIRTY) && !has(block::WRITEBACK), "{state}");
            assert!(!has(block::NEWER) || has(block::DIRTY) || has(block::FILLING), "{state}");
            to_write |= has(block::DIRTY) && !has(block::FAILED);
        }
        assert_eq!(to_write, folio.group != NIL, "a folio is in a group while it is to be written");
    }

    /// Counts the waiters of a folio, and checks that they wait for it.
    fn count_waiters(&self, unit: u32) -> u32 {
        let (mut count, mut at) = (0, self.state.pool.folio(unit).waiters);
        while at != NIL {
            let op = self.state.waiters.op(at);
            assert_eq!(op.waits_for, WaitFor::Folio(unit));
            count += 1;
            at = op.next;
        }
        count
    }

    /// Checks what the operations hold, and that each waiter for a folio is on its list.
    fn check_operations(&self, resident: u32, parked: u32) {
        let state = &self.state;
        let (mut granted, mut credit, mut waiting) = (0, 0, 0);
        let payers = state.dirty.payers();
        let mut reserved = vec![0; payers.exports()];
        for (slot, op) in state.waiters.iter() {
            granted += if op.frame.0 == NIL { 0 } else { 1 << op.frame.1 };
            credit += u64::from(op.reserved.credit);
            assert!(op.reserved.paid >= op.reserved.credit, "a payer pays for all credit: {op:?}");
            let payer = usize::from(op.reserved.payer.0).min(payers.exports() - 1);
            reserved[payer] += u64::from(op.reserved.paid);
            if let WaitFor::Cap(account, blocks) = op.waits_for {
                let first = state.waiters.first_for_cap(account);
                assert!(first.is_some(), "an operation is on the list of its account");
                let blocks = payers.at_once(op.reserved.payer, blocks);
                let waits = first != Some((slot, blocks))
                    || payers.full(op.reserved.payer, blocks).is_some();
                assert!(waits, "the account has room for its first waiter: {op:?}");
            }
            waiting += u32::from(matches!(op.waits_for, WaitFor::Folio(_)));
            let waits_for_own = op.waits_for == WaitFor::Writeouts;
            assert!(!waits_for_own || op.pending > 0, "nothing ends its wait: {op:?}");
            assert!(op.waits_for != WaitFor::Nothing, "nothing steps it: {op:?}");
        }
        payers.check(&reserved);
        assert_eq!(waiting, parked, "a waiter for a folio is on its list");
        let stats = state.dirty.throttle().stats();
        assert_eq!(credit, stats.reserved);
        let used = resident + granted + state.pool.shadow_frames().1;
        let pool = used + state.pool.free() + state.pool.withheld();
        assert_eq!(pool, state.pool.units(), "no frame is lost");
        let used = stats.nr_dirty + stats.nr_writeback + stats.reserved;
        // Beside a device that held more when the limit was lowered, others have their floors.
        let devices = state.dirty.throttle().devices() as u64;
        let floors = if devices > 1 { devices.max(stats.nr_dirty_threshold / 8) } else { 0 };
        // Under a limit of frames that was lowered there is what was dirty or reserved before.
        let lowered = state.pool.limit() < state.pool.room();
        let before = if lowered { state.pool.room().into() } else { 0 };
        let most = (stats.nr_dirty_threshold + floors).max(before);
        assert!(used <= most, "{used} blocks are more than the limit");
        assert!(!state.waiters.has_ready(), "an operation that can continue has continued");
    }
}
