//! Opens files in directories that others may write.
//!
//! Rule: a path that is opened leads to what it is meant to be, or is refused in a sentence. Opening never waits for another process
//! (the other end of a FIFO), never has an effect on a device, and reading ends.
//!
//! | function | used for | links | accepted |
//! |---|---|---|---|
//! | [`open_own`], [`read_own`] | files that the program names itself: marks, maps, pid, cache and recovery files | refused | a regular file without other names |
//! | [`open_named`], [`read_named`] | files that the operator names: configuration, keys | followed | a regular file |
//! | [`open_image`] | images and bases | followed | a regular file or block device |

use std::fs::{File, FileType, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::system::change_flags;

/// What a path may be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Accepts {
    Own,
    Named,
    Image,
}

/// Opens a file that the program names itself. No symbolic link is followed, and nothing but a regular file with one name is opened.
///
/// # Errors
/// The kernel's, or what it is instead.
pub fn open_own(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    open(path, options, Accepts::Own)
}

/// Opens a regular file that the operator names, perhaps by a symbolic link.
///
/// # Errors
/// The kernel's, or what it is instead.
pub fn open_named(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    open(path, options, Accepts::Named)
}

/// Opens a regular file or block device that the operator names, perhaps by a symbolic link.
///
/// # Errors
/// The kernel's, or what it is instead.
pub fn open_image(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    open(path, options, Accepts::Image)
}

/// Reads a file as [`open_own`] opens it.
///
/// # Errors
/// The kernel's, what it is instead, or that it has more than `most` bytes.
pub fn read_own(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    read(open_own(path, File::options().read(true))?, most)
}

/// Reads a file as [`open_named`] opens it.
///
/// # Errors
/// The kernel's, what it is instead, or that it has more than `most` bytes.
pub fn read_named(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    read(open_named(path, File::options().read(true))?, most)
}

/// As [`read_named`] for text.
///
/// # Errors
/// As [`read_named`], or that it is not UTF-8.
pub fn read_named_text(path: &Path, most: u64) -> io::Result<String> {
    String::from_utf8(read_named(path, most)?)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8 text"))
}

fn read(file: File, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // Its length may change meanwhile.
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        let message = format!("it has more than {most} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    Ok(bytes)
}

fn open(path: &Path, options: &mut OpenOptions, accepts: Accepts) -> io::Result<File> {
    let seen = match accepts {
        Accepts::Own => std::fs::symlink_metadata(path),
        Accepts::Named | Accepts::Image => std::fs::metadata(path),
    };
    // Before opening: that of a device may have an effect.
    if let Ok(seen) = seen {
        accepts.check(&seen)?;
    }
    let no_links = if accepts == Accepts::Own { libc::O_NOFOLLOW } else { 0 };
    let file = options.custom_flags(libc::O_NONBLOCK | no_links).open(path)?;
    // It may have been replaced meanwhile.
    let found = file.metadata()?;
    accepts.check(&found)?;
    if accepts == Accepts::Image && is_export(&found) {
        let message = "it is the file of an export (a mount of FUSE), which a server would have to answer itself: \
                       use the image of that export, or its NBD URI";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    // That was for opening alone: io_uring gives up operations on files that have it.
    change_flags(&file, 0, libc::O_NONBLOCK)?;
    Ok(file)
}

/// The name of mounts that are files of exports, which the process that mounts them gives.
pub const EXPORT_MOUNT: &str = "headworks-export";

/// Whether a file is on a mount that a server of this kind made of an export. Without the table of mounts it is not.
fn is_export(found: &Metadata) -> bool {
    let (major, minor) = (libc::major(found.dev()), libc::minor(found.dev()));
    // Only file systems without a device have a major number of 0.
    if major != 0 || !found.file_type().is_file() {
        return false;
    }
    let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let device = format!("{major}:{minor}");
    String::from_utf8_lossy(&table).lines().any(|line| {
        let (mount, kind) = line.split_once(" - ").unwrap_or((line, ""));
        mount.split(' ').nth(2) == Some(&*device) && kind.split(' ').nth(1) == Some(EXPORT_MOUNT)
    })
}

impl Accepts {
    fn check(self, found: &Metadata) -> io::Result<()> {
        let kind = found.file_type();
        let fits = kind.is_file() || self == Self::Image && kind.is_block_device();
        if !fits {
            let what = match self {
                Self::Image => "neither a regular file nor a block device",
                Self::Own | Self::Named => "not a regular file",
            };
            let message = format!("it is {}, {what}", name_of(kind));
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        if self == Self::Own && found.nlink() > 1 {
            let message = "it has other names (hard links)";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        Ok(())
    }
}

/// What a directory entry is, in words.
fn name_of(kind: FileType) -> &'static str {
    if kind.is_symlink() {
        "a symbolic link"
    } else if kind.is_dir() {
        "a directory"
    } else if kind.is_fifo() {
        "a FIFO"
    } else if kind.is_socket() {
        "a socket"
    } else if kind.is_char_device() {
        "a character device"
    } else if kind.is_block_device() {
        "a block device"
    } else {
        "a regular file"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempFile;
    use std::os::fd::AsRawFd;
    use std::os::unix::ffi::OsStrExt;

    fn fifo(path: &Path) {
        let name = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: a valid C string.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    }

    fn said<T>(result: io::Result<T>) -> String {
        result.err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn fifos_sockets_devices_and_directories_are_refused_at_once() {
        let (pipe, socket) = (TempFile::absent("safe-fifo"), TempFile::absent("safe-socket"));
        fifo(pipe.path());
        let _listener = std::os::unix::net::UnixListener::bind(socket.path()).unwrap();
        let cases = [
            (pipe.path(), "a FIFO"),
            (socket.path(), "a socket"),
            (Path::new("/dev/zero"), "a character device"),
            (Path::new("/"), "a directory"),
        ];
        for (path, what) in cases {
            for write in [false, true] {
                let options = || {
                    let mut options = File::options();
                    options.read(!write).write(write);
                    options
                };
                for open in [open_own, open_named, open_image] {
                    let said = said(open(path, &mut options()));
                    assert!(said.starts_with(&format!("it is {what}, ")), "{path:?}: {said}");
                }
            }
            assert!(said(read_own(path, 10)).contains(what));
            assert!(said(read_named(path, 10)).contains(what));
        }
    }

    #[test]
    fn links_are_followed_only_where_the_operator_names_the_file() {
        let (file, link) = (TempFile::absent("safe-file"), TempFile::absent("safe-link"));
        std::fs::write(file.path(), b"text").unwrap();
        std::os::unix::fs::symlink(file.path(), link.path()).unwrap();
        assert_eq!(read_named(link.path(), 4).unwrap(), b"text");
        assert_eq!(read_own(file.path(), 4).unwrap(), b"text");
        assert!(said(read_own(link.path(), 4)).contains("a symbolic link"));
        let mut create = File::options();
        let create = create.write(true).create(true).truncate(true);
        assert!(said(open_own(link.path(), create)).contains("a symbolic link"));
        assert_eq!(read_own(file.path(), 4).unwrap(), b"text", "not truncated");
        let other = TempFile::absent("safe-hard-link");
        std::fs::hard_link(file.path(), other.path()).unwrap();
        assert!(said(open_own(other.path(), create)).contains("hard links"));
        assert_eq!(std::fs::read(file.path()).unwrap(), b"text");
    }

    #[test]
    fn reading_is_bounded() {
        let file = TempFile::absent("safe-long");
        std::fs::write(file.path(), b"12345").unwrap();
        assert_eq!(read_named_text(file.path(), 5).unwrap(), "12345");
        assert!(said(read_named(file.path(), 4)).contains("more than 4 bytes"));
        std::fs::write(file.path(), [0xff]).unwrap();
        assert!(said(read_named_text(file.path(), 4)).contains("UTF-8"));
    }

    #[test]
    fn opened_file_waits_as_usual() {
        let file = TempFile::new("safe-flags");
        let opened = open_image(file.path(), File::options().read(true)).unwrap();
        // SAFETY: a call on an open descriptor.
        let flags = unsafe { libc::fcntl(opened.as_raw_fd(), libc::F_GETFL) };
        assert_eq!(flags & libc::O_NONBLOCK, 0);
    }
}
