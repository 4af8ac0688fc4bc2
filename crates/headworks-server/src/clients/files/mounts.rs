//! What mounts the files of a server, as the process that runs it gives it.

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::Path;

/// Mounts files for a server, that only the user of the mounting process may use.
pub trait Mounts: fmt::Debug + Send + Sync {
    /// Whether files can be mounted in a directory.
    fn knows(&self, directory: &Path) -> bool;

    /// Mounts a file of this name in a directory; returns its device.
    ///
    /// # Errors
    /// A sentence why not.
    fn mount(&self, directory: &Path, file: &str) -> Result<OwnedFd, String>;

    /// Unmounts it.
    ///
    /// # Errors
    /// A sentence why it stays.
    fn unmount(&self, directory: &Path, file: &str) -> Result<(), String>;
}
