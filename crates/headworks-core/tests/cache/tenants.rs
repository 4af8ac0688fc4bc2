//! Tenants' parts of the cache: caps of dirty data, the payer of each block, and whose folios are evicted.

use crate::harness::{BLOCK, Harness, MIB};
use headworks_core::prng::Prng;
use headworks_core::time::{MS, SEC};
use headworks_core::writeback::ThrottlePolicy;
use headworks_core::{
    Control, DeviceId, ExportConfig, ExportId, IoError, Op, ShardConfig, TenantConfig, TenantId,
    TenantMemory, VolumeConfig,
};

const A: TenantId = TenantId(0);
const B: TenantId = TenantId(1);

/// Gives the exports 0 and 1 to the tenant A and 2 to B, with these parts of the cache; export 3 has no tenant.
fn tenants(config: &mut ShardConfig, parts: [TenantMemory; 2]) {
    let of = |tenant| ExportConfig { tenant, ..ExportConfig::default() };
    config.exports = [A, A, B, TenantId::NONE].map(of).into();
    let tenant = |memory| TenantConfig { memory, ..TenantConfig::default() };
    config.tenants = parts.map(tenant).into();
}

fn dirty(dirty_max: u32) -> TenantMemory {
    TenantMemory { dirty_max, ..TenantMemory::default() }
}

fn cached(harness: &Harness, exports: &[u16]) -> u64 {
    exports.iter().map(|&export| harness.shard.export_blocks(ExportId(export)).1).sum()
}

/// A device that takes all of a tenant's cap and does not answer delays the tenant's writes to other devices no longer than it takes
/// to notice that.
#[test]
fn silent_device_does_not_use_up_a_cap() {
    const T: u64 = SEC;
    let mut harness = Harness::new(16_384, |config| {
        tenants(config, [dirty(64), TenantMemory::default()]);
        config.devices[0].queue.io_timeout_ns = T;
        config.devices.push(config.devices[0]);
        config.volumes.push(VolumeConfig { device: DeviceId(1), ..config.volumes[0] });
    });
    for at in 0..4 {
        harness.send_to(0, 0, Op::Write, at * MIB, 16 * BLOCK);
    }
    let waits = harness.send_to(1, 0, Op::Write, 0, 16 * BLOCK);
    assert_eq!(harness.answer(waits), None, "the cap is used up");
    let mut steps = 0;
    while harness.answer(waits).is_none() {
        // The second device answers at once; the first never does.
        while let Some(at) = harness.in_flight.iter().position(|of| of.device == DeviceId(1)) {
            let submit = harness.in_flight.remove(at);
            harness.complete_this(submit, Ok(()));
        }
        harness.wait(T / 20);
        steps += 1;
        assert!(steps < 40, "no end");
    }
    assert_eq!(harness.answer(waits), Some(Ok(())));
    for at in 1..40 {
        let id = harness.send_to(1, 0, Op::Write, at * MIB, BLOCK);
        assert_eq!(harness.answer(id), Some(Ok(())), "write {at}");
        assert!(harness.shard.tenant_dirty(A).unwrap().used <= 64);
    }
    harness.shard.check_payers();
}

/// P35: a tenant at its cap waits, and delays no other.
#[test]
fn tenant_at_its_cap_waits_alone() {
    let mut harness = Harness::new(16_384, |config| {
        tenants(config, [dirty(64), TenantMemory::default()]);
    });
    let mut waiting = Vec::new();
    for at in 0..20 {
        let export = (at % 2) as u16;
        waiting.push(harness.send_as(export, Op::Write, at * MIB, 16 * BLOCK));
        assert!(harness.shard.tenant_dirty(A).unwrap().used <= 64);
    }
    let answered = |harness: &Harness, ids: &[_]| {
        ids.iter().filter(|&&id| harness.answer(id) == Some(Ok(()))).count()
    };
    assert!(answered(&harness, &waiting) <= 4, "64 blocks are four bios");
    // The others, one of them without a tenant, go on at once.
    for (at, export) in (100..160).zip([2, 3].into_iter().cycle()) {
        let id = harness.send_as(export, Op::Write, at * MIB, 16 * BLOCK);
        assert_eq!(harness.answer(id), Some(Ok(())));
    }
    // Its own data is written although the cache is far below its background threshold.
    assert!(harness.dirty().nr_dirty < harness.dirty().nr_dirty_background_threshold);
    assert!(!harness.in_flight.is_empty());
    let mut steps = 0;
    while !harness.in_flight.is_empty() {
        harness.complete(Ok(()));
        assert!(harness.shard.tenant_dirty(A).unwrap().used <= 64);
        steps += 1;
        assert!(steps < 1000, "no end");
    }
    assert_eq!(answered(&harness, &waiting), 20);
    let written = harness.shard.tenant_dirty(A).unwrap().written;
    assert!(written >= 20 * 16 - 64, "{written} blocks were written for it");
    assert_eq!(harness.shard.tenant_dirty(B).unwrap().written, 0);
}

/// A lowered cap is approached by write-out, a raised one and a removed one are in force at once.
#[test]
fn cap_changes_while_writers_wait() {
    let mut harness = Harness::new(16_384, |config| {
        tenants(config, [TenantMemory::default(); 2]);
        config.dirty.policy = ThrottlePolicy::None;
    });
    for at in 0..8 {
        harness.send_as(0, Op::Write, at * MIB, 16 * BLOCK);
    }
    harness.control(Control::TenantMemory { tenant: A, memory: dirty(32) });
    let late = harness.send_as(1, Op::Write, 100 * MIB, 16 * BLOCK);
    assert_eq!(harness.answer(late), None);
    harness.control(Control::TenantMemory { tenant: A, memory: dirty(144) });
    assert_eq!(harness.answer(late), Some(Ok(())));
    // An export's own cap holds within its tenant's.
    harness.control(Control::ExportDirty { export: ExportId(0), dirty_max: 8 });
    let own = harness.send_as(0, Op::Write, 200 * MIB, BLOCK);
    assert_eq!(harness.answer(own), None);
    // Moved away from its data's tenant it keeps its own cap, and takes its data along.
    harness.control(Control::ExportTenant { export: ExportId(0), tenant: B });
    assert_eq!(harness.answer(own), None);
    assert_eq!(harness.shard.tenant_dirty(A).unwrap().used, 16);
    assert_eq!(harness.shard.tenant_dirty(B).unwrap().used, 8 * 16);
    harness.control(Control::ExportDirty { export: ExportId(0), dirty_max: u32::MAX });
    assert_eq!(harness.answer(own), Some(Ok(())));
    harness.wait_served(60 * SEC, Ok(()));
    let [a, b] = [A, B].map(|tenant| harness.shard.tenant_dirty(tenant).unwrap());
    assert_eq!((a.used, a.written, b.used, b.written), (0, 16, 0, 8 * 16 + 1));
}

/// P36 and P37: sums and caps hold in random runs, with failures and blocks that several tenants write; the harness checks the sums
/// after every turn.
#[test]
fn who_dirtied_pays_in_random_runs() {
    for seed in 0..4 {
        let mut prng = Prng::new(seed);
        let caps = [1 + prng.below(200) as u32, 1 + prng.below(60) as u32];
        let mut harness = Harness::new(2048, |config| {
            tenants(config, caps.map(dirty));
            config.devices[0].queue.max_folio_order = prng.below(5) as u8;
        });
        for _ in 0..3000 {
            let (export, block) = (prng.below(5) as u16, prng.below(600));
            let len = (1 + prng.below(16)) * BLOCK;
            match prng.below(12) {
                0..6 => {
                    let _ = harness.send_as(export, Op::Write, block * BLOCK, len);
                }
                6 => {
                    let _ = harness.send_as(export, Op::Read, block * BLOCK, len);
                }
                7 => {
                    let _ = harness.send_as(export, Op::Discard, block * BLOCK, len);
                }
                8 => harness.wait(prng.below(50 * MS)),
                _ if harness.in_flight.is_empty() => {}
                _ => harness.complete(Ok(())),
            }
            for (tenant, cap) in [A, B].into_iter().zip(caps) {
                assert!(harness.shard.tenant_dirty(tenant).unwrap().used <= cap);
            }
        }
        harness.wait_served(60 * SEC, Ok(()));
        let all = (0..5).map(|export| harness.shard.export_blocks(ExportId(export)).0);
        assert_eq!(all.sum::<u64>(), 0);
        assert_eq!(harness.answers.len() as u64, harness.sent(), "every bio was answered");
        let written = [A, B].map(|tenant| harness.shard.tenant_dirty(tenant).unwrap().written);
        assert!(written.iter().all(|&blocks| blocks > 100), "{written:?}");
    }
}

/// The scan of one tenant leaves what another has within its minimum.
#[test]
fn scan_of_one_tenant_leaves_the_minimum_of_another() {
    for (minimum, seed) in [(0_u32, 1), (600, 2), (1000, 3), (1900, 4)] {
        let mut prng = Prng::new(seed);
        let mut harness = Harness::new(2048, |config| {
            let part = TenantMemory { cache_min: minimum, ..TenantMemory::default() };
            tenants(config, [part, TenantMemory::default()]);
            config.devices[0].queue.max_folio_order = 0;
        });
        let read = |harness: &mut Harness, export: u16, block: u64| {
            harness.send_as(export, Op::Read, block * BLOCK, BLOCK);
            harness.settle(Ok(()));
        };
        // A working set of 600 blocks, read twice so that it is one.
        (0..2)
            .for_each(|_| (0..600).for_each(|block| read(&mut harness, (block % 2) as u16, block)));
        let within = u64::from(minimum).min(600);
        // The others use what they read more than once, so that it would be kept.
        for at in 0..12_000 {
            let block = 10_000 + at / 3;
            let export = 2 + (at / 3 % 2) as u16;
            match prng.below(8) {
                0 => {
                    let _ = harness.send_as(export, Op::Write, block * BLOCK, BLOCK);
                }
                _ => read(&mut harness, export, block),
            }
            harness.settle(Ok(()));
            let own = cached(&harness, &[0, 1]);
            assert!(own >= within, "{own} blocks of {within} are left");
        }
        let before = harness.stats().misses;
        (0..600).for_each(|block| read(&mut harness, 0, block));
        let missed = harness.stats().misses - before;
        if minimum >= 600 {
            assert_eq!(missed, 0, "the whole working set was kept");
        } else {
            assert!(missed > 300, "the scan took it without a minimum: {missed}");
        }
    }
}

/// All that is not within a minimum is held, so nothing else ever becomes clean: reads of others take from the minimum, and the tenant
/// itself reads on.
#[test]
fn held_blocks_beside_minimums_stop_no_read() {
    let mut harness = Harness::new(256, |config| {
        tenants(config, [TenantMemory::default(); 2]);
        config.devices[0].queue.max_folio_order = 0;
    });
    let read = |harness: &mut Harness, export: u16, block: u64| {
        let id = harness.send_as(export, Op::Read, block * BLOCK, BLOCK);
        harness.settle(Ok(()));
        assert_eq!(harness.answer(id), Some(Ok(())), "the read of {block} by {export} waits");
    };
    for block in 0..3 {
        harness.send_as(2, Op::Write, (9000 + 2 * block) * BLOCK, BLOCK);
    }
    harness.send_as(2, Op::Flush, 0, 0);
    harness.settle(Err(IoError::Medium));
    assert_eq!(harness.stats().held, 3);
    (0..2000).for_each(|block| read(&mut harness, 0, block));
    let own = cached(&harness, &[0]) as u32;
    let memory = TenantMemory { cache_min: own, ..TenantMemory::default() };
    harness.control(Control::TenantMemory { tenant: A, memory });
    (2000..4000).for_each(|block| read(&mut harness, 0, block));
    (4000..6000).for_each(|block| read(&mut harness, 2, block));
    (6000..6300).for_each(|block| read(&mut harness, (block % 2 * 2) as u16, block));
    assert!(cached(&harness, &[0]) as u32 + 8 > own, "a few frames are enough");
}

/// A minimum that is set while the cache is full holds for what is cached already, and nothing waits for frames meanwhile.
#[test]
fn minimum_set_on_full_cache_keeps_what_is_cached() {
    let mut harness = Harness::new(16_384, |config| {
        tenants(config, [TenantMemory::default(); 2]);
        config.devices[0].queue.max_folio_order = 0;
    });
    let scan = |harness: &mut Harness, export: u16, from: u64, blocks: u64| {
        for at in (from..from + blocks).step_by(16) {
            let id = harness.send_as(export, Op::Read, at * BLOCK, 16 * BLOCK);
            harness.settle(Ok(()));
            assert_eq!(harness.answer(id), Some(Ok(())), "the read at {at} waits");
        }
    };
    scan(&mut harness, 0, 0, 20_000);
    let full = cached(&harness, &[0]);
    assert!(full > 15_000, "{full}");
    let memory = TenantMemory { cache_min: 12_000, ..TenantMemory::default() };
    harness.control(Control::TenantMemory { tenant: A, memory });
    scan(&mut harness, 2, 1_000_000, 40_000);
    let left = cached(&harness, &[0]);
    assert!((12_000 - 64..full).contains(&left), "{left} of {full}");
}

/// A tenant beyond its maximum evicts its own; a lowered maximum is approached as it reads on.
#[test]
fn tenant_beyond_its_maximum_evicts_its_own() {
    let mut harness = Harness::new(4096, |config| {
        let part = TenantMemory { cache_max: 512, ..TenantMemory::default() };
        tenants(config, [part, TenantMemory::default()]);
    });
    let scan = |harness: &mut Harness, export: u16, from: u64, blocks: u64| {
        for at in (from..from + blocks).step_by(8) {
            harness.send_as(export, Op::Read, at * BLOCK, 8 * BLOCK);
            harness.settle(Ok(()));
        }
    };
    scan(&mut harness, 2, 0, 1024);
    scan(&mut harness, 0, 100_000, 8192);
    assert_eq!([cached(&harness, &[0, 1]), cached(&harness, &[2])], [512, 1024]);
    assert!(harness.stats().size.free > 2000, "the rest of the cache is free");
    // Written data keeps to the maximum as well: at most half of it is dirty.
    for at in 0..512 {
        harness.send_as(1, Op::Write, (300_000 + 8 * at) * BLOCK, 8 * BLOCK);
        assert!(harness.shard.tenant_dirty(A).unwrap().used <= 256);
        assert!(cached(&harness, &[0, 1]) <= 512);
        harness.settle(Ok(()));
    }
    let memory = TenantMemory { cache_max: 128, ..TenantMemory::default() };
    harness.control(Control::TenantMemory { tenant: A, memory });
    scan(&mut harness, 0, 200_000, 1024);
    assert_eq!(cached(&harness, &[0, 1]), 128);
    // Without a maximum it uses the whole cache again.
    harness.control(Control::TenantMemory { tenant: A, memory: TenantMemory::default() });
    scan(&mut harness, 0, 400_000, 8192);
    assert!(cached(&harness, &[0, 1]) > 2500);
}

/// Parts that begin and end and exports that move under load: the tables agree (the harness checks), no bio waits forever, and
/// minimums hold again after the data was touched by eviction.
#[test]
fn parts_change_under_load() {
    for seed in 0..6 {
        let mut prng = Prng::new(100 + seed);
        let mut harness = Harness::new(1024, |config| {
            tenants(config, [TenantMemory::default(); 2]);
        });
        for _ in 0..4000 {
            let (export, block) = (prng.below(4) as u16, prng.below(4000));
            let tenant = [A, B, TenantId(9)][prng.below(3) as usize];
            let size = |prng: &mut Prng| [1, 100, 900, 5000][prng.below(4) as usize];
            match prng.below(40) {
                0 => {
                    let none = prng.below(3) == 0;
                    let memory = TenantMemory {
                        dirty_max: size(&mut prng),
                        cache_min: size(&mut prng),
                        cache_max: size(&mut prng),
                    };
                    let memory = if none { TenantMemory::default() } else { memory };
                    harness.control(Control::TenantMemory { tenant, memory });
                }
                1 => {
                    let tenant = if prng.below(4) == 0 { TenantId::NONE } else { tenant };
                    harness.control(Control::ExportTenant { export: ExportId(export), tenant });
                }
                2 => {
                    let dirty_max = [u32::MAX, size(&mut prng)][prng.below(2) as usize];
                    harness.control(Control::ExportDirty { export: ExportId(export), dirty_max });
                }
                3..12 => {
                    let _ = harness.send_as(export, Op::Write, block * BLOCK, 4 * BLOCK);
                }
                12..28 => {
                    let _ = harness.send_as(export, Op::Read, block * BLOCK, 4 * BLOCK);
                }
                _ if harness.in_flight.is_empty() => harness.wait(10 * MS),
                _ => harness.complete(Ok(())),
            }
        }
        harness.wait_served(90 * SEC, Ok(()));
        assert_eq!(harness.answers.len() as u64, harness.sent(), "every bio was answered");
    }
}
