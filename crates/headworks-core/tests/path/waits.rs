//! What outstanding bios wait for, asked while they do.

use headworks_core::{
    BioId, BioWait, CacheOptions, DeviceId, Op, Scheduler, VolumeId, WaitKind, WriteMode,
};

use crate::bench::{Bench, Shards};

fn id(sequence: u64) -> BioId {
    BioId { sequence, ..BioId::default() }
}

fn kinds(bench: &Bench, sequences: impl IntoIterator<Item = u64>) -> Vec<Option<WaitKind>> {
    let ids: Vec<BioId> = sequences.into_iter().map(id).collect();
    bench.shard.bio_waits(&ids).into_iter().map(|wait| wait.map(|wait| wait.kind)).collect()
}

#[test]
fn waits_of_requests_follow_their_states() {
    let mut bench = Bench::new(|q| {
        (q.nr_requests, q.queue_depth, q.scheduler) = (2, 1, Scheduler::MqDeadline);
    });
    bench.each("R0+4k R1m+4k R2m+4k");
    let all = [WaitKind::Device, WaitKind::Scheduler, WaitKind::Tag].map(Some);
    assert_eq!(kinds(&bench, [1, 2, 3, 4]), [&all[..], &[None]].concat());
    let oldest = bench.shard.oldest_command(DeviceId(0)).unwrap();
    assert_eq!((oldest.op, oldest.offset, oldest.len), (Op::Read, 0, 4096));
    bench.done(0);
    assert_eq!(kinds(&bench, [1, 2, 3]), [None, all[0], all[1]]);
    bench.all_done([1]);
    bench.all_done([2]);
    assert_eq!(kinds(&bench, [1, 2, 3]), [None; 3]);
    assert!(bench.shard.oldest_command(DeviceId(0)).is_none());
}

#[test]
fn merged_and_split_bios_wait_as_far_as_they_have_come() {
    let mut bench = Bench::new(|q| {
        (q.queue_depth, q.max_sectors_kb, q.scheduler) = (1, 64, Scheduler::MqDeadline);
    });
    bench.bios("R0+4k R4k+4k R1m+256k F");
    let [device, scheduler] = [WaitKind::Device, WaitKind::Scheduler].map(Some);
    assert_eq!(kinds(&bench, [1, 2]), [device; 2], "one request");
    assert_eq!(kinds(&bench, [3, 4]), [scheduler, device], "a flush passes the elevator");
}

#[test]
fn bio_of_remote_device_waits_for_tag_until_its_owner_has_it() {
    let mut shards = Shards::new(2, |_| ());
    shards.at[1].bios("v1:R0+4k");
    let wait = |shards: &Shards, at: usize| shards.at[at].shard.bio_waits(&[id(1)])[0];
    let sent_on = Some(BioId { volume: VolumeId(1), ..id(1) });
    let there = BioWait { kind: WaitKind::Tag, device: DeviceId(0), sent_on };
    assert_eq!((wait(&shards, 1), wait(&shards, 0)), (Some(there), None));
    shards.deliver();
    assert_eq!(wait(&shards, 1), Some(there));
    let known = BioWait { kind: WaitKind::Device, sent_on: None, ..there };
    assert_eq!(wait(&shards, 0), Some(known));
}

fn cached(units: u32) -> Bench {
    Bench::with(|config| {
        config.cache = CacheOptions { units, ..CacheOptions::default() };
        config.volumes[0].options.mode = WriteMode::Writeback;
    })
}

#[test]
fn cached_read_waits_for_its_fill_in_the_device() {
    let mut bench = cached(1024);
    bench.bios("R0+4k R4k+4k");
    assert_eq!(kinds(&bench, [1, 2]), [Some(WaitKind::Device); 2]);
    // A flush of a clean volume waits for that of the device; a write waits for nothing.
    bench.bios("W1m+4k F");
    assert_eq!(kinds(&bench, [3, 4]), [None, Some(WaitKind::Device)]);
}
