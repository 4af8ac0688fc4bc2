//! The shares beside a naive model, and the bounds that follow from them.

use headworks_core::prng::Prng;

use super::*;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const POOL: usize = 128 * MIB;

/// The shares of a pool of 128 MiB, with a connection for each slot of which the export is given; the device is that of the export.
struct Bench {
    memory: Memory,
    exports: Vec<u16>,
    /// By slot: what it holds. The pool.
    held: Vec<usize>,
}

impl Bench {
    fn new(weights: &[u16], exports: &[u16]) -> Self {
        let mut memory = Memory::new(POOL, 1024);
        for (export, &weight) in (0..).map(ExportId).zip(weights) {
            memory.set_weight(export, weight);
        }
        let held = vec![0; exports.len()];
        let mut bench = Self { memory, exports: exports.to_vec(), held };
        (0..exports.len() as u32).for_each(|slot| bench.set(slot, 0));
        bench
    }

    /// The same with a device for each export.
    fn with_devices(weights: &[u16], exports: &[u16]) -> Self {
        let mut bench = Self::new(weights, exports);
        bench.memory.set_devices((0..weights.len() as u16).map(DeviceId));
        bench
    }

    fn taken(&self) -> usize {
        self.held.iter().sum()
    }

    fn set(&mut self, slot: u32, bytes: usize) {
        self.held[slot as usize] = bytes;
        let export = self.exports[slot as usize];
        let owner = Some((ExportId(export), DeviceId(export)));
        let held = Held { bytes, request_bytes: bytes, requests: bytes.div_ceil(MIB) };
        self.memory.note(slot, owner, held, self.memory.clients[slot as usize].stalled);
    }

    fn may_take(&self, slot: u32, block: usize) -> bool {
        let held = self.held[slot as usize];
        self.memory.share(slot).may_take(held, block, self.taken(), false)
    }

    fn take(&mut self, slot: u32, block: usize) -> bool {
        let takes = self.may_take(slot, block);
        if takes {
            self.set(slot, self.held[slot as usize] + block);
        }
        takes
    }

    /// Each connection in turn takes blocks until none gets one.
    fn fill(&mut self, slots: std::ops::Range<u32>, block: usize) {
        while slots.clone().map(|slot| self.take(slot, block)).filter(|&takes| takes).count() > 0 {}
    }

    /// Blocks come back in random order while each connection takes what it may.
    fn churn(&mut self) {
        let (mut prng, slots) = (Prng::new(2), self.held.len() as u64);
        for _ in 0..40_000 {
            let mut at = prng.below(self.taken() as u64 + 1) as usize;
            if let Some(slot) = self.held.iter().position(|&held| {
                let found = at < held;
                at = at.saturating_sub(held);
                found
            }) {
                self.set(slot as u32, self.held[slot].saturating_sub(64 * KIB));
            }
            (0..2).for_each(|_| {
                self.take(prng.below(slots) as u32, 64 * KIB);
            });
        }
    }

    fn mib_by(&self, export: u16) -> usize {
        self.memory.held_by(ExportId(export)) / MIB
    }

    /// Wakes waiters of a pool with all blocks; the slots.
    fn wake(&mut self, room: u32) -> Vec<u32> {
        let (mut woken, supply) = (Vec::new(), Supply { taken: self.taken(), room });
        self.memory.wake(supply, |_| true, |slot| woken.push(slot));
        woken
    }

    fn wait(&mut self, slot: u32, bytes: usize) {
        self.memory.wait(slot, Wanted::Block { bytes, reads: false });
    }
}

#[test]
fn export_that_takes_all_it_can_leaves_half() {
    let mut bench = Bench::new(&[100, 100, 100], &[0, 0, 1, 2]);
    bench.fill(0..2, MIB);
    assert!((44..=56).contains(&bench.mib_by(0)), "{} of 112 MiB", bench.mib_by(0));
    assert!(bench.may_take(2, 32 * MIB), "the largest request of another export");
    bench.fill(2..3, MIB);
    assert!(bench.may_take(3, 8 * MIB), "{} and {} MiB", bench.mib_by(0), bench.mib_by(1));
}

#[test]
fn exports_share_by_weight() {
    let mut bench = Bench::new(&[100, 200, 400], &[0, 0, 1, 1, 2, 2]);
    bench.churn();
    let held = [0, 1, 2].map(|export| bench.mib_by(export));
    assert!(held[0] >= 9 && held[1].abs_diff(2 * held[0]) <= 4, "{held:?}");
    assert!(held[2].abs_diff(4 * held[0]) <= 8, "{held:?}");
    assert!(
        bench.held.chunks(2).all(|pair| pair[0].abs_diff(pair[1]) <= 2 * MIB),
        "{:?}",
        bench.held
    );
}

#[test]
fn exports_of_a_tenant_share_what_their_tenant_has() {
    let mut bench = Bench::new(&[100; 5], &[0, 1, 2, 3, 4]);
    (0..4).for_each(|export| bench.memory.set_tenant(ExportId(export), TenantId(0)));
    bench.churn();
    let held = |bench: &Bench| (0..5).map(|export| bench.mib_by(export)).collect::<Vec<_>>();
    let before = held(&bench);
    let tenant: usize = before[..4].iter().sum();
    assert!(tenant.abs_diff(before[4]) <= 12, "one tenant beside one export: {before:?}");
    assert!(before[..4].iter().all(|part| part.abs_diff(before[0]) <= 2), "{before:?}");
    bench.memory.set_tenant_weight(TenantId(0), 300);
    bench.churn();
    assert!(held(&bench)[..4].iter().sum::<usize>() > tenant + 8, "{before:?} {:?}", held(&bench));
}

#[test]
fn device_that_keeps_everything_leaves_half_to_others() {
    let mut bench = Bench::with_devices(&[100; 8], &[0, 1, 2, 3, 4, 5, 6, 7]);
    // Seven exports of one device.
    for slot in 0..7 {
        let owner = Some((ExportId(slot as u16), DeviceId(0)));
        bench.memory.note(slot, owner, Held::default(), false);
    }
    let mut grown = true;
    while std::mem::take(&mut grown) {
        for slot in 0..7_u32 {
            if bench.may_take(slot, MIB) {
                grown = true;
                bench.held[slot as usize] += MIB;
                let bytes = bench.held[slot as usize];
                let owner = Some((ExportId(slot as u16), DeviceId(0)));
                let held = Held { bytes, request_bytes: bytes, requests: bytes / MIB };
                bench.memory.note(slot, owner, held, false);
            }
        }
    }
    assert!((48..=56).contains(&(bench.taken() / MIB)), "{:?}", bench.held);
    assert!(bench.may_take(7, 32 * MIB));
    // Bio slots by the same rule: half of what is left.
    let held = bench.taken() / MIB;
    let room = |bench: &Bench, device| bench.memory.slots(Some(DeviceId(device)), 1000);
    assert_eq!((room(&bench, 0), room(&bench, 7)), ((1000 - held as u32).div_ceil(2), 500));
    bench.memory.set_devices([DeviceId(0); 2].into_iter());
    assert_eq!(room(&bench, 0), 1000, "a single device has no bound");
}

#[test]
fn stalled_reads_fill_at_most_a_quarter() {
    let mut bench = Bench::new(&[100], &[0, 0]);
    let stalled = |bench: &Bench, slot: u32| {
        bench.memory.share(slot).may_take(bench.held[slot as usize], MIB, bench.taken(), true)
    };
    while stalled(&bench, 0) {
        bench.set(0, bench.held[0] + MIB);
    }
    assert_eq!(bench.taken(), POOL / 4);
    assert!(bench.may_take(1, MIB) && bench.memory.share(1).may_take(0, 8 * KIB, POOL, true));
}

/// The rule as the specification has it, for exports without tenants, from the connections alone.
fn naive(bench: &Bench, weights: &[u16], slot: usize, block: usize) -> bool {
    let export = bench.exports[slot];
    let of = |other: u16| (0..bench.held.len()).filter(move |&slot| bench.exports[slot] == other);
    let held = |other: u16| of(other).map(|slot| bench.held[slot]).sum::<usize>();
    let holding: Vec<u16> =
        (0..weights.len() as u16).filter(|&other| other == export || held(other) > 0).collect();
    let sum: u64 = holding.iter().map(|&other| u64::from(weights[usize::from(other)])).sum();
    let factor = u64::from(weights[usize::from(export)]) * holding.len() as u64 * 1024 / sum;
    let free = POOL / 8 * 7 - bench.taken().min(POOL / 8 * 7);
    let threshold = free * factor.clamp(256, 2048) as usize / 1024;
    let room = 2 * threshold.saturating_sub(held(export));
    let shared = held(export) + block <= threshold && bench.held[slot] + block <= room;
    let little = held(export) <= threshold / 8;
    bench.held[slot] + block <= 8 * KIB || block <= free && (shared || little)
}

/// Random takes and returns: each answer is that of the naive model, the pool is never overdrawn, and a connection that holds nothing
/// gets a block that fits into its export's threshold.
#[test]
fn shares_are_those_of_a_naive_model() {
    let mut prng = Prng::new(3);
    for round in 0..16 {
        let weights: Vec<u16> =
            (0..6).map(|_| [1, 50, 100, 100, 400, 1000][prng.below(6) as usize]).collect();
        let exports: Vec<u16> = (0..40).map(|_| prng.below(6) as u16).collect();
        let mut bench = Bench::new(&weights, &exports);
        for step in 0..2000 {
            let slot = prng.below(40) as u32;
            if prng.below(5) == 0 {
                let kept = bench.held[slot as usize] / (4 * KIB) * prng.below(3) as usize / 2;
                bench.set(slot, kept * 4 * KIB);
                continue;
            }
            let block = (4 * KIB) << prng.below(14);
            let expected = naive(&bench, &weights, slot as usize, block);
            assert_eq!(bench.may_take(slot, block), expected, "round {round}, step {step}");
            // The pool says no beyond its size: that many connections are not there.
            if bench.taken() + block <= POOL {
                bench.take(slot, block);
            }
            let sums: usize = (0..6).map(|export| bench.memory.held_by(ExportId(export))).sum();
            assert!(sums == bench.taken() && sums <= POOL, "round {round}, step {step}");
        }
    }
}

/// A share accounts for what its connection took since it was noted.
#[test]
fn takes_within_a_turn_count() {
    let mut bench = Bench::with_devices(&[100, 100], &[0, 1]);
    let (mut noted, mut within) = (0, 0);
    while bench.take(0, MIB) {
        noted += 1;
    }
    bench.set(0, 0);
    while bench.memory.share(0).may_take(within * MIB, MIB, within * MIB, false) {
        within += 1;
    }
    assert!(noted == within && noted > 40, "{noted} and {within}");
}

/// Random connections take what they may and return nothing until none may; then a connection that holds nothing takes 4 KiB.
#[test]
fn connection_that_holds_nothing_always_gets_a_buffer() {
    let mut prng = Prng::new(7);
    for round in 0..30 {
        let connections = [1024, 1000, 300, 40][round % 4];
        let pool = 64 * MIB;
        let mut memory = Memory::new(pool, connections);
        let limits = memory.limits();
        let (mut held, mut chunks) = (vec![0; connections], vec![0; connections]);
        let (mut taken, mut failures) = (0, 0);
        while failures < 4 * connections {
            let slot = prng.below(connections as u64 - 1) as usize;
            let block = (4 * KIB) << prng.below(14);
            if memory.share(slot as u32).may_take(held[slot], block, taken, false) {
                (held[slot], taken, failures) = (held[slot] + block, taken + block, 0);
                let owner = Some((ExportId(slot as u16 % 7), DeviceId(0)));
                let holds = Held { bytes: held[slot], request_bytes: held[slot], requests: 1 };
                memory.note(slot as u32, owner, holds, false);
            } else if chunks[slot] == 0 && prng.below(2) == 0 {
                chunks[slot] = limits.chunk(taken);
                (taken, failures) = (taken + chunks[slot], 0);
            } else {
                failures += 1;
            }
            assert!(taken <= pool, "round {round}");
        }
        assert!(taken + 4 * KIB <= pool, "round {round}: {taken} bytes are taken");
    }
}

#[test]
fn waiters_are_woken_by_rank_and_no_more_than_can_be_given() {
    let mut bench = Bench::new(&[100, 100], &[0, 0, 0, 1]);
    bench.fill(0..3, MIB);
    (0..4).for_each(|slot| bench.wait(slot, MIB));
    assert_eq!(bench.wake(10), [3], "the export without anything; the other one has its share");
    bench.memory.leave(3);
    bench.set(0, bench.held[0] - 2 * MIB);
    assert_eq!((bench.wake(10), bench.wake(10)), (vec![0, 1], vec![]), "2 MiB, least held first");
    assert!(bench.take(0, MIB) && bench.take(1, MIB) && !bench.may_take(2, MIB));
    // One bio slot is for one waiter.
    let mut bench = Bench::new(&[100], &[0, 0]);
    bench.memory.wait(0, Wanted::Slot);
    bench.memory.wait(1, Wanted::Slot);
    assert_eq!((bench.wake(0), bench.wake(1)), (vec![], vec![0]));
    bench.memory.leave(0);
    assert_eq!(bench.wake(1), [1]);
}

#[test]
fn waiter_keeps_its_place_until_it_leaves() {
    let mut bench = Bench::new(&[100], &[0, 0]);
    assert!(bench.memory.wait(1, Wanted::Slot) && bench.memory.wait(0, Wanted::Slot));
    assert_eq!(bench.wake(1), [1]);
    assert!(!bench.memory.wait(1, Wanted::Slot) && bench.memory.is_waiting(1));
    assert_eq!((bench.wake(1), bench.memory.waiting()), (vec![1], 2));
    bench.memory.clear_waiters();
    assert_eq!((bench.wake(9), bench.memory.is_waiting(0)), (vec![], false));
}

/// A large block is given in the end though small ones always fit: it counts as taken for all others.
#[test]
fn first_waiter_gets_a_large_block_beside_small_ones() {
    for weights in [[100, 100, 100], [1, 100, 1000]] {
        let exports: Vec<u16> = [0].into_iter().chain((0..30).map(|slot| slot % 2 + 1)).collect();
        let mut bench = Bench::new(&weights, &exports);
        bench.fill(1..31, MIB);
        bench.wait(0, 32 * MIB);
        let mut prng = Prng::new(1);
        for step in 0.. {
            if bench.wake(100).contains(&0) {
                break;
            }
            assert_eq!(
                bench.memory.first(),
                Some((0, Wanted::Block { bytes: 32 * MIB, reads: false }))
            );
            assert!(step < 1000, "{:?}", bench.held);
            // A block comes back, and the others take what they may.
            let slot = 1 + prng.below(30) as u32;
            bench.set(slot, bench.held[slot as usize].saturating_sub(MIB));
            bench.fill(1..31, MIB);
        }
    }
}

/// The block of a first waiter whose export holds much is kept from no export that holds little; together those leave it room.
#[test]
fn first_waiter_of_an_export_that_holds_much_delays_no_export_that_holds_little() {
    let mut bench = Bench::new(&[100; 4], &[0, 0, 1, 2, 3, 3]);
    bench.set(0, 40 * MIB);
    bench.set(2, 40 * MIB);
    bench.wait(1, 32 * MIB);
    assert_eq!(bench.wake(9), [], "80 of 112 MiB are taken");
    assert_eq!(bench.memory.first().map(|(slot, _)| slot), Some(1));
    assert!(!bench.may_take(2, MIB), "it holds as much");
    assert!(bench.may_take(3, 2 * MIB) && bench.may_take(4, 16 * MIB));
    assert!(!bench.may_take(4, 32 * MIB), "more than a part of half of the pool");
    bench.wait(3, 2 * MIB);
    assert_eq!(bench.wake(9), [3]);
    bench.fill(3..6, MIB);
    let others = bench.held[3..].iter().sum::<usize>() / MIB;
    assert!((8..=28).contains(&others), "{others} MiB of two exports, a quarter of the half each");
    bench.set(2, 0);
    bench.set(0, 0);
    assert_eq!(bench.wake(9), [1]);
}

#[test]
fn stalled_waiter_goes_behind_others_and_a_full_device_is_never_first() {
    let mut bench = Bench::with_devices(&[100, 100], &[0, 0, 1, 1]);
    bench.memory.set_stalled(0, true);
    let reads = |bench: &mut Bench, slot| {
        bench.memory.wait(slot, Wanted::Block { bytes: 100 * MIB, reads: true });
    };
    (0..2).for_each(|slot| reads(&mut bench, slot));
    bench.fill(2..3, MIB);
    assert_eq!(bench.wake(9), [], "100 MiB are not free");
    assert_eq!(bench.memory.first().map(|(slot, _)| slot), Some(1));
    bench.memory.set_stalled(1, true);
    reads(&mut bench, 3);
    assert_eq!(bench.wake(9), []);
    assert_eq!(bench.memory.first(), None, "two clients take nothing, and a device is full");
    bench.memory.set_stalled(0, false);
    assert_eq!(bench.wake(9), []);
    assert_eq!(bench.memory.first().map(|(slot, _)| slot), Some(0));
}

#[test]
fn largest_holder_for_its_weight_gives_way_first() {
    let mut bench = Bench::new(&[100, 400, 100], &[0, 0, 1, 1, 2]);
    for (slot, held) in [(0, 3), (1, 4), (2, 10), (3, 9), (4, 1)] {
        bench.set(slot, held * MIB);
    }
    let largest = |slots: &[u32]| bench.memory.largest_holder(slots, 4);
    assert_eq!(
        (largest(&[0, 1, 2, 3]), largest(&[0, 2, 3])),
        (Some(1), Some(0)),
        "7 for 100, 19 for 400"
    );
    assert_eq!((largest(&[2, 3]), largest(&[])), (Some(2), None));
    assert_eq!(bench.memory.largest_holder(&[2, 4], 0), None, "the waiter's export has more");
    assert_eq!(bench.memory.largest_holder(&[1, 4], 0), Some(1), "its own export");
}

#[test]
fn closed_connection_counts_until_its_buffers_return() {
    let mut bench = Bench::new(&[100], &[0, 0]);
    bench.set(0, 3 * MIB);
    let held = Held { bytes: MIB, ..Held::default() };
    bench.memory.note(0, None, held, false);
    assert_eq!(bench.mib_by(0), 1, "it does not know its export any more");
    bench.memory.forget(0);
    assert_eq!(bench.mib_by(0), 0);
    // The slot's next client uses another export.
    bench.exports[0] = 5;
    bench.set(0, MIB);
    assert_eq!((bench.mib_by(0), bench.mib_by(5)), (0, 1));
}

/// After a wake no waiter is left that would be given its block, whatever happened before.
#[test]
fn no_wake_up_is_lost() {
    let mut prng = Prng::new(5);
    for round in 0..30 {
        let exports: Vec<u16> = (0..24).map(|_| prng.below(4) as u16).collect();
        let mut bench = Bench::with_devices(&[100, 100, 300, 10], &exports);
        let mut room = 8;
        for step in 0..400 {
            let slot = prng.below(24) as u32;
            match prng.below(8) {
                0 => bench.set(slot, bench.held[slot as usize] / 2),
                1 => bench.memory.set_weight(ExportId(slot as u16 % 4), 1 + prng.below(999) as u16),
                2 => bench
                    .memory
                    .set_tenant(ExportId(slot as u16 % 4), TenantId(prng.below(2) as u16)),
                3 => room = prng.below(12) as u32,
                4 => bench.memory.set_stalled(slot, prng.below(2) == 0),
                _ if bench.memory.is_waiting(slot) => bench.memory.leave(slot),
                _ => {
                    let block = (4 * KIB) << prng.below(13);
                    if !bench.take(slot, block) {
                        let reads = prng.below(2) == 0;
                        bench.memory.wait(slot, Wanted::Block { bytes: block, reads });
                    }
                }
            }
            let supply = Supply { taken: bench.taken(), room };
            let mut woken = bench.wake(room);
            // One may have been promised what the next one would be given.
            for &slot in &woken {
                bench.memory.leave(slot);
            }
            while !woken.is_empty() {
                woken = bench.wake(room);
                woken.iter().for_each(|&slot| bench.memory.leave(slot));
            }
            let left = bench.memory.waiters.list.len();
            let given = (0..left).find(|&index| bench.memory.would_get(index, supply));
            assert_eq!(given, None, "round {round}, step {step}");
        }
    }
}
