//! The metrics endpoint: one thread that serves Prometheus scrapers, and browsers with the status page.
//!
//! At most 16 clients are served at once, each for at most 5 seconds. A request that has arrived is answered at once, without a slot if
//! the socket takes the answer. While all slots are in use a new client takes that of a request that has not arrived: the oldest one
//! of the address with most of them, so many half requests of one address cost clients of other addresses no slot. While all clients are taking their
//! answers none is accepted.
//!
//! The metrics are made for each request, from the same queries as the control socket's. While a status page is open the thread takes
//! its samples between requests.
//!
//! `http` parses heads and builds responses, `text` writes the exposition format, `page` chooses the metrics.

mod exports;
mod http;
pub(crate) mod page;
mod process;
mod text;

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use headworks_core::ConfigError;

use crate::control::service::ControlService;
use crate::listen::inherited::{BoundSocket, InheritedSocket};
use crate::observe::status_page::StatusPage;
use http::{HeadStatus, RequestTarget};

/// Scrapers and browsers served at once.
const CLIENTS_MAX: usize = 16;
/// Time limit of one client.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after a failed accept, until file descriptors may be free.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// Binds the endpoint's address.
///
/// # Errors
/// The address cannot be bound.
pub fn bind(address: SocketAddr) -> Result<TcpListener, ConfigError> {
    let fail = |error| ConfigError::new("metrics", format!("cannot listen on {address}: {error}"));
    let listener = crate::listen::bind_with_retries(address).map_err(fail)?;
    listener.set_nonblocking(true).map_err(fail)?;
    Ok(listener)
}

/// Takes over an inherited listening socket.
///
/// # Errors
/// The socket is not TCP, or no file descriptor is left.
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

/// The running metrics endpoint.
pub struct Metrics {
    address: SocketAddr,
    /// Closed to stop the thread.
    stop: UnixStream,
    thread: JoinHandle<()>,
}

impl Metrics {
    /// Starts the thread.
    ///
    /// # Errors
    /// No thread or file descriptor is left.
    pub fn start(listener: TcpListener, service: Arc<ControlService>) -> Result<Self, ConfigError> {
        let fail = |error: io::Error| ConfigError::new("metrics", format!("cannot start: {error}"));
        let address = listener.local_addr().map_err(fail)?;
        let (stop, stopped) = UnixStream::pair().map_err(fail)?;
        let page = StatusPage::new(Arc::clone(&service));
        let served = Served { service, page, own_host: own_host() };
        let mut endpoint =
            MetricsEndpoint { listener, served, clients: Vec::new(), paused_until: None };
        let thread = std::thread::Builder::new()
            .name("metrics".into())
            .spawn(move || while endpoint.turn(&stopped) {})
            .map_err(fail)?;
        Ok(Self { address, stop, thread })
    }

    /// Address of the endpoint.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops the thread and waits for its end.
    pub fn stop(self) {
        drop(self.stop);
        // A panic of the thread was reported by itself.
        let _ = self.thread.join();
    }
}

/// What clients are served.
struct Served {
    service: Arc<ControlService>,
    page: StatusPage,
    /// Name of this machine; empty if it has none.
    own_host: String,
}

/// Name of this machine, by which browsers may reach it.
fn own_host() -> String {
    let mut name = [0_u8; 256];
    // SAFETY: the buffer is ours and has this length.
    let done = unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len()) } == 0;
    let name = name.split(|byte| *byte == 0).next().filter(|_| done).unwrap_or_default();
    String::from_utf8_lossy(name).into_owned()
}

struct MetricsEndpoint {
    listener: TcpListener,
    served: Served,
    clients: Vec<Client>,
    /// No client is accepted before this time.
    paused_until: Option<Instant>,
}

struct Client {
    stream: TcpStream,
    peer: IpAddr,
    until: Instant,
    head: Vec<u8>,
    answer: Vec<u8>,
    sent: usize,
}

impl MetricsEndpoint {
    /// Waits for events and handles them; false when the endpoint stops.
    fn turn(&mut self, stopped: &UnixStream) -> bool {
        let now = Instant::now();
        self.paused_until = self.paused_until.filter(|until| *until > now);
        let accepts = self.has_slot() && self.paused_until.is_none();
        let poll = |fd, events| libc::pollfd { fd, events, revents: 0 };
        let mut fds = vec![poll(stopped.as_raw_fd(), libc::POLLIN)];
        // `poll` ignores negative descriptors.
        let listener = if accepts { self.listener.as_raw_fd() } else { -1 };
        fds.push(poll(listener, libc::POLLIN));
        fds.extend(self.clients.iter().map(|client| {
            let events = if client.answer.is_empty() { libc::POLLIN } else { libc::POLLOUT };
            poll(client.stream.as_raw_fd(), events)
        }));
        let deadlines = self.clients.iter().map(|client| client.until).chain(self.paused_until);
        let first = deadlines.chain(self.served.page.next_timeout()).min();
        let wait =
            first.map_or(-1, |until| until.saturating_duration_since(now).as_millis() as i32 + 1);
        // SAFETY: as many entries as said.
        unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, wait) };
        if fds[0].revents != 0 {
            return false;
        }
        let now = Instant::now();
        let served = &mut self.served;
        served.page.on_timeout(now);
        let mut ready = fds[2..].iter();
        self.clients.retain_mut(|client| {
            let ready = ready.next().is_some_and(|fd| fd.revents != 0);
            client.until > now && (!ready || client.progress(now, served).is_ok())
        });
        if fds[1].revents != 0 {
            self.accept(now);
        }
        true
    }

    /// Whether a new client finds a slot, or one that it may take.
    fn has_slot(&self) -> bool {
        self.clients.len() < CLIENTS_MAX || victim(&self.clients).is_some()
    }

    fn accept(&mut self, now: Instant) {
        if !self.has_slot() {
            return;
        }
        match self.listener.accept() {
            Ok((stream, peer)) => self.admit(now, stream, peer.ip()),
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionAborted) => {
            }
            Err(error) => {
                tracing::error!("cannot accept a client of the metrics endpoint: {error}");
                self.paused_until = Some(now + ACCEPT_PAUSE);
            }
        }
    }

    /// Serves a new client as far as possible; what is left needs a slot.
    fn admit(&mut self, now: Instant, stream: TcpStream, peer: IpAddr) {
        if stream.set_nonblocking(true).is_err() {
            return;
        }
        let until = now + CLIENT_TIMEOUT;
        let mut client =
            Client { stream, peer, until, head: Vec::new(), answer: Vec::new(), sent: 0 };
        if client.progress(now, &mut self.served).is_err() {
            return;
        }
        if self.clients.len() >= CLIENTS_MAX
            && let Some(victim) = victim(&self.clients)
        {
            self.clients.remove(victim);
        }
        self.clients.push(client);
    }
}

/// The client that gives up its slot, of clients in the order of their arrival: of those whose requests have not arrived the oldest of
/// the address that has most of them.
fn victim(clients: &[Client]) -> Option<usize> {
    let waits = |client: &Client| client.answer.is_empty();
    let of_peer = |peer| clients.iter().filter(|it| waits(it) && it.peer == peer).count();
    let waiting = clients.iter().enumerate().filter(|(_, client)| waits(client));
    // `max_by_key` returns the last of equal elements, here the oldest.
    waiting.rev().max_by_key(|(_, client)| of_peer(client.peer)).map(|(index, _)| index)
}

impl Served {
    /// The response to a request.
    fn answer(&mut self, now: Instant, target: RequestTarget, body: bool) -> Vec<u8> {
        let service = &self.service;
        match target {
            RequestTarget::Metrics => {
                match page::metrics_page(service.queries(), &service.tree()) {
                    Ok(text) => http::metrics(&text, body),
                    Err(_) => http::refusal(503),
                }
            }
            RequestTarget::File(file) => http::file(file, body),
            RequestTarget::Data { after } => match self.page.data(now, after) {
                Some(text) => http::data(&text, body),
                None => http::refusal(503),
            },
        }
    }
}

impl Client {
    /// Reads or writes as far as possible; an error when the client is done.
    fn progress(&mut self, now: Instant, served: &mut Served) -> io::Result<()> {
        if self.answer.is_empty() {
            self.receive()?;
            self.answer = match http::read_head(&self.head, &served.own_host) {
                HeadStatus::Incomplete => return Ok(()),
                HeadStatus::Refused(status) => http::refusal(status),
                HeadStatus::Request { target, body } => served.answer(now, target, body),
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
        // Reads what the client still sends: closing with unread data would reset the connection.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn client(listener: &TcpListener, peer: &str, answer: &str) -> Client {
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (peer, until) = (peer.parse().unwrap(), Instant::now() + CLIENT_TIMEOUT);
        Client { stream, peer, until, head: Vec::new(), answer: answer.into(), sent: 0 }
    }

    /// The slot comes from the address with most half requests, oldest first, and never from a client that takes its answer.
    #[test]
    fn oldest_half_request_of_the_busiest_address_gives_up_its_slot() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut clients: Vec<_> = [
            ("10.0.0.2", ""),
            ("10.0.0.1", "metrics"),
            ("10.0.0.1", "metrics"),
            ("10.0.0.1", ""),
            ("10.0.0.1", ""),
            ("10.0.0.3", ""),
        ]
        .iter()
        .map(|(peer, answer)| client(&listener, peer, answer))
        .collect();
        let mut order = Vec::new();
        while let Some(index) = victim(&clients) {
            order.push(clients.remove(index).peer.to_string());
        }
        assert_eq!(order, ["10.0.0.1", "10.0.0.2", "10.0.0.1", "10.0.0.3"]);
        assert_eq!(clients.len(), 2, "these have their requests");
    }
}
