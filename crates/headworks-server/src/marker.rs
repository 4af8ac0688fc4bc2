//! A mark beside an image while acknowledged writes may be in memory only.
//!
//! It is made, durably, before an image with a write-back cache is served, and removed after a clean stop has written everything.
//! A start that finds it knows that the server before did not stop cleanly; with the id of another boot, that the host went
//! down with it.
//!
//! ```text
//!   IMAGE.headworks-dirty:  dirty-since 1790000000
//!                           boot-id 5c1b..
//! ```

use headworks::sync_directory;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// A mark that an earlier server left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unclean {
    /// When the mark was made, in seconds since 1970.
    pub since: u64,
    /// The host has not been started since.
    pub same_boot: bool,
}

/// The mark of one image; removed by [`Marker::remove`], and left behind by everything else.
#[derive(Clone, Debug)]
pub(crate) struct Marker(PathBuf);

fn boot_id() -> String {
    let read = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    read.map(|text| text.trim().to_owned()).unwrap_or_default()
}

impl Marker {
    /// The mark of the image at `path`.
    pub fn of(path: &Path) -> Self {
        let mut name = path.as_os_str().to_owned();
        name.push(".headworks-dirty");
        Self(name.into())
    }

    /// The mark that an earlier server left, if there is one.
    pub fn found(&self) -> Option<Unclean> {
        let text = std::fs::read_to_string(&self.0).ok()?;
        let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
        let since = value("dirty-since ").and_then(|word| word.parse().ok()).unwrap_or(0);
        let boot = boot_id();
        let same_boot = !boot.is_empty() && value("boot-id ") == Some(&boot);
        Some(Unclean { since, same_boot })
    }

    /// Whether there is a mark, which this process may be unable to read.
    pub fn exists(&self) -> bool {
        self.0.symlink_metadata().is_ok()
    }

    /// Makes the mark, durably.
    pub fn make(&self) -> io::Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let text = format!(
            "# headworks: acknowledged writes to this image may be in the memory of a server\ndirty-since {now}\nboot-id {}\n",
            boot_id()
        );
        let mut options = File::options();
        options.write(true).create(true).truncate(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        let mut file = options.open(&self.0)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        sync_directory(&self.0)
    }

    /// Removes the mark: everything is written out.
    pub fn remove(&self) -> io::Result<()> {
        match std::fs::remove_file(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => sync_directory(&self.0),
        }
    }
}

/// A sentence about an image whose last server did not stop cleanly and left no memory.
pub(crate) fn unclean_note(path: &Path, unclean: Unclean, refuses: bool) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let ago = now.saturating_sub(unclean.since);
    let how = match unclean.same_boot {
        true => "was killed, and its memory is gone",
        false => "went down with its host",
    };
    let then = match refuses {
        true => {
            "flushes fail until it is acknowledged (headworks ctl SOCKET discard-failed EXPORT --yes)"
        }
        false => "a client that has survived is not told (on-unclean=refuse-flush tells it)",
    };
    format!(
        "{}: the last server, started {ago} s ago, {how}: acknowledged writes that were not flushed may be lost; {then}",
        path.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks::testing::TempFile;

    #[test]
    fn mark_is_found_until_it_is_removed_and_tells_boots_apart() {
        let image = TempFile::absent("marked");
        let marker = Marker::of(image.path());
        assert_eq!(marker.found(), None);
        assert!(!marker.exists());
        marker.make().unwrap();
        assert!(marker.exists());
        let found = marker.found().unwrap();
        assert!(found.same_boot && found.since > 1_700_000_000, "{found:?}");
        let text = std::fs::read_to_string(&marker.0).unwrap().replace("boot-id ", "boot-id 0");
        std::fs::write(&marker.0, text).unwrap();
        assert!(!marker.found().unwrap().same_boot);
        marker.remove().unwrap();
        assert_eq!(marker.found(), None);
        marker.remove().unwrap();
    }
}
