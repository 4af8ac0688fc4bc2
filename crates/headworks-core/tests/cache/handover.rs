//! A new shard adopts the contents of another one's cache: what was cached hits, what was dirty is written, nothing else changes.

use headworks_core::cache::{CacheContents, CachedFolio};
use headworks_core::prng::Prng;
use headworks_core::time::{MS, SEC};
use headworks_core::{
    BioFlags, Control, ExportId, Input, Instant, IoError, Op, Shard, VolumeConfig, VolumeId,
    WriteMode,
};

use crate::harness::{BLOCK, FAILS, Harness, MIB, config};

const SAME: fn(VolumeId) -> Option<VolumeId> = Some;
const ON: Control = Control::Freeze { on: true };

/// A cache with clean and dirty folios of several sizes.
fn mixed(units: u32) -> Harness {
    let mut harness = Harness::new(units, |config| {
        config.volumes.push(config.volumes[0]);
        config.dirty.dirty_background_ratio = 50;
        config.dirty.dirty_ratio = 80;
    });
    let mut prng = Prng::new(7);
    for step in 0..600 {
        let (volume, connection) = (prng.below(2) as u16, prng.below(3) as u32);
        let (at, blocks) = (prng.below(u64::from(units)) * 3, 1 + prng.below(40));
        let op = [Op::Read, Op::Read, Op::Write, Op::Write, Op::Prefetch][prng.below(5) as usize];
        harness.send_to(volume, connection, op, at * BLOCK, blocks * BLOCK);
        if prng.below(3) == 0 {
            harness.wait(prng.below(20) * MS);
        }
        if prng.below(20) == 0 {
            harness.send_to(volume, connection, Op::Flush, 0, 0);
        }
        if step % 2 == 0 {
            harness.settle(Ok(()));
        }
    }
    harness.settle(Ok(()));
    harness
}

/// The numbers of misses and device reads of a read.
fn cost_of_read(harness: &mut Harness, volume: u16, at: u64, blocks: u64) -> u64 {
    let before = harness.commands[Op::Read as usize];
    let id = harness.send_to(volume, 9, Op::Read, at * BLOCK, blocks * BLOCK);
    harness.settle(Ok(()));
    assert_eq!(harness.answer(id), Some(Ok(())));
    harness.commands[Op::Read as usize] - before
}

#[test]
fn new_shard_has_the_same_contents() {
    let mut harness = mixed(4096);
    harness.control(ON);
    harness.settle(Ok(()));
    let before = harness.contents();
    let dirty = harness.dirty().nr_dirty;
    let large = before.folios().iter().filter(|folio| folio.order > 2).count();
    let main = before.folios().iter().filter(|folio| folio.main).count();
    assert!(dirty > 100 && large > 10 && main > 10 && before.folios().len() > 500);
    harness.hand_over(|_| {}, SAME).unwrap();
    harness.control(ON);
    assert!(harness.contents() == before, "lists, states, groups and ages");
    assert_eq!(harness.dirty().nr_dirty, dirty);
    harness.control(Control::Freeze { on: false });
    let of_dirty = |volume| harness.shard.dirty_bytes(VolumeId(volume)).unwrap() / BLOCK;
    assert_eq!([0, 1].map(of_dirty), [0, 1].map(|volume| before.dirty_blocks(VolumeId(volume))));
    for folio in before.folios() {
        let valid = before.states(folio).iter().all(|state| state & CachedFolio::VALID != 0);
        if valid {
            let blocks = folio.blocks().into();
            let read = cost_of_read(&mut harness, folio.volume.0, folio.block, blocks);
            assert_eq!(read, 0, "{folio:?} is a hit");
        }
    }
}

#[test]
fn adopted_dirty_data_is_flushed_and_the_device_too() {
    let mut harness = mixed(4096);
    harness.hand_over(|_| {}, SAME).unwrap();
    for volume in [0, 1] {
        assert!(harness.shard.unflushed(VolumeId(volume)).unwrap().0 > 0);
        let left = harness.shard.dirty_bytes(VolumeId(volume)).unwrap();
        let (written, flushes) = (harness.written, harness.commands[Op::Flush as usize]);
        let flush = harness.send_to(volume, 1, Op::Flush, 0, 0);
        harness.settle(Ok(()));
        assert_eq!(harness.answer(flush), Some(Ok(())));
        assert_eq!(harness.written - written, left);
        assert_eq!(harness.commands[Op::Flush as usize] - flushes, 1);
    }
    assert_eq!(harness.dirty().nr_dirty, 0);
}

#[test]
fn adopted_data_is_written_at_its_age() {
    let mut harness = Harness::new(4096, |_| {});
    harness.send(1, Op::Write, 0, BLOCK);
    harness.wait(20 * SEC);
    harness.send(1, Op::Write, 100 * MIB, BLOCK);
    harness.hand_over(|_| {}, SAME).unwrap();
    harness.wait_served(16 * SEC, Ok(()));
    let writes: Vec<_> = harness.writes.iter().map(|write| write.2).collect();
    assert_eq!(writes, [0], "30 s after it was dirtied, not after it was adopted");
    harness.wait_served(20 * SEC, Ok(()));
    assert_eq!(harness.dirty().nr_dirty, 0);
}

#[test]
fn lowered_limit_is_approached_after_adoption() {
    let mut harness = mixed(4096);
    let dirty = harness.dirty().nr_dirty;
    harness.hand_over(|config| config.dirty.dirty_bytes = 64 * BLOCK, SAME).unwrap();
    assert!(dirty > 64 && harness.dirty().nr_dirty_threshold >= dirty);
    let write = harness.send(1, Op::Write, 0, MIB);
    harness.wait_served(30 * SEC, Ok(()));
    assert_eq!(harness.answer(write), Some(Ok(())));
    assert!(harness.dirty().nr_dirty_threshold <= 64, "{:?}", harness.dirty());
}

#[test]
fn eviction_and_writes_continue_after_adoption() {
    let mut harness = mixed(1024);
    for round in 0..5 {
        harness.hand_over(|_| {}, SAME).unwrap();
        let mut prng = Prng::new(round);
        for _ in 0..400 {
            let at = prng.below(1 << 16);
            let op = [Op::Read, Op::Write][prng.below(2) as usize];
            harness.send(1, op, at * BLOCK, (1 + prng.below(16)) * BLOCK);
            harness.wait_served(prng.below(MS), Ok(()));
        }
        assert!(harness.stats().evicted_folios > 0);
    }
}

#[test]
fn changed_volume_ids_are_set_in_the_dirty_table() {
    let mut harness = mixed(1024);
    let swap = |volume: VolumeId| Some(VolumeId(1 - volume.0));
    let sizes = [0, 1].map(|volume| harness.shard.dirty_bytes(VolumeId(volume)).unwrap());
    assert!(sizes[0] > 0 && sizes[1] > 0 && sizes[0] != sizes[1]);
    // The harness checks the table after each batch.
    harness.hand_over(|_| {}, swap).unwrap();
    let swapped = [1, 0].map(|volume| harness.shard.dirty_bytes(VolumeId(volume)).unwrap());
    assert_eq!(sizes, swapped);
}

#[test]
fn volume_that_is_gone_must_be_clean() {
    let mut harness = mixed(1024);
    let first = |volume: VolumeId| (volume.0 == 0).then_some(volume);
    let refused = harness.hand_over(|_| {}, first).unwrap_err();
    assert!(refused.contains("dirty blocks of volume 1 would be lost"), "{refused}");
    // The old shard goes on.
    harness.control(Control::Freeze { on: false });
    let flush = harness.send_to(1, 1, Op::Flush, 0, 0);
    harness.settle(Ok(()));
    assert_eq!(harness.answer(flush), Some(Ok(())));
    let free = harness.stats().size.free;
    harness.hand_over(|config| config.volumes.truncate(1), first).unwrap();
    assert!(harness.stats().size.free > free, "its clean folios are forgotten");
}

#[test]
fn dirty_blocks_move_to_a_volume_that_has_grown() {
    let mut harness = mixed(1024);
    let dirty = harness.shard.dirty_bytes(VolumeId(0)).unwrap();
    assert!(dirty > 0);
    harness.hand_over(|config| config.volumes[0].options.size += MIB, SAME).unwrap();
    assert_eq!(harness.shard.dirty_bytes(VolumeId(0)), Some(dirty));
    // The last block of an odd size is cached with zeros where the image has bytes now.
    let odd = |config: &mut headworks_core::ShardConfig| config.volumes[0].options.size += 512;
    harness.hand_over(odd, SAME).unwrap();
    let refused = harness.hand_over(odd, SAME).unwrap_err();
    assert!(refused.contains("bytes and now has"), "{refused}");
}

#[test]
fn contents_that_do_not_fit_are_refused_with_a_sentence() {
    type Change = fn(&mut headworks_core::ShardConfig);
    let cases: [(Change, &str); 4] = [
        (|config| config.cache.units = 2048, "the cache has 2048 frames"),
        (|config| config.volumes[0].options.size -= MIB, "bytes and now has"),
        (|config| config.volumes[1].options.mode = WriteMode::None, "not cached any more"),
        (|config| config.volumes.truncate(1), "there is no volume 1"),
    ];
    for (change, expected) in cases {
        let refused = mixed(1024).hand_over(change, SAME).unwrap_err();
        assert!(refused.contains(expected), "{refused}");
    }
    let one = |_| Some(VolumeId(0));
    let refused = mixed(1024).hand_over(|_| {}, one).unwrap_err();
    assert!(refused.contains("two volumes"), "{refused}");
}

#[test]
fn contents_are_of_a_frozen_quiet_shard_and_for_a_new_one() {
    let mut harness = mixed(1024);
    let refused = harness.shard.contents(Instant(harness.now)).unwrap_err();
    assert!(refused.to_string().contains("not frozen"));
    harness.send(1, Op::Flush, 0, 0);
    harness.control(ON);
    let refused = harness.shard.contents(Instant(harness.now)).unwrap_err();
    assert!(refused.to_string().contains("outstanding"));
    harness.settle(Ok(()));
    let contents = harness.contents();
    let refused =
        harness.shard.adopt_cache(Instant(harness.now), &contents, Some, |_| ExportId(0), Some);
    assert!(refused.unwrap_err().to_string().contains("in use"));
    let mut plain = config(1024);
    plain.cache.units = 0;
    let mut plain = Shard::new(plain).unwrap();
    assert!(plain.adopt_cache(Instant(0), &contents, Some, |_| ExportId(0), Some).is_err());
    let none = plain.contents(Instant(0)).unwrap();
    assert_eq!(CacheContents::decode(&none.encode()), Ok(none.clone()));
    plain.adopt_cache(Instant(0), &none, Some, |_| ExportId(0), Some).unwrap();
}

#[test]
fn held_blocks_are_written_again_by_the_new_shard() {
    let mut harness = Harness::new(1024, |_| {});
    harness.send(1, Op::Write, 0, 4 * BLOCK);
    harness.send(1, Op::Flush, 0, 0);
    harness.settle(FAILS);
    assert_eq!(harness.stats().held, 4);
    harness.hand_over(|_| {}, SAME).unwrap();
    assert_eq!((harness.stats().held, harness.dirty().nr_dirty), (0, 4));
    harness.wait_served(40 * SEC, Ok(()));
    assert_eq!(harness.dirty().nr_dirty, 0);
    // Its connection has seen the error.
    let flush = harness.send(1, Op::Flush, 0, 0);
    harness.settle(Ok(()));
    assert_eq!(harness.answer(flush), Some(Ok(())));
}

#[test]
fn connection_sees_error_of_the_old_shard_once() {
    let mut harness = Harness::new(1024, |_| {});
    for connection in [1, 2] {
        harness.send(connection, Op::Write, u64::from(connection) * MIB, BLOCK);
    }
    // One connection sees the error and the operator discards it, but the other one has not flushed.
    let told = harness.send(1, Op::Flush, 0, 0);
    harness.settle(FAILS);
    assert_eq!(harness.answer(told), Some(FAILS));
    harness.control(Control::Acknowledge { volume: VolumeId(0) });
    harness.hand_over(|_| {}, SAME).unwrap();
    let mut flush = |connection| {
        let id = harness.send(connection, Op::Flush, 0, 0);
        harness.settle(Ok(()));
        harness.answer(id)
    };
    let answers = [1, 2, 2, 3].map(&mut flush);
    assert_eq!(answers, [Some(Ok(())), Some(Err(IoError::Medium)), Some(Ok(())), Some(Ok(()))]);
}

#[test]
fn silent_connection_sees_error_of_the_new_shard() {
    let mut harness = Harness::new(1024, |_| {});
    for connection in [1, 2] {
        harness.send(connection, Op::Write, u64::from(connection) * MIB, BLOCK);
    }
    harness.hand_over(|_| {}, SAME).unwrap();
    let told = harness.send(1, Op::Flush, 0, 0);
    harness.settle(FAILS);
    assert_eq!(harness.answer(told), Some(FAILS));
    harness.control(Control::Acknowledge { volume: VolumeId(0) });
    let other = harness.send(2, Op::Flush, 0, 0);
    harness.settle(Ok(()));
    assert_eq!(harness.answer(other), Some(FAILS), "its block was discarded");
}

#[test]
fn block_written_during_its_write_out_is_dirty_in_the_new_shard() {
    let mut harness = Harness::new(1024, |_| {});
    harness.send(1, Op::Write, 0, 4 * BLOCK);
    harness.send_flags(1, Op::Write, 0, BLOCK, BioFlags::FUA);
    harness.send(2, Op::Write, 0, BLOCK);
    assert_eq!(harness.stats().shadows, 1);
    harness.hand_over(|_| {}, SAME).unwrap();
    assert_eq!(harness.dirty().nr_dirty, 4);
}

#[test]
fn damaged_words_are_refused_or_mean_valid_contents() {
    let mut harness = mixed(1024);
    harness.control(ON);
    harness.settle(Ok(()));
    let words = harness.contents().encode();
    let mut prng = Prng::new(3);
    let (mut accepted, mut adopted) = (0, 0);
    for _ in 0..20_000 {
        let mut damaged = words.clone();
        for _ in 0..1 + prng.below(3) {
            let at = prng.below(damaged.len() as u64) as usize;
            match prng.below(6) {
                0 => damaged[at] ^= 1 << prng.below(64),
                1 => damaged[at] = prng.next(),
                2 => damaged[at] = prng.below(1024),
                3 => damaged.truncate(at + 1),
                4 => damaged[at] = words[prng.below(words.len() as u64) as usize],
                _ => damaged.insert(at, prng.next()),
            }
        }
        let Ok(contents) = CacheContents::decode(&damaged) else { continue };
        accepted += 1;
        assert!(contents.encode() == damaged, "there is one form of any contents");
        if accepted % 8 == 0 {
            let mut config = config(1024);
            config.volumes.push(VolumeConfig { ..config.volumes[0] });
            let mut shard = Shard::new(config).unwrap();
            if shard.adopt_cache(Instant(SEC), &contents, Some, |_| ExportId(0), Some).is_ok() {
                shard.handle(Instant(SEC), &[Input::Control(ON)]);
                shard.check_cache();
                adopted += 1;
            }
        }
    }
    assert!(accepted > 200 && adopted > 20, "{accepted} accepted, {adopted} adopted");
    for words in [&[][..], &[0], &words[..4], &[u64::MAX; 64]] {
        assert!(CacheContents::decode(words).is_err());
    }
}
