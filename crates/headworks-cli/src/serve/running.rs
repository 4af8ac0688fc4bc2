//! A server that runs, with what its process holds for it: addresses, files and the cache's memory.
//!
//! Invariant: what is removed with it (private directory, pid file) belongs to this process alone.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use headworks_server::Server;

use super::address::PrivateDirectory;
use super::announced_export::AnnouncedExport;
use super::cache_file::CacheStore;
use super::listen::AnnouncedListener;
use super::mounts::MountHelpers;
use super::pid_file::PidFile;
use super::systemd::InheritedSockets;
use super::upgrade::ProcessState;

/// A server that runs, and what the process has for it.
pub(super) struct Running {
    pub server: Server,
    pub exports: Vec<AnnouncedExport>,
    /// Listeners with exports of their own.
    pub listeners: Vec<AnnouncedListener>,
    /// There is a listener that offers every export with the server's options.
    pub has_default: bool,
    pub notes: Vec<String>,
    /// Upper limit of dirty bytes.
    pub dirty_limit: String,
    pub cache_bytes: u64,
    /// Time limit of a shutdown; none means unlimited.
    pub stop: Option<Duration>,
    pub unix: Option<PathBuf>,
    pub port: Option<u16>,
    /// Addresses with the same exports that the URIs do not name.
    pub further: Vec<String>,
    pub control: Option<PathBuf>,
    /// Directory of the private socket, removed with this.
    pub private: Option<PrivateDirectory>,
    pub pid_file: Option<PidFile>,
    /// The cache's memory, removed when everything in it is written out.
    pub store: CacheStore,
    /// Sockets of the service manager.
    pub sockets: InheritedSockets,
    /// What mounts files of FUSE; none if there are no such files.
    pub mounts: Option<Arc<MountHelpers>>,
}

impl Running {
    /// Where dirty data outlive the server; none if they do not.
    pub fn kept_in(&self) -> Option<&str> {
        self.store.shown().filter(|_| self.server.keeps_cache())
    }

    /// URI of the first export that clients can reach.
    pub fn first_uri(&self) -> Option<&str> {
        let mut uris = self.exports.iter().map(|export| export.uri.as_str());
        uris.find(|uri| uri.starts_with("nbd"))
    }

    /// What a process that replaces this one gets beside the server's state.
    pub fn process_state(&self) -> io::Result<ProcessState> {
        Ok(ProcessState {
            sockets: self.sockets.sockets(),
            memory: self.store.to_hand_over()?,
            private: self.private.as_ref().map(|private| private.path().to_owned()),
            pid_file: self.pid_file.as_ref().map(|file| file.path().to_owned()),
            mounts: self.mounts.as_ref().map_or(Ok(Vec::new()), |helpers| helpers.hand_over())?,
        })
    }

    /// Where dirty data lie, and what that means.
    pub fn dirty_place(&self) -> String {
        match self.kept_in() {
            Some(place) => format!("in {place}, where the next server finds them"),
            None => {
                let why = self.store.why_anonymous();
                let why = why.map(|why| format!(": {why}")).unwrap_or_default();
                format!(
                    "in anonymous memory, which a killed server takes with it (--cache-file){why}"
                )
            }
        }
    }
}
