//! The old process of an upgrade: it starts its successor, pauses, hands over, and exits; or it serves on.
//!
//! ```text
//!   begin --thread: start the process, Hello, Standing, Prepared--> finish: pause, Live, Adopted, Go --> handed over
//!     `-- refused         `--failure, stop: kill                        `--failure: kill, resume
//! ```
//!
//! The server serves during the preparation, which has a thread of its own. The rest runs in the main thread: nothing else is to
//! happen meanwhile, and it ends within [`PAUSE_LIMIT`]. Invariant: the channel stays open until the successor has ended, because
//! a successor that has adopted everything goes on when the channel closes.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use headworks_core::ConfigError;
use headworks_server::{Handover, UpgradeHook, UpgradeRefusal, UpgradeReport, UpgradeRequest};

use super::Spawner;
use super::channel::{Channel, Message, VERSION};
use super::packet::{PacketError, PacketSocket};
use crate::serve::ServeArgs;
use crate::serve::running::Running;
use crate::serve::systemd::ServiceManager;
use crate::signals::{MainNotifier, Signals};

/// Time limit of the preparation, in which the server serves: a successor opens images and maps memory.
const PREPARATION_LIMIT: Duration = Duration::from_secs(60);
/// Time limit from the pause to Go.
const PAUSE_LIMIT: Duration = Duration::from_secs(5);
/// The part of it in which requests in flight have to end; the rest is for the hand-over.
const DRAIN_LIMIT: Duration = Duration::from_secs(4);
/// Longest wait after Go until the successor has written its pid file and told the service manager.
const SERVING_LIMIT: Duration = Duration::from_secs(1);
/// Time limit for the end of a killed process.
const KILL_LIMIT: Duration = Duration::from_secs(5);

/// Upgrades of this process: one at a time.
pub(in crate::serve) struct Upgrades {
    /// The helper that starts processes, or a sentence why there is none.
    spawner: Result<Arc<Spawner>, String>,
    requests: Receiver<UpgradeRequest>,
    preparing: Option<Preparing>,
    /// A reload was asked for during the preparation.
    reload: bool,
}

/// A successor that prepares itself.
struct Preparing {
    began: Instant,
    channel: Arc<Channel>,
    /// Returns the successor's process id.
    thread: JoinHandle<Result<u32, String>>,
    request: Option<UpgradeRequest>,
}

/// A finished upgrade: this process has to exit.
pub(in crate::serve) struct HandedOver {
    request: Option<UpgradeRequest>,
    report: UpgradeReport,
    channel: Arc<Channel>,
}

/// Sends the notification when the preparation ends, even by a panic.
struct NotifyAtEnd(MainNotifier);

impl Drop for NotifyAtEnd {
    fn drop(&mut self) {
        self.0.notify();
    }
}

fn refusal(errno: &'static str, message: impl Into<String>) -> UpgradeRefusal {
    UpgradeRefusal { errno, message: message.into() }
}

impl Upgrades {
    /// Starts the helper process if a server with these options can be upgraded, and makes the hook for its control socket. To be
    /// called before any thread is started.
    ///
    /// # Errors
    /// No descriptor is left for the notification.
    pub fn prepare(
        options: &ServeArgs,
        has_control: bool,
        signals: &Signals,
    ) -> Result<(Self, UpgradeHook), ConfigError> {
        let spawner = match reason_against(options, has_control) {
            Some(reason) => Err(reason.to_owned()),
            None => Spawner::start().map(Arc::new),
        };
        if has_control && let Err(reason) = &spawner {
            tracing::debug!("upgrades will be refused: {reason}");
        }
        let (sender, requests) = channel();
        let notifier = signals.upgrade_requested()?;
        let hook = UpgradeHook::new(move |request| {
            // A request that is not taken any more is dropped, which answers it.
            let _ = sender.send(request);
            notifier.notify();
        });
        Ok((Self { spawner, requests, preparing: None, reload: false }, hook))
    }

    /// The oldest request of the control socket.
    pub fn next_request(&self) -> Option<UpgradeRequest> {
        self.requests.try_recv().ok()
    }

    /// Begins an upgrade, for a request or for a signal; `busy` is a sentence about what else is going on.
    pub fn begin(
        &mut self,
        busy: Option<&str>,
        running: &Running,
        signals: &Signals,
        request: Option<UpgradeRequest>,
    ) {
        match self.try_begin(busy, running, signals) {
            Ok(preparing) => {
                tracing::info!("upgrade: starting the process that is to take over");
                self.preparing = Some(Preparing { request, ..preparing });
            }
            Err(refusal) => {
                tracing::warn!("upgrade refused: {}", refusal.message);
                answer(request, refusal);
            }
        }
    }

    fn try_begin(
        &self,
        busy: Option<&str>,
        running: &Running,
        signals: &Signals,
    ) -> Result<Preparing, UpgradeRefusal> {
        let busy = self.preparing.is_some().then_some("an upgrade is already in progress").or(busy);
        if let Some(busy) = busy {
            return Err(refusal("EBUSY", busy));
        }
        let spawner = self.spawner.clone().map_err(|reason| refusal("ENOTSUP", reason))?;
        let began = Instant::now();
        let standing = running.server.standing().map_err(|reason| refusal("ENOTSUP", reason))?;
        let failed = |error: std::io::Error| {
            refusal("EIO", format!("cannot prepare the hand-over: {error}"))
        };
        let state = running.process_state().map_err(failed)?;
        let standing = state.join(standing).map_err(failed)?;
        let (ours, theirs) = PacketSocket::pair().map_err(failed)?;
        let notifier = signals.upgrade_prepared();
        let notifier = notifier.map_err(|error| refusal("EIO", error.to_string()))?;
        let channel = Arc::new(Channel::new(ours));
        let own = Arc::clone(&channel);
        let thread = std::thread::Builder::new().name("upgrade".into()).spawn(move || {
            let _notify = NotifyAtEnd(notifier);
            prepare(&spawner, &own, theirs, standing)
        });
        Ok(Preparing { began, channel, thread: thread.map_err(failed)?, request: None })
    }

    /// Whether an upgrade is in progress.
    pub fn is_under_way(&self) -> bool {
        self.preparing.is_some()
    }

    /// Notes a reload for later and returns true if an upgrade is in progress: the successor may have read the configuration already.
    pub fn defers_reload(&mut self) -> bool {
        self.reload |= self.preparing.is_some();
        self.preparing.is_some()
    }

    /// Takes the note of a deferred reload.
    pub fn take_reload(&mut self) -> bool {
        self.preparing.is_none() && std::mem::take(&mut self.reload)
    }

    /// Goes on with a preparation that has ended. Without a result this process serves on.
    pub fn finish(
        &mut self,
        running: &Running,
        manager: &mut ServiceManager,
    ) -> Option<HandedOver> {
        let Preparing { began, channel, thread, request } = self.preparing.take()?;
        let spawner = self.spawner.as_ref().ok()?;
        let prepared = joined(thread);
        let done = prepared.and_then(|pid| {
            hand_over(running, manager, (spawner, &channel), pid).map(|paused| (pid, paused))
        });
        let (pid, paused) = match done {
            Ok(done) => done,
            Err(reason) => {
                tracing::warn!("upgrade failed, this process serves on: {reason}");
                manager.serving();
                let message = format!("{reason}; the old process serves on");
                answer(request, refusal("EIO", message));
                return None;
            }
        };
        if std::mem::take(&mut self.reload) {
            // SAFETY: a call with numbers; the process has just said that it serves.
            unsafe { libc::kill(pid as i32, libc::SIGHUP) };
        }
        let report = UpgradeReport { pid, took: began.elapsed(), paused };
        Some(HandedOver { request, report, channel })
    }

    /// Ends a preparation: the server stops, or has ended.
    pub fn cancel(&mut self) {
        let Some(Preparing { channel, thread, request, .. }) = self.preparing.take() else {
            return;
        };
        // The successor has adopted nothing: it ends when the channel closes.
        channel.shut_down();
        if joined(thread).is_ok()
            && let Ok(spawner) = &self.spawner
        {
            end(spawner, &channel);
        }
        tracing::warn!("upgrade cancelled: the server stops");
        answer(request, refusal("ESHUTDOWN", "the upgrade was cancelled: the server stops"));
    }
}

impl Drop for Upgrades {
    fn drop(&mut self) {
        self.cancel();
    }
}

impl HandedOver {
    /// Tells of the upgrade and exits, without waiting long for anything. Nothing is dropped: sockets, files and marks belong to
    /// the successor.
    pub fn exit(self) -> ! {
        let UpgradeReport { pid, took, paused } = self.report;
        // The operator finds everything in its place when the answer comes.
        let _ = self.channel.receive(Instant::now() + SERVING_LIMIT);
        tracing::info!(
            "upgraded: process {pid} serves now, in {} ms, paused for {} ms",
            took.as_millis(),
            paused.as_millis()
        );
        if let Some(request) = self.request {
            request.answer(Ok(self.report));
        }
        std::process::exit(0)
    }
}

/// A sentence why a server with these options cannot be upgraded.
fn reason_against(options: &ServeArgs, has_control: bool) -> Option<&'static str> {
    if options.run.is_some() {
        return Some("a server with --run cannot be upgraded: it ends with its command");
    }
    if options.record.is_some() {
        return Some("a server with --record cannot be upgraded: the record is of one process");
    }
    (!has_control).then_some(
        "a server without a control socket cannot be upgraded; start it with --control, or restart it",
    )
}

fn answer(request: Option<UpgradeRequest>, refusal: UpgradeRefusal) {
    if let Some(request) = request {
        request.answer(Err(refusal));
    }
}

fn joined(thread: JoinHandle<Result<u32, String>>) -> Result<u32, String> {
    thread.join().unwrap_or_else(|_| Err("the preparation panicked; see the messages above".into()))
}

/// Starts the successor and waits until it is prepared; returns its process id. It is ended again when that fails.
fn prepare(
    spawner: &Spawner,
    channel: &Arc<Channel>,
    theirs: PacketSocket,
    standing: Handover,
) -> Result<u32, String> {
    let until = Instant::now() + PREPARATION_LIMIT;
    let pid = spawner.spawn(&theirs, until)?;
    // Its end of the channel is open only there now, so that its death is noticed.
    drop(theirs);
    tracing::debug!("upgrade: process {pid} has been started");
    let prepared = introduce(channel, standing, until);
    prepared.map(|()| pid).map_err(|error| {
        end(spawner, channel);
        of_successor(pid, &error)
    })
}

fn introduce(channel: &Channel, standing: Handover, until: Instant) -> Result<(), PacketError> {
    match channel.receive(until)? {
        Message::Hello { version: VERSION } => {}
        Message::Hello { version } => {
            let message = format!(
                "its program has version {version} of the hand-over, this one {VERSION}; restart the server instead"
            );
            return Err(PacketError::Invalid(message));
        }
        other => return Err(other.unexpected("Hello")),
    }
    channel.send(Message::Standing(standing), until)?;
    match channel.receive(until)? {
        Message::Prepared => Ok(()),
        other => Err(other.unexpected("Prepared")),
    }
}

fn of_successor(pid: u32, error: &PacketError) -> String {
    format!("process {pid}, which was to take over: {error}")
}

/// Pauses the server and hands everything over; returns the length of the pause. After an error the server serves on.
fn hand_over(
    running: &Running,
    manager: &mut ServiceManager,
    (spawner, channel): (&Spawner, &Arc<Channel>),
    pid: u32,
) -> Result<Duration, String> {
    let began = Instant::now();
    manager.handing_over(pid);
    let live = running.server.pause(DRAIN_LIMIT).inspect_err(|_| end(spawner, channel))?;
    tracing::info!("upgrade: paused, process {pid} takes over");
    let delivered = deliver(channel, live, manager, pid, began + PAUSE_LIMIT);
    match delivered {
        Ok(()) => Ok(began.elapsed()),
        Err(error) => {
            manager.main_process(std::process::id());
            // In this order: two processes never serve.
            end(spawner, channel);
            running.server.resume();
            Err(of_successor(pid, &error))
        }
    }
}

fn deliver(
    channel: &Channel,
    live: Handover,
    manager: &mut ServiceManager,
    pid: u32,
    until: Instant,
) -> Result<(), PacketError> {
    channel.send(Message::Live(live), until)?;
    match channel.receive(until)? {
        Message::Adopted => {}
        other => return Err(other.unexpected("Adopted")),
    }
    if Instant::now() >= until {
        return Err(PacketError::TimedOut);
    }
    // Before Go, after which the successor speaks to the service manager as the main process.
    manager.main_process(pid);
    channel.send(Message::Go, until)
}

/// Ends the successor and waits for its end.
fn end(spawner: &Spawner, channel: &Arc<Channel>) {
    let now = Instant::now();
    if let Err(reason) = spawner.kill(now + KILL_LIMIT) {
        tracing::warn!("upgrade: the process that was to take over is told to end: {reason}");
        let message = Message::Failed("the upgrade has failed".into());
        let _ = channel.send(message, now + KILL_LIMIT);
        // It must not see the channel close: it would take that for the end of this process, and go on.
        std::mem::forget(Arc::clone(channel));
    }
}
