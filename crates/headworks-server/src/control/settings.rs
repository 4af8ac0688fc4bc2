//! Values that `set` changes: options of queues and of write-back, weights and classes of exports and connections.
//!
//! Weights, classes and the options of write-back are kept here, since only this file changes them; options of a queue are
//! asked of the shard that owns the device. One lock orders the changes, so the last `set` of a name is what every shard has.

use std::sync::{Arc, Mutex};

use headworks_core::options::Tunable;
use headworks_core::writeback::{DirtyOptions, DirtyTunable};
use headworks_core::{Control, DeviceId, ExportConfig, ExportId, IoError, Ioprio, ShardId, Status};
use serde_json::{Value, json};

use super::report;
use super::rpc::{RpcFault, RpcResult};
use super::shards::{NoAnswer, ShardLink, stopping};
use super::tree::{Leaf, Tree, TreeCell, lock};
use crate::assemble::cache_shares::divided;
use crate::messages::query::ControlQuery;
use crate::units::{parse_ioprio, parse_size, parse_weight};

/// Accepted forms of a class, for errors.
const CLASSES: &str = "rt, be or idle, with a level of 0 to 7: be:0";

/// Weight and class of an export, as they are now.
#[derive(Clone, Copy, Debug)]
pub struct ExportSettings {
    /// Share of the device beside other exports.
    pub weight: u16,
    /// Class of requests of the export's clients.
    pub ioprio: Ioprio,
}

/// Current values of settings, and the way to change them.
pub struct Settings {
    shards: Arc<ShardLink>,
    tree: Arc<TreeCell>,
    /// Indexed by [`ExportId`].
    exports: Mutex<Vec<ExportSettings>>,
    /// Options of the whole server; byte limits are divided among the shards that cache.
    dirty: Mutex<DirtyOptions>,
    /// Held while a value is changed that several shards keep.
    changing: Mutex<()>,
}

impl Settings {
    /// The settings that a server starts with.
    pub fn new(
        shards: Arc<ShardLink>,
        tree: Arc<TreeCell>,
        exports: Vec<ExportSettings>,
        dirty: DirtyOptions,
    ) -> Self {
        let (exports, dirty) = (Mutex::new(exports), Mutex::new(dirty));
        Self { shards, tree, exports, dirty, changing: Mutex::new(()) }
    }

    /// Options of write-back of the whole server.
    pub fn dirty(&self) -> DirtyOptions {
        *lock(&self.dirty)
    }

    /// Sets weight and class of a new export.
    pub fn put(&self, export: ExportId, setting: ExportSettings) {
        let mut settings = lock(&self.exports);
        let places = settings.len().max(usize::from(export.0) + 1);
        settings.resize(places, setting);
        settings[usize::from(export.0)] = setting;
    }

    /// Weight and class of an export.
    pub fn of(&self, export: ExportId) -> ExportSettings {
        lock(&self.exports)[usize::from(export.0)]
    }

    fn find(&self, tree: &Tree, path: &str) -> Result<Leaf, RpcFault> {
        if let Some(rest) = path.strip_prefix("connections/") {
            let id = rest.strip_suffix("/ioprio").and_then(|id| id.parse().ok());
            return id.map(Leaf::Connection).ok_or_else(|| tree.no_entry(path));
        }
        let below = tree.leaves(path);
        match below.first() {
            Some((name, leaf)) if name == path => Ok(*leaf),
            Some((name, _)) => {
                let message = format!("{path} has names below it, such as {name}");
                Err(RpcFault::refused("EISDIR", message))
            }
            None => Err(tree.no_entry(path)),
        }
    }

    /// Sets the value at `path`; returns the value in force.
    ///
    /// # Errors
    /// Why the value was refused.
    pub fn set(&self, path: &str, value: &str) -> RpcResult {
        let (path, tree) = (path.trim_matches('/'), self.tree.current());
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
        let before = self.shards.device(tree, device)?.options;
        // Commands in flight may take as long as the old time-out; a new one counts from the switch on.
        let longest = self.shards.switch_limit(before.io_timeout_ns);
        let owner = tree.device(device).map_or(ShardId(0), |entry| entry.owner);
        let query = |answer| ControlQuery::Set { device, tunable, value, answer };
        match self.shards.ask_within(owner, longest, query) {
            Ok(status) => switched(path, status, accepted)?,
            Err(NoAnswer::Stopping) => return Err(stopping()),
            Err(NoAnswer::TooLong) => {
                let message = format!(
                    "{path}: the change is still waiting after {} s; it takes effect when the commands in flight have completed",
                    longest.as_secs_f32()
                );
                return Err(RpcFault::refused("ETIMEDOUT", message));
            }
        }
        let options = self.shards.device(tree, device)?.options;
        Ok(report::value(tunable, tunable.get(&options)))
    }

    /// Sets an option of the whole server; each shard with a cache gets its share before the new value is shown.
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
        let caching = &self.tree.current().caching;
        let share = divided(tunable, value, caching.len());
        let mut options = *lock(&self.dirty);
        let whole = tunable.set(&mut options, value);
        // A value that suits the whole server may be too small for one shard.
        whole.and(tunable.check(share)).map_err(|error| invalid(error.message.to_string()))?;
        for shard in caching {
            let query = |answer| ControlQuery::SetDirty { tunable, value: share, answer };
            switched(path, self.shards.ask(*shard, query)?, accepted.clone())?;
        }
        *lock(&self.dirty) = options;
        Ok(report::dirty_value(tunable, tunable.get(&options)))
    }

    pub fn set_weight(&self, export: ExportId, weight: u16) -> Result<(), RpcFault> {
        let _order = lock(&self.changing);
        let control = Control::Weight { export, weight };
        for shard in self.shards.ids() {
            self.shards.ask(shard, |answer| ControlQuery::Tell { control, answer })?;
        }
        lock(&self.exports)[usize::from(export.0)].weight = weight;
        Ok(())
    }

    pub fn set_ioprio(&self, export: ExportId, ioprio: Ioprio) -> Result<(), RpcFault> {
        let _order = lock(&self.changing);
        for shard in self.shards.ids() {
            self.shards.ask(shard, |answer| ControlQuery::ExportIoprio {
                export,
                ioprio,
                answer,
            })?;
        }
        lock(&self.exports)[usize::from(export.0)].ioprio = ioprio;
        Ok(())
    }

    fn set_connection_ioprio(&self, path: &str, id: u32, ioprio: Ioprio) -> Result<(), RpcFault> {
        for shard in self.shards.ids() {
            let query = |answer| ControlQuery::ConnectionIoprio { connection: id, ioprio, answer };
            if self.shards.ask(shard, query)? {
                return Ok(());
            }
        }
        let message = format!("there is no {path}; `connections` lists the present ones");
        Err(RpcFault::refused("ENOENT", message))
    }
}

fn fixed(path: &str) -> RpcFault {
    let message = format!("{path} describes the device or the export and cannot be set");
    RpcFault::refused("EACCES", message)
}

/// Turns a shard's answer to a change into an error for the client.
fn switched(path: &str, status: Status, accepted: String) -> Result<(), RpcFault> {
    let Err(error) = status else { return Ok(()) };
    Err(match error {
        IoError::Invalid => {
            RpcFault::refused("EINVAL", format!("{path}: the device does not support this value"))
                .accepts(accepted)
        }
        IoError::Busy => RpcFault::refused(
            "EBUSY",
            format!(
                "{path}: another change is in progress, or timed-out commands still hold resources; try again"
            ),
        ),
        IoError::Unsupported => {
            RpcFault::refused("ENOTSUP", format!("{path} cannot be set while the server runs"))
        }
        other => RpcFault::refused("EIO", format!("{path}: {other}")),
    })
}
