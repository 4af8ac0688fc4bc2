//! The main loop of a running server and its shutdown.

use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use headworks_server::{ActiveExport, ReloadRequest, VolumeProgress, VolumeStop};

use super::reload::Reload;
use super::running::Running;
use super::stop_signals::{StopSignal, StopSignals};
use super::systemd::ServiceManager;
use super::upgrade::restart::{self, Leaving};
use super::upgrade::{HandedOver, Upgrades};
use crate::complain;
use crate::progress::{self, Progress};
use crate::signals::{MainEvent, Signals};

/// Interval of progress messages.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// How long an immediate exit waits for the shards to report what is lost. A shard that turns answers within
/// milliseconds; one that hangs gets no more time.
const LOSS_REPORT_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a stop waits for reads of read-only exports, when nothing else is left: longer than the 5 s after which the server closes
/// connections that take no replies.
const READERS_LIMIT: Duration = Duration::from_secs(6);

/// How often the way of connections to the next start is looked at.
const LEAVE_INTERVAL: Duration = Duration::from_millis(5);
/// Time limit of the write-out before that, if a shutdown has none.
const LEAVE_LIMIT: Duration = Duration::from_secs(3600);

/// A shutdown in progress.
struct OngoingStop {
    since: Instant,
    reported: Instant,
    progress: Progress,
}

impl OngoingStop {
    fn new() -> Self {
        let now = Instant::now();
        Self { since: now, reported: now, progress: Progress::new() }
    }

    /// Reports the progress once per interval; returns true after the time limit, or when what is left is not worth that time.
    fn report(&mut self, running: &Running, manager: &ServiceManager) -> bool {
        if self.reported.elapsed() >= REPORT_INTERVAL {
            self.reported = Instant::now();
            let at = self.since.elapsed().as_nanos() as u64;
            let exports = running.server.exports();
            let has_ended = exports.iter().all(|export| export.progress.stop.has_ended());
            if has_ended && !running.server.abandoned().is_empty() {
                return true;
            }
            if self.since.elapsed() >= READERS_LIMIT && progress::waits_for_readers_only(&exports) {
                return true;
            }
            let waits = progress::waits(&exports);
            let line = self.progress.line(at, running.server.left(), waits.as_deref());
            tracing::info!("{line}");
            manager.still_stopping(&line);
        }
        running.stop.is_some_and(|stop| self.since.elapsed() >= stop)
    }
}

pub(super) enum StopOutcome {
    /// The server has ended; with the status of the child, if there was one, and the time since the shutdown began.
    Ended(Option<ExitStatus>, Duration),
    /// Another signal asks for an immediate exit; with the time since the shutdown began.
    AtOnce(Duration),
    /// The time limit of the shutdown has passed.
    TimedOut(Duration),
    /// Another process serves now.
    HandedOver(HandedOver),
    /// Everything is written out, and so many connections wait for the next start.
    Left(usize),
}

/// Begins a shutdown: connections and cache are left for the next start where that is possible; otherwise the server stops.
fn begin_stop(running: &Running) -> Option<Leaving> {
    if restart::is_possible(running) {
        // The other half is for an ordinary stop, if one export cannot be left.
        match Leaving::begin(running, running.stop.map_or(LEAVE_LIMIT, |stop| stop / 2)) {
            Ok(leaving) => return Some(leaving),
            Err(reason) => {
                tracing::info!("clients have to connect again after a restart: {reason}")
            }
        }
    }
    running.server.stop();
    None
}

/// Changes of a running server that signals ask for.
pub(super) struct Upkeep<'a> {
    pub reload: &'a mut Reload,
    pub upgrades: &'a mut Upgrades,
}

pub(super) fn wait(
    running: &Running,
    signals: &Signals,
    manager: &mut ServiceManager,
    mut child: Option<Child>,
    Upkeep { reload, upgrades }: &mut Upkeep,
) -> StopOutcome {
    let (mut stop, mut status): (Option<OngoingStop>, _) = (None, None);
    let mut stop_signals = StopSignals::default();
    let mut leaving: Option<Leaving> = None;
    loop {
        // Without a shutdown or watchdog there is no time-out: the end of the server is an event.
        let timeout =
            stop.as_ref().map(|_| REPORT_INTERVAL).into_iter().chain(manager.ping_due_in()).min();
        let timeout = leaving.as_ref().map(|_| LEAVE_INTERVAL).or(timeout);
        let event = signals.wait(timeout);
        manager.ping_watchdog(&running.server);
        match event {
            MainEvent::Stop => match stop_signals.on_signal(Instant::now()) {
                StopSignal::Begin => {
                    stop = Some(OngoingStop::new());
                    manager.stopping();
                    upgrades.cancel();
                    if let Some(child) = &child {
                        // SAFETY: the child has not been waited for, so the id is its own.
                        unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
                    }
                    leaving = begin_stop(running);
                }
                StopSignal::Repeated => {}
                StopSignal::Early => tracing::warn!(
                    "still stopping; another signal ends the server at once and loses what is not written"
                ),
                StopSignal::AtOnce => {
                    tracing::warn!("another stop signal: ending at once");
                    return StopOutcome::AtOnce(took(stop.as_ref()));
                }
            },
            MainEvent::Child => {
                let ended = child.as_mut().and_then(|child| child.try_wait().ok().flatten());
                if ended.is_some() {
                    (status, child) = (ended, None);
                    manager.stopping();
                    stop.get_or_insert_with(OngoingStop::new);
                    stop_signals.on_begin(Instant::now());
                    running.server.stop();
                }
            }
            MainEvent::Statistics => running.server.tell_statistics(),
            MainEvent::Reload if stop.is_some() => {
                tracing::info!("reload ignored: shutting down")
            }
            MainEvent::Reload if upgrades.defers_reload() => {
                tracing::info!("reload after the upgrade that is in progress")
            }
            MainEvent::Reload => begin(reload, None, (running, signals, manager)),
            MainEvent::ReloadRequested => {
                let upgrade = "an upgrade is in progress; try again after it";
                let busy =
                    busy(stop.as_ref(), reload).or(upgrades.is_under_way().then_some(upgrade));
                match (reload.next_request(), busy) {
                    (Some(request), Some(busy)) => request.refuse(busy),
                    (Some(request), None) => {
                        begin(reload, Some(request), (running, signals, manager));
                    }
                    (None, _) => {}
                }
            }
            MainEvent::Reloaded if stop.is_some() => {}
            MainEvent::Reloaded => {
                manager.ready(running.server.exports().len());
                if reload.end() {
                    begin(reload, None, (running, signals, manager));
                }
            }
            MainEvent::Upgrade => {
                upgrades.begin(busy(stop.as_ref(), reload), running, signals, None);
            }
            MainEvent::UpgradeRequested => {
                let busy = busy(stop.as_ref(), reload);
                if let Some(request) = upgrades.next_request() {
                    upgrades.begin(busy, running, signals, Some(request));
                }
            }
            MainEvent::UpgradePrepared => {
                if let Some(done) = upgrades.finish(running, manager) {
                    return StopOutcome::HandedOver(done);
                }
                if upgrades.take_reload() {
                    begin(reload, None, (running, signals, manager));
                }
            }
            MainEvent::Ended => {
                upgrades.cancel();
                return StopOutcome::Ended(status, took(stop.as_ref()));
            }
            MainEvent::TimedOut => {}
        }
        match leaving.as_mut().and_then(|leaving| leaving.poll(running)) {
            Some(Ok(connections)) => return StopOutcome::Left(connections),
            Some(Err(reason)) => {
                tracing::info!("clients have to connect again after a restart: {reason}");
                leaving = None;
                running.server.stop();
            }
            None => {}
        }
        if let Some(stop) = &mut stop
            && stop.report(running, manager)
        {
            return StopOutcome::TimedOut(stop.since.elapsed());
        }
    }
}

/// Time since a shutdown began.
fn took(stop: Option<&OngoingStop>) -> Duration {
    stop.map_or(Duration::ZERO, |stop| stop.since.elapsed())
}

/// What else is in progress that excludes an upgrade, or a reload that the control socket asks for.
fn busy(stop: Option<&OngoingStop>, reload: &Reload) -> Option<&'static str> {
    let stopping = stop.map(|_| "the server is stopping");
    stopping.or(reload.is_under_way().then_some("a reload is in progress; try again after it"))
}

/// Begins a reload, for a request or for a signal.
fn begin(
    reload: &mut Reload,
    request: Option<ReloadRequest>,
    (running, signals, manager): (&Running, &Signals, &ServiceManager),
) {
    let begun = signals.reloaded().map_err(|error| error.to_string()).and_then(|notifier| {
        let begun = reload.begin(running.server.reloader(), notifier, request);
        begun.map_err(|error| error.to_string())
    });
    match begun {
        Ok(true) => manager.reloading(),
        Ok(false) => {}
        Err(error) => tracing::error!("cannot start a reload: {error}"),
    }
}

/// Exits at once, after another signal or the time limit, and prints which exports held the stop up for `took`, and what was not written
/// and not flushed of them. Threads may be blocked in a device, so nothing waits for them and nothing that they use is dropped.
pub(super) fn end_at_once(running: &Running, reason: &str, took: Duration) -> ! {
    let has_reported = running.server.barrier().wait(LOSS_REPORT_TIMEOUT);
    let exports = running.server.exports();
    let seconds = took.as_secs_f64();
    if let Some(waits) = progress::waits(&exports) {
        complain(format!("the stop waited {seconds:.1} s for {waits}"));
    }
    let mut all_flushed = has_reported;
    for export in exports.iter().filter(|export| export.progress.stop != VolumeStop::Closed) {
        for line in losses(export, running.kept_in(), reason) {
            complain(line);
            all_flushed = false;
        }
    }
    for name in running.server.abandoned() {
        complain(format!("export {name}, which was given up: its device has not answered"));
        all_flushed = false;
    }
    if all_flushed {
        complain(format!("stopped after {seconds:.1} s; all acknowledged writes were flushed"));
    }
    if let Some(file) = &running.pid_file {
        file.remove();
    }
    if let Some(private) = &running.private {
        let _ = std::fs::remove_dir_all(private.path());
    }
    std::process::exit(1)
}

/// What was not written and not flushed of an export, a sentence each.
fn losses(export: &ActiveExport, kept_in: Option<&str>, reason: &str) -> Vec<String> {
    let ActiveExport { name, progress: VolumeProgress { left, unflushed, suspect, .. }, .. } =
        export;
    let mut lines = Vec::new();
    let bytes = left.filter(|bytes| *bytes > 0 && !export.read_only);
    lines.extend(bytes.map(|bytes| match kept_in {
        Some(place) => progress::kept(name, bytes, place),
        None => progress::lost(name, bytes, reason),
    }));
    if !export.volatile {
        return lines;
    }
    match unflushed {
        Some(0) => {}
        Some(1) => lines.push(format!("export {name}: 1 acknowledged write was not flushed")),
        Some(writes) => {
            lines.push(format!("export {name}: {writes} acknowledged writes were not flushed"));
        }
        None => lines
            .push(format!("export {name}: unknown whether all acknowledged writes were flushed")),
    }
    if *suspect {
        lines.push(format!(
            "export {name}: a flush failed, so acknowledged writes before it may be lost"
        ));
    }
    lines
}
