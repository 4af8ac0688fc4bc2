//! What the thread of a directory is told, by the listener, the exports and the files themselves.

use std::sync::mpsc::Sender;

use headworks_core::ExportId;

use super::FuseClient;

/// What a directory's thread is told.
pub enum DirectoryNews {
    /// Clients are served from now on, or the exports have changed.
    Exports,
    /// A file has left its shard.
    Ended(Box<FuseClient>),
    /// Asks what became of the file of an export, of which the directory has been told.
    Ask(ExportId, Sender<String>),
    /// The listener is closed.
    Close,
}
