//! Bios for another shard's device: leased tags, messages between the shards, answers.

use headworks_core::time::{MS, SEC};
use headworks_core::{DeviceId, QueueOptions, VolumeId};

use crate::bench::{EIO, Shards};

fn leased(shards: &Shards, shard: usize) -> u32 {
    shards.at[shard].shard.tags_leased(DeviceId(0)).unwrap()
}

/// Completes all commands of the owner from `from` on, and those that follow.
fn finish(shards: &mut Shards, mut from: usize) -> usize {
    loop {
        shards.deliver();
        if from == shards.at[0].commands() {
            return from;
        }
        shards.at[0].done(from);
        from += 1;
    }
}

/// Checks that after a pause all tags are with the owner and none is held.
fn assert_home(shards: &mut Shards, tags: u32) {
    shards.pass(20 * MS);
    shards.deliver();
    shards.at.iter().for_each(|bench| bench.assert_quiet());
    assert_eq!(shards.at[0].tags_free(), tags);
}

#[test]
fn remote_bio_leases_tag_and_completes_on_home_shard() {
    let mut shards = Shards::new(2, |_| ());
    shards.at[1].bios("v1:R0+4k");
    assert_eq!(shards.deliver(), "1>0 want1, 0>1 grant1, 1>0 bio1");
    assert_eq!(shards.at[0].sent(), "v1:R0+4k");
    assert_eq!(shards.at[0].segments(0), "1:0+4k");
    shards.at[0].done(0);
    assert_eq!(shards.deliver(), "0>1 ok");
    assert_eq!(shards.at[1].replies(), "1:ok");
    assert_home(&mut shards, 256);
}

#[test]
fn lease_is_reused_and_returned_when_idle() {
    let mut shards = Shards::new(2, |_| ());
    shards.at[1].bios("v1:R0+4k v1:R1m+4k");
    assert_eq!(shards.deliver(), "1>0 want2, 0>1 grant2, 1>0 bio1, 1>0 bio1");
    finish(&mut shards, 0);
    shards.pass(5 * MS);
    shards.at[1].bios("v1:R0+4k");
    assert_eq!(shards.deliver(), "1>0 bio1");
    assert_eq!((leased(&shards, 1), shards.at[0].tags_free()), (2, 254));
    finish(&mut shards, 2);
    shards.pass(10 * MS - 1);
    assert_eq!((shards.deliver(), leased(&shards, 1)), (String::new(), 2));
    shards.pass(1);
    assert_eq!(shards.deliver(), "1>0 return2");
    assert_eq!((leased(&shards, 1), shards.at[0].tags_free()), (0, 256));
    shards.at[1].bios("v1:R0+4k");
    assert!(shards.deliver().starts_with("1>0 want1,"), "no more than what waits now");
    finish(&mut shards, 3);
    assert_home(&mut shards, 256);
}

#[test]
fn owner_revokes_lease_once_when_requests_wait() {
    let mut shards = Shards::new(2, |q| q.nr_requests = 2);
    shards.at[1].bios("v1:R0+4k v1:R1m+4k");
    shards.deliver();
    shards.at[0].each("R2m+4k R4m+4k");
    assert_eq!(shards.deliver(), "0>1 revoke");
    shards.at[0].done(0);
    assert_eq!(shards.deliver(), "0>1 ok, 1>0 return1");
    assert_eq!(shards.at[0].sent().matches("R").count(), 3, "the freed tag went to a waiter");
    finish(&mut shards, 1);
    assert_home(&mut shards, 2);
}

#[test]
fn grant_before_revocation_still_serves_head() {
    let mut shards = Shards::new(3, |q| q.nr_requests = 1);
    shards.at[0].bios("R0+4k");
    shards.at[1].bios("v1:R0+4k");
    shards.deliver();
    shards.at[2].bios("v2:R0+4k");
    shards.deliver();
    shards.at[0].done(0);
    let said = shards.deliver();
    assert_eq!(said, "0>1 grant1, 0>1 revoke, 1>0 bio1", "the tag was used before it was returned");
    finish(&mut shards, 1);
    assert_eq!((shards.at[1].replies(), shards.at[2].replies()), ("1:ok".into(), "1:ok".into()));
    assert_home(&mut shards, 1);
}

#[test]
fn revoked_lease_is_unused_until_next_grant() {
    let mut shards = Shards::new(2, |q| q.nr_requests = 1);
    shards.at[1].bios("v1:R0+4k v1:R1m+4k v1:R2m+4k");
    shards.deliver();
    shards.at[0].bios("R3m+4k");
    shards.deliver();
    assert_eq!(shards.at[0].sent(), "v1:R0+4k");
    shards.at[0].done(0);
    shards.deliver();
    assert_eq!(shards.at[0].sent(), "v1:R1m+4k", "its request is older than the owner's own");
    shards.at[0].done(1);
    shards.deliver();
    assert_eq!(shards.at[0].sent(), "R3m+4k", "its request is older than the third's");
    finish(&mut shards, 2);
    assert_eq!(shards.at[1].replies(), "1:ok 2:ok 3:ok");
    assert_home(&mut shards, 1);
}

#[test]
fn one_tag_serves_owner_and_two_shards() {
    for tags in [1, 2, 3] {
        let mut shards = Shards::new(3, |q| (q.nr_requests, q.queue_depth) = (tags, tags));
        let (mut done, mut answered, mut put) = (0, [0_usize; 3], [0_usize; 3]);
        for _ in 0..300 {
            for shard in 0..3 {
                // Each keeps four bios waiting, so no queue is ever empty.
                while put[shard] < answered[shard] + 4 {
                    let bio = format!("v{shard}:R{}m+4k", put[shard] % 1000);
                    shards.at[shard].bios(&bio);
                    put[shard] += 1;
                }
            }
            shards.deliver();
            if done < shards.at[0].commands() {
                shards.at[0].done(done);
                done += 1;
            }
            shards.deliver();
            for (bench, answered) in shards.at.iter_mut().zip(&mut answered) {
                *answered += bench.replies().matches("ok").count();
            }
        }
        let (least, most) = (answered.iter().min().unwrap(), answered.iter().max().unwrap());
        assert!(*least >= 45 && *most <= 210, "{tags} tags: {answered:?} of {done}");
        finish(&mut shards, done);
        assert_home(&mut shards, tags);
    }
}

#[test]
fn remote_flush_needs_no_tag() {
    let mut shards = Shards::new(2, |q| q.nr_requests = 1);
    shards.at[0].bios("R0+4k");
    shards.at[1].bios("v1:W0+4k v1:F");
    assert_eq!(shards.deliver(), "1>0 bio0, 1>0 want1");
    assert_eq!(shards.at[0].sent(), "R0+4k v1:F");
    shards.at[0].failed(1, EIO);
    shards.deliver();
    assert_eq!(shards.at[1].replies(), "2:medium");
    assert_eq!(shards.at[0].notices(), "suspect:medium");
    shards.at[0].done(0);
    shards.deliver();
    shards.at[0].done(2);
    shards.deliver();
    assert_home(&mut shards, 1);
}

#[test]
fn remote_fua_discard_and_errors_are_reported() {
    let mut shards = Shards::new(2, |_| ());
    shards.at[1].bios("v1:W0+4k!fua v1:D1m+4k v1:Z2m+4k v1:R3m+4k v1:R1g+4k");
    shards.deliver();
    shards.at[0].failed(3, EIO);
    finish(&mut shards, 4);
    shards.at[0].all_done([0, 1, 2]);
    finish(&mut shards, 4);
    assert_eq!(shards.at[0].sent(), "v1:W0+4k v1:D1m+4k v1:Z2m+4k v1:R3m+4k v1:F");
    assert_eq!(shards.at[1].replies(), "5:invalid 4:medium 2:ok 3:ok 1:ok");
    assert_home(&mut shards, 256);
}

#[test]
fn long_bio_leases_one_tag_per_piece() {
    for (tags, want) in [(256, 26), (8, 4), (1, 1)] {
        let mut shards = Shards::new(2, |q: &mut QueueOptions| q.nr_requests = tags);
        shards.at[1].bios("v1:W0+32m");
        assert_eq!(shards.deliver(), format!("1>0 want{want}, 0>1 grant{want}, 1>0 bio{want}"));
        assert_eq!(shards.at[0].sent_count(), want);
        assert_eq!(finish(&mut shards, 0), 26);
        assert_eq!(shards.at[1].replies(), "1:ok");
        assert_home(&mut shards, tags);
    }
}

#[test]
fn leased_tag_is_kept_between_early_and_released() {
    let mut shards = Shards::new(2, |q| q.nr_requests = 1);
    shards.at[1].bios("v1:W0+4k");
    shards.deliver();
    shards.pass(30 * SEC);
    assert_eq!(shards.deliver(), "0>1 early, 0>1 stuck");
    assert_eq!(shards.at[1].replies(), "1:timeout/early");
    shards.at[1].bios("v1:W0+4k");
    assert_eq!((shards.deliver(), shards.at[1].replies()), (String::new(), "2:timeout".into()));
    assert_eq!(shards.at[1].shard.room(), 255);
    assert_eq!(shards.at[1].shard.tags_leased(DeviceId(0)), Some(1), "the timed-out bio holds it");
    shards.at[0].done(0);
    shards.deliver();
    shards.at[1].bios("v1:W0+4k");
    finish(&mut shards, 1);
    assert_eq!(shards.at[1].replies(), "1:released 3:ok");
    assert_home(&mut shards, 1);
}

#[test]
fn remote_write_over_timed_out_write_fails() {
    let mut shards = Shards::new(2, |q| q.nr_requests = 4);
    shards.at[1].bios("v1:W0+4k v1:R1m+4k");
    shards.deliver();
    shards.at[0].done(1);
    shards.deliver();
    shards.pass(30 * SEC);
    shards.deliver();
    shards.at[1].replies();
    shards.at[1].bios("v1:W0+4k");
    shards.deliver();
    assert_eq!(shards.at[1].replies(), "3:timeout");
    shards.at[0].done(0);
    shards.deliver();
    assert_home(&mut shards, 4);
}

#[test]
fn owner_without_free_bios_answers_no_memory() {
    let mut shards = Shards::new(2, |_| ());
    let many: Vec<String> = (0..256).map(|n| format!("R{n}m+4k")).collect();
    shards.at[0].bios(&many.join(" "));
    shards.at[1].bios("v1:F");
    shards.deliver();
    assert_eq!(shards.at[1].replies(), "1:nomemory");
    finish(&mut shards, 0);
    assert_home(&mut shards, 256);
}

#[test]
fn remote_neighbours_merge_into_one_command() {
    // A volume has one home, so neighbours from two shards are of two volumes and never merge; those of one shard do.
    let mut shards = Shards::new(2, |_| ());
    shards.at[0].bios("R0+4k");
    shards.at[1].bios("v1:R0+4k v1:R4k+4k");
    shards.deliver();
    assert_eq!(shards.at[0].sent(), "R0+4k v1:R0+8k");
    shards.at[0].all_done([0, 1]);
    shards.deliver();
    assert_eq!(shards.at[1].replies(), "1:ok 2:ok");
    assert_home(&mut shards, 256);
    let row = &shards.at[0].shard.stats(VolumeId(1)).unwrap().ops[0];
    assert_eq!((row.requests, row.bios, row.merges), (1, 2, 1));
}
