//! A mark beside an image while acknowledged writes may be in memory only.
//!
//! It is made, durably, before an image with a write-back cache is served, and removed after a clean stop has written everything.
//! A start that finds it knows that the server before did not stop cleanly; with the id of another boot, that the host went
//! down with it. It names the image: the mark of a file that was replaced since says nothing of its successor.
//!
//! ```text
//!   IMAGE.headworks-dirty:  dirty-since 1790000000
//!                           boot-id 5c1b..
//!                           image 0afe..
//!                           made-at 1790000000123456789
//!                           memory /run/headworks-0/headworks-cache
//! ```
//!
//! What has no directory of its own has its mark in the state directory, named by the identity: a block device, a remote, an image of a cluster
//! ([`place_of_mark`]). None of these outlives a start of the host under the same identity but remotes and images of clusters.
//!
//! The user that a server becomes may be unable to remove it: then it is emptied through a descriptor of before, and an empty mark is
//! none.
//!
//! The directory may belong to another user. A mark is a regular file of at most [`MARK_MAX`] bytes; whatever else has its name says
//! nothing, and is replaced. A start that fails puts back what it found ([`Marker::undo`]).

use crate::spec::BaseDevice;
use crate::successor::state_directory::{make_directory, own_directory};
use headworks::house::safe_open::{open_own, read_own};
use headworks::house::sync_directory;
use headworks_house::Identity;
use std::fs::{File, Metadata};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Most bytes of a mark.
const MARK_MAX: u64 = 4096;

/// A mark that an earlier server left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unclean {
    /// When the mark was made, in seconds since 1970.
    pub since: u64,
    /// The host has not been started since.
    pub same_boot: bool,
    /// The same as `since` in nanoseconds, as exact as the mark says.
    pub made_at: u64,
}

impl Unclean {
    /// Whether the memory of a server that was alive at `alive`, in nanoseconds since 1970, has all that this tells of. A later mark is of
    /// another server, which had the image after that one.
    pub fn is_covered(&self, alive: u64) -> bool {
        self.same_boot && self.made_at <= alive
    }
}

/// What this process has done with a mark.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Done {
    /// Nothing: it is that of an earlier server.
    Found,
    /// It was made where there was none.
    Made,
    /// It was made in place of one with this content.
    Replaced(Vec<u8>),
}

/// The mark of one image; removed by [`Marker::remove`], and left behind by everything else.
#[derive(Clone, Debug)]
pub(crate) struct Marker {
    path: PathBuf,
    done: Done,
    /// How far the clock of its filesystem is ahead of this machine's, in nanoseconds.
    ahead: u64,
    /// The mark that was made, open for writing.
    file: Option<Arc<File>>,
    /// Path of the memory in which the writes are, for a mark that is made.
    memory: Option<PathBuf>,
}

/// Nanoseconds since 1970.
pub(crate) fn nanoseconds() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.as_nanos() as u64
}

/// When content or status of a file were last changed, in nanoseconds since 1970.
pub(crate) fn changed_at(found: &Metadata) -> u64 {
    (found.ctime() as u64).wrapping_mul(1_000_000_000).wrapping_add(found.ctime_nsec() as u64)
}

fn boot_id() -> String {
    let read = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    read.map(|text| text.trim().to_owned()).unwrap_or_default()
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Directory of the marks that lie beside no image.
const MARKS: &str = "marks";

/// The path beside which the mark of an image lies, whatever names lead to the image; none of what ends with its process.
pub(crate) fn place_of_mark(base: &BaseDevice, identity: Option<Identity>) -> Option<PathBuf> {
    place_of_image(base.path(), identity?)
}

/// As [`place_of_mark`], of an image with or without a path.
fn place_of_image(path: Option<&Path>, identity: Identity) -> Option<PathBuf> {
    match path.filter(|_| !identity.is_disk()) {
        Some(path) => Some(std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())),
        None => own_directory(MARKS).ok().map(|marks| marks.join(identity.to_string())),
    }
}

impl Marker {
    /// The mark beside `path` ([`place_of_mark`]).
    pub fn of(path: &Path) -> Self {
        Self {
            path: with_suffix(path, ".headworks-dirty"),
            done: Done::Found,
            ahead: 0,
            file: None,
            memory: None,
        }
    }

    /// The same of a server whose memory is at a path.
    pub fn with_memory(self, memory: Option<PathBuf>) -> Self {
        Self { memory, ..self }
    }

    /// Where the memory is that a mark names.
    pub fn memory(&self) -> Option<PathBuf> {
        let bytes = read_own(&self.path, MARK_MAX).ok()?;
        let text = String::from_utf8(bytes).ok()?;
        text.lines().find_map(|line| line.strip_prefix("memory ")).map(PathBuf::from)
    }

    /// The mark of an image that an earlier server had at `path`, which is not opened.
    pub fn of_image(path: &Path, image: Identity) -> Option<Self> {
        place_of_image(Some(path), image).map(|place| Self::of(&place))
    }

    /// The mark that an earlier server left of `image`, if there is one.
    pub fn found(&self, image: Identity) -> Option<Unclean> {
        let bytes = read_own(&self.path, MARK_MAX).ok()?;
        let text = String::from_utf8_lossy(&bytes);
        if text.is_empty() {
            return None;
        }
        let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
        let marked = value("image ").and_then(|word| word.parse::<Identity>().ok());
        if marked.is_some_and(|marked| !marked.is_same_file(&image)) {
            return None;
        }
        let since = value("dirty-since ").and_then(|word| word.parse().ok()).unwrap_or(0);
        let made_at = value("made-at ").and_then(|word| word.parse().ok());
        // Earlier versions write seconds alone.
        let made_at = made_at.unwrap_or_else(|| u64::saturating_mul(since, 1_000_000_000));
        let boot = boot_id();
        let same_boot = !boot.is_empty() && value("boot-id ") == Some(&boot);
        Some(Unclean { since, same_boot, made_at })
    }

    /// Whether there is a mark of `image`, or one that this process may not read.
    pub fn may_tell_of(&self, image: Identity) -> bool {
        self.found(image).is_some() || self.is_hidden()
    }

    /// Whether there is a mark that this process may not read.
    pub fn is_hidden(&self) -> bool {
        let refused = |error: io::Error| error.kind() == io::ErrorKind::PermissionDenied;
        read_own(&self.path, MARK_MAX).is_err_and(refused)
    }

    /// Whether there is a mark, which this process may be unable to read.
    #[cfg(test)]
    pub fn exists(&self) -> bool {
        self.path.symlink_metadata().is_ok()
    }

    /// Makes the mark of `image`, durably; the returned one knows what was there before. It says `now`, in nanoseconds since 1970.
    pub fn make(self, image: Identity, now: u64) -> io::Result<Self> {
        let text = format!(
            "# headworks: acknowledged writes to this image may be in the memory of a server\ndirty-since {}\nboot-id {}\nimage {image}\nmade-at {now}\n",
            now / 1_000_000_000,
            boot_id()
        );
        let memory = self.memory.iter().map(|path| format!("memory {}\n", path.display()));
        // A path of several lines is left out.
        let text = text + &memory.filter(|line| line.lines().count() == 1).collect::<String>();
        let parent = self.path.parent().map(Path::to_owned);
        if own_directory(MARKS).is_ok_and(|marks| Some(marks) == parent) {
            make_directory(MARKS).map_err(io::Error::other)?;
        }
        let before = read_own(&self.path, MARK_MAX).ok();
        let (file, ahead) = self.write(text.as_bytes())?;
        let done = before.map_or(Done::Made, Done::Replaced);
        Ok(Self { done, ahead, file: Some(Arc::new(file)), ..self })
    }

    /// How far the clock of the mark's filesystem is ahead of this machine's, in nanoseconds; 0 for a mark that was not made here.
    pub fn clock_ahead(&self) -> u64 {
        self.ahead
    }

    /// Opens a mark that is there for writing, while that is allowed.
    pub fn hold(self) -> Self {
        let file = open_own(&self.path, File::options().write(true)).ok().map(Arc::new);
        Self { file, ..self }
    }

    /// Gives the mark this content in one step; returns it, and how far the clock of the filesystem is ahead.
    fn write(&self, text: &[u8]) -> io::Result<(File, u64)> {
        let new = with_suffix(&self.path, ".new");
        // One that a killed server left.
        let _ = std::fs::remove_file(&new);
        let mut options = File::options();
        // No link is followed, and nothing that is there is opened.
        let mut file = options.write(true).create_new(true).mode(0o600).open(&new)?;
        let before = nanoseconds();
        let written = file.write_all(text).and_then(|()| file.sync_all());
        let changed = written.and_then(|()| file.metadata()).map(|found| changed_at(&found));
        let after = nanoseconds();
        let renamed = changed.and_then(|at| std::fs::rename(&new, &self.path).map(|()| at));
        if renamed.is_err() {
            let _ = std::fs::remove_file(&new);
        }
        let changed = renamed?;
        sync_directory(&self.path)?;
        // A time between is of our clock.
        Ok((file, if changed > after { changed.saturating_sub(before) } else { 0 }))
    }

    /// Removes the mark: everything is written out.
    pub fn remove(&self) -> io::Result<()> {
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                self.file.as_ref().ok_or(error).and_then(|file| fill(file, &[]))
            }
            _ => sync_directory(&self.path),
        }
    }

    /// Puts back what was there before [`Marker::make`]: nothing was served.
    pub fn undo(&self) -> io::Result<()> {
        match &self.done {
            Done::Found => Ok(()),
            Done::Made => self.remove(),
            Done::Replaced(text) => match (self.write(text), &self.file) {
                (Err(_), Some(file)) => fill(file, text),
                (written, _) => written.map(drop),
            },
        }
    }
}

/// Replaces the content of a mark, durably, where its directory cannot be changed.
fn fill(file: &File, text: &[u8]) -> io::Result<()> {
    file.set_len(0)?;
    file.write_all_at(text, 0)?;
    file.sync_all()
}

/// A sentence about an image whose mark is another user's.
pub(crate) fn hidden_note(shown: &str) -> String {
    format!(
        "{shown}: the mark beside it is another user's: acknowledged writes may be in the memory of a server that was killed; serve it once as that user"
    )
}

/// A sentence about an image whose last server did not stop cleanly and left no memory to this start.
///
/// `memory` is where it is, if this start did not look there.
pub(crate) fn unclean_note(
    shown: &str,
    unclean: Unclean,
    refuses: bool,
    memory: Option<PathBuf>,
) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let ago = now.saturating_sub(unclean.since);
    let how = match (unclean.same_boot, &memory) {
        (true, Some(path)) => format!(
            "was killed, and its memory is {}, which this start does not look into (--cache-file)",
            path.display()
        ),
        (true, None) => "was killed, and its memory is gone".to_owned(),
        (false, _) => "went down with its host".to_owned(),
    };
    let lost = if memory.is_some() { "may be only there" } else { "may be lost" };
    let then = match refuses {
        true => {
            "flushes fail until it is acknowledged (headworks ctl SOCKET discard-failed EXPORT --yes)"
        }
        false => "a client that has survived is not told (on-unclean=refuse-flush tells it)",
    };
    format!(
        "{shown}: the last server, started {ago} s ago, {how}: acknowledged writes that were not flushed {lost}; {then}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Spec;
    use headworks_testing::TempFile;
    use std::os::unix::fs::symlink;

    fn identity(image: &TempFile) -> Identity {
        Identity::of(image.path()).unwrap()
    }

    /// A remote has no directory: its mark is where the next server looks for it, too.
    #[test]
    fn mark_of_a_remote_lies_in_the_state_directory_until_it_is_removed() {
        let (image, spec) = (TempFile::new("place"), |text: &str| Spec::parse(text).unwrap().base);
        let file = spec(&format!("file:path={}", image.path().display()));
        let beside = place_of_mark(&file, Some(identity(&image)));
        assert_eq!(beside, std::fs::canonicalize(image.path()).ok());
        assert_eq!(place_of_mark(&file, None), None);
        let remote = spec("nbd:uri=nbd+unix:///?socket=/run/store");
        let BaseDevice::Nbd(of_remote) = &remote else { panic!("{remote:?}") };
        let identity = of_remote.identity();
        let place = place_of_mark(&remote, Some(identity)).unwrap();
        assert!(place.starts_with(own_directory(MARKS).unwrap()));
        let made = Marker::of(&place).make(identity, nanoseconds()).unwrap();
        let again = place_of_mark(&remote, Some(identity)).unwrap();
        assert!(Marker::of(&again).found(identity).is_some_and(|unclean| unclean.same_boot));
        made.remove().unwrap();
        assert_eq!(Marker::of(&again).found(identity), None);
    }

    #[test]
    fn mark_is_found_until_it_is_removed_and_tells_boots_apart() {
        let image = TempFile::new("marked");
        let marker = Marker::of(image.path());
        assert_eq!(marker.found(identity(&image)), None);
        assert!(!marker.exists());
        let marker = marker.make(identity(&image), nanoseconds()).unwrap();
        assert!(marker.exists());
        let found = marker.found(identity(&image)).unwrap();
        assert!(found.same_boot && found.since > 1_700_000_000, "{found:?}");
        let text = std::fs::read_to_string(&marker.path).unwrap().replace("boot-id ", "boot-id 0");
        std::fs::write(&marker.path, text).unwrap();
        assert!(!marker.found(identity(&image)).unwrap().same_boot);
        marker.remove().unwrap();
        assert_eq!(marker.found(identity(&image)), None);
        marker.remove().unwrap();
    }

    #[test]
    fn mark_of_a_replaced_file_is_none_of_its_successor() {
        let (image, other) = (TempFile::new("mark-replaced"), TempFile::new("mark-successor"));
        let marker = Marker::of(image.path()).make(identity(&image), nanoseconds()).unwrap();
        std::fs::rename(other.path(), image.path()).unwrap();
        assert_eq!(marker.found(identity(&image)), None);
        // A mark of an earlier version names none.
        std::fs::write(&marker.path, "dirty-since 5\n").unwrap();
        let unclean = Unclean { since: 5, same_boot: false, made_at: 5_000_000_000 };
        assert_eq!(marker.found(identity(&image)), Some(unclean));
        marker.remove().unwrap();
    }

    #[test]
    fn memory_covers_the_marks_of_its_server_alone() {
        let image = TempFile::new("mark-covered");
        let marker = Marker::of(image.path()).make(identity(&image), nanoseconds()).unwrap();
        let made = marker.found(identity(&image)).unwrap();
        assert!(made.is_covered(nanoseconds()) && !made.is_covered(made.made_at - 1), "{made:?}");
        let text = std::fs::read_to_string(&marker.path).unwrap();
        // An earlier version says the second alone.
        let seconds = text.lines().filter(|line| !line.starts_with("made-at")).collect::<Vec<_>>();
        std::fs::write(&marker.path, seconds.join("\n")).unwrap();
        let old = marker.found(identity(&image)).unwrap();
        assert_eq!(old.made_at, made.since * 1_000_000_000);
        std::fs::write(&marker.path, text.replace("boot-id ", "boot-id 0")).unwrap();
        assert!(!marker.found(identity(&image)).unwrap().is_covered(u64::MAX));
        marker.remove().unwrap();
    }

    #[test]
    fn emptied_mark_is_none() {
        let image = TempFile::new("mark-emptied");
        let made = Marker::of(image.path()).make(identity(&image), nanoseconds()).unwrap();
        // As where the directory may not be changed.
        fill(made.file.as_ref().unwrap(), &[]).unwrap();
        assert!(made.exists() && made.found(identity(&image)).is_none());
        let held = Marker::of(image.path()).hold();
        fill(held.file.as_ref().unwrap(), b"dirty-since 5\n").unwrap();
        assert!(made.found(identity(&image)).is_some());
        made.remove().unwrap();
        assert!(Marker::of(image.path()).hold().file.is_none());
    }

    #[test]
    fn failed_start_leaves_marks_as_they_were() {
        let image = TempFile::new("mark-undone");
        let marker = Marker::of(image.path());
        marker.clone().make(identity(&image), nanoseconds()).unwrap().undo().unwrap();
        assert!(!marker.exists(), "there was none");
        std::fs::write(&marker.path, "dirty-since 5\nboot-id of-another-boot\n").unwrap();
        let made = marker.clone().make(identity(&image), nanoseconds()).unwrap();
        assert!(marker.found(identity(&image)).unwrap().same_boot);
        made.undo().unwrap();
        let unclean = Unclean { since: 5, same_boot: false, made_at: 5_000_000_000 };
        assert_eq!(marker.found(identity(&image)), Some(unclean));
        marker.undo().unwrap();
        assert!(marker.exists(), "it is that of another server");
        marker.remove().unwrap();
    }

    #[test]
    fn fifos_and_links_are_no_marks_and_are_replaced_and_not_followed() {
        let (image, precious) = (TempFile::new("mark-hostile"), TempFile::absent("mark-precious"));
        std::fs::write(precious.path(), "precious").unwrap();
        let marker = Marker::of(image.path());
        let place = marker.path.clone();
        let plants: [&dyn Fn(); 4] = [
            &|| {
                let made = std::process::Command::new("mkfifo").arg(&place).status().unwrap();
                assert!(made.success());
            },
            &|| symlink("/dev/zero", &place).unwrap(),
            &|| symlink(precious.path(), &place).unwrap(),
            &|| std::fs::hard_link(precious.path(), &place).unwrap(),
        ];
        for plant in plants {
            plant();
            assert_eq!(marker.found(identity(&image)), None);
            let made = marker.clone().make(identity(&image), nanoseconds()).unwrap();
            assert!(marker.found(identity(&image)).is_some());
            assert!(std::fs::symlink_metadata(&place).unwrap().is_file());
            made.undo().unwrap();
            assert!(!marker.exists());
        }
        // A name for the new mark that leads elsewhere.
        symlink(precious.path(), with_suffix(&place, ".new")).unwrap();
        marker.clone().make(identity(&image), nanoseconds()).unwrap().remove().unwrap();
        assert_eq!(std::fs::read_to_string(precious.path()).unwrap(), "precious");
        std::fs::write(&place, vec![b'x'; 1 << 20]).unwrap();
        assert_eq!(marker.found(identity(&image)), None, "too long to be one");
        marker.remove().unwrap();
    }
}
