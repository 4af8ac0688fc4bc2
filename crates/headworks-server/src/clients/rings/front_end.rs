//! The thread of a vhost-user listener: serves one front end at a time, with the listener's export as its disk.
//!
//! ```text
//!   shard that accepts --socket--> thread --Describe, Attach--> home shard of the export
//!                                    |  message --session--> reply
//!                                    |                  `--> order --shard--> answer --session--> reply
//!                                    '-- the front end leaves --Close--> shard --Ended, with the device--> unmapped here
//! ```
//!
//! What maps, unmaps, waits or allocates for a device is done here: a shard carries out orders between two turns.
//!
//! Invariants: no front end is served before the device of the one before it has nothing in flight, since both write the same disk; every
//! wait has a limit, but for that one, during which new front ends are turned away.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use headworks_core::{ExportId, ShardId};
use tracing::{debug, info, warn};

use super::RingClient;
use super::line::{News, NewsReceiver, line};
use crate::clients::client::ShardClient;
use crate::clients::nbd::connection::ConnectionLimits;
use crate::exports::assemble::export_info::ServedExport;
use crate::reactor::messages::ControlMessage;
use crate::reactor::messages::doors::DoorMessage;
use crate::reactor::shared::ServerShared;
use headworks_nbd::TransmissionFlags;
use headworks_vhost::wire::Message;
use headworks_vhost::{Answer, Channel, Disk, Notifier, Offer, Order, Received, Session, Step};

/// Front ends that wait for the present one to end: one that starts again may be faster than the end of its connection is noticed.
const WAITING_MAX: usize = 4;
/// A shard answers a question within a turn.
const ANSWER: Duration = Duration::from_secs(5);
/// Most time of an order: a stop waits for what is in flight. It is longer than the time limit of a command (`io_timeout`).
const ORDER: Duration = Duration::from_secs(90);
/// A front end takes a message at once: its socket has room for many.
const SEND: Duration = Duration::from_secs(10);
/// How often it is looked whether a device that has ended is out of its shard.
const LOOK: Duration = Duration::from_secs(1);
/// The same failure is logged once in this time: a front end tries again each second.
const AGAIN: Duration = Duration::from_secs(60);
/// Largest request in bytes that is worth a machine's while.
const REQUEST: u32 = 1 << 20;
/// Unit of discards that frees memory and disk: pages of the cache, blocks of file systems.
const DISCARD: u32 = 4096;

/// An export by its name, as control threads know it.
#[derive(Clone, Copy, Debug)]
pub struct FoundExport {
    /// Id of the export.
    pub id: ExportId,
    /// Shard of its clients.
    pub home: ShardId,
    /// The death of the process loses no acknowledged write: what was in flight may be done again by the next one.
    pub outlives: bool,
}

/// Finds an export by its name; none if it is not served now.
pub type FindExport = dyn Fn(&str) -> Option<FoundExport> + Send + Sync;

/// What the threads of front ends have of the server.
#[derive(Clone)]
pub struct FrontEndContext {
    /// Mailboxes of the shards.
    pub shared: Arc<ServerShared>,
    /// Bounds of each client.
    pub limits: ConnectionLimits,
    /// Looks an export up.
    pub find: Arc<FindExport>,
}

/// Starts the thread of a listener, whose front ends have the export of this name; returns the way for accepted sockets. The thread ends
/// when that is dropped and its front end has left.
///
/// # Errors
/// No thread can be started.
pub fn start(
    context: FrontEndContext,
    listener: Arc<str>,
    export: &str,
) -> io::Result<SyncSender<OwnedFd>> {
    let (sender, sockets) = sync_channel(WAITING_MAX);
    // Before the first front end, which could use up what the kernel has.
    let notifier = Arc::new(Notifier::new());
    if let Some(error) = notifier.fallback() {
        warn!(
            listener = &*listener,
            "notifications are writes, as the kernel gives no asynchronous I/O ({error}): a hostile front end can hold up its shard; \
             raise fs.aio-max-nr, or allow io_setup and io_submit"
        );
    }
    let server =
        FrontEndServer { context, listener, export: export.to_owned(), notifier, last: None };
    let thread = std::thread::Builder::new().name("headworks-vhost".into());
    thread.spawn(move || server.run(&sockets))?;
    Ok(sender)
}

/// Why a front end is not served any more, as a sentence for the log; none if it has left.
type End = Result<(), String>;

struct FrontEndServer {
    context: FrontEndContext,
    listener: Arc<str>,
    export: String,
    /// What notifies the machines of its front ends.
    notifier: Arc<Notifier>,
    /// The last failure that was logged.
    last: Option<(Instant, String)>,
}

impl FrontEndServer {
    fn run(mut self, sockets: &Receiver<OwnedFd>) {
        while let Ok(socket) = sockets.recv() {
            if let Err(why) = self.serve(socket, sockets) {
                self.log(why);
            }
        }
    }

    fn log(&mut self, why: String) {
        let now = Instant::now();
        let is_known = |(at, said): &(Instant, String)| *said == why && now - *at < AGAIN;
        if self.last.as_ref().is_some_and(is_known) {
            debug!(listener = &*self.listener, "{why}");
            return;
        }
        warn!(listener = &*self.listener, "{why}");
        self.last = Some((now, why));
    }

    /// Serves a front end until it leaves, and until its device is out of the shard.
    fn serve(&mut self, socket: OwnedFd, sockets: &Receiver<OwnedFd>) -> End {
        let peer = peer_of(socket.as_fd());
        let stream = UnixStream::from(socket);
        let export = (self.context.find)(&self.export);
        let export =
            export.ok_or_else(|| format!("there is no export {} to serve", self.export))?;
        let served = self.describe(export)?;
        let disk = disk_of(&served);
        let (own, listening) = line().map_err(|error| error.to_string())?;
        let client = RingClient::new(
            disk,
            (peer.clone(), Arc::clone(&self.listener)),
            self.context.limits,
            own,
        );
        let client = Box::new(client.map_err(|error| format!("no descriptor is left: {error}"))?);
        let id = self.attach(export, client)?;
        info!(peer, listener = &*self.listener, "a front end has export {}", self.export);
        if !export.outlives {
            debug!("its requests in flight are not kept: the cache's memory dies with the process");
        }
        let queues = headworks_vhost::QUEUES_MAX;
        let offer = Offer { disk, queues, has_in_flight: export.outlives };
        let mut front = FrontEnd {
            channel: Channel::new(stream),
            session: Session::new(offer, Arc::clone(&self.notifier)),
            listening,
            shared: &self.context.shared,
            home: export.home,
            client: id,
        };
        let ended = front.run();
        front.close(sockets);
        debug!(peer, "its device has ended");
        ended
    }

    fn send(&self, to: ShardId, message: DoorMessage) {
        self.context.shared.send(to, ControlMessage::Door(Box::new(message)));
    }

    fn describe(&self, export: FoundExport) -> Result<ServedExport, String> {
        let (answer, answers) = sync_channel(1);
        self.send(export.home, DoorMessage::Describe { export: export.id, answer });
        let found = answers.recv_timeout(ANSWER).map_err(|error| self.no_answer(error))?;
        found.ok_or_else(|| format!("export {} was removed", self.export))
    }

    fn attach(&self, export: FoundExport, client: Box<RingClient>) -> Result<u32, String> {
        let (answer, answers) = sync_channel(1);
        let client = ShardClient::Rings(client);
        self.send(export.home, DoorMessage::Attach { export: export.id, client, answer });
        let answered = answers.recv_timeout(ANSWER).map_err(|error| self.no_answer(error))?;
        answered.map_err(|why| format!("export {}: {why}", self.export))
    }

    fn no_answer(&self, error: RecvTimeoutError) -> String {
        match error {
            RecvTimeoutError::Timeout => format!("the shard of export {} is busy", self.export),
            RecvTimeoutError::Disconnected => "the server stops, or another takes over".to_owned(),
        }
    }
}

/// A front end that is served.
struct FrontEnd<'a> {
    channel: Channel,
    session: Session,
    listening: NewsReceiver,
    shared: &'a ServerShared,
    home: ShardId,
    client: u32,
}

impl FrontEnd<'_> {
    /// Answers messages until the front end leaves, or the device has ended.
    fn run(&mut self) -> End {
        loop {
            wait(self.channel.as_fd().as_raw_fd(), self.listening.bell())?;
            self.listening.silence();
            while let Ok(news) = self.listening.news.try_recv() {
                match news {
                    News::Disk(disk) => self.tell_disk(disk),
                    News::Ended(_) => return Ok(()),
                    // No order is outstanding.
                    News::Answer(_) => {}
                }
            }
            match self.channel.receive() {
                Ok(Received::Message(message)) => {
                    if !self.on_message(message)? {
                        return Ok(());
                    }
                }
                Ok(Received::Incomplete) => {}
                Ok(Received::Closed) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(()),
                Err(error) => return Err(format!("the front end's connection failed: {error}")),
            }
        }
    }

    /// Carries out a message; false if the device has ended meanwhile.
    fn on_message(&mut self, message: Message) -> Result<bool, String> {
        let reply = match self.session.on_message(message)? {
            Step::Done => None,
            Step::Reply(reply) => Some(reply),
            Step::Order(order) => {
                let Some(answer) = self.give(order)? else { return Ok(false) };
                self.session.on_answer(answer)?
            }
        };
        if let Some(reply) = reply {
            let sent = self.channel.send(&reply, SEND);
            sent.map_err(|error| format!("the front end takes no answer: {error}"))?;
        }
        Ok(true)
    }

    /// Gives the shard an order and waits for its answer; none if the device has ended.
    fn give(&mut self, order: Order) -> Result<Option<Answer>, String> {
        self.send(DoorMessage::Order { client: self.client, order });
        let deadline = Instant::now() + ORDER;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.listening.news.recv_timeout(left) {
                Ok(News::Answer(answer)) => return Ok(Some(answer)),
                Ok(News::Disk(disk)) => self.tell_disk(disk),
                Ok(News::Ended(_)) | Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Err(RecvTimeoutError::Timeout) => {
                    let seconds = ORDER.as_secs();
                    return Err(format!("requests of its rings have not ended for {seconds} s"));
                }
            }
        }
    }

    fn send(&self, message: DoorMessage) {
        self.shared.send(self.home, ControlMessage::Door(Box::new(message)));
    }

    /// The disk has another size: the front end is told, if it has given a socket for that.
    fn tell_disk(&mut self, disk: Disk) {
        if let Some((socket, notice)) = self.session.set_disk(disk)
            && let Err(error) = send_notice(socket, &notice)
        {
            warn!("a front end was not told of the new size: {error}");
        }
    }

    /// Ends the device, and waits until it is out of the shard. Front ends that come meanwhile are turned away.
    fn close(self, sockets: &Receiver<OwnedFd>) {
        let Self { channel, listening, .. } = &self;
        self.send(DoorMessage::Close { client: self.client });
        let _ = channel;
        let mut is_told = false;
        loop {
            match listening.news.recv_timeout(LOOK) {
                Ok(News::Ended(_)) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(News::Answer(_) | News::Disk(_)) => {}
                Err(RecvTimeoutError::Timeout) => {
                    sockets.try_iter().for_each(drop);
                    if !std::mem::replace(&mut is_told, true) {
                        warn!("requests of a front end that left are still in the device");
                    }
                }
            }
        }
    }
}

/// What a machine sees of an export. A part that begins or ends within a block has sectors.
fn disk_of(served: &ServedExport) -> Disk {
    let (flags, size) = (served.info.flags, served.info.size);
    let ends = served.binding.range.start() | size;
    let block = served.block_size.max(headworks_vhost::SECTOR as u32);
    let is_whole = ends.is_multiple_of(u64::from(block));
    Disk {
        block_size: if is_whole { block } else { headworks_vhost::SECTOR as u32 },
        is_read_only: flags.contains(TransmissionFlags::READ_ONLY),
        can_discard: flags.contains(TransmissionFlags::SEND_TRIM),
        can_zero: flags.contains(TransmissionFlags::SEND_WRITE_ZEROES),
        discard_granularity: DISCARD.max(served.block_size),
        request_max: REQUEST,
        ..Disk::new(size)
    }
    .with_serial(crate::exports::assemble::shown_name(&served.info.name))
}

/// The front end as the log names it: a virtual machine monitor is best known by its process.
fn peer_of(socket: BorrowedFd<'_>) -> String {
    let mut about = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: a structure of this length, which lives until the call has returned.
    let failed = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut about).cast(),
            &raw mut len,
        )
    };
    if failed == 0 && about.pid > 0 { format!("pid {}", about.pid) } else { "unix".to_owned() }
}

/// Waits until one of two descriptors is readable.
fn wait(socket: RawFd, bell: RawFd) -> Result<(), String> {
    let one = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut both = [one(socket), one(bell)];
    loop {
        // SAFETY: two entries, which live until the call has returned.
        if unsafe { libc::poll(both.as_mut_ptr(), 2, -1) } >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(format!("cannot wait for a front end: {error}"));
        }
    }
}

/// Sends a message on the socket that a front end has given for those of the back end. One that does not take it does without: it can ask.
fn send_notice(socket: RawFd, notice: &Message) -> io::Result<()> {
    let bytes = notice.bytes();
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: the bytes live until the call has returned.
    let sent = unsafe { libc::send(socket, bytes.as_ptr().cast(), bytes.len(), flags) };
    match usize::try_from(sent) {
        Ok(sent) if sent == bytes.len() => Ok(()),
        Ok(_) => Err(io::ErrorKind::WriteZero.into()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}
