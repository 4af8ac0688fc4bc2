//! The new server's side: from prepared threads to served clients.
//!
//! ```text
//!   threads ready, caches frozen --live()--> each shard adopts its part --adopted()--> the old one has left
//!         --> memory, rows and marks are ours --> shards go on --> connections, then new clients
//!   an error before that: the shards end, and nothing was changed
//! ```
//!
//! Every connection and file passes `Disks::export_of`, which has the rule of `disk`: an export's name alone binds nothing. A file of FUSE that has no
//! heir, because no listener makes its export a file any more or that export is another, is unmounted, unless programs have it open: it is a client
//! then. Nothing is mounted or unmounted before the old process has left.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use headworks_core::{ConfigError, Control, Instant, ShardId, VolumeId};
use headworks_nbd::Negotiated;

use super::disk::{HandedVolume, ToldExport};
use super::live::Live;
use super::takeover::{LaterSteps, Takeover, UnmatchedClients, refused};
use crate::ServerOptions;
use crate::clients::client::ShardClient;
use crate::clients::files::directory::{DirectoryContext, file_name};
use crate::clients::files::hand_over::HandedFile;
use crate::clients::files::news::{DirectoryNews, ServedFile};
use crate::clients::files::{FilePlace, FuseClient};
use crate::clients::nbd::connection::{Connection, HandedConnection};
use crate::exports::assemble::export_info::ServedExport;
use crate::exports::assemble::{Assembly, shown_name};
use crate::listen::Address;
use crate::reactor::messages::ControlMessage;
use crate::reactor::messages::hand_over::{AdoptOrder, AdoptedClient};
use crate::reactor::shared::ServerShared;
use crate::successor::marker::Marker;

/// A takeover in progress.
pub(crate) struct Adoption {
    steps: LaterSteps,
    unmatched: UnmatchedClients,
    disks: Disks,
    /// By the old server's ids: the ids here of the volumes that get what was cached of the old ones.
    volumes: Vec<Option<VolumeId>>,
    /// Why others get nothing, as sentences about their exports.
    refusals: Vec<String>,
}

/// The disks of both processes.
pub(super) struct Disks {
    old: Vec<HandedVolume>,
    own: Vec<HandedVolume>,
    /// Exports that are not served, and why.
    absent: Vec<(String, String)>,
}

impl Disks {
    pub fn new(old: &[HandedVolume], assembly: &Assembly, homes: &[ShardId]) -> Self {
        let absent = assembly.absent.iter();
        let absent = absent.map(|absent| (absent.spec.name.clone(), absent.reason.clone()));
        Self { old: old.to_vec(), own: own_volumes(assembly, homes), absent: absent.collect() }
    }

    /// Images that the old process may have written, all of it out, and that this one does not write.
    fn images_without_writer(&self) -> impl Iterator<Item = &Path> {
        let written = |volumes: &[HandedVolume], path: &Path| {
            volumes.iter().any(|one| !one.read_only && one.path.as_deref() == Some(path))
        };
        let before = self.old.iter().filter(|volume| !volume.read_only);
        before
            .filter_map(|volume| volume.path.as_deref())
            .filter(move |path| !written(&self.own, path))
    }

    /// The volume that gets what was cached of an old one.
    ///
    /// # Errors
    /// Why there is none, as a clause about an export of the old volume.
    pub fn heir_of(&self, old: &HandedVolume) -> Result<&HandedVolume, String> {
        let same = self.own.iter().find(|same| same.key == old.key);
        let same = same.ok_or_else(|| "its image is not served any more".to_owned())?;
        old.refusal_of_contents(same).map_or(Ok(same), Err)
    }

    /// The export with which a connection goes on, of those that are served now.
    ///
    /// # Errors
    /// Why there is none, as a clause about the export that the connection was bound to.
    pub fn export_of<'a>(
        &self,
        told: &ToldExport,
        exports: &'a [ServedExport],
    ) -> Result<&'a ServedExport, String> {
        let named = exports.iter().find(|served| served.info.name == told.name);
        let served = named.ok_or_else(|| {
            let absent = self.absent.iter().find(|(name, _)| *name == told.name);
            absent.map_or_else(|| "it is not served any more".to_owned(), |(_, why)| why.clone())
        })?;
        let by_id = |volumes: &[HandedVolume], id| {
            volumes.iter().find(|volume: &&HandedVolume| volume.id == id).cloned()
        };
        let before = by_id(&self.old, told.volume);
        let now = by_id(&self.own, served.binding.volume);
        let (before, now) = before.zip(now).ok_or("it is not known which image it was")?;
        let told = || told.difference(&served.info, served.binding.range);
        match before.difference(&now).or_else(told) {
            None => Ok(served),
            Some(why) => Err(why),
        }
    }
}

#[cfg(test)]
impl Disks {
    /// The disks of the process that starts.
    pub fn own(&self) -> &[HandedVolume] {
        &self.own
    }

    /// Changes what is known of the disks of both, to plant defects.
    pub fn edit(&mut self, change: impl Fn(&mut HandedVolume)) {
        self.old.iter_mut().chain(&mut self.own).for_each(change);
    }
}

/// The volumes of a server that starts, as [`HandedVolume`]s.
fn own_volumes(assembly: &Assembly, homes: &[ShardId]) -> Vec<HandedVolume> {
    let mut volumes = Vec::new();
    for (index, (origin, home)) in assembly.origins.iter().zip(homes).enumerate() {
        let (place, what) = ((VolumeId(index as u16), *home), origin.what.clone());
        let options = &assembly.volumes[index].1;
        volumes.push(HandedVolume::new(place, what, origin, options, &volumes));
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
        let disks = Disks::new(&takeover.standing().volumes, assembly, homes);
        let slots = disks.old.iter().map(|volume| usize::from(volume.id.0) + 1).max().unwrap_or(0);
        let (mut volumes, mut refusals) = (vec![None; slots], Vec::new());
        for volume in &disks.old {
            let same = match disks.heir_of(volume) {
                Ok(same) => same,
                Err(why) => {
                    refusals.push(format!("export {}: {why}", shown_name(&volume.export)));
                    continue;
                }
            };
            // Each shard has a part of the memory.
            if same.home != volume.home && takeover.has_memory() {
                return Err(refused(format!(
                    "{} would be served by another thread than now, since exports were added, removed or reordered: restart instead",
                    assembly.origins[usize::from(same.id.0)].what
                )));
            }
            volumes[usize::from(volume.id.0)] = Some(same.id);
        }
        let unmatched = takeover.unmatched();
        Ok(Self { steps, unmatched, disks, volumes, refusals })
    }

    /// Takes over: returns when the old process has left. `before_serving` is called before the shards go on.
    ///
    /// # Errors
    /// What is handed over does not fit, or the old server goes on; nothing was changed then, and the shards end.
    pub fn finish(
        self,
        (shared, directories): (&ServerShared, &DirectoryContext),
        exports: &[ServedExport],
        options: &ServerOptions,
        before_serving: impl FnOnce(),
    ) -> Result<(), ConfigError> {
        let taken = self.take_over((shared, directories), exports, options, before_serving);
        if taken.is_err() {
            for shard in (0..shared.shards() as u16).map(ShardId) {
                // One that has ended reads nothing.
                shared.send(shard, ControlMessage::Adopt(AdoptOrder::withdrawn()));
            }
        }
        taken
    }

    fn take_over(
        self,
        (shared, directories): (&ServerShared, &DirectoryContext),
        exports: &[ServedExport],
        options: &ServerOptions,
        before_serving: impl FnOnce(),
    ) -> Result<(), ConfigError> {
        let Self { steps: (live, adopted), unmatched, disks, volumes: known, refusals } = self;
        let live = Live::read(live()?).map_err(refused)?;
        let Live { connections, files, mounted, mut contents, suspect } = live;
        let (answers, outcomes) = channel();
        let mut goes: Vec<Sender<()>> = Vec::new();
        contents.resize_with(shared.shards().max(contents.len()), || None);
        if contents.len() > shared.shards() {
            return Err(refused("the number of shards was changed: restart instead".to_owned()));
        }
        let bound = bind(connections, |told| disks.export_of(told, exports), unmatched)?;
        let export_of = |told: &ToldExport| disks.export_of(told, exports);
        let files = bind_files(files, export_of, unmatched, (options, directories))?;
        let (count, file_count) = (bound.len(), files.len());
        let mut clients = clients_by_shard(bound, options);
        let mut heirs = adopt_files(files, directories, &mut clients)?;
        // Served or not, what is mounted and is no heir's ends.
        for place in mounted {
            let FilePlace { directory, name } = place;
            let (files, ended) = heirs.entry(directory).or_default();
            if !files.iter().any(|file| file.name == name) {
                ended.push(name);
            }
        }
        for (shard, contents) in (0..).map(ShardId).zip(contents) {
            let (go, goes_on) = channel();
            goes.push(go);
            let volumes = known.clone();
            let clients = clients.remove(&shard.0).unwrap_or_default();
            let answer = answers.clone();
            let order = AdoptOrder { contents, volumes, clients, answer, go: goes_on };
            shared.send(shard, ControlMessage::Adopt(order));
        }
        drop(answers);
        for _ in 0..shared.shards() {
            let outcome = outcomes.recv().unwrap_or_else(|_| Err("a shard has ended".to_owned()));
            outcome.map_err(|error| match &refusals[..] {
                [] => refused(error),
                refusals => refused(format!("{error} ({})", refusals.join("; "))),
            })?;
        }
        adopted()?;
        renumber(shared, &known);
        before_serving();
        remove_marks(disks.images_without_writer());
        for volume in suspect.iter().filter_map(|volume| known.get(usize::from(volume.0))) {
            let Some(volume) = *volume else { continue };
            shared.send_all(|| ControlMessage::Control(Control::Suspect { volume }));
            shared.keeper().set_suspect(volume, true);
        }
        // Before the listeners begin, which mount what is not mounted.
        let orphans = tell_directories(heirs, directories);
        shared.send(ShardId(0), ControlMessage::Listen);
        for go in goes {
            // A shard that has ended shows in `join`.
            let _ = go.send(());
        }
        orphans.iter().for_each(|place| unmount(place, directories));
        tracing::info!("took over {count} connections and {file_count} files");
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

/// Removes the marks of images that are not written any more: nothing of them is dirty, or the takeover would have been refused.
fn remove_marks<'a>(images: impl Iterator<Item = &'a Path>) {
    for image in images {
        if let Err(error) = Marker::of(image).remove() {
            let image = image.display();
            tracing::warn!("cannot remove the mark of {image}, which is written out: {error}");
        }
    }
}

/// The connections with the exports that they go on with; one without an export ends the takeover, or is closed.
fn bind<'a>(
    connections: Vec<(ToldExport, HandedConnection)>,
    export_of: impl Fn(&ToldExport) -> Result<&'a ServedExport, String>,
    unmatched: UnmatchedClients,
) -> Result<Vec<(&'a ServedExport, HandedConnection)>, ConfigError> {
    let mut bound = Vec::new();
    for (told, handed) in connections {
        match export_of(&told) {
            Ok(served) => bound.push((served, handed)),
            Err(why) if unmatched == UnmatchedClients::Close => {
                let export = shown_name(&told.name);
                tracing::warn!(peer = handed.peer, "export {export}: connection closed: {why}");
            }
            Err(why) => {
                let export = shown_name(&told.name);
                return Err(refused(format!(
                    "export {export} has clients, and {why}; undo that, disconnect them, or restart the server, which closes their connections"
                )));
            }
        }
    }
    Ok(bound)
}

/// The clients of each shard.
fn clients_by_shard(
    connections: Vec<(&ServedExport, HandedConnection)>,
    options: &ServerOptions,
) -> BTreeMap<u16, Vec<AdoptedClient>> {
    let mut clients: BTreeMap<u16, Vec<AdoptedClient>> = BTreeMap::new();
    for (served, handed) in connections {
        let (old_id, terms) = (handed.id, handed.terms);
        let connection = Connection::adopt(handed, options.connection_limits(), Instant(0));
        let (client, export) = (ShardClient::Nbd(Box::new(connection)), served.binding.export);
        let client = AdoptedClient { old_id, client, export, terms };
        clients.entry(served.shard.0).or_default().push(client);
    }
    clients
}

/// A file that goes on: with which export, and of which listener.
struct BoundFile<'a> {
    served: &'a ServedExport,
    listener: Arc<str>,
    news: Sender<DirectoryNews>,
    handed: HandedFile,
}

/// The files that go on. Others end; one that is open ends the takeover, or is closed, as a connection.
fn bind_files<'a>(
    files: Vec<(ToldExport, HandedFile)>,
    export_of: impl Fn(&ToldExport) -> Result<&'a ServedExport, String>,
    unmatched: UnmatchedClients,
    (options, directories): (&ServerOptions, &DirectoryContext),
) -> Result<Vec<BoundFile<'a>>, ConfigError> {
    let mut bound = Vec::new();
    for (told, handed) in files {
        let FilePlace { directory, name } = &handed.place;
        let listener = options.access.listeners.iter().find(|spec| {
            matches!(&spec.address, Address::Directory(path) if path == directory)
                && spec.offers(&told.name, None)
        });
        let thread = directories.served.thread_of(directory);
        let heir = listener.zip(thread).ok_or_else(|| "no listener has it as a file".to_owned());
        let heir = heir.and_then(|(listener, news)| {
            let served = export_of(&told)?;
            let is_same = file_name(&served.info.name).as_ref() == Ok(name);
            let listener = Arc::from(listener.name.as_str());
            let heir = (served, listener, news);
            is_same.then_some(heir).ok_or_else(|| "its file has another name".to_owned())
        });
        match heir {
            Ok((served, listener, news)) => {
                bound.push(BoundFile { served, listener, news, handed });
            }
            Err(why) if handed.opens > 0 && unmatched == UnmatchedClients::Refuse => {
                let (export, path) = (shown_name(&told.name), handed.place.shown());
                return Err(refused(format!(
                    "export {export}: programs have its file {path} open, and {why}; undo that, close it, or restart the server"
                )));
            }
            Err(why) => tracing::info!("the file {} ends: {why}", handed.place.shown()),
        }
    }
    Ok(bound)
}

/// Files by their directories: those that go on, and the names of those that end.
type Heirs = BTreeMap<PathBuf, (Vec<ServedFile>, Vec<String>)>;

/// Adds the files to the clients of their shards.
fn adopt_files(
    files: Vec<BoundFile<'_>>,
    directories: &DirectoryContext,
    clients: &mut BTreeMap<u16, Vec<AdoptedClient>>,
) -> Result<Heirs, ConfigError> {
    let mut heirs = Heirs::new();
    for BoundFile { served, listener, news, handed } in files {
        let (old_id, export, place) = (handed.id, served.binding.export, handed.place.clone());
        let file = FuseClient::adopt(handed, listener, directories.limits, news);
        let file = file.map_err(|error| refused(format!("{}: {error}", place.shown())))?;
        let (files, _) = heirs.entry(place.directory).or_default();
        files.push(ServedFile { export, name: place.name, client: file.number() });
        let (client, terms) = (ShardClient::Fuse(Box::new(file)), Negotiated::default());
        let client = AdoptedClient { old_id, client, export, terms };
        clients.entry(served.shard.0).or_default().push(client);
    }
    Ok(heirs)
}

/// Tells each directory of its files; returns those to be unmounted whose directories are not served.
fn tell_directories(heirs: Heirs, directories: &DirectoryContext) -> Vec<FilePlace> {
    let mut orphans = Vec::new();
    for (directory, (files, ended)) in heirs {
        match directories.served.thread_of(&directory) {
            Some(news) => {
                // It has ended if nothing mounts here.
                let _ = news.send(DirectoryNews::TakeOver { files, ended });
            }
            None => orphans.extend(
                ended.into_iter().map(|name| FilePlace { directory: directory.clone(), name }),
            ),
        }
    }
    orphans
}

/// Unmounts a file whose directory is not served. What mounts in no directory of this server unmounts by itself, as the old process ends.
fn unmount(place: &FilePlace, directories: &DirectoryContext) {
    let Some(mounts) = directories.mounts.as_ref().filter(|it| it.knows(&place.directory)) else {
        return;
    };
    match mounts.unmount(&place.directory, &place.name) {
        Ok(()) => tracing::info!("the file {} has ended", place.shown()),
        Err(why) => tracing::warn!("{} stays mounted: {why}", place.shown()),
    }
}
