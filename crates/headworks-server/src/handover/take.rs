//! The new server's side: from prepared threads to served clients.
//!
//! ```text
//!   threads ready, caches frozen --live()--> each shard adopts its part --adopted()--> the old one has left
//!         --> memory, rows and marks are ours --> shards go on --> connections, then new clients
//!   an error before that: the shards end, and nothing was changed
//! ```

use std::collections::BTreeMap;
use std::sync::mpsc::{Sender, channel};

use headworks_core::{ConfigError, Control, Instant, ShardId, VolumeId};

use super::live::Live;
use super::standing::{HandedVolume, volume_key};
use super::takeover::{LaterSteps, Takeover, refused};
use crate::ServerOptions;
use crate::assemble::export_info::ServedExport;
use crate::assemble::{Assembly, shown_name};
use crate::messages::ControlMessage;
use crate::messages::hand_over::{AdoptOrder, AdoptedClient};
use crate::nbd::connection::{Connection, HandedConnection};
use crate::shared::ServerShared;

/// A takeover in progress.
pub(crate) struct Adoption {
    steps: LaterSteps,
    /// By the old server's ids: the ids here.
    volumes: Vec<Option<VolumeId>>,
}

/// The volumes of a server that starts, as [`HandedVolume`]s.
fn own_volumes(assembly: &Assembly, homes: &[ShardId]) -> Vec<HandedVolume> {
    let mut volumes = Vec::new();
    for (index, (origin, home)) in assembly.origins.iter().zip(homes).enumerate() {
        let key = volume_key(origin, &volumes);
        volumes.push(HandedVolume { id: VolumeId(index as u16), home: *home, key, remote: None });
    }
    volumes
}

impl Adoption {
    /// Begins a takeover with the volumes of `assembly`, whose home shards are `homes`.
    ///
    /// # Errors
    /// The takeover was used before, or the cache's contents do not fit these volumes.
    pub fn begin(
        takeover: &Takeover,
        assembly: &Assembly,
        homes: &[ShardId],
    ) -> Result<Self, ConfigError> {
        let steps =
            takeover.take().ok_or_else(|| refused("the takeover was used before".to_owned()))?;
        let (own, old) = (own_volumes(assembly, homes), &takeover.standing().volumes);
        let slots = old.iter().map(|volume| usize::from(volume.id.0) + 1).max().unwrap_or(0);
        let mut volumes = vec![None; slots];
        for volume in old {
            let Some(same) = own.iter().find(|same| same.key == volume.key) else { continue };
            // Each shard has a part of the memory.
            if same.home != volume.home && takeover.has_memory() {
                return Err(refused(format!(
                    "{} would be served by another thread than now, since exports were added, removed or reordered: restart instead",
                    assembly.origins[usize::from(same.id.0)].what
                )));
            }
            volumes[usize::from(volume.id.0)] = Some(same.id);
        }
        Ok(Self { steps, volumes })
    }

    /// Takes over: returns when the old process has left. `before_serving` is called before the shards go on.
    ///
    /// # Errors
    /// What is handed over does not fit, or the old server goes on; nothing was changed then.
    pub fn finish(
        self,
        shared: &ServerShared,
        exports: &[ServedExport],
        options: &ServerOptions,
        before_serving: impl FnOnce(),
    ) -> Result<(), ConfigError> {
        let (live, adopted) = self.steps;
        let Live { connections, mut contents, suspect } = Live::read(live()?).map_err(refused)?;
        let (answers, outcomes) = channel();
        let mut goes: Vec<Sender<()>> = Vec::new();
        contents.resize_with(shared.shards().max(contents.len()), || None);
        if contents.len() > shared.shards() {
            return Err(refused("the number of shards was changed: restart instead".to_owned()));
        }
        let count = connections.len();
        let mut clients = clients_by_shard(connections, exports, options);
        for (shard, contents) in (0..).map(ShardId).zip(contents) {
            let (go, goes_on) = channel();
            goes.push(go);
            let volumes = self.volumes.clone();
            let connections = clients.remove(&shard.0).unwrap_or_default();
            let answer = answers.clone();
            let order = AdoptOrder { contents, volumes, connections, answer, go: goes_on };
            shared.send(shard, ControlMessage::Adopt(order));
        }
        drop(answers);
        for _ in 0..shared.shards() {
            let outcome = outcomes.recv().unwrap_or_else(|_| Err("a shard has ended".to_owned()));
            outcome.map_err(refused)?;
        }
        adopted()?;
        renumber(shared, &self.volumes);
        before_serving();
        for volume in suspect.iter().filter_map(|volume| self.volumes.get(usize::from(volume.0))) {
            let Some(volume) = *volume else { continue };
            shared.send_all(|| ControlMessage::Control(Control::Suspect { volume }));
            shared.keeper().set_suspect(volume, true);
        }
        shared.send(ShardId(0), ControlMessage::Listen);
        for go in goes {
            // A shard that has ended shows in `join`.
            let _ = go.send(());
        }
        tracing::info!("took over {count} connections");
        Ok(())
    }
}

/// Gives dirty blocks their volumes' present ids, so that a process which finds the memory later knows their images. By ids that
/// none has, since two volumes may have changed places.
fn renumber(shared: &ServerShared, volumes: &[Option<VolumeId>]) {
    let Some(memory) = shared.keeper().memory() else { return };
    let changed: Vec<(VolumeId, VolumeId)> = (0..)
        .map(VolumeId)
        .zip(volumes)
        .filter_map(|(old, new)| new.filter(|new| *new != old).map(|new| (old, new)))
        .collect();
    let used = volumes.len().max(shared.volumes());
    let spare = (used as u16..memory.rows() as u16).map(VolumeId);
    let aside: Vec<_> = changed.iter().zip(spare).collect();
    assert!(aside.len() == changed.len(), "there are spare rows");
    for ((old, _), spare) in &aside {
        memory.renumber(*old, *spare).expect("there are such rows");
    }
    for ((_, new), spare) in &aside {
        memory.renumber(*spare, *new).expect("there are such rows");
    }
}

/// The clients of each shard; those of exports that are gone are closed.
fn clients_by_shard(
    connections: Vec<(String, HandedConnection)>,
    exports: &[ServedExport],
    options: &ServerOptions,
) -> BTreeMap<u16, Vec<AdoptedClient>> {
    let mut clients: BTreeMap<u16, Vec<AdoptedClient>> = BTreeMap::new();
    for (name, handed) in connections {
        let Some(served) = exports.iter().find(|served| served.info.name == name) else {
            tracing::warn!(
                peer = handed.peer,
                "closed: export {} is not served any more",
                shown_name(&name)
            );
            continue;
        };
        let (old_id, terms) = (handed.id, handed.terms);
        let connection = Connection::adopt(handed, options.connection_limits(), Instant(0));
        let (connection, export) = (Box::new(connection), served.binding.export);
        let client = AdoptedClient { old_id, connection, export, terms };
        clients.entry(served.shard.0).or_default().push(client);
    }
    clients
}
