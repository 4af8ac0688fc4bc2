//! The control socket: a thread that accepts clients, and one thread for each of at most 16 clients.
//!
//! A client's thread may wait for a shard without delaying others. The data path is involved only through messages, so
//! an unused control socket costs nothing.
//!
//! ```text
//!   client --line--> rpc --method--> service --query--> shard
//!                                      ^------- answer, or a closed channel --'
//! ```
//!
//! The socket outlives a stop until the last shard has ended, so that a slow shutdown can be observed; then clients
//! have one second for their last answers. Invariant: every wait has a deadline, or ends with the server.

use std::io::{self, Read};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use headworks_core::ConfigError;

use super::service::ControlService;
use super::{client, credentials};
use crate::listen::Listener;
use headworks_control::RpcFault;

/// Most clients at once.
const CLIENTS_MAX: usize = 16;
/// Time limit of the last answers after the server has ended.
const LAST_ANSWERS: Duration = Duration::from_secs(1);
/// Pause after a failed accept, until file descriptors may be free.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);
/// Interval at which a socket that accepts no clients looks whether it may again.
const PAUSE_MS: libc::c_int = 5;

/// The running control socket.
pub struct ControlSocket {
    /// Closed to stop the thread.
    stop: UnixStream,
    thread: JoinHandle<()>,
}

struct Client {
    stream: Arc<UnixStream>,
    thread: JoinHandle<()>,
}

impl ControlSocket {
    /// Starts the accepting thread.
    ///
    /// # Errors
    /// No thread or file descriptor is left.
    pub fn start(listener: Listener, service: Arc<ControlService>) -> Result<Self, ConfigError> {
        let fail = |error: io::Error| ConfigError::new("control", format!("cannot start: {error}"));
        let (stop, stopped) = UnixStream::pair().map_err(fail)?;
        let thread = std::thread::Builder::new()
            .name("control".into())
            .spawn(move || ControlClients::new(service).run(listener, &stopped))
            .map_err(fail)?;
        Ok(Self { stop, thread })
    }

    /// Ends all threads and removes the socket's file.
    pub fn stop(self) {
        drop(self.stop);
        // A panic of the thread was reported by itself.
        let _ = self.thread.join();
    }
}

/// Connected clients and their threads.
struct ControlClients {
    service: Arc<ControlService>,
    clients: Vec<Client>,
    /// Cloned into clients' threads: the channel closes when all of them have ended.
    present: Sender<()>,
    ended: Receiver<()>,
}

impl ControlClients {
    fn new(service: Arc<ControlService>) -> Self {
        let (present, ended) = channel();
        Self { service, clients: Vec::new(), present, ended }
    }

    fn run(mut self, listener: Listener, stopped: &UnixStream) {
        while !wait(&listener, stopped, self.service.accepts_clients()) {
            if !self.service.accepts_clients() {
                // Another process takes over, and answers clients that come now.
                continue;
            }
            match listener.accept() {
                Ok(Some((socket, _))) => self.add_client(UnixStream::from(socket)),
                Ok(None) => {}
                Err(error) => {
                    tracing::error!("cannot accept a client of the control socket: {error}");
                    let _ = stopped.set_read_timeout(Some(ACCEPT_PAUSE));
                    let _ = (&mut &*stopped).read(&mut [0]);
                }
            }
        }
        drop(listener);
        self.finish();
    }

    fn add_client(&mut self, stream: UnixStream) {
        if stream.set_nonblocking(false).is_err() {
            return;
        }
        if let Err(fault) = credentials::check(&stream) {
            return client::refuse(&stream, &fault);
        }
        let (ended, present) = std::mem::take(&mut self.clients)
            .into_iter()
            .partition(|c: &Client| c.thread.is_finished());
        self.clients = present;
        let ended: Vec<Client> = ended;
        for client in ended {
            let _ = client.thread.join();
        }
        if self.clients.len() == CLIENTS_MAX {
            let why = format!("there are {CLIENTS_MAX} clients already; try again later");
            return client::refuse(&stream, &RpcFault::request(why));
        }
        let stream = Arc::new(stream);
        let (service, present) = (Arc::clone(&self.service), self.present.clone());
        let own = Arc::clone(&stream);
        let thread = std::thread::Builder::new().name("control-client".into()).spawn(move || {
            client::serve(&own, &service);
            // The stream may have further references; the client must see the end now.
            let _ = own.shutdown(Shutdown::Both);
            drop(present);
        });
        match thread {
            Ok(thread) => self.clients.push(Client { stream, thread }),
            Err(error) => tracing::error!("cannot start a thread for a control client: {error}"),
        }
    }

    /// Stops reading from clients and waits for their last answers.
    fn finish(self) {
        let Self { clients, present, ended, .. } = self;
        for client in &clients {
            let _ = client.stream.shutdown(Shutdown::Read);
        }
        drop(present);
        if ended.recv_timeout(LAST_ANSWERS) == Err(RecvTimeoutError::Timeout) {
            for client in &clients {
                let _ = client.stream.shutdown(Shutdown::Both);
            }
        }
        for client in clients {
            let _ = client.thread.join();
        }
    }
}

/// Waits for a client if it `accepts` one, otherwise for a moment; true when the socket stops.
fn wait(listener: &Listener, stopped: &UnixStream, accepts: bool) -> bool {
    let (listener, time_limit) = if accepts { (listener.fd(), -1) } else { (-1, PAUSE_MS) };
    let poll = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut fds = [poll(listener), poll(stopped.as_raw_fd())];
    // SAFETY: two entries, as said.
    let ready = unsafe { libc::poll(fds.as_mut_ptr(), 2, time_limit) };
    ready > 0 && fds[1].revents != 0
}
