//! Hostile servers against an attempt to connect: each one ends within its limit, with one sentence, and takes little memory.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use headworks_core::time::{MS, SEC};

use super::{Attempt, Dial, Dialer, RemoteOptions};
use crate::client::{OptionNegotiation, Target, Uri};
use crate::wire::{
    INIT_MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC, TransmissionFlags, be32, info, option,
    option_reply,
};

/// More than a hostile server may send before its connection is closed: what sockets hold is in it.
const BYTES_MAX: u64 = 8 << 20;
/// A test waits so long for what comes at once.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a server does when it is asked an option; false: the usual answer follows.
type Answer = fn(&mut Peer, u32) -> std::io::Result<bool>;

/// The server's side of a connection.
struct Peer {
    socket: UnixStream,
    sent: u64,
}

impl Peer {
    fn send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.socket.write_all(bytes)?;
        self.sent += bytes.len() as u64;
        Ok(())
    }

    fn reply(&mut self, code: u32, kind: u32, data: &[u8]) -> std::io::Result<()> {
        let mut bytes = OPTION_REPLY_MAGIC.to_be_bytes().to_vec();
        for word in [code, kind, data.len() as u32] {
            bytes.extend(word.to_be_bytes());
        }
        bytes.extend(data);
        self.send(&bytes)
    }

    /// Sends one reply without end, or until it has sent more than a connection may.
    fn flood(&mut self, code: u32, kind: u32, data: &[u8]) -> std::io::Result<bool> {
        while self.sent < 4 * BYTES_MAX {
            self.reply(code, kind, data)?;
        }
        Ok(true)
    }

    /// Sends a byte every few milliseconds without end.
    fn trickle(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        bytes.iter().try_for_each(|byte| {
            std::thread::sleep(Duration::from_millis(5));
            self.send(&[*byte])
        })
    }

    /// Serves until the other side closes.
    fn serve(&mut self, greeting: Greeting, answer: Answer) -> std::io::Result<()> {
        let mut bytes = INIT_MAGIC.to_be_bytes().to_vec();
        bytes.extend(OPTION_MAGIC.to_be_bytes());
        bytes.extend([0, 3]);
        match greeting {
            Greeting::Usual => self.send(&bytes)?,
            Greeting::Trickle => loop {
                self.trickle(&bytes[..1])?;
                bytes.rotate_left(1);
            },
            Greeting::Silence => {}
        }
        self.socket.read_exact(&mut [0; 4])?;
        loop {
            let mut header = [0; 16];
            self.socket.read_exact(&mut header)?;
            let (code, len) = (be32(&header, 8), be32(&header, 12));
            self.socket.read_exact(&mut vec![0; len as usize])?;
            if answer(self, code)? {
                continue;
            }
            match code {
                option::STRUCTURED_REPLY => self.reply(code, option_reply::ACK, &[])?,
                option::SET_META_CONTEXT => {
                    self.reply(code, option_reply::META_CONTEXT, b"\0\0\0\x01base:allocation")?;
                    self.reply(code, option_reply::ACK, &[])?;
                }
                _ => {
                    self.reply(code, option_reply::INFO, &size())?;
                    self.reply(code, option_reply::ACK, &[])?;
                }
            }
        }
    }
}

#[derive(Clone, Copy)]
enum Greeting {
    Usual,
    /// Its bytes one by one, and without an end.
    Trickle,
    Silence,
}

fn size() -> Vec<u8> {
    let mut bytes = info::EXPORT.to_be_bytes().to_vec();
    bytes.extend((1_u64 << 20).to_be_bytes());
    bytes.extend(TransmissionFlags::CAN_MULTI_CONN.0.to_be_bytes());
    bytes
}

/// A hostile server; the receiver gets what each connection has sent when its other side has closed it.
fn hostile(greeting: Greeting, answer: Answer) -> (Uri, Receiver<u64>) {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("hw-hostile-{}-{number}", std::process::id()));
    let listener = UnixListener::bind(&path).unwrap();
    let (ended, ends) = channel();
    std::thread::spawn(move || accept(&listener, greeting, answer, &ended));
    (uri(path), ends)
}

fn accept(listener: &UnixListener, greeting: Greeting, answer: Answer, ended: &Sender<u64>) {
    for socket in listener.incoming().map_while(Result::ok) {
        let ended = ended.clone();
        std::thread::spawn(move || {
            let mut peer = Peer { socket, sent: 0 };
            // It ends with the error of a closed connection.
            let _ = peer.serve(greeting, answer);
            let _ = ended.send(peer.sent);
        });
    }
}

fn uri(path: PathBuf) -> Uri {
    Uri { target: Target::Unix(path), export: String::new(), tls: None }
}

/// Makes an attempt on a thread of its own.
fn attempt(uri: &Uri, connect_ns: u64) -> Attempt {
    let options = RemoteOptions { connect_ns, ..RemoteOptions::default() };
    let mut dialer = Dialer::new(uri.clone(), &options).unwrap();
    let (sender, result) = channel();
    std::thread::spawn(move || sender.send(dialer.open()));
    result.recv_timeout(PATIENCE).expect("an attempt ends")
}

/// The sentence of an attempt that fails, whose only connection is closed before it has sent much.
fn fails(greeting: Greeting, answer: Answer, connect_ns: u64) -> String {
    let (uri, ends) = hostile(greeting, answer);
    let error = attempt(&uri, connect_ns).expect_err("a hostile server").to_string();
    let sent = ends.recv_timeout(PATIENCE).expect("the connection ends with the attempt");
    assert!(sent < BYTES_MAX, "{error}: {sent} bytes");
    error
}

#[test]
fn floods_of_option_replies_end_the_connection() {
    let cases: [(&str, Answer); 5] = [
        ("context that was not requested", |peer, code| {
            let mut data = vec![0; 4000];
            data[..8].copy_from_slice(b"\0\0\0\x01base");
            match code {
                option::SET_META_CONTEXT => peer.flood(code, option_reply::META_CONTEXT, &data),
                _ => Ok(false),
            }
        }),
        ("more than 1 contexts", |peer, code| match code {
            option::SET_META_CONTEXT => {
                peer.flood(code, option_reply::META_CONTEXT, b"\0\0\0\x01base:allocation")
            }
            _ => Ok(false),
        }),
        ("does not end", |peer, code| match code {
            option::GO => peer.flood(code, option_reply::INFO, &size()),
            _ => Ok(false),
        }),
        ("does not end", |peer, code| match code {
            option::GO => peer.flood(code, option_reply::INFO, &[0, 99]),
            _ => Ok(false),
        }),
        ("answers an option with kind", |peer, code| match code {
            option::GO => peer.flood(code, option_reply::SERVER, &[0; 4]),
            _ => Ok(false),
        }),
    ];
    for (part, answer) in cases {
        let error = fails(Greeting::Usual, answer, 20 * SEC);
        assert!(error.contains(part), "{part}: {error}");
    }
}

#[test]
fn long_replies_end_the_connection_unread() {
    let cases: [(&str, Answer); 3] = [
        ("answers an option with 4294967295 bytes", |peer, code| {
            let mut bytes = OPTION_REPLY_MAGIC.to_be_bytes().to_vec();
            for word in [code, option_reply::ACK, u32::MAX] {
                bytes.extend(word.to_be_bytes());
            }
            peer.send(&bytes)?;
            Ok(true)
        }),
        ("a text of 5000 bytes", |peer, code| match code {
            option::GO => {
                let mut data = info::DESCRIPTION.to_be_bytes().to_vec();
                data.resize(5002, b'x');
                peer.reply(code, option_reply::INFO, &data)?;
                Ok(true)
            }
            _ => Ok(false),
        }),
        ("answers an option with 65536 bytes", |peer, code| match code {
            option::GO => peer.flood(code, option_reply::INFO, &vec![0; 64 << 10]),
            _ => Ok(false),
        }),
    ];
    for (part, answer) in cases {
        let error = fails(Greeting::Usual, answer, 20 * SEC);
        assert!(error.contains(part), "{part}: {error}");
    }
}

#[test]
fn one_deadline_ends_silence_and_trickles() {
    fn usual(_: &mut Peer, _: u32) -> std::io::Result<bool> {
        Ok(false)
    }
    for greeting in [Greeting::Silence, Greeting::Trickle] {
        let error = fails(greeting, usual, 50 * MS);
        assert!(error.contains("did not answer in time"), "{error}");
    }
    // Each reply comes within a limit of its own, and they do not end.
    let error = fails(
        Greeting::Usual,
        |peer, code| {
            loop {
                let mut bytes = OPTION_REPLY_MAGIC.to_be_bytes().to_vec();
                for word in [code, option_reply::INFO, 8000] {
                    bytes.extend(word.to_be_bytes());
                }
                peer.send(&bytes)?;
                peer.trickle(&[7; 8000])?;
            }
        },
        50 * MS,
    );
    assert!(error.contains("did not answer in time"), "{error}");
}

#[test]
fn full_backlog_of_a_unix_socket_ends_at_the_deadline() {
    let path = std::env::temp_dir().join(format!("hw-backlog-{}", std::process::id()));
    let listener = UnixListener::bind(&path).unwrap();
    // SAFETY: no pointers.
    unsafe { libc::listen(std::os::fd::AsRawFd::as_raw_fd(&listener), 0) };
    let _taken = UnixStream::connect(&path).unwrap();
    let error = attempt(&uri(path.clone()), 50 * MS).unwrap_err().to_string();
    assert!(error.contains("did not answer in time"), "{error}");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn further_connections_share_the_deadline_of_the_first() {
    let (uri, _ends) = hostile(Greeting::Usual, |_, _| Ok(false));
    let opened = attempt(&uri, 20 * SEC).unwrap();
    assert_eq!(opened.len(), usize::from(RemoteOptions::default().connections));
    // After the handshake a wait has its own limit.
    let (mut negotiation, limit) =
        (OptionNegotiation::open(&uri, Duration::from_millis(50)).unwrap(), 60);
    std::thread::sleep(Duration::from_millis(limit));
    assert!(negotiation.ask_structured().is_err(), "the deadline is of all options together");
    negotiation.renew_limit();
    assert!(negotiation.ask_structured().is_ok());
}

#[test]
fn a_dialer_that_is_dropped_ends_its_attempt() {
    let (uri, ends) = hostile(Greeting::Trickle, |_, _| Ok(false));
    let options = RemoteOptions { connect_ns: 50 * MS, ..RemoteOptions::default() };
    let mut dialer = Dialer::new(uri, &options).unwrap();
    dialer.start();
    drop(dialer);
    ends.recv_timeout(PATIENCE).expect("the connection ends at the deadline");
}
