//! The running server: its start, what can be asked of it, its end.

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use headworks_core::{ConfigError, Control};

use crate::assemble::Assembly;
use crate::assemble::cache_shares;
use crate::assemble::export_info::served_exports;
use crate::assemble::topology::topology;
use crate::control::ControlSocket;
use crate::control::service::ControlService;
use crate::control::tree::ExportNode;
use crate::launch::{Launched, ThreadSetup, launch, seeds};
use crate::listen::Listener;
use crate::messages::ControlMessage;
use crate::metrics::{self, Metrics};
use crate::shared::ServerShared;
use crate::{Reloader, ServerOptions};
use headworks::display_size;
use headworks_nbd::tls::TlsAcceptor;

/// A server that runs.
pub struct Server {
    shared: Arc<ServerShared>,
    threads: Vec<JoinHandle<()>>,
    engine: String,
    cache: Option<String>,
    ports: Vec<Option<u16>>,
    broken: Arc<Mutex<Option<String>>>,
    control: Option<ControlSocket>,
    service: Arc<ControlService>,
    metrics: Option<Metrics>,
    acceptor: Option<Arc<TlsAcceptor>>,
}

/// An export that is served now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActiveExport {
    /// Its name; `default` if it has none.
    pub name: String,
    /// Its volume, as an index of what [`Server::left`] and [`Server::unflushed`] tell.
    pub volume: usize,
    /// Clients may only read.
    pub read_only: bool,
    /// Writes need a flush to outlive a power cut.
    pub volatile: bool,
}

/// Shards that were asked for a sign of life.
///
/// A shard answers by dropping what it was sent, which it does at its next turn, and for the last time when it ends. So the
/// call is complete when nothing of it is left, and a shard that has ended is not missed.
pub struct ShardBarrier(Receiver<std::convert::Infallible>);

impl ShardBarrier {
    /// Whether every shard has turned, or ended, since the call.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.wait(Duration::ZERO)
    }

    /// Waits until the call is complete, but no longer than `patience`; whether it is.
    #[must_use]
    pub fn wait(&self, patience: Duration) -> bool {
        matches!(self.0.recv_timeout(patience), Err(RecvTimeoutError::Disconnected))
    }
}

impl Server {
    /// Starts every thread; clients may connect when this returns. `ended` is called, from a thread of the server, when all
    /// shards have flushed after [`Server::stop`], or when one has broken.
    ///
    /// # Errors
    /// What is in the way, in one sentence; nothing runs then.
    pub fn start(
        assembly: Assembly,
        options: &ServerOptions,
        ended: impl Fn() + Send + Sync + 'static,
    ) -> Result<Self, ConfigError> {
        Self::start_after(assembly, options, ended, || Ok(()))
    }

    /// As [`Server::start`]; `opened` is called when every image, ring and socket is open and before any client is served:
    /// the place to give up privileges. Its error ends the start.
    ///
    /// # Errors
    /// What is in the way, in one sentence; nothing runs then.
    pub fn start_after(
        assembly: Assembly,
        options: &ServerOptions,
        ended: impl Fn() + Send + Sync + 'static,
        opened: impl FnOnce() -> Result<(), ConfigError>,
    ) -> Result<Self, ConfigError> {
        options.validate()?;
        let acceptor = TlsAcceptor::new(&options.tls)?.map(Arc::new);
        let listeners: Vec<Listener> =
            options.listen.iter().map(Listener::bind).collect::<Result<_, _>>()?;
        let ports = listeners.iter().map(Listener::port).collect();
        let owner_only = |path| Listener::bind_unix("control", path, 0o600);
        let control = match &options.control_given {
            Some(given) => Some(Listener::adopt("control", given)?),
            None => options.control.as_deref().map(owner_only).transpose()?,
        };
        let metrics = match &options.metrics_given {
            Some(given) => Some(metrics::adopt(given)?),
            None => options.metrics.map(metrics::bind).transpose()?,
        };
        let config = topology(&assembly, options);
        config.validate()?;
        let caches = cache_shares::divide(&config, &options.cache_spec())?;
        let exports = served_exports(&assembly, &config);
        let (boxes, mails): (Vec<Sender<ControlMessage>>, Vec<Receiver<ControlMessage>>) =
            (0..options.shards).map(|_| channel()).unzip();
        let shared = Arc::new(ServerShared::new(boxes, config.volumes_max(), Box::new(ended)));
        let service = Arc::new(ControlService::for_server(&assembly, &config, options, &shared));
        let seeds = seeds(assembly, &config, caches, options, mails, listeners);
        let broken = Arc::new(Mutex::new(None));
        let setup = ThreadSetup {
            options: options.clone(),
            exports,
            shared: Arc::clone(&shared),
            broken: Arc::clone(&broken),
            acceptor: acceptor.clone(),
        };
        let Launched { threads, engine, pages } = launch(seeds, &setup, opened)?;
        let cache = pages.map(|pages| format!("{}, {pages}", display_size(options.cache)));
        let mut server = Self {
            shared,
            threads,
            engine,
            cache,
            ports,
            broken,
            control: None,
            service: Arc::clone(&service),
            metrics: None,
            acceptor,
        };
        if let Some(listener) = control {
            match ControlSocket::start(listener, Arc::clone(&service)) {
                Ok(control) => server.control = Some(control),
                Err(error) => {
                    server.stop();
                    let _ = server.join();
                    return Err(error);
                }
            }
        }
        if let Some(listener) = metrics {
            match Metrics::start(listener, service) {
                Ok(metrics) => server.metrics = Some(metrics),
                Err(error) => {
                    server.stop();
                    let _ = server.join();
                    return Err(error);
                }
            }
        }
        Ok(server)
    }

    /// Where scrapers are answered; none without an endpoint.
    #[must_use]
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().map(Metrics::address)
    }

    /// Which engine runs, and why.
    #[must_use]
    pub fn engine(&self) -> &str {
        &self.engine
    }

    /// How large the page cache is and what its memory is made of; none without one.
    #[must_use]
    pub fn cache(&self) -> Option<&str> {
        self.cache.as_deref()
    }

    /// The port of each address of the options; none for unix sockets.
    #[must_use]
    pub fn ports(&self) -> &[Option<u16>] {
        &self.ports
    }

    /// Stops: no new requests, answers for those in flight, flushes. Returns at once.
    pub fn stop(&self) {
        self.shared.send_all(|| ControlMessage::Stop);
    }

    /// Has every shard log the statistics of its volumes.
    pub fn tell_statistics(&self) {
        if self.service.tree().exports.is_empty() {
            tracing::info!("no statistics: the server has no exports");
        }
        self.shared.send_all(|| ControlMessage::Statistics);
    }

    /// Asks every shard for a sign of life; the call's [`ShardBarrier::is_complete`] says later whether all gave it.
    #[must_use]
    pub fn barrier(&self) -> ShardBarrier {
        let (copy, answered) = channel();
        self.shared.send_all(|| ControlMessage::Barrier(copy.clone()));
        ShardBarrier(answered)
    }

    /// What reads certificates and a configuration again, from a thread of its own.
    #[must_use]
    pub fn reloader(&self) -> Reloader {
        Reloader::new(Arc::clone(&self.service), self.acceptor.clone())
    }

    /// Tells the shards that own the volume's device and the volume.
    pub fn control(&self, control: Control) {
        self.shared.send_all(|| ControlMessage::Control(control));
    }

    /// What is served now.
    #[must_use]
    pub fn exports(&self) -> Vec<ActiveExport> {
        let tree = self.service.tree();
        let now = |entry: &ExportNode| ActiveExport {
            name: entry.shown_name().to_owned(),
            volume: entry.volume.0.into(),
            read_only: entry.read_only,
            volatile: entry.volatile,
        };
        tree.exports.iter().map(now).collect()
    }

    /// Writes by volume that finished and that no flush covers, as of a stop that is under way; none where that is not known.
    /// A shard tells them when it hears of the stop: a [`Server::barrier`] that is complete since then has them all.
    #[must_use]
    pub fn unflushed(&self) -> Vec<Option<u64>> {
        self.shared.unflushed()
    }

    /// Bytes by volume that are in the cache and not in its device, as of a stop that is under way; none where nothing is cached.
    #[must_use]
    pub fn left(&self) -> Vec<Option<u64>> {
        self.shared.left()
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// A shard broke, or a last flush failed.
    pub fn join(mut self) -> Result<(), String> {
        let (control, metrics) = (self.control.take(), self.metrics.take());
        let result = self.join_shards();
        // Last, so that a stop that takes long can be looked at.
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
            // Others may wait for the broken one's devices for ever.
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
mod change_tests;
