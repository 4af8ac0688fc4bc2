//! The directory of an image, and making its entries durable.

use std::fs::File;
use std::io;
use std::path::Path;

/// The directory of a path.
#[must_use]
pub fn folder_of(path: &Path) -> &Path {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

/// Makes the directory entry of a new or removed file durable: `fdatasync` of the file alone need not. Nothing is done where a
/// directory cannot be read, or its filesystem has no such sync.
///
/// # Errors
/// The kernel's reason.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    match File::open(folder_of(path)).and_then(|folder| folder.sync_all()) {
        // A directory that cannot be read, or a filesystem without such a sync.
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(libc::EACCES | libc::EPERM | libc::EINVAL | libc::ENOTSUP)
            ) =>
        {
            Ok(())
        }
        result => result,
    }
}
