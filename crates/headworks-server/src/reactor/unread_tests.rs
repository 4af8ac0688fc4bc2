//! Clients that leave replies unread, beside clients that read: what the pool of buffers does for the latter.
//!
//! The harness runs the reactor's turns in one thread, with real sockets. The unread replies use up all of the pool that
//! their export may hold. Then a small read is answered in a bounded number of turns, and a large one as soon
//! as the unread data are old. The readers of the unread replies get their bytes in the end.

use headworks::{Device, FilterDevice, MemDevice};
use headworks_images::{ErrorFilter, ErrorOptions};

use super::fairness_tests::{Client, Harness, device_parts};
use headworks_nbd::tls::TlsMode;
use headworks_nbd::tls::testing::Certificates;
use headworks_nbd::wire::SIMPLE_REPLY_BYTES;

const MIB: u32 = 1 << 20;
/// Bytes of the pool, the smallest that the server accepts.
const POOL: usize = 64 << 20;
/// Bytes of the device.
const DEVICE: u64 = 8 << 20;
/// Clients that leave their replies unread.
const SILENT: usize = 60;
/// Reads of 1 MiB that each of them asks for.
const ASKED: u64 = 4;

/// A device that lends no memory, so that reads of data need buffers.
fn buffered_device() -> Box<dyn Device> {
    let device = MemDevice::new(DEVICE).unwrap();
    let never = ErrorOptions { count: 0, ..ErrorOptions::default() };
    Box::new(FilterDevice::new(ErrorFilter::new(never), Box::new(device)))
}

fn unread_replies_delay_no_reader(certificates: Option<&Certificates>) {
    let acceptor = certificates.map(|certificates| certificates.offer(TlsMode::Require, false));
    let parts = device_parts(acceptor, buffered_device(), DEVICE, POOL);
    let mut harness = Harness::with(parts);
    let mut reader = Client::new(&mut harness, certificates);
    for part in 0..DEVICE / u64::from(MIB) {
        reader.write(&mut harness, part * u64::from(MIB), MIB);
    }
    let mut silent: Vec<Client> =
        (0..SILENT).map(|_| Client::new(&mut harness, certificates)).collect();
    silent.iter_mut().for_each(|client| client.reads_within(ASKED, MIB, DEVICE));
    // All that is admitted is read, as much as is left then; the rest waits for buffers.
    let by_share = (POOL - POOL / 8) / 2 - MIB as usize;
    for round in 0.. {
        harness.round();
        if harness.buffer_stats().taken >= by_share {
            break;
        }
        assert!(round < 10_000, "{:?}", harness.buffer_stats());
    }

    for _ in 0..20 {
        let (before, turns) = (reader.got, harness.turns);
        reader.reads_within(1, 4096, DEVICE);
        while reader.got < before + SIMPLE_REPLY_BYTES + 4096 {
            harness.round();
            reader.take();
            assert!(harness.turns - turns < 2000, "{:?}", harness.buffer_stats());
        }
    }
    // Sixteen at once are more than the free part of the pool. They wait until the unread data are old.
    let before = reader.got;
    reader.reads_within(16, MIB, DEVICE);
    let began = std::time::Instant::now();
    while reader.got < before + 16 * (SIMPLE_REPLY_BYTES + MIB as usize) {
        harness.round();
        reader.take();
        assert!(began.elapsed().as_secs() < 30, "{:?}", harness.buffer_stats());
    }
    let stats = harness.buffer_stats();
    assert!(stats.dropped_replies > 0 && stats.closed == 0, "{stats:?}");
    assert!(stats.taken <= POOL && stats.size == POOL, "{stats:?}");

    // A client that reads after all gets everything.
    let whole = ASKED as usize * (SIMPLE_REPLY_BYTES + MIB as usize);
    let began = std::time::Instant::now();
    while silent.iter().any(|client| client.got < whole) {
        harness.round();
        silent.iter_mut().for_each(Client::take);
        assert!(began.elapsed().as_secs() < 60, "{:?}", harness.buffer_stats());
    }
    assert!(silent.iter().all(|client| client.got == whole));
    harness.round();
    assert_eq!(harness.buffer_stats().taken, 0);
}

#[test]
fn unread_replies_delay_no_other_client() {
    unread_replies_delay_no_reader(None);
}

#[test]
fn unread_replies_delay_no_other_client_with_tls() {
    unread_replies_delay_no_reader(Some(&Certificates::new("unread")));
}
