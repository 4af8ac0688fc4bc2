//! Volumes on a base: reads of what they share are cached once, and a change is never read from the base.

use headworks_core::{
    BioFlags, BioId, Change, ChangeError, Control, ExportId, Input, Instant, Op, Shard, Status,
    VolumeConfig, VolumeId,
};

use crate::harness::{BLOCK, Harness, MIB, config};

const BASE: u16 = 0;

/// A cache with a base of 1 MiB, and `tops` volumes of 2 MiB on it.
fn on_base(tops: u16, change: impl FnOnce(&mut headworks_core::ShardConfig)) -> Harness {
    let mut harness = Harness::new(4096, |config| {
        layers(config, tops);
        change(config);
    });
    for top in 1..=tops {
        put_on(&mut harness.shard, top, BASE, &[]);
    }
    harness
}

fn layers(config: &mut headworks_core::ShardConfig, tops: u16) {
    let mut top: VolumeConfig = config.volumes[0];
    top.options.read_only = false;
    config.volumes = vec![top; usize::from(tops) + 1];
    config.volumes.iter_mut().for_each(|volume| volume.options.size = 2 * MIB);
    config.volumes[0].options.size = MIB;
    config.volumes[0].options.read_only = true;
}

fn apply(shard: &mut Shard, change: Change) -> Result<(), ChangeError> {
    shard.change(Instant(0), &change)
}

/// Puts a volume with some blocks of its own on another.
fn put_on(shard: &mut Shard, top: u16, base: u16, own: &[(u64, u64)]) {
    let (volume, base) = (VolumeId(top), VolumeId(base));
    apply(shard, Change::SetBase { volume, base }).unwrap();
    for &(word, bits) in own {
        apply(shard, Change::OwnBlocks { volume, word, bits }).unwrap();
    }
    apply(shard, Change::ReadBase { volume }).unwrap();
}

/// The answer to a bio; that of a read of the base has the base's volume in its id.
fn answer(harness: &Harness, id: BioId) -> Option<Status> {
    let mut answers = harness.answers.iter().rev();
    answers.find(|answer| answer.id.sequence == id.sequence).map(|answer| answer.status)
}

/// The volumes that the device was asked for by a read, which succeeds.
fn read(harness: &mut Harness, volume: u16, at: u64, len: u64) -> Vec<u16> {
    let id = harness.send_to(volume, volume.into(), Op::Read, at, len);
    let asked = harness.in_flight.iter().map(|submit| submit.volume.0).collect();
    harness.settle(Ok(()));
    assert_eq!(answer(harness, id), Some(Ok(())));
    asked
}

#[test]
fn hundred_volumes_read_their_base_once() {
    let mut harness = on_base(100, |_| {});
    assert_eq!(read(&mut harness, 1, 0, MIB), [BASE]);
    let cached = harness.stats().size.resident;
    for top in 2..=100 {
        assert_eq!(read(&mut harness, top, 0, MIB), []);
        assert_eq!(read(&mut harness, top, 4097, 512), []);
    }
    assert_eq!((harness.stats().size.resident, cached), (256, 256));
    assert_eq!(harness.commands[Op::Read as usize], 1);
}

#[test]
fn accepted_change_is_not_read_from_the_base() {
    for op in [Op::Write, Op::WriteZeroes, Op::Discard] {
        let mut harness = on_base(2, |_| {});
        assert_eq!(read(&mut harness, 1, 0, MIB), [BASE]);
        let change = harness.send_to(1, 1, op, 8 * BLOCK, BLOCK);
        if op == Op::Write {
            assert_eq!(read(&mut harness, 1, 8 * BLOCK, BLOCK), [], "its dirty block");
        } else {
            harness.settle(Ok(()));
            assert_eq!(read(&mut harness, 1, 8 * BLOCK, BLOCK), [1], "{op:?}");
        }
        assert_eq!(answer(&harness, change), Some(Ok(())));
        assert_eq!(read(&mut harness, 1, 7 * BLOCK, BLOCK), []);
        assert_eq!(read(&mut harness, 1, 9 * BLOCK, BLOCK), []);
        assert_eq!(read(&mut harness, 2, 8 * BLOCK, BLOCK), [], "the other one has not changed it");
        // Written out and dropped: still its own.
        harness.send_to(1, 1, Op::Flush, 0, 0);
        harness.settle(Ok(()));
        harness.send_flags(1, Op::Read, 0, 0, BioFlags::NONE);
    }
}

#[test]
fn write_that_the_base_would_answer_part_of_reads_by_its_own_volume() {
    let mut harness = on_base(1, |_| {});
    // A part of a block: the rest is read by the volume's own device.
    harness.send_to(1, 1, Op::Write, 100, 100);
    assert_eq!(harness.in_flight.iter().map(|submit| submit.volume.0).collect::<Vec<_>>(), [1]);
    harness.settle(Ok(()));
    assert_eq!(read(&mut harness, 1, 0, 16), []);
    assert_eq!(read(&mut harness, 1, BLOCK, 16), [BASE]);
}

#[test]
fn read_with_own_blocks_or_past_the_base_takes_its_own_device() {
    let mut harness = on_base(0, |config| layers(config, 2));
    put_on(&mut harness.shard, 1, BASE, &[(0, 1 << 3)]);
    put_on(&mut harness.shard, 2, BASE, &[]);
    assert_eq!(read(&mut harness, 1, 0, 3 * BLOCK), [BASE]);
    assert_eq!(read(&mut harness, 1, 0, 4 * BLOCK), [1]);
    assert_eq!(read(&mut harness, 1, 3 * BLOCK + 511, 1), []);
    assert_eq!(read(&mut harness, 2, MIB - BLOCK, 2 * BLOCK), [2]);
    assert_eq!(read(&mut harness, 2, MIB + BLOCK, BLOCK), [2]);
    assert_eq!(read(&mut harness, 2, MIB - BLOCK, BLOCK), [BASE]);
}

#[test]
fn read_ahead_of_a_mixed_read_ends_where_the_base_begins() {
    let mut harness = on_base(0, |config| {
        layers(config, 1);
        config.devices[0].queue.read_ahead_kb = 128;
    });
    put_on(&mut harness.shard, 1, BASE, &[(0, 0xff)]);
    let blocks = |harness: &mut Harness, at: u64, count: u64| {
        harness.send_to(1, 1, Op::Read, at * BLOCK, count * BLOCK);
        let of = |volume: u16, submit: &headworks_core::Submit| {
            if submit.volume.0 == volume { u64::from(submit.len) / BLOCK } else { 0 }
        };
        let sum = |volume| harness.in_flight.iter().map(|submit| of(volume, submit)).sum::<u64>();
        let sums = (sum(1), sum(BASE));
        harness.settle(Ok(()));
        sums
    };
    let first = blocks(&mut harness, 0, 2);
    let second = blocks(&mut harness, 2, 2);
    assert_eq!(first.1 + second.1, 0, "own blocks alone are read ahead");
    assert!((5..=8).contains(&(first.0 + second.0)), "{first:?} {second:?}");
    let third = blocks(&mut harness, 8, 2);
    assert_eq!(third.0, 0);
    assert!(third.1 >= 2);
}

#[test]
fn what_a_volume_or_its_base_has_lost_is_read_by_its_own_device() {
    let mut harness = on_base(2, |_| {});
    let resize = |harness: &mut Harness, volume: u16, size: u64| {
        harness.control(Control::Resize { volume: VolumeId(volume), size });
    };
    assert_eq!(read(&mut harness, 1, 0, MIB), [BASE]);
    resize(&mut harness, 1, 4 * BLOCK);
    resize(&mut harness, 1, 2 * MIB);
    assert_eq!(read(&mut harness, 1, 3 * BLOCK, BLOCK), []);
    assert_eq!(read(&mut harness, 1, 4 * BLOCK, BLOCK), [1]);
    assert_eq!(read(&mut harness, 2, 4 * BLOCK, BLOCK), []);
    resize(&mut harness, BASE, 8 * BLOCK);
    assert_eq!(read(&mut harness, 2, 7 * BLOCK, BLOCK), []);
    assert_eq!(read(&mut harness, 2, 8 * BLOCK, BLOCK), [2]);
}

#[test]
fn direct_read_leaves_what_is_cached_of_the_base() {
    let mut harness = on_base(1, |_| {});
    read(&mut harness, 1, 0, MIB);
    let id = harness.sent();
    let mut bio = harness.bio(1, Op::Read, 0, BLOCK, BioFlags::DIRECT);
    bio.id.volume = VolumeId(1);
    harness.turn(&[Input::Bio(bio)]);
    assert_eq!((harness.sent(), harness.in_flight[0].volume), (id + 1, VolumeId(1)));
    harness.settle(Ok(()));
    assert_eq!(harness.stats().size.resident, 256);
}

#[test]
fn lowest_layer_that_has_a_block_answers() {
    let mut harness = on_base(0, |config| {
        layers(config, 3);
        config.volumes[1].options.read_only = true;
    });
    put_on(&mut harness.shard, 1, BASE, &[(0, 0b10)]);
    put_on(&mut harness.shard, 2, 1, &[(0, 0b1)]);
    put_on(&mut harness.shard, 3, 1, &[]);
    let expected = [(2, 0, 2), (2, 1, 1), (2, 2, BASE), (3, 0, BASE), (3, 1, 1), (3, 2, BASE)];
    let mut seen = Vec::new();
    for (top, block, from) in expected {
        let asked = read(&mut harness, top, block * BLOCK, BLOCK);
        let cached = seen.contains(&(block, from));
        assert_eq!(asked, if cached { vec![] } else { vec![from] }, "{top} {block}");
        seen.push((block, from));
    }
}

#[test]
fn base_stays_while_a_volume_is_on_it_and_is_put_on_nothing() {
    let mut harness = on_base(2, |_| {});
    let mut said = |change| match apply(&mut harness.shard, change) {
        Ok(()) => String::new(),
        Err(error) => error.to_string(),
    };
    let (base, one, other) = (VolumeId(BASE), VolumeId(1), VolumeId(2));
    let busy = said(Change::RemoveVolume { volume: base });
    assert!(busy.contains("other volumes read it as their base"), "{busy}");
    for (volume, base, why) in [
        (base, one, "read-only"),
        (one, other, "read-only"),
        (one, base, "once"),
        (base, base, "one other"),
        (VolumeId(77), base, "not one of"),
        (one, VolumeId(77), "not one of"),
    ] {
        let refused = said(Change::SetBase { volume, base });
        assert!(refused.contains(why), "{volume:?} on {base:?}: {refused}");
    }
    assert_eq!(said(Change::RemoveVolume { volume: one }), "");
    assert!(said(Change::RemoveVolume { volume: base }).contains("their base"));
    assert_eq!(said(Change::RemoveVolume { volume: other }), "");
    assert_eq!(said(Change::RemoveVolume { volume: base }), "");
}

#[test]
fn volume_stays_while_the_base_is_read_for_it() {
    let mut harness = on_base(1, |_| {});
    let id = harness.send_to(1, 1, Op::Read, 0, BLOCK);
    let remove = Change::RemoveVolume { volume: VolumeId(1) };
    let refused = apply(&mut harness.shard, remove).unwrap_err().to_string();
    assert!(refused.contains("outstanding"), "{refused}");
    harness.settle(Ok(()));
    assert_eq!(answer(&harness, id), Some(Ok(())));
    assert_eq!(apply(&mut harness.shard, remove), Ok(()));
}

#[test]
fn adopted_blocks_are_the_volumes_own() {
    let mut harness = on_base(1, |_| {});
    harness.send_to(1, 1, Op::Write, 5 * BLOCK, BLOCK);
    read(&mut harness, 1, 0, BLOCK);
    harness.control(Control::Freeze { on: true });
    let contents = harness.contents();
    let mut config = config(4096);
    layers(&mut config, 1);
    let mut next = Shard::new(config).unwrap();
    let (volume, base) = (VolumeId(1), VolumeId(BASE));
    apply(&mut next, Change::SetBase { volume, base }).unwrap();
    next.handle(Instant(0), &[Input::Control(Control::Freeze { on: true })]);
    next.adopt_cache(Instant(0), &contents, Some, |_| ExportId(1), Some).unwrap();
    apply(&mut next, Change::ReadBase { volume }).unwrap();
    harness.shard = next;
    harness.control(Control::Freeze { on: false });
    assert_eq!(read(&mut harness, 1, 5 * BLOCK, BLOCK), [], "its dirty block");
    assert_eq!(read(&mut harness, 1, 5 * BLOCK, 2 * BLOCK), [1], "one of them is the base's");
    assert_eq!(read(&mut harness, 1, 0, BLOCK), [], "the base's, which was cached");
    assert_eq!(read(&mut harness, 1, BLOCK, BLOCK), [BASE]);
}

#[test]
fn reads_in_place_find_the_frames_of_the_base() {
    let mut harness = on_base(1, |_| {});
    read(&mut harness, 1, 0, MIB);
    let lent = |harness: &mut Harness, at: u64| {
        let mut bio = harness.bio(1, Op::Read, at, BLOCK, BioFlags::NONE);
        bio.id.volume = VolumeId(1);
        let mut ranges = Vec::new();
        harness.shard.lend_frames(Instant(harness.now), &bio, &mut ranges).then_some(ranges.len())
    };
    assert_eq!(lent(&mut harness, 3 * BLOCK), Some(1));
    harness.send_to(1, 1, Op::Discard, 3 * BLOCK, BLOCK);
    harness.settle(Ok(()));
    assert_eq!(lent(&mut harness, 3 * BLOCK), None);
    assert_eq!(lent(&mut harness, 4 * BLOCK), Some(1));
}

#[test]
fn changes_before_a_volume_is_put_on_its_base_are_its_own() {
    let mut harness = on_base(0, |config| layers(config, 1));
    read(&mut harness, 1, 0, BLOCK);
    harness.send_to(1, 1, Op::Write, 3 * BLOCK, BLOCK);
    // In the device when the volume is put on its base.
    let mut bio = harness.bio(1, Op::Write, MIB / 2, 64 * BLOCK, BioFlags::DIRECT);
    bio.id.volume = VolumeId(1);
    harness.turn(&[Input::Bio(bio)]);
    assert!(!harness.in_flight.is_empty());
    put_on(&mut harness.shard, 1, BASE, &[]);
    harness.settle(Ok(()));
    assert_eq!(read(&mut harness, 1, 3 * BLOCK, BLOCK), [], "its dirty block");
    assert_eq!(read(&mut harness, 1, MIB / 2, BLOCK), [1]);
    assert_eq!(read(&mut harness, 1, 0, BLOCK), [BASE], "what was read is the base's");
}
