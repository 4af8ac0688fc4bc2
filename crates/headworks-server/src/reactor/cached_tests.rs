//! Reads of cached data: they are sent from the frames of the cache, need no buffer, and are never a mixture of versions.
//!
//! The harness runs the reactor's turns in one thread, with real sockets.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;

use headworks::MemDevice;
use headworks_core::prng::Prng;
use headworks_house::Buffer;
use headworks_nbd::tls::TlsMode;
use headworks_nbd::tls::testing::Certificates;
use headworks_nbd::wire::{RequestHeader, SIMPLE_REPLY_BYTES};

use super::fairness_tests::{Client, Harness, cached_parts};

const MIB: u32 = 1 << 20;
const BLOCK: usize = 4096;
/// Bytes of the pool, the smallest that the server accepts.
const POOL: usize = 64 << 20;
/// Bytes of the device.
const DEVICE: u64 = 8 << 20;
/// Frames of a cache that holds the device twice.
const FRAMES: u32 = 4096;

fn harness(certificates: Option<&Certificates>, frames: u32) -> Harness {
    let acceptor = certificates.map(|certificates| certificates.offer(TlsMode::Require, false));
    let device = Box::new(MemDevice::new(DEVICE).unwrap());
    Harness::with(cached_parts(acceptor, device, DEVICE, POOL, frames))
}

/// Writes all of the device, which is cached then.
fn fill(harness: &mut Harness, client: &mut Client) {
    for part in 0..DEVICE / u64::from(MIB) {
        client.write(harness, part * u64::from(MIB), MIB);
    }
}

/// Submits a read and waits for its reply for a bounded number of turns.
fn read(harness: &mut Harness, client: &mut Client, len: u32) {
    let (before, turns) = (client.got, harness.turns);
    client.reads_within(1, len, DEVICE);
    while client.got < before + SIMPLE_REPLY_BYTES + len as usize {
        harness.round();
        client.take();
        assert!(harness.turns - turns < 2000, "{:?}", harness.buffer_stats());
    }
}

/// Takes every buffer of the pool.
fn use_up(harness: &mut Harness) -> Vec<Buffer> {
    let pool = &mut harness.reactor.parts.io.pool;
    let sizes = (12..=25).rev().map(|order| 1_usize << order);
    sizes.flat_map(|len| std::iter::from_fn(|| pool.try_take(len)).collect::<Vec<_>>()).collect()
}

fn reads_need_no_buffer(certificates: Option<&Certificates>) {
    let mut harness = harness(certificates, FRAMES);
    let mut client = Client::new(&mut harness, certificates);
    fill(&mut harness, &mut client);
    reads_without_buffers(
        &mut harness,
        &mut client,
        &[4096, 512, MIB, 3 * MIB, 100 << 10].repeat(5),
    );
}

/// Reads while no buffer is free.
fn reads_without_buffers(harness: &mut Harness, client: &mut Client, lens: &[u32]) {
    let buffers = use_up(harness);
    assert!(harness.buffer_stats().taken == POOL);
    for len in lens {
        read(harness, client, *len);
    }
    let stats = harness.buffer_stats();
    assert_eq!((stats.waits, stats.taken), (0, POOL));
    let pool = &mut harness.reactor.parts.io.pool;
    buffers.into_iter().for_each(|buffer| pool.put(buffer));
}

#[test]
fn cached_reads_are_answered_without_a_buffer() {
    reads_need_no_buffer(None);
}

#[test]
fn cached_reads_are_answered_without_a_buffer_with_tls() {
    reads_need_no_buffer(Some(&Certificates::new("cached")));
}

/// A device in memory has a buffer for each read as any other device, and its bytes are those of the answer.
#[test]
fn read_of_memory_without_a_cache_waits_for_a_buffer() {
    let mut harness = harness(None, 0);
    let mut client = Client::new(&mut harness, None);
    fill(&mut harness, &mut client);
    let buffers = use_up(&mut harness);
    client.reads_within(1, MIB, DEVICE);
    for _ in 0..100 {
        harness.round();
        client.take();
    }
    assert_eq!((client.got, harness.buffer_stats().waiting), (0, 1));
    let users = harness.buffer_users();
    assert_eq!((users.len(), users[0].waiting, users[0].bytes), (1, 1, 0));
    let pool = &mut harness.reactor.parts.io.pool;
    buffers.into_iter().for_each(|buffer| pool.put(buffer));
    while client.got < SIMPLE_REPLY_BYTES + MIB as usize {
        harness.round();
        client.take();
    }
    read(&mut harness, &mut client, MIB);
    assert_eq!(harness.buffer_stats().taken, 0);
}

/// What is not cached is answered from the frames that the device fills.
#[test]
fn read_that_is_not_cached_needs_no_buffer() {
    let mut harness = harness(None, FRAMES);
    let mut client = Client::new(&mut harness, None);
    reads_without_buffers(&mut harness, &mut client, &[MIB, 4096, 3 * MIB]);
}

/// A read that is not cached and wants more than a part of the cache waits until there is a buffer, and so does what its client sends
/// behind it; another client's reads do not.
#[test]
fn read_larger_than_a_part_of_the_cache_waits_for_a_buffer() {
    let mut harness = harness(None, FRAMES / 4);
    let mut client = Client::new(&mut harness, None);
    client.write(&mut harness, 0, MIB);
    let mut other = Client::new(&mut harness, None);
    let buffers = use_up(&mut harness);
    client.reads_within(3, 2 * MIB, DEVICE);
    for _ in 0..100 {
        harness.round();
        client.take();
        read(&mut harness, &mut other, 512);
    }
    assert_eq!((client.got, harness.buffer_stats().waiting), (0, 1));
    let pool = &mut harness.reactor.parts.io.pool;
    buffers.into_iter().for_each(|buffer| pool.put(buffer));
    let whole = 3 * (SIMPLE_REPLY_BYTES + 2 * MIB as usize);
    for _ in 0..10_000 {
        harness.round();
        client.take();
    }
    assert_eq!((client.got, harness.buffer_stats().taken), (whole, 0));
}

/// Clients that leave the replies to cached reads unread hold no buffers.
#[test]
fn unread_replies_of_cached_data_hold_no_buffers() {
    const SILENT: usize = 60;
    const ASKED: u64 = 8;
    let mut harness = harness(None, FRAMES);
    let mut reader = Client::new(&mut harness, None);
    fill(&mut harness, &mut reader);
    let mut silent: Vec<Client> = (0..SILENT).map(|_| Client::new(&mut harness, None)).collect();
    silent.iter_mut().for_each(|client| client.reads_within(ASKED, MIB, DEVICE));
    for _ in 0..1000 {
        harness.round();
    }
    for len in [4096, MIB].repeat(20) {
        read(&mut harness, &mut reader, len);
    }
    let stats = harness.buffer_stats();
    assert_eq!((stats.waits, stats.taken, stats.dropped_replies), (0, 0, 0));
    // A writer changes all that is lent: copied or dropped, the silent clients get it in the end.
    let mut writer = Client::new(&mut harness, None);
    fill(&mut harness, &mut writer);
    let stats = harness.buffer_stats();
    assert!(stats.taken < POOL / 4, "{stats:?}");
    let whole = ASKED as usize * (SIMPLE_REPLY_BYTES + MIB as usize);
    for round in 0.. {
        harness.round();
        silent.iter_mut().for_each(Client::take);
        if silent.iter().all(|client| client.got == whole) {
            break;
        }
        assert!(round < 100_000, "{:?}", harness.buffer_stats());
    }
    harness.round();
    assert_eq!(harness.buffer_stats().taken, 0);
}

/// A client hangs up with frames in its send queue: nothing of it is searched for any more.
#[test]
fn closed_connection_has_nothing_lent() {
    let mut harness = harness(None, FRAMES);
    let mut reader = Client::new(&mut harness, None);
    fill(&mut harness, &mut reader);
    for _ in 0..200 {
        let mut silent = Client::new(&mut harness, None);
        silent.reads_within(8, MIB, DEVICE);
        (0..20).for_each(|_| harness.round());
        drop(silent);
        (0..20).for_each(|_| harness.round());
    }
    let _buffers = use_up(&mut harness);
    read(&mut harness, &mut reader, MIB);
}

/// The bytes of a block in one version of it.
fn block_of(number: usize, version: u32) -> Vec<u8> {
    ((number as u64) << 32 | u64::from(version)).to_le_bytes().repeat(BLOCK / 8)
}

/// A client that parses the replies to its reads, and takes few bytes at a time.
struct SlowReader {
    socket: UnixStream,
    received: Vec<u8>,
    /// Reads in flight: cookie, first block, and the least versions of its blocks.
    asked: Vec<(u64, usize, Vec<u32>)>,
    cookie: u64,
}

impl SlowReader {
    fn ask(&mut self, prng: &mut Prng, answered: &[u32]) {
        let first = prng.below(answered.len() as u64) as usize;
        let most = (answered.len() - first).min([1, 4, 64, 512][prng.below(4) as usize]);
        let blocks = 1 + prng.below(most as u64) as usize;
        self.cookie += 1;
        let header = RequestHeader {
            flags: 0,
            command: 0,
            cookie: self.cookie,
            offset: (first * BLOCK) as u64,
            len: (blocks * BLOCK) as u32,
        };
        self.socket.write_all(&header.encode()).unwrap();
        self.asked.push((self.cookie, first, answered[first..first + blocks].to_vec()));
    }

    fn take(&mut self, most: usize) {
        let mut some = vec![0; most];
        match self.socket.read(&mut some) {
            Ok(count) => self.received.extend_from_slice(&some[..count]),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }

    /// Checks the next reply if it is whole; `written` has the youngest version of each block that may be read.
    fn check(&mut self, written: &[u32]) -> bool {
        let Some(header) = self.received.first_chunk::<SIMPLE_REPLY_BYTES>() else { return false };
        let cookie = u64::from_be_bytes(header[8..].try_into().unwrap());
        assert_eq!(header[4..8], [0; 4], "no error");
        let at = self.asked.iter().position(|read| read.0 == cookie).expect("a read in flight");
        let len = self.asked[at].2.len() * BLOCK;
        if self.received.len() < SIMPLE_REPLY_BYTES + len {
            return false;
        }
        let (_, first, least) = self.asked.swap_remove(at);
        let data = self.received[SIMPLE_REPLY_BYTES..][..len].chunks(BLOCK);
        for ((number, least), block) in (first..).zip(least).zip(data) {
            let version = u32::from_le_bytes(block[..4].try_into().unwrap());
            assert!((least..=written[number]).contains(&version), "{number}: {version}, {least}");
            assert!(block == block_of(number, version), "block {number} has one version");
        }
        self.received.drain(..SIMPLE_REPLY_BYTES + len);
        true
    }
}

/// Slow readers of blocks that a writer changes all the time, with a cache of some size: each block that arrives is one version,
/// none older than what was written before its request.
fn slow_readers_get_whole_versions(frames: u32, seed: u64) {
    const READS: usize = 1500;
    let mut prng = Prng::new(seed);
    let mut harness = harness(None, frames);
    let mut writer = Client::new(&mut harness, None).into_socket();
    let blocks = DEVICE as usize / BLOCK;
    // Versions as of the last answered write, and of the last submitted one.
    let (mut answered, mut written) = (vec![0; blocks], vec![0; blocks]);
    let mut readers: Vec<SlowReader> = (0..6)
        .map(|_| SlowReader {
            socket: Client::new(&mut harness, None).into_socket(),
            received: Vec::new(),
            asked: Vec::new(),
            cookie: 0,
        })
        .collect();
    let (mut done, mut next, mut writing) = (0, 0, None);
    while done < READS {
        if writing.is_none() {
            // At first all blocks, one after the other.
            let filled = next == blocks;
            let first = if filled { prng.below(blocks as u64) as usize } else { next };
            let count = if filled { 1 + prng.below(8) as usize } else { 16 };
            let count = count.min(blocks - first);
            next = blocks.min(next + count);
            let mut bytes = RequestHeader {
                flags: 0,
                command: 1,
                cookie: 0,
                offset: (first * BLOCK) as u64,
                len: (count * BLOCK) as u32,
            }
            .encode()
            .to_vec();
            for (number, version) in (first..).zip(&mut written[first..first + count]) {
                *version += 1;
                bytes.extend(block_of(number, *version));
            }
            writer.write_all(&bytes).unwrap();
            writing = Some(first..first + count);
        }
        harness.round();
        let mut reply = [0; SIMPLE_REPLY_BYTES];
        if let Ok(count) = writer.read(&mut reply) {
            assert_eq!((count, &reply[4..8]), (SIMPLE_REPLY_BYTES, &[0; 4][..]));
            let range = writing.take().expect("a write was in flight");
            answered[range.clone()].copy_from_slice(&written[range]);
        }
        for reader in readers.iter_mut().filter(|_| next == blocks) {
            if reader.asked.len() < 5 {
                reader.ask(&mut prng, &answered);
            }
            if prng.below(3) > 0 {
                reader.take(prng.below(200_000) as usize);
            }
            while reader.check(&written) {
                done += 1;
            }
        }
        assert!(harness.turns < 3_000_000, "{:?}", harness.buffer_stats());
    }
    let stats = harness.buffer_stats();
    assert_eq!(stats.closed, 0, "{stats:?}");
}

#[test]
fn slow_readers_get_whole_versions_of_changing_blocks() {
    slow_readers_get_whole_versions(FRAMES, 1);
}

#[test]
fn slow_readers_get_whole_versions_while_frames_are_reused() {
    slow_readers_get_whole_versions(1024, 2);
}
