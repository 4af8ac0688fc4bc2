//! What the program hands over beside the server's own record: files and sockets that the program, not the server, found or made.
//!
//! ```text
//!   record:      length of the JSON, 4 bytes | JSON of this module | record of the server
//!   descriptors: of the server .. | passed listeners .. | control | metrics | cache's memory | helpers that mount ..
//! ```
//!
//! The JSON has the number of this module's descriptors; they are taken from the end. Paths that are not UTF-8 are arrays of bytes.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use headworks_server::{Handover, InheritedSocket};
use serde_json::{Value, json};

use crate::serve::cache_file::StoredMemory;
use crate::serve::mounts::HandedHelper;
use crate::serve::systemd::InheritedSockets;
use crate::serve::upgrade::packet::PacketSocket;

/// Version of the JSON.
const VERSION: u64 = 1;

/// State of the process that its server does not know.
#[derive(Default)]
pub(in crate::serve) struct ProcessState {
    /// Sockets that a service manager passed.
    pub sockets: InheritedSockets,
    pub memory: Option<StoredMemory>,
    /// Directory of the private socket.
    pub private: Option<PathBuf>,
    pub pid_file: Option<PathBuf>,
    /// Helpers that mount files of FUSE. A process before this version has none, and refuses a record with some: it would lose the files.
    pub mounts: Vec<HandedHelper>,
}

impl ProcessState {
    /// Adds this state to the server's part.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn join(self, server: Handover) -> io::Result<Handover> {
        let Self { sockets, memory, private, pid_file, mounts } = self;
        let Handover { record, mut descriptors } = server;
        let before = descriptors.len();
        let passed = sockets.listen.iter().chain(&sockets.control).chain(&sockets.metrics);
        for socket in passed {
            descriptors.push(socket.descriptor()?);
        }
        let described = memory.map(|memory| {
            descriptors.push(memory.file.into());
            let path = memory.path.as_deref().map(path_to_json);
            json!({ "shown": memory.shown, "path": path, "stored_as": memory.stored_as })
        });
        let mut helpers = Vec::new();
        for HandedHelper { socket, directories, owner } in mounts {
            descriptors.push(socket.duplicate()?);
            let directories: Vec<_> = directories.iter().map(|path| path_to_json(path)).collect();
            helpers.push(json!({ "directories": directories, "owner": owner }));
        }
        let text = json!({
            "version": VERSION,
            "descriptors": descriptors.len() - before,
            "listen": sockets.listen.len(),
            "control": sockets.control.is_some(),
            "metrics": sockets.metrics.is_some(),
            "memory": described,
            "mounts": helpers,
            "private": private.as_deref().map(path_to_json),
            "pid_file": pid_file.as_deref().map(path_to_json),
        });
        let text = text.to_string();
        let length = (text.len() as u32).to_le_bytes();
        let record = [&length[..], text.as_bytes(), &record].concat();
        Ok(Handover { record, descriptors })
    }

    /// What the service manager has passed once more, for a start that takes nothing over.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn passed_again(&self) -> io::Result<InheritedSockets> {
        let mut sockets = self.sockets.sockets();
        if let Some(StoredMemory { file, stored_as: Some(name), .. }) = &self.memory {
            sockets.memory.push((file.try_clone()?.into(), name.clone()));
        }
        Ok(sockets)
    }

    /// Separates this state from the server's part.
    ///
    /// # Errors
    /// A sentence about what is wrong with the record.
    pub fn split(joined: Handover) -> Result<(Self, Handover), String> {
        let Handover { record, mut descriptors } = joined;
        let wrong = || "the record of the process that is to be replaced is damaged".to_owned();
        let (length, rest) = record.split_first_chunk().ok_or_else(wrong)?;
        let (text, record) =
            rest.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or_else(wrong)?;
        let text: Value = serde_json::from_slice(text).map_err(|_| wrong())?;
        if text["version"] != VERSION {
            let version = &text["version"];
            return Err(format!(
                "the record of the process that is to be replaced has version {version}, this program reads {VERSION}; restart the server instead"
            ));
        }
        let count = |name: &str| text[name].as_u64().and_then(|count| usize::try_from(count).ok());
        let own = count("descriptors").filter(|own| *own <= descriptors.len());
        let own = descriptors.split_off(descriptors.len() - own.ok_or_else(wrong)?);
        let mut own = own.into_iter();
        let mut socket =
            || own.next().ok_or_else(wrong).and_then(|fd: OwnedFd| InheritedSocket::new(fd));
        let listeners = count("listen").ok_or_else(wrong)?;
        let listen = (0..listeners).map(|_| socket()).collect::<Result<_, _>>()?;
        let control = (text["control"] == true).then(&mut socket).transpose()?;
        let metrics = (text["metrics"] == true).then(&mut socket).transpose()?;
        let path = |value: &Value| match value.is_null() {
            true => Some(None),
            false => path_from_json(value).map(Some),
        };
        let described = &text["memory"];
        let memory = match described.is_null() {
            true => None,
            false => Some(StoredMemory {
                file: own.next().ok_or_else(wrong)?.into(),
                shown: described["shown"].as_str().ok_or_else(wrong)?.to_owned(),
                path: path(&described["path"]).ok_or_else(wrong)?,
                stored_as: described["stored_as"].as_str().map(str::to_owned),
            }),
        };
        let mut mounts = Vec::new();
        for helper in text["mounts"].as_array().into_iter().flatten() {
            let socket = own.next().ok_or_else(wrong).and_then(PacketSocket::adopt)?;
            let directories = helper["directories"].as_array().ok_or_else(wrong)?;
            let directories = directories.iter().map(path_from_json).collect::<Option<_>>();
            let owner = serde_json::from_value(helper["owner"].clone()).map_err(|_| wrong())?;
            let directories = directories.ok_or_else(wrong)?;
            mounts.push(HandedHelper { socket, directories, owner });
        }
        if own.next().is_some() {
            return Err(wrong());
        }
        let state = Self {
            sockets: InheritedSockets { listen, control, metrics, ..Default::default() },
            memory,
            private: path(&text["private"]).ok_or_else(wrong)?,
            pid_file: path(&text["pid_file"]).ok_or_else(wrong)?,
            mounts,
        };
        Ok((state, Handover { record: record.to_vec(), descriptors }))
    }
}

fn path_to_json(path: &Path) -> Value {
    path.to_str().map_or_else(|| json!(path.as_os_str().as_bytes()), Value::from)
}

fn path_from_json(value: &Value) -> Option<PathBuf> {
    if let Some(text) = value.as_str() {
        return Some(text.into());
    }
    let byte = |byte: &Value| byte.as_u64().and_then(|byte| u8::try_from(byte).ok());
    let bytes: Option<Vec<u8>> = value.as_array()?.iter().map(byte).collect();
    bytes.map(|bytes| OsString::from_vec(bytes).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::net::TcpListener;
    use std::os::unix::fs::MetadataExt;

    fn file() -> File {
        File::open("/dev/null").unwrap()
    }

    fn socket() -> InheritedSocket {
        InheritedSocket::new(TcpListener::bind("127.0.0.1:0").unwrap().into()).unwrap()
    }

    fn helper(owner: Option<(u32, u32)>) -> HandedHelper {
        let socket = PacketSocket::pair().unwrap().0;
        HandedHelper { socket, directories: vec!["/a".into(), "/b".into()], owner }
    }

    #[test]
    fn helper_without_its_socket_is_refused() {
        let state = ProcessState { mounts: vec![helper(None)], ..Default::default() };
        let mut joined = state.join(server(0)).unwrap();
        joined.descriptors[0] = file().into();
        assert!(ProcessState::split(joined).err().unwrap().contains("SOCK_SEQPACKET"));
    }

    fn server(descriptors: usize) -> Handover {
        let descriptors = (0..descriptors).map(|_| file().into()).collect();
        Handover { record: b"the server's".to_vec(), descriptors }
    }

    #[test]
    fn state_and_server_record_come_apart_as_joined() {
        let sockets = InheritedSockets {
            listen: vec![socket(), socket()],
            control: None,
            metrics: Some(socket()),
            ..Default::default()
        };
        let places = |sockets: &InheritedSockets| {
            let all = sockets.listen.iter().chain(&sockets.metrics);
            all.map(|socket| socket.place().unwrap()).collect::<Vec<_>>()
        };
        let expected = places(&sockets);
        let odd = PathBuf::from(OsString::from_vec(b"/run/\xff/x".to_vec()));
        let memory = StoredMemory {
            file: File::open("/proc/self/exe").unwrap(),
            shown: "memory".into(),
            path: Some(odd.clone()),
            stored_as: Some("headworks-cache-1".into()),
        };
        let inode = memory.file.metadata().unwrap().ino();
        let state = ProcessState {
            sockets,
            memory: Some(memory),
            private: Some("/p".into()),
            pid_file: None,
            mounts: vec![helper(Some((7, 8))), helper(None)],
        };
        let joined = state.join(server(3)).unwrap();
        assert_eq!(joined.descriptors.len(), 9);
        let (state, handover) = ProcessState::split(joined).unwrap();
        assert_eq!(
            (handover.record.as_slice(), handover.descriptors.len()),
            (&b"the server's"[..], 3)
        );
        assert_eq!(places(&state.sockets), expected);
        let memory = state.memory.unwrap();
        assert_eq!(memory.file.metadata().unwrap().ino(), inode);
        assert_eq!(
            (memory.path, memory.stored_as.as_deref()),
            (Some(odd), Some("headworks-cache-1"))
        );
        assert_eq!((state.private, state.pid_file), (Some("/p".into()), None));
        let helpers = state.mounts.iter().map(|one| (one.directories.len(), one.owner));
        assert_eq!(helpers.collect::<Vec<_>>(), [(2, Some((7, 8))), (2, None)]);
        assert_eq!(state.mounts[0].directories[1], Path::new("/b"));
    }

    #[test]
    fn empty_state_is_joined_and_split() {
        let joined = ProcessState::default().join(server(0)).unwrap();
        let (state, handover) = ProcessState::split(joined).unwrap();
        assert!(state.memory.is_none() && state.sockets.listen.is_empty());
        assert_eq!(handover.record, b"the server's");
    }

    #[test]
    fn damaged_records_are_refused_without_a_panic() {
        let good = ProcessState::default().join(server(0)).unwrap().record;
        for length in 0..good.len() - server(0).record.len() {
            let cut = Handover { record: good[..length].to_vec(), descriptors: Vec::new() };
            let error = ProcessState::split(cut).err().unwrap();
            assert!(error.contains("is damaged"), "{length}: {error}");
        }
        let with = |text: &str, descriptors| {
            let length = (text.len() as u32).to_le_bytes();
            let record = [&length[..], text.as_bytes()].concat();
            ProcessState::split(Handover { record, ..server(descriptors) }).err().unwrap()
        };
        assert!(with(r#"{"version":2}"#, 0).contains("version 2, this program reads 1"));
        let more = r#"{"version":1,"descriptors":2,"listen":0}"#;
        assert!(with(more, 1).contains("damaged"), "more descriptors than came");
        assert!(with(more, 2).contains("damaged"), "descriptors without a use");
        let file = r#"{"version":1,"descriptors":1,"listen":1}"#;
        assert!(with(file, 1).contains("file descriptor"), "no listening socket");
        let many = r#"{"version":1,"descriptors":0,"listen":99999999999}"#;
        assert!(with(many, 0).contains("damaged"));
    }
}
