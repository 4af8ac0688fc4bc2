//! Opens an image: finds out what it is, how it may be reached, what it can do, and locks it.
//!
//! Three ways to reach the bytes, by what the file supports and the user wants:
//!
//! ```text
//!   tmpfs, ramfs -----------------------------> Inline    a system call per command in place, which never waits for a disk
//!   direct=off -------------------------------> Buffered  the kernel's page cache, through the engine
//!   a length of no whole blocks --------------> Buffered  (an error if direct=on)
//!   statx says how direct I/O must be aligned -> Direct    O_DIRECT; that alignment is the smallest block
//!   statx is silent, but O_DIRECT is accepted -> Direct    alignment found by trying
//!   otherwise --------------------------------> Buffered  (an error if direct=on)
//! ```
//!
//! Everything that could surprise later is refused here, with a sentence: an image in use, smaller than asked for,
//! with a tail shorter than the smallest block, or that is no image at all. An image made here is removed again on refusal.

use std::fs::{File, Metadata};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use headworks_core::{ConfigError, QueueOptions, VolumeOptions};

use super::directory::{folder_of, sync_directory};
use super::lock::{Lock, is_taken, lock_handed_over, lock_patiently};
use super::probe;
use crate::memory::memory_file;
use crate::safe_open::open_image;
use crate::size::display_size;
use crate::system::checked;

/// Whether to go past the kernel's page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direct {
    /// Where it is supported.
    #[default]
    Auto,
    /// Yes, or it is an error.
    On,
    /// No.
    Off,
}

/// What a user may say about an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileOptions {
    /// Open it for reading alone.
    pub read_only: bool,
    /// Make it with this size, sparse, if it is not there; an existing one must have at least this size.
    pub size: Option<u64>,
    /// Whether to go past the kernel's page cache.
    pub direct: Direct,
}

impl FileOptions {
    /// Whether a missing image is made.
    fn creates(&self) -> bool {
        !self.read_only && self.size.is_some()
    }

    /// Whether `path` is missing and would not be made: it has no size, or its directory is missing, too.
    #[must_use]
    pub fn is_missing(&self, path: &Path) -> bool {
        let is_gone = |path: &Path| {
            std::fs::metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        };
        is_gone(path) && (!self.creates() || is_gone(folder_of(path)))
    }
}

/// The access method of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileMode {
    /// O_DIRECT, through the engine.
    Direct,
    /// The kernel's page cache, through the engine, since it may have to wait for a disk.
    Buffered,
    /// A filesystem in memory: a system call in place, which never waits for a disk.
    Inline,
}

/// An image that is open, locked and understood.
#[derive(Debug)]
pub struct OpenFile {
    file: Arc<File>,
    /// The open file that holds the lock: `file`, or one that another process handed over.
    lock: Arc<File>,
    size: u64,
    block_size: u32,
    mode: FileMode,
    read_only: bool,
    created: bool,
    locked: bool,
    in_use: bool,
    metadata: Metadata,
    queue: QueueOptions,
}

impl OpenFile {
    /// Opens `path`, or makes it if `options.size` is given and it is not there.
    ///
    /// # Errors
    /// Every reason why it should not be served, as one sentence.
    pub fn open(path: &Path, options: &FileOptions) -> Result<Self, ConfigError> {
        Self::open_locked(path, options, None)
    }

    /// As [`OpenFile::open`] for an image whose lock another process handed over: `lock` is a descriptor of the open file that
    /// holds it.
    ///
    /// # Errors
    /// As [`OpenFile::open`].
    pub fn open_locked(
        path: &Path,
        options: &FileOptions,
        lock: Option<Arc<File>>,
    ) -> Result<Self, ConfigError> {
        let (file, created) = open_or_create(path, options)?;
        let opened = Self::understand(path, file, (created, lock), options);
        if created && opened.is_err() {
            // Nothing was in it; what remains if this fails is an empty file.
            let _ = std::fs::remove_file(path);
        }
        opened
    }

    /// Finds out what [`OpenFile::open`] would serve, with the same errors. Creates no file, writes nothing and takes no
    /// lock; an image that another process uses is not refused, see [`OpenFile::in_use`].
    ///
    /// # Errors
    /// As [`OpenFile::open`].
    pub fn inspect(path: &Path, options: &FileOptions) -> Result<Self, ConfigError> {
        let (file, created) = open_or_imagine(path, options)?;
        let in_use = !created
            && is_taken(&file, options.read_only).map_err(|error| io_error(path, &error))?;
        let facts = Facts { created, locked: true, in_use, try_holes: false };
        Self::describe(path, file, facts, options)
    }

    fn understand(
        path: &Path,
        file: File,
        (created, lock): (bool, Option<Arc<File>>),
        options: &FileOptions,
    ) -> Result<Self, ConfigError> {
        let answer = match &lock {
            Some(handed) => lock_handed_over(handed, options.read_only),
            None => lock_patiently(&file, options.read_only),
        };
        let locked = match answer.map_err(|error| io_error(path, &error))? {
            Lock::Held => true,
            Lock::Unavailable => false,
            Lock::Taken => return Err(in_use(path, options)),
        };
        let facts = Facts { created, locked, in_use: false, try_holes: !options.read_only };
        let opened = Self::describe(path, file, facts, options)?;
        let lock = lock.unwrap_or(opened.lock);
        Ok(Self { lock, ..opened })
    }

    fn describe(
        path: &Path,
        file: File,
        Facts { created, locked, in_use, try_holes }: Facts,
        options: &FileOptions,
    ) -> Result<Self, ConfigError> {
        let io = |error: io::Error| io_error(path, &error);
        if let (true, Some(size)) = (created, options.size) {
            file.set_len(size).map_err(io)?;
        }
        let size = check_size(path, size_of_file(&file).map_err(io)?, options)?;
        // Before the probes, which may change the file's times.
        let metadata = file.metadata().map_err(io)?;
        let (mode, block_size) = reach(path, &file, size, options)?;
        if !size.is_multiple_of(u64::from(block_size)) {
            return Err(tail(path, size, block_size, mode));
        }
        let queue = probe::queue_options(path, &file, &metadata, size, mode, !try_holes);
        let file = Arc::new(file);
        Ok(Self {
            lock: Arc::clone(&file),
            size,
            block_size,
            mode,
            read_only: options.read_only,
            created,
            locked,
            in_use,
            metadata,
            queue,
            file,
        })
    }

    /// What its volume should be: its size, and the smallest block it takes.
    #[must_use]
    pub fn volume_options(&self) -> VolumeOptions {
        VolumeOptions {
            size: self.size,
            read_only: self.read_only,
            block_size: self.block_size,
            ..VolumeOptions::default()
        }
    }

    /// What its queue should know.
    #[must_use]
    pub fn queue_options(&self) -> QueueOptions {
        if self.read_only { self.queue.of_reads() } else { self.queue }
    }

    /// The access method of the image, as a phrase for messages.
    #[must_use]
    pub fn access(&self) -> &'static str {
        match self.mode {
            FileMode::Direct => "direct I/O",
            FileMode::Buffered => "through the kernel's page cache",
            FileMode::Inline => "in the kernel's page cache",
        }
    }

    /// The access method of the image.
    pub(super) fn mode(&self) -> FileMode {
        self.mode
    }

    /// A second handle of the image at `path`, through the kernel's page cache, for bytes that direct I/O never writes. The lock is that of
    /// this one.
    ///
    /// # Errors
    /// It cannot be opened again, or the path names another file by now.
    pub fn buffered(&self, path: &Path) -> io::Result<Self> {
        let (file, mode) = match self.mode {
            FileMode::Direct => {
                let file = open_image(path, File::options().read(true).write(!self.read_only))?;
                if numbers(&file.metadata()?) != numbers(&self.metadata) {
                    return Err(io::Error::other("was replaced while it was opened"));
                }
                (Arc::new(file), FileMode::Buffered)
            }
            mode => (Arc::clone(&self.file), mode),
        };
        let lock = Arc::clone(&self.lock);
        Ok(Self { file, lock, mode, metadata: self.metadata.clone(), ..*self })
    }

    /// What the kernel told of the file when it had just been locked.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Returns true for a regular file, false for a block device.
    #[must_use]
    pub fn is_regular(&self) -> bool {
        self.metadata.is_file()
    }

    /// Whether it was made by this.
    #[must_use]
    pub fn created(&self) -> bool {
        self.created
    }

    /// Whether it is locked against others; false where the filesystem has no locks, which a user should be told.
    #[must_use]
    pub fn locked(&self) -> bool {
        self.locked
    }

    /// Whether another process uses an inspected image; false for an image that is open.
    #[must_use]
    pub fn in_use(&self) -> bool {
        self.in_use
    }

    /// Whether it is open for reading alone.
    #[must_use]
    pub fn read_only(&self) -> bool {
        self.read_only
    }

    /// The current size of the file; differs from the volume's after an external truncation or extension.
    ///
    /// # Errors
    /// When the file cannot be asked any more.
    pub fn current_size(&self) -> io::Result<u64> {
        size_of_file(&self.file)
    }

    /// Records that the image has `size` bytes now.
    pub(super) fn grow(&mut self, size: u64) {
        self.size = size;
    }

    /// The open file that holds the image's lock: a process that gets a descriptor of it holds the lock, too.
    #[must_use]
    pub fn lock(&self) -> &Arc<File> {
        &self.lock
    }

    /// The open file, for devices of other crates that push operations on its descriptor.
    #[must_use]
    pub fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// Whether offsets, lengths and addresses of its operations are multiples of its block size (O_DIRECT).
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.mode == FileMode::Direct
    }

    pub(super) fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

/// What is known of an image before it is described.
struct Facts {
    created: bool,
    locked: bool,
    in_use: bool,
    /// Whether punching holes may be tried.
    try_holes: bool,
}

/// What no two open images have both.
fn numbers(metadata: &Metadata) -> (u64, u64) {
    match metadata.file_type().is_block_device() {
        true => (metadata.rdev(), 0),
        false => (metadata.dev(), metadata.ino()),
    }
}

/// `fstat` knows no size of a block device, the end of the file does; the file's own position is not used otherwise.
pub fn size_of_file(mut file: &File) -> io::Result<u64> {
    file.seek(SeekFrom::End(0))
}

/// Whether `path` is an image, or is to be made (false).
fn exists(path: &Path, options: &FileOptions) -> Result<bool, ConfigError> {
    match std::fs::metadata(path) {
        Ok(metadata) => {
            let kind = metadata.file_type();
            // Before opening it: opening a FIFO waits for its other end.
            if !kind.is_file() && !kind.is_block_device() {
                let message =
                    format!("{} is neither a regular file nor a block device", path.display());
                return Err(ConfigError::new("path", message));
            }
            Ok(true)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound && options.creates() => {
            let folder = folder_of(path);
            if !folder.is_dir() {
                let (path, folder) = (path.display(), folder.display());
                let message = format!("cannot create {path}: no such directory: {folder}");
                return Err(ConfigError::new("path", message));
            }
            Ok(false)
        }
        Err(error) => Err(io_error(path, &error)),
    }
}

fn open_or_create(path: &Path, options: &FileOptions) -> Result<(File, bool), ConfigError> {
    let io = |error: io::Error| io_error(path, &error);
    if exists(path, options)? {
        let file = open_image(path, File::options().read(true).write(!options.read_only));
        return file.map(|file| (file, false)).map_err(io);
    }
    let mut create = File::options();
    create.read(true).write(true).create_new(true).mode(0o666);
    let file = create.open(path).map_err(io)?;
    sync_directory(path).map_err(io)?;
    Ok((file, true))
}

/// Opens an image for reading alone, after a check that it could be written; a file without a name stands for an image
/// that would be made.
fn open_or_imagine(path: &Path, options: &FileOptions) -> Result<(File, bool), ConfigError> {
    let io = |error: io::Error| io_error(path, &error);
    if exists(path, options)? {
        if !options.read_only {
            may_access(path, libc::R_OK | libc::W_OK).map_err(io)?;
        }
        let file = open_image(path, File::options().read(true));
        return file.map(|file| (file, false)).map_err(io);
    }
    let folder = folder_of(path);
    may_access(folder, libc::W_OK | libc::X_OK).map_err(io)?;
    let mut nameless = File::options();
    nameless.read(true).write(true).mode(0o600);
    // A filesystem that has no files without names: its answer to the size is not known.
    let file =
        nameless.custom_flags(libc::O_TMPFILE).open(folder).or_else(|_| memory_file(c"image"));
    file.map(|file| (file, true)).map_err(io)
}

/// Whether the effective user may access a path in this way.
fn may_access(path: &Path, how: libc::c_int) -> io::Result<()> {
    let name = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the name is terminated and lives through the call.
    let answer = unsafe { libc::faccessat(libc::AT_FDCWD, name.as_ptr(), how, libc::AT_EACCESS) };
    checked(answer).map(drop)
}

fn check_size(path: &Path, size: u64, options: &FileOptions) -> Result<u64, ConfigError> {
    let path = path.display();
    match options.size {
        Some(wanted) if size < wanted && size > 0 => Err(ConfigError::new(
            "size",
            format!(
                "{path} exists with {} ({size} bytes), less than {}; grow it (truncate -s {wanted}) or omit size to serve it as it is",
                display_size(size),
                display_size(wanted),
            ),
        )),
        _ if size == 0 => Err(ConfigError::new(
            "path",
            format!("{path} is empty; remove it and give size=1G to create an image"),
        )),
        _ => Ok(size),
    }
}

/// The way to the bytes and the smallest block on it.
fn reach(
    path: &Path,
    file: &File,
    size: u64,
    options: &FileOptions,
) -> Result<(FileMode, u32), ConfigError> {
    let refuse = |why: &str| {
        let message = format!("{} {why}; give direct=auto", path.display());
        Err(ConfigError::new("direct", message))
    };
    // The kernel zeroes and discards whole logical blocks of a block device, with or without its page cache.
    let buffered_block = probe::logical_block_size(file).unwrap_or(1);
    if probe::is_memory_filesystem(file) {
        return match options.direct {
            Direct::On => refuse("is on tmpfs, which has no direct I/O"),
            _ => Ok((FileMode::Inline, 1)),
        };
    }
    if options.direct == Direct::Off {
        return Ok((FileMode::Buffered, buffered_block));
    }
    match probe::enable_direct_io(file) {
        // Its last bytes are out of reach of direct I/O.
        Some(block)
            if options.direct == Direct::Auto
                && !size.is_multiple_of(u64::from(block))
                && size.is_multiple_of(u64::from(buffered_block)) =>
        {
            probe::disable_direct_io(file);
            Ok((FileMode::Buffered, buffered_block))
        }
        Some(block) => Ok((FileMode::Direct, block)),
        None if options.direct == Direct::On => refuse("does not support direct I/O"),
        None => Ok((FileMode::Buffered, buffered_block)),
    }
}

fn tail(path: &Path, size: u64, block: u32, mode: FileMode) -> ConfigError {
    let short = size / u64::from(block) * u64::from(block);
    let advice = match mode {
        FileMode::Direct => "give direct=off, or",
        _ => "give",
    };
    let message = format!(
        "{} has {size} bytes, no multiple of its smallest block, {block}: {advice} it {} bytes",
        path.display(),
        short + u64::from(block),
    );
    ConfigError::new("path", message)
}

fn in_use(path: &Path, options: &FileOptions) -> ConfigError {
    let message = match options.read_only {
        true => "is in use by another process that writes it; stop that process first",
        false => {
            "is in use by another process; stop it, or serve the image read-only if both only read"
        }
    };
    ConfigError::new("path", format!("{} {message}", path.display())).caused_by(Some(libc::EBUSY))
}

fn io_error(path: &Path, error: &io::Error) -> ConfigError {
    let path = path.display();
    let message = match error.kind() {
        io::ErrorKind::NotFound => {
            format!("{path} does not exist; give size=1G to create an image")
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            format!("cannot open {path}: {error}; read-only=on needs only read access")
        }
        _ => format!("{path}: {error}"),
    };
    ConfigError::new("path", message).caused_by(error.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{TempFile, memory_directory};

    fn refusal(path: &Path, options: FileOptions) -> String {
        OpenFile::open(path, &options).unwrap_err().to_string()
    }

    fn sized(size: u64) -> FileOptions {
        FileOptions { size: Some(size), ..FileOptions::default() }
    }

    #[test]
    fn open_creates_sparse_image_and_never_resizes_existing_one() {
        let image = TempFile::absent("create");
        let refused = refusal(image.path(), FileOptions::default());
        assert!(refused.contains("give size=1G"), "{refused}");
        let opened = OpenFile::open(image.path(), &sized(1 << 30)).unwrap();
        assert!(opened.created() && opened.locked());
        assert_eq!(opened.volume_options().size, 1 << 30);
        assert!(std::fs::metadata(image.path()).unwrap().blocks() < 100);
        drop(opened);
        let refused = refusal(image.path(), sized(1 << 31));
        assert!(refused.contains("exists with 1 GiB"), "{refused}");
        // The size is that of a new image: one that has grown since is served as it is.
        let grown = OpenFile::open(image.path(), &sized(1 << 29)).unwrap();
        assert_eq!(grown.volume_options().size, 1 << 30);
        drop(grown);
        assert_eq!(std::fs::metadata(image.path()).unwrap().len(), 1 << 30);
        assert!(!OpenFile::open(image.path(), &sized(1 << 30)).unwrap().created());
    }

    #[test]
    fn inspection_where_files_have_names_has_a_file_in_memory() {
        let file = memory_file(c"image").unwrap();
        file.set_len(1 << 30).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 1 << 30);
    }

    #[test]
    fn inspection_finds_what_open_finds_and_changes_nothing() {
        let image = TempFile::absent("inspect");
        let found = OpenFile::inspect(image.path(), &sized(1 << 30)).unwrap();
        assert!(found.created() && !image.path().exists());
        let opened = OpenFile::open(image.path(), &sized(1 << 30)).unwrap();
        assert_eq!(found.volume_options(), opened.volume_options());
        assert_eq!(found.access(), opened.access());
        let found = OpenFile::inspect(image.path(), &sized(1 << 30)).unwrap();
        assert!(found.in_use() && !found.created());
        drop(opened);
        let before = std::fs::metadata(image.path()).unwrap();
        let found = OpenFile::inspect(image.path(), &FileOptions::default()).unwrap();
        let after = std::fs::metadata(image.path()).unwrap();
        assert!(!found.in_use());
        assert_eq!(
            (before.mtime_nsec(), before.ctime_nsec()),
            (after.mtime_nsec(), after.ctime_nsec())
        );
        // An inspected image is not locked.
        drop(OpenFile::open(image.path(), &FileOptions::default()).unwrap());
        let both = |path: &Path, options: FileOptions| {
            let said = OpenFile::inspect(path, &options).unwrap_err().to_string();
            assert_eq!(said, refusal(path, options));
            said
        };
        assert!(both(image.path(), sized(1 << 31)).contains("less than 2 GiB"));
        let nowhere = image.path().join("folder").join("image");
        assert!(both(&nowhere, FileOptions::default()).contains("Not a directory"));
        let nowhere = image.path().with_extension("folder").join("image");
        assert!(both(&nowhere, FileOptions::default()).contains("does not exist"));
        assert!(both(&nowhere, sized(1 << 20)).contains("no such directory"));
        assert!(sized(1).is_missing(&nowhere) && !sized(1).is_missing(image.path()));
    }

    #[test]
    fn opening_changes_no_time_of_an_image() {
        let directories = [Some(std::env::temp_dir()), memory_directory()];
        for directory in directories.into_iter().flatten() {
            let image = TempFile::absent_in(&directory, "times");
            std::fs::write(image.path(), [1; 8192]).unwrap();
            // Long ago: times have the granularity of a tick.
            let long_ago = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
            File::options().write(true).open(image.path()).unwrap().set_modified(long_ago).unwrap();
            let times = || {
                let found = std::fs::metadata(image.path()).unwrap();
                [found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec()]
            };
            let before = times();
            let opened = OpenFile::open(image.path(), &FileOptions::default()).unwrap();
            assert!(opened.queue_options().discard, "the test directories punch holes");
            drop(opened);
            assert_eq!(times(), before);
        }
    }

    #[test]
    fn rejected_options_leave_no_image_behind() {
        let image = TempFile::absent("refused");
        assert!(OpenFile::open(image.path(), &sized(0)).is_err());
        assert!(!image.path().exists());
        let read_only = FileOptions { read_only: true, ..sized(4096) };
        assert!(refusal(image.path(), read_only).contains("does not exist"));
        assert!(!image.path().exists());
    }

    #[test]
    fn image_with_a_tail_is_opened_without_direct_io_or_rejected() {
        let image = TempFile::new("tail");
        std::fs::write(image.path(), [1; 10_000]).unwrap();
        for direct in [Direct::Off, Direct::Auto] {
            let options = FileOptions { direct, ..FileOptions::default() };
            let opened = OpenFile::open(image.path(), &options).unwrap();
            let VolumeOptions { size, block_size, .. } = opened.volume_options();
            assert_eq!((size, block_size), (10_000, 1));
            assert_ne!(opened.mode(), FileMode::Direct);
            // SAFETY: a plain call on an open file.
            let flags = unsafe { libc::fcntl(opened.fd(), libc::F_GETFL) };
            assert_eq!(flags & libc::O_DIRECT, 0);
        }
        // On tmpfs there is no direct I/O at all.
        let on = FileOptions { direct: Direct::On, ..FileOptions::default() };
        let error = OpenFile::open(image.path(), &on).unwrap_err().to_string();
        assert!(error.contains("no multiple") || error.contains("direct I/O"), "{error}");
    }

    #[test]
    fn fifo_directory_character_device_and_empty_file_are_rejected() {
        let pipe = TempFile::absent("fifo");
        let name = std::ffi::CString::new(pipe.path().to_str().unwrap()).unwrap();
        // SAFETY: a valid C string.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        let empty = TempFile::new("empty");
        for (path, words) in [
            (pipe.path(), "neither a regular file nor a block device"),
            (Path::new("/"), "neither a regular file nor a block device"),
            (Path::new("/dev/null"), "neither a regular file nor a block device"),
            (empty.path(), "is empty"),
        ] {
            let refused = refusal(path, FileOptions::default());
            assert!(refused.contains(words), "{refused}");
        }
    }

    #[test]
    fn image_has_one_writer_or_several_readers() {
        let image = TempFile::new("use");
        std::fs::write(image.path(), [0; 8192]).unwrap();
        let read_only = FileOptions { read_only: true, ..FileOptions::default() };
        let writer = OpenFile::open(image.path(), &FileOptions::default()).unwrap();
        assert!(refusal(image.path(), FileOptions::default()).contains("in use"));
        assert!(refusal(image.path(), read_only).contains("that writes it"));
        let lock = Arc::clone(writer.lock());
        drop(writer);
        assert!(refusal(image.path(), read_only).contains("that writes it"));
        drop(lock);
        let _reader = OpenFile::open(image.path(), &read_only).unwrap();
        assert!(OpenFile::open(image.path(), &read_only).is_ok());
    }

    #[test]
    fn image_on_memory_filesystem_is_opened_inline() {
        let Some(directory) = memory_directory() else {
            return;
        };
        let image = TempFile::absent_in(&directory, "inline");
        let opened = OpenFile::open(image.path(), &sized(1 << 20)).unwrap();
        assert_eq!(opened.mode(), FileMode::Inline);
        let queue = opened.queue_options();
        assert!(queue.discard && queue.write_zeroes && queue.fua);
        drop(opened);
        let on = FileOptions { direct: Direct::On, ..FileOptions::default() };
        assert!(refusal(image.path(), on).contains("give direct=auto"));
    }
}
