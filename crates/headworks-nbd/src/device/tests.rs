//! The device against a remote in the same thread: each rule by itself. The world beside this file has all at once, by seeds.

use std::io::Write;

use headworks_core::BioFlags;
use headworks_core::extent::extents;
use headworks_core::prng::Prng;
use headworks_core::time::{MS, SEC};
use headworks_testing::Bench;

use super::world::remote::{Remote, Shared, TestDial, all_flags, lock};
use super::*;
use crate::wire::SIMPLE_REPLY_MAGIC;

const NONE: BioFlags = BioFlags::NONE;

type TestBench = Bench<NbdDevice<TestDial>>;

fn bench(options: RemoteOptions, remote: &Shared, dial: TestDial) -> TestBench {
    let opened = lock(remote).open();
    Bench::new(NbdDevice::new("a remote", options, 5, (dial, opened)))
}

fn started(
    flags: TransmissionFlags,
    structured: bool,
    options: RemoteOptions,
) -> (TestBench, Shared) {
    let (remote, dial) = Remote::new(1, flags, structured);
    (bench(options, &remote, dial), remote)
}

/// Lets both sides do what they can without time; returns whether anything moved.
fn settle(bench: &mut TestBench, remote: &Shared) -> bool {
    let mut any = false;
    loop {
        let mut moved = lock(remote).pump();
        moved |= bench.step_now();
        any |= moved;
        if !moved {
            return any;
        }
    }
}

/// Until every command is answered, also with time.
fn drain(bench: &mut TestBench, remote: &Shared, count: usize) -> Vec<Completion> {
    for _ in 0..10_000 {
        settle(bench, remote);
        if bench.completions.len() >= count {
            break;
        }
        bench.now = bench.now.after(10 * MS);
    }
    assert_eq!(bench.completions.len(), count, "every command has one answer");
    std::mem::take(&mut bench.completions)
}

fn run(bench: &mut TestBench, remote: &Shared, op: Op, offset: u64, len: u32) -> Status {
    bench.submit(op, NONE, offset, len);
    drain(bench, remote, 1)[0].status
}

#[test]
fn stream_cut_at_any_byte_changes_no_result() {
    for structured in [false, true] {
        let mut cut = 0;
        loop {
            let (mut bench, remote) = started(
                all_flags(),
                structured,
                RemoteOptions { stable: true, ..RemoteOptions::default() },
            );
            bench.buffer()[..2048].fill(7);
            assert_eq!(run(&mut bench, &remote, Op::Write, 0, 2048), Ok(()));
            lock(&remote).stable[..2048].fill(7);
            let sent = lock(&remote).sent;
            lock(&remote).cut_after = Some(sent + cut);
            bench.buffer()[..4096].fill(1);
            bench.submit(Op::Read, NONE, 512, 1024);
            bench.submit(Op::Flush, NONE, 0, 0);
            drain(&mut bench, &remote, 2);
            assert!(bench.buffer()[..1024].iter().all(|&byte| byte == 7), "cut after {cut}");
            assert_eq!(run(&mut bench, &remote, Op::BlockStatus, 0, 4096), Ok(()));
            let list: Vec<_> = extents(bench.buffer(), 4096).map(|extent| extent.state.0).collect();
            assert_eq!(list, if structured { vec![3, 0] } else { vec![0] });
            assert!(bench.lost.is_empty(), "a stable remote loses nothing");
            if lock(&remote).cut_after.is_some() {
                break;
            }
            cut += 1;
        }
        assert!(cut > 1024);
    }
}

#[test]
fn only_uncovered_writes_are_lost() {
    // Steps before the restart, and whether something is lost.
    let cases: [(&[Op], bool); 5] = [
        (&[], false),
        (&[Op::Write], true),
        (&[Op::Write, Op::Flush], false),
        (&[Op::Write, Op::Flush, Op::WriteZeroes], true),
        (&[Op::Discard, Op::Read], false),
    ];
    for (ops, is_lost) in cases {
        let nothing_kept = RemoteOptions { keep: 0, ..RemoteOptions::default() };
        let (mut bench, remote) = started(all_flags(), true, nothing_kept);
        for &op in ops {
            assert_eq!(run(&mut bench, &remote, op, 0, 512), Ok(()));
        }
        settle(&mut bench, &remote);
        lock(&remote).restart();
        settle(&mut bench, &remote);
        assert_eq!(!bench.lost.is_empty(), is_lost, "{ops:?}");
        assert_eq!(run(&mut bench, &remote, Op::Flush, 0, 0), Ok(()), "the shard fails it");
    }
    // After a loss the device flushes by itself: what it has told is all.
    let nothing_kept = RemoteOptions { keep: 0, ..RemoteOptions::default() };
    let (mut bench, remote) = started(all_flags(), true, nothing_kept);
    assert_eq!(run(&mut bench, &remote, Op::Write, 0, 512), Ok(()));
    for losses in [1, 0, 0] {
        settle(&mut bench, &remote);
        lock(&remote).disconnect();
        settle(&mut bench, &remote);
        assert_eq!(run(&mut bench, &remote, Op::Read, 0, 512), Ok(()));
        assert_eq!(std::mem::take(&mut bench.lost).len(), losses);
    }
    // Without a volatile cache nothing can be lost.
    let flags = TransmissionFlags::SEND_TRIM;
    let (mut bench, remote) = started(flags, true, RemoteOptions::default());
    assert_eq!(run(&mut bench, &remote, Op::Write, 0, 512), Ok(()));
    lock(&remote).restart();
    settle(&mut bench, &remote);
    assert!(bench.lost.is_empty());
}

/// A kept write that is refused is a loss, and what is sent after it is not overtaken by those that were sent beside it.
#[test]
fn refused_kept_write_is_a_loss_and_replaces_nothing_newer() {
    const BLOCKS: u64 = 24;
    for seed in 0..100 {
        let (remote, dial) = Remote::new(seed, all_flags(), false);
        lock(&remote).connections = 4;
        let mut bench =
            bench(RemoteOptions { keep: 32 << 10, ..RemoteOptions::default() }, &remote, dial);
        bench.buffer()[..512].fill(1);
        for block in 0..BLOCKS {
            assert_eq!(run(&mut bench, &remote, Op::Write, block * 512, 512), Ok(()));
        }
        lock(&remote).restart();
        lock(&remote).refusals.next_changes = 1;
        while bench.step_now() {}
        // The ring is used again as these are acknowledged.
        bench.buffer()[..512].fill(2);
        for block in 0..BLOCKS {
            bench.submit(Op::Write, NONE, block * 512, 512);
        }
        let answers = drain(&mut bench, &remote, BLOCKS as usize);
        assert!(answers.iter().all(|done| done.status == Ok(())), "seed {seed}");
        settle(&mut bench, &remote);
        assert_eq!(bench.lost.len(), 1, "seed {seed}");
        let remote = lock(&remote);
        assert!(
            remote.current[..BLOCKS as usize * 512].iter().all(|&byte| byte == 2),
            "seed {seed}"
        );
    }
}

/// Sends bytes on every stream, as if the remote had made them.
fn say(remote: &Shared, bytes: &[u8]) {
    for stream in &mut lock(remote).streams {
        stream.output.extend_from_slice(bytes);
    }
}

fn simple(cookie: u64) -> Vec<u8> {
    let mut bytes = SIMPLE_REPLY_MAGIC.to_be_bytes().to_vec();
    bytes.extend([0; 4]);
    bytes.extend(cookie.to_be_bytes());
    bytes
}

#[test]
fn reply_that_matches_no_request_ends_the_connection() {
    let (mut bench, remote) = started(all_flags(), true, RemoteOptions::default());
    assert_eq!(run(&mut bench, &remote, Op::Flush, 0, 0), Ok(()));
    for (said, cookie) in [("answered twice", 1 << 32), ("of no slot", 99), ("of no generation", 0)]
    {
        let attempts = lock(&remote).attempts;
        say(&remote, &simple(cookie));
        bench.submit(Op::Flush, NONE, 0, 0);
        drain(&mut bench, &remote, 1);
        assert_eq!(lock(&remote).attempts, attempts + 1, "{said}");
    }
}

#[test]
fn random_bytes_of_a_server_never_panic_and_commands_are_answered() {
    let mut prng = Prng::new(9);
    for round in 0..600 {
        let options = RemoteOptions { reconnect_ns: SEC, ..RemoteOptions::default() };
        let (mut bench, remote) = started(all_flags(), round % 2 == 0, options);
        bench.submit(Op::Read, BioFlags::HOLE_OK, 0, 4096);
        bench.submit(Op::Write, NONE, 8192, 4096);
        bench.submit(Op::BlockStatus, NONE, 0, 8192);
        while bench.step_now() {}
        // Replies that are nearly right go deeper than noise.
        let mut bytes = Vec::new();
        for _ in 0..prng.between(1, 4) {
            let magic = [wire::STRUCTURED_REPLY_MAGIC, SIMPLE_REPLY_MAGIC][prng.below(2) as usize];
            bytes.extend(magic.to_be_bytes());
            bytes.extend([0, prng.below(2) as u8, 0, [0, 1, 2, 5, 9][prng.below(5) as usize]]);
            bytes.extend((1_u64 << 32 | prng.below(4)).to_be_bytes());
            bytes.extend((prng.below(40) as u32 * 4).to_be_bytes());
            bytes.extend((0..prng.below(60)).map(|_| prng.below(3) as u8));
        }
        lock(&remote).is_there = false;
        let mut stream = lock(&remote).streams.remove(0);
        stream.socket.write_all(&bytes).unwrap();
        while bench.step_now() {}
        drop(stream);
        drain(&mut bench, &remote, 3);
    }
}

/// A chunk of data for the first command: `last`, offset, bytes.
fn data_chunk(last: bool, offset: u64, data: &[u8]) -> Vec<u8> {
    let mut bytes = wire::STRUCTURED_REPLY_MAGIC.to_be_bytes().to_vec();
    bytes.extend([0, u8::from(last), 0, 1]);
    bytes.extend((1_u64 << 32).to_be_bytes());
    bytes.extend((8 + data.len() as u32).to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(data);
    bytes
}

/// Lets the remote answer the first read of 1024 bytes by hand; returns the attempts to connect that follow.
fn answer_read(chunks: &[(u64, &[u8])]) -> (TestBench, Shared, u32) {
    let (mut bench, remote) = started(all_flags(), true, RemoteOptions::default());
    lock(&remote).stable[..1024].fill(3);
    lock(&remote).current[..1024].fill(3);
    bench.buffer()[..1024].fill(0x55);
    bench.submit(Op::Read, NONE, 0, 1024);
    while bench.step_now() {}
    let bytes: Vec<u8> = (1..)
        .zip(chunks)
        .flat_map(|(number, (offset, data))| data_chunk(number == chunks.len(), *offset, data))
        .collect();
    // The device may close before it has taken all.
    let _ = lock(&remote).streams[0].socket.write_all(&bytes);
    while bench.step_now() {}
    let attempts = lock(&remote).attempts;
    (bench, remote, attempts)
}

#[test]
fn chunks_that_leave_a_gap_end_the_connection() {
    let half: &[u8] = &[9; 512];
    let cases: [&[(u64, &[u8])]; 6] = [
        &[(512, half), (512, half)],
        &[(0, half), (0, half)],
        &[(0, half), (256, half)],
        &[(0, &[9; 1024]), (0, &[9; 1024])],
        &[(512, half)],
        &[(0, &[9; 256]), (256, &[9; 256]), (0, half)],
    ];
    for (number, chunks) in cases.iter().enumerate() {
        let (mut bench, remote, _) = answer_read(chunks);
        assert_eq!(drain(&mut bench, &remote, 1)[0].status, Ok(()), "{number}: asked again");
        assert_eq!(lock(&remote).attempts, 1, "{number}");
        assert!(bench.buffer()[..1024].iter().all(|&byte| byte == 3), "{number}");
    }
    let (mut bench, _, attempts) = answer_read(&[(512, half), (0, half)]);
    assert_eq!(std::mem::take(&mut bench.completions)[0].status, Ok(()), "in any order");
    assert!(attempts == 0 && bench.buffer()[..1024].iter().all(|&byte| byte == 9));
}

#[test]
fn reply_of_endless_chunks_ends_the_connection() {
    let (mut bench, remote) = started(all_flags(), true, RemoteOptions::default());
    bench.submit(Op::Flush, NONE, 0, 0);
    while bench.step_now() {}
    let mut error = wire::STRUCTURED_REPLY_MAGIC.to_be_bytes().to_vec();
    error.extend([0, 0, 0x80, 1]);
    error.extend((1_u64 << 32).to_be_bytes());
    error.extend([0, 0, 0, 6, 0, 0, 0, 5, 0, 0]);
    let _ = lock(&remote).streams[0].socket.write_all(&error.repeat(200));
    assert_eq!(drain(&mut bench, &remote, 1)[0].status, Ok(()), "asked again");
    assert_eq!(lock(&remote).attempts, 1);
}

#[test]
fn everything_fails_after_reconnect_time_and_works_again_later() {
    let options = RemoteOptions { reconnect_ns: 2 * SEC, ..RemoteOptions::default() };
    let (mut bench, remote) = started(all_flags(), true, options);
    lock(&remote).is_there = false;
    bench.submit(Op::Write, NONE, 0, 512);
    while bench.step_now() {}
    lock(&remote).restart();
    while bench.step_now() {}
    bench.submit(Op::Read, NONE, 4096, 512);
    let began = bench.now;
    let done = drain(&mut bench, &remote, 2);
    assert!(done.iter().all(|done| done.status == Err(IoError::TimedOut)), "{done:?}");
    let took = bench.now.since(began);
    assert!((2 * SEC..3 * SEC).contains(&took), "{took}");
    assert_eq!(run(&mut bench, &remote, Op::Read, 0, 512), Err(IoError::TimedOut));
    let flush = run(&mut bench, &remote, Op::Flush, 0, 0);
    assert_eq!(flush, Err(IoError::TimedOut), "there may be writes of an earlier process");
    lock(&remote).is_there = true;
    bench.now = bench.now.after(6 * SEC);
    settle(&mut bench, &remote);
    assert_eq!(run(&mut bench, &remote, Op::Read, 0, 512), Ok(()));
}

#[test]
fn flush_without_remote_succeeds_only_if_it_covers_nothing() {
    for (stable, ops, expected) in [
        (false, &[Op::Flush][..], Ok(())),
        (true, &[Op::Flush, Op::Write], Err(IoError::TimedOut)),
        (true, &[Op::Write, Op::Flush], Ok(())),
    ] {
        let options = RemoteOptions { stable, reconnect_ns: SEC, ..RemoteOptions::default() };
        let (mut bench, remote) = started(all_flags(), true, options);
        for &op in ops {
            assert_eq!(
                run(&mut bench, &remote, op, 0, if op == Op::Flush { 0 } else { 512 }),
                Ok(())
            );
        }
        lock(&remote).is_there = false;
        while bench.step_now() {}
        lock(&remote).restart();
        while bench.step_now() {}
        assert_eq!(run(&mut bench, &remote, Op::Flush, 0, 0), expected, "{stable} {ops:?}");
    }
}

#[test]
fn attempts_double_their_pauses_up_to_five_seconds() {
    let (mut bench, remote) = started(all_flags(), true, RemoteOptions::default());
    lock(&remote).is_there = false;
    while bench.step_now() {}
    lock(&remote).restart();
    settle(&mut bench, &remote);
    let mut pauses = Vec::new();
    for attempt in 1..=12 {
        let before = bench.now;
        while lock(&remote).attempts < attempt {
            assert!(bench.step());
        }
        while bench.step_now() {}
        pauses.push(bench.now.since(before) / MS);
    }
    let bound = |index: usize| 5000.min(100 << index);
    for (index, &pause) in pauses.iter().enumerate() {
        assert!((bound(index) / 2..=bound(index)).contains(&pause), "{pauses:?}");
    }
    assert!(pauses[6..].windows(2).any(|pair| pair[0] != pair[1]), "with jitter: {pauses:?}");
}

#[test]
fn remote_that_drops_every_connection_fails_commands_in_time() {
    let options = RemoteOptions { reconnect_ns: 2 * SEC, ..RemoteOptions::default() };
    let (mut bench, remote) = started(all_flags(), true, options);
    bench.submit(Op::Read, NONE, 0, 512);
    let began = bench.now;
    while bench.completions.is_empty() {
        while bench.step_now() {}
        lock(&remote).restart();
        while bench.step_now() {}
        bench.now = bench.now.after(20 * MS);
    }
    assert_eq!(bench.completions[0].status, Err(IoError::TimedOut));
    assert!(bench.now.since(began) < 4 * SEC && lock(&remote).attempts > 3);
}

#[test]
fn writes_in_flight_fail_if_they_are_not_to_be_sent_again() {
    let options = RemoteOptions { fail_writes: true, ..RemoteOptions::default() };
    let (mut bench, remote) = started(all_flags(), true, options);
    let write = bench.submit(Op::Write, NONE, 0, 512);
    let read = bench.submit(Op::Read, NONE, 4096, 512);
    while bench.step_now() {}
    lock(&remote).restart();
    while bench.step_now() {}
    let unsent = bench.submit(Op::Write, NONE, 8192, 512);
    let done = drain(&mut bench, &remote, 3);
    let status = |id| done.iter().find(|done| done.id == id).unwrap().status;
    assert_eq!(status(write), Err(IoError::Medium));
    assert_eq!((status(read), status(unsent)), (Ok(()), Ok(())));

    let options = RemoteOptions { reconnect_ns: 0, ..RemoteOptions::default() };
    let (mut bench, remote) = started(all_flags(), true, options);
    bench.submit(Op::Read, NONE, 0, 512);
    while bench.step_now() {}
    lock(&remote).restart();
    while bench.step_now() {}
    assert_eq!(bench.completions[0].status, Err(IoError::TimedOut), "at once");
    bench.completions.clear();
}

#[test]
fn silent_connection_is_given_up_and_the_command_sent_again() {
    let options = RemoteOptions { timeout_ns: 5 * SEC, ..RemoteOptions::default() };
    let (mut bench, remote) = started(all_flags(), true, options);
    bench.now = bench.now.after(100 * SEC);
    while bench.step_now() {}
    assert_eq!(lock(&remote).attempts, 0, "an idle connection may be silent");
    bench.submit(Op::Read, NONE, 0, 512);
    let began = bench.now;
    while lock(&remote).attempts == 0 {
        assert!(bench.step());
    }
    assert!((5 * SEC..6 * SEC).contains(&bench.now.since(began)));
    assert_eq!(drain(&mut bench, &remote, 1)[0].status, Ok(()));
}

#[test]
fn another_export_under_the_name_is_barred() {
    type Change = fn(&mut Export);
    let change: [(&str, Change); 3] = [
        ("size", |export| export.size += 512),
        ("access", |export| export.flags = export.flags.with(TransmissionFlags::READ_ONLY)),
        ("offer", |export| export.flags = TransmissionFlags::SEND_FLUSH),
    ];
    for (what, change) in change {
        let (mut bench, remote) = started(all_flags(), true, RemoteOptions::default());
        assert_eq!(run(&mut bench, &remote, Op::Read, 0, 512), Ok(()));
        change(&mut lock(&remote).export);
        lock(&remote).restart();
        while bench.step_now() {}
        bench.submit(Op::Read, NONE, 0, 512);
        assert_eq!(drain(&mut bench, &remote, 1)[0].status, Err(IoError::Medium), "{what}");
        bench.now = bench.now.after(100 * SEC);
        while bench.step_now() {}
        assert_eq!(lock(&remote).attempts, 1, "{what}: no attempt follows");
        let report = bench.device().status().report();
        assert_eq!((report.state, report.losses), (RemoteState::Barred, 1), "{what}");
        assert_eq!(std::mem::take(&mut bench.lost).len(), 1, "{what}: the shard fails flushes");
        let flush = run(&mut bench, &remote, Op::Flush, 0, 0);
        assert_eq!(flush, Ok(()), "{what}: an acknowledged loss leaves nothing to flush");
    }
}

#[test]
fn errors_and_shutdown_of_the_remote_are_told_apart() {
    let (mut bench, remote) = started(all_flags(), false, RemoteOptions::default());
    let reply = |slot: u64, code: u32| {
        let mut bytes = simple(1 << 32 | slot);
        bytes[4..8].copy_from_slice(&code.to_be_bytes());
        bytes
    };
    bench.submit(Op::Write, NONE, 0, 512);
    while bench.step_now() {}
    lock(&remote).streams[0].socket.write_all(&reply(0, 28)).unwrap();
    while bench.step_now() {}
    assert_eq!(std::mem::take(&mut bench.completions)[0].status, Err(IoError::NoSpace));

    bench.submit(Op::Write, NONE, 0, 512);
    while bench.step_now() {}
    let mut shutdown = reply(0, 108);
    shutdown[11] = 2;
    lock(&remote).streams[0].socket.write_all(&shutdown).unwrap();
    assert_eq!(drain(&mut bench, &remote, 1)[0].status, Ok(()), "sent again");
    assert_eq!(lock(&remote).attempts, 1);
}
