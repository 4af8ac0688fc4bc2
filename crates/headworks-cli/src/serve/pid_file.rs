//! The file with the process id: made when clients may connect, taken away at the end.
//!
//! It is made before privileges are given up, so that it may lie where only root writes. There it can only be emptied at the
//! end, through the descriptor that was kept; it is never given to the user, for root may act on what it says.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use headworks_core::ConfigError;

/// The file; it goes with us.
pub(super) struct PidFile {
    path: PathBuf,
    file: File,
}

impl PidFile {
    /// Writes it.
    pub(super) fn write(path: &Path) -> Result<Self, ConfigError> {
        let written = File::create(path).and_then(|mut file| {
            writeln!(file, "{}", std::process::id())?;
            Ok(Self { path: path.to_owned(), file })
        });
        written.map_err(|error| {
            ConfigError::new("pid-file", format!("cannot write {}: {error}", path.display()))
        })
    }

    /// Takes it away, or empties it where that is not allowed any more.
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
    fn it_holds_the_id_and_goes() {
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
