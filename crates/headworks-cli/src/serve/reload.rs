//! SIGHUP and `ctl reload`: reload of the configuration file.
//!
//! ```text
//!   read, check --error--> logged, nothing changes
//!        `--good--> tunables are set; exports and listeners are added, removed, changed; options that need a restart are logged
//! ```
//!
//! The command line and the environment are applied again and still override the file.
//!
//! A reload has its own thread, because removing an export writes it out first, and the main thread has to serve
//! signals and the watchdog meanwhile. A SIGHUP during a reload starts another one after it; a request of the control socket is
//! refused then, because its answer says what it did itself.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use headworks_core::ConfigError;
use headworks_server::config::{ConfigFile, DeviceSection, Setting};
use headworks_server::{
    ConfiguredTunables, LoadedConfiguration, NamedDevice, ReloadHook, ReloadOutcome,
    ReloadReport as Done, ReloadRequest, Reloader, ServerOptions, TenantReport,
};

use super::address::named_addresses;
use super::{EffectiveOptions, OptionSources, listen, plan};
use crate::signals::{MainNotifier, Signals};

/// The problem of a reload for which the command line names nothing.
const NOTHING_TO_LOAD: &str =
    "nothing to load: the server was started without --config and certificates";

/// State of reloads; one runs at a time.
pub struct Reload {
    loader: Arc<Loader>,
    requests: Receiver<ReloadRequest>,
    under_way: bool,
    /// A SIGHUP arrived during the reload.
    again: bool,
}

/// The loaded configuration and its sources.
struct Loader {
    sources: OptionSources,
    loaded: ConfigFile,
    has_file: bool,
}

/// Makes the hook for requests of the control socket, and the place where the main thread finds them.
///
/// # Errors
/// No descriptor is left for the notification.
pub fn take_requests(
    signals: &Signals,
) -> Result<(Receiver<ReloadRequest>, ReloadHook), ConfigError> {
    let (sender, requests) = channel();
    let notifier = signals.reload_requested()?;
    let hook = ReloadHook::new(move |request| {
        // A request that is not taken any more is dropped, which answers it.
        let _ = sender.send(request);
        notifier.notify();
    });
    Ok((requests, hook))
}

impl Reload {
    pub fn new(
        sources: OptionSources,
        effective: &EffectiveOptions,
        requests: Receiver<ReloadRequest>,
    ) -> Self {
        let has_file = effective.options.config.is_some();
        let loader = Loader { sources, loaded: effective.config.clone(), has_file };
        Self { loader: Arc::new(loader), requests, under_way: false, again: false }
    }

    /// The oldest request of the control socket.
    pub fn next_request(&self) -> Option<ReloadRequest> {
        self.requests.try_recv().ok()
    }

    /// Starts a reload that ends with the notifier, or queues one behind the running one; returns true if it started.
    ///
    /// # Errors
    /// A thread could not be started.
    pub fn begin(
        &mut self,
        server: Reloader,
        notifier: MainNotifier,
        request: Option<ReloadRequest>,
    ) -> io::Result<bool> {
        self.again = self.under_way;
        if self.under_way {
            return Ok(false);
        }
        let loader = Arc::clone(&self.loader);
        let thread = std::thread::Builder::new().name("reload".into());
        thread.spawn(move || {
            let mut told = ToldOutcome::default();
            loader.load(&server, &mut told);
            reload_certificates(&server, &mut told);
            if !loader.has_file && told.0 == ReloadOutcome::default() {
                told.0.problems.push(NOTHING_TO_LOAD.to_owned());
            }
            // Before the answer: the client's next request finds this reload ended.
            notifier.notify();
            if let Some(request) = request {
                request.answer(told.0);
            }
        })?;
        self.under_way = true;
        Ok(true)
    }

    /// Whether a reload is in progress.
    pub fn is_under_way(&self) -> bool {
        self.under_way
    }

    /// Ends a reload; returns true if another one is queued.
    pub fn end(&mut self) -> bool {
        self.under_way = false;
        std::mem::take(&mut self.again)
    }
}

impl Loader {
    /// Reads the file and applies what can change at run time.
    fn load(&self, server: &Reloader, told: &mut ToldOutcome) {
        if !self.has_file {
            tracing::info!("reload ignored: the server has no configuration file");
            return;
        }
        let effective = match self.sources.resolve() {
            Ok(effective) => effective,
            Err(wrong) => return told.refuse(&wrong.to_string()),
        };
        let (specs, mut options) = match plan(&effective) {
            Ok(planned) => planned,
            Err(problems) => return told.refuse(&problems.to_string()),
        };
        options.listen = named_addresses(&effective.options.listening);
        let warnings = listen::warnings(&specs, &options);
        // First, so that nothing is shown meanwhile that neither configuration shows.
        if let Err(why) = server.narrow_access(&options.access) {
            return told.refuse(&why);
        }
        // Before exports are added: new devices get the new tunables.
        let retuned = server.retune(tunables(&effective, &options));
        // Before exports name them; those that are gone leave after their exports.
        told.tenants(server.tenants(&options.tenants));
        match server.reconcile(specs) {
            Ok(done) => told.exports(done),
            Err(error) => {
                server.keep_access();
                return told.refuse(&error.to_string());
            }
        }
        told.tenants(server.forget_tenants());
        // Not logged: only the answer of a reload tells it, where an edit of a file has just had no effect.
        told.0.overridden.clone_from(&effective.overridden);
        let access = server.access(&options.access);
        access.changed.into_iter().for_each(|what| told.changed(what));
        access.failed.into_iter().for_each(|why| told.failed(why));
        warnings.into_iter().for_each(|warning| told.refused(warning.to_string()));
        for (path, value) in &retuned.set {
            told.changed(format!("{path} is {value} now"));
        }
        for (path, why) in &retuned.refused {
            told.refused(format!("{path} not changed: {why}"));
        }
        let options = needs_restart(&self.loaded, &effective.config);
        for what in options.iter().chain(&retuned.restart) {
            told.restart(what);
        }
        tracing::info!("configuration reloaded");
    }
}

/// Reads the certificates again.
fn reload_certificates(server: &Reloader, told: &mut ToldOutcome) {
    match server.certificates() {
        Ok(true) => told.changed("certificates reloaded for new connections".to_owned()),
        Ok(false) => {}
        Err(error) => told
            .failed(format!("cannot reload the certificates, the old ones stay in use: {error}")),
    }
}

/// The outcome of a reload; what is added to it goes to the log, too.
#[derive(Default)]
struct ToldOutcome(ReloadOutcome);

impl ToldOutcome {
    fn refuse(&mut self, problems: &str) {
        for problem in problems.lines() {
            tracing::error!("configuration not reloaded, nothing changed: {problem}");
            self.0.problems.push(problem.to_owned());
        }
    }

    pub fn changed(&mut self, what: String) {
        tracing::info!("{what}");
        self.0.changed.push(what);
    }

    fn refused(&mut self, why: String) {
        tracing::warn!("{why}");
        self.0.refused.push(why);
    }

    pub fn failed(&mut self, why: String) {
        tracing::error!("{why}");
        self.0.failed.push(why);
    }

    fn restart(&mut self, what: &str) {
        let line = format!("{what} changed in the configuration; it takes effect after a restart");
        tracing::warn!("{line}");
        self.0.restart.push(line);
    }

    fn tenants(&mut self, done: TenantReport) {
        done.changed.into_iter().for_each(|what| self.changed(what));
        done.refused.into_iter().for_each(|why| self.refused(why));
    }

    /// The server itself logs added and removed exports.
    fn exports(&mut self, done: Done) {
        self.0.changed.extend(done.added.iter().map(|name| format!("export {name} added")));
        self.0.changed.extend(done.removed.iter().map(|name| format!("export {name} removed")));
        for (name, what) in &done.changed {
            self.changed(format!("export {name} has {what} now"));
        }
        done.notes.into_iter().for_each(|note| self.refused(note));
        for (name, why) in &done.kept {
            self.refused(format!("export {name} not changed: {why}"));
        }
        for (name, why) in &done.absent {
            self.refused(format!("export {name} is absent: {why}"));
        }
        for (name, why) in &done.failed {
            self.failed(format!("export {name} cannot be served: {why}"));
        }
    }
}

/// What the sources say, to compare a server with; none if they serve nothing by themselves.
pub fn loaded(effective: &EffectiveOptions) -> Option<LoadedConfiguration> {
    let (exports, options) = plan(effective).ok()?;
    let tunables = tunables(effective, &options);
    Some(LoadedConfiguration { exports, tenants: options.tenants, tunables })
}

/// Tunables of the whole server and of every named device.
fn tunables(effective: &EffectiveOptions, options: &ServerOptions) -> ConfiguredTunables {
    let config = &effective.config;
    let device = |device: &DeviceSection| NamedDevice {
        name: device.name.clone(),
        queue: config
            .queue_of(Some(&device.name))
            .iter()
            .map(|tuned| (tuned.tunable, tuned.value))
            .collect(),
    };
    ConfiguredTunables {
        queue: options.queue.clone(),
        devices: config.devices.iter().map(device).collect(),
        dirty: options.dirty,
        limits: options.limits,
    }
}

/// Options that a reload applies.
const LIVE: [&str; 1] = ["limit"];

/// Names of changed options that take effect only after a restart.
fn needs_restart(old: &ConfigFile, new: &ConfigFile) -> Vec<String> {
    let differs = |setting: &&Setting| {
        let other = old.server.iter().find(|other| other.name == setting.name);
        other.map(|other| other.value.words()) != Some(setting.value.words())
    };
    let restarts = |setting: &&Setting| !LIVE.contains(&&*setting.name) && differs(setting);
    new.server.iter().filter(restarts).map(|setting| setting.name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changed_options_need_a_restart() {
        let file = |text: &str| ConfigFile::parse("f", text).unwrap();
        let old = file(
            "[server]\ncpus = [0]\nport = 1\n[server.vm]\ndirty_ratio = 5\n[server.queue]\n\
             nr_requests = 5\nnomerges = 1\n[[device]]\nname = 'a'\nqueue.scheduler = 'none'",
        );
        let same = file(
            "[[device]]\nname = 'a'\nqueue.scheduler = 'none'\n[[device]]\nname = 'b'\n\
             queue.scheduler = 'mq-deadline'\n[server.queue]\nnomerges = 1\nnr_requests = 5\n\
             [server.vm]\ndirty_ratio = 5\n[server]\nport = 1\ncpus = [0]",
        );
        assert_eq!(needs_restart(&old, &same), Vec::<String>::new());
        let other = "[server]\nport = 2\ncpus = [0, 1]\n[server.vm]\ndirty_bytes = '1M'\n\
                     [[device]]\nname = 'a'";
        // Tunables are set without a restart.
        let all = ["cpus", "port"];
        assert_eq!(needs_restart(&old, &file(other)), all);
    }
}
