//! The volume: bios that are answered before they reach a queue.

use headworks_core::{Control, VolumeId};

use crate::bench::Bench;

#[test]
fn invalid_bios_are_answered_and_never_sent() {
    for (bio, answer) in [
        ("R1g+4k", "1:invalid"),
        ("W1g+4k", "1:nospace"),
        ("D1g+4k", "1:invalid"),
        ("R1048572k+8k", "1:invalid"),
        ("R100+4k", "1:invalid"),
        ("W0+100", "1:invalid"),
        ("R0+0", "1:invalid"),
        ("v9:R0+4k", "1:invalid"),
        ("D100+100", "1:ok"),
    ] {
        let mut bench = Bench::new(|_| ());
        bench.bios(bio);
        assert_eq!((bench.sent(), bench.replies()), (String::new(), answer.into()), "{bio}");
        bench.assert_quiet();
    }
}

#[test]
fn last_block_is_served() {
    let mut bench = Bench::new(|_| ());
    bench.bios("R1048572k+4k");
    assert_eq!(bench.sent(), "R1048572k+4k");
}

#[test]
fn excess_bio_gets_no_memory() {
    let mut bench = Bench::with(|config| config.bios_max = 2);
    bench.bios("R0+4k R8k+4k R16k+4k");
    assert_eq!(bench.replies(), "3:nomemory");
    assert_eq!((bench.sent().as_str(), bench.shard.room()), ("R0+4k R8k+4k", 0));
    bench.done(0);
    assert_eq!((bench.replies().as_str(), bench.shard.room()), ("1:ok", 1));
    bench.bios("R16k+4k");
    assert_eq!(bench.sent(), "R16k+4k");
}

#[test]
fn read_only_volume_rejects_writes() {
    let mut bench = Bench::with(|config| config.volumes[0].options.read_only = true);
    bench.bios("W0+4k D0+4k Z0+4k R0+4k F");
    assert_eq!(bench.replies(), "1:readonly 2:readonly 3:readonly");
    assert_eq!(bench.sent(), "F R0+4k");
}

#[test]
fn resized_volume_ends_at_new_size() {
    let mut bench = Bench::new(|_| ());
    let volume = VolumeId(0);
    bench.control(Control::Resize { volume, size: 4096 });
    bench.bios("R0+4k R4k+4k");
    assert_eq!((bench.sent().as_str(), bench.replies().as_str()), ("R0+4k", "2:invalid"));
}
