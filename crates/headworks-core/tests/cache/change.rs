//! Volumes and devices that join and leave a cache at work, and volumes that grow.

use crate::desk::{BLOCK, Desk, FAILS, MIB};
use headworks_core::time::SEC;
use headworks_core::{
    Change, Control, DeviceId, Input, Instant, IoError, Op, ShardConfig, SpareSlots, VolumeConfig,
    VolumeId, WriteMode,
};

const ONE: VolumeId = VolumeId(1);

/// A second volume of the first device may join.
fn desk(change: impl FnOnce(&mut ShardConfig)) -> Desk {
    Desk::new(1024, |config| {
        config.spare = SpareSlots { devices: 3, volumes: 9, exports: 0, tags: 512 };
        config.devices[0].queue.read_ahead_kb = 64;
        change(config);
    })
}

impl Desk {
    fn change(&mut self, change: Change) -> String {
        let done = self.shard.change(Instant(self.now), &change);
        self.turn(&[]);
        done.map_or_else(|error| error.to_string(), |()| "ok".into())
    }

    fn join(&mut self, volume: VolumeId, device: u16, size: u64) {
        let mut config = VolumeConfig { device: DeviceId(device), ..VolumeConfig::default() };
        (config.options.size, config.options.block_size) = (size, 512);
        assert_eq!(self.change(Change::AddVolume { volume, config }), "ok");
    }

    fn leave(&mut self, volume: VolumeId) -> String {
        self.change(Change::RemoveVolume { volume })
    }

    fn reads(&self) -> u64 {
        self.commands[Op::Read as usize]
    }
}

#[test]
fn a_volume_leaves_clean_and_what_takes_its_place_starts_from_nothing() {
    let mut desk = desk(|_| {});
    desk.send(9, Op::Write, 0, 8 * BLOCK);
    let free = desk.stats().free;
    for round in 0..40 {
        desk.join(ONE, 0, 64 * MIB);
        desk.send_to(1, 1, Op::Write, 0, 100 * BLOCK);
        assert_eq!(desk.leave(ONE), "busy: the volume has dirty data");
        let flush = desk.send_to(1, 1, Op::Flush, 0, 0);
        assert_eq!(desk.leave(ONE), "busy: the volume has dirty data", "it is on its way");
        desk.settle(Ok(()));
        assert_eq!(desk.answer(flush), Some(Ok(())));
        // A stream, with its window of read-ahead.
        for block in 200..210 {
            desk.send_to(1, 1, Op::Read, block * BLOCK, BLOCK);
        }
        let busy = desk.leave(ONE);
        assert!(busy.starts_with("busy: requests of the volume"), "{busy}");
        desk.settle(Ok(()));
        let reads = desk.reads();
        let hit = desk.send_to(1, 1, Op::Read, 0, 4 * BLOCK);
        assert_eq!((desk.answer(hit), desk.reads()), (Some(Ok(())), reads));
        assert_eq!(desk.leave(ONE), "ok");
        assert_eq!(desk.stats().free, free, "its frames are free");
        let gone = desk.send_to(1, 1, Op::Read, 0, BLOCK);
        assert_eq!(desk.answer(gone), Some(Err(IoError::Invalid)));
        desk.join(ONE, 0, 64 * MIB);
        // No block is found, and no stream is gone on with, wherever its next window was due.
        let again = desk.send_to(1, 1, Op::Read, (205 + round) * BLOCK, BLOCK);
        assert_eq!((desk.answer(again), desk.reads()), (None, reads + 1));
        assert_eq!(desk.flying.last().map(|submit| submit.len), Some(BLOCK as u32));
        desk.settle(Ok(()));
        assert_eq!(desk.leave(ONE), "ok");
    }
    let reads = desk.reads();
    let other = desk.send(9, Op::Read, 0, 8 * BLOCK);
    assert_eq!((desk.answer(other), desk.reads()), (Some(Ok(())), reads), "others lost nothing");
}

/// Read-ahead that nobody waits for, and a fill that was given up, are on their way all the same.
#[test]
fn a_volume_stays_while_frames_are_being_filled_for_nobody() {
    let mut desk = desk(|config| config.devices[0].queue.io_timeout_ns = SEC);
    desk.join(ONE, 0, 64 * MIB);
    let ahead = desk.send_to(1, 1, Op::Prefetch, 0, 16 * BLOCK);
    assert_eq!(desk.answer(ahead), Some(Ok(())));
    assert!(desk.leave(ONE).starts_with("busy: requests of the volume"));
    desk.wait(3 * SEC);
    assert!(desk.leave(ONE).starts_with("busy: requests of the volume"), "the device is late");
    desk.settle(Ok(()));
    assert_eq!(desk.leave(ONE), "ok");
}

#[test]
fn held_blocks_and_errors_keep_a_volume_and_go_with_it() {
    let mut desk = desk(|_| {});
    desk.join(ONE, 0, 64 * MIB);
    desk.send_to(1, 1, Op::Write, 0, 4 * BLOCK);
    // Two connections, of which only one hears of the error while the volume is there.
    desk.send_to(1, 2, Op::Write, 8 * BLOCK, BLOCK);
    let flush = desk.send_to(1, 1, Op::Flush, 0, 0);
    desk.settle(FAILS);
    assert_eq!(desk.answer(flush), Some(FAILS));
    let held = "busy: blocks of the volume could not be written and are held";
    assert_eq!(desk.leave(ONE), held);
    desk.control(Control::Acknowledge { volume: ONE });
    assert_eq!(desk.leave(ONE), "ok");
    desk.join(ONE, 0, 64 * MIB);
    for connection in [1, 2, 3] {
        desk.send_to(1, connection, Op::Write, 0, BLOCK);
        let flush = desk.send_to(1, connection, Op::Flush, 0, 0);
        desk.settle(Ok(()));
        assert_eq!(desk.answer(flush), Some(Ok(())), "connection {connection}");
    }
}

/// A second device takes a part of the dirty limit, and gives it back when it leaves.
#[test]
fn the_dirty_limit_is_divided_among_the_devices_that_are_there() {
    let mut desk = desk(|config| {
        config.dirty.dirty_bytes = 160 * BLOCK;
        config.dirty.policy = headworks_core::writeback::ThrottlePolicy::None;
    });
    let dirtied = |desk: &mut Desk| {
        for at in 0..400 {
            desk.send(1, Op::Write, at * MIB, BLOCK);
        }
        let dirty = desk.dirty();
        let all = dirty.nr_dirty + dirty.nr_writeback;
        desk.wait_served(60 * SEC, Ok(()));
        desk.send(1, Op::Flush, 0, 0);
        desk.settle(Ok(()));
        assert_eq!((desk.dirty().nr_dirty, desk.shard.is_idle()), (0, true));
        all
    };
    // The last 32nd is for writers of the real-time class.
    assert_eq!(dirtied(&mut desk), 155, "one alone has everything");
    let Change::AddDevice { config, .. } = second() else { unreachable!() };
    for device in [DeviceId(1), DeviceId(3)] {
        assert_eq!(desk.change(Change::AddDevice { device, config }), "ok");
    }
    assert_eq!(dirtied(&mut desk), 155 - 2 * 6, "an eighth in three parts, two of them others'");
    desk.join(ONE, 3, 64 * MIB);
    desk.send_to(1, 2, Op::Write, 0, 4 * BLOCK);
    desk.send_to(1, 2, Op::Flush, 0, 0);
    desk.settle(Ok(()));
    let before = desk.dirty().nr_dirtied;
    assert_eq!(desk.leave(ONE), "ok");
    for device in [DeviceId(1), DeviceId(3)] {
        assert_eq!(desk.change(Change::RemoveDevice { device }), "ok");
        assert!(desk.shard.wb_stats(device).is_none());
    }
    assert_eq!(desk.dirty().nr_dirtied, before, "what was counted is not uncounted");
    assert_eq!(dirtied(&mut desk), 155);
}

/// Another device like the first, of this shard.
fn second() -> Change {
    let config = crate::desk::config(1024).devices[0];
    Change::AddDevice { device: DeviceId(1), config }
}

/// Who waits for room on one device when another joins has less room from then on, and gets it.
#[test]
fn writers_that_wait_when_a_device_joins_go_on() {
    let mut desk = desk(|config| config.dirty.dirty_bytes = 64 * BLOCK);
    let writes: Vec<_> =
        (0..40).map(|at| desk.send(at as u32, Op::Write, at * MIB, 8 * BLOCK)).collect();
    assert!(writes.iter().any(|&id| desk.answer(id).is_none()), "there is room for all");
    assert_eq!(desk.change(second()), "ok");
    desk.join(ONE, 1, 64 * MIB);
    let other = desk.send_to(1, 77, Op::Write, 0, BLOCK);
    assert_eq!(
        desk.change(Change::RemoveDevice { device: DeviceId(1) }),
        "busy: the device has volumes"
    );
    desk.wait_served(60 * SEC, Ok(()));
    for id in writes.into_iter().chain([other]) {
        assert_eq!(desk.answer(id), Some(Ok(())));
    }
}

fn size(desk: &mut Desk, size: u64) {
    desk.control(Control::Resize { volume: ONE, size });
}

#[test]
fn a_volume_that_grew_takes_bios_beyond_its_old_end_at_once() {
    for mode in [WriteMode::Writeback, WriteMode::None] {
        let mut desk = desk(|config| config.volumes[0].options.mode = mode);
        let volume = VolumeId(0);
        desk.control(Control::Resize { volume, size: 16 * BLOCK });
        let beyond = desk.send(1, Op::Write, 16 * BLOCK, BLOCK);
        assert_eq!(desk.answer(beyond), Some(Err(IoError::NoSpace)));
        // To the old end and no further, read-ahead included.
        for block in 0..16 {
            desk.send(1, Op::Read, block * BLOCK, BLOCK);
            desk.settle(Ok(()));
        }
        desk.control(Control::Resize { volume, size: 64 * BLOCK });
        for (op, flags) in [(Op::Write, true), (Op::Read, false)] {
            let id = desk.send(1, op, 15 * BLOCK, 8 * BLOCK);
            desk.settle(Ok(()));
            assert_eq!(desk.answer(id), Some(Ok(())), "{mode:?} {op:?} {flags}");
        }
        let end = desk.send(1, Op::Read, 63 * BLOCK, BLOCK);
        let past = desk.send(1, Op::Read, 63 * BLOCK, 2 * BLOCK);
        desk.settle(Ok(()));
        assert_eq!(
            (desk.answer(end), desk.answer(past)),
            (Some(Ok(())), Some(Err(IoError::Invalid)))
        );
    }
}

/// A stream that came to the end of a volume goes on with read-ahead when the volume has grown.
/// Whatever an image is made: a block beyond the largest cached volume would be found as a block of another one.
#[test]
fn a_volume_that_grew_beyond_what_can_be_cached_is_served_as_far_as_that() {
    let largest = 1 << 60;
    for (mode, last) in [(WriteMode::Writeback, largest), (WriteMode::None, 2 * largest)] {
        let mut desk = desk(|config| config.volumes[0].options.mode = mode);
        desk.control(Control::Resize { volume: VolumeId(0), size: 2 * largest });
        let within = desk.send(1, Op::Read, last - BLOCK, BLOCK);
        let beyond = desk.send(1, Op::Read, last, BLOCK);
        desk.settle(Ok(()));
        assert_eq!(
            (desk.answer(within), desk.answer(beyond)),
            (Some(Ok(())), Some(Err(IoError::Invalid))),
            "{mode:?}"
        );
    }
}

#[test]
fn read_ahead_goes_on_beyond_an_old_end() {
    let mut desk = desk(|_| {});
    desk.join(ONE, 0, 64 * BLOCK);
    for block in 0..64 {
        desk.send_to(1, 1, Op::Read, block * BLOCK, BLOCK);
        desk.settle(Ok(()));
    }
    size(&mut desk, 1024 * BLOCK);
    let mut waited = 0;
    for block in 64..1024 {
        let read = desk.send_to(1, 1, Op::Read, block * BLOCK, BLOCK);
        waited += u32::from(desk.answer(read).is_none());
        desk.settle(Ok(()));
    }
    assert!(waited <= 2, "{waited} reads waited for the device");
}

/// The last block of a volume is there in part. When the volume grows the device knows the rest: the block is read again,
/// whatever was going on with it. What is dirty of it stays.
#[test]
fn a_block_that_was_the_last_in_part_is_read_again() {
    let (short, long) = (10 * BLOCK + 512, 64 * BLOCK);
    type Prepare = fn(&mut Desk);
    let cases: [(&str, Prepare); 3] = [
        ("clean", |desk| {
            desk.send_to(1, 1, Op::Read, 8 * BLOCK, 2 * BLOCK + 512);
            desk.settle(Ok(()));
        }),
        ("being filled", |desk| {
            desk.send_to(1, 1, Op::Prefetch, 8 * BLOCK, 2 * BLOCK + 512);
            assert_eq!(desk.flying.last().map(|submit| submit.len), Some(2 * 4096 + 512));
        }),
        ("being written", |desk| {
            desk.send_to(1, 1, Op::Write, 8 * BLOCK, 2 * BLOCK + 512);
            desk.send_to(1, 1, Op::Flush, 0, 0);
            assert_eq!(desk.flying.last().map(|submit| submit.len), Some(2 * 4096 + 512));
        }),
    ];
    for (what, prepare) in cases {
        let mut desk = desk(|config| config.devices[0].queue.read_ahead_kb = 0);
        desk.join(ONE, 0, short);
        prepare(&mut desk);
        size(&mut desk, long);
        desk.settle(Ok(()));
        let reads = desk.reads();
        let read = desk.send_to(1, 1, Op::Read, 10 * BLOCK, BLOCK);
        let asked = desk.flying.last().map(|submit| (submit.offset, submit.len));
        assert_eq!(asked, Some((10 * BLOCK, 4096)), "{what}");
        desk.settle(Ok(()));
        assert_eq!((desk.answer(read), desk.reads()), (Some(Ok(())), reads + 1), "{what}");
        // The blocks before it are as good as they were.
        let before = desk.send_to(1, 1, Op::Read, 8 * BLOCK, 2 * BLOCK);
        assert_eq!((desk.answer(before), desk.reads()), (Some(Ok(())), reads + 1), "{what}");
    }
    // Who waits for it when the volume grows gets his bytes, too.
    let mut desk = desk(|_| {});
    desk.join(ONE, 0, short);
    let read = desk.send_to(1, 1, Op::Read, 10 * BLOCK, 512);
    size(&mut desk, long);
    desk.settle(Ok(()));
    assert_eq!((desk.answer(read), desk.reads()), (Some(Ok(())), 2));
    // Dirty: the frame behind the old end is zeroed, and the whole block is written.
    let mut desk = self::desk(|_| {});
    desk.join(ONE, 0, short);
    desk.send_to(1, 1, Op::Write, 10 * BLOCK, 512);
    desk.shard
        .handle(Instant(desk.now), &[Input::Control(Control::Resize { volume: ONE, size: long })]);
    let zeroed = desk.shard.actions().list.iter().any(|action| {
        matches!(action, headworks_core::Action::Zero { at, len: 3584 } if at % BLOCK == 512)
    });
    assert!(zeroed, "{:?}", desk.shard.actions().list);
    desk.shard.clear_actions();
    desk.send_to(1, 1, Op::Flush, 0, 0);
    assert_eq!(
        desk.flying.last().map(|submit| (submit.offset, submit.len)),
        Some((10 * BLOCK, 4096))
    );
    desk.settle(Ok(()));
}

/// A server writes out its volumes in one connection's name: what the clients of one have heard of is no error of the drain of
/// another, nor of the first.
#[test]
fn one_connection_that_flushes_many_volumes_hears_of_no_old_errors() {
    const OWN: u32 = u32::MAX;
    let mut desk = desk(|_| {});
    desk.join(ONE, 0, 64 * MIB);
    let flush = |desk: &mut Desk, volume, connection, status| {
        let flush = desk.send_to(volume, connection, Op::Flush, 0, 0);
        desk.settle(status);
        desk.answer(flush)
    };
    for volume in [0, 1] {
        let client = u32::from(volume) + 1;
        // The second more often than the first.
        for _ in 0..client {
            desk.send_to(volume, client, Op::Write, 0, BLOCK);
            assert_eq!(flush(&mut desk, volume, client, FAILS), Some(FAILS));
            assert_eq!(flush(&mut desk, volume, client, Ok(())), Some(Ok(())));
        }
        assert_eq!(flush(&mut desk, volume, OWN, Ok(())), Some(Ok(())), "volume {volume}");
    }
    // One that nobody has heard of is one.
    desk.send_to(1, 2, Op::Write, 0, BLOCK);
    desk.wait_served(60 * SEC, FAILS);
    assert_eq!(flush(&mut desk, 0, OWN, Ok(())), Some(Ok(())));
    assert_eq!(flush(&mut desk, 1, OWN, Ok(())), Some(FAILS));
}

/// Forgetting a pool full of small folios takes half a second: others are served meanwhile, and what comes again goes, too.
#[test]
fn a_volume_of_which_much_is_cached_leaves_in_parts() {
    let (units, cached) = (32_768, 100);
    let mut desk = Desk::new(units, |config| {
        config.spare = SpareSlots { devices: 0, volumes: 1, exports: 0, tags: 0 };
        config.devices[0].queue.max_folio_order = 0;
    });
    let read = |desk: &mut Desk, volume, at| {
        desk.send_to(volume, 1, Op::Read, at * MIB, MIB);
        desk.settle(Ok(()));
    };
    desk.join(ONE, 0, 1 << 30);
    (0..cached).for_each(|at| read(&mut desk, 1, at));
    read(&mut desk, 0, 0);
    assert_eq!(desk.stats().resident, (cached + 1) * 256);
    let mut busy = 0;
    loop {
        let before = desk.stats().resident;
        let left = desk.leave(ONE);
        assert!(before - desk.stats().resident <= 8192, "that was much at once");
        if left == "ok" {
            break;
        }
        assert_eq!(left, "busy: what is cached of the volume is being forgotten");
        busy += 1;
        // Who reads nevertheless is served, and that is forgotten, too, wherever it lies.
        read(&mut desk, 1, cached + busy);
        assert!(busy < 4);
    }
    assert_eq!((desk.stats().resident, busy), (256, 3), "the other volume's");
}
