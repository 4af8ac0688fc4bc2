//! The pid file: created when clients can connect, removed at shutdown.
//!
//! It is created before privileges are dropped, so that it may lie where only root can write. Such a file can only be
//! truncated at shutdown, through the open descriptor. It is never given to the user, because root may act on its
//! content.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use headworks_core::ConfigError;

/// A pid file, removed on drop.
pub(super) struct PidFile {
    path: PathBuf,
    file: File,
}

impl PidFile {
    /// Creates the file with the process id.
    pub(super) fn write(path: &Path) -> Result<Self, ConfigError> {
        let written = File::create(path).and_then(|mut file| {
            writeln!(file, "{}", std::process::id())?;
            Ok(Self { path: path.to_owned(), file })
        });
        written.map_err(|error| {
            ConfigError::new("pid-file", format!("cannot write {}: {error}", path.display()))
        })
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
        self.remove();
    }
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
        let refused = PidFile::write(Path::new("/proc/headworks.pid")).err().unwrap();
        assert!(refused.message.contains("/proc/headworks.pid"), "{refused}");
    }
}
