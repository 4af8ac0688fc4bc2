//! The methods: what each takes, whom it asks, what it answers.
//!
//! Weights and classes of exports and the options of write-back are kept here, because only this changes them; everything else is asked of the shard that
//! has it, each question with a deadline. One lock orders changes, so that the last `set` of a name is what every shard has.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use headworks_core::options::Tunable;
use headworks_core::stats::TurnStats;
use headworks_core::writeback::{DirtyOptions, DirtyTunable};
use headworks_core::{Control, DeviceId, ExportConfig, ExportId, IoError, Ioprio, ShardId, Status};
use serde_json::{Value, json};

use super::changes::LiveChanges;
use super::latency;
use super::log_level::{LogLevel, log_level};
use super::report;
use super::rpc::{Params, RpcFault};
use super::tree::{DeviceNode, ExportNode, Leaf, Tree, device_name, is_within};
use crate::assemble::cache_shares::divided;
use crate::messages::ControlMessage;
use crate::messages::query::{
    CacheReport, ConnectionReport, ControlQuery, DeviceReport, VolumeReport,
};
use crate::shared::ServerShared;
use crate::units::{parse_ioprio, parse_size, parse_weight};

/// A shard that turns at all answers within a turn; one that does not is stuck in a device or out of CPU.
const ANSWER: Duration = Duration::from_secs(5);
/// A switch ends when the commands in flight have ended or were given up, and this much later at most.
const SWITCH_MARGIN: Duration = Duration::from_secs(5);

mod statistics;

/// Ways to write a class, for errors.
const CLASSES: &str = "rt, be or idle, with a level of 0 to 7: be:0";

/// An export's share and class, as they are now.
#[derive(Clone, Copy, Debug)]
pub struct ExportSettings {
    /// Its weight.
    pub weight: u16,
    /// The class of its clients.
    pub ioprio: Ioprio,
}

/// What all clients of the control socket talk to.
pub struct ControlService {
    shared: Arc<ServerShared>,
    shards: u16,
    tree: Mutex<Arc<Tree>>,
    /// By [`ExportId`].
    settings: Mutex<Vec<ExportSettings>>,
    /// Of the whole server; bytes are divided among the shards that cache.
    dirty: Mutex<DirtyOptions>,
    /// Held by `set` of what is kept in several places.
    changing: Mutex<()>,
    deadlines: Deadlines,
    started: std::time::Instant,
    live: LiveChanges,
    log_level: Option<LogLevel>,
}

/// How long shards are waited for.
struct Deadlines {
    /// For an answer.
    answer: Duration,
    /// For a switch, beyond the device's time-out.
    switch: Duration,
}

/// What a method answers.
pub type RpcResult = Result<Value, RpcFault>;

impl ControlService {
    /// A service for the shards behind `shared`.
    pub fn new(
        shared: Arc<ServerShared>,
        shards: u16,
        tree: Tree,
        settings: Vec<ExportSettings>,
        dirty: DirtyOptions,
        live: LiveChanges,
    ) -> Self {
        Self {
            shared,
            shards,
            tree: Mutex::new(Arc::new(tree)),
            settings: Mutex::new(settings),
            dirty: Mutex::new(dirty),
            changing: Mutex::new(()),
            deadlines: Deadlines { answer: ANSWER, switch: SWITCH_MARGIN },
            started: std::time::Instant::now(),
            live,
            log_level: None,
        }
    }

    /// With what shows and sets how much is logged.
    pub fn with_log_level(self, log_level: Option<LogLevel>) -> Self {
        Self { log_level, ..self }
    }

    /// Carries a method out.
    ///
    /// # Errors
    /// What the client is told.
    pub fn call(&self, method: &str, params: &Params) -> RpcResult {
        let takes = |names: &[&str]| match params.keys().find(|key| !names.contains(&key.as_str()))
        {
            None => Ok(()),
            Some(key) if names.is_empty() => {
                Err(RpcFault::params(format!("{method} takes no parameters, and no `{key}`")))
            }
            Some(key) => {
                let names = names.join(" and ");
                Err(RpcFault::params(format!("{method} takes no `{key}`; it takes {names}")))
            }
        };
        match method {
            "get" => {
                takes(&["path"])?;
                self.get(optional_text(params, "path")?.unwrap_or_default())
            }
            "set" => {
                takes(&["path", "value"])?;
                self.set(text(params, "path")?, &word(params, "value")?)
            }
            "stats" => takes(&[]).and_then(|()| self.stats()),
            "diskstats" => takes(&[]).and_then(|()| self.diskstats()),
            "connections" => takes(&[]).and_then(|()| self.connections()),
            "discard-failed" => {
                takes(&["export", "confirm"])?;
                let confirm = match params.get("confirm") {
                    None => false,
                    Some(Value::Bool(confirm)) => *confirm,
                    Some(_) => return Err(RpcFault::params("confirm is true or false")),
                };
                self.discard_failed(text(params, "export")?, confirm)
            }
            "acknowledge" => Err(RpcFault::method(
                "there is no method `acknowledge`; `discard-failed` discards the blocks of an export that could not be written",
            )),
            "histograms" => {
                takes(&["export"])?;
                self.histograms(optional_text(params, "export")?)
            }
            "why" => {
                takes(&["export"])?;
                self.why(text(params, "export")?)
            }
            "failed" => {
                takes(&["export"])?;
                self.failed(text(params, "export")?)
            }
            "exports" => takes(&[]).and_then(|()| self.exports()),
            "add" => takes(&["spec", "read_only", "cwd"]).and_then(|()| self.add_by_words(params)),
            "remove" => takes(&["export", "force"]).and_then(|()| self.remove_by_words(params)),
            "resize" => takes(&["export", "size"]).and_then(|()| self.resize_by_words(params)),
            "drain" => takes(&["export"]).and_then(|()| self.drain(params)),
            "log-level" => {
                takes(&["level"])?;
                log_level(self.log_level.as_ref(), optional_text(params, "level")?)
            }
            other => Err(RpcFault::method(format!(
                "there is no method `{other}`; there are get, set, stats, histograms, why, diskstats, connections, failed, discard-failed, exports, add, remove, resize, drain and log-level"
            ))),
        }
    }

    fn get(&self, path: &str) -> RpcResult {
        let (path, tree) = (path.trim_matches('/'), self.tree());
        let mut values = Params::new();
        let mut device_before: Option<(DeviceId, DeviceReport)> = None;
        let fact = |export, show: fn(&ExportNode) -> Value| tree.entry(export).map(show);
        for (name, leaf) in tree.leaves(path) {
            let value = match leaf {
                Leaf::Tunable(device, tunable) => {
                    if device_before.as_ref().is_none_or(|(before, _)| *before != device) {
                        device_before =
                            self.device_if_there(&tree, device)?.map(|report| (device, report));
                    }
                    match &device_before {
                        Some((_, report)) => report::value(tunable, tunable.get(&report.options)),
                        None => Value::Null,
                    }
                }
                Leaf::Device(export) => {
                    fact(export, |entry| device_name(entry.device).into()).into()
                }
                Leaf::ReadOnly(export) => {
                    fact(export, |entry| u8::from(entry.read_only).into()).into()
                }
                Leaf::Weight(export) => self.setting(export).weight.into(),
                Leaf::Ioprio(export) => self.setting(export).ioprio.to_string().into(),
                Leaf::Mode(export) => fact(export, |entry| entry.mode.name().into()).into(),
                Leaf::OnError(export) => fact(export, |entry| entry.on_error.name().into()).into(),
                Leaf::Dirty(tunable) => {
                    report::dirty_value(tunable, tunable.get(&lock(&self.dirty)))
                }
                Leaf::Connection(_) => continue,
            };
            values.insert(name, value);
        }
        let root = "connections";
        if path.is_empty() || is_within(path, root) {
            for (_, connection) in self.list_connections()? {
                let name = format!("{root}/{}/ioprio", connection.id);
                if let Some((_, ioprio)) = connection.chosen
                    && (path.is_empty() || is_within(&name, path))
                {
                    values.insert(name, ioprio.to_string().into());
                }
            }
        }
        if values.is_empty() && path != root {
            return Err(no_entry(&tree, path));
        }
        Ok(Value::Object(values))
    }

    fn find(&self, tree: &Tree, path: &str) -> Result<Leaf, RpcFault> {
        if let Some(rest) = path.strip_prefix("connections/") {
            let id = rest.strip_suffix("/ioprio").and_then(|id| id.parse().ok());
            return id.map(Leaf::Connection).ok_or_else(|| no_entry(tree, path));
        }
        let below = tree.leaves(path);
        match below.first() {
            Some((name, leaf)) if name == path => Ok(*leaf),
            Some((name, _)) => {
                let message = format!("{path} has names below it, such as {name}");
                Err(RpcFault::refused("EISDIR", message))
            }
            None => Err(no_entry(tree, path)),
        }
    }

    fn set(&self, path: &str, value: &str) -> RpcResult {
        let (path, tree) = (path.trim_matches('/'), self.tree());
        let invalid = |message: String| RpcFault::refused("EINVAL", format!("{path}: {message}"));
        match self.find(&tree, path)? {
            Leaf::Tunable(device, tunable) => {
                let shown = self.set_tunable(&tree, path, (device, tunable), value)?;
                Ok(json!({ path: shown }))
            }
            Leaf::Device(_) | Leaf::ReadOnly(_) | Leaf::Mode(_) | Leaf::OnError(_) => {
                Err(fixed(path))
            }
            Leaf::Dirty(tunable) => {
                let shown = self.set_dirty(path, tunable, value)?;
                Ok(json!({ path: shown }))
            }
            Leaf::Weight(export) => {
                let range = ExportConfig::WEIGHTS;
                let weight = parse_weight(value).map_err(|message| {
                    invalid(message).accepts(format!("{}..={}", range.start(), range.end()))
                })?;
                self.set_weight(export, weight)?;
                Ok(json!({ path: weight }))
            }
            leaf @ (Leaf::Ioprio(_) | Leaf::Connection(_)) => {
                let ioprio =
                    parse_ioprio(value).map_err(|message| invalid(message).accepts(CLASSES))?;
                match leaf {
                    Leaf::Connection(id) => self.set_connection_ioprio(path, id, ioprio)?,
                    Leaf::Ioprio(export) => self.set_ioprio(export, ioprio)?,
                    _ => {}
                }
                Ok(json!({ path: ioprio.to_string() }))
            }
        }
    }

    fn set_tunable(
        &self,
        tree: &Tree,
        path: &str,
        (device, tunable): (DeviceId, Tunable),
        value: &str,
    ) -> Result<Value, RpcFault> {
        let accepted = tunable.accepted();
        if !tunable.is_live() {
            return Err(fixed(path));
        }
        let value = tunable.parse(value).map_err(|error| {
            let message = format!("{path}: {}", error.message);
            RpcFault::refused("EINVAL", message).accepts(accepted.clone())
        })?;
        let before = self.device(tree, device)?.options;
        // What is in flight now may take as long as the option says, and a new option counts from the switch on.
        let longest = Duration::from_nanos(before.io_timeout_ns) + self.deadlines.switch;
        let owner = tree.device(device).map_or(ShardId(0), |entry| entry.owner);
        let question = |answer| ControlQuery::Set { device, tunable, value, answer };
        match self.ask_for(owner, longest, question) {
            Ok(status) => switched(path, status, accepted)?,
            Err(NoAnswer::Stopping) => return Err(stopping()),
            Err(NoAnswer::TooLong) => {
                let message = format!(
                    "{path}: the switch is still under way after {} s; it ends when the commands in flight have",
                    longest.as_secs_f32()
                );
                return Err(RpcFault::refused("ETIMEDOUT", message));
            }
        }
        let options = self.device(tree, device)?.options;
        Ok(report::value(tunable, tunable.get(&options)))
    }

    /// The value of the whole server; each shard that caches gets its share before anybody sees the new value.
    fn set_dirty(&self, path: &str, tunable: DirtyTunable, text: &str) -> Result<Value, RpcFault> {
        let accepted = tunable.accepted();
        let invalid = |message: String| {
            RpcFault::refused("EINVAL", format!("{path}: {message}")).accepts(accepted.clone())
        };
        let parsed = match tunable.is_bytes() {
            true => parse_size(text),
            false => tunable.parse(text).map_err(|error| error.message.to_string()),
        };
        let value = parsed.map_err(invalid)?;
        let _order = lock(&self.changing);
        let caching = &self.tree().caching;
        let share = divided(tunable, value, caching.len());
        let mut options = *lock(&self.dirty);
        let whole = tunable.set(&mut options, value);
        // What the whole takes may be too little for each.
        whole.and(tunable.check(share)).map_err(|error| invalid(error.message.to_string()))?;
        for shard in caching {
            let question = |answer| ControlQuery::SetDirty { tunable, value: share, answer };
            switched(path, self.ask(*shard, question)?, accepted.clone())?;
        }
        *lock(&self.dirty) = options;
        Ok(report::dirty_value(tunable, tunable.get(&options)))
    }

    pub(super) fn set_weight(&self, export: ExportId, weight: u16) -> Result<(), RpcFault> {
        let _order = lock(&self.changing);
        let control = Control::Weight { export, weight };
        for shard in self.shards() {
            self.ask(shard, |answer| ControlQuery::Tell { control, answer })?;
        }
        lock(&self.settings)[usize::from(export.0)].weight = weight;
        Ok(())
    }

    pub(super) fn set_ioprio(&self, export: ExportId, ioprio: Ioprio) -> Result<(), RpcFault> {
        let _order = lock(&self.changing);
        for shard in self.shards() {
            self.ask(shard, |answer| ControlQuery::ExportIoprio { export, ioprio, answer })?;
        }
        lock(&self.settings)[usize::from(export.0)].ioprio = ioprio;
        Ok(())
    }

    fn set_connection_ioprio(&self, path: &str, id: u32, ioprio: Ioprio) -> Result<(), RpcFault> {
        for shard in self.shards() {
            let question =
                |answer| ControlQuery::ConnectionIoprio { connection: id, ioprio, answer };
            if self.ask(shard, question)? {
                return Ok(());
            }
        }
        let message = format!("there is no {path}; `connections` lists those there are");
        Err(RpcFault::refused("ENOENT", message))
    }

    /// Discards the blocks of an export whose write-back failed and lets its flushes succeed again. Without `confirm`, an
    /// export that has something to lose is reported and left as it is.
    fn discard_failed(&self, name: &str, confirm: bool) -> RpcResult {
        let tree = self.tree();
        let entry = find_export(&tree, name)?;
        let ExportNode { volume, home, .. } = *entry;
        let owner = tree.owner(entry);
        let report = self.ask(owner, |answer| ControlQuery::Volume { volume, answer })?;
        let failed = self.ask(home, |answer| ControlQuery::Failed { volume, answer })?;
        let name = entry.shown_name();
        let bytes: u64 = failed.iter().map(|range| range.len).sum();
        if confirm {
            let control = Control::Acknowledge { volume };
            // First the blocks that could not be written are given up, then flushes may succeed again.
            self.ask(home, |answer| ControlQuery::Tell { control, answer })?;
            if owner != home {
                self.ask(owner, |answer| ControlQuery::Tell { control, answer })?;
            }
            if report.suspect || bytes > 0 {
                tracing::warn!(
                    "export {name}: discarded {bytes} acknowledged bytes that could not be written (ctl discard-failed); its flushes can succeed again"
                );
            }
        }
        Ok(json!({
            "export": name,
            "was_suspect": report.suspect,
            "unflushed": report.unflushed,
            "failed_bytes": bytes,
            "discarded": confirm && (report.suspect || bytes > 0),
        }))
    }

    fn failed(&self, name: &str) -> RpcResult {
        let tree = self.tree();
        let entry = find_export(&tree, name)?;
        let volume = entry.volume;
        let ranges = self.ask(entry.home, |answer| ControlQuery::Failed { volume, answer })?;
        Ok(json!({ "export": entry.shown_name(), "ranges": report::failed(&ranges) }))
    }

    fn stats(&self) -> RpcResult {
        let tree = self.tree();
        let mut reports: Vec<(DeviceId, DeviceReport)> = Vec::new();
        for DeviceNode { id, .. } in &tree.devices {
            reports.extend(self.device_if_there(&tree, *id)?.map(|report| (*id, report)));
        }
        let latencies = self.latencies()?;
        let mut exports = Params::new();
        for entry in &tree.exports {
            let volume = entry.volume;
            let report =
                self.ask(tree.owner(entry), |answer| ControlQuery::Volume { volume, answer });
            let Some(report) = self.if_there(&tree, report)? else { continue };
            let report: VolumeReport = report;
            let device = reports.iter().find(|(device, _)| *device == entry.device);
            let Some((_, DeviceReport { options, .. })) = device else { continue };
            let mut value = report::export(entry, self.setting(entry.id), options, &report);
            value["latency"] = latencies
                .get(&entry.id)
                .map_or(json!({}), |report| latency::summary(&report.totals));
            exports.insert(entry.shown_name().to_owned(), value);
        }
        let devices: Params = reports
            .iter()
            .map(|(device, table)| (device_name(*device), report::device(table)))
            .collect();
        let turns =
            self.shards().map(|shard| self.ask(shard, |answer| ControlQuery::Turns { answer }));
        let turns: Vec<TurnStats> = turns.collect::<Result<_, _>>()?;
        let caches =
            self.shards().map(|shard| self.ask(shard, |answer| ControlQuery::Cache { answer }));
        let caches: Vec<CacheReport> = caches.collect::<Result<_, _>>()?;
        Ok(json!({
            "seconds": self.started.elapsed().as_secs_f64(),
            "exports": exports,
            "devices": devices,
            "cache": report::cache(&caches),
            "dirty": report::dirty(&caches),
            "turns": report::turns(&turns),
            "connections": self.connections()?,
        }))
    }

    fn diskstats(&self) -> RpcResult {
        let (mut lines, tree) = (Vec::new(), self.tree());
        for DeviceNode { id, .. } in &tree.devices {
            let report = self.device_if_there(&tree, *id)?;
            lines.extend(report.map(|report| report::diskstats(*id, &report)));
        }
        Ok(Value::Array(lines))
    }

    fn connections(&self) -> RpcResult {
        let (list, tree) = (self.list_connections()?, self.tree());
        let shown = list.iter().map(|(shard, connection)| {
            let name = |export| tree.entry(export).map(ExportNode::shown_name);
            json!({
                "id": connection.id,
                "peer": connection.peer,
                "shard": shard.0,
                "export": connection.chosen.and_then(|(export, _)| name(export)),
                "ioprio": connection.chosen.map(|(_, ioprio)| ioprio.to_string()),
                "in_flight": connection.in_flight,
                "latency": connection.latency.as_ref().map(|table| latency::compact(&table.into())),
            })
        });
        Ok(shown.collect())
    }

    fn list_connections(&self) -> Result<Vec<(ShardId, ConnectionReport)>, RpcFault> {
        let mut all = Vec::new();
        for shard in self.shards() {
            let mut next = Some(0);
            while let Some(from) = next {
                let (some, more) =
                    self.ask(shard, |answer| ControlQuery::Connections { from, answer })?;
                all.extend(some.into_iter().map(|connection| (shard, connection)));
                next = more;
            }
        }
        Ok(all)
    }

    fn device(&self, tree: &Tree, device: DeviceId) -> Result<DeviceReport, RpcFault> {
        let entry = tree.device(device).ok_or_else(|| no_entry(tree, &device_name(device)))?;
        let volumes = Arc::clone(&entry.volumes);
        self.ask(entry.owner, |answer| ControlQuery::Device { device, volumes, answer })
    }

    pub(super) fn shards(&self) -> impl Iterator<Item = ShardId> + use<> {
        (0..self.shards).map(ShardId)
    }

    /// The same for whoever looks at all of them: none if it has gone meanwhile.
    fn device_if_there(
        &self,
        tree: &Tree,
        device: DeviceId,
    ) -> Result<Option<DeviceReport>, RpcFault> {
        self.if_there(tree, self.device(tree, device))
    }

    /// What is gone does not answer, and it is out of the tree before a shard forgets it.
    fn if_there<T>(&self, tree: &Tree, answer: Result<T, RpcFault>) -> Result<Option<T>, RpcFault> {
        match answer {
            Err(_) if !std::ptr::eq(tree, Arc::as_ptr(&self.tree())) => Ok(None),
            answer => answer.map(Some),
        }
    }

    /// What there is now.
    pub fn tree(&self) -> Arc<Tree> {
        Arc::clone(&lock(&self.tree))
    }

    /// What comes later sees it.
    pub(super) fn change_tree(&self, change: impl FnOnce(&mut Tree)) {
        let mut current = lock(&self.tree);
        let mut tree = Tree::clone(&current);
        change(&mut tree);
        *current = Arc::new(tree);
    }

    pub(super) fn live(&self) -> &LiveChanges {
        &self.live
    }

    pub(super) fn shared(&self) -> &ServerShared {
        &self.shared
    }

    /// A new export begins with this.
    pub(super) fn put_setting(&self, export: ExportId, setting: ExportSettings) {
        let mut settings = lock(&self.settings);
        let places = settings.len().max(usize::from(export.0) + 1);
        settings.resize(places, setting);
        settings[usize::from(export.0)] = setting;
    }

    pub(super) fn setting(&self, export: ExportId) -> ExportSettings {
        lock(&self.settings)[usize::from(export.0)]
    }

    pub(super) fn ask<T>(
        &self,
        shard: ShardId,
        question: impl FnOnce(Sender<T>) -> ControlQuery,
    ) -> Result<T, RpcFault> {
        self.ask_for(shard, self.deadlines.answer, question).map_err(|reason| match reason {
            NoAnswer::Stopping => stopping(),
            NoAnswer::TooLong => {
                let seconds = self.deadlines.answer.as_secs_f32();
                let message = format!("shard {} did not answer within {seconds} s", shard.0);
                RpcFault::refused("ETIMEDOUT", message)
            }
        })
    }

    fn ask_for<T>(
        &self,
        shard: ShardId,
        longest: Duration,
        question: impl FnOnce(Sender<T>) -> ControlQuery,
    ) -> Result<T, NoAnswer> {
        let (answer, answers) = channel();
        self.shared.send(shard, ControlMessage::Query(question(answer)));
        answers.recv_timeout(longest).map_err(|error| match error {
            RecvTimeoutError::Timeout => NoAnswer::TooLong,
            RecvTimeoutError::Disconnected => NoAnswer::Stopping,
        })
    }
}

/// Why a shard said nothing.
enum NoAnswer {
    TooLong,
    /// It dropped the question.
    Stopping,
}

fn no_entry(tree: &Tree, path: &str) -> RpcFault {
    RpcFault::refused("ENOENT", format!("there is no {path}; {}", tree.advice(path)))
}

pub(super) fn find_export<'a>(tree: &'a Tree, name: &str) -> Result<&'a ExportNode, RpcFault> {
    tree.export(name).ok_or_else(|| {
        let names: Vec<&str> = tree.exports.iter().take(16).map(ExportNode::shown_name).collect();
        let known = if names.is_empty() { "none at all".to_owned() } else { names.join(", ") };
        let message = format!("there is no export `{name}`; there are {known}");
        RpcFault::refused("ENOENT", message)
    })
}

pub(super) fn stopping() -> RpcFault {
    RpcFault::refused("ESHUTDOWN", "the server is stopping")
}

fn fixed(path: &str) -> RpcFault {
    let message =
        format!("{path} is a fact of the device or of how it is served; it cannot be set");
    RpcFault::refused("EACCES", message)
}

/// What a shard says of a switch.
fn switched(path: &str, status: Status, accepted: String) -> Result<(), RpcFault> {
    let Err(error) = status else { return Ok(()) };
    Err(match error {
        IoError::Invalid => {
            RpcFault::refused("EINVAL", format!("{path}: the device cannot work with this value"))
                .accepts(accepted)
        }
        IoError::Busy => RpcFault::refused(
            "EBUSY",
            format!(
                "{path}: another switch is under way, or commands that were given up hold too much; try again"
            ),
        ),
        IoError::Unsupported => {
            RpcFault::refused("ENOTSUP", format!("{path} cannot be set while the server runs"))
        }
        other => RpcFault::refused("EIO", format!("{path}: {other}")),
    })
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Whoever panicked left whole values.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn optional_text<'a>(
    params: &'a Params,
    name: &str,
) -> Result<Option<&'a str>, RpcFault> {
    match params.get(name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(RpcFault::params(format!("{name} is a string"))),
    }
}

pub(super) fn text<'a>(params: &'a Params, name: &str) -> Result<&'a str, RpcFault> {
    optional_text(params, name)?.ok_or_else(|| RpcFault::params(format!("{name} is missing")))
}

/// A value as a word, in whatever type it came.
fn word(params: &Params, name: &str) -> Result<String, RpcFault> {
    match params.get(name) {
        Some(Value::String(text)) => Ok(text.trim().to_owned()),
        Some(Value::Number(number)) => Ok(number.to_string()),
        Some(Value::Bool(switch)) => Ok(u8::from(*switch).to_string()),
        Some(_) => Err(RpcFault::params(format!("{name} is a string or a number"))),
        None => Err(RpcFault::params(format!("{name} is missing"))),
    }
}

#[cfg(test)]
#[path = "service_tests.rs"]
mod tests;
