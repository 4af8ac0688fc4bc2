//! SIGHUP: the configuration file is read again.
//!
//! ```text
//!   read, check --wrong--> said in the log, nothing changes
//!        `--good---> exports come, go and change; what needs a new start is said
//! ```
//!
//! What was said on the command line and in the environment is said again: it still wins.
//!
//! It has a thread of its own: an export that leaves is written out first, however long that takes, and meanwhile the main thread
//! has signals to take and signs of life to give. A SIGHUP that comes meanwhile is another reload, after this one.

use std::io;
use std::sync::Arc;

use headworks_server::Reloader;
use headworks_server::config::{File, Setting};
use headworks_server::control::Reload as Done;

use super::{Settled, Told, plan, tls};
use crate::signals::Bell;

/// Reloads, one at a time.
pub struct Reload {
    loader: Arc<Loader>,
    under_way: bool,
    /// Another one was asked for since it began.
    again: bool,
}

/// What is loaded, and how it was said.
struct Loader {
    told: Told,
    loaded: File,
    has_file: bool,
}

impl Reload {
    pub fn new(told: Told, settled: &Settled) -> Self {
        let has_file = settled.options.config.is_some();
        let loader = Loader { told, loaded: settled.config.clone(), has_file };
        Self { loader: Arc::new(loader), under_way: false, again: false }
    }

    /// Begins one, whose end the bell tells, or remembers that another one has to follow; true if it began.
    ///
    /// # Errors
    /// No thread is left.
    pub fn begin(&mut self, server: Reloader, bell: Bell) -> io::Result<bool> {
        self.again = self.under_way;
        if self.under_way {
            return Ok(false);
        }
        let loader = Arc::clone(&self.loader);
        let thread = std::thread::Builder::new().name("reload".into());
        thread.spawn(move || {
            loader.load(&server);
            tls::reload(&server);
            bell.ring();
        })?;
        self.under_way = true;
        Ok(true)
    }

    /// One has ended; true if another one has to begin.
    pub fn end(&mut self) -> bool {
        self.under_way = false;
        std::mem::take(&mut self.again)
    }
}

impl Loader {
    /// Reads the file again and does what can be done.
    fn load(&self, server: &Reloader) {
        if !self.has_file {
            tracing::info!("there is no configuration file to load again");
            return;
        }
        let settled = match self.told.settle() {
            Ok(settled) => settled,
            Err(wrong) => return refuse(&wrong.to_string()),
        };
        let (specs, _) = match plan(&settled) {
            Ok(planned) => planned,
            Err(problems) => return refuse(&problems.to_string()),
        };
        match server.reconcile(specs) {
            Ok(done) => tell(&done),
            Err(error) => return refuse(&error.to_string()),
        }
        for what in needs_restart(&self.loaded, &settled.config) {
            tracing::warn!("{what} differs now: it changes when the server starts again");
        }
        tracing::info!("the configuration is loaded again");
    }
}

fn refuse(problems: &str) {
    for problem in problems.lines() {
        tracing::error!("the configuration is not loaded again, nothing changes: {problem}");
    }
}

/// What came and went is said where it is done.
fn tell(done: &Done) {
    for (name, what) in &done.changed {
        tracing::info!("export {name} has {what} now");
    }
    for (name, why) in &done.kept {
        tracing::warn!("export {name} stays as it is: {why}");
    }
    for (name, why) in &done.failed {
        tracing::error!("export {name} cannot be served: {why}");
    }
}

/// What differs from what the server was started with and cannot change while it runs.
fn needs_restart(old: &File, new: &File) -> Vec<String> {
    let differs = |setting: &&Setting| {
        let other = old.server.iter().find(|other| other.name == setting.name);
        other.map(|other| other.value.words()) != Some(setting.value.words())
    };
    let options = new.server.iter().filter(differs).map(|setting| setting.name.clone());
    let vm = (write_back(old) != write_back(new)).then(|| "[server.vm]".to_owned());
    let all = (queue(old, None) != queue(new, None)).then(|| "[server.queue]".to_owned());
    // A device that is new gets its own queue at once.
    let both = new.devices.iter().map(|device| device.name.as_str());
    let both = both.filter(|name| old.devices.iter().any(|device| device.name == *name));
    let devices = both.filter(|name| queue(old, Some(name)) != queue(new, Some(name)));
    let devices = devices.map(|name| format!("the queue of device `{name}`"));
    options.chain(vm).chain(all).chain(devices).collect()
}

fn write_back(file: &File) -> Vec<(u8, u64)> {
    sorted(file.clone().with_defaults().vm.iter().map(|tuned| (tuned.tunable.code(), tuned.value)))
}

fn queue(file: &File, device: Option<&str>) -> Vec<(u8, u64)> {
    sorted(file.queue_of(device).iter().map(|tuned| (tuned.tunable.code(), tuned.value)))
}

fn sorted(pairs: impl Iterator<Item = (u8, u64)>) -> Vec<(u8, u64)> {
    let mut all: Vec<(u8, u64)> = pairs.collect();
    all.sort_unstable();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_named_once_and_what_only_stands_elsewhere_does_not_differ() {
        let file = |text: &str| File::parse("f", text).unwrap();
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
        let all = ["cpus", "port", "[server.vm]", "[server.queue]", "the queue of device `a`"];
        assert_eq!(needs_restart(&old, &file(other)), all);
    }
}
