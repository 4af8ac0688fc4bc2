//! Whoever has output waiting is sent to, however busy somebody else keeps the shard.
//!
//! A reply of megabytes leaves in as many pieces as the socket has room for. Its reader says nothing meanwhile, and a shard that
//! another client keeps at work never comes to the sleep before which everybody is watched: once such a reply took as long as the
//! other client stayed. And a crowd that asks for keys at once is answered one by one, because each answer is a signature.
//!
//! Counted in turns of the reactor, in one thread, so that no clock and no scheduler has a say: in every [`WINDOW`] turns each
//! large reader gets [`LEAST`] bytes, and the busy one hundreds of answers.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::channel;

use headworks_core::{ExportConfig, Shard, ShardConfig, VolumeOptions};

use super::idle::SKIPS_MAX;
use super::*;
use crate::nbd::connection::ExportBinding;
use headworks::driver::{Executor, Pool, open_engine};
use headworks::{EngineChoice, NullDevice};
use headworks_nbd::ExportInfo;
use headworks_nbd::tls::testing::Certificates;
use headworks_nbd::tls::{Session, TlsMode};
use headworks_nbd::wire::{RequestHeader, SIMPLE_REPLY_BYTES};

/// Twice the turns after which the engine is asked about those who wait, however busy the others are.
const WINDOW: u32 = 2 * (SKIPS_MAX + 1);
/// Half of what a unix socket takes at once, by Linux's defaults; it is filled twice in a window.
const LEAST: usize = 100 << 10;
/// What the busy client keeps in flight.
const DEPTH: u64 = 32;
/// What it reads with each request.
const SMALL: u32 = 4 << 10;
/// What the answer is.
const REPLY: usize = SIMPLE_REPLY_BYTES + SMALL as usize;
/// What the others read.
const LARGE: u32 = 4 << 20;
/// Who asks for keys at once.
const CROWD: usize = 30;

fn parts(acceptor: Option<Arc<TlsAcceptor>>) -> ReactorParts {
    let volume = VolumeOptions { size: 1 << 40, block_size: 512, ..VolumeOptions::default() };
    let config = ShardConfig {
        exports: vec![ExportConfig { weight: 100 }],
        ..ShardConfig::single(NullDevice::queue_options(), volume, 4096)
    };
    let (engine, _) = open_engine(EngineChoice::Threads, 256).unwrap();
    let (mailbox, mail) = channel();
    let seconds = |count: u64| count * 1_000_000_000;
    ReactorParts {
        id: ShardId(0),
        clock: Clock::start(),
        driver: ShardDriver::new(
            Shard::new(config).unwrap(),
            Executor::new(vec![Some(Box::new(NullDevice))]),
            None,
        ),
        io: ShardIo::new(ShardId(0), 64, Pool::new(256 << 20).unwrap(), None, vec![None], 0),
        sleeper: Arc::default(),
        wakers: vec![engine.waker()],
        engine,
        mail,
        shared: Arc::new(ServerShared::new(vec![mailbox], 1, Box::new(|| {}))),
        exports: vec![ServedExport {
            info: ExportInfo { size: 1 << 40, ..ExportInfo::default() },
            binding: ExportBinding::default(),
            shard: ShardId(0),
            weight: 100,
            serial: 0,
        }],
        listeners: Vec::new(),
        files: Vec::new(),
        volumes: vec![VolumeId(0)],
        limits: ConnectionLimits {
            requests: 128,
            buffer_bytes: 128 << 20,
            handshake_ns: seconds(60),
            stall_ns: seconds(60),
        },
        acceptor,
        poll_ns: 0,
        reserve: 0,
        stop_ns: 0,
    }
}

/// A reactor that is turned by hand.
struct Bed {
    reactor: Reactor,
    wait: Wait,
}

impl Bed {
    fn new(acceptor: Option<Arc<TlsAcceptor>>) -> Self {
        Self { reactor: Reactor::new(parts(acceptor)), wait: Wait::Poll }
    }

    /// As the reactor's own loop goes round, but where it would sleep it looks.
    fn round(&mut self) {
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

/// A client that takes all that its socket has whenever it is its turn.
struct Client {
    socket: UnixStream,
    session: Option<Session>,
    /// Bytes that came, of NBD.
    got: usize,
    /// Bytes that came, of any kind.
    heard: usize,
    cookie: u64,
}

impl Client {
    /// A client that has chosen the export, through TLS if there are certificates.
    fn new(bed: &mut Bed, certificates: Option<&Certificates>) -> Self {
        let mut client = Self::greeted(bed);
        if let Some(certificates) = certificates {
            client.ask_for_keys(bed, certificates);
            client.until(bed, |client| !client.is_agreeing());
        }
        client.choose(bed);
        client
    }

    fn greeted(bed: &mut Bed) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        let now = bed.reactor.parts.clock.now();
        bed.reactor.welcome(now, ours.into(), "test".into());
        let mut client = Self { socket: theirs, session: None, got: 0, heard: 0, cookie: 0 };
        client.hears(bed, 18);
        client.say(&[0, 0, 0, 3]);
        client
    }

    /// STARTTLS, its answer, and a first word of TLS.
    fn ask_for_keys(&mut self, bed: &mut Bed, certificates: &Certificates) {
        self.say(b"IHAVEOPT\0\0\0\x05\0\0\0\0");
        self.hears(bed, 20);
        self.session = Some(certificates.client());
    }

    fn choose(&mut self, bed: &mut Bed) {
        self.say(b"IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0");
        // Two INFOs and an ACK.
        self.hears(bed, 20 + 12 + 20 + 14 + 20);
    }

    fn is_agreeing(&self) -> bool {
        self.session.as_ref().is_some_and(Session::is_handshaking)
    }

    fn hears(&mut self, bed: &mut Bed, count: usize) {
        self.until(bed, |client| client.got == count);
        self.got = 0;
    }

    fn until(&mut self, bed: &mut Bed, done: impl Fn(&Self) -> bool) {
        for _ in 0..100 {
            self.say(&[]);
            bed.round();
            self.take();
            if done(self) {
                return self.say(&[]);
            }
        }
        panic!("{} bytes have come, {} of NBD", self.heard, self.got);
    }

    /// Sends, which is never more than a socket takes.
    fn say(&mut self, bytes: &[u8]) {
        let Some(session) = &mut self.session else {
            return self.socket.write_all(bytes).unwrap();
        };
        if !bytes.is_empty() {
            session.seal(bytes).unwrap();
        }
        assert!(session.flush(&mut self.socket).unwrap());
    }

    fn reads(&mut self, requests: u64, len: u32) {
        let mut all = Vec::new();
        for _ in 0..requests {
            self.cookie += 1;
            let offset = self.cookie * u64::from(len);
            let header = RequestHeader { flags: 0, command: 0, cookie: self.cookie, offset, len };
            all.extend_from_slice(&header.encode());
        }
        if !all.is_empty() {
            self.say(&all);
        }
    }

    /// Takes what came of small reads and asks for as many again; how many that was.
    fn ask_again(&mut self) -> u64 {
        let before = self.got / REPLY;
        self.take();
        let answers = (self.got / REPLY - before) as u64;
        self.reads(answers, SMALL);
        answers
    }

    /// Takes what the socket has.
    fn take(&mut self) {
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

/// Two large readers beside a client that always has [`DEPTH`] small reads in flight.
fn everybody_is_sent_to(certificates: Option<&Certificates>) {
    const WHOLE: usize = 2 * (SIMPLE_REPLY_BYTES + LARGE as usize);
    let acceptor = certificates.map(|certificates| certificates.offer(TlsMode::Require, false));
    let mut bed = Bed::new(acceptor);
    let mut busy = Client::new(&mut bed, certificates);
    let mut large = [0; 2].map(|_| Client::new(&mut bed, certificates));
    busy.reads(DEPTH, SMALL);
    large.iter_mut().for_each(|client| client.reads(2, LARGE));
    let mut windows = 0;
    while large.iter().any(|client| client.got < WHOLE) {
        let before = (busy.got, [large[0].got, large[1].got]);
        for _ in 0..WINDOW {
            bed.round();
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
fn a_large_reply_goes_on_beside_a_busy_client() {
    everybody_is_sent_to(None);
}

#[test]
fn and_so_it_does_through_tls() {
    everybody_is_sent_to(Some(&Certificates::new("fairness")));
}

#[test]
fn a_crowd_that_wants_keys_is_answered_one_in_a_turn() {
    let certificates = Certificates::new("crowd");
    let mut bed = Bed::new(Some(certificates.offer(TlsMode::On, false)));
    let mut busy = Client::new(&mut bed, None);
    let mut crowd: Vec<Client> = (0..CROWD).map(|_| Client::greeted(&mut bed)).collect();
    crowd.iter_mut().for_each(|client| client.ask_for_keys(&mut bed, &certificates));
    let before: Vec<usize> = crowd.iter().map(|client| client.heard).collect();
    busy.reads(DEPTH, SMALL);
    while busy.ask_again() == 0 {
        bed.round();
    }
    crowd.iter_mut().for_each(|client| client.say(&[]));
    let mut answered = 0;
    for round in 0.. {
        bed.round();
        assert!(busy.ask_again() > 0, "round {round}: the busy client has an answer in each");
        crowd.iter_mut().for_each(Client::take);
        let heard = crowd.iter().zip(&before).filter(|(client, before)| client.heard > **before);
        let (now, last) = (heard.count(), answered);
        assert!(now <= last + 1, "round {round}: {now} have keys after {last}");
        assert!(round < CROWD + 2 * WINDOW as usize, "{now} have keys after {round} rounds");
        answered = now;
        if answered == CROWD {
            break;
        }
    }
    for client in &mut crowd {
        client.until(&mut bed, |client| !client.is_agreeing());
        client.choose(&mut bed);
    }
}
