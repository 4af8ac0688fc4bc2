//! Hot-add and hot-remove of volumes and devices under load, and volumes that grow.

use crate::harness::{BLOCK, FAILS, Harness, MIB};
use headworks_core::time::SEC;
use headworks_core::{
    Change, Control, DeviceId, Input, Instant, IoError, Op, ShardConfig, SpareSlots, VolumeConfig,
    VolumeId, WriteMode,
};

const ONE: VolumeId = VolumeId(1);

/// A configuration with room for a second volume of the first device.
fn harness(change: impl FnOnce(&mut ShardConfig)) -> Harness {
    Harness::new(1024, |config| {
        config.spare = SpareSlots { devices: 3, volumes: 9, exports: 0, tags: 512 };
        config.devices[0].queue.read_ahead_kb = 64;
        change(config);
    })
}

impl Harness {
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
fn removed_volume_leaves_nothing_to_its_successor() {
    let mut harness = harness(|_| {});
    harness.send(9, Op::Write, 0, 8 * BLOCK);
    let free = harness.stats().size.free;
    for round in 0..40 {
        harness.join(ONE, 0, 64 * MIB);
        harness.send_to(1, 1, Op::Write, 0, 100 * BLOCK);
        assert_eq!(harness.leave(ONE), "busy: the volume has dirty data");
        let flush = harness.send_to(1, 1, Op::Flush, 0, 0);
        assert_eq!(harness.leave(ONE), "busy: the volume has dirty data", "it is under write-out");
        harness.settle(Ok(()));
        assert_eq!(harness.answer(flush), Some(Ok(())));
        // A stream, with its window of read-ahead.
        for block in 200..210 {
            harness.send_to(1, 1, Op::Read, block * BLOCK, BLOCK);
        }
        let busy = harness.leave(ONE);
        assert!(busy.starts_with("busy: requests of the volume"), "{busy}");
        harness.settle(Ok(()));
        let reads = harness.reads();
        let hit = harness.send_to(1, 1, Op::Read, 0, 4 * BLOCK);
        assert_eq!((harness.answer(hit), harness.reads()), (Some(Ok(())), reads));
        assert_eq!(harness.leave(ONE), "ok");
        assert_eq!(harness.stats().size.free, free, "its frames are free");
        let gone = harness.send_to(1, 1, Op::Read, 0, BLOCK);
        assert_eq!(harness.answer(gone), Some(Err(IoError::Invalid)));
        harness.join(ONE, 0, 64 * MIB);
        // No block is found, and no stream continues, wherever its next window was due.
        let again = harness.send_to(1, 1, Op::Read, (205 + round) * BLOCK, BLOCK);
        assert_eq!((harness.answer(again), harness.reads()), (None, reads + 1));
        assert_eq!(harness.in_flight.last().map(|submit| submit.len), Some(BLOCK as u32));
        harness.settle(Ok(()));
        assert_eq!(harness.leave(ONE), "ok");
    }
    let reads = harness.reads();
    let other = harness.send(9, Op::Read, 0, 8 * BLOCK);
    assert_eq!(
        (harness.answer(other), harness.reads()),
        (Some(Ok(())), reads),
        "other volumes kept their blocks"
    );
}

/// Read-ahead without waiters, and a fill that timed out, are still outstanding.
#[test]
fn volume_with_outstanding_fills_is_not_removed() {
    let mut harness = harness(|config| config.devices[0].queue.io_timeout_ns = SEC);
    harness.join(ONE, 0, 64 * MIB);
    let ahead = harness.send_to(1, 1, Op::Prefetch, 0, 16 * BLOCK);
    assert_eq!(harness.answer(ahead), Some(Ok(())));
    assert!(harness.leave(ONE).starts_with("busy: requests of the volume"));
    harness.wait(3 * SEC);
    assert!(harness.leave(ONE).starts_with("busy: requests of the volume"), "the command is late");
    harness.settle(Ok(()));
    assert_eq!(harness.leave(ONE), "ok");
}

#[test]
fn volume_with_held_blocks_is_removed_only_after_discard() {
    let mut harness = harness(|_| {});
    harness.join(ONE, 0, 64 * MIB);
    harness.send_to(1, 1, Op::Write, 0, 4 * BLOCK);
    // Two connections, of which only one sees the error while the volume exists.
    harness.send_to(1, 2, Op::Write, 8 * BLOCK, BLOCK);
    let flush = harness.send_to(1, 1, Op::Flush, 0, 0);
    harness.settle(FAILS);
    assert_eq!(harness.answer(flush), Some(FAILS));
    let held = "busy: blocks of the volume could not be written and are held";
    assert_eq!(harness.leave(ONE), held);
    harness.control(Control::Acknowledge { volume: ONE });
    assert_eq!(harness.leave(ONE), "ok");
    harness.join(ONE, 0, 64 * MIB);
    for connection in [1, 2, 3] {
        harness.send_to(1, connection, Op::Write, 0, BLOCK);
        let flush = harness.send_to(1, connection, Op::Flush, 0, 0);
        harness.settle(Ok(()));
        assert_eq!(harness.answer(flush), Some(Ok(())), "connection {connection}");
    }
}

/// A second device takes a part of the dirty limit, and gives it back when it leaves.
#[test]
fn dirty_limit_is_divided_among_present_devices() {
    let mut harness = harness(|config| {
        config.dirty.dirty_bytes = 160 * BLOCK;
        config.dirty.policy = headworks_core::writeback::ThrottlePolicy::None;
    });
    let dirtied = |harness: &mut Harness| {
        for at in 0..400 {
            harness.send(1, Op::Write, at * MIB, BLOCK);
        }
        let dirty = harness.dirty();
        let all = dirty.nr_dirty + dirty.nr_writeback;
        harness.wait_served(60 * SEC, Ok(()));
        harness.send(1, Op::Flush, 0, 0);
        harness.settle(Ok(()));
        assert_eq!((harness.dirty().nr_dirty, harness.shard.is_idle()), (0, true));
        all
    };
    // The last 32nd is for writers of the real-time class.
    assert_eq!(dirtied(&mut harness), 155, "one device has the whole limit");
    let Change::AddDevice { config, .. } = second() else { unreachable!() };
    for device in [DeviceId(1), DeviceId(3)] {
        assert_eq!(harness.change(Change::AddDevice { device, config }), "ok");
    }
    assert_eq!(dirtied(&mut harness), 155 - 2 * 6, "an eighth in three parts, two of them others'");
    harness.join(ONE, 3, 64 * MIB);
    harness.send_to(1, 2, Op::Write, 0, 4 * BLOCK);
    harness.send_to(1, 2, Op::Flush, 0, 0);
    harness.settle(Ok(()));
    let before = harness.dirty().nr_dirtied;
    assert_eq!(harness.leave(ONE), "ok");
    for device in [DeviceId(1), DeviceId(3)] {
        assert_eq!(harness.change(Change::RemoveDevice { device }), "ok");
        assert!(harness.shard.wb_stats(device).is_none());
    }
    assert_eq!(harness.dirty().nr_dirtied, before, "counters do not go back");
    assert_eq!(dirtied(&mut harness), 155);
}

/// Adds a second device like the first, on the same shard.
fn second() -> Change {
    let config = crate::harness::config(1024).devices[0];
    Change::AddDevice { device: DeviceId(1), config }
}

/// A writer that waits for credit of one device gets it after another device has joined.
#[test]
fn waiting_writers_continue_when_a_device_joins() {
    let mut harness = harness(|config| config.dirty.dirty_bytes = 64 * BLOCK);
    let writes: Vec<_> =
        (0..40).map(|at| harness.send(at as u32, Op::Write, at * MIB, 8 * BLOCK)).collect();
    assert!(writes.iter().any(|&id| harness.answer(id).is_none()), "there is credit for all");
    assert_eq!(harness.change(second()), "ok");
    harness.join(ONE, 1, 64 * MIB);
    let other = harness.send_to(1, 77, Op::Write, 0, BLOCK);
    assert_eq!(
        harness.change(Change::RemoveDevice { device: DeviceId(1) }),
        "busy: the device has volumes"
    );
    harness.wait_served(60 * SEC, Ok(()));
    for id in writes.into_iter().chain([other]) {
        assert_eq!(harness.answer(id), Some(Ok(())));
    }
}

fn size(harness: &mut Harness, size: u64) {
    harness.control(Control::Resize { volume: ONE, size });
}

#[test]
fn grown_volume_accepts_bios_past_its_old_end() {
    for mode in [WriteMode::Writeback, WriteMode::None] {
        let mut harness = harness(|config| config.volumes[0].options.mode = mode);
        let volume = VolumeId(0);
        harness.control(Control::Resize { volume, size: 16 * BLOCK });
        let beyond = harness.send(1, Op::Write, 16 * BLOCK, BLOCK);
        assert_eq!(harness.answer(beyond), Some(Err(IoError::NoSpace)));
        // Up to the old end, read-ahead included.
        for block in 0..16 {
            harness.send(1, Op::Read, block * BLOCK, BLOCK);
            harness.settle(Ok(()));
        }
        harness.control(Control::Resize { volume, size: 64 * BLOCK });
        for (op, flags) in [(Op::Write, true), (Op::Read, false)] {
            let id = harness.send(1, op, 15 * BLOCK, 8 * BLOCK);
            harness.settle(Ok(()));
            assert_eq!(harness.answer(id), Some(Ok(())), "{mode:?} {op:?} {flags}");
        }
        let end = harness.send(1, Op::Read, 63 * BLOCK, BLOCK);
        let past = harness.send(1, Op::Read, 63 * BLOCK, 2 * BLOCK);
        harness.settle(Ok(()));
        assert_eq!(
            (harness.answer(end), harness.answer(past)),
            (Some(Ok(())), Some(Err(IoError::Invalid)))
        );
    }
}

/// A stream at the end of a volume continues with read-ahead when the volume has grown.
/// A block past the largest cacheable size would be found as a block of another volume.
#[test]
fn volume_grown_past_cacheable_size_is_served_up_to_it() {
    let largest = 1 << 60;
    for (mode, last) in [(WriteMode::Writeback, largest), (WriteMode::None, 2 * largest)] {
        let mut harness = harness(|config| config.volumes[0].options.mode = mode);
        harness.control(Control::Resize { volume: VolumeId(0), size: 2 * largest });
        let within = harness.send(1, Op::Read, last - BLOCK, BLOCK);
        let beyond = harness.send(1, Op::Read, last, BLOCK);
        harness.settle(Ok(()));
        assert_eq!(
            (harness.answer(within), harness.answer(beyond)),
            (Some(Ok(())), Some(Err(IoError::Invalid))),
            "{mode:?}"
        );
    }
}

#[test]
fn read_ahead_continues_past_the_old_end() {
    let mut harness = harness(|_| {});
    harness.join(ONE, 0, 64 * BLOCK);
    for block in 0..64 {
        harness.send_to(1, 1, Op::Read, block * BLOCK, BLOCK);
        harness.settle(Ok(()));
    }
    size(&mut harness, 1024 * BLOCK);
    let mut waited = 0;
    for block in 64..1024 {
        let read = harness.send_to(1, 1, Op::Read, block * BLOCK, BLOCK);
        waited += u32::from(harness.answer(read).is_none());
        harness.settle(Ok(()));
    }
    assert!(waited <= 2, "{waited} reads waited for the device");
}

/// The last block of a volume is partial. When the volume grows, the device knows the rest: the block is read again,
/// whatever was outstanding. A dirty one stays.
#[test]
fn partial_last_block_is_read_again_after_growth() {
    let (short, long) = (10 * BLOCK + 512, 64 * BLOCK);
    type Prepare = fn(&mut Harness);
    let cases: [(&str, Prepare); 3] = [
        ("clean", |harness| {
            harness.send_to(1, 1, Op::Read, 8 * BLOCK, 2 * BLOCK + 512);
            harness.settle(Ok(()));
        }),
        ("being filled", |harness| {
            harness.send_to(1, 1, Op::Prefetch, 8 * BLOCK, 2 * BLOCK + 512);
            assert_eq!(harness.in_flight.last().map(|submit| submit.len), Some(2 * 4096 + 512));
        }),
        ("being written", |harness| {
            harness.send_to(1, 1, Op::Write, 8 * BLOCK, 2 * BLOCK + 512);
            harness.send_to(1, 1, Op::Flush, 0, 0);
            assert_eq!(harness.in_flight.last().map(|submit| submit.len), Some(2 * 4096 + 512));
        }),
    ];
    for (what, prepare) in cases {
        let mut harness = harness(|config| config.devices[0].queue.read_ahead_kb = 0);
        harness.join(ONE, 0, short);
        prepare(&mut harness);
        size(&mut harness, long);
        harness.settle(Ok(()));
        let reads = harness.reads();
        let read = harness.send_to(1, 1, Op::Read, 10 * BLOCK, BLOCK);
        let asked = harness.in_flight.last().map(|submit| (submit.offset, submit.len));
        assert_eq!(asked, Some((10 * BLOCK, 4096)), "{what}");
        harness.settle(Ok(()));
        assert_eq!((harness.answer(read), harness.reads()), (Some(Ok(())), reads + 1), "{what}");
        // The blocks before it stay valid.
        let before = harness.send_to(1, 1, Op::Read, 8 * BLOCK, 2 * BLOCK);
        assert_eq!((harness.answer(before), harness.reads()), (Some(Ok(())), reads + 1), "{what}");
    }
    // A read that waits for it while the volume grows completes, too.
    let mut harness = harness(|_| {});
    harness.join(ONE, 0, short);
    let read = harness.send_to(1, 1, Op::Read, 10 * BLOCK, 512);
    size(&mut harness, long);
    harness.settle(Ok(()));
    assert_eq!((harness.answer(read), harness.reads()), (Some(Ok(())), 2));
    // Dirty: the frame after the old end is zeroed, and the whole block is written.
    let mut harness = self::harness(|_| {});
    harness.join(ONE, 0, short);
    harness.send_to(1, 1, Op::Write, 10 * BLOCK, 512);
    harness.shard.handle(
        Instant(harness.now),
        &[Input::Control(Control::Resize { volume: ONE, size: long })],
    );
    let zeroed = harness.shard.actions().list.iter().any(|action| {
        matches!(action, headworks_core::Action::Zero { at, len: 3584 } if at % BLOCK == 512)
    });
    assert!(zeroed, "{:?}", harness.shard.actions().list);
    harness.shard.clear_actions();
    harness.send_to(1, 1, Op::Flush, 0, 0);
    assert_eq!(
        harness.in_flight.last().map(|submit| (submit.offset, submit.len)),
        Some((10 * BLOCK, 4096))
    );
    harness.settle(Ok(()));
}

/// A server drains its volumes as one connection: errors that the clients of one volume have seen are no errors of the drain of
/// another, nor of the first.
#[test]
fn connection_flushing_many_volumes_sees_no_old_errors() {
    const OWN: u32 = u32::MAX;
    let mut harness = harness(|_| {});
    harness.join(ONE, 0, 64 * MIB);
    let flush = |harness: &mut Harness, volume, connection, status| {
        let flush = harness.send_to(volume, connection, Op::Flush, 0, 0);
        harness.settle(status);
        harness.answer(flush)
    };
    for volume in [0, 1] {
        let client = u32::from(volume) + 1;
        // The second more often than the first.
        for _ in 0..client {
            harness.send_to(volume, client, Op::Write, 0, BLOCK);
            assert_eq!(flush(&mut harness, volume, client, FAILS), Some(FAILS));
            assert_eq!(flush(&mut harness, volume, client, Ok(())), Some(Ok(())));
        }
        assert_eq!(flush(&mut harness, volume, OWN, Ok(())), Some(Ok(())), "volume {volume}");
    }
    // An error that no connection has seen is one.
    harness.send_to(1, 2, Op::Write, 0, BLOCK);
    harness.wait_served(60 * SEC, FAILS);
    assert_eq!(flush(&mut harness, 0, OWN, Ok(())), Some(Ok(())));
    assert_eq!(flush(&mut harness, 1, OWN, Ok(())), Some(FAILS));
}

/// Dropping a pool full of small folios takes half a second: other clients are served meanwhile, and blocks read again are
/// dropped, too.
#[test]
fn large_volume_is_dropped_turn_by_turn() {
    let (units, cached) = (32_768, 100);
    let mut harness = Harness::new(units, |config| {
        config.spare = SpareSlots { devices: 0, volumes: 1, exports: 0, tags: 0 };
        config.devices[0].queue.max_folio_order = 0;
    });
    let read = |harness: &mut Harness, volume, at| {
        harness.send_to(volume, 1, Op::Read, at * MIB, MIB);
        harness.settle(Ok(()));
    };
    harness.join(ONE, 0, 1 << 30);
    (0..cached).for_each(|at| read(&mut harness, 1, at));
    read(&mut harness, 0, 0);
    assert_eq!(harness.stats().size.resident, (cached + 1) * 256);
    let mut busy = 0;
    loop {
        let before = harness.stats().size.resident;
        let left = harness.leave(ONE);
        assert!(
            before - harness.stats().size.resident <= 8192,
            "too many were dropped in one turn"
        );
        if left == "ok" {
            break;
        }
        assert_eq!(left, "busy: what is cached of the volume is being forgotten");
        busy += 1;
        // A read meanwhile is served, and its blocks are dropped, too, wherever they lie.
        read(&mut harness, 1, cached + busy);
        assert!(busy < 4);
    }
    assert_eq!((harness.stats().size.resident, busy), (256, 3), "the other volume's");
}
