//! Opening connections, on a thread of its own: names are resolved and certificates checked by code that waits.
//!
//! ```text
//!   device --start--> thread: connect, TLS, options, GO (all within one limit) --result, eventfd--> device
//! ```
//!
//! Invariants: one attempt at a time, which ends, with its descriptors, at [`RemoteOptions::connect_ns`], whatever the server sends (names are
//! resolved by the C library, within its own limits). The thread ends when the device does, at the latest after the attempt that it makes.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use super::RemoteOptions;
use crate::TransmissionFlags;
use crate::client::{ClientError, Export, OptionNegotiation, Socket, Uri};

/// The least limit of a further connection, if the attempt has as much left.
const FURTHER_LIMIT: Duration = Duration::from_millis(500);
/// Time in which the result of an attempt arrives after its limit.
const GRACE: Duration = Duration::from_secs(1);

/// A connection in the transmission phase, and what the server says of the export.
pub type Opened = (Socket, Export);
/// How an attempt ended: with at least one connection, or not.
pub type Attempt = Result<Vec<Opened>, ClientError>;

/// Opens connections without making the caller wait.
pub trait Dial: Send + 'static {
    /// Begins an attempt, if none is in progress.
    fn start(&mut self);

    /// A descriptor that is readable once an attempt has ended.
    fn fd(&self) -> RawFd;

    /// Takes the result of an attempt that has ended.
    fn take(&mut self) -> Option<Attempt>;
}

/// Opens connections to the server of a URI.
pub struct Dialer {
    orders: SyncSender<()>,
    results: Receiver<Attempt>,
    bell: Arc<OwnedFd>,
    limit: Duration,
}

impl Dialer {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system has no thread or descriptor left.
    pub fn new(uri: Uri, options: &RemoteOptions) -> io::Result<Self> {
        let limit = Duration::from_nanos(options.connect_ns);
        let connections = options.connections.clamp(1, RemoteOptions::CONNECTIONS_MAX).into();
        // SAFETY: no pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just opened, with no other owner.
        let bell = Arc::new(unsafe { OwnedFd::from_raw_fd(fd) });
        let (orders, inbox) = sync_channel::<()>(1);
        let (sender, results) = sync_channel(1);
        let ring = Arc::clone(&bell);
        std::thread::Builder::new().name("headworks-dial".into()).spawn(move || {
            while inbox.recv().is_ok() {
                let attempt = open(&uri, connections, limit);
                // The device may have ended.
                if sender.send(attempt).is_err() {
                    break;
                }
                let one = 1_u64.to_ne_bytes();
                // SAFETY: eight bytes, which live during the call.
                unsafe { libc::write(ring.as_raw_fd(), one.as_ptr().cast(), one.len()) };
            }
        })?;
        Ok(Self { orders, results, bell, limit })
    }

    /// Makes an attempt and waits for it.
    ///
    /// # Errors
    /// As the attempt; or it took longer than the limit.
    pub fn open(&mut self) -> Attempt {
        self.start();
        let attempt = match self.results.recv_timeout(self.limit + GRACE) {
            Ok(attempt) => attempt,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                Err(ClientError::TimedOut)
            }
        };
        self.silence();
        attempt
    }

    fn silence(&self) {
        let mut count = [0_u8; 8];
        // SAFETY: eight bytes, which live during the call.
        unsafe { libc::read(self.bell.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }
}

impl Dial for Dialer {
    fn start(&mut self) {
        // Full: an attempt waits already.
        let _ = self.orders.try_send(());
    }

    fn fd(&self) -> RawFd {
        self.bell.as_raw_fd()
    }

    fn take(&mut self) -> Option<Attempt> {
        self.silence();
        self.results.try_recv().ok()
    }
}

/// Opens as many connections as the server permits for one client, and are wanted.
fn open(uri: &Uri, connections: usize, limit: Duration) -> Attempt {
    let began = Instant::now();
    let first = open_one(uri, limit)?;
    // A server that permits fewer clients than it says may let the next one wait.
    let further = (began.elapsed() * 4).max(FURTHER_LIMIT);
    let shares = first.1.flags.contains(TransmissionFlags::CAN_MULTI_CONN);
    let mut opened = vec![first];
    while shares && opened.len() < connections {
        let left = limit.saturating_sub(began.elapsed());
        match open_one(uri, further.min(left)) {
            Ok(another) => opened.push(another),
            Err(error) => {
                tracing::debug!("{uri}: connection {} is refused: {error}", opened.len() + 1);
                break;
            }
        }
    }
    Ok(opened)
}

fn open_one(uri: &Uri, limit: Duration) -> Result<Opened, ClientError> {
    let mut negotiation = OptionNegotiation::open(uri, limit)?;
    negotiation.ask_structured()?;
    negotiation.ask_allocation(&uri.export)?;
    let (socket, export) = negotiation.go(&uri.export)?;
    socket.prepare_for_device()?;
    Ok((socket, export))
}
