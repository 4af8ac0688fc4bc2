//! The listeners of a running server, as control threads know them: for reloads, `ctl` and a later hand-over.
//!
//! Listeners of clients have numbers: first those of `ServerOptions::listen`, which offer every export, then those of
//! `ServerOptions::access`. Invariant: a number in the set is in use in the shard, and no number is used twice.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headworks_core::ConfigError;
use headworks_nbd::tls::{TlsAcceptor, TlsOptions};

use crate::clients::files::directory::{self, DirectoryContext};
use crate::clients::rings::front_end::{self, FrontEndContext};
use crate::exports::access::{AccessRules, AccessSpec, ListenerSpec, RuleListener};
use crate::listen::{Address, ClientListener, DoorThread, Listener};
use crate::spec::tenant::TenantName;
use crate::successor::handover::{HandedListener, ListenerRole};

/// What the threads of listeners that speak no NBD have of the server.
pub(crate) struct DoorContexts {
    pub front_ends: FrontEndContext,
    pub directories: DirectoryContext,
}

/// A listener of clients, as control threads know it.
#[derive(Clone, Debug)]
pub(crate) struct ListenerEntry {
    /// Number in the shard that accepts clients.
    pub number: u16,
    /// Name in messages and tables.
    pub name: Arc<str>,
    /// Address for display, with the port that the kernel chose.
    pub address: String,
    /// TCP port; none for a unix socket.
    pub port: Option<u16>,
    /// What it offers, and where; none for a listener that offers every export.
    pub spec: Option<ListenerSpec>,
    /// What it was to become, if that failed: it offers what both offer.
    pub failed: Option<ListenerSpec>,
    /// TLS configuration; none without TLS.
    pub acceptor: Option<Arc<TlsAcceptor>>,
}

impl ListenerEntry {
    /// The listener of a section, and what the set knows of it.
    ///
    /// # Errors
    /// The address cannot be used.
    pub fn open(
        number: u16,
        spec: &ListenerSpec,
        acceptor: Option<Arc<TlsAcceptor>>,
    ) -> Result<(Self, Listener), ConfigError> {
        let listener = Listener::bind(&spec.address, spec.owner)?;
        Ok((Self::new(number, &listener, &spec.address, Some(spec), acceptor), listener))
    }

    /// What the set knows of an open listener.
    pub fn new(
        number: u16,
        listener: &Listener,
        address: &Address,
        spec: Option<&ListenerSpec>,
        acceptor: Option<Arc<TlsAcceptor>>,
    ) -> Self {
        let shown = listener.shown().unwrap_or_else(|| address.key().unwrap_or_default());
        let name = spec.map_or(shown.as_str(), |spec| &spec.name);
        Self {
            number,
            name: name.into(),
            port: listener.port(),
            spec: spec.cloned(),
            failed: None,
            acceptor,
            address: shown,
        }
    }

    /// What a shard needs to serve its clients. The thread of a listener that speaks no NBD is started.
    ///
    /// # Errors
    /// No thread can be started, or files cannot be mounted.
    pub fn client_listener(
        &self,
        listener: Listener,
        contexts: &DoorContexts,
    ) -> Result<ClientListener, ConfigError> {
        let (name, acceptor) = (Arc::clone(&self.name), self.acceptor.clone());
        let thread = self.spec.as_ref().and_then(|spec| match (&spec.address, spec.disk()) {
            (Address::Directory(path), _) => {
                Some(directory::start(&contexts.directories, spec, path).map(DoorThread::Directory))
            }
            (_, Some(export)) => {
                let context = contexts.front_ends.clone();
                let started = front_end::start(context, Arc::clone(&name), export);
                let failed = |error| format!("cannot start its thread: {error}");
                Some(started.map(DoorThread::FrontEnds).map_err(failed))
            }
            _ => None,
        });
        let thread = thread.transpose();
        let thread = thread.map_err(|why| ConfigError::new("listen", format!("{name}: {why}")))?;
        Ok(ClientListener { listener, name, acceptor, thread })
    }

    /// Whether it offers an export with this name and tenant.
    pub fn offers(&self, export: &str, tenant: Option<TenantName>) -> bool {
        self.spec.iter().chain(&self.failed).all(|spec| spec.offers(export, tenant))
    }

    /// Whether it is the listener of a section, or can become it.
    pub fn is_at(&self, spec: &ListenerSpec) -> bool {
        let is_same =
            |own: &ListenerSpec| own.address.key() == spec.address.key() && own.can_become(spec);
        self.spec.as_ref().is_some_and(is_same)
    }
}

/// The listener for which rules are made, with what it offers.
fn rule_listener<'a>(entry: &ListenerEntry, spec: Option<&'a ListenerSpec>) -> RuleListener<'a> {
    let verifies = entry.acceptor.as_ref().is_some_and(|acceptor| acceptor.verifies_peers());
    RuleListener { number: entry.number, spec, verifies }
}

/// The rules for these listeners and the exports with these `names`: a second one if a listener could not be changed.
pub(crate) fn rules_for<'a>(
    entries: &[ListenerEntry],
    access: &AccessSpec,
    names: impl Iterator<Item = &'a str> + Clone,
) -> Vec<Arc<AccessRules>> {
    let made = |listeners: Vec<RuleListener<'_>>| {
        Arc::new(AccessRules::new(&listeners, access, names.clone()))
    };
    let own = entries.iter().map(|entry| rule_listener(entry, entry.spec.as_ref()));
    let mut rules = vec![made(own.collect())];
    if entries.iter().any(|entry| entry.failed.is_some()) {
        let wanted = entries.iter();
        let wanted =
            wanted.map(|entry| rule_listener(entry, entry.failed.as_ref().or(entry.spec.as_ref())));
        rules.push(made(wanted.collect()));
    }
    rules
}

/// TLS configurations by their options, so that listeners with the same ones share a configuration.
#[derive(Default)]
pub(crate) struct Acceptors(Vec<(TlsOptions, Option<Arc<TlsAcceptor>>)>);

impl Acceptors {
    /// The configuration for these options, which is read from files if it is new.
    ///
    /// # Errors
    /// A file is missing or invalid.
    pub fn get(&mut self, options: &TlsOptions) -> Result<Option<Arc<TlsAcceptor>>, ConfigError> {
        if let Some((_, known)) = self.0.iter().find(|(known, _)| known == options) {
            return Ok(known.clone());
        }
        let made = TlsAcceptor::new(options)?.map(Arc::new);
        self.put(options.clone(), made.clone());
        Ok(made)
    }

    /// Adds a configuration that was made before.
    pub fn put(&mut self, options: TlsOptions, acceptor: Option<Arc<TlsAcceptor>>) {
        self.0.push((options, acceptor));
    }
}

/// All listeners of a running server, shared by control threads.
#[derive(Default)]
pub(crate) struct ListenerSet {
    entries: Mutex<Vec<ListenerEntry>>,
    /// Second descriptors of the sockets, for a process that replaces this one; none after a stop.
    handed: Mutex<Vec<HandedListener>>,
    /// The rules in force.
    rules: Mutex<Vec<Arc<AccessRules>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ListenerSet {
    /// Listeners of clients in the order of their numbers.
    pub fn entries(&self) -> Vec<ListenerEntry> {
        lock(&self.entries).clone()
    }

    /// Replaces the listeners, and what they offer.
    pub fn set(&self, mut entries: Vec<ListenerEntry>) {
        entries.sort_by_key(|entry| entry.number);
        let twins = entries.windows(2).any(|pair| pair[0].number == pair[1].number);
        assert!(!twins, "no number is used twice");
        *lock(&self.entries) = entries;
    }

    /// The rules in force.
    pub fn rules(&self) -> Vec<Arc<AccessRules>> {
        lock(&self.rules).clone()
    }

    /// Replaces the rules in force.
    pub fn set_rules(&self, rules: Vec<Arc<AccessRules>>) {
        *lock(&self.rules) = rules;
    }

    /// Second descriptors of the listening sockets.
    pub fn handed(&self) -> MutexGuard<'_, Vec<HandedListener>> {
        lock(&self.handed)
    }

    /// Keeps a second descriptor of a socket; one that was inherited is the program's to hand over.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn keep(
        &self,
        listener: &Listener,
        role: ListenerRole,
        address: Option<String>,
    ) -> Result<(), ConfigError> {
        let Some(address) = address else { return Ok(()) };
        let copy = listener.hand_over(role, address).map_err(|error| {
            ConfigError::new("listen", format!("cannot duplicate a socket: {error}"))
        })?;
        self.handed().extend(copy);
        Ok(())
    }

    /// Inode of the file of a unix socket that this server has made or taken over; 0, which no file has, if it has not.
    pub fn inode_of(&self, path: &Path) -> u64 {
        let handed = self.handed();
        let mut files = handed.iter().filter_map(|one| one.file.as_ref());
        files.find(|(own, _)| own == path).map_or(0, |(_, inode)| *inode)
    }

    /// Gives up the second descriptor of a listener of clients.
    pub fn forget(&self, address: Option<&str>) {
        let is_it = |one: &HandedListener| {
            one.role == ListenerRole::Clients && Some(one.address.as_str()) == address
        };
        self.handed().retain(|one| !is_it(one));
    }

    /// Reads the certificates of all listeners again, for new connections; false if none has any.
    ///
    /// # Errors
    /// Certificates are missing or invalid; the old ones of those stay in use.
    pub fn reload_certificates(&self) -> Result<bool, String> {
        let mut acceptors: Vec<Arc<TlsAcceptor>> = Vec::new();
        for acceptor in self.entries().into_iter().filter_map(|entry| entry.acceptor) {
            if !acceptors.iter().any(|known| Arc::ptr_eq(known, &acceptor)) {
                acceptors.push(acceptor);
            }
        }
        let wrong: Vec<String> =
            acceptors.iter().filter_map(|acceptor| acceptor.reload().err()).collect();
        if wrong.is_empty() { Ok(!acceptors.is_empty()) } else { Err(wrong.join("; ")) }
    }
}

/// An error about the listener of a section, with its name.
pub(crate) fn named(spec: Option<&ListenerSpec>, error: ConfigError) -> ConfigError {
    match spec {
        Some(spec) => ConfigError::new("listen", format!("{}: {}", spec.name, error.message)),
        None => error,
    }
}
