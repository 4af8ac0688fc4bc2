//! The pid file: created when clients can connect, removed at shutdown.
//!
//! It is created before privileges are dropped, so that it may lie where only root can write. Such a file can only be
//! truncated at shutdown, through the open descriptor. It is never given to the user, because root may act on its
//! content, and a symbolic link is refused, which could lead to any file, as is everything but a regular file ([`open_own`]). A process that replaces another one opens it as early, and changes it when it serves.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use headworks::house::safe_open::open_own;
use headworks_core::ConfigError;

/// A pid file, removed on drop once it has this process's id.
pub(super) struct PidFile {
    path: PathBuf,
    file: File,
    is_own: bool,
}

impl PidFile {
    /// Creates the file with the process id.
    pub(super) fn write(path: &Path) -> Result<Self, ConfigError> {
        let mut file = Self::open(path)?;
        file.fill()?;
        Ok(file)
    }

    /// Opens the file, which may have the id of the process that is to be replaced, and changes nothing.
    pub(super) fn open(path: &Path) -> Result<Self, ConfigError> {
        let mut options = File::options();
        options.write(true).create(true).truncate(false);
        let opened = open_own(path, &mut options);
        let file = opened.map_err(|error| cannot_write(path, &error))?;
        Ok(Self { path: path.to_owned(), file, is_own: false })
    }

    /// Writes the process id.
    pub(super) fn fill(&mut self) -> Result<(), ConfigError> {
        let id = format!("{}\n", std::process::id());
        // The length changes last: a reader finds an id at any time.
        let written = self.file.write_all_at(id.as_bytes(), 0);
        let written = written.and_then(|()| self.file.set_len(id.len() as u64));
        self.is_own = true;
        written.map_err(|error| cannot_write(&self.path, &error))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the file, or truncates it where that is no longer allowed.
    pub(super) fn remove(&self) {
        if std::fs::remove_file(&self.path).is_err() {
            let _ = self.file.set_len(0);
        }
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        if self.is_own {
            self.remove();
        }
    }
}

fn cannot_write(path: &Path, error: &std::io::Error) -> ConfigError {
    ConfigError::new("pid-file", format!("cannot write {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_holds_the_id_and_is_removed() {
        let path = std::env::temp_dir().join(format!("headworks-pid-{}", std::process::id()));
        let file = PidFile::write(&path).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, format!("{}\n", std::process::id()));
        drop(file);
        assert!(!path.exists());
        std::fs::write(&path, "1234567890\n").unwrap();
        drop(PidFile::open(&path).unwrap());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "1234567890\n", "of another process");
        let mut file = PidFile::open(&path).unwrap();
        file.fill().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        drop(file);
        assert!(!path.exists());
        let refused = PidFile::write(Path::new("/proc/headworks.pid")).err().unwrap();
        assert!(refused.message.contains("/proc/headworks.pid"), "{refused}");
    }

    #[test]
    fn symbolic_link_is_refused_and_its_file_kept() {
        let at =
            |name| std::env::temp_dir().join(format!("headworks-{name}-{}", std::process::id()));
        let (target, link) = (at("pid-target"), at("pid-link"));
        std::fs::write(&target, "precious").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        let refused = PidFile::write(&link).err().unwrap();
        assert!(refused.message.contains("it is a symbolic link"), "{refused}");
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "precious");
        std::fs::remove_file(&link).unwrap();
        std::fs::hard_link(&target, &link).unwrap();
        let refused = PidFile::write(&link).err().unwrap();
        assert!(refused.message.contains("hard links"), "{refused}");
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "precious");
        std::fs::remove_file(&link).unwrap();
        std::fs::remove_file(&target).unwrap();
    }

    #[test]
    fn fifo_is_refused_at_once() {
        let path = std::env::temp_dir().join(format!("headworks-pid-fifo-{}", std::process::id()));
        let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: a valid C string.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        let refused = PidFile::write(&path).err().unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(refused.message.ends_with("it is a FIFO, not a regular file"), "{refused}");
    }
}
