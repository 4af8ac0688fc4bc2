//! Tests of the disk with heads: its times, its cache and its order.

use super::*;
use crate::device_model::testing::{drive, random, sequential};

const MIB: f64 = (1 << 20) as f64;

#[test]
fn each_cache_size_reproduces_single_job_table_within_a_tenth() {
    let table = [(128, 20.1), (256, 33.4), (512, 51.8), (1024, 67.1), (2048, 82.9), (4096, 82.9)];
    for cache_mib in [16, 32, 64] {
        for (kib, published) in table {
            let profile = HddProfile::seed_000(cache_mib);
            let (mut hdd, len) = (Hdd::new(profile), kib << 10);
            // First the commands that fill the cache; then about 40 s.
            let (warm, count) = ((cache_mib << 20) / u64::from(len) * 3, 2_000_000 / kib as u64);
            let places = random(Op::Write, len, profile.capacity);
            let rate = drive(&mut hdd, 1, (warm, count), places).per_second();
            let (found, error) =
                (rate * f64::from(len) / MIB, rate * f64::from(len) / MIB / published - 1.0);
            assert!(error.abs() < 0.1, "{cache_mib} MiB, {kib} KiB: {found:.1} for {published}");
        }
    }
}

#[test]
fn mean_seek_time_matches_data_sheet() {
    // Ultrastar HC310: 7.4 ms on average for a read (before a write it settles).
    for cache_mib in [16, 32, 64] {
        let profile = HddProfile::seed_000(cache_mib);
        let read = (profile.mean_seek_ns() - profile.settle_ns) as f64;
        assert!((read / 7.4e6 - 1.0).abs() < 0.1, "{read}");
    }
}

#[test]
fn other_speeds_read_at_their_media_rate_and_seek_as_described() {
    for (profile, seek_ms) in [(HddProfile::rpm_5400(), 11.0), (HddProfile::rpm_10k(), 3.8)] {
        let media = profile.media_bytes_per_second as f64;
        let mut hdd = Hdd::new(profile);
        let rate = drive(&mut hdd, 1, (10, 2000), sequential(Op::Read, 128 << 10)).per_second();
        assert!((rate * f64::from(128 << 10) / media - 1.0).abs() < 0.02, "{rate}");
        assert!((profile.mean_seek_ns() as f64 / 1e6 / seek_ms - 1.0).abs() < 0.05);
        // A seek and half a revolution, and what the drive spends on the command itself.
        let mut hdd = Hdd::new(profile);
        let places = random(Op::Read, 4096, profile.capacity);
        let took = 1e3 / drive(&mut hdd, 1, (10, 2000), places).per_second();
        let expected = seek_ms - profile.settle_ns as f64 / 1e6 + profile.turn_ns as f64 / 2e6;
        assert!((took / expected - 1.0).abs() < 0.05, "{took:.2} for {expected:.2}");
    }
}

#[test]
fn cached_neighbours_are_destaged_in_one_movement() {
    let profile = HddProfile::seed_000(32);
    let mut hdd = Hdd::new(profile);
    let rate = drive(&mut hdd, 8, (1000, 4000), sequential(Op::Write, 128 << 10)).per_second();
    let media = profile.media_bytes_per_second as f64;
    assert!((rate * f64::from(128 << 10) / media - 1.0).abs() < 0.02, "{rate}");
    // The head is positioned at the start, and once after each overrun of the host.
    assert!(hdd.counters().positionings < 20, "{:?}", hdd.counters());
}

/// Runs until `count` completions; returns each token with its time.
fn run(
    hdd: &mut Hdd,
    count: usize,
    mut next: impl FnMut(u64) -> Option<ModelCommand>,
) -> Vec<(u64, Instant)> {
    let (mut done, mut ended) = (Vec::new(), Vec::new());
    while ended.len() < count {
        let at = hdd.next_timeout().expect("a drive with commands works");
        hdd.on_timeout(at, &mut done);
        for token in done.drain(..) {
            ended.push((token, at));
            if let Some(order) = next(token) {
                hdd.submit(at, order);
            }
        }
    }
    ended
}

/// Reads of each of `reads` clients beside writes of `writes` clients at depth 1 for a while:
/// commands answered in a second of each, and the longest wait of a read.
fn beside(
    profile: HddProfile,
    (reads, read_len): (u64, u32),
    (writes, write_len): (u64, u32),
) -> (f64, f64, u64) {
    let mut hdd = Hdd::new(profile);
    let mut places = random(Op::Read, 1 << 20, profile.capacity);
    let mut order = |token: u64| {
        let (op, len) = if token < reads { (Op::Read, read_len) } else { (Op::Write, write_len) };
        ModelCommand { token, op, len, ..places(0) }
    };
    for token in 0..reads + writes {
        hdd.submit(Instant(0), order(token));
    }
    // The first part fills the cache.
    let warm =
        (profile.cache_bytes / u64::from(write_len.max(1))) as usize * 2 * usize::from(writes > 0);
    let ended = run(&mut hdd, warm + 3_000, |token| Some(order(token)));
    let (start, end) = (ended[warm].1, ended[ended.len() - 1].1);
    let counted = &ended[warm..];
    let count = |is: &dyn Fn(u64) -> bool| counted.iter().filter(|(token, _)| is(*token)).count();
    let seconds = end.since(start) as f64 / 1e9;
    let mut last = vec![start; reads as usize];
    let mut longest = 0;
    for &(token, at) in counted.iter().filter(|(token, _)| *token < reads) {
        longest = longest.max(at.since(last[token as usize]));
        last[token as usize] = at;
    }
    longest = last.iter().map(|&at| end.since(at)).fold(longest, u64::max);
    let rate = |count: usize| count as f64 / seconds;
    (rate(count(&|token| token < reads)), rate(count(&|token| token >= reads)), longest)
}

#[test]
fn reads_beside_one_writer_are_served_and_the_writer_too() {
    for cache_mib in [16, 32, 64] {
        let profile = HddProfile::seed_000(cache_mib);
        let (alone, _, _) = beside(profile, (1, 4096), (0, 1 << 20));
        let (_, writes_alone, _) = beside(profile, (0, 4096), (1, 1 << 20));
        let (reads, writes, longest) = beside(profile, (1, 4096), (1, 1 << 20));
        // The head alternates: a read waits for the destage in progress and its own positioning.
        assert!(reads > alone / 3.0, "{reads:.1} reads per second, {alone:.1} alone");
        assert!(writes > writes_alone / 3.0, "{writes:.1} writes, {writes_alone:.1} alone");
        assert!(longest < 80 * MS, "{longest}");
    }
}

#[test]
fn many_reads_leave_a_waiting_write_every_second_movement() {
    let profile = HddProfile::seed_000(32);
    let (reads, writes, _) = beside(profile, (24, 4096), (8, 1 << 20));
    let per_write = reads / writes;
    // A destage of 1152 KiB takes about 0.9 of these writes from the cache.
    assert!((0.7..1.1).contains(&per_write), "{reads:.1} reads, {writes:.1} writes");
}

#[test]
fn read_waits_for_one_destage_although_a_write_waits_for_many() {
    let profile = HddProfile::seed_000(16);
    let mut hdd = Hdd::new(profile);
    let mut places = random(Op::Write, 4096, profile.capacity);
    // The cache is full of small extents, and a write needs the space of 256 of them.
    for token in 0..5_000 {
        hdd.submit(Instant(0), ModelCommand { token, ..places(token) });
    }
    let full = run(&mut hdd, 5_000, |_| None)[4_999].1;
    let order = |token, op, len| ModelCommand { token, op, len, offset: 1 << 40 };
    hdd.submit(full, order(6_000, Op::Write, 1 << 20));
    hdd.submit(full, order(6_001, Op::Read, 4096));
    let (token, at) = run(&mut hdd, 1, |_| None)[0];
    assert_eq!(token, 6_001);
    assert!(at.since(full) < 60 * MS, "{}", at.since(full));
}

#[test]
fn read_older_than_half_a_second_goes_first() {
    let profile = HddProfile::seed_000(32);
    let mut hdd = Hdd::new(profile);
    let mut prng = headworks_core::prng::Prng::new(5);
    // Thirty clients near the start of the disk, and one read at its other end.
    let mut near = |token| {
        let offset = prng.below(1 << 20) * 4096;
        ModelCommand { token, op: Op::Read, offset, len: 4096 }
    };
    (1..31).for_each(|token| hdd.submit(Instant(0), near(token)));
    let far = ModelCommand { token: 0, op: Op::Read, offset: profile.capacity - 4096, len: 4096 };
    hdd.submit(Instant(0), far);
    let ended = run(&mut hdd, 600, |token| (token > 0).then(|| near(token)));
    let (_, at) = ended.iter().find(|(token, _)| *token == 0).expect("the far read is served");
    assert!((500 * MS..560 * MS).contains(&at.0), "{at:?}");
}

#[test]
fn sequential_reads_at_depth_1_run_at_the_media_rate() {
    for (len, part) in [(128 << 10, 0.95), (4096, 0.5)] {
        let profile = HddProfile::seed_000(32);
        let mut hdd = Hdd::new(profile);
        let rate = drive(&mut hdd, 1, (100, 20_000), sequential(Op::Read, len)).per_second();
        let found = rate * f64::from(len) / profile.media_bytes_per_second as f64;
        assert!((part..1.01).contains(&found), "{len}: {found}");
        assert!(hdd.counters().positionings < 10, "{:?}", hdd.counters());
    }
}

#[test]
fn look_ahead_ends_at_its_limit_and_with_the_next_movement() {
    let profile = HddProfile::seed_000(32);
    let read = |hdd: &mut Hdd, at: u64, offset: u64| {
        hdd.on_timeout(Instant(at), &mut Vec::new());
        hdd.submit(Instant(at), ModelCommand { token: 9, op: Op::Read, offset, len: 4096 });
        let ended = run(hdd, 1, |_| None);
        ended[0].1.since(Instant(at))
    };
    let hit = profile.command_ns + transfer_ns(4096, profile.link_bytes_per_second);
    let mut hdd = Hdd::new(profile);
    read(&mut hdd, 0, 1 << 30);
    // A second later the head has read 1 MiB beyond the first read, and no more.
    let limit = (1 << 30) + 4096 + LOOK_AHEAD;
    assert!(read(&mut hdd, 1_000 * MS, limit) > hit);
    let mut hdd = Hdd::new(profile);
    read(&mut hdd, 0, 1 << 30);
    assert_eq!(read(&mut hdd, 1_000 * MS, 1 << 30), hit, "the read itself");
    assert_eq!(read(&mut hdd, 1_000 * MS + 1, limit - 4096), hit, "the end of the look-ahead");
    // The head then reads on, by 1 MiB beyond the last hit.
    assert_eq!(read(&mut hdd, 1_100 * MS, limit + LOOK_AHEAD - 4096), hit);
    // The destage of a write 2 ms after the read ends the look-ahead.
    let mut hdd = Hdd::new(profile);
    let end = read(&mut hdd, 0, 1 << 30);
    let at = Instant(end + 2 * MS);
    hdd.submit(at, ModelCommand { token: 1, op: Op::Write, offset: 0, len: 4096 });
    run(&mut hdd, 1, |_| None);
    let near = read(&mut hdd, end + 1_000 * MS, (1 << 30) + 65536);
    assert_eq!(near, hit, "read ahead before the destage");
    let mut hdd = Hdd::new(profile);
    read(&mut hdd, 0, 1 << 30);
    hdd.submit(at, ModelCommand { token: 1, op: Op::Write, offset: 0, len: 4096 });
    run(&mut hdd, 1, |_| None);
    assert!(read(&mut hdd, end + 1_000 * MS, limit - 4096) > hit, "the head was elsewhere");
    // A write over the segment makes it stale.
    let mut hdd = Hdd::new(profile);
    read(&mut hdd, 0, 1 << 30);
    hdd.submit(
        Instant(1_000 * MS),
        ModelCommand { token: 1, op: Op::Write, offset: 1 << 30, len: 4096 },
    );
    run(&mut hdd, 1, |_| None);
    assert!(read(&mut hdd, 2_000 * MS, (1 << 30) + 8192) > hit);
}

/// Commands per second of 8 KiB at random places, `write_percent` of them writes, with a full
/// cache.
fn mixed(cache_mib: u64, depth: u64, write_percent: u64) -> f64 {
    let profile = HddProfile::seed_000(cache_mib);
    let mut prng = headworks_core::prng::Prng::new(5);
    let mut places = random(Op::Read, 8192, profile.capacity);
    let next = |index| {
        let op = if prng.below(100) < write_percent { Op::Write } else { Op::Read };
        ModelCommand { op, ..places(index) }
    };
    let warm = (cache_mib << 20) / 8192 * 4;
    drive(&mut Hdd::new(profile), depth, (warm, 4_000), next).per_second()
}

#[test]
fn random_loads_are_in_the_range_of_7200_rpm_drives() {
    // No drive in particular: reviews of 7200 rpm drives with NCQ have 75 to 100 random reads
    // per second at depth 1 and 2 to 3 times as many at 32, and 70 % reads and 30 % writes
    // between 80 and 130 at depth 1 to 2, and 150 to 400 at 32.
    for cache_mib in [16, 32, 64] {
        let (one, deep) = (mixed(cache_mib, 1, 0), mixed(cache_mib, 32, 0));
        assert!((75.0..100.0).contains(&one), "{cache_mib} MiB: {one:.0}");
        assert!((2.0..3.0).contains(&(deep / one)), "{cache_mib} MiB: {deep:.0}");
        let (one, deep) = (mixed(cache_mib, 2, 30), mixed(cache_mib, 32, 30));
        assert!((80.0..130.0).contains(&one), "{cache_mib} MiB, 70/30: {one:.0}");
        assert!((150.0..400.0).contains(&deep), "{cache_mib} MiB, 70/30: {deep:.0}");
    }
}

#[test]
fn read_overtakes_cached_writes() {
    let profile = HddProfile::seed_000(32);
    let mut hdd = Hdd::new(profile);
    let mut writes = random(Op::Write, 1 << 20, profile.capacity);
    (0..20).for_each(|token| hdd.submit(Instant(0), ModelCommand { token, ..writes(token) }));
    hdd.submit(Instant(0), ModelCommand { token: 99, op: Op::Read, offset: 1 << 40, len: 4096 });
    let (mut done, mut at) = (Vec::new(), Instant(0));
    while !done.contains(&99) {
        at = hdd.next_timeout().unwrap();
        hdd.on_timeout(at, &mut done);
    }
    // It waits for the destage in progress and its own seek, not for 20 transfers and seeks.
    assert!(at.0 < 30_000_000 && done.len() < 21, "{at:?} {}", done.len());
}
