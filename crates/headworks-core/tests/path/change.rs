//! Hot-add and hot-remove of devices and volumes on a working shard.

use headworks_core::device_cost::{DeviceCost, ShareUnit};
use headworks_core::time::{MS, SEC};
use headworks_core::{
    Change, ChangeError, Control, DeviceConfig, DeviceId, ExportId, Input, Instant, Message,
    QueueOptions, ShardConfig, ShardId, SpareSlots, TenantId, Tunable, VolumeConfig, VolumeId,
    VolumeOptions,
};

use crate::bench::{Bench, EIO, Shards, complete};

const SPARE: SpareSlots = SpareSlots { devices: 2, volumes: 3, exports: 4, tags: 300 };

fn bench() -> Bench {
    Bench::with(|config| config.spare = SPARE)
}

fn device(place: u16, nr_requests: u32) -> Change {
    let queue = QueueOptions { nr_requests, ..QueueOptions::default() };
    Change::AddDevice { device: DeviceId(place), config: DeviceConfig { owner: ShardId(0), queue } }
}

fn volume(place: u16, device: u16, home: u16) -> Change {
    let options = VolumeOptions { size: 1 << 20, block_size: 512, ..VolumeOptions::default() };
    let config = VolumeConfig { home: ShardId(home), device: DeviceId(device), options };
    Change::AddVolume { volume: VolumeId(place), config }
}

fn without_volume(place: u16) -> Change {
    Change::RemoveVolume { volume: VolumeId(place) }
}

fn without_device(place: u16) -> Change {
    Change::RemoveDevice { device: DeviceId(place) }
}

impl Bench {
    /// Makes a change; returns `ok`, `busy: reason` or the error.
    fn change(&mut self, change: Change) -> String {
        match self.shard.change(Instant(self.now), &change) {
            Ok(()) => {
                self.turn(&[]);
                "ok".into()
            }
            Err(error) => error.to_string(),
        }
    }

    fn changes(&mut self, changes: &[Change]) {
        for change in changes {
            assert_eq!(self.change(*change), "ok", "{change:?}");
        }
    }
}

#[test]
fn hot_added_volume_works_and_its_ids_are_reusable() {
    let mut bench = bench();
    bench.bios("R0+4k v1:W0+4k");
    assert_eq!(bench.replies(), "2:invalid", "the volume was not added yet");
    bench.changes(&[device(1, 2), volume(1, 1, 0)]);
    bench.bios("v1:W0+4k v1:W1m+4k v1:W64k+4k v1:W128k+4k");
    assert_eq!(
        (bench.sent().as_str(), bench.replies().as_str()),
        ("R0+4k v1:W0+4k v1:W64k+4k", "4:nospace")
    );
    assert_eq!(bench.change(without_device(1)), "busy: the device has volumes");
    let busy = "busy: requests of the volume are in its device or wait for it";
    assert_eq!(bench.change(without_volume(1)), busy);
    bench.all_done([1, 2]);
    assert_eq!((bench.replies().as_str(), bench.sent().as_str()), ("3:ok 5:ok", "v1:W128k+4k"));
    assert_eq!(bench.change(without_volume(1)), busy);
    bench.done(3);
    bench.bios("v1:F");
    bench.done(4);
    assert_eq!(bench.replies(), "6:ok 7:ok");
    assert_eq!(bench.shard.unflushed(VolumeId(1)), Some((0, false)));
    assert_eq!(bench.change(without_volume(1)), "ok");
    bench.bios("v1:R0+4k");
    assert_eq!(bench.replies(), "8:invalid");
    assert_eq!(
        (bench.shard.unflushed(VolumeId(1)), bench.shard.stats(VolumeId(1)).is_none()),
        (None, true)
    );
    assert_eq!(bench.change(without_device(1)), "ok");
    assert!(bench.shard.queue_stats(DeviceId(1)).is_none());
    let late = bench.command(1).submit.id;
    bench.turn(&[complete(DeviceId(1), late, Ok(()), 4096)]);
    assert_eq!(bench.notices(), "unknown");

    // The same ids again, for another device and volume, while the load of device 0 continues.
    bench.changes(&[device(1, 300), volume(1, 1, 0)]);
    assert_eq!(bench.shard.tags_free(DeviceId(1)), Some(300));
    assert_eq!(bench.shard.unflushed(VolumeId(1)), Some((0, false)));
    bench.bios("v1:R0+4k");
    bench.all_done([0, 5]);
    assert_eq!((bench.sent().as_str(), bench.replies().as_str()), ("v1:F v1:R0+4k", "1:ok 9:ok"));
    bench.assert_quiet();
}

#[test]
fn invalid_change_is_refused_with_reason() {
    let mut bench = bench();
    let refusals = [
        (device(0, 1), "device: there is a device 0 already"),
        (device(3, 1), "device: 3 is not one of the 3 places"),
        (device(1, 301), "nr_requests: 301 tags are more than the 300 that are spare"),
        (device(1, 0), "nr_requests: 0 is not within 1..=4096"),
        (volume(0, 0, 0), "volume: there is a volume 0 already"),
        (volume(4, 0, 0), "volume: 4 is not one of the 4 places"),
        (volume(1, 1, 0), "device: a volume names a device that is not there"),
        (volume(1, 9, 0), "device: a volume names a device that is not there"),
        (volume(1, 0, 1), "home: a volume lives on a shard that is not there"),
        (without_volume(1), "volume: there is no volume 1"),
        (without_volume(9), "volume: 9 is not one of the 4 places"),
        (without_device(1), "device: there is no device 1"),
        (without_device(0), "busy: the device has volumes"),
    ];
    for (change, refusal) in refusals {
        assert_eq!(bench.change(change), refusal);
    }
    bench.changes(&[device(2, 200)]);
    assert_eq!(
        bench.change(device(1, 101)),
        "nr_requests: 101 tags are more than the 100 that are spare"
    );
    assert_eq!(bench.change(volume(1, 1, 0)), "device: a volume names a device that is not there");
    // Devices of the configuration can be removed as well; their tags are spare then.
    bench.changes(&[without_volume(0), without_device(0), device(0, 100 + 256)]);
    assert_eq!(
        bench.change(device(1, 1)),
        "nr_requests: 1 tags are more than the 0 that are spare"
    );
    bench.changes(&[without_device(2), device(1, 200)]);
    bench.assert_quiet();
}

/// All tags of added devices are in flight at once, after one device was given more: there are slots for all.
#[test]
fn added_devices_never_exceed_spare_tags() {
    let mut bench = bench();
    for round in 0..20 {
        bench.changes(&[device(1, 100), volume(1, 1, 0)]);
        let (device, tunable) = (DeviceId(1), Tunable::NrRequests);
        bench.control(Control::Set { device, tunable, value: 400, token: round });
        assert_eq!(bench.notices(), format!("set{round}:ok"));
        // Pieces of 1280 KiB hold a tag and a slot each.
        let from = bench.commands();
        for _ in 0..16 {
            bench.bios("v1:W0+1m v1:D0+1m v1:Z0+1m v1:R0+1m");
        }
        bench.finish_from(from);
        bench.replies();
        bench.changes(&[without_volume(1), without_device(1)]);
        bench.assert_quiet();
    }
}

#[test]
fn volume_with_flush_or_timed_out_command_is_not_removed() {
    let mut bench = bench();
    bench.changes(&[device(1, 8), volume(1, 1, 0)]);
    bench.each("v1:W0+4k v1:F");
    assert_eq!(bench.sent(), "v1:W0+4k v1:F");
    bench.pass(31 * SEC);
    assert_eq!(bench.replies(), "1:timeout/early 2:timeout");
    let late = "busy: requests of the volume are in its device or wait for it";
    assert_eq!(bench.change(without_volume(1)), late);
    bench.done(0);
    assert_eq!(bench.replies(), "1:released");
    let flushing = "busy: the device has not answered a flush of the volume";
    assert_eq!(bench.change(without_volume(1)), flushing);
    bench.failed(1, EIO);
    bench.bios("v1:F");
    assert_eq!(bench.replies(), "3:medium", "it is suspect");
    bench.changes(&[without_volume(1), volume(1, 1, 0)]);
    bench.bios("v1:F");
    bench.done(2);
    assert_eq!(bench.replies(), "4:ok", "the volume that reuses its id is not");
    bench.assert_quiet();
}

#[test]
fn draining_device_rejects_new_volume_and_removal() {
    let mut bench = bench();
    bench.changes(&[device(1, 8), volume(1, 1, 0)]);
    bench.bios("v1:W0+4k");
    let (device, tunable) = (DeviceId(1), Tunable::MaxSectorsKb);
    bench.control(Control::Set { device, tunable, value: 4, token: 1 });
    let changing = "busy: the options of the device are being changed";
    assert_eq!(bench.change(volume(2, 1, 0)), changing);
    bench.done(0);
    assert_eq!(bench.notices(), "set1:ok");
    let options = VolumeOptions { size: 1 << 20, block_size: 8192, ..VolumeOptions::default() };
    let config = VolumeConfig { home: ShardId(0), device, options };
    let large = Change::AddVolume { volume: VolumeId(2), config };
    let refusal = "block_size: 8192 is more than max_sectors_kb of the device";
    assert_eq!(bench.change(large), refusal);
    bench.changes(&[volume(2, 1, 0), without_volume(2), without_volume(1), without_device(1)]);
    bench.assert_quiet();
}

/// A hot-added export has the default weight until another is set, which then holds on every device.
#[test]
fn hot_added_exports_have_weights() {
    let served = |weights: &[(u16, u16)]| {
        let mut bench = bench();
        for &(export, weight) in weights {
            bench.control(Control::Weight { export: ExportId(export), weight });
        }
        bench.changes(&[device(1, 1), volume(1, 1, 0)]);
        let mut bios = Vec::new();
        for n in 0..400 {
            let Input::Bio(mut bio) = bench.bio("v1:R0+64k!nomerge") else { unreachable!() };
            bio.id.export = ExportId(2 + n % 2);
            bio.id.connection = u32::from(n % 2);
            bios.push(Input::Bio(bio));
        }
        bench.turn(&bios);
        let mut of_three = 0;
        for n in 0..200 {
            of_three += u32::from(bench.command(n).segments[0].bio.export == ExportId(3));
            bench.done(n);
        }
        of_three
    };
    assert!((98..=102).contains(&served(&[])), "{}", served(&[]));
    let heavy = served(&[(3, 300)]);
    assert!((148..=152).contains(&heavy), "three quarters: {heavy}");
    assert_eq!(served(&[(4, 300)]), served(&[]), "there is no export 4");
}

fn shards() -> Shards {
    let mut shards = Shards::new(2, |_| ());
    let config = |id| ShardConfig {
        id: ShardId(id),
        shards: 2,
        spare: SPARE,
        ..ShardConfig::single(
            QueueOptions::default(),
            VolumeOptions { size: 1 << 30, block_size: 512, ..VolumeOptions::default() },
            256,
        )
    };
    shards.at = (0..2).map(|id| Bench::of(config(id))).collect();
    shards
}

fn everywhere(shards: &mut Shards, order: [usize; 2], change: Change) {
    for shard in order {
        assert_eq!(shards.at[shard].change(change), "ok", "{change:?} on {shard}");
    }
    shards.deliver();
}

fn finish(shards: &mut Shards, from: usize) {
    shards.deliver();
    for n in from..shards.at[0].commands() {
        shards.at[0].done(n);
    }
    shards.deliver();
}

#[test]
fn remote_volume_is_added_and_removed_on_both_shards() {
    let mut shards = shards();
    for _ in 0..3 {
        everywhere(&mut shards, [0, 1], device(1, 8));
        everywhere(&mut shards, [0, 1], volume(1, 1, 1));
        shards.at[0].bios("v1:R0+4k");
        assert!(shards.at[0].replies().ends_with("invalid"), "it lives on the other shard");
        let from = shards.at[0].commands();
        shards.at[1].bios("v1:W0+4k v1:W64k+4k v1:F");
        shards.deliver();
        assert!(shards.at[1].change(without_volume(1)).starts_with("busy: requests"));
        assert!(shards.at[0].change(without_volume(1)).starts_with("busy: requests"));
        finish(&mut shards, from);
        let replies = shards.at[1].replies();
        assert_eq!(replies.matches(":ok").count(), 3, "{replies}");
        everywhere(&mut shards, [1, 0], without_volume(1));
        shards.at[1].bios("v1:R0+4k");
        assert!(shards.at[1].replies().ends_with("invalid"));
        // The lease is idle and not returned yet.
        assert_eq!(shards.at[1].change(without_device(1)), "busy: tags of the device are out");
        assert_eq!(shards.at[0].change(without_device(1)), "busy: tags of the device are out");
        shards.pass(20 * MS);
        shards.deliver();
        everywhere(&mut shards, [1, 0], without_device(1));
        shards.at.iter().for_each(Bench::assert_quiet);
    }
}

/// Messages and completions for an id that is free or was reused do no harm.
#[test]
fn messages_for_removed_ids_are_answered_or_ignored() {
    let mut shards = shards();
    let (from, place) = (ShardId(1), DeviceId(1));
    let Input::Bio(bio) = shards.at[1].bio("v1:R0+4k") else { unreachable!() };
    let limits = Message::Limits {
        device: place,
        nr_requests: 1,
        max_sectors_kb: 4,
        share: ShareUnit::Time,
        io_timeout_ns: 1_000_000,
    };
    let caching = Message::Caching { device: place, read_ahead_kb: 0, max_folio_order: 0 };
    let done = Message::Done {
        cookie: 3,
        id: bio.id,
        status: Ok(()),
        hole: false,
        stage: headworks_core::ReplyStage::Final,
        wait_times: headworks_core::WaitTimes::NONE,
    };
    let messages = [
        Message::Bio { bio, cookie: 3, tags: 1, waited: 0 },
        done,
        Message::TagWant {
            device: place,
            want: 1,
            bytes: 512,
            cost: 512,
            tenant: TenantId::NONE,
            weight: 100,
            target_us: 0,
        },
        Message::TagReturn { device: place, count: 1 },
        Message::TagGrant { device: place, count: 1, cost: DeviceCost::default() },
        Message::TagRevoke { device: place },
        limits,
        caching,
        Message::DeviceState {
            device: place,
            state: headworks_core::DeviceState::Stuck,
            unresponsive: true,
        },
    ];
    for message in messages {
        shards.at[0].turn(&[Input::Message { from, message }]);
    }
    assert_eq!(shards.deliver_once(), "0>1 invalid");
    for control in [
        Control::Acknowledge { volume: VolumeId(1) },
        Control::Resize { volume: VolumeId(1), size: 1 << 40 },
        Control::Set { device: place, tunable: Tunable::NrRequests, value: 1, token: 5 },
        Control::Set { device: place, tunable: Tunable::ReadAheadKb, value: 1, token: 6 },
    ] {
        shards.at[0].control(control);
    }
    assert_eq!(shards.at[0].notices(), "set5:invalid set6:invalid");
    shards.at[0].assert_quiet();
}

/// The old device's limits are still under way when its id is reused; the new device's limits follow them.
#[test]
fn reused_device_id_uses_limits_of_new_owner() {
    let mut shards = shards();
    everywhere(&mut shards, [0, 1], device(1, 8));
    let (place, tunable) = (DeviceId(1), Tunable::NrRequests);
    shards.at[0].control(Control::Set { device: place, tunable, value: 1, token: 1 });
    for shard in [1, 0] {
        assert_eq!(shards.at[shard].change(without_device(1)), "ok");
    }
    for change in [device(1, 8), volume(1, 1, 1)] {
        for shard in [0, 1] {
            assert_eq!(shards.at[shard].change(change), "ok");
        }
    }
    assert_eq!(shards.deliver(), "0>1 limits, 0>1 limits, 0>1 caching");
    shards.at[1].bios("v1:R0+4k v1:R64k+4k v1:R128k+4k");
    let said = shards.deliver_once();
    assert_eq!(said, "1>0 want3", "with one tag it would ask for one");
}

/// The id has another owner now, and messages of two shards have no order.
#[test]
fn messages_from_previous_owner_are_ignored() {
    let options = VolumeOptions { size: 1 << 20, block_size: 512, ..VolumeOptions::default() };
    let config = ShardConfig {
        id: ShardId(2),
        shards: 3,
        spare: SPARE,
        ..ShardConfig::single(QueueOptions::default(), options, 64)
    };
    let want = |from: u16| {
        let mut bench = Bench::of(config.clone());
        bench.changes(&[device(1, 8), volume(1, 1, 2)]);
        let limits = Message::Limits {
            device: DeviceId(1),
            nr_requests: 1,
            max_sectors_kb: 4,
            share: ShareUnit::Time,
            io_timeout_ns: 1_000_000,
        };
        bench.turn(&[Input::Message { from: ShardId(from), message: limits }]);
        bench.bios("v1:R0+4k v1:R64k+4k v1:R128k+4k");
        match bench.outbox[..] {
            [(ShardId(0), Message::TagWant { want, .. })] => want,
            ref other => panic!("{other:?}"),
        }
    };
    assert_eq!((want(0), want(1)), (1, 3), "the owner is shard 0");
}

#[test]
fn refused_change_is_an_error_with_source() {
    let mut bench = bench();
    let mut change = |change: Change| bench.shard.change(Instant(0), &change);
    assert!(matches!(change(without_device(0)), Err(ChangeError::Busy(_))));
    let Err(ChangeError::Invalid(error)) = change(without_volume(3)) else { panic!() };
    assert_eq!(error.option, "volume");
}
