//! A modelled disk in real time, as an NBD export: any client, a kernel's too, can be measured on the disk of the experiments.
//!
//! ```text
//!   clients --requests--> at most `depth` commands --> model (paced) --ended--> replies
//!      ^                                                  |                       |
//!      |                                     next event: the longest sleep        |
//!      `--------------------------------------------------------------------------'
//! ```
//!
//! One thread: each turn advances the model to the present, sends replies, receives, and sleeps until the model's next event or a
//! client. A command starts when it has been received with its payload; its bytes are read or written when it ends. Limits: `depth`
//! commands in the disk, [`CONNECTIONS_MAX`] clients, `keep` bytes of contents.

mod connection;
mod contents;
mod output;
mod paced;

use std::fmt;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::time::Instant as Clock;

use headworks_core::{Instant, Op};
use headworks_disks::ModelCommand;
use headworks_nbd::client::Histogram;
use headworks_nbd::{ExportInfo, NbdError, Request, TransmissionFlags};

pub use crate::bfq::disks::Disk;
use connection::Connection;
use contents::Contents;
use paced::PacedDisk;

/// Most clients at once; the next one waits in the listener's backlog.
pub const CONNECTIONS_MAX: usize = 16;

/// Most commands in the disk that can be asked for.
pub const DEPTH_MAX: u32 = 256;

/// Options of a served disk.
#[derive(Clone, Debug)]
pub struct ServeDiskOptions {
    /// The modelled disk that is served.
    pub disk: Disk,
    /// Path of the unix socket.
    pub socket: PathBuf,
    /// Most commands in the disk, 1 to [`DEPTH_MAX`].
    pub depth: u32,
    /// Bytes of contents that are kept in memory; beyond them writes fail with ENOSPC. 0: reads are zeros, writes are dropped.
    pub keep: u64,
    /// Whether the server ends when its last client has left.
    pub once: bool,
}

/// What a disk has served.
#[derive(Clone, Debug, Default)]
pub struct ServedDisk {
    /// Commands that ended: reads, writes, flushes.
    pub commands: [u64; 3],
    /// Bytes of the reads, and of the writes.
    pub bytes: [u64; 2],
    /// Most commands in the disk at once.
    pub in_disk_max: u32,
    /// Number of times the head was positioned.
    pub positionings: u64,
    /// How long after its own time the end of each command was noticed, in nanoseconds.
    pub lateness: Histogram,
}

impl fmt::Display for ServedDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [reads, writes, flushes] = self.commands;
        let us = |ns: u64| ns / 1000;
        write!(
            f,
            "{reads} reads of {} bytes, {writes} writes of {} bytes, {flushes} flushes; at most {} in the disk; {} positionings; \
             noticed late by p50 {} us, p99 {} us, longest {} us",
            self.bytes[0],
            self.bytes[1],
            self.in_disk_max,
            self.positionings,
            us(self.lateness.percentile(500)),
            us(self.lateness.percentile(990)),
            us(self.lateness.max()),
        )
    }
}

/// A command in the disk.
struct InDisk {
    client: u64,
    request: Request,
    bytes: Vec<u8>,
}

/// A listening socket with a disk behind it.
pub struct DiskServer {
    listener: UnixListener,
    export: ExportInfo,
    disk: PacedDisk,
    contents: Contents,
    slots: Vec<Option<InDisk>>,
    free: Vec<usize>,
    /// Clients with their numbers, which are never used again.
    clients: Vec<(u64, Connection)>,
    accepted: u64,
    once: bool,
    epoch: Clock,
    served: ServedDisk,
}

impl DiskServer {
    /// Binds the socket.
    ///
    /// # Errors
    /// The socket cannot be bound, for example because the path exists.
    pub fn new(options: &ServeDiskOptions) -> io::Result<Self> {
        let depth = options.depth.clamp(1, DEPTH_MAX) as usize;
        let listener = UnixListener::bind(&options.socket)?;
        listener.set_nonblocking(true)?;
        let mut flags = TransmissionFlags::SEND_FLUSH.with(TransmissionFlags::CAN_MULTI_CONN);
        if options.disk.rotates() {
            flags = flags.with(TransmissionFlags::ROTATIONAL);
        }
        let export = ExportInfo {
            description: format!("modelled disk {}", options.disk.name()),
            size: options.disk.size(),
            flags,
            ..ExportInfo::default()
        };
        Ok(Self {
            listener,
            export,
            disk: PacedDisk::new(options.disk.make()),
            contents: Contents::new(options.keep),
            slots: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            clients: Vec::new(),
            accepted: 0,
            once: options.once,
            epoch: Clock::now(),
            served: ServedDisk::default(),
        })
    }

    /// Serves until the last client has left, with `once`; otherwise without end.
    ///
    /// # Errors
    /// The sockets cannot be waited for.
    pub fn run(mut self) -> io::Result<ServedDisk> {
        sleep_precisely();
        loop {
            let now = self.now();
            self.advance(now);
            self.serve_clients(now);
            if self.once && self.accepted > 0 && self.clients.is_empty() {
                self.served.positionings = self.disk.positionings();
                self.served.lateness = self.disk.lateness().clone();
                return Ok(self.served);
            }
            self.wait()?;
        }
    }

    fn now(&self) -> Instant {
        Instant(self.epoch.elapsed().as_nanos() as u64)
    }

    /// Takes the events of the model up to `now`, and answers the commands that ended.
    fn advance(&mut self, now: Instant) {
        let Self { disk, slots, free, clients, contents, served, .. } = self;
        disk.advance(now, |token| {
            let slot = token as usize;
            let ended = slots[slot].take().expect("a command ends once");
            free.push(slot);
            // A client that broke off has no reply to come; its writes still take effect.
            let client = clients.iter_mut().find(|(number, _)| *number == ended.client);
            end(ended, client.map(|(_, client)| client), contents, served);
        });
    }

    /// Sends to and receives from each client, and starts their commands.
    fn serve_clients(&mut self, now: Instant) {
        while self.clients.len() < CONNECTIONS_MAX
            && let Ok((stream, _)) = self.listener.accept()
        {
            if let Ok(client) = Connection::new(stream, self.contents.keeps()) {
                self.accepted += 1;
                self.clients.push((self.accepted, client));
            }
        }
        // Another client is first in each turn, so that none has the disk to itself when it is full.
        if !self.clients.is_empty() {
            self.clients.rotate_left(1);
        }
        let mut clients = std::mem::take(&mut self.clients);
        for (number, client) in &mut clients {
            client.send();
            if client.wants_input() && !self.free.is_empty() {
                client.receive();
            }
            while !self.free.is_empty()
                && let Some((request, bytes)) = client.next_request(&self.export)
            {
                self.start(now, *number, client, request, bytes);
            }
            client.send();
        }
        clients.retain(|(_, client)| !client.is_over());
        self.clients = clients;
    }

    fn start(
        &mut self,
        now: Instant,
        number: u64,
        client: &mut Connection,
        request: Request,
        bytes: Vec<u8>,
    ) {
        if let Err(error) = self.check(&request) {
            client.answer(&request, Err(error));
            return;
        }
        let slot = self.free.pop().expect("the caller looked for room");
        let (op, offset, len) = (request.op(), request.offset, request.len);
        self.slots[slot] = Some(InDisk { client: number, request, bytes });
        self.disk.submit(now, ModelCommand { token: slot as u64, op, offset, len });
        let in_disk = (self.slots.len() - self.free.len()) as u32;
        self.served.in_disk_max = self.served.in_disk_max.max(in_disk);
    }

    fn check(&self, request: &Request) -> Result<(), NbdError> {
        let end = request.offset.checked_add(request.len.into());
        match request.op() {
            Op::Flush => Ok(()),
            Op::Read | Op::Write if end.is_some_and(|end| end <= self.export.size) => Ok(()),
            Op::Write => Err(NbdError::NoSpace),
            Op::Read => Err(NbdError::Invalid),
            _ => Err(NbdError::NotSupported),
        }
    }

    /// Sleeps until the model's next event or until a client can be served.
    fn wait(&self) -> io::Result<()> {
        let poll = |fd, events| libc::pollfd { fd, events, revents: 0 };
        let room = !self.free.is_empty();
        let listens = self.clients.len() < CONNECTIONS_MAX;
        let mut fds = vec![poll(self.listener.as_raw_fd(), if listens { libc::POLLIN } else { 0 })];
        let mut ready = false;
        for (_, client) in &self.clients {
            let reads = room && client.wants_input();
            ready |= reads && client.has_input();
            let events = if reads { libc::POLLIN } else { 0 };
            let writes = if client.has_output() { libc::POLLOUT } else { 0 };
            // Without an event a hang-up would be reported again and again while the disk is full.
            let fd = if events | writes == 0 { -1 } else { client.fd() };
            fds.push(poll(fd, events | writes));
        }
        let next = match (ready, self.disk.next_timeout()) {
            (true, _) => Some(0),
            (false, next) => next.map(|at| at.since(self.now())),
        };
        let limit = next.map(|ns| libc::timespec {
            tv_sec: (ns / 1_000_000_000) as libc::time_t,
            tv_nsec: (ns % 1_000_000_000) as libc::c_long,
        });
        let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the list and the time are alive during the call, and the call fills `revents` alone.
        let found = unsafe {
            libc::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, limit, std::ptr::null())
        };
        let error = io::Error::last_os_error();
        match found {
            -1 if error.kind() != io::ErrorKind::Interrupted => Err(error),
            _ => Ok(()),
        }
    }
}

/// Moves the bytes of a command that has ended, and answers it.
fn end(
    ended: InDisk,
    client: Option<&mut Connection>,
    contents: &mut Contents,
    served: &mut ServedDisk,
) {
    let InDisk { request, bytes, .. } = ended;
    let len = u64::from(request.len);
    let outcome = match request.op() {
        Op::Read => {
            served.commands[0] += 1;
            served.bytes[0] += len;
            if let Some(client) = client {
                client.answer_read(&request, contents.read(request.offset, request.len as usize));
            }
            return;
        }
        Op::Write => {
            served.commands[1] += 1;
            served.bytes[1] += len;
            contents.write(request.offset, &bytes).map_err(|_| NbdError::NoSpace)
        }
        _ => {
            served.commands[2] += 1;
            Ok(())
        }
    };
    if let Some(client) = client {
        client.answer(&request, outcome);
    }
}

/// Lets the thread's timers expire on time: by default the kernel may delay them by 50 us.
pub(crate) fn sleep_precisely() {
    // SAFETY: the call takes a number and changes nothing but the calling thread's slack. Without it sleeps are a little longer.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong) };
}

#[cfg(test)]
mod tests;
