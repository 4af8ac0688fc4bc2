//! Fairness of turns: connections with output make progress beside a busy client, and a turn beside bulk writers is short.
//!
//! A reply of megabytes leaves in as many pieces as the socket takes, while its reader sends nothing. A busy client
//! keeps the shard from sleeping, and connections are watched before a sleep; so the reply must be watched for in other
//! turns, too. A burst of TLS handshakes is answered one by one, because each answer is a signature.
//!
//! Progress is counted in turns of the reactor, in one thread, without a clock: in every [`WINDOW`] turns each large
//! reader gets [`LEAST`] bytes, and the busy client hundreds of replies.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::channel;

use headworks_core::{CacheOptions, ExportConfig, Shard, ShardConfig, VolumeOptions};

use super::door::SCRATCH;
use super::door::receive::{LARGE_PAYLOADS, LARGE_PAYLOADS_EACH, LARGE_SHARE, RECEIVED};
use super::driver::ShardDriver;
use super::idle::SKIPS_MAX;
use super::shard_io::ShardIo;
use super::*;
use crate::clients::connection_id::cache_account;
use crate::clients::nbd::connection::{ConnectionLimits, ExportBinding, LARGE_PART};
use crate::exports::access::AccessRules;
use crate::exports::assemble::ImageWatcher;
use crate::exports::assemble::export_info::ServedExport;
use crate::listen::{Address, ClientListener, Listener};
use crate::reactor::messages::query::{BufferStats, BufferUser};
use crate::reactor::shared::ServerShared;
use headworks::driver::{Clock, Executor, open_engine};
use headworks::house::Mapping;
use headworks::{Device, EngineChoice, NullDevice};
use headworks_house::Pool;
use headworks_nbd::ExportInfo;
use headworks_nbd::tls::testing::Certificates;
use headworks_nbd::tls::{Session, TlsAcceptor, TlsMode};
use headworks_nbd::wire::{RequestHeader, SIMPLE_REPLY_BYTES, TransmissionFlags};

/// Twice the turns after which the engine is entered beside hot connections.
const WINDOW: u32 = 2 * (SKIPS_MAX + 1);
/// Half of what a unix socket takes at once by default; it is filled twice in a window.
const LEAST: usize = 100 << 10;
/// Requests that the busy client keeps in flight.
const DEPTH: u64 = 32;
/// Bytes of its reads.
const SMALL: u32 = 4 << 10;
/// Bytes of their replies.
const REPLY: usize = SIMPLE_REPLY_BYTES + SMALL as usize;
/// Bytes of the other clients' reads.
const LARGE: u32 = 4 << 20;
/// Clients that connect at once.
const CROWD: usize = 30;

/// A reactor's parts over one device of `size` bytes, with a pool of `pool` bytes.
pub(super) fn device_parts(
    acceptor: Option<Arc<TlsAcceptor>>,
    device: Box<dyn Device>,
    size: u64,
    pool: usize,
) -> ReactorParts {
    cached_parts(acceptor, device, size, pool, 0)
}

/// The same, with a page cache of `units` frames.
pub(super) fn cached_parts(
    acceptor: Option<Arc<TlsAcceptor>>,
    device: Box<dyn Device>,
    size: u64,
    pool: usize,
    units: u32,
) -> ReactorParts {
    let volume = VolumeOptions { size, block_size: 512, ..VolumeOptions::default() };
    let config = ShardConfig {
        exports: vec![ExportConfig::default()],
        tenants: Vec::new(),
        cache: CacheOptions {
            units,
            writers_max: 64,
            account: cache_account(ShardId(0)),
            ..CacheOptions::default()
        },
        ..ShardConfig::single(NullDevice::queue_options(), volume, 4096)
    };
    let (engine, _) = open_engine(EngineChoice::Threads, 256).unwrap();
    let (mailbox, message) = channel();
    let frames = units as usize * headworks_core::cache::folio::BLOCK as usize;
    let frames = (units > 0).then(|| Mapping::new(frames).unwrap());
    let seconds = |count: u64| count * 1_000_000_000;
    ReactorParts {
        id: ShardId(0),
        clock: Clock::start(),
        driver: ShardDriver::new(
            Shard::new(config).unwrap(),
            Executor::with_log(vec![Some(device)], None),
            None,
        ),
        io: ShardIo::new(ShardId(0), 64, Pool::new(pool).unwrap(), (frames, None), vec![None], 0),
        sleeper: Arc::default(),
        wakers: vec![engine.waker()],
        engine,
        mailbox: message,
        shared: Arc::new(ServerShared::new(vec![mailbox], 1, Box::new(|| {}))),
        exports: vec![ServedExport {
            info: ExportInfo { size, flags: TransmissionFlags(0xd), ..ExportInfo::default() },
            binding: ExportBinding::default(),
            volume_size: size,
            shard: ShardId(0),
            config: headworks_core::ExportConfig::default(),
            owner: None,
            block_size: 512,
            limits: Default::default(),
            serial: 0,
        }],
        listeners: vec![Some(ClientListener {
            listener: Listener::bind(&Address::Tcp("127.0.0.1:0".parse().unwrap()), None).unwrap(),
            name: "test".into(),
            acceptor,
            thread: None,
        })],
        access: vec![Arc::new(AccessRules::open(1))],
        files: Vec::new(),
        watcher: ImageWatcher::start().unwrap(),
        volumes: vec![VolumeId(0)],
        server_limits: Default::default(),
        tenant_limits: Vec::new(),
        limits: ConnectionLimits {
            requests: 128,
            buffer_bytes: 128 << 20,
            handshake_ns: seconds(60),
            stall_ns: seconds(60),
        },
        poll_ns: 0,
        reserve: 0,
        stop_ns: 0,
        restores: None,
        // The tests bring the clients themselves.
        listens: false,
    }
}

/// A reactor whose turns the test runs.
pub(super) struct Harness {
    pub reactor: Reactor,
    /// Turns that were run.
    pub turns: u64,
    wait: Wait,
}

impl Harness {
    fn new(acceptor: Option<Arc<TlsAcceptor>>) -> Self {
        Self::with(device_parts(acceptor, Box::new(NullDevice), 1 << 40, 256 << 20))
    }

    pub fn with(parts: ReactorParts) -> Self {
        Self { reactor: Reactor::new(parts), turns: 0, wait: Wait::Poll }
    }

    /// What is told of the pool.
    pub fn buffer_stats(&self) -> BufferStats {
        self.reactor.door.buffer_stats(&self.reactor.parts)
    }

    /// What each export has of the pool.
    pub fn buffer_users(&mut self) -> Vec<BufferUser> {
        let Reactor { door, parts, .. } = &mut self.reactor;
        door.buffer_users(parts)
    }

    /// Runs one turn as the reactor's loop does, but polls where that would sleep.
    pub fn round(&mut self) {
        self.turns += 1;
        if self.reactor.must_enter(self.wait) {
            self.reactor.enter(self.wait).unwrap();
        }
        let now = self.reactor.parts.clock.now();
        let worked = self.reactor.turn(now);
        self.wait = match self.reactor.next_wait(now, worked) {
            Wait::Poll => Wait::Poll,
            Wait::For(_) | Wait::Forever => Wait::For(0),
        };
    }
}

impl Harness {
    /// Bytes that wait in the server's sockets, by slot.
    fn unread(&mut self) -> Vec<usize> {
        let io = &mut self.reactor.parts.io;
        let fds = (0..).map_while(|slot| io.connection(slot)?.0.socket());
        let waiting = |fd| {
            let mut count: libc::c_int = 0;
            // SAFETY: an open socket, and FIONREAD writes an int.
            assert_eq!(unsafe { libc::ioctl(fd, libc::FIONREAD, &raw mut count) }, 0);
            count as usize
        };
        fds.map(waiting).collect()
    }
}

/// A client that reads all that its socket has.
pub(super) struct Client {
    socket: UnixStream,
    session: Option<Session>,
    /// Bytes of NBD received.
    pub got: usize,
    /// Bytes of any kind received.
    heard: usize,
    cookie: u64,
}

impl Client {
    /// A client in transmission, through TLS if there are certificates.
    pub fn new(harness: &mut Harness, certificates: Option<&Certificates>) -> Self {
        let mut client = Self::greeted(harness);
        if let Some(certificates) = certificates {
            client.ask_for_keys(harness, certificates);
            client.until(harness, |client| !client.is_agreeing());
        }
        client.choose(harness);
        client
    }

    /// The socket of a client in the clear.
    pub fn into_socket(self) -> UnixStream {
        assert!(self.session.is_none(), "it is encrypted");
        self.socket
    }

    fn greeted(harness: &mut Harness) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        let now = harness.reactor.parts.clock.now();
        let Reactor { door, parts, listeners, .. } = &mut harness.reactor;
        door.add_client(parts, now, (ours.into(), "test".into()), (0, listeners.get(0)));
        let mut client = Self { socket: theirs, session: None, got: 0, heard: 0, cookie: 0 };
        client.hears(harness, 18);
        client.say(&[0, 0, 0, 3]);
        client
    }

    /// STARTTLS, its reply, and the first message of TLS.
    fn ask_for_keys(&mut self, harness: &mut Harness, certificates: &Certificates) {
        self.say(b"IHAVEOPT\0\0\0\x05\0\0\0\0");
        self.hears(harness, 20);
        self.session = Some(certificates.client());
    }

    fn choose(&mut self, harness: &mut Harness) {
        self.say(b"IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0");
        // Two INFOs and an ACK.
        self.hears(harness, 20 + 12 + 20 + 14 + 20);
    }

    fn is_agreeing(&self) -> bool {
        self.session.as_ref().is_some_and(Session::is_handshaking)
    }

    fn hears(&mut self, harness: &mut Harness, count: usize) {
        self.until(harness, |client| client.got == count);
        self.got = 0;
    }

    fn until(&mut self, harness: &mut Harness, done: impl Fn(&Self) -> bool) {
        for _ in 0..100 {
            self.say(&[]);
            harness.round();
            self.take();
            if done(self) {
                return self.say(&[]);
            }
        }
        panic!("{} bytes have come, {} of NBD", self.heard, self.got);
    }

    /// Sends at most what a socket takes.
    fn say(&mut self, bytes: &[u8]) {
        let Some(session) = &mut self.session else {
            return self.socket.write_all(bytes).unwrap();
        };
        if !bytes.is_empty() {
            session.seal(bytes).unwrap();
        }
        assert!(session.flush(&mut self.socket).unwrap());
    }

    /// Writes one block and takes its reply.
    pub fn write(&mut self, harness: &mut Harness, offset: u64, len: u32) {
        let header = RequestHeader { flags: 0, command: 1, cookie: 0, offset, len };
        self.say(&header.encode());
        for piece in vec![7; len as usize].chunks(16 << 10) {
            self.say(piece);
            harness.round();
        }
        self.hears(harness, SIMPLE_REPLY_BYTES);
    }

    /// Writes what the socket takes; returns the number of bytes.
    fn fill(&mut self) -> usize {
        let (bytes, mut count) = (vec![7; 64 << 10], 0);
        loop {
            match self.socket.write(&bytes) {
                Ok(some) => count += some,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return count,
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn reads(&mut self, requests: u64, len: u32) {
        self.reads_within(requests, len, u64::MAX);
    }

    /// Submits reads of consecutive blocks within the first `size` bytes.
    pub fn reads_within(&mut self, requests: u64, len: u32, size: u64) {
        let mut all = Vec::new();
        for _ in 0..requests {
            self.cookie += 1;
            let offset = self.cookie * u64::from(len) % size;
            let header = RequestHeader { flags: 0, command: 0, cookie: self.cookie, offset, len };
            all.extend_from_slice(&header.encode());
        }
        if !all.is_empty() {
            self.say(&all);
        }
    }

    /// Reads replies of small reads and submits as many again; returns their number.
    fn ask_again(&mut self) -> u64 {
        let before = self.got / REPLY;
        self.take();
        let answers = (self.got / REPLY - before) as u64;
        self.reads(answers, SMALL);
        answers
    }

    /// Reads what the socket has.
    pub fn take(&mut self) {
        let mut bytes = vec![0; 64 << 10];
        loop {
            let count = match self.socket.read(&mut bytes) {
                Ok(0) => panic!("the server hung up after {} bytes", self.got),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => panic!("{error}"),
            };
            self.heard += count;
            match &mut self.session {
                None => self.got += count,
                Some(session) => {
                    let got = &mut self.got;
                    session.open(&bytes[..count], |piece| *got += piece.len()).unwrap();
                }
            }
        }
    }
}

/// Two large readers beside a client with [`DEPTH`] small reads in flight.
fn everybody_is_sent_to(certificates: Option<&Certificates>) {
    const WHOLE: usize = 2 * (SIMPLE_REPLY_BYTES + LARGE as usize);
    let acceptor = certificates.map(|certificates| certificates.offer(TlsMode::Require, false));
    let mut harness = Harness::new(acceptor);
    let mut busy = Client::new(&mut harness, certificates);
    let mut large = [0; 2].map(|_| Client::new(&mut harness, certificates));
    busy.reads(DEPTH, SMALL);
    large.iter_mut().for_each(|client| client.reads(2, LARGE));
    let mut windows = 0;
    while large.iter().any(|client| client.got < WHOLE) {
        let before = (busy.got, [large[0].got, large[1].got]);
        for _ in 0..WINDOW {
            harness.round();
            busy.ask_again();
            large.iter_mut().for_each(Client::take);
        }
        windows += 1;
        for (client, before) in large.iter().zip(before.1) {
            let least = LEAST.min(WHOLE - before);
            let got = client.got - before;
            assert!(got >= least, "window {windows}: a large reader got {got} bytes of {least}");
        }
        let answers = (busy.got - before.0) / REPLY;
        let least = u64::from(WINDOW) * DEPTH / 2;
        assert!(answers as u64 >= least, "window {windows}: the busy client had {answers} answers");
    }
    assert!(large.iter().all(|client| client.got == WHOLE));
}

#[test]
fn large_reply_progresses_beside_busy_client() {
    everybody_is_sent_to(None);
}

#[test]
fn large_reply_progresses_beside_busy_client_with_tls() {
    everybody_is_sent_to(Some(&Certificates::new("fairness")));
}

/// Bulk writers whose sockets are full: each turn receives a bounded part of what they sent, a small read that came meanwhile
/// is answered in the turn, and the writers get equal parts.
#[test]
fn turn_receives_bounded_bytes_beside_small_read() {
    const WRITERS: usize = 7;
    /// Each writes one request that is longer than the test.
    const WRITE: u32 = 16 << 20;
    let mut harness = Harness::new(None);
    let mut reader = Client::new(&mut harness, None);
    let mut writers: Vec<Client> = (0..WRITERS).map(|_| Client::new(&mut harness, None)).collect();
    let header = RequestHeader { flags: 0, command: 1, cookie: 0, offset: 0, len: WRITE };
    writers.iter_mut().for_each(|writer| writer.say(&header.encode()));
    // The requests have their buffers, and the reader's socket is tried in each turn.
    reader.reads(1, SMALL);
    reader.hears(&mut harness, REPLY);
    let hot = WRITERS + 1;
    let most = LARGE_PAYLOADS + hot * LARGE_PAYLOADS_EACH + LARGE_SHARE + LARGE_PART;
    let (mut total, mut each) = (0, [0; WRITERS]);
    for turn in 0..10 * WRITERS {
        let sent = writers.iter_mut().map(Client::fill).sum::<usize>();
        assert!(turn > 0 || sent > 2 * most, "{sent} bytes wait, a turn takes {most}");
        reader.reads(1, SMALL);
        let before: Vec<usize> = harness.unread();
        harness.round();
        let after = harness.unread();
        let received = |slot: usize| before[slot].saturating_sub(after[slot]);
        // The first slot is the reader's.
        (0..WRITERS).for_each(|writer| each[writer] += received(writer + 1));
        let all: usize = (1..=WRITERS).map(received).sum();
        assert!(all <= most, "turn {turn} received {all} bytes of {most}");
        total += all;
        reader.take();
        assert_eq!(reader.got, REPLY, "turn {turn} answers the read");
        reader.got = 0;
    }
    assert!(total > 10 * WRITERS * LARGE_PAYLOADS / 2, "{total} bytes");
    let (least, largest) = (each.iter().min().unwrap(), each.iter().max().unwrap());
    assert!(2 * least > *largest, "{each:?}");
}

/// Many clients have each filled their socket with a first write: they are received in several turns.
#[test]
fn first_writes_of_many_clients_are_received_in_several_turns() {
    const WRITERS: usize = 60;
    let mut harness = Harness::new(None);
    let mut writers: Vec<Client> = (0..WRITERS).map(|_| Client::new(&mut harness, None)).collect();
    let header = RequestHeader { flags: 0, command: 1, cookie: 0, offset: 0, len: 1 << 20 };
    writers.iter_mut().for_each(|writer| writer.say(&header.encode()));
    let sent: usize = writers.iter_mut().map(Client::fill).sum();
    assert!(sent > 2 * RECEIVED, "{sent} bytes wait");
    for turn in 0.. {
        let before: usize = harness.unread().iter().sum();
        harness.round();
        let received = before - harness.unread().iter().sum::<usize>();
        assert!(received <= RECEIVED + SCRATCH, "turn {turn} received {received} bytes");
        assert!(turn < 1000, "{before} bytes are left");
        if before == received {
            break;
        }
    }
}

#[test]
fn one_step_of_a_tls_handshake_per_turn() {
    let certificates = Certificates::new("crowd");
    let mut harness = Harness::new(Some(certificates.offer(TlsMode::On, true)));
    let mut busy = Client::new(&mut harness, None);
    let mut crowd: Vec<Client> = (0..CROWD).map(|_| Client::greeted(&mut harness)).collect();
    crowd.iter_mut().for_each(|client| client.ask_for_keys(&mut harness, &certificates));
    let before: Vec<usize> = crowd.iter().map(|client| client.heard).collect();
    busy.reads(DEPTH, SMALL);
    while busy.ask_again() == 0 {
        harness.round();
    }
    // A signature of the server for each.
    crowd.iter_mut().for_each(|client| client.say(&[]));
    one_by_one(&mut harness, &mut busy, |_| {
        crowd.iter_mut().for_each(Client::take);
        crowd.iter().zip(&before).filter(|(client, before)| client.heard > **before).count()
    });
    // Each client's certificate, which the server checks.
    assert!(crowd.iter().all(|client| !client.is_agreeing()));
    crowd.iter_mut().for_each(|client| client.say(&[]));
    one_by_one(&mut harness, &mut busy, |harness| {
        let clients = harness.reactor.parts.io.clients();
        CROWD - clients.filter(|client| client.agrees_on_keys()).count()
    });
    crowd.iter_mut().for_each(|client| client.choose(&mut harness));
}

/// Runs turns until the whole crowd is `done`, at most one more in each, beside a busy client that has an answer in each.
fn one_by_one(
    harness: &mut Harness,
    busy: &mut Client,
    mut done: impl FnMut(&mut Harness) -> usize,
) {
    let mut last = 0;
    for round in 0.. {
        harness.round();
        assert!(busy.ask_again() > 0, "round {round}: the busy client has an answer in each");
        let now = done(harness);
        assert!(now <= last + 1, "round {round}: {now} are done after {last}");
        assert!(round < 2 * CROWD + 2 * WINDOW as usize, "{now} are done after {round} rounds");
        last = now;
        if now == CROWD {
            return;
        }
    }
}

/// The oldest of the handshakes gives its place up, of those of the address with most of them; a client in transmission never does.
#[test]
fn handshakes_keep_no_client_out() {
    let mut harness = Harness::new(None);
    let mut present = Client::new(&mut harness, None);
    let come = |harness: &mut Harness, peer: &str| {
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        let now = harness.reactor.parts.clock.now();
        let Reactor { door, parts, listeners, .. } = &mut harness.reactor;
        door.add_client(parts, now, (ours.into(), peer.into()), (0, listeners.get(0)));
        harness.round();
        theirs
    };
    let is_open = |mut socket: &UnixStream| {
        let mut greeting = [0; 64];
        socket.read(&mut greeting).map_or_else(|e| e.kind() == ErrorKind::WouldBlock, |n| n > 0)
            && socket.read(&mut greeting).is_err_and(|e| e.kind() == ErrorKind::WouldBlock)
    };
    let other = come(&mut harness, "10.0.0.2:1");
    let many: Vec<_> =
        (1..100).map(|port| come(&mut harness, &format!("10.0.0.1:{port}"))).collect();
    let open: Vec<bool> = many.iter().map(is_open).collect();
    // 64 places, of which two are others'.
    let (early, late) = open.split_at(many.len() - 62);
    assert!(early.iter().all(|open| !open) && late.iter().all(|open| *open), "{open:?}");
    assert!(is_open(&other), "its address has but one");
    present.reads(DEPTH, SMALL);
    while present.ask_again() == 0 {
        harness.round();
    }
}

/// A client is silent in the middle of a write: its block is cut, which is counted, and what is left of it is told as a payload's.
#[test]
fn silent_payload_is_cut_counted_and_told() {
    let mut harness = Harness::new(None);
    let mut client = Client::new(&mut harness, None);
    let header = RequestHeader { flags: 0, command: 1, cookie: 0, offset: 0, len: 1 << 20 };
    client.say(&header.encode());
    client.say(&[7; 50_000]);
    for _ in 0..1000 {
        harness.round();
    }
    let stats = harness.buffer_stats();
    assert!(stats.blocks_cut > 0 && stats.payloads_written_early == 0, "{stats:?}");
    let users = harness.buffer_users();
    assert_eq!(users.len(), 1);
    let BufferUser { waiting, bytes, payload_bytes, .. } = users[0];
    assert_eq!((waiting, bytes, payload_bytes), (0, 64 << 10, 64 << 10));
}

/// Requests of many clients wait for the end of a freeze, and much stands behind them: what is received of it is bounded for all together,
/// and goes on afterwards.
#[test]
fn received_bytes_that_wait_are_bounded_for_all_connections() {
    const CLIENTS: usize = 60;
    let parts = device_parts(None, Box::new(NullDevice), 1 << 40, 64 << 20);
    let mut harness = Harness::with(parts);
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| Client::new(&mut harness, None)).collect();
    let now = harness.reactor.parts.clock.now();
    let parts = &mut harness.reactor.parts;
    harness.reactor.door.freeze_volume(parts, now, VolumeId(0), u64::MAX / 2).unwrap();
    let header = RequestHeader { flags: 0, command: 1, cookie: 0, offset: 0, len: 4096 };
    let write = [&header.encode()[..], &[7; 4096]].concat();
    for client in &mut clients {
        client.say(&write.repeat(24));
    }
    let stashed = |harness: &mut Harness| -> usize {
        let io = &mut harness.reactor.parts.io;
        io.slots().filter_map(|slot| Some(io.connection(slot)?.0.stashed())).sum()
    };
    for _ in 0..100 {
        harness.round();
    }
    let bound = (64 << 20) / 16 + 24 * write.len() + CLIENTS * (8 << 10);
    let most = stashed(&mut harness);
    assert!(most > 1 << 20 && most <= bound, "{most} bytes, {bound} are allowed");
    let now = harness.reactor.parts.clock.now();
    harness.reactor.door.thaw_volume(&mut harness.reactor.parts, now, VolumeId(0));
    for _ in 0..10_000 {
        harness.round();
        clients.iter_mut().for_each(Client::take);
    }
    assert!(clients.iter().all(|client| client.got == 24 * SIMPLE_REPLY_BYTES));
    assert_eq!(stashed(&mut harness), 0);
}
