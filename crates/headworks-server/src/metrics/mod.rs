//! The metrics endpoint: one thread that answers scrapers, and asks the shards as the control socket does.
//!
//! At most 16 clients at once, each for at most 5 seconds; while all places are taken nobody is accepted, so a client that
//! is slow costs a place for that long and nothing else. A page is made when it is asked for.
//!
//! `http` reads heads and writes answers, `text` has the format, `service/seeing.rs` the numbers.

mod http;
mod page;
mod text;

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use headworks_core::ConfigError;

use super::control::service::ControlService;
use super::listen::inherited::{BoundSocket, InheritedSocket};
use http::HeadStatus;

/// Scrapers at once.
const CLIENTS_MAX: usize = 16;
/// A client is there no longer.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);
/// After a failure to accept: file descriptors may be free again.
const REST: Duration = Duration::from_secs(1);

/// Listens for scrapers, before anything runs.
///
/// # Errors
/// What is in the way, in one sentence.
pub fn bind(address: SocketAddr) -> Result<TcpListener, ConfigError> {
    let fail = |error| ConfigError::new("metrics", format!("cannot listen on {address}: {error}"));
    let listener = TcpListener::bind(address).map_err(fail)?;
    listener.set_nonblocking(true).map_err(fail)?;
    Ok(listener)
}

/// Takes a socket that somebody else made.
///
/// # Errors
/// It is not TCP, or no file descriptor is left.
pub fn adopt(given: &InheritedSocket) -> Result<TcpListener, ConfigError> {
    let fail = |message: String| ConfigError::new("metrics", message);
    match given.adopt() {
        Ok(BoundSocket::Tcp(listener)) => Ok(listener),
        Ok(BoundSocket::Unix(_)) => {
            Err(fail("the passed socket is a unix socket; metrics need TCP".into()))
        }
        Err(error) => Err(fail(format!("cannot use the passed socket: {error}"))),
    }
}

/// The running endpoint.
pub struct Metrics {
    address: SocketAddr,
    /// Closed to stop the thread.
    stop: UnixStream,
    thread: JoinHandle<()>,
}

impl Metrics {
    /// Starts to answer.
    ///
    /// # Errors
    /// No thread or file descriptor is left.
    pub fn start(listener: TcpListener, service: Arc<ControlService>) -> Result<Self, ConfigError> {
        let fail = |error: io::Error| ConfigError::new("metrics", format!("cannot start: {error}"));
        let address = listener.local_addr().map_err(fail)?;
        let (stop, stopped) = UnixStream::pair().map_err(fail)?;
        let mut endpoint =
            MetricsEndpoint { listener, service, clients: Vec::new(), resting: None };
        let thread = std::thread::Builder::new()
            .name("metrics".into())
            .spawn(move || while endpoint.turn(&stopped) {})
            .map_err(fail)?;
        Ok(Self { address, stop, thread })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends it.
    pub fn stop(self) {
        drop(self.stop);
        // A thread that has died said so.
        let _ = self.thread.join();
    }
}

struct MetricsEndpoint {
    listener: TcpListener,
    service: Arc<ControlService>,
    clients: Vec<Client>,
    /// Nobody is accepted until then.
    resting: Option<Instant>,
}

struct Client {
    stream: TcpStream,
    until: Instant,
    head: Vec<u8>,
    answer: Vec<u8>,
    sent: usize,
}

impl MetricsEndpoint {
    /// Waits for something and does it; false when it is time to stop.
    fn turn(&mut self, stopped: &UnixStream) -> bool {
        let now = Instant::now();
        self.resting = self.resting.filter(|until| *until > now);
        let accepts = self.clients.len() < CLIENTS_MAX && self.resting.is_none();
        let poll = |fd, events| libc::pollfd { fd, events, revents: 0 };
        let mut fds = vec![poll(stopped.as_raw_fd(), libc::POLLIN)];
        // A negative descriptor is not looked at.
        let listener = if accepts { self.listener.as_raw_fd() } else { -1 };
        fds.push(poll(listener, libc::POLLIN));
        fds.extend(self.clients.iter().map(|client| {
            let events = if client.answer.is_empty() { libc::POLLIN } else { libc::POLLOUT };
            poll(client.stream.as_raw_fd(), events)
        }));
        let first = self.clients.iter().map(|client| client.until).chain(self.resting).min();
        let wait =
            first.map_or(-1, |until| until.saturating_duration_since(now).as_millis() as i32 + 1);
        // SAFETY: as many entries as said.
        unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, wait) };
        if fds[0].revents != 0 {
            return false;
        }
        let now = Instant::now();
        let service = &self.service;
        let mut ready = fds[2..].iter();
        self.clients.retain_mut(|client| {
            let ready = ready.next().is_some_and(|fd| fd.revents != 0);
            client.until > now && (!ready || client.go_on(service).is_ok())
        });
        if fds[1].revents != 0 {
            self.accept(now);
        }
        true
    }

    fn accept(&mut self, now: Instant) {
        match self.listener.accept() {
            Ok((stream, _)) => {
                if stream.set_nonblocking(true).is_ok() {
                    let (head, answer) = (Vec::new(), Vec::new());
                    let until = now + CLIENT_TIMEOUT;
                    self.clients.push(Client { stream, until, head, answer, sent: 0 });
                }
            }
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionAborted) => {
            }
            Err(error) => {
                tracing::error!("cannot accept a client of the metrics endpoint: {error}");
                self.resting = Some(now + REST);
            }
        }
    }
}

impl Client {
    /// Reads or sends what it can; an error when it is over, well or not.
    fn go_on(&mut self, service: &ControlService) -> io::Result<()> {
        if self.answer.is_empty() {
            self.receive()?;
            self.answer = match http::read_head(&self.head) {
                HeadStatus::Incomplete => return Ok(()),
                HeadStatus::Refused(status) => http::refusal(status),
                HeadStatus::Page { body } => {
                    match page::metrics_page(service.queries(), &service.tree()) {
                        Ok(text) => http::page(&text, body),
                        Err(_) => http::refusal(503),
                    }
                }
            };
        }
        while self.sent < self.answer.len() {
            match self.stream.write(&self.answer[self.sent..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        // What it still sends is read, or closing would take the answer back.
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
        let mut rest = [0; 4096];
        let _ = (0..4).all(|_| matches!(self.stream.read(&mut rest), Ok(count) if count > 0));
        Err(ErrorKind::ConnectionAborted.into())
    }

    fn receive(&mut self) -> io::Result<()> {
        let mut bytes = [0; 2048];
        let room = (http::HEAD_MAX - self.head.len()).min(bytes.len());
        match self.stream.read(&mut bytes[..room]) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                self.head.extend_from_slice(&bytes[..count]);
                Ok(())
            }
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}
