//! What a server leaves to the next one, alive or dead.
//!
//! ```text
//!   planned   `handover`: sockets, connections, cached data and settings go to a new process; clients notice nothing
//!   killed    `keeper` holds the memory with dirty data; `leftovers` finds it at the next start, `restoring` brings it into the cache
//!   no image  `recovery`: data whose image has changed or is gone become files
//! ```
//!
//! `marker` has the marks beside images of a server that did not end cleanly, `state_directory` the folder for what has no other place.

pub(crate) mod handover;
pub(crate) mod keeper;
pub(crate) mod leftovers;
pub(crate) mod marker;
pub(crate) mod recovery;
pub(crate) mod restoring;
pub(crate) mod state_directory;
