//! Connections through TLS, with a rustls client at the other end of a socket pair and a disk that is a `Vec`.
//!
//! The server here sleeps as the reactor does: after `ReceiveOutcome::Idle` it is called again only when its socket
//! is readable. Bytes left in a session would make a test hang, which the bound on rounds turns into a failure.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use super::bench::Bench;
use super::*;
use headworks_core::Op;
use headworks_nbd::tls::testing::Certificates;
use headworks_nbd::tls::{Session, TlsMode};
use headworks_nbd::wire::{RequestHeader, SIMPLE_REPLY_BYTES};

const DISK: usize = 40 << 20;
const LIMITS: ConnectionLimits = ConnectionLimits {
    requests: 8,
    buffer_bytes: 64 << 20,
    handshake_ns: 10_000_000_000,
    stall_ns: 60_000_000_000,
};

struct Server {
    connection: Connection,
    bench: Bench,
    spans: Vec<Span>,
    disk: Vec<u8>,
    end: Option<ConnectionEnd>,
    /// The last receive found no data.
    sleeps: bool,
}

impl Server {
    fn new(certificates: &Certificates, mode: TlsMode) -> (Self, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        let mut connection = Connection::new(ours.into(), "test".into(), LIMITS, Instant(0));
        connection.set_tls_acceptor(&certificates.offer(mode, false));
        let mut bench = Bench::new(128 << 20, 0);
        bench.exports = vec![ExportInfo { size: DISK as u64, ..ExportInfo::default() }];
        let server = Self {
            connection,
            bench,
            spans: Vec::new(),
            disk: vec![0; DISK],
            end: None,
            sleeps: false,
        };
        (server, theirs)
    }

    /// Runs one turn of the reactor.
    fn turn(&mut self) {
        if self.end.is_none() && (!self.sleeps || self.is_readable()) {
            self.receive();
        }
        for input in std::mem::take(&mut self.bench.inputs) {
            let Input::Bio(bio) = input else { panic!("only bios come") };
            let (sequence, range) = (bio.id.sequence, bio.offset as usize..);
            let span = self.connection.buffer(sequence).unwrap();
            let disk = &mut self.disk[range][..bio.len as usize];
            // SAFETY: the buffer is the request's, and it waits for us.
            let buffer = unsafe { span.part(0, bio.len as usize).bytes_mut() };
            match bio.op {
                Op::Write => disk.copy_from_slice(buffer),
                _ => buffer.copy_from_slice(disk),
            }
            let answer = (Ok(()), false, ReplyStage::Final);
            let _ = self.connection.reply(Instant(7), sequence, answer, &mut self.bench.pool);
        }
        // A hang-up shows in the next receive.
        let _ = self.connection.send(Instant(0), &mut self.bench.pool, &mut self.spans);
    }

    fn receive(&mut self) {
        self.bench.room = 1000;
        let received = self.bench.receive(&mut self.connection, 7, None);
        self.sleeps = received == ReceiveOutcome::Idle;
        match received {
            ReceiveOutcome::Chosen { export, terms } => {
                self.connection.begin(
                    Instant(0),
                    ExportBinding::default(),
                    &self.bench.exports[export],
                    terms,
                );
            }
            ReceiveOutcome::End(end) => {
                if end == ConnectionEnd::Goodbye {
                    self.connection.leave(&mut self.bench.pool);
                }
                self.end = Some(end);
            }
            _ => {}
        }
    }

    fn is_readable(&self) -> bool {
        let Some(fd) = self.connection.socket() else { return false };
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd, alive on the stack.
        unsafe { libc::poll(&mut poll, 1, 0) > 0 }
    }

    fn fault(&self) -> &str {
        match &self.end {
            Some(ConnectionEnd::Fault(sentence)) => sentence,
            other => panic!("no fault but {other:?}"),
        }
    }
}

struct Client {
    socket: Option<UnixStream>,
    session: Session,
    plain: Vec<u8>,
    /// Bytes that one write or read of the socket moves.
    step: usize,
}

/// A socket that takes a limited number of bytes.
struct Takes<'a> {
    socket: &'a mut UnixStream,
    left: usize,
}

impl Write for Takes<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.left == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let count = self.socket.write(&bytes[..bytes.len().min(self.left)])?;
        self.left -= count;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Rounds of both sides before the test fails.
const ROUNDS: usize = 200_000;

fn option(code: u32, data: &[u8]) -> Vec<u8> {
    [b"IHAVEOPT".as_slice(), &code.to_be_bytes(), &(data.len() as u32).to_be_bytes(), data].concat()
}

fn request(command: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    RequestHeader { flags: 0, command, cookie, offset, len }.encode().to_vec()
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| ((at + seed).wrapping_mul(0x9e37_79b1) >> 13) as u8).collect()
}

impl Client {
    /// Requests TLS in the clear and reads the reply; no byte of TLS has been sent.
    fn asking(server: &mut Server, socket: UnixStream, certificates: &Certificates) -> Self {
        let session = certificates.client();
        let mut client =
            Self { socket: Some(socket), session, plain: Vec::new(), step: usize::MAX };
        server.turn();
        let socket = client.socket.as_mut().unwrap();
        socket.write_all(&[&[0, 0, 0, 3], option(5, &[]).as_slice()].concat()).unwrap();
        server.turn();
        let mut said = [0; 18 + 20];
        socket.read_exact(&mut said).unwrap();
        assert_eq!(said[30..34], [0, 0, 0, 1], "the request for TLS is granted");
        client
    }

    /// Passes both handshakes to transmission.
    fn chosen(server: &mut Server, socket: UnixStream, certificates: &Certificates) -> Self {
        let mut client = Self::asking(server, socket, certificates);
        client.go(server);
        client
    }

    fn go(&mut self, server: &mut Server) {
        self.until(server, |client| !client.session.is_handshaking());
        self.session.seal(&option(7, &[0; 6])).unwrap();
        // Two INFOs and an ACK.
        self.until(server, |client| client.plain.len() == 20 + 12 + 20 + 14 + 20);
        self.plain.clear();
    }

    fn until(&mut self, server: &mut Server, done: impl Fn(&Self) -> bool) {
        for _ in 0..ROUNDS {
            if done(self) {
                return;
            }
            self.exchange();
            server.turn();
        }
        panic!("it hangs: {} bytes have come, {:?}", self.plain.len(), server.end);
    }

    /// Moves up to a step of bytes in each direction.
    fn exchange(&mut self) {
        let Some(socket) = &mut self.socket else { return };
        let mut takes = Takes { socket, left: self.step };
        self.session.flush(&mut takes).unwrap();
        let mut bytes = vec![0; self.step.min(100_000)];
        if let Ok(count) = socket.read(&mut bytes) {
            let plain = &mut self.plain;
            self.session.open(&bytes[..count], |piece| plain.extend_from_slice(piece)).unwrap();
        }
    }

    fn write(&mut self, server: &mut Server, offset: u64, data: &[u8]) {
        self.session.seal(&request(1, 1, offset, data.len() as u32)).unwrap();
        for piece in data.chunks(16 << 10) {
            self.session.seal(piece).unwrap();
            while self.session.has_unsent() {
                self.exchange();
                server.turn();
            }
        }
        self.until(server, |client| client.plain.len() == SIMPLE_REPLY_BYTES);
        assert_eq!(self.plain[4..8], [0; 4]);
        self.plain.clear();
    }
}

#[test]
fn byte_wise_transfer_gives_same_result() {
    let certificates = Certificates::new("bytes");
    let (mut server, socket) = Server::new(&certificates, TlsMode::Require);
    let mut client = Client::asking(&mut server, socket, &certificates);
    client.step = 1;
    client.go(&mut server);
    let data = pattern(300, 1);
    client.write(&mut server, 5, &data);
    assert_eq!(server.disk[5..305], data);
    client.session.seal(&request(0, 2, 0, 400)).unwrap();
    client.until(&mut server, |client| client.plain.len() == SIMPLE_REPLY_BYTES + 400);
    assert_eq!(client.plain[SIMPLE_REPLY_BYTES..], server.disk[..400]);
    client.session.seal(&request(2, 3, 0, 0)).unwrap();
    client.until(&mut server, |client| client.session.is_ended());
    assert!(server.end == Some(ConnectionEnd::Goodbye) && server.connection.is_finished());
}

/// A request and the close alert in one record: the send of the reply is the connection's last.
#[test]
fn reply_and_close_alert_leave_in_one_send() {
    let certificates = Certificates::new("leaves");
    let (mut server, socket) = Server::new(&certificates, TlsMode::Require);
    let mut client = Client::chosen(&mut server, socket, &certificates);
    client.session.seal(&[request(0, 1, 0, 512), request(2, 2, 0, 0)].concat()).unwrap();
    client.exchange();
    server.turn();
    assert!(server.end == Some(ConnectionEnd::Goodbye) && server.connection.is_finished());
    client.exchange();
    assert_eq!(client.plain.len(), SIMPLE_REPLY_BYTES + 512);
    assert!(client.session.is_ended(), "the end is said");
}

#[test]
fn clear_bytes_after_starttls_are_rejected() {
    let certificates = Certificates::new("glued");
    // In one segment with the request, as an attacker in between would add it.
    for extra in [option(7, &[0; 6]), vec![0x16]] {
        let (mut server, mut socket) = Server::new(&certificates, TlsMode::On);
        server.turn();
        socket.write_all(&[&[0, 0, 0, 3], option(5, &[]).as_slice(), &extra].concat()).unwrap();
        server.turn();
        let expected = format!("{} unencrypted bytes followed the request for TLS", extra.len());
        assert_eq!(server.fault(), expected);
    }
    // A moment later: the bytes are not TLS.
    let (mut server, socket) = Server::new(&certificates, TlsMode::On);
    let mut client = Client::asking(&mut server, socket, &certificates);
    client.socket.as_mut().unwrap().write_all(&option(7, &[0; 6])).unwrap();
    server.turn();
    assert!(server.fault().starts_with("TLS failed: "), "{}", server.fault());
}

#[test]
fn largest_payload_passes_slow_reader_both_ways() {
    let certificates = Certificates::new("large");
    let (mut server, socket) = Server::new(&certificates, TlsMode::On);
    let mut client = Client::chosen(&mut server, socket, &certificates);
    let len = 32 << 20;
    let data = pattern(len, 2);
    client.write(&mut server, 4097, &data);
    assert!(server.disk[4097..4097 + len] == data);
    client.session.seal(&request(0, 9, 4097, len as u32)).unwrap();
    client.step = 10_001;
    client.until(&mut server, |client| client.plain.len() == SIMPLE_REPLY_BYTES + len);
    assert!(client.plain[SIMPLE_REPLY_BYTES..] == data);
    assert_eq!(server.bench.pool.taken(), 0);
}

/// What a client leaves unread is in the pool and counts as its own; while the pool is short, it is one small record beside it.
#[test]
fn unread_ciphertext_is_in_the_pool() {
    let certificates = Certificates::new("unread");
    for (short, kept_at_most, held) in [(false, 64 << 10, 64 << 10), (true, 4 << 10, 0)] {
        let (mut server, socket) = Server::new(&certificates, TlsMode::On);
        let mut client = Client::chosen(&mut server, socket, &certificates);
        let len = 1 << 20;
        server.disk[..len].copy_from_slice(&pattern(len, 5));
        let before = server.connection.sent_bytes() as usize;
        client.session.seal(&request(0, 1, 0, len as u32)).unwrap();
        client.exchange();
        server.receive();
        let mut others = Vec::new();
        if short {
            let pool = &mut server.bench.pool;
            others.extend(std::iter::from_fn(|| pool.try_take(64 << 10)));
        }
        let taken = server.bench.pool.taken();
        for _ in 0..5 {
            server.turn();
        }
        let transport_holds = server.connection.held() - server.connection.wire.outgoing().held();
        assert_eq!(transport_holds, held, "short of memory: {short}");
        assert_eq!(server.bench.pool.taken(), taken + held, "the reply's own buffer, and others'");
        // What the socket has, without another turn of the server.
        client.exchange();
        client.exchange();
        client.exchange();
        let kept = server.connection.sent_bytes() as usize - before - client.plain.len();
        assert!((1..=kept_at_most).contains(&kept), "short of memory: {short}, {kept} bytes");
        client.until(&mut server, |client| client.plain.len() == SIMPLE_REPLY_BYTES + len);
        assert!(client.plain[SIMPLE_REPLY_BYTES..] == server.disk[..len]);
        others.drain(..).for_each(|block| server.bench.pool.put(block));
        assert_eq!((server.bench.pool.taken(), server.connection.held()), (0, 0));
        // A connection that is closed gives it back.
        client.session.seal(&request(0, 2, 0, len as u32)).unwrap();
        client.exchange();
        for _ in 0..5 {
            server.turn();
        }
        assert!(server.connection.held() > server.connection.wire.outgoing().held());
        server.connection.close(&mut server.bench.pool);
        assert_eq!(server.bench.pool.taken(), 0);
    }
}

/// A session that cannot seal gives back the block that was taken for it.
#[test]
fn failed_seal_keeps_no_block() {
    let certificates = Certificates::new("unsealed");
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let mut transport = Transport::plain(ours.into());
    transport.encrypt(certificates.offer(TlsMode::On, false).session().unwrap());
    let mut pool = Pool::new(1 << 20).unwrap();
    let mut data = vec![7; 10_000];
    // SAFETY: they stay until the call has returned.
    let span = unsafe { Span::new(data.as_mut_ptr(), data.len()) };
    let error = headworks_front::Transport::send(&mut transport, &[span], &mut pool).unwrap_err();
    assert!(error.to_string().contains("not negotiated"), "{error}");
    assert_eq!(pool.taken(), 0);
}

/// More requests in one record than a connection may have in flight: the rest is decrypted and the socket empty, and
/// all are answered.
#[test]
fn session_is_drained_when_socket_is_empty() {
    let certificates = Certificates::new("behind");
    let (mut server, socket) = Server::new(&certificates, TlsMode::On);
    let mut client = Client::chosen(&mut server, socket, &certificates);
    let requests: Vec<u8> = (0..200).flat_map(|cookie| request(0, cookie, 0, 512)).collect();
    client.session.seal(&requests).unwrap();
    client.until(&mut server, |client| client.plain.len() == 200 * (SIMPLE_REPLY_BYTES + 512));
}

#[test]
fn truncated_stream_is_a_hang_up() {
    let certificates = Certificates::new("cut");
    let (mut server, socket) = Server::new(&certificates, TlsMode::On);
    let mut client = Client::chosen(&mut server, socket, &certificates);
    client.session.seal(&[request(1, 1, 0, 4096), vec![1; 4096]].concat()).unwrap();
    client.step = 3000;
    client.exchange();
    client.socket = None;
    for _ in 0..3 {
        server.turn();
    }
    // The record is incomplete: nothing of it counts yet.
    assert_eq!(server.end, Some(ConnectionEnd::HungUp));
    assert!(server.disk[..4096] == [0; 4096]);

    let (mut server, socket) = Server::new(&certificates, TlsMode::On);
    let mut client = Client::chosen(&mut server, socket, &certificates);
    client.session.seal(&[request(1, 1, 0, 4096), vec![1; 96]].concat()).unwrap();
    client.exchange();
    client.socket = None;
    for _ in 0..3 {
        server.turn();
    }
    assert_eq!(server.fault(), "the client disconnected in the middle of a request");
    server.connection.close(&mut server.bench.pool);
    assert!(server.disk[..4096] == [0; 4096] && server.bench.pool.taken() == 0);
}

#[test]
fn incomplete_handshake_ends_at_time_limit() {
    let certificates = Certificates::new("half");
    let (mut server, socket) = Server::new(&certificates, TlsMode::Require);
    let mut client = Client::asking(&mut server, socket, &certificates);
    client.step = 100;
    for _ in 0..2 {
        client.exchange();
        server.turn();
    }
    assert_eq!(server.end, None);
    assert_eq!(server.connection.deadline(), Some(Instant(LIMITS.handshake_ns)));
    assert_eq!(server.connection.timeout_message(), "the handshake took longer than 10 s");
    client.socket = None;
    server.turn();
    assert_eq!(server.fault(), "the client disconnected during the TLS handshake");
}

/// A message that arrives in records of one byte each, without end.
#[test]
fn endless_tls_message_is_refused() {
    let certificates = Certificates::new("endless");
    let (mut server, socket) = Server::new(&certificates, TlsMode::Require);
    let mut client = Client::asking(&mut server, socket, &certificates);
    let socket = client.socket.as_mut().unwrap();
    let (mut sent, tiny) = (0, [0x16, 3, 1, 0, 1, 1]);
    while server.end.is_none() {
        // A ClientHello of 65535 bytes, the longest that rustls waits for.
        let piece: Vec<u8> = match sent {
            0 => [[0x16, 3, 1, 0, 4].as_slice(), &[1, 0, 0xff, 0xff]].concat(),
            _ => tiny.repeat(1000),
        };
        sent += piece.len();
        assert!(sent < 1 << 20, "it is cut off");
        let _ = socket.write_all(&piece);
        server.turn();
    }
    assert!(server.fault().starts_with("TLS failed: "), "{}", server.fault());
}

#[test]
fn offered_tls_is_optional() {
    let certificates = Certificates::new("plain");
    let (mut server, mut socket) = Server::new(&certificates, TlsMode::On);
    server.turn();
    socket.write_all(&[&[0, 0, 0, 3], option(7, &[0; 6]).as_slice()].concat()).unwrap();
    server.turn();
    assert!(server.connection.binding().is_some() && server.connection.tls().is_none());
}

/// A payload in records of one byte: a turn decrypts at most one receive.
#[test]
fn tiny_tls_records_are_bounded_per_turn() {
    let certificates = Certificates::new("flood");
    let (mut server, socket) = Server::new(&certificates, TlsMode::On);
    let mut client = Client::chosen(&mut server, socket, &certificates);
    let mut flood = Vec::new();
    client.session.seal(&request(1, 1, 0, 6000)).unwrap();
    for byte in 0..6000_u32 {
        client.session.flush(&mut flood).unwrap();
        client.session.seal(&[byte as u8]).unwrap();
    }
    let sent = client.socket.as_mut().unwrap().write(&flood).unwrap();
    let waiting = |server: &Server| {
        let mut count: libc::c_int = 0;
        // SAFETY: FIONREAD writes one int.
        unsafe { libc::ioctl(server.connection.socket().unwrap(), libc::FIONREAD, &mut count) };
        count
    };
    let before = waiting(&server);
    assert!(before > 100_000, "{before}");
    server.turn();
    let taken = before - waiting(&server);
    assert!((1..=64 << 10).contains(&taken), "{taken}");
    while waiting(&server) > 0 {
        server.turn();
    }
    client.socket.as_mut().unwrap().write_all(&flood[sent..]).unwrap();
    client.until(&mut server, |client| client.plain.len() == SIMPLE_REPLY_BYTES);
    assert!((0..6000).all(|at| server.disk[at] == at as u8));
}
