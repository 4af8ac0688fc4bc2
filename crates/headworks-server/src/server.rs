//! The running server: queries, stop. How it starts is in `start`.

pub(crate) mod cpus;
pub(crate) mod launch;
pub(crate) mod memory;
mod start;

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use headworks_core::Control;

use crate::Reloader;
use crate::change;
use crate::control::ControlSocket;
use crate::control::service::ControlService;
use crate::control::tree::{ExportNode, device_name};
use crate::listen::listener_set::ListenerSet;
use crate::observe::metrics::Metrics;
use crate::reactor::messages::ControlMessage;
use crate::reactor::messages::hand_over::PausedServer;
use crate::reactor::shared::{ServerShared, VolumeProgress};
use crate::server::memory::{AutoCache, MemoryWatch};
use crate::successor::handover::{HandedListener, HandedVolume};
use headworks_cache_memory::CacheMemory;

/// A running server. Stop it with [`Server::stop`], then wait with [`Server::join`].
pub struct Server {
    shared: Arc<ServerShared>,
    threads: Vec<JoinHandle<()>>,
    engine: String,
    cache: Option<String>,
    listeners: Arc<ListenerSet>,
    auto_cache: Option<AutoCache>,
    broken: Arc<Mutex<Option<String>>>,
    control: Option<ControlSocket>,
    service: Arc<ControlService>,
    notes: Vec<String>,
    metrics: Option<Metrics>,
    /// Sets the limit of a cache of automatic size.
    memory: Option<MemoryWatch>,
    /// What ctl had changed when the standing part was handed over.
    handed_changes: Mutex<Option<String>>,
    /// Whether the process that is to replace this one was told that it gets the memory of the cache.
    handed_memory: Mutex<bool>,
    /// The volumes as they were handed over last.
    handed_volumes: Mutex<Vec<HandedVolume>>,
    /// The pause of all shards, while another process takes over.
    paused: Mutex<Option<PausedServer>>,
}

/// An export that is served at the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActiveExport {
    /// Name of the export; `default` if it has none.
    pub name: String,
    /// Name of its device, as `ctl` takes it.
    pub device: String,
    /// Whether clients may only read.
    pub read_only: bool,
    /// Whether writes need a flush to survive a power failure.
    pub volatile: bool,
    /// How far its stop is, as published. Complete after a [`Server::barrier`] that began after the stop.
    pub progress: VolumeProgress,
}

/// A barrier across all shards.
///
/// Every shard gets a clone of a channel's sender and drops it in its next turn, or when it ends. The barrier is
/// complete when all clones are dropped.
pub struct ShardBarrier(Receiver<std::convert::Infallible>);

impl ShardBarrier {
    /// Whether every shard has made a turn, or has ended, since the call.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.wait(Duration::ZERO)
    }

    /// Waits for completion, at most for `patience`; returns whether the barrier is complete.
    #[must_use]
    pub fn wait(&self, patience: Duration) -> bool {
        matches!(self.0.recv_timeout(patience), Err(RecvTimeoutError::Disconnected))
    }
}

impl Server {
    pub(crate) fn service(&self) -> &ControlService {
        &self.service
    }

    pub(crate) fn shared(&self) -> &ServerShared {
        &self.shared
    }

    /// Second descriptors of the listening sockets.
    pub(crate) fn handed(&self) -> MutexGuard<'_, Vec<HandedListener>> {
        self.listeners.handed()
    }

    /// The volumes as they were handed over last.
    pub(crate) fn handed_volumes(&self) -> MutexGuard<'_, Vec<HandedVolume>> {
        self.handed_volumes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the process that is to replace this one was told that it gets the memory of the cache.
    pub(crate) fn handed_memory(&self) -> MutexGuard<'_, bool> {
        self.handed_memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What ctl had changed when the standing part was handed over; none before.
    pub(crate) fn handed_changes(&self) -> MutexGuard<'_, Option<String>> {
        self.handed_changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a pause, and ends the one before, if there was one.
    pub(crate) fn set_paused(&self, paused: Option<PausedServer>) {
        let before = &mut *self.paused.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(PausedServer { ends }) = std::mem::replace(before, paused) {
            drop(ends);
        }
        self.shared.send_all(|| ControlMessage::Wake);
    }

    /// Address of the metrics endpoint; none without one.
    #[must_use]
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().map(Metrics::address)
    }

    /// The engine in use, and the reason for it.
    #[must_use]
    pub fn engine(&self) -> &str {
        &self.engine
    }

    /// Size of the page cache and the kind of its memory; none without a cache.
    #[must_use]
    pub fn cache(&self) -> Option<&str> {
        self.cache.as_deref()
    }

    /// Messages for the user about memory and marks, one sentence each.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Whether the cache's memory outlives the process.
    #[must_use]
    pub fn keeps_cache(&self) -> bool {
        self.shared.keeper().memory().is_some()
    }

    /// The cache's memory that outlives the process; none if it dies with the process.
    #[must_use]
    pub fn memory(&self) -> Option<Arc<CacheMemory>> {
        self.shared.keeper().memory().cloned()
    }

    /// TCP port of each address in `listen`; none for unix sockets.
    #[must_use]
    pub fn ports(&self) -> Vec<Option<u16>> {
        let own = self.listeners.entries().into_iter().filter(|entry| entry.spec.is_none());
        own.map(|entry| entry.port).collect()
    }

    /// TCP port of each listener of `access`; none for unix sockets.
    #[must_use]
    pub fn ports_of_sections(&self) -> Vec<Option<u16>> {
        let sections = self.listeners.entries().into_iter().filter(|entry| entry.spec.is_some());
        sections.map(|entry| entry.port).collect()
    }

    /// Starts the shutdown and returns at once: no new requests, completion of those in flight, flushes.
    pub fn stop(&self) {
        // With these open, clients could still connect, and would wait for the end.
        self.handed().clear();
        let deleted = change::exports::deleted_images(self.service.changes());
        let tree = self.service.tree();
        for export in tree.exports.iter().filter(|export| deleted.contains(&export.volume)) {
            tracing::warn!(
                "export {}: its image was deleted; what was written to it is lost",
                export.shown_name()
            );
        }
        self.shared.send_all(|| ControlMessage::Stop);
    }

    /// Logs the statistics of all volumes.
    pub fn tell_statistics(&self) {
        if self.service.tree().exports.is_empty() {
            tracing::info!("no statistics: the server has no exports");
        }
        self.shared.send_all(|| ControlMessage::Statistics);
    }

    /// Starts a barrier across all shards.
    #[must_use]
    pub fn barrier(&self) -> ShardBarrier {
        let (copy, answered) = channel();
        self.shared.send_all(|| ControlMessage::Barrier(copy.clone()));
        ShardBarrier(answered)
    }

    /// Returns a handle that reloads certificates and exports.
    #[must_use]
    pub fn reloader(&self) -> Reloader {
        Reloader::new(Arc::clone(&self.service), Arc::clone(&self.listeners))
    }

    /// Sends a control input to every shard.
    pub fn control(&self, control: Control) {
        self.shared.send_all(|| ControlMessage::Control(control));
    }

    /// Exports that are served at the moment.
    #[must_use]
    pub fn exports(&self) -> Vec<ActiveExport> {
        let tree = self.service.tree();
        let now = |entry: &ExportNode| ActiveExport {
            name: entry.shown_name().to_owned(),
            device: device_name(entry.device),
            read_only: entry.read_only,
            volatile: entry.volatile,
            progress: self.shared.progress_of(entry.volume),
        };
        tree.exports.iter().map(now).collect()
    }

    /// Names of exports that were given up and whose devices have not answered: a stop waits for none of them.
    #[must_use]
    pub fn abandoned(&self) -> Vec<String> {
        change::remove::abandoned_names(self.service.changes())
    }

    /// Bytes of all volumes that are in the cache only, as published during a stop.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.shared.left()
    }

    /// Bytes that were only in the cache when the shards began the stop; 0 before it.
    #[must_use]
    pub fn dirty_at_stop(&self) -> u64 {
        self.shared.dirty_at_stop()
    }

    /// Waits until the server has ended.
    ///
    /// # Errors
    /// A shard failed, or a last flush failed.
    pub fn join(mut self) -> Result<(), String> {
        let (control, metrics) = (self.control.take(), self.metrics.take());
        let result = self.join_shards();
        // Stopped last, so that a slow shutdown can be observed.
        if let Some(control) = control {
            control.stop();
        }
        if let Some(metrics) = metrics {
            metrics.stop();
        }
        result
    }

    fn join_shards(self) -> Result<(), String> {
        if let Some(broken) = self.broken.lock().ok().and_then(|mut broken| broken.take()) {
            // Other shards may wait for the failed shard's devices without end.
            return Err(broken);
        }
        for thread in self.threads {
            if thread.join().is_err() {
                return Err("a shard thread panicked; see the messages above".into());
            }
        }
        match self.shared.failures() {
            0 => Ok(()),
            failures => Err(format!("{failures} final flushes failed; see the messages above")),
        }
    }
}

#[cfg(test)]
mod abandon_tests;
#[cfg(test)]
mod answer_tests;
#[cfg(test)]
mod change_tests;
#[cfg(test)]
mod foreign_driver_tests;
#[cfg(test)]
mod in_flight_tests;
#[cfg(test)]
mod limit_tests;
#[cfg(test)]
mod listener_tests;
#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod range_tests;
#[cfg(test)]
mod recorded_tests;
#[cfg(test)]
mod rings_pieces_tests;
#[cfg(test)]
mod rings_tests;
#[cfg(test)]
mod status_page_tests;
#[cfg(test)]
mod stop_tests;
#[cfg(test)]
mod tenant_tests;
