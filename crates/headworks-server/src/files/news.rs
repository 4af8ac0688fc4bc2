//! What the thread of a directory is told, by the listener, the exports and the files themselves.

use super::FuseClient;

/// What a directory's thread is told.
pub enum DirectoryNews {
    /// Clients are served from now on, or the exports have changed.
    Exports,
    /// A file has left its shard.
    Ended(Box<FuseClient>),
    /// The listener is closed.
    Close,
}
