//! Mounting and unmounting: mount(2), and `fusermount3`, which passes the open device over a socket.
//!
//! A mount is undone when its `Mount` is dropped, lazily: programs that still use it get ENOTCONN once the device is closed.

use std::ffi::CString;
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::access::private_namespace;
use crate::channel::Channel;

const DEVICE: &str = "/dev/fuse";
const FUSERMOUNT: &str = "fusermount3";

/// How a mount is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// By mount(2), in a mount namespace of the process.
    Root,
    /// By the program fusermount3.
    Fusermount,
    /// By mount(2), in a user namespace of the process.
    UserNamespace,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Root => "mount",
            Self::Fusermount => "fusermount3",
            Self::UserNamespace => "a user namespace",
        })
    }
}

/// A mounted directory, which is unmounted when this is dropped.
#[derive(Debug)]
pub struct Mount {
    way: Way,
    directory: PathBuf,
}

impl Mount {
    /// A mount that mount(2) made.
    pub(crate) fn of_kernel(directory: &Path) -> Self {
        Self { way: Way::Root, directory: directory.to_owned() }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = unmount(self.way, &self.directory);
    }
}

pub(crate) fn mount(way: Way, directory: &Path, name: &str) -> io::Result<(Mount, Channel)> {
    let device = match way {
        Way::Root | Way::UserNamespace => by_kernel(way, directory, name)?,
        Way::Fusermount => by_fusermount(directory, name)?,
    };
    Ok((Mount { way, directory: directory.to_owned() }, Channel::from(device)))
}

/// Unmounts what a process with mounts called `name` left when it was killed: mounts that answer ENOTCONN. Returns how many.
pub fn remove_stale(name: &str) -> usize {
    stale(name, |_| true).len()
}

/// The same for mounts whose paths `is_meant` selects; returns these paths.
pub(crate) fn stale(name: &str, is_meant: impl Fn(&Path) -> bool) -> Vec<PathBuf> {
    let is_dead = |path: &PathBuf| {
        let error = std::fs::metadata(path).err();
        error.and_then(|error| error.raw_os_error()) == Some(libc::ENOTCONN)
    };
    let unmounted = |path: &PathBuf| {
        unmount(Way::Root, path).or_else(|_| unmount(Way::Fusermount, path)).is_ok()
    };
    let named = mounts().into_iter().filter(|(_, of)| of == name).map(|(path, _)| path);
    named.filter(|path| is_meant(path)).filter(is_dead).filter(unmounted).collect()
}

/// Path and name of each mount that the process sees.
pub(crate) fn mounts() -> Vec<(PathBuf, String)> {
    let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let one = |line: &str| {
        let (mount, kind) = line.split_once(" - ")?;
        Some((unescaped(mount.split(' ').nth(4)?).into(), kind.split(' ').nth(1)?.to_owned()))
    };
    String::from_utf8_lossy(&table).lines().filter_map(one).collect()
}

/// Mounts on a file, which `path` names and `file` has open, for one user and group alone and in sight of all processes: by mount(2), or
/// by `fusermount3` (for this user) where that is not allowed.
pub(crate) fn mount_file(
    file: BorrowedFd<'_>,
    path: &Path,
    name: &str,
    owner: (u32, u32),
) -> io::Result<(Way, OwnedFd)> {
    // What is open cannot be exchanged for a link.
    let open = format!("/proc/self/fd/{}", file.as_raw_fd());
    match kernel_mount(Path::new(&open), name, "100000", owner, false) {
        Ok(device) => Ok((Way::Root, device)),
        Err(root) => match by_fusermount(path, name) {
            Ok(device) => Ok((Way::Fusermount, device)),
            Err(other) => {
                Err(io::Error::other(format!("by mount: {root}; by fusermount3: {other}")))
            }
        },
    }
}

/// Gives the calling thread a mount namespace without mounts of FUSE. Without the right to do so it stays where it is: there a mount is not
/// the process's alone, and outlives it.
pub(crate) fn leave_mounts() {
    if private_namespace(false).is_err() {
        return;
    }
    let table = std::fs::read("/proc/thread-self/mountinfo").unwrap_or_default();
    for line in String::from_utf8_lossy(&table).lines() {
        let (mount, kind) = line.split_once(" - ").unwrap_or((line, ""));
        let directory = mount.split(' ').nth(4);
        if let Some(directory) = directory.filter(|_| kind.starts_with("fuse")) {
            let _ = unmount(Way::Root, Path::new(&*unescaped(directory)));
        }
    }
}

/// A path as mountinfo tells it, in which blanks and backslashes are octal numbers.
fn unescaped(path: &str) -> String {
    let mut parts = path.split('\\');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (code, rest) = part.split_at_checked(3).unwrap_or((part, ""));
        match u8::from_str_radix(code, 8) {
            Ok(byte) => plain.push(byte.into()),
            Err(_) => plain.push_str(code),
        }
        plain.push_str(rest);
    }
    plain
}

fn by_kernel(way: Way, directory: &Path, name: &str) -> io::Result<OwnedFd> {
    // A program of root may give its rights up: others may use root's mount, as they may use root's directories.
    kernel_mount(directory, name, "40000", this_user(), way == Way::Root)
}

/// The user and group of this process.
pub(crate) fn this_user() -> (u32, u32) {
    // SAFETY: these calls have no preconditions.
    unsafe { (libc::getuid(), libc::getgid()) }
}

fn kernel_mount(
    path: &Path,
    name: &str,
    mode: &str,
    (uid, gid): (u32, u32),
    others: bool,
) -> io::Result<OwnedFd> {
    let device = std::fs::OpenOptions::new().read(true).write(true).open(DEVICE);
    let device = device.map_err(|error| io::Error::new(error.kind(), format!("{DEVICE}: {error}")));
    let device = OwnedFd::from(device?);
    let others = if others { ",allow_other" } else { "" };
    let options = format!(
        "fd={},rootmode={mode},user_id={uid},group_id={gid},default_permissions{others}",
        device.as_raw_fd()
    );
    let flags = libc::MS_NOSUID | libc::MS_NODEV;
    mount_kernel(path, name, "fuse", flags, &options)?;
    Ok(device)
}

pub(crate) fn mount_kernel(
    directory: &Path,
    name: &str,
    kind: &str,
    flags: libc::c_ulong,
    options: &str,
) -> io::Result<()> {
    let text = |bytes: &[u8]| CString::new(bytes).map_err(|_| io::ErrorKind::InvalidInput);
    let (name, kind) = (text(name.as_bytes())?, text(kind.as_bytes())?);
    let (directory, options) = (text(directory.as_os_str().as_bytes())?, text(options.as_bytes())?);
    // SAFETY: the texts end with a zero and live during the call.
    let mounted = unsafe {
        libc::mount(
            name.as_ptr(),
            directory.as_ptr(),
            kind.as_ptr(),
            flags,
            options.as_ptr().cast(),
        )
    };
    if mounted == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The program mounts with its own rights and sends the device through the socket that `_FUSE_COMMFD` names.
fn by_fusermount(directory: &Path, name: &str) -> io::Result<OwnedFd> {
    let (ours, theirs) = UnixStream::pair()?;
    // SAFETY: a plain flag of a descriptor that is open: the program inherits it.
    if unsafe { libc::fcntl(theirs.as_raw_fd(), libc::F_SETFD, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let output = Command::new(FUSERMOUNT)
        .args(["-o", &format!("default_permissions,fsname={name}"), "--"])
        .arg(directory)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .output()?;
    drop(theirs);
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(io::Error::other(said.lines().last().unwrap_or("it failed").to_owned()));
    }
    received_device(&ours)
}

fn received_device(socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut byte = [0u8; 1];
    let mut control = [0u64; 8];
    let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    // SAFETY: a message of zeros is an empty one.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    // SAFETY: the message points to buffers that live during the call and have the lengths that it says.
    let read =
        unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
    if read < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel filled the message; the first head is null if there is none.
    let head = unsafe { libc::CMSG_FIRSTHDR(&raw const message).as_ref() };
    let rights = head
        .filter(|head| head.cmsg_level == libc::SOL_SOCKET && head.cmsg_type == libc::SCM_RIGHTS);
    let head = rights.ok_or_else(|| io::Error::other("it sent no device"))?;
    // SAFETY: data of this kind begin with a descriptor, which is ours from now on.
    Ok(unsafe { OwnedFd::from_raw_fd(libc::CMSG_DATA(head).cast::<RawFd>().read_unaligned()) })
}

pub(crate) fn unmount(way: Way, directory: &Path) -> io::Result<()> {
    if way == Way::Fusermount {
        let ended = Command::new(FUSERMOUNT)
            .args(["-u", "-q", "-z", "--"])
            .arg(directory)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .status()?;
        return if ended.success() { Ok(()) } else { Err(io::ErrorKind::Other.into()) };
    }
    let path = CString::new(directory.as_os_str().as_bytes())
        .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let flags = libc::MNT_DETACH | libc::UMOUNT_NOFOLLOW;
    // SAFETY: the path ends with a zero and lives during the call.
    let done = unsafe { libc::umount2(path.as_ptr(), flags) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_mountinfo_are_unescaped() {
        assert_eq!(unescaped("/tmp/a\\040b\\134c/d"), "/tmp/a b\\c/d");
        assert_eq!(unescaped("/plain"), "/plain");
        assert_eq!(unescaped("/odd\\9"), "/odd9");
    }
}
