//! The control socket: a thread that accepts, and one for each of at most 16 clients.
//!
//! A client's thread may wait, for a shard's answer or for a switch, and holds up nobody else; the data path hears of it only
//! by mail, so a server that is not asked anything pays nothing.
//!
//! ```text
//!   client --line--> rpc --method--> service --question--> mail --> shard
//!                                      ^------- answer, or nobody is there any more --'
//! ```
//!
//! The socket outlives SIGTERM until the last shard has ended, so that a stop that takes long can be looked at; then clients
//! are given a second for their last answers. Invariant: every wait has a deadline, or an end that the server's end brings.
//!
//! `tree` has the names, `service` the methods, `report` the tables, `question` what is asked of shards, `order` what they are told when exports change,
//! `departure` how far one is on its way out, `client` the lines,
//! `credentials` who may come in, `log_level` how much is logged.

use std::io::{self, Read};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use headworks_core::ConfigError;

use super::rpc::RpcFault;
use super::service::ControlService;
use super::{client, credentials};
use crate::listen::Listener;

/// Clients at once: some that look and some that set; more would be a mistake that runs in a loop.
const CLIENTS_MAX: usize = 16;
/// How long clients may take for their last answers when the server has ended.
const FAREWELL: Duration = Duration::from_secs(1);
/// After a failure to accept: file descriptors may be free again.
const REST: Duration = Duration::from_secs(1);

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
    /// Starts to accept.
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

    /// Ends everything; the socket's file goes with it.
    pub fn stop(self) {
        drop(self.stop);
        // A thread that has died said so.
        let _ = self.thread.join();
    }
}

/// Who is there.
struct ControlClients {
    service: Arc<ControlService>,
    clients: Vec<Client>,
    /// Clients' threads hold the other end, so that their end can be waited for.
    present: Sender<()>,
    ended: Receiver<()>,
}

impl ControlClients {
    fn new(service: Arc<ControlService>) -> Self {
        let (present, ended) = channel();
        Self { service, clients: Vec::new(), present, ended }
    }

    fn run(mut self, listener: Listener, stopped: &UnixStream) {
        while !wait(&listener, stopped) {
            match listener.accept() {
                Ok(Some((socket, _))) => self.welcome(UnixStream::from(socket)),
                Ok(None) => {}
                Err(error) => {
                    tracing::error!("cannot accept a client of the control socket: {error}");
                    let _ = stopped.set_read_timeout(Some(REST));
                    let _ = (&mut &*stopped).read(&mut [0]);
                }
            }
        }
        drop(listener);
        self.farewell();
    }

    fn welcome(&mut self, stream: UnixStream) {
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
            // Others may still hold the stream; the client is to know now.
            let _ = own.shutdown(Shutdown::Both);
            drop(present);
        });
        match thread {
            Ok(thread) => self.clients.push(Client { stream, thread }),
            Err(error) => tracing::error!("cannot start a thread for a control client: {error}"),
        }
    }

    /// Nobody is read from any more; answers under way may leave.
    fn farewell(self) {
        let Self { clients, present, ended, .. } = self;
        for client in &clients {
            let _ = client.stream.shutdown(Shutdown::Read);
        }
        drop(present);
        if ended.recv_timeout(FAREWELL) == Err(RecvTimeoutError::Timeout) {
            for client in &clients {
                let _ = client.stream.shutdown(Shutdown::Both);
            }
        }
        for client in clients {
            let _ = client.thread.join();
        }
    }
}

/// Waits for a client; true if it is time to stop instead.
fn wait(listener: &Listener, stopped: &UnixStream) -> bool {
    let poll = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut fds = [poll(listener.fd()), poll(stopped.as_raw_fd())];
    // SAFETY: two entries, as said.
    let ready = unsafe { libc::poll(fds.as_mut_ptr(), 2, -1) };
    ready > 0 && fds[1].revents != 0
}
