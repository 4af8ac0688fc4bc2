//! SIGHUP: reload of the configuration file.
//!
//! ```text
//!   read, check --error--> logged, nothing changes
//!        `--good--> tunables are set; exports and listeners are added, removed, changed; options that need a restart are logged
//! ```
//!
//! The command line and the environment are applied again and still override the file.
//!
//! A reload has its own thread, because removing an export writes it out first, and the main thread has to serve
//! signals and the watchdog meanwhile. A SIGHUP during a reload starts another one after it.

use std::io;
use std::sync::Arc;

use headworks_server::config::{ConfigFile, DeviceSection, Setting};
use headworks_server::{
    ConfiguredTunables, LoadedConfiguration, NamedDevice, ReloadReport as Done, Reloader,
    ServerOptions, TenantReport,
};

use super::address::named_addresses;
use super::{EffectiveOptions, OptionSources, listen, plan, tls};
use crate::signals::MainNotifier;

/// State of reloads; one runs at a time.
pub struct Reload {
    loader: Arc<Loader>,
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

impl Reload {
    pub fn new(sources: OptionSources, effective: &EffectiveOptions) -> Self {
        let has_file = effective.options.config.is_some();
        let loader = Loader { sources, loaded: effective.config.clone(), has_file };
        Self { loader: Arc::new(loader), under_way: false, again: false }
    }

    /// Starts a reload that ends with the notifier, or queues one behind the running one; returns true if it started.
    ///
    /// # Errors
    /// A thread could not be started.
    pub fn begin(&mut self, server: Reloader, notifier: MainNotifier) -> io::Result<bool> {
        self.again = self.under_way;
        if self.under_way {
            return Ok(false);
        }
        let loader = Arc::clone(&self.loader);
        let thread = std::thread::Builder::new().name("reload".into());
        thread.spawn(move || {
            loader.load(&server);
            tls::reload(&server);
            notifier.notify();
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
    fn load(&self, server: &Reloader) {
        if !self.has_file {
            tracing::info!("reload ignored: the server has no configuration file");
            return;
        }
        let effective = match self.sources.resolve() {
            Ok(effective) => effective,
            Err(wrong) => return refuse(&wrong.to_string()),
        };
        let (specs, mut options) = match plan(&effective) {
            Ok(planned) => planned,
            Err(problems) => return refuse(&problems.to_string()),
        };
        options.listen = named_addresses(&effective.options);
        let warnings = listen::warnings(&specs, &options);
        // First, so that nothing is shown meanwhile that neither configuration shows.
        if let Err(why) = server.narrow_access(&options.access) {
            return refuse(&why);
        }
        // Before exports are added: new devices get the new tunables.
        let retuned = server.retune(tunables(&effective, &options));
        // Before exports name them; those that are gone leave after their exports.
        tell_tenants(&server.tenants(&options.tenants));
        match server.reconcile(specs) {
            Ok(done) => tell(&done),
            Err(error) => {
                server.keep_access();
                return refuse(&error.to_string());
            }
        }
        tell_tenants(&server.forget_tenants());
        let access = server.access(&options.access);
        access.changed.iter().for_each(|what| tracing::info!("{what}"));
        access.failed.iter().for_each(|why| tracing::error!("{why}"));
        warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
        for (path, value) in &retuned.set {
            tracing::info!("{path} is {value} now");
        }
        for (path, why) in &retuned.refused {
            tracing::warn!("{path} not changed: {why}");
        }
        let options = needs_restart(&self.loaded, &effective.config);
        for what in options.iter().chain(&retuned.restart) {
            tracing::warn!("{what} changed in the configuration; it takes effect after a restart");
        }
        tracing::info!("configuration reloaded");
    }
}

fn refuse(problems: &str) {
    for problem in problems.lines() {
        tracing::error!("configuration not reloaded, nothing changed: {problem}");
    }
}

/// Logs what became of tenants.
fn tell_tenants(done: &TenantReport) {
    done.changed.iter().for_each(|what| tracing::info!("{what}"));
    done.refused.iter().for_each(|why| tracing::warn!("{why}"));
}

/// Logs the result; the server itself logs added and removed exports.
fn tell(done: &Done) {
    for (name, what) in &done.changed {
        tracing::info!("export {name} has {what} now");
    }
    for (name, why) in &done.kept {
        tracing::warn!("export {name} not changed: {why}");
    }
    for (name, why) in &done.absent {
        tracing::warn!("export {name} is absent: {why}");
    }
    for (name, why) in &done.failed {
        tracing::error!("export {name} cannot be served: {why}");
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
