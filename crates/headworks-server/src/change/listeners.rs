//! Listeners and the rules of access of a reloaded configuration, and the method `listeners`.
//!
//! ```text
//!   narrow_access   old and new rules hold both          (then tenants and exports change)
//!   load_access     (with those of ctl, see `live_listeners`)
//!                   change listeners that stay -> open new ones -> close those that are gone -> new rules -> accept clients of new ones
//! ```
//!
//! So a client never sees what neither configuration shows it, whatever moves meanwhile. A listener is known by its address. Clients in
//! transmission are left alone.
//!
//! Rule: a listener that moves is closed when the new one is open, and stays where it is if that cannot be opened. Where both cannot be
//! open at once (one port, one path) the old one is closed first, and opened again if the new one fails.

use std::collections::BTreeMap;
use std::sync::Arc;

use headworks_core::{ConfigError, ShardId, WriteMode};

use super::LiveChanges;
use crate::clients::files::directory::{BY_START, DirectoryContext, OfferedExport};
use crate::clients::rings::front_end::{FoundExport, FrontEndContext};
use crate::control::tree::{ExportNode, lock};
use crate::exports::access::{AccessRules, AccessSpec, LISTENERS_MAX, ListenerKind, ListenerSpec};
use crate::exports::assemble::shown_name;
use crate::listen::listener_set::{Acceptors, DoorContexts, ListenerEntry, rules_for};
use crate::listen::{Address, ClientListener, dress_file};
use crate::reactor::messages::command::ShardCommand;
use crate::spec::{BaseDevice, Wrapper};
use crate::successor::handover::ListenerRole;
use headworks_control::{RpcFault, answers};

/// Result of a reload of listeners, one sentence each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessReport {
    /// Changes that took effect.
    pub changed: Vec<String>,
    /// Listeners that could not be opened or changed, and why.
    pub failed: Vec<String>,
}

/// The shard that accepts clients.
const ACCEPTS: ShardId = ShardId(0);

/// See [`Reloader::narrow_access`](crate::Reloader::narrow_access).
pub fn narrow_access(live: &LiveChanges, wanted: &AccessSpec) -> Result<(), String> {
    let wanted = &lock(&live.access).with(wanted);
    let mut stays = live.listeners.entries();
    stays.retain_mut(|entry| {
        entry.failed = None;
        let at = wanted.listeners.iter().find(|spec| entry.is_at(spec));
        // One that moves stays if it cannot.
        let new = at.or_else(|| wanted.listeners.iter().find(|spec| moves_to(entry, spec)));
        let is_own = entry.spec.is_none();
        entry.spec = new.cloned();
        is_own || entry.spec.is_some()
    });
    let mut all = live.listeners.rules();
    all.extend(rules(live, &stays, wanted));
    set_rules(live, all).map_err(RpcFault::into_message)
}

/// See [`Reloader::keep_access`](crate::Reloader::keep_access).
pub fn keep_access(live: &LiveChanges) {
    // A server that stops needs no rules.
    let _ = set_rules(live, live.listeners.rules());
}

/// See [`Reloader::access`](crate::Reloader::access).
pub fn load_access(live: &LiveChanges, configured: &AccessSpec) -> AccessReport {
    let mut access = lock(&live.access);
    let wanted = access.load(configured);
    apply_access(live, &wanted, access.removed())
}

/// Makes the listeners what is wanted, of which `ctl` has `removed` some; under the lock of [`LiveAccess`](super::live_listeners::LiveAccess).
pub(super) fn apply_access(
    live: &LiveChanges,
    wanted: &AccessSpec,
    removed: &[String],
) -> AccessReport {
    let mut report = AccessReport::default();
    if let Err(why) = wanted.check() {
        report.failed.push(why);
        return report;
    }
    // A directory that cannot take the place of another one before a restart takes none away.
    let waits = wanted.listeners.iter().any(|spec| needs_start(live, spec));
    let (mut moves, mut acceptors) = (Moves::default(), Acceptors::default());
    for entry in live.listeners.entries() {
        if let Some(spec) = &entry.spec {
            acceptors.put(spec.tls.clone(), entry.acceptor.clone());
        }
        let wanted = wanted.listeners.iter().find(|spec| entry.is_at(spec));
        match (&entry.spec, wanted) {
            (None, _) => moves.entries.push(entry),
            (Some(_), Some(new)) => {
                let changed = change_listener(live, entry, new, &mut acceptors, &mut report);
                moves.entries.push(changed);
            }
            (Some(spec), None)
                if waits
                    && matches!(spec.address, Address::Directory(_))
                    && !removed.contains(&spec.name) =>
            {
                report.failed.push(format!(
                    "listener {} stays until the server is restarted, which opens another directory for it",
                    entry.name
                ));
                moves.entries.push(entry);
            }
            (Some(_), None) => moves.leaving.push(entry),
        }
    }
    let is_new = |spec: &&ListenerSpec| !moves.entries.iter().any(|entry| entry.is_at(spec));
    let new: Vec<&ListenerSpec> = wanted.listeners.iter().filter(is_new).collect();
    let (late, first): (Vec<_>, Vec<_>) = new.into_iter().partition(|spec| moves.must_wait(spec));
    for spec in first {
        if let Err(why) = moves.open(live, spec, &mut acceptors) {
            moves.keep_old(spec, &why, removed, &mut report);
        }
    }
    moves.close(live, &mut report);
    for spec in late {
        if let Err(why) = moves.open(live, spec, &mut acceptors) {
            moves.reopen_old(live, spec, &why, &mut acceptors, &mut report);
        }
    }
    let Moves { entries, opened, .. } = moves;
    let rules = rules(live, &entries, wanted);
    if let Err(fault) = set_rules(live, rules.clone()) {
        // The server stops, and closes what was opened.
        report.failed.push(fault.into_message());
        return report;
    }
    live.listeners.set_rules(rules);
    live.listeners.set(entries);
    // After the rules that name them.
    for (entry, listener) in opened {
        let ListenerEntry { number, name, address, failed, .. } = entry;
        match tell_acceptor(live, ShardCommand::AddListener { number, listener }) {
            Ok(()) if failed.is_none() => {
                report.changed.push(format!("listener {name} listens at {address}"));
            }
            Ok(()) => {}
            Err(fault) => report.failed.push(fault.into_message()),
        }
    }
    report
}

/// Listeners while some are opened and others closed. Each number is that of one listener of `entries` and `leaving`.
#[derive(Default)]
struct Moves {
    /// Listeners of the next configuration.
    entries: Vec<ListenerEntry>,
    /// Open listeners that the next configuration has no more.
    leaving: Vec<ListenerEntry>,
    closed: Vec<ListenerEntry>,
    /// Open listeners of `entries` whose clients are not accepted yet.
    opened: Vec<(ListenerEntry, ClientListener)>,
}

impl Moves {
    /// Whether a new listener can be opened only when those that leave are closed.
    fn must_wait(&self, spec: &ListenerSpec) -> bool {
        let all = self.entries.len() + self.leaving.len();
        all >= LISTENERS_MAX || self.leaving.iter().any(|old| is_in_the_way(old, spec))
    }

    fn open(
        &mut self,
        live: &LiveChanges,
        spec: &ListenerSpec,
        acceptors: &mut Acceptors,
    ) -> Result<(), String> {
        let beside: Vec<_> =
            self.entries.iter().chain(&self.leaving).map(|one| one.number).collect();
        let (entry, listener) = open_listener(live, &beside, spec, acceptors)?;
        self.entries.push(entry.clone());
        self.opened.push((entry, listener));
        Ok(())
    }

    /// A new listener could not be opened: the one that was to move there stays, unless `ctl` has removed it. It offers what both offer.
    fn keep_old(
        &mut self,
        spec: &ListenerSpec,
        why: &str,
        removed: &[String],
        report: &mut AccessReport,
    ) {
        let mut said = format!("listener {} not opened: {why}", spec.name);
        let stays = |old: &ListenerEntry| {
            moves_to(old, spec) && !removed.iter().any(|name| **name == *old.name)
        };
        if let Some(at) = self.leaving.iter().position(stays) {
            let mut old = self.leaving.remove(at);
            said += &format!("; it stays at {}", old.address);
            old.failed = Some(spec.clone());
            self.entries.push(old);
        }
        report.failed.push(said);
    }

    /// Closes the listeners that leave.
    fn close(&mut self, live: &LiveChanges, report: &mut AccessReport) {
        for entry in std::mem::take(&mut self.leaving) {
            match close_listener(live, &entry) {
                Ok(()) => {
                    report.changed.push(format!("listener {} was removed", shown_place(&entry)));
                    self.closed.push(entry);
                }
                Err(why) => {
                    report.failed.push(format!("listener {} not removed: {why}", entry.name));
                    self.entries.push(entry);
                }
            }
        }
    }

    /// A new listener could not be opened, for which others had been closed: those are opened again.
    fn reopen_old(
        &mut self,
        live: &LiveChanges,
        spec: &ListenerSpec,
        why: &str,
        acceptors: &mut Acceptors,
        report: &mut AccessReport,
    ) {
        let mut said = format!("listener {} not opened: {why}", spec.name);
        let concerns = |old: &ListenerEntry| is_in_the_way(old, spec) || moves_to(old, spec);
        let (again, closed) =
            std::mem::take(&mut self.closed).into_iter().partition::<Vec<_>, _>(concerns);
        self.closed = closed;
        for (old, own) in again.iter().filter_map(|old| Some((old, old.spec.as_ref()?))) {
            let place = shown_place(old);
            match self.open(live, own, acceptors) {
                Ok(()) => {
                    let removed = format!("listener {place} was removed");
                    report.changed.retain(|what| *what != removed);
                    said += &format!("; {place} stays");
                    let failed = Some(spec.clone());
                    let count = self.entries.len();
                    self.entries[count - 1].failed.clone_from(&failed);
                    let count = self.opened.len();
                    self.opened[count - 1].0.failed = failed;
                }
                Err(why) => said += &format!("; {place} cannot be opened again: {why}"),
            }
        }
        report.failed.push(said);
    }
}

/// Name of a listener, and its address if that is not its name.
fn shown_place(entry: &ListenerEntry) -> String {
    match *entry.name == *entry.address {
        true => entry.address.clone(),
        false => format!("{} at {}", entry.name, entry.address),
    }
}

/// Whether a listener becomes `new`, at another address: both have one name or, named by their addresses, one purpose.
fn moves_to(old: &ListenerEntry, new: &ListenerSpec) -> bool {
    old.spec.as_ref().is_some_and(|spec| {
        let is_unnamed = |spec: &ListenerSpec| spec.address.key().as_ref() == Some(&spec.name);
        let is_same =
            (spec.kind, &spec.exports, spec.tenant) == (new.kind, &new.exports, new.tenant);
        spec.name == new.name || is_same && is_unnamed(spec) && is_unnamed(new)
    })
}

/// Whether a listener must be closed before `new` can be opened.
fn is_in_the_way(old: &ListenerEntry, new: &ListenerSpec) -> bool {
    let Some(spec) = &old.spec else { return false };
    match (&spec.address, &new.address) {
        (Address::Tcp(own), Address::Tcp(other)) => {
            let is_any = own.ip().is_unspecified() || other.ip().is_unspecified();
            old.port == Some(other.port()) && (is_any || own.ip() == other.ip())
        }
        (own, other) => own.key() == other.key(),
    }
}

/// Gives a listener what is configured now; returns what it is then. One whose certificates cannot be read, or whose file cannot
/// be changed, offers what both the old and the new configuration offer: the rest of the new one may be meant for them.
fn change_listener(
    live: &LiveChanges,
    mut entry: ListenerEntry,
    new: &ListenerSpec,
    acceptors: &mut Acceptors,
    report: &mut AccessReport,
) -> ListenerEntry {
    entry.failed = None;
    if entry.spec.as_ref() == Some(new) {
        return entry;
    }
    let dressed = match (&entry.spec, &new.address) {
        (Some(old), Address::Unix { path, mode })
            if (&old.address, old.owner) != (&new.address, new.owner) =>
        {
            let inode = live.listeners.inode_of(path);
            dress_file(path, Some(inode), *mode, new.owner)
        }
        _ => Ok(()),
    };
    let acceptor =
        dressed.and_then(|()| acceptors.get(&new.tls).map_err(|error| error.to_string()));
    let told = acceptor.and_then(|acceptor| {
        let (number, name): (_, Arc<str>) = (entry.number, new.name.as_str().into());
        let order = ShardCommand::ChangeListener {
            number,
            name: Arc::clone(&name),
            acceptor: acceptor.clone(),
        };
        tell_acceptor(live, order).map_err(RpcFault::into_message).map(|()| (name, acceptor))
    });
    match told {
        Ok((name, acceptor)) => {
            report.changed.push(format!("listener {name} was changed"));
            (entry.name, entry.acceptor, entry.spec) = (name, acceptor, Some(new.clone()));
        }
        Err(why) => {
            let what = "it offers what both the old and the new configuration offer";
            report.failed.push(format!("listener {} not changed: {why}; {what}", entry.name));
            entry.failed = Some(new.clone());
        }
    }
    entry
}

fn close_listener(live: &LiveChanges, entry: &ListenerEntry) -> Result<(), String> {
    let order = ShardCommand::RemoveListener { number: entry.number };
    tell_acceptor(live, order).map_err(RpcFault::into_message)?;
    let key = entry.spec.as_ref().and_then(|spec| spec.address.key());
    live.listeners.forget(key.as_deref());
    Ok(())
}

/// Whether a listener is a directory that the helper which mounts does not know, because it was started without it.
fn needs_start(live: &LiveChanges, spec: &ListenerSpec) -> bool {
    let known = |path| live.mounts.as_ref().is_some_and(|mounts| mounts.knows(path));
    matches!(&spec.address, Address::Directory(path) if !known(path))
}

/// Opens a new listener, and starts its thread, beside those whose numbers are `others`.
fn open_listener(
    live: &LiveChanges,
    others: &[u16],
    spec: &ListenerSpec,
    acceptors: &mut Acceptors,
) -> Result<(ListenerEntry, ClientListener), String> {
    if needs_start(live, spec) {
        return Err(BY_START.to_owned());
    }
    let acceptor = acceptors.get(&spec.tls).map_err(|error| error.to_string())?;
    let is_free = |number: &u16| !others.contains(number);
    let number = (0..LISTENERS_MAX as u16).find(is_free);
    let number = number.ok_or_else(|| format!("a server has at most {LISTENERS_MAX}"))?;
    let said = |error: ConfigError| error.message.to_string();
    let (entry, listener) = ListenerEntry::open(number, spec, acceptor).map_err(said)?;
    let (role, key) = (ListenerRole::Clients, spec.address.key());
    live.listeners.keep(&listener, role, key.clone()).map_err(said)?;
    // Before anything is closed for it.
    let listener = entry.client_listener(listener, &door_contexts(live));
    let listener = listener.inspect_err(|_| live.listeners.forget(key.as_deref())).map_err(said)?;
    Ok((entry, listener))
}

/// What the threads of listeners that speak no NBD have of the server.
pub fn door_contexts(live: &LiveChanges) -> DoorContexts {
    DoorContexts { front_ends: front_ends(live), directories: directories(live) }
}

fn directories(live: &LiveChanges) -> DirectoryContext {
    let (tree, watched) = (Arc::clone(&live.tree), Arc::clone(&live.tree));
    let exports = move || {
        let offered = |node: &ExportNode| OfferedExport {
            id: node.id,
            home: node.home,
            name: node.name.clone(),
        };
        tree.current().exports.iter().map(offered).collect()
    };
    DirectoryContext {
        shared: Arc::clone(live.shards.shared()),
        limits: live.client_limits,
        mounts: live.mounts.clone(),
        exports: Arc::new(exports),
        watch: Arc::new(move |told| watched.watch(told)),
        served: Arc::clone(&live.directories),
    }
}

/// What the threads of vhost-user listeners have of the server.
fn front_ends(live: &LiveChanges) -> FrontEndContext {
    let (shards, tree) = (Arc::clone(&live.shards), Arc::clone(&live.tree));
    let exports = Arc::clone(&lock(&live.inventory).exports);
    let find = move |name: &str| {
        let tree = tree.current();
        let node = tree.exports.iter().find(|node| node.shown_name() == name)?;
        // A write that is answered is in the image, or in memory that the next process has. A device or a wrapper in memory dies with the
        // process, and a remote one may end later what a dead process had asked.
        let is_through = matches!(node.mode, WriteMode::None | WriteMode::Writethrough);
        let has_file = exports.lock().get(&node.id.0).is_some_and(|export| {
            let spec = &export.spec.spec;
            let is_file = matches!(
                spec.base,
                BaseDevice::File { .. } | BaseDevice::Overlay { .. } | BaseDevice::Image { .. }
            );
            is_file && !spec.wrappers.iter().any(Wrapper::holds_writes)
        });
        let outlives = has_file && (is_through || shards.keeper().memory().is_some());
        Some(FoundExport { id: node.id, home: node.home, outlives })
    };
    FrontEndContext {
        shared: Arc::clone(live.shards.shared()),
        limits: live.client_limits,
        find: Arc::new(find),
    }
}

/// The rules for these listeners.
fn rules(
    live: &LiveChanges,
    entries: &[ListenerEntry],
    access: &AccessSpec,
) -> Vec<Arc<AccessRules>> {
    let (tree, configured) = (live.tree.current(), lock(&live.configured));
    let served = tree.exports.iter().map(|export| export.name.as_str());
    let absent = tree.absent.iter().map(|absent| absent.spec.name.as_str());
    let configured = configured.iter().map(|export| export.name.as_str());
    rules_for(entries, access, served.chain(absent).chain(configured))
}

fn set_rules(live: &LiveChanges, rules: Vec<Arc<AccessRules>>) -> Result<(), RpcFault> {
    tell_acceptor(live, ShardCommand::SetAccess { rules })
}

/// Gives a command, which is not refused, to the shard that accepts clients.
fn tell_acceptor(live: &LiveChanges, command: ShardCommand) -> Result<(), RpcFault> {
    let done = live.shards.command(ACCEPTS, command)?;
    done.map(drop).map_err(|error| super::refused(&error))
}

/// The method `listeners`: one row for each. `clients` has the number of connections by listener.
pub fn listeners(
    live: &LiveChanges,
    clients: &BTreeMap<Arc<str>, usize>,
) -> Vec<answers::Listener> {
    let (tree, entries) = (live.tree.current(), live.listeners.entries());
    let row = |entry: &ListenerEntry| {
        let tenant_of = |node: &ExportNode| live.settings.tenant_of(node.id);
        let served = tree.exports.iter();
        let served = served.filter(|node| entry.offers(&node.name, tenant_of(node)));
        let tls = entry.acceptor.as_ref().map_or("off", |one| match one.is_required() {
            true => "require",
            false => "on",
        });
        let verifies_clients = entry.acceptor.as_ref().is_some_and(|one| one.verifies_peers());
        let kind = entry.spec.as_ref().map_or(ListenerKind::Nbd, |spec| spec.kind);
        answers::Listener {
            name: entry.name.as_ref().to_owned(),
            kind: kind.word().to_owned(),
            address: entry.address.clone(),
            tenant: entry.spec.as_ref().and_then(|spec| Some(spec.tenant?.to_string())),
            exports: served.map(|node| shown_name(&node.name).to_owned()).collect(),
            connections: clients.get(&entry.name).copied().unwrap_or(0),
            tls: tls.to_owned(),
            verifies_clients,
        }
    };
    entries.iter().map(row).collect()
}
