//! The standing part of a hand-over: what does not change while the old server serves.
//!
//! Listening sockets, the open files that hold the images' locks, which volume is which image, and what was changed over the control
//! socket. Sockets that a service manager passed, and the memory of the cache, are the program's to hand over: it opened them.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use headworks_core::{ShardId, VolumeId};
use headworks_house::Identity;
use headworks_nbd::TransmissionFlags;
use headworks_nbd::client::Export;
use headworks_nbd::export::BlockSizes;
use serde_json::{Value, json};

use super::disk::HandedVolume;
use super::record::{Handover, Reader, Writer, fitting, list, number, text, truth};
use crate::exports::export_range::ExportRange;
use crate::successor::leftovers::Leftovers;

/// What a listening socket is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListenerRole {
    /// NBD clients.
    Clients,
    /// The control protocol.
    Control,
    /// Prometheus.
    Metrics,
}

impl ListenerRole {
    const ALL: [(Self, &str); 3] =
        [(Self::Clients, "clients"), (Self::Control, "control"), (Self::Metrics, "metrics")];

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(role, _)| *role == self).map_or("", |(_, name)| name)
    }

    fn of(name: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(_, other)| *other == name);
        found.map(|(role, _)| *role).ok_or_else(|| format!("a listener of unknown use `{name}`"))
    }
}

/// A listening socket that moves.
#[derive(Debug)]
pub(crate) struct HandedListener {
    pub role: ListenerRole,
    /// The address that it was asked for with.
    pub address: String,
    /// The file of a unix socket, which is removed at the end, and its inode.
    pub file: Option<(PathBuf, u64)>,
    pub socket: OwnedFd,
}

impl HandedListener {
    fn write(&self, writer: &mut Writer) -> Result<Value, String> {
        let file =
            self.file.as_ref().and_then(|(path, inode)| Some(json!([path.to_str()?, inode])));
        Ok(json!({
            "role": self.role.name(),
            "address": self.address,
            "file": file,
            "descriptor": writer.duplicate(&self.socket)?,
        }))
    }

    fn read(entry: &Value, reader: &mut Reader) -> Result<Self, String> {
        let file = entry
            .get("file")
            .and_then(|file| Some((PathBuf::from(file.get(0)?.as_str()?), file.get(1)?.as_u64()?)));
        Ok(Self {
            role: ListenerRole::of(text(entry, "role")?)?,
            address: text(entry, "address")?.to_owned(),
            file,
            socket: reader.descriptor(&entry["descriptor"])?,
        })
    }
}

/// A remote as both processes know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HandedRemote {
    pub identity: Identity,
    pub export: Export,
}

impl HandedRemote {
    fn write(&self) -> Value {
        let Identity { filesystem, inode, .. } = self.identity;
        let Export { size, flags, block_sizes, .. } = &self.export;
        let sizes = block_sizes.map(|sizes| [sizes.min, sizes.preferred, sizes.max]);
        json!({ "filesystem": filesystem, "inode": inode, "size": size, "flags": flags.0, "block_sizes": sizes })
    }

    fn read(entry: &Value) -> Result<Self, String> {
        let identity = Identity::of_numbers(number(entry, "filesystem")?, number(entry, "inode")?);
        let size = |index: usize| entry.get("block_sizes")?.get(index)?.as_u64()?.try_into().ok();
        let sizes = size(0).zip(size(1)).zip(size(2));
        let block_sizes = sizes.map(|((min, preferred), max)| BlockSizes { min, preferred, max });
        let flags = TransmissionFlags(fitting(entry, "flags")?);
        let export =
            Export { size: number(entry, "size")?, flags, block_sizes, ..Export::default() };
        Ok(Self { identity, export })
    }
}

/// A partition that is served, where its clients know it: its table may have changed since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HandedPartition {
    pub identity: Identity,
    pub number: u8,
    pub range: ExportRange,
}

impl HandedPartition {
    fn write(&self) -> Value {
        let Identity { filesystem, inode, .. } = self.identity;
        let (start, length) = (self.range.start(), self.range.size(u64::MAX));
        json!({ "filesystem": filesystem, "inode": inode, "number": self.number, "start": start, "length": length })
    }

    fn read(entry: &Value) -> Result<Self, String> {
        let identity = Identity::of_numbers(number(entry, "filesystem")?, number(entry, "inode")?);
        let range = ExportRange::new(number(entry, "start")?, Some(number(entry, "length")?));
        Ok(Self { identity, number: fitting(entry, "number")?, range })
    }
}

/// A path as bytes; none of a volume without an image.
pub(super) fn read_path(value: &Value) -> Option<PathBuf> {
    let byte = |byte: &Value| byte.as_u64().and_then(|byte| u8::try_from(byte).ok());
    let bytes: Option<Vec<u8>> = value.as_array()?.iter().map(byte).collect();
    Some(OsString::from_vec(bytes?).into())
}

/// What a new process takes over before it starts to serve.
#[derive(Debug)]
pub(crate) struct Standing {
    listeners: Mutex<Vec<HandedListener>>,
    locks: Mutex<Vec<(Identity, File)>>,
    /// The contents of the cache move.
    pub has_memory: bool,
    pub volumes: Vec<HandedVolume>,
    pub changes: String,
    /// The old process has left; its files are this one's.
    pub left: Arc<AtomicBool>,
}

/// What an old process hands over while it serves.
pub(super) struct StandingParts<'a> {
    pub listeners: &'a [HandedListener],
    pub locks: Vec<(Identity, Arc<File>)>,
    pub has_memory: bool,
    pub volumes: &'a [HandedVolume],
    pub changes: &'a str,
}

impl StandingParts<'_> {
    /// The hand-over of these parts.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn write(&self) -> Result<Handover, String> {
        let mut writer = Writer::default();
        let listeners: Result<Vec<_>, _> =
            self.listeners.iter().map(|listener| listener.write(&mut writer)).collect();
        let mut locks = Vec::new();
        for (Identity { filesystem, inode, .. }, lock) in &self.locks {
            let descriptor = writer.duplicate(lock)?;
            locks.push(
                json!({ "filesystem": filesystem, "inode": inode, "descriptor": descriptor }),
            );
        }
        let volume = |volume: &HandedVolume| {
            let HandedVolume {
                id,
                home,
                export,
                key,
                path,
                size,
                read_only,
                remote,
                partitions,
                ..
            } = volume;
            let path = path.as_ref().map(|path| path.as_os_str().as_bytes());
            json!({ "id": id.0, "home": home.0, "export": export, "key": key, "path": path,
            "size": size, "read_only": read_only, "remote": remote.as_ref().map(HandedRemote::write),
            "partitions": partitions.iter().map(HandedPartition::write).collect::<Vec<_>>() })
        };
        let head = json!({
            "listeners": listeners?,
            "locks": locks,
            "memory": self.has_memory,
            "volumes": self.volumes.iter().map(volume).collect::<Vec<_>>(),
            "changes": self.changes,
        });
        Ok(writer.finish(&head))
    }
}

impl Standing {
    /// Reads what another process hands over.
    ///
    /// # Errors
    /// A sentence: it is of another version.
    pub fn read(handover: Handover) -> Result<Self, String> {
        let (head, mut reader) = Reader::open(handover)?;
        let mut listeners = Vec::new();
        for entry in list(&head, "listeners")? {
            listeners.push(HandedListener::read(entry, &mut reader)?);
        }
        let mut locks = Vec::new();
        for entry in list(&head, "locks")? {
            let numbers = (number(entry, "filesystem")?, number(entry, "inode")?);
            let identity = Identity::of_numbers(numbers.0, numbers.1);
            locks.push((identity, File::from(reader.descriptor(&entry["descriptor"])?)));
        }
        let has_memory = truth(&head, "memory")?;
        let mut volumes = Vec::new();
        for entry in list(&head, "volumes")? {
            volumes.push(HandedVolume {
                id: VolumeId(fitting(entry, "id")?),
                home: ShardId(fitting(entry, "home")?),
                export: text(entry, "export")?.to_owned(),
                key: text(entry, "key")?.to_owned(),
                // Of the others a process that ends hands nothing over.
                is_known: true,
                path: read_path(&entry["path"]),
                size: number(entry, "size")?,
                read_only: truth(entry, "read_only")?,
                // A process before this version has none.
                remote: match entry.get("remote").filter(|remote| !remote.is_null()) {
                    Some(remote) => Some(HandedRemote::read(remote)?),
                    None => None,
                },
                partitions: match entry.get("partitions").and_then(Value::as_array) {
                    Some(all) => all.iter().map(HandedPartition::read).collect::<Result<_, _>>()?,
                    // A process before this version has none.
                    None => Vec::new(),
                },
            });
        }
        let changes = text(&head, "changes")?.to_owned();
        Ok(Self {
            listeners: Mutex::new(listeners),
            locks: Mutex::new(locks),
            has_memory,
            volumes,
            changes,
            left: Arc::default(),
        })
    }

    /// Gives locks, marks, remotes and partitions to those that open images.
    pub fn give_locks(&self, leftovers: &Leftovers) {
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        locks.drain(..).for_each(|(identity, lock)| leftovers.add_lock(identity, lock));
        let written = self.volumes.iter().filter(|volume| !volume.read_only);
        written
            .filter_map(|volume| volume.path.clone())
            .for_each(|path| leftovers.add_marked(path));
        let remotes = self.volumes.iter().filter_map(|volume| volume.remote.clone());
        remotes.for_each(|remote| leftovers.add_remote(remote.identity, remote.export));
        for one in self.volumes.iter().flat_map(|volume| &volume.partitions) {
            leftovers.add_partition(one.identity, one.number, one.range);
        }
    }

    /// Closes the listeners that were not taken, and removes their files: this server does not listen there.
    pub fn close_listeners(&self) {
        let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        for (path, inode) in listeners.drain(..).filter_map(|listener| listener.file) {
            if std::fs::symlink_metadata(&path).is_ok_and(|file| file.ino() == inode) {
                // A file that is left is replaced by the next server.
                let _ = std::fs::remove_file(path);
            }
        }
    }

    /// Takes the listener of an address, if there is one.
    pub fn take_listener(&self, role: ListenerRole, address: &str) -> Option<HandedListener> {
        let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        let is_it =
            |listener: &HandedListener| listener.role == role && listener.address == address;
        let index = listeners.iter().position(is_it)?;
        Some(listeners.remove(index))
    }
}
