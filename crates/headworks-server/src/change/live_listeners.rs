//! `add-listener` and `remove-listener`: sockets beside those of the configuration.
//!
//! ```text
//!   wanted = listeners of the last configuration - removed by ctl + added by ctl     -> load_access, as a reload does
//! ```
//!
//! A reload keeps what ctl added, unless the file has its name or its address by then, and brings back what ctl removed; `ctl save`
//! writes both down. Rule: the lock is held until the listeners are what it says, so that a reload and `ctl` take turns.

use std::path::Path;

use headworks_nbd::tls::TlsOptions;
use serde_json::Value;

use super::diff::Differences;
use super::listeners::AccessReport;
use super::listeners::apply_access;
use super::{LiveChanges, wrong};
use crate::config::{ConfigFile, ListenDefaults, ListenSection, Origin};
use crate::control::tree::lock;
use crate::exports::access::{AccessSpec, ListenerSpec};
use crate::listen::FileOwner;
use crate::spec::did_you_mean::nearest_name;
use headworks_control::{RpcFault, answers, methods};

/// Mode of the file of a unix socket that is added without one: of its owner alone, whatever the server's own sockets have.
const MODE: u32 = 0o600;

/// The listeners of the last configuration, and what `ctl` changed since.
#[derive(Default)]
pub(super) struct LiveAccess {
    configured: AccessSpec,
    /// Listeners in no file.
    added: Vec<(ListenSection, ListenerSpec)>,
    /// Names of listeners that a file has and that were removed.
    removed: Vec<String>,
    /// TLS of a listener that says nothing of it.
    tls: TlsOptions,
}

impl LiveAccess {
    /// The listeners that the server starts with; those that `inherited` has were added by `ctl` to the server that this one replaces.
    pub fn new(access: &AccessSpec, tls: &TlsOptions, inherited: &ConfigFile) -> Self {
        let mut configured = access.clone();
        let added = inherited.listeners.iter().filter(|section| section.is_enabled() == Ok(true));
        let added = added.filter_map(|section| {
            let at = configured.listeners.iter().position(|spec| spec.name == section.name)?;
            Some((section.clone(), configured.listeners.remove(at)))
        });
        let added = added.collect();
        Self { added, removed: Vec::new(), tls: tls.clone(), configured }
    }

    /// The listeners that there should be if the configuration is `configured`.
    pub fn with(&self, configured: &AccessSpec) -> AccessSpec {
        let mut wanted = configured.clone();
        let added =
            self.added.iter().map(|(_, spec)| spec).filter(|spec| is_beside(configured, spec));
        wanted.listeners.extend(added.cloned());
        wanted
    }

    /// Takes a new configuration over; returns the listeners that there should be.
    pub fn load(&mut self, configured: &AccessSpec) -> AccessSpec {
        self.added.retain(|(_, spec)| is_beside(configured, spec));
        self.removed.clear();
        self.configured = configured.clone();
        self.wanted()
    }

    /// Takes what was written to a drop-in for configured.
    pub fn note_saved(&mut self, saved: &ConfigFile) {
        for ListenSection { name, .. } in &saved.listeners {
            match self.added.iter().position(|(_, spec)| spec.name == *name) {
                Some(at) => self.configured.listeners.push(self.added.remove(at).1),
                None => self.configured.listeners.retain(|spec| spec.name != *name),
            }
            self.removed.retain(|removed| removed != name);
        }
    }

    /// Names of listeners of the configuration that `ctl` has removed.
    pub fn removed(&self) -> &[String] {
        &self.removed
    }

    /// The listeners that there should be now.
    fn wanted(&self) -> AccessSpec {
        let mut configured = self.configured.clone();
        configured.listeners.retain(|spec| !self.removed.contains(&spec.name));
        self.with(&configured)
    }
}

/// Whether a configuration leaves name and address of a listener free.
fn is_beside(configured: &AccessSpec, added: &ListenerSpec) -> bool {
    let is_same =
        |spec: &ListenerSpec| spec.name == added.name || spec.address.key() == added.address.key();
    !configured.listeners.iter().any(is_same)
}

/// The method `add-listener`, with the words of `--listen`.
pub(crate) fn add(
    live: &LiveChanges,
    asked: &methods::AddListener,
) -> Result<answers::ListenerChange, RpcFault> {
    let mut access = lock(&live.access);
    let section = ListenSection::from_words(&asked.listener, &Origin::Control);
    let mut section = section.map_err(|error| wrong(&error))?;
    if let Some(folder) = &asked.cwd.0 {
        section.set_folder(Path::new(folder));
    }
    // Written down, so that it is the same after an upgrade or a restart.
    section.set_default_mode(MODE);
    let defaults = ListenDefaults {
        mode: MODE,
        tls: access.tls.mode,
        certificates: access.tls.certificates.clone(),
        verify_peer: access.tls.verify_peer,
        owner: &numeric_owner,
    };
    let spec = section.plan(&defaults);
    let spec = spec.map_err(|problem| RpcFault::refused("EINVAL", problem.what))?;
    check_new(live, &spec)?;
    let name = spec.name.clone();
    access.added.push((section, spec));
    let report = apply_access(live, &access.wanted(), &access.removed);
    let entries = live.listeners.entries();
    let Some(entry) = entries.iter().find(|entry| *entry.name == *name) else {
        access.added.pop();
        let about = format!("listener {name} ");
        // An older listener may fail, too, and come first; without one that names this, the lists are too long together.
        let mut failed = report.failed;
        failed.sort_by_key(|why| !why.starts_with(&about));
        let why = failed.into_iter().next().unwrap_or_else(|| format!("{about}not opened"));
        return Err(RpcFault::refused("EADDRNOTAVAIL", why));
    };
    tracing::info!("listener {name} at {} was added", entry.address);
    Ok(answers::ListenerChange { listener: name, address: entry.address.clone() })
}

/// The method `remove-listener`; clients that are connected stay.
pub(crate) fn remove(live: &LiveChanges, name: &str) -> Result<answers::ListenerChange, RpcFault> {
    let mut access = lock(&live.access);
    let entries = live.listeners.entries();
    let Some(entry) = entries.iter().find(|entry| *entry.name == *name) else {
        let known = entries.iter().map(|entry| &*entry.name);
        let near = nearest_name(name, known)
            .map_or_else(String::new, |near| format!("; the nearest is `{near}`"));
        let message = format!("there is no listener `{name}`{near}");
        return Err(RpcFault::refused("ENOENT", message));
    };
    if entry.spec.is_none() {
        let message = format!("{name} is the server's own listener, which stays until it ends");
        return Err(RpcFault::refused("EINVAL", message));
    }
    let added = access.added.iter().position(|(_, spec)| spec.name == name);
    let added = added.map(|at| access.added.remove(at));
    // Also one that the server that this one replaced had added: its changes name it.
    let is_written = live.inherited.listeners.iter().any(|section| section.name == name);
    let is_noted = added.is_none() || is_written;
    if is_noted {
        access.removed.push(name.to_owned());
    }
    let removed = [access.removed.as_slice(), &[name.to_owned()]].concat();
    let AccessReport { failed, .. } = apply_access(live, &access.wanted(), &removed);
    if live.listeners.entries().iter().any(|entry| *entry.name == *name) {
        access.added.extend(added);
        if is_noted {
            access.removed.pop();
        }
        let why = failed.into_iter().next().unwrap_or_else(|| format!("{name} stays"));
        return Err(RpcFault::refused("EBUSY", why));
    }
    tracing::info!("listener {name} was removed");
    let (listener, address) = (name.to_owned(), entry.address.clone());
    Ok(answers::ListenerChange { listener, address })
}

/// Refuses a listener whose name or address is in use, or whose tenant is not there.
fn check_new(live: &LiveChanges, spec: &ListenerSpec) -> Result<(), RpcFault> {
    let twin = |what: String| Err(RpcFault::refused("EEXIST", what));
    let key = spec.address.key();
    let own = key.as_deref().unwrap_or_default();
    for entry in live.listeners.entries() {
        if *entry.name == *spec.name {
            return twin(format!("there is a listener `{}`; choose another name", spec.name));
        }
        if entry.is_at(spec) || entry.address == own {
            return twin(format!("listener `{}` listens at {own}", entry.name));
        }
    }
    live.settings.tenants().named(spec.tenant).map(drop)
}

/// Listeners that `ctl` added and removed, for `diff`.
pub(super) fn differences(live: &LiveChanges, found: &mut Differences) {
    let access = lock(&live.access);
    for (section, spec) in &access.added {
        found.add(&path(&spec.name), Value::Null, section.words().into());
        found.file.listeners.push(section.clone());
    }
    for name in &access.removed {
        let configured = access.configured.listeners.iter().find(|spec| spec.name == *name);
        let at = configured.and_then(|spec| spec.address.key());
        found.add(&path(name), at.into(), Value::Null);
        found.file.listeners.push(ListenSection::disabled(name, &Origin::Control));
    }
}

/// The path of a listener in `diff`.
fn path(name: &str) -> String {
    format!("listeners/{name}")
}

/// The owner of a socket by numbers: `ctl` has looked names up, which a server in a sandbox cannot.
fn numeric_owner(word: &str) -> Result<FileOwner, String> {
    let (user, group) = word.split_once(':').unwrap_or((word, ""));
    let id = |text: &str| match text {
        "" => Ok(None),
        _ => text.parse::<u32>().map(Some).map_err(|_| {
            format!(
                "`{word}` is not made of numbers, as in 1000:1000, which a running server takes"
            )
        }),
    };
    Ok(FileOwner { user: id(user)?, group: id(group)? })
}
