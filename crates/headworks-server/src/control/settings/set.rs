//! `set` of one or several values, each named by a path or by a pattern of paths.
//!
//! ```text
//!   words --plan--> changes (parsed) --check--> every value is accepted --apply--> shards, then the values kept here
//!             `-- a wrong word, name or value changes nothing --'
//! ```
//!
//! Limits of one target, and values of one tenant, are one change: they are checked together and take effect together. What only a
//! device can tell is found by applying; the error then names what was set before it.

use headworks_core::limits::Limits;
use headworks_core::options::Tunable;
use headworks_core::writeback::DirtyTunable;
use headworks_core::{DeviceId, ExportId, Ioprio, TenantId};
use serde_json::{Map, Value, json};

use super::{LIMITS, LimitFault, Settings, fixed};
use crate::control::tree::{ExportNode, Leaf, Tree, lock, with_hyphens};
use crate::spec::cache_part::check_minimums;
use crate::spec::limit_words::{cgroup_max, limit_word, set_cgroup_max, set_limit};
use crate::spec::name_pattern::{fits, is_pattern};
use crate::spec::option_table::OptionTable;
use crate::spec::tenant::{NONE, TenantName, TenantOption, TenantOptions};
use crate::spec::units::{CLASSES, parse_ioprio};
use crate::spec::{ExportOption, ExportOptions};
use headworks_control::methods::Values;
use headworks_control::{RpcFault, RpcResult};
use headworks_core::limits::LimitTarget;

/// Most paths of one request, so that it ends in a time that an operator waits for.
const PATHS_MAX: usize = 1024;
/// Most paths that an error names.
const NAMED_MAX: usize = 4;

/// The words of one limit.
enum LimitWord {
    /// A key and its value.
    Key(&'static str, String),
    /// A line of cgroup's `io.max`.
    Cgroup(String),
}

/// A value whose word was understood.
enum OneValue {
    Tunable(DeviceId, Tunable, u64),
    WriteBack(DirtyTunable, u64),
    Export(Box<NewValue>),
    ConnectionIoprio(u32, Ioprio),
}

/// A new value of an option of an export.
struct NewValue {
    export: ExportId,
    option: ExportOption,
    /// It is said and shown in the form of a cgroup.
    in_cgroup: bool,
    /// Options with this value.
    wanted: ExportOptions,
}

/// The word of an option of a tenant.
struct TenantWord {
    path: String,
    option: TenantOption,
    in_cgroup: bool,
    word: String,
}

/// What takes effect at once.
enum Change {
    One(String, OneValue),
    Limits(LimitTarget, Vec<(String, LimitWord)>),
    Tenant(TenantId, Vec<TenantWord>),
}

fn invalid(path: &str, message: &str) -> RpcFault {
    RpcFault::refused("EINVAL", format!("{path}: {message}"))
}

impl Settings {
    /// Sets the value at `path`; returns the value in force.
    ///
    /// # Errors
    /// Why the value was refused.
    pub fn set(&self, path: &str, value: &str) -> Result<Values, RpcFault> {
        self.set_all(&[(path.to_owned(), value.to_owned())])
    }

    /// Sets values at paths or patterns of paths; returns the values in force by path.
    ///
    /// # Errors
    /// Why a value was refused; then none was set, unless a device refused it.
    pub fn set_all(&self, wanted: &[(String, String)]) -> Result<Values, RpcFault> {
        let tree = self.tree.current();
        let changes = self.plan(&tree, wanted)?;
        for (index, change) in changes.iter().enumerate() {
            self.check(&tree, change, &changes[..index])?;
        }
        self.check_parts(&changes)?;
        let mut set = Map::new();
        for change in &changes {
            match self.apply(&tree, change) {
                Ok(rows) => set.extend(rows),
                Err(fault) => return Err(after(fault, &set)),
            }
        }
        Ok(set.into_iter().collect())
    }

    /// Finds the values and parses the words.
    fn plan(&self, tree: &Tree, wanted: &[(String, String)]) -> Result<Vec<Change>, RpcFault> {
        let (mut changes, mut seen): (Vec<Change>, Vec<(Leaf, &str)>) = Default::default();
        for (path, value) in wanted {
            for (path, leaf) in find(tree, path.trim_matches('/'))? {
                // One value has several names, such as the queue of exports that share a device.
                if seen.contains(&(leaf, value)) {
                    continue;
                }
                if seen.len() == PATHS_MAX {
                    let message = format!("at most {PATHS_MAX} values are set at once");
                    return Err(RpcFault::refused("E2BIG", message));
                }
                seen.push((leaf, value));
                add(&mut changes, path, leaf, value)?;
            }
        }
        Ok(changes)
    }

    /// Checks a change beside those before it.
    fn check(&self, tree: &Tree, change: &Change, earlier: &[Change]) -> Result<(), RpcFault> {
        match change {
            Change::Limits(target, words) => set_limits(&mut self.limits(*target), words)
                .map_err(|message| limit_fault(LimitFault::Invalid(message))),
            Change::Tenant(tenant, words) => {
                let options = self.changed_options(*tenant, words)?;
                let path = words.last().map_or("", |word| &word.path);
                self.check_tenant_target(tree, path, (*tenant, options))
            }
            Change::One(path, OneValue::Tunable(device, tunable, _)) => {
                let is_decided = |change: &Change| matches!(change, Change::One(_, OneValue::Tunable(of, Tunable::Scheduler, _)) if of == device);
                match earlier.iter().any(is_decided) {
                    true => Ok(()),
                    false => self.check_depth(tree, path, (*device, *tunable)),
                }
            }
            Change::One(path, OneValue::WriteBack(tunable, value)) => {
                self.check_dirty(path, *tunable, *value).map(drop)
            }
            Change::One(path, OneValue::Export(value)) => {
                self.check_option(tree, path, value, earlier)
            }
            Change::One(..) => Ok(()),
        }
    }

    /// Checks a value of an export beside the changes before it.
    fn check_option(
        &self,
        tree: &Tree,
        path: &str,
        new: &NewValue,
        earlier: &[Change],
    ) -> Result<(), RpcFault> {
        let NewValue { export, option, wanted, .. } = new;
        match option {
            ExportOption::Tenant => lock(&self.tenants).named(wanted.tenant).map(drop),
            ExportOption::LatencyTarget => {
                let device = |id| tree.entry(id).map(|entry| entry.device);
                // What a device can do is measured, so it is asked once.
                let is_known = earlier.iter().any(|change| match change {
                    Change::One(_, OneValue::Export(other)) if other.option == *option => {
                        option.is_same(&other.wanted, wanted)
                            && device(other.export) == device(*export)
                    }
                    _ => false,
                });
                match is_known {
                    true => Ok(()),
                    false => self.check_target(tree, path, wanted.latency_target_us, |entry| {
                        entry.id == *export
                    }),
                }
            }
            _ => Ok(()),
        }
    }

    /// Checks the parts of the cache that tenants have after all changes.
    fn check_parts(&self, changes: &[Change]) -> Result<(), RpcFault> {
        let (mut changed, mut parts) = (Vec::new(), Vec::new());
        for change in changes {
            if let Change::Tenant(tenant, words) = change {
                let part = self.changed_options(*tenant, words)?.part;
                if part != self.tenant_options(*tenant).part {
                    part.check().map_err(|message| RpcFault::refused("EINVAL", message))?;
                }
                changed.push(*tenant);
                parts.push(part);
            }
        }
        let is_changed = parts.iter().any(|part| part.min > 0);
        let tenants = self.tenants();
        let others = tenants.iter().filter(|(id, _)| !changed.contains(id));
        parts.extend(others.map(|(_, entry)| entry.now.part));
        let cache = self.cache_bytes.load(std::sync::atomic::Ordering::Relaxed);
        match is_changed {
            true => check_minimums(parts.into_iter(), cache)
                .map_err(|message| RpcFault::refused("EINVAL", message)),
            false => Ok(()),
        }
    }

    /// Options of a tenant after a change.
    fn changed_options(
        &self,
        tenant: TenantId,
        words: &[TenantWord],
    ) -> Result<TenantOptions, RpcFault> {
        let mut options = self.tenant_options(tenant);
        for TenantWord { path, option, in_cgroup, word } in words {
            let set = option.set(&mut options, word, *in_cgroup);
            set.map_err(|message| invalid(path, &message).accepts(option.row().accepted))?;
        }
        Ok(options)
    }

    fn check_tenant_target(
        &self,
        tree: &Tree,
        path: &str,
        (tenant, options): (TenantId, TenantOptions),
    ) -> Result<(), RpcFault> {
        let target_us = options.latency_target_us;
        if target_us == self.tenant_options(tenant).latency_target_us {
            return Ok(());
        }
        // Exports with a target of their own have that one.
        self.check_target(tree, path, target_us, |entry| {
            let own = self.of(entry.id);
            own.tenant == tenant && own.options.latency_target_us == 0
        })
    }

    /// Puts a change in force; returns the new values by path.
    fn apply(&self, tree: &Tree, change: &Change) -> Result<Map<String, Value>, RpcFault> {
        let row = |path: &str, value: Value| [(path.to_owned(), value)].into_iter().collect();
        match change {
            Change::Limits(target, words) => {
                let limits = self
                    .change_limits(*target, |limits| set_limits(limits, words))
                    .map_err(limit_fault)?;
                let shown = |word: &LimitWord| match word {
                    LimitWord::Key(key, _) => limit_word(&limits, key),
                    LimitWord::Cgroup(_) => cgroup_max(&limits),
                };
                Ok(words.iter().map(|(path, word)| (path.clone(), shown(word).into())).collect())
            }
            Change::Tenant(tenant, words) => {
                let options = self.changed_options(*tenant, words)?;
                self.set_tenant_options(*tenant, options)?;
                let row = |new: &TenantWord| {
                    (new.path.clone(), new.option.value(&options, new.in_cgroup))
                };
                Ok(words.iter().map(row).collect())
            }
            Change::One(_, OneValue::Export(new)) if new.option == ExportOption::Tenant => {
                self.apply_tenant(tree, new.export, new.wanted.tenant)
            }
            Change::One(path, value) => Ok(row(path, self.apply_one(tree, path, value)?)),
        }
    }

    fn apply_one(&self, tree: &Tree, path: &str, value: &OneValue) -> RpcResult {
        Ok(match value {
            &OneValue::Tunable(device, tunable, value) => {
                self.set_tunable(tree, path, (device, tunable), value)?
            }
            &OneValue::WriteBack(tunable, value) => self.set_dirty(path, tunable, value)?,
            OneValue::Export(new) => {
                self.put_option(new.export, new.option, &new.wanted)?;
                new.option.value(&new.wanted, new.in_cgroup)
            }
            &OneValue::ConnectionIoprio(id, ioprio) => {
                self.set_connection_ioprio(path, id, ioprio)?;
                ioprio.to_string().into()
            }
        })
    }

    /// Moves an export, and with it all exports of its image, which belong to one tenant.
    fn apply_tenant(
        &self,
        tree: &Tree,
        export: ExportId,
        name: Option<TenantName>,
    ) -> Result<Map<String, Value>, RpcFault> {
        let volume = tree.entry(export).map(|entry| entry.volume);
        let same = tree.exports.iter().filter(|entry| Some(entry.volume) == volume);
        let exports: Vec<&ExportNode> = same.collect();
        let ids: Vec<ExportId> = exports.iter().map(|entry| entry.id).collect();
        self.set_export_tenant(&ids, name)?;
        let shown = name.map_or(NONE.to_owned(), |name| name.to_string());
        let path = |entry: &ExportNode| format!("exports/{}/tenant", entry.shown_name());
        Ok(exports.into_iter().map(|entry| (path(entry), json!(shown))).collect())
    }
}

/// The values that a path or a pattern names; at least one.
fn find(tree: &Tree, path: &str) -> Result<Vec<(String, Leaf)>, RpcFault> {
    if let Some(rest) = path.strip_prefix("connections/") {
        let id = rest.strip_suffix("/ioprio").and_then(|id| id.parse().ok());
        let leaf = id.map(Leaf::Connection).ok_or_else(|| tree.no_entry(path))?;
        return Ok(vec![(path.to_owned(), leaf)]);
    }
    let below = tree.leaves(path);
    match below.first() {
        Some((name, leaf)) if name == path => return Ok(vec![(name.clone(), *leaf)]),
        Some((name, _)) => {
            let path = if path.is_empty() { "this path" } else { path };
            let message = format!("{path} has names below it, such as {name}");
            return Err(RpcFault::refused("EISDIR", message));
        }
        None if !is_pattern(path) => return Err(tree.no_entry(path)),
        None => {}
    }
    let mut all = tree.leaves("");
    if path.starts_with("exports/") && path.contains("/queue/") {
        let queue = |entry: &ExportNode| format!("exports/{}/queue", entry.shown_name());
        all.extend(tree.exports.iter().flat_map(|entry| tree.leaves(&queue(entry))));
    }
    let is_old = with_hyphens(path).filter(|_| !all.iter().any(|(name, _)| fits(name, path)));
    let pattern = is_old.as_deref().unwrap_or(path);
    all.retain(|(name, _)| fits(name, pattern));
    if all.is_empty() {
        let message = format!("nothing fits {path}; {}", tree.advice(path));
        return Err(RpcFault::refused("ENOENT", message));
    }
    Ok(all)
}

/// Adds a value to the change that it belongs to, or as a change of its own.
fn add(changes: &mut Vec<Change>, path: String, leaf: Leaf, value: &str) -> Result<(), RpcFault> {
    match leaf {
        Leaf::Limit(target, key) => {
            add_limit(changes, target, (path, LimitWord::Key(key, value.to_owned())));
        }
        Leaf::IoMax(target) => {
            add_limit(changes, target, (path, LimitWord::Cgroup(value.to_owned())));
        }
        Leaf::Tenant(tenant, option, in_cgroup) => {
            let word = TenantWord { path, option, in_cgroup, word: value.to_owned() };
            let same = changes.iter_mut().find_map(|change| match change {
                Change::Tenant(of, words) if *of == tenant => Some(words),
                _ => None,
            });
            match same {
                Some(words) => words.push(word),
                None => changes.push(Change::Tenant(tenant, vec![word])),
            }
        }
        leaf => {
            let value = parse(&path, leaf, value)?;
            changes.push(Change::One(path, value));
        }
    }
    Ok(())
}

fn add_limit(changes: &mut Vec<Change>, target: LimitTarget, word: (String, LimitWord)) {
    let same = changes.iter_mut().find_map(|change| match change {
        Change::Limits(of, words) if *of == target => Some(words),
        _ => None,
    });
    match same {
        Some(words) => words.push(word),
        None => changes.push(Change::Limits(target, vec![word])),
    }
}

/// Understands the word of a value that is a change of its own.
fn parse(path: &str, leaf: Leaf, value: &str) -> Result<OneValue, RpcFault> {
    let invalid = |message: String| invalid(path, &message);
    Ok(match leaf {
        Leaf::Tunable(_, tunable) if !tunable.is_live() => return Err(fixed(path)),
        Leaf::Tunable(device, tunable) => {
            let parsed = tunable.parse(value).map_err(|error| {
                invalid(error.message.to_string()).accepts(tunable.accepted())
            })?;
            OneValue::Tunable(device, tunable, parsed)
        }
        Leaf::Dirty(tunable) => {
            let parsed = match tunable.is_bytes() {
                true => crate::spec::units::parse_size(value),
                false => tunable.parse(value).map_err(|error| error.message.to_string()),
            };
            let parsed = parsed.map_err(|message| invalid(message).accepts(tunable.accepted()))?;
            OneValue::WriteBack(tunable, parsed)
        }
        Leaf::Export(export, option, in_cgroup) if option.is_live() => {
            let mut wanted = ExportOptions::default();
            option.set(&mut wanted, value, in_cgroup).map_err(|message| {
                invalid(message).accepts(option.row().accepted)
            })?;
            wanted.tenant = wanted.tenant.filter(|name| !name.is_none());
            OneValue::Export(Box::new(NewValue { export, option, in_cgroup, wanted }))
        }
        Leaf::Connection(id) => OneValue::ConnectionIoprio(id, class(path, value)?),
        Leaf::Device(_)
        | Leaf::ElevatorState(_)
        | Leaf::IoStat(_)
        | Leaf::TenantIoStat(_)
        | Leaf::ReadOnly(_)
        | Leaf::Export(..)
        | Leaf::TenantExports(_)
        | Leaf::TenantDirty(_)
        | Leaf::TenantCached(_)
        // These are changes with others of their target or tenant.
        | Leaf::Limit(..)
        | Leaf::IoMax(_)
        | Leaf::Tenant(..) => return Err(fixed(path)),
    })
}

fn class(path: &str, value: &str) -> Result<Ioprio, RpcFault> {
    parse_ioprio(value).map_err(|message| invalid(path, &message).accepts(CLASSES))
}

/// Sets the words of limits and checks them together; an error names the path.
fn set_limits(limits: &mut Limits, words: &[(String, LimitWord)]) -> Result<(), String> {
    for (path, word) in words {
        let set = match word {
            LimitWord::Key(key, value) => set_limit(limits, key, value),
            LimitWord::Cgroup(line) => set_cgroup_max(limits, line),
        };
        set.map_err(|message| format!("{path}: {message}"))?;
    }
    let path = words.last().map_or("", |(path, _)| path);
    limits.validate().map_err(|error| format!("{path}: {error}"))
}

fn limit_fault(fault: LimitFault) -> RpcFault {
    match fault {
        LimitFault::Invalid(message) => RpcFault::refused("EINVAL", message).accepts(LIMITS),
        LimitFault::Shards(fault) => fault,
    }
}

/// The error of a change after others took effect.
fn after(fault: RpcFault, set: &Map<String, Value>) -> RpcFault {
    if set.is_empty() {
        return fault;
    }
    let mut names: Vec<&str> = set.keys().take(NAMED_MAX).map(String::as_str).collect();
    let more = format!("{} more", set.len().saturating_sub(NAMED_MAX));
    if set.len() > NAMED_MAX {
        names.push(&more);
    }
    fault.with_note(&format!("set before it: {}", names.join(", ")))
}
