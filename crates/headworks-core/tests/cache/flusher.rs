//! What is written out when: age, flushes under load, small volumes beside large ones, shared flushes, exact blocks.

use std::collections::BTreeMap;

use crate::harness::{BLOCK, FAILS, Harness, MIB};
use headworks_core::prng::Prng;
use headworks_core::time::{MS, SEC};
use headworks_core::writeback::ThrottlePolicy;
use headworks_core::{
    BioFlags, Control, ErrorPolicy, Input, IoError, Op, Scheduler, Submit, VolumeConfig, VolumeId,
};

/// B1: nothing stays dirty for longer than `expire + interval` on an otherwise idle device.
#[test]
fn dirty_data_is_written_within_expiry_and_interval() {
    let mut harness = Harness::new(4096, |_| {});
    let mut prng = Prng::new(1);
    let mut dirtied: BTreeMap<u64, u64> = BTreeMap::new();
    let mut seen = 0;
    for _ in 0..2000 {
        // A few extents are written continuously, others rarely.
        let extent = if prng.below(2) == 0 { prng.below(3) } else { prng.below(200) };
        let offset = extent * 64 * MIB + prng.below(40) * BLOCK;
        harness.send(1, Op::Write, offset, BLOCK);
        dirtied.entry(offset).or_insert(harness.now);
        harness.wait_served(prng.below(100 * MS), Ok(()));
        for &(at, _, offset, len) in &harness.writes[seen..] {
            for block in (offset..offset + u64::from(len)).step_by(BLOCK as usize) {
                let since = dirtied.remove(&block).unwrap_or(at);
                assert!(at - since <= 35 * SEC, "{} ms old", (at - since) / MS);
            }
        }
        seen = harness.writes.len();
        let oldest = dirtied.values().min().copied().unwrap_or(harness.now);
        assert!(harness.now - oldest <= 35 * SEC + MS, "{} ms old", (harness.now - oldest) / MS);
    }
    assert!(seen > 100);
}

/// B2: a flush completes when the data that was dirty at its start is written, however fast more is dirtied.
#[test]
fn flush_completes_while_writes_continue() {
    let mut harness = Harness::new(16_384, |config| {
        config.dirty.policy = ThrottlePolicy::None;
        config.devices[0].queue.max_sectors_kb = 64;
        config.devices[0].queue.max_folio_order = 4;
    });
    let mut prng = Prng::new(2);
    for at in 0..512 {
        harness.send(1, Op::Write, at * 2 * MIB, BLOCK);
    }
    let dirty = harness.dirty().nr_dirty + harness.dirty().nr_writeback;
    assert_eq!(dirty, 512);
    let flush = harness.send(2, Op::Flush, 0, 0);
    let mut completed = 0;
    while harness.answer(flush).is_none() {
        // As much is dirtied as is written: new blocks, and blocks under write-out.
        let block = if prng.below(2) == 0 { 0 } else { 1 + prng.below(511) };
        harness.send(1, Op::Write, prng.below(512) * 2 * MIB + block * BLOCK, BLOCK);
        assert!(!harness.in_flight.is_empty(), "the device has nothing to do and the flush waits");
        harness.complete(Ok(()));
        completed += 1;
        assert!(completed < 100_000, "the flush never completes");
    }
    assert!(completed <= dirty * 3 / 2, "{completed} commands for {dirty} blocks");
}

/// B4: two volumes on one device, one with a hundred times as much to write.
#[test]
fn large_volume_does_not_delay_small_expired_one() {
    let mut harness = Harness::new(65_536, |config| {
        config.volumes.push(VolumeConfig { ..config.volumes[0] });
        config.dirty.dirty_ratio = 80;
        config.dirty.dirty_background_ratio = 60;
        config.dirty.dirty_expire_centisecs = 3000;
        config.devices[0].queue.max_folio_order = 0;
    });
    for at in 0..9000 {
        harness.send_to(0, 1, Op::Write, at * 8 * MIB, BLOCK);
    }
    for at in 0..90 {
        harness.send_to(1, 2, Op::Write, at * 8 * MIB, BLOCK);
    }
    // Both expire at once. 1024 blocks are a chunk.
    let mut completed = 0;
    while harness.shard.dirty_bytes(VolumeId(1)) != Some(0) {
        match harness.in_flight.is_empty() {
            true => harness.wait(5 * SEC),
            false => {
                harness.complete(Ok(()));
                completed += 1;
            }
        }
    }
    assert!(harness.shard.dirty_bytes(VolumeId(0)) > Some(0));
    assert!(completed <= 2 * 1024 + 90, "{completed} blocks were written first");
}

/// The flusher has a group of 64 MiB of one volume in hand when the other is flushed, and as much in the device as it may have.
#[test]
fn small_flush_does_not_wait_for_a_group_of_a_large_one() {
    let mut harness = Harness::new(65_536, |config| {
        config.volumes.push(VolumeConfig { ..config.volumes[0] });
        config.dirty.policy = ThrottlePolicy::None;
        (config.dirty.dirty_ratio, config.dirty.dirty_background_ratio) = (90, 80);
        config.devices[0].queue.max_folio_order = 4;
        config.devices[0].queue.max_sectors_kb = 64;
    });
    for at in 0..2048 {
        harness.send_to(0, 1, Op::Write, at * 64 * 1024, 64 * 1024);
    }
    let large = harness.send_to(0, 1, Op::Flush, 0, 0);
    // It is in the middle of its first group.
    (0..100).for_each(|_| harness.complete(Ok(())));
    let sent = harness.writes.len();
    harness.send_to(1, 2, Op::Write, 0, BLOCK);
    let small = harness.send_to(1, 2, Op::Flush, 0, 0);
    let mut completed = 0;
    while !harness.writes[sent..].iter().any(|&(_, volume, ..)| volume == 1) {
        harness.complete(Ok(()));
        completed += 1;
        assert!(completed <= 256, "the small volume's block is not among the next");
    }
    while harness.answer(small).is_none() {
        harness.complete(Ok(()));
    }
    assert!(harness.answer(large).is_none(), "the large one has 128 MiB to write");
    harness.settle(Ok(()));
    assert_eq!(harness.answer(large), Some(Ok(())));
}

impl Harness {
    /// Completes commands until at most so many blocks are dirty.
    fn write_down_to(&mut self, blocks: u64) {
        while self.dirty().nr_dirty > blocks && !self.in_flight.is_empty() {
            self.complete(Ok(()));
        }
    }
}

/// A visit to a stream costs a seek, so nearly empty extents wait for their expiry while others are filled.
#[test]
fn nearly_empty_extents_wait_while_others_are_filled() {
    let mut harness = Harness::new(65_536, |config| config.dirty.policy = ThrottlePolicy::None);
    let first = 100 * 64 * MIB;
    for at in 0..1500 {
        harness.send(2, Op::Write, first + at * 64 * 1024, 64 * 1024);
        // While nothing else is dirty they would be written at once.
        if (200..220).contains(&at) {
            harness.send(1, Op::Write, (at - 200) * 64 * MIB, BLOCK);
        }
        harness.write_down_to(5000);
    }
    let sparse = |harness: &Harness| {
        let offsets = harness.writes.iter().map(|&(_, _, offset, _)| offset);
        offsets.filter(|&offset| offset < first).count()
    };
    assert!(harness.writes.len() > 100, "{} write-outs", harness.writes.len());
    assert_eq!(sparse(&harness), 0);
    harness.wait_served(36 * SEC, Ok(()));
    assert_eq!(sparse(&harness), 20);
}

/// Without a periodic search the background finds data that is too old.
#[test]
fn expired_extent_is_written_before_filled_ones_without_periodic_search() {
    let mut harness = Harness::new(65_536, |config| {
        config.dirty.policy = ThrottlePolicy::None;
        config.dirty.dirty_writeback_centisecs = 0;
    });
    let first = 100 * 64 * MIB;
    for at in 0..1000 {
        // The heavy stream comes to a new extent every ten seconds.
        let extent = first + at / 100 * 64 * MIB;
        harness.send(2, Op::Write, extent + at % 100 * 64 * 1024, 64 * 1024);
        if at == 400 {
            harness.send(1, Op::Write, 0, BLOCK);
        }
        harness.write_down_to(5000);
        if at > 400 {
            harness.wait(100 * MS);
        }
    }
    let found = harness.writes.iter().find(|&&(_, _, offset, _)| offset < first);
    let at = found.expect("it was written").0;
    // Older extents come first, at the rate of the load.
    assert!((30 * SEC..55 * SEC).contains(&at), "after {} ms", at / MS);
}

/// Extents that hold little each and much together are written in the order of their age.
#[test]
fn many_nearly_empty_extents_are_written_in_background() {
    let mut harness = Harness::new(65_536, |config| config.dirty.policy = ThrottlePolicy::None);
    // Half of the limit of 13,107 blocks, 16 blocks in each extent.
    for at in 0..480 {
        harness.send(1, Op::Write, at * 64 * MIB, 16 * BLOCK);
        harness.write_down_to(5000);
    }
    let first = 1000 * 64 * MIB;
    for at in 0..1000 {
        harness.send(2, Op::Write, first + at * 64 * 1024, 64 * 1024);
        harness.write_down_to(5000);
    }
    let sparse = harness.writes.iter().filter(|&&(_, _, offset, _)| offset < first).count();
    // A quarter of the limit may wait: 3276 blocks.
    assert!((480 - 205..480).contains(&sparse), "{sparse} of 480 extents were written");
}

/// E5: a hundred concurrent flushes share a few flushes of the device.
#[test]
fn concurrent_flushes_share_device_flushes() {
    let mut harness = Harness::new(4096, |_| {});
    for at in 0..200 {
        harness.send(1, Op::Write, at * MIB, BLOCK);
    }
    let flushes: Vec<_> =
        (0..100).map(|connection| harness.send(connection, Op::Flush, 0, 0)).collect();
    harness.wait_served(SEC, Ok(()));
    assert!(flushes.iter().all(|&id| harness.answer(id) == Some(Ok(()))));
    let device = harness.commands[Op::Flush as usize];
    assert!((1..=10).contains(&device), "{device} flushes of the device");
}

/// C3: of a large folio only the dirty blocks are written.
#[test]
fn only_dirty_blocks_of_a_large_folio_are_written() {
    let mut harness = Harness::new(65_536, |config| config.devices[0].queue.max_folio_order = 9);
    for at in 0..8 {
        harness.send(1, Op::Prefetch, at * 2 * MIB, 2 * MIB);
        harness.settle(Ok(()));
    }
    assert_eq!(harness.stats().folios[9], 8, "{:?}", harness.stats());
    let mut prng = Prng::new(3);
    let mut last = 0;
    for _ in 0..3000 {
        harness.send(1, Op::Write, prng.below(4096) * BLOCK, BLOCK);
        harness.wait_served(MS, Ok(()));
        last = harness.dirty().nr_dirtied;
    }
    let flush = harness.send(1, Op::Flush, 0, 0);
    harness.wait_served(SEC, Ok(()));
    assert_eq!(harness.answer(flush), Some(Ok(())));
    assert_eq!(
        harness.written,
        last * BLOCK,
        "bytes of the device are the bytes that were dirtied"
    );
}

/// A volume with the retry policy is written again after its back-off, not when its data expires.
#[test]
fn held_blocks_are_retried_with_backoff() {
    let mut harness =
        Harness::new(1024, |config| config.volumes[0].options.on_error = ErrorPolicy::Retry);
    harness.send(1, Op::Write, 0, BLOCK);
    let flush = harness.send(1, Op::Flush, 0, 0);
    harness.wait_served(0, FAILS);
    assert_eq!(harness.answer(flush), Some(Err(IoError::Medium)));
    harness.wait_served(3500 * MS, FAILS);
    let times: Vec<u64> = harness.writes.iter().map(|write| write.0 / MS).collect();
    assert_eq!(times, [0, 1000, 3000]);
    harness.wait_served(10 * SEC, Ok(()));
    assert_eq!((harness.stats().held, harness.dirty().nr_dirty), (0, 0));
}

/// Blocks that are being retried are not held, but not written either: a server that sampled
/// at that moment logged a recovery again and again while the disk was full.
#[test]
fn retried_volume_is_failing_until_written() {
    let mut harness =
        Harness::new(1024, |config| config.volumes[0].options.on_error = ErrorPolicy::Retry);
    let volume = VolumeId(0);
    harness.send(1, Op::Write, 0, BLOCK);
    harness.send(1, Op::Flush, 0, 0);
    assert!(!harness.shard.is_failing(volume), "nothing has failed yet");
    harness.settle(FAILS);
    assert!(harness.shard.is_failing(volume) && harness.shard.held(volume).is_some());
    for status in [FAILS, Ok(())] {
        harness.send(1, Op::Flush, 0, 0);
        assert!(harness.in_flight.iter().any(|submit| submit.op == Op::Write), "in flight again");
        assert!(harness.shard.held(volume).is_none() && harness.shard.is_failing(volume));
        harness.settle(status);
        assert_eq!(harness.shard.is_failing(volume), status.is_err());
    }
    // Discarded blocks fail no longer.
    harness.send(1, Op::Write, 0, BLOCK);
    harness.send(1, Op::Flush, 0, 0);
    harness.settle(FAILS);
    assert!(harness.shard.is_failing(volume));
    harness.control(Control::Acknowledge { volume });
    assert!(!harness.shard.is_failing(volume));
}

/// Each flush of a client retries held blocks, and none of them delays the volume's own next retry: a client that
/// flushed ten times while a disk was full had to wait 30 s after there was space.
#[test]
fn failed_flushes_do_not_delay_the_retry() {
    let mut harness =
        Harness::new(1024, |config| config.volumes[0].options.on_error = ErrorPolicy::Retry);
    harness.send(1, Op::Write, 0, BLOCK);
    for _ in 0..10 {
        harness.send(1, Op::Flush, 0, 0);
        harness.wait_served(MS, FAILS);
    }
    assert_eq!(harness.writes.len(), 10, "each flush tried");
    harness.wait_served(1100 * MS, Ok(()));
    let last = harness.writes.last().map(|write| write.0 / MS);
    assert_eq!((last, harness.writes.len()), (Some(1000), 11));
    assert_eq!(harness.stats().held, 0);
    // After success, a later failure begins with one second again.
    harness.wait_served(10 * SEC, Ok(()));
    assert_eq!(harness.writes.len(), 11);
}

/// Dirty blocks are written before a zeroing that the device may refuse, but a large zeroing does not examine every block
/// of its range: a terabyte in requests of 4 GiB took a minute of a debug build's CPU, and now a second.
#[test]
fn large_zeroing_skips_clean_regions() {
    let mut harness = Harness::new(1024, |_| {});
    for at in [0, 1 << 30, (3 << 30) + 5 * BLOCK] {
        harness.send(1, Op::Write, at, BLOCK);
    }
    let zeroes = harness.send(2, Op::WriteZeroes, 0, (1 << 32) - BLOCK);
    let mut turns = 1;
    while harness.commands[Op::WriteZeroes as usize] == 0 {
        match harness.in_flight.is_empty() {
            false => harness.complete(Ok(())),
            true => harness.turn(&[Input::Timer]),
        }
        turns += 1;
        assert!(turns < 16, "{turns} turns, {:?}", harness.stats());
    }
    assert_eq!(harness.written, 3 * BLOCK, "written first");
    harness.settle(Ok(()));
    assert_eq!(harness.answer(zeroes), Some(Ok(())));
}

/// With the elevator `none` nothing else prevents write-out from taking every tag.
#[test]
fn write_out_takes_at_most_a_quarter_of_tags() {
    for scheduler in Scheduler::ALL {
        let mut harness = Harness::new(16_384, |config| {
            config.devices[0].queue.scheduler = scheduler;
            config.devices[0].queue.nr_requests = 64;
            config.devices[0].queue.queue_depth = 64;
        });
        for at in 0..500 {
            harness.send(1, Op::Write, at * 2 * MIB, BLOCK);
        }
        harness.send(1, Op::Flush, 0, 0);
        let writes = harness.in_flight.len();
        match scheduler {
            Scheduler::None => assert_eq!(writes, 16),
            Scheduler::MqDeadline | Scheduler::Bfq => assert!(writes > 16, "{writes}"),
        }
        // A read finds a tag at once.
        harness.send(2, Op::Read, 1 << 39, BLOCK);
        if scheduler == Scheduler::None {
            assert_eq!(harness.in_flight.last().map(|submit| submit.op), Some(Op::Read));
        }
        harness.settle(Ok(()));
    }
}

/// A commit of a database beside the flush of much: its write is synchronous and has a tag, though asynchronous ones have none left.
#[test]
fn small_flush_is_synchronous_and_a_large_one_is_not() {
    let mut harness = Harness::new(16_384, |config| {
        config.volumes.push(VolumeConfig { ..config.volumes[0] });
        config.devices[0].queue.scheduler = Scheduler::None;
        (config.devices[0].queue.nr_requests, config.devices[0].queue.queue_depth) = (64, 64);
    });
    for at in 0..500 {
        harness.send_to(0, 1, Op::Write, at * 2 * MIB, BLOCK);
    }
    harness.send_to(0, 1, Op::Flush, 0, 0);
    assert!(harness.in_flight.len() == 16, "asynchronous requests have all of their tags");
    harness.send_to(1, 2, Op::Write, 0, BLOCK);
    harness.send_to(1, 2, Op::Flush, 0, 0);
    let is_sync = |submit: &Submit| submit.flags.contains(BioFlags::SYNC);
    let of = |volume: u16| harness.in_flight.iter().filter(move |submit| submit.volume.0 == volume);
    assert!(of(0).count() == 16 && !of(0).any(is_sync), "{:?}", harness.in_flight);
    assert!(of(1).count() == 1 && of(1).all(is_sync), "{:?}", harness.in_flight);
    harness.settle(Ok(()));
}

/// P3, D8: a stalled device delays no access to a cached block or a clean frame.
#[test]
fn cached_reads_continue_while_device_is_stalled() {
    let mut harness =
        Harness::new(4096, |config| config.devices[0].queue.io_timeout_ns = 600 * SEC);
    for at in 0..64 {
        harness.send(1, Op::Read, at * BLOCK, BLOCK);
        harness.settle(Ok(()));
    }
    for at in 0..400 {
        harness.send(2, Op::Write, MIB + at * BLOCK, BLOCK);
    }
    let flush = harness.send(2, Op::Flush, 0, 0);
    for second in 0..60 {
        harness.wait(SEC);
        let hit = harness.send(1, Op::Read, second * BLOCK, BLOCK);
        let dirty = harness.send(1, Op::Read, MIB + second * BLOCK, BLOCK);
        assert_eq!((harness.answer(hit), harness.answer(dirty)), (Some(Ok(())), Some(Ok(()))));
        if second < 59 {
            assert_eq!(harness.answer(flush), None);
        }
    }
    // The flush timed out.
    harness.wait(SEC);
    assert_eq!(harness.answer(flush), Some(Err(IoError::TimedOut)));
}

/// D6: few dirty blocks in many large folios are far below the dirty limit and still pin the pool.
#[test]
fn sparsely_dirty_folios_are_written_before_pool_fills() {
    let mut harness = Harness::new(4096, |config| {
        config.devices[0].queue.max_folio_order = 6;
        config.dirty.dirty_writeback_centisecs = 0;
    });
    // 60 folios of 256 KiB: 94 % of the pool; then a block of each is dirtied.
    for at in 0..60 {
        harness.send(1, Op::Prefetch, at * MIB, MIB / 4);
        harness.settle(Ok(()));
    }
    for at in 0..60 {
        harness.send(1, Op::Write, at * MIB, BLOCK);
    }
    harness.settle(Ok(()));
    let stats = harness.shard.dirty_stats().unwrap();
    assert!(stats.nr_dirty <= 32, "{} of 60 blocks still hold their folios", stats.nr_dirty);
    assert!(stats.nr_dirty_background_threshold > 60, "no other work made it write");
}
