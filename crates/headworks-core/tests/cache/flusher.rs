//! What is written out when: age, flushes under load, small volumes beside large ones, shared flushes, exact blocks.

use std::collections::BTreeMap;

use crate::desk::{BLOCK, Desk, FAILS, MIB};
use headworks_core::prng::Prng;
use headworks_core::time::{MS, SEC};
use headworks_core::writeback::ThrottlePolicy;
use headworks_core::{Control, ErrorPolicy, Input, IoError, Op, Scheduler, VolumeConfig, VolumeId};

/// B1: nothing stays dirty for longer than `expire + interval`, on a device that has nothing else to do.
#[test]
fn data_never_grow_older_than_expiry_and_interval() {
    let mut desk = Desk::new(4096, |_| {});
    let mut prng = Prng::new(1);
    let mut dirtied: BTreeMap<u64, u64> = BTreeMap::new();
    let mut seen = 0;
    for _ in 0..2000 {
        // A few extents are written to all the time, others now and then.
        let extent = if prng.below(2) == 0 { prng.below(3) } else { prng.below(200) };
        let offset = extent * 64 * MIB + prng.below(40) * BLOCK;
        desk.send(1, Op::Write, offset, BLOCK);
        dirtied.entry(offset).or_insert(desk.now);
        desk.wait_served(prng.below(100 * MS), Ok(()));
        for &(at, _, offset, len) in &desk.writes[seen..] {
            for block in (offset..offset + u64::from(len)).step_by(BLOCK as usize) {
                let since = dirtied.remove(&block).unwrap_or(at);
                assert!(at - since <= 35 * SEC, "{} ms old", (at - since) / MS);
            }
        }
        seen = desk.writes.len();
        let oldest = dirtied.values().min().copied().unwrap_or(desk.now);
        assert!(desk.now - oldest <= 35 * SEC + MS, "{} ms old", (desk.now - oldest) / MS);
    }
    assert!(seen > 100);
}

/// B2: a flush is done when what was dirty at its start is written, however fast others dirty more.
#[test]
fn a_flush_under_continuous_dirtying_takes_what_was_dirty_at_its_start() {
    let mut desk = Desk::new(16_384, |config| {
        config.dirty.policy = ThrottlePolicy::None;
        config.devices[0].queue.max_sectors_kb = 64;
        config.devices[0].queue.max_folio_order = 4;
    });
    let mut prng = Prng::new(2);
    for at in 0..512 {
        desk.send(1, Op::Write, at * 2 * MIB, BLOCK);
    }
    let dirty = desk.dirty().nr_dirty + desk.dirty().nr_writeback;
    assert_eq!(dirty, 512);
    let flush = desk.send(2, Op::Flush, 0, 0);
    let mut completed = 0;
    while desk.answer(flush).is_none() {
        // As much is dirtied as is written: new blocks, and those that are on their way.
        let block = if prng.below(2) == 0 { 0 } else { 1 + prng.below(511) };
        desk.send(1, Op::Write, prng.below(512) * 2 * MIB + block * BLOCK, BLOCK);
        assert!(!desk.flying.is_empty(), "the device has nothing to do and the flush waits");
        desk.complete(Ok(()));
        completed += 1;
        assert!(completed < 100_000, "it never ends");
    }
    assert!(completed <= dirty * 3 / 2, "{completed} commands for {dirty} blocks");
}

/// B4: two volumes on one device, one with a hundred times as much to write.
#[test]
fn a_small_volume_is_clean_soon_after_its_expiry() {
    let mut desk = Desk::new(65_536, |config| {
        config.volumes.push(VolumeConfig { ..config.volumes[0] });
        config.dirty.dirty_ratio = 80;
        config.dirty.dirty_background_ratio = 60;
        config.dirty.dirty_expire_centisecs = 3000;
        config.devices[0].queue.max_folio_order = 0;
    });
    for at in 0..9000 {
        desk.send_to(0, 1, Op::Write, at * 8 * MIB, BLOCK);
    }
    for at in 0..90 {
        desk.send_to(1, 2, Op::Write, at * 8 * MIB, BLOCK);
    }
    // Both expire at once. 1024 blocks are a chunk.
    let mut completed = 0;
    while desk.shard.dirty_bytes(VolumeId(1)) != Some(0) {
        match desk.flying.is_empty() {
            true => desk.wait(5 * SEC),
            false => {
                desk.complete(Ok(()));
                completed += 1;
            }
        }
    }
    assert!(desk.shard.dirty_bytes(VolumeId(0)) > Some(0));
    assert!(completed <= 2 * 1024 + 90, "{completed} blocks were written first");
}

/// E5: a hundred flushes at once share a few of the device's.
#[test]
fn flushes_at_once_share_the_devices() {
    let mut desk = Desk::new(4096, |_| {});
    for at in 0..200 {
        desk.send(1, Op::Write, at * MIB, BLOCK);
    }
    let flushes: Vec<_> =
        (0..100).map(|connection| desk.send(connection, Op::Flush, 0, 0)).collect();
    desk.wait_served(SEC, Ok(()));
    assert!(flushes.iter().all(|&id| desk.answer(id) == Some(Ok(()))));
    let device = desk.commands[Op::Flush as usize];
    assert!((1..=10).contains(&device), "{device} flushes of the device");
}

/// C3: what is written of a large folio is what was dirtied of it.
#[test]
fn a_block_of_a_large_folio_is_written_alone() {
    let mut desk = Desk::new(65_536, |config| config.devices[0].queue.max_folio_order = 9);
    for at in 0..8 {
        desk.send(1, Op::Prefetch, at * 2 * MIB, 2 * MIB);
        desk.settle(Ok(()));
    }
    assert_eq!(desk.stats().folios[9], 8, "{:?}", desk.stats());
    let mut prng = Prng::new(3);
    let mut last = 0;
    for _ in 0..3000 {
        desk.send(1, Op::Write, prng.below(4096) * BLOCK, BLOCK);
        desk.wait_served(MS, Ok(()));
        last = desk.dirty().nr_dirtied;
    }
    let flush = desk.send(1, Op::Flush, 0, 0);
    desk.wait_served(SEC, Ok(()));
    assert_eq!(desk.answer(flush), Some(Ok(())));
    assert_eq!(desk.written, last * BLOCK, "bytes of the device are the bytes that were dirtied");
}

/// A volume whose policy is to retry is written again after its back-off, not when its data happen to expire.
#[test]
fn held_blocks_are_tried_again_after_one_second_then_two() {
    let mut desk =
        Desk::new(1024, |config| config.volumes[0].options.on_error = ErrorPolicy::Retry);
    desk.send(1, Op::Write, 0, BLOCK);
    let flush = desk.send(1, Op::Flush, 0, 0);
    desk.wait_served(0, FAILS);
    assert_eq!(desk.answer(flush), Some(Err(IoError::Medium)));
    desk.wait_served(3500 * MS, FAILS);
    let times: Vec<u64> = desk.writes.iter().map(|write| write.0 / MS).collect();
    assert_eq!(times, [0, 1000, 3000]);
    desk.wait_served(10 * SEC, Ok(()));
    assert_eq!((desk.stats().held, desk.dirty().nr_dirty), (0, 0));
}

/// Blocks that are just tried again are not held, but nobody may say that nothing is left of them: a server whose clock ticked in
/// that moment told its log so, again and again, while the disk was full.
#[test]
fn what_is_tried_again_is_failing_until_it_is_written() {
    let mut desk =
        Desk::new(1024, |config| config.volumes[0].options.on_error = ErrorPolicy::Retry);
    let volume = VolumeId(0);
    desk.send(1, Op::Write, 0, BLOCK);
    desk.send(1, Op::Flush, 0, 0);
    assert!(!desk.shard.is_failing(volume), "nothing has failed yet");
    desk.settle(FAILS);
    assert!(desk.shard.is_failing(volume) && desk.shard.held(volume).is_some());
    for status in [FAILS, Ok(())] {
        desk.send(1, Op::Flush, 0, 0);
        assert!(desk.flying.iter().any(|submit| submit.op == Op::Write), "on its way again");
        assert!(desk.shard.held(volume).is_none() && desk.shard.is_failing(volume));
        desk.settle(status);
        assert_eq!(desk.shard.is_failing(volume), status.is_err());
    }
    // What nobody wants any more fails no longer.
    desk.send(1, Op::Write, 0, BLOCK);
    desk.send(1, Op::Flush, 0, 0);
    desk.settle(FAILS);
    assert!(desk.shard.is_failing(volume));
    desk.control(Control::Acknowledge { volume });
    assert!(!desk.shard.is_failing(volume));
}

/// Each of a client's flushes tries held blocks again, and none of them makes the volume's own next try later: a client that
/// flushed ten times while a disk was full had to wait 30 s after there was space.
#[test]
fn flushes_that_fail_do_not_put_off_the_next_try() {
    let mut desk =
        Desk::new(1024, |config| config.volumes[0].options.on_error = ErrorPolicy::Retry);
    desk.send(1, Op::Write, 0, BLOCK);
    for _ in 0..10 {
        desk.send(1, Op::Flush, 0, 0);
        desk.wait_served(MS, FAILS);
    }
    assert_eq!(desk.writes.len(), 10, "each flush tried");
    desk.wait_served(1100 * MS, Ok(()));
    let last = desk.writes.last().map(|write| write.0 / MS);
    assert_eq!((last, desk.writes.len()), (Some(1000), 11));
    assert_eq!(desk.stats().held, 0);
    // Nothing is left of it: what fails later begins with a second again.
    desk.wait_served(10 * SEC, Ok(()));
    assert_eq!(desk.writes.len(), 11);
}

/// What is dirty is written before a zeroing that the device may refuse, but who zeroes gigabytes does not look at every block
/// of them: a terabyte in requests of 4 GiB took a minute of a debug build's CPU, and now a second.
#[test]
fn a_zeroing_of_gigabytes_looks_for_what_is_dirty_and_not_at_every_block() {
    let mut desk = Desk::new(1024, |_| {});
    for at in [0, 1 << 30, (3 << 30) + 5 * BLOCK] {
        desk.send(1, Op::Write, at, BLOCK);
    }
    let zeroes = desk.send(2, Op::WriteZeroes, 0, (1 << 32) - BLOCK);
    let mut turns = 1;
    while desk.commands[Op::WriteZeroes as usize] == 0 {
        match desk.flying.is_empty() {
            false => desk.complete(Ok(())),
            true => desk.turn(&[Input::Timer]),
        }
        turns += 1;
        assert!(turns < 16, "{turns} turns, {:?}", desk.stats());
    }
    assert_eq!(desk.written, 3 * BLOCK, "written first");
    desk.settle(Ok(()));
    assert_eq!(desk.answer(zeroes), Some(Ok(())));
}

/// With `none` as elevator nothing else keeps write-out from taking every tag.
#[test]
fn write_out_has_a_quarter_of_the_tags_at_most() {
    for scheduler in Scheduler::ALL {
        let mut desk = Desk::new(16_384, |config| {
            config.devices[0].queue.scheduler = scheduler;
            config.devices[0].queue.nr_requests = 64;
            config.devices[0].queue.queue_depth = 64;
        });
        for at in 0..500 {
            desk.send(1, Op::Write, at * 2 * MIB, BLOCK);
        }
        desk.send(1, Op::Flush, 0, 0);
        let writes = desk.flying.len();
        match scheduler {
            Scheduler::None => assert_eq!(writes, 16),
            Scheduler::MqDeadline => assert!(writes > 16, "{writes}"),
        }
        // So a reader finds a tag at once.
        desk.send(2, Op::Read, 1 << 39, BLOCK);
        if scheduler == Scheduler::None {
            assert_eq!(desk.flying.last().map(|submit| submit.op), Some(Op::Read));
        }
        desk.settle(Ok(()));
    }
}

/// P3, D8: a device that stands still holds up nobody who finds his block in the cache, or a clean frame for it.
#[test]
fn reads_of_what_is_cached_go_on_while_the_device_stands_still() {
    let mut desk = Desk::new(4096, |config| config.devices[0].queue.io_timeout_ns = 600 * SEC);
    for at in 0..64 {
        desk.send(1, Op::Read, at * BLOCK, BLOCK);
        desk.settle(Ok(()));
    }
    for at in 0..400 {
        desk.send(2, Op::Write, MIB + at * BLOCK, BLOCK);
    }
    let flush = desk.send(2, Op::Flush, 0, 0);
    for second in 0..60 {
        desk.wait(SEC);
        let hit = desk.send(1, Op::Read, second * BLOCK, BLOCK);
        let dirty = desk.send(1, Op::Read, MIB + second * BLOCK, BLOCK);
        assert_eq!((desk.answer(hit), desk.answer(dirty)), (Some(Ok(())), Some(Ok(()))));
        if second < 59 {
            assert_eq!(desk.answer(flush), None);
        }
    }
    // And the flush was given up in time.
    desk.wait(SEC);
    assert_eq!(desk.answer(flush), Some(Err(IoError::TimedOut)));
}

/// D6: few dirty blocks in many large folios are far below any limit of dirty data and still hold the pool.
#[test]
fn frames_that_a_few_dirty_blocks_hold_are_written_before_readers_need_them() {
    let mut desk = Desk::new(4096, |config| {
        config.devices[0].queue.max_folio_order = 6;
        config.dirty.dirty_writeback_centisecs = 0;
    });
    // 60 folios of 256 KiB: 94 % of the pool; then a block of each is dirtied.
    for at in 0..60 {
        desk.send(1, Op::Prefetch, at * MIB, MIB / 4);
        desk.settle(Ok(()));
    }
    for at in 0..60 {
        desk.send(1, Op::Write, at * MIB, BLOCK);
    }
    desk.settle(Ok(()));
    let stats = desk.shard.dirty_stats().unwrap();
    assert!(stats.nr_dirty <= 32, "{} of 60 blocks still hold their folios", stats.nr_dirty);
    assert!(stats.nr_dirty_background_threshold > 60, "no other work made it write");
}
