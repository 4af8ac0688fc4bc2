//! The exports of a server: one record of each, with what it was configured with, its options as they are now, its ids and its state.
//!
//! Rule: the lock is held for moments. Nothing is waited for under it, and no other lock is taken; a change of exports holds the lock of
//! the inventory, too, which is taken before it.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use headworks_core::{ExportId, TenantId, VolumeId, VolumeOptions};

use super::tree::lock;
use crate::change::removal::RemovalSteps;
use crate::exports::assemble::ExportSpec;
use crate::spec::ExportOptions;

/// An export in use.
#[derive(Clone, Debug)]
pub struct Export {
    /// What it was added or loaded with.
    pub spec: ExportSpec,
    /// Its options as they are now.
    pub now: ExportNow,
    /// The volume behind it.
    pub volume: VolumeId,
    /// State with respect to its removal.
    pub state: ExportState,
}

/// The options of an export, as they are now.
#[derive(Clone, Copy, Debug)]
pub struct ExportNow {
    /// Its options; what it leaves to its volume is that of the volume.
    pub options: ExportOptions,
    /// Number of its tenant.
    pub tenant: TenantId,
}

impl Default for ExportNow {
    fn default() -> Self {
        Self { options: ExportOptions::default(), tenant: TenantId::NONE }
    }
}

impl Export {
    /// Whether it has its name: another one may have that of an export that was given up.
    pub fn is_named(&self) -> bool {
        !matches!(self.state, ExportState::Abandoned)
    }

    /// An export that begins to serve a volume.
    pub fn new(
        spec: &ExportSpec,
        tenant: TenantId,
        (volume, config): (VolumeId, &VolumeOptions),
    ) -> Self {
        let (mode, on_error) = (Some(config.mode), Some(config.on_error));
        let name = spec.share.tenant.filter(|name| !name.is_none());
        let options = ExportOptions { mode, on_error, tenant: name, ..spec.share };
        let (spec, now) = (spec.clone(), ExportNow { options, tenant });
        Self { spec, now, volume, state: ExportState::Serving }
    }
}

/// State of an export with respect to its removal.
///
/// ```text
///   Serving --remove--> Leaving --removed from all shards--> (gone)
///      ^                 |  |  ^
///      '--- refused -----'  v  | remove again
///                         Stuck    removed from some shards, refused by another
///   Leaving --its device does not answer--> Abandoned --it answers--> (gone)
/// ```
#[derive(Clone, Debug, Default)]
pub enum ExportState {
    /// Clients are served.
    #[default]
    Serving,
    /// A removal is in progress; the lock is not held while clients disconnect and dirty data are written back.
    Leaving,
    /// The removal stopped half-way: clients are not served, and the ids stay in use.
    Stuck(RemovalSteps),
    /// It was given up: it has no name any more, and keeps its ids and its image until its device answers.
    Abandoned,
}

/// All exports, by id.
#[derive(Debug, Default)]
pub struct Exports(Mutex<BTreeMap<u16, Export>>);

impl Exports {
    /// The exports that a server starts with; their order gives the ids.
    pub fn new(exports: impl Iterator<Item = Export>) -> Self {
        Self(Mutex::new((0..).zip(exports).collect()))
    }

    /// Locks the records of all exports.
    pub fn lock(&self) -> MutexGuard<'_, BTreeMap<u16, Export>> {
        lock(&self.0)
    }

    /// The options of an export as they are now; the defaults of one that was removed meanwhile.
    pub fn now(&self, export: ExportId) -> ExportNow {
        self.lock().get(&export.0).map(|record| record.now).unwrap_or_default()
    }

    /// Changes the options of an export, unless it was removed meanwhile.
    pub fn change(&self, export: ExportId, change: impl FnOnce(&mut ExportNow)) {
        if let Some(record) = self.lock().get_mut(&export.0) {
            change(&mut record.now);
        }
    }

    /// The options of all exports of a tenant.
    pub fn of_tenant(&self, tenant: TenantId) -> Vec<(ExportId, ExportOptions)> {
        let all = self.lock();
        let own = all.iter().filter(|(_, record)| record.now.tenant == tenant);
        own.map(|(id, record)| (ExportId(*id), record.now.options)).collect()
    }
}
