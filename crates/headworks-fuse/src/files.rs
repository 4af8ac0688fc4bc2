//! Files that are mounts: each is the root of a file system of its own, with a device of its own.
//!
//! ```text
//!   mount NAME:    empty file made in the directory --> mount on it --> the device, which a server reads
//!   unmount NAME:  lazily; then the empty file is removed
//! ```
//!
//! So the server of a file needs no directory and knows no other file. All processes see the mounts, and only one user may use them: that of the
//! mounting process, or the one that it was told. A mount that outlives its server answers ENOTCONN; the next start on the same directory removes it.
//!
//! Invariants: no file with a byte in it is ever covered or removed, no mount of another name is ever touched; a dropped directory has none
//! of its mounts left.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::mount::{self, Way};
use crate::wire::NAME_MAX;

/// A directory with files that are mounts.
#[derive(Debug)]
pub struct MountedFiles {
    directory: PathBuf,
    /// Name of the mounts in the table of mounts.
    name: String,
    /// User and group that may use the files.
    owner: (u32, u32),
    mounted: Vec<(String, Way)>,
}

impl MountedFiles {
    /// Files in a directory, whose mounts are called `name`. Those that a server left when it was killed are removed.
    ///
    /// # Errors
    /// It is no directory.
    pub fn open(directory: &Path, name: &str) -> io::Result<Self> {
        let directory = directory.canonicalize()?;
        if !directory.is_dir() {
            return Err(io::Error::from_raw_os_error(libc::ENOTDIR));
        }
        let left = mount::stale(name, |path| path.parent() == Some(&directory));
        left.iter().for_each(|path| remove_empty(path));
        let owner = mount::this_user();
        Ok(Self { directory, name: name.to_owned(), owner, mounted: Vec::new() })
    }

    /// Has the files that are mounted from now on be used by this user and group, in place of this process's.
    #[must_use]
    pub fn owned_by(mut self, owner: (u32, u32)) -> Self {
        self.owner = owner;
        self
    }

    /// Checks whether a file of this name could be mounted in a directory, as far as that is known without a mount. A mount that is called `name`
    /// is no error: its server runs, or it is removed when the directory is opened.
    ///
    /// # Errors
    /// The name is none of a file, or something with content or another mount is there.
    pub fn check(directory: &Path, name: &str, file: &str) -> io::Result<()> {
        let path = path_in(&directory.canonicalize()?, file)?;
        let mounts = mount::mounts().into_iter().filter(|(mounted, _)| *mounted == path);
        let mut mounts = mounts.map(|(_, of)| of).peekable();
        if mounts.peek().is_some() {
            // What is mounted is not looked at: its server may be the one that asks.
            return if mounts.all(|of| of == name) { Ok(()) } else { Err(is_covered()) };
        }
        match fs::symlink_metadata(&path) {
            Ok(found) => suits(&found),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Mounts a file, which gets this name; returns its device.
    ///
    /// # Errors
    /// The name is none of a file, something with content or another mount is there, or no way leads to a mount.
    pub fn mount(&mut self, file: &str) -> io::Result<OwnedFd> {
        let path = self.path_of(file)?;
        if mount::mounts().iter().any(|(mounted, _)| *mounted == path) {
            return Err(is_covered());
        }
        let below = empty_file(&path)?;
        let mounted = mount::mount_file(below.as_fd(), &path, &self.name, self.owner);
        let (way, device) = mounted.inspect_err(|_| remove_empty(&path))?;
        self.mounted.push((file.to_owned(), way));
        Ok(device)
    }

    /// Unmounts a file, and removes it. Programs that have it open get ENOTCONN when its device is closed.
    ///
    /// # Errors
    /// It is not mounted here, or stays.
    pub fn unmount(&mut self, file: &str) -> io::Result<()> {
        let path = self.path_of(file)?;
        let place = self.mounted.iter().position(|(name, _)| name == file);
        let (_, way) = self.mounted.remove(place.ok_or(io::ErrorKind::NotFound)?);
        // One that its user has unmounted is gone; what is there now is not ours.
        let is_ours = |(mounted, name): &(PathBuf, String)| *mounted == path && *name == self.name;
        if mount::mounts().iter().any(is_ours) {
            mount::unmount(way, &path)?;
        }
        remove_empty(&path);
        Ok(())
    }

    fn path_of(&self, file: &str) -> io::Result<PathBuf> {
        path_in(&self.directory, file)
    }
}

impl Drop for MountedFiles {
    fn drop(&mut self) {
        while let Some((file, _)) = self.mounted.last().cloned() {
            let _ = self.unmount(&file);
        }
    }
}

fn path_in(directory: &Path, file: &str) -> io::Result<PathBuf> {
    let is_name = !file.is_empty() && file.len() <= NAME_MAX && !file.contains(['/', '\0']);
    match is_name && file != "." && file != ".." {
        true => Ok(directory.join(file)),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no name of a file")),
    }
}

fn is_covered() -> io::Error {
    io::Error::new(io::ErrorKind::AlreadyExists, "something is mounted there")
}

/// Checks that a file may be covered.
fn suits(found: &Metadata) -> io::Result<()> {
    match found.is_file() && found.len() == 0 && found.nlink() == 1 {
        true => Ok(()),
        false => {
            Err(io::Error::new(io::ErrorKind::AlreadyExists, "there is another file of this name"))
        }
    }
}

/// The empty file at a path, which is made if there is none.
fn empty_file(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = options.open(path)?;
    suits(&file.metadata()?)?;
    Ok(file)
}

/// Removes a file without content.
fn remove_empty(path: &Path) {
    if fs::symlink_metadata(path).is_ok_and(|found| found.is_file() && found.len() == 0) {
        let _ = fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("hw-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        let folder = Folder::new("fuse-names");
        let mut files = MountedFiles::open(&folder.0, "hw-test").unwrap();
        for name in ["", ".", "..", "a/b", "/etc/passwd", "a\0", &"x".repeat(256)] {
            let checked = MountedFiles::check(&folder.0, "hw-test", name).unwrap_err();
            for error in [files.mount(name).unwrap_err(), checked] {
                assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{name:?}");
            }
        }
        assert!(files.unmount("a").is_err(), "it is not mounted");
        assert!(MountedFiles::open(&folder.0.join("none"), "hw-test").is_err());
    }

    #[test]
    fn files_with_content_and_links_are_left_alone() {
        let folder = Folder::new("fuse-content");
        let mut files = MountedFiles::open(&folder.0, "hw-test").unwrap();
        fs::write(folder.0.join("full"), "x").unwrap();
        fs::write(folder.0.join("target"), "").unwrap();
        std::os::unix::fs::symlink("target", folder.0.join("link")).unwrap();
        let check = |name| MountedFiles::check(&folder.0, "hw-test", name);
        for name in ["full", "link"] {
            files.mount(name).unwrap_err();
            check(name).unwrap_err();
        }
        assert!(check("new").is_ok() && check("target").is_ok());
        assert!(!folder.0.join("new").exists(), "a check makes nothing");
        drop(files);
        assert_eq!(fs::read_to_string(folder.0.join("full")).unwrap(), "x");
        assert!(folder.0.join("link").is_symlink());
    }
}
