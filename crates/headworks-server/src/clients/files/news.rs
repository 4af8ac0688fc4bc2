//! What the thread of a directory is told, by the listener, the exports and the files themselves.

use std::convert::Infallible;
use std::sync::mpsc::{Receiver, Sender};

use headworks_core::ExportId;

use super::FuseClient;

/// A file that is mounted.
#[derive(Debug)]
pub struct ServedFile {
    /// The export that is its content.
    pub export: ExportId,
    /// Its name in the directory.
    pub name: String,
    /// [`FuseClient::number`] of its client.
    pub client: u64,
}

/// What a directory's thread is told.
pub enum DirectoryNews {
    /// Clients are served from now on, or the exports have changed.
    Exports,
    /// A file has left its shard.
    Ended(Box<FuseClient>),
    /// Asks what became of the file of an export, of which the directory has been told.
    Ask(ExportId, Sender<String>),
    /// Another process may take over: nothing is mounted and unmounted before the other end of `end` is dropped. The answer has the names of
    /// all files that are mounted.
    Rest {
        /// Takes the answer.
        names: Sender<Vec<String>>,
        /// Nothing is sent.
        end: Receiver<Infallible>,
    },
    /// Another process has left, with these files; those without an heir, of these names, are unmounted.
    TakeOver {
        /// Files that are in their shards.
        files: Vec<ServedFile>,
        /// Names of mounts that no shard serves.
        ended: Vec<String>,
    },
    /// The listener is closed.
    Close,
}
