//! Locks on images, at the bytes where qemu puts its own, so that either sees the other.
//!
//! Nobody reads or writes these bytes for it: they are only names. A process says what it does by a shared OFD lock on byte
//! 100 + p for each permission p it uses, and on byte 200 + p for each that it does not suffer in others. Then it looks: a
//! permission it does not suffer must not be locked at 100 + p by anybody else, one it uses must not be at 200 + p.
//!
//! ```text
//!   permission        byte    read-write: uses, forbids     read-only: uses, forbids
//!   consistent read   0       100                           100
//!   write             1       101         201                           201
//!   write unchanged   2
//!   resize            3                   203                           203
//! ```
//!
//! So one writer excludes everybody else, and readers live together. The locks belong to the open file, not to the process:
//! they go when it is closed, also by kill -9.
//!
//! Rule: a process never releases a lock that another one holds. A server that hands over shares its open file, and with it the lock,
//! with the process that is to replace it. So a wait that finds the image taken gives back only locks of an own open file
//! ([`lock_patiently`]); with a handed-over one it looks and waits ([`lock_handed_over`]).

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use crate::system::checked;

const PERMISSION_BASE: i64 = 100;
const FORBIDDEN_BASE: i64 = 200;

const CONSISTENT_READ: u8 = 1 << 0;
const WRITE: u8 = 1 << 1;
const RESIZE: u8 = 1 << 3;
const PERMISSIONS: i64 = 4;

/// Two seconds in all: short for a person, long for a kernel that cleans up on a busy machine (half a second was too short once in
/// some 350 kills beside two busy processes).
const PATIENCE_TRIES: u32 = 80;
const PATIENCE_PAUSE: std::time::Duration = std::time::Duration::from_millis(25);

/// How a lock attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    /// Ours.
    Held,
    /// Another process uses the image in a way that excludes this use.
    Taken,
    /// The filesystem has no such locks: the image is not protected.
    Unavailable,
}

/// Locks an open image for reading and writing, or for reading alone.
///
/// # Errors
/// What the kernel says when it is neither of the three answers.
pub fn lock(file: &File, read_only: bool) -> io::Result<Lock> {
    let (uses, forbids) = wanted(read_only);
    // First all locks, then all looks: of two processes at the same time at least one sees the other.
    for (base, set) in [(PERMISSION_BASE, uses), (FORBIDDEN_BASE, forbids)] {
        for byte in bytes(base, set) {
            match set_shared(file, byte) {
                Ok(()) => {}
                Err(error) if says_unavailable(&error) => return Ok(Lock::Unavailable),
                // Another process holds an exclusive lock there; no known program does.
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {
                    return Ok(Lock::Taken);
                }
                Err(error) => return Err(error),
            }
        }
    }
    for (base, set) in [(PERMISSION_BASE, forbids), (FORBIDDEN_BASE, uses)] {
        for byte in bytes(base, set) {
            if others_hold(file, byte)? {
                return Ok(Lock::Taken);
            }
        }
    }
    Ok(Lock::Held)
}

fn bytes(base: i64, set: u8) -> impl Iterator<Item = i64> {
    (0..PERMISSIONS).filter(move |bit| set >> bit & 1 == 1).map(move |bit| base + bit)
}

fn says_unavailable(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOLCK | libc::EINVAL | libc::EOPNOTSUPP | libc::ENOSYS)
    )
}

/// Asks for or about a lock of `len` bytes, 0 for all; the kernel's answer.
fn fcntl(file: &File, call: i32, kind: i32, (start, len): (i64, i64)) -> io::Result<libc::flock> {
    // SAFETY: a struct of integers, for which zeros are a value; `l_pid` has to be 0.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as i16;
    lock.l_whence = libc::SEEK_SET as i16;
    (lock.l_start, lock.l_len) = (start, len);
    // SAFETY: `lock` lives through the call, which reads and fills it.
    checked(unsafe { libc::fcntl(file.as_raw_fd(), call, &raw mut lock) })?;
    Ok(lock)
}

fn set_shared(file: &File, byte: i64) -> io::Result<()> {
    fcntl(file, libc::F_OFD_SETLK, libc::F_RDLCK, (byte, 1)).map(drop)
}

/// Makes the lock of a writer that of a reader.
///
/// # Errors
/// What the kernel says.
pub fn share(file: &File) -> io::Result<()> {
    let free = |byte| fcntl(file, libc::F_OFD_SETLK, libc::F_UNLCK, (byte, 1)).map(drop);
    bytes(PERMISSION_BASE, WRITE).try_for_each(free)
}

/// Whether another open file uses the image in a way that excludes this use; takes no lock.
///
/// # Errors
/// As [`lock`].
pub fn is_taken(file: &File, read_only: bool) -> io::Result<bool> {
    let (uses, forbids) = wanted(read_only);
    let looks = bytes(PERMISSION_BASE, forbids).chain(bytes(FORBIDDEN_BASE, uses));
    for byte in looks {
        match others_hold(file, byte) {
            Ok(false) => {}
            Ok(true) => return Ok(true),
            Err(error) if says_unavailable(&error) => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

/// Permissions that a use needs, and those that it does not suffer in others.
fn wanted(read_only: bool) -> (u8, u8) {
    match read_only {
        true => (CONSISTENT_READ, WRITE | RESIZE),
        false => (CONSISTENT_READ | WRITE, WRITE | RESIZE),
    }
}

/// [`lock`] of an own open file, but a lock that is taken is asked for again for a while: of a server that was killed the kernel gives
/// back the ring, and with it the image, some milliseconds after the process is gone (17 ms measured).
///
/// # Errors
/// As [`lock`].
pub fn lock_patiently(file: &File, read_only: bool) -> io::Result<Lock> {
    // Not while we wait: two processes that start together would block each other without end.
    patiently(|| lock(file, read_only), || release(file))
}

/// [`lock_patiently`] of an open file that another process hands over and still needs: none of its locks is released, whatever the
/// answer is. The image is taken for the moment in which a third process tries to lock it.
///
/// # Errors
/// As [`lock`].
pub fn lock_handed_over(file: &File, read_only: bool) -> io::Result<Lock> {
    let look_first = || match is_taken(file, read_only)? {
        true => Ok(Lock::Taken),
        false => lock(file, read_only),
    };
    patiently(look_first, || Ok(()))
}

/// Tries until the image is not taken any more, for a while; `before_wait` comes before each wait.
fn patiently(
    attempt: impl Fn() -> io::Result<Lock>,
    before_wait: impl Fn() -> io::Result<()>,
) -> io::Result<Lock> {
    for _ in 0..PATIENCE_TRIES {
        match attempt()? {
            Lock::Taken => {}
            answer => return Ok(answer),
        }
        before_wait()?;
        std::thread::sleep(PATIENCE_PAUSE);
    }
    attempt()
}

fn release(file: &File) -> io::Result<()> {
    fcntl(file, libc::F_OFD_SETLK, libc::F_UNLCK, (0, 0)).map(drop)
}

fn others_hold(file: &File, byte: i64) -> io::Result<bool> {
    let found = fcntl(file, libc::F_OFD_GETLK, libc::F_WRLCK, (byte, 1))?;
    Ok(i32::from(found.l_type) != libc::F_UNLCK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempFile;

    #[test]
    fn writer_excludes_all_others_and_readers_share() {
        let image = TempFile::new("lock");
        let open = || File::options().read(true).write(true).open(image.path());
        let writer = open().unwrap();
        assert_eq!(lock(&writer, false).unwrap(), Lock::Held);
        assert_eq!(lock(&open().unwrap(), false).unwrap(), Lock::Taken);
        assert_eq!(lock(&open().unwrap(), true).unwrap(), Lock::Taken);
        drop(writer);
        let readers = [open().unwrap(), open().unwrap()];
        for reader in &readers {
            assert_eq!(lock(reader, true).unwrap(), Lock::Held);
        }
        assert_eq!(lock(&open().unwrap(), false).unwrap(), Lock::Taken);
        drop(readers);
        assert_eq!(lock(&open().unwrap(), false).unwrap(), Lock::Held);
    }

    #[test]
    fn locked_bytes_match_qemu() {
        let image = TempFile::new("lock-bytes");
        let (ours, other) = (
            File::options().read(true).write(true).open(image.path()).unwrap(),
            File::options().read(true).write(true).open(image.path()).unwrap(),
        );
        lock(&ours, false).unwrap();
        let held: Vec<i64> = (90..300).filter(|&byte| others_hold(&other, byte).unwrap()).collect();
        assert_eq!(held, [100, 101, 201, 203]);
    }

    #[test]
    fn qemu_cannot_write_locked_image() {
        let image = TempFile::new("lock-qemu");
        let ours = File::options().read(true).write(true).open(image.path()).unwrap();
        ours.set_len(1 << 20).unwrap();
        let qemu = |command: &str| {
            let mut io = std::process::Command::new("qemu-io");
            let io = io.args(["-f", "raw", "-c", command]).arg(image.path());
            // Without qemu on the machine the test checks nothing.
            io.output().ok().map(|output| output.status.success())
        };
        if qemu("write 0 512") == Some(true) {
            assert_eq!(lock(&ours, false).unwrap(), Lock::Held);
            assert_eq!(qemu("write 0 512"), Some(false));
        }
    }

    #[test]
    fn handed_over_lock_stays_while_its_new_holder_waits() {
        let image = TempFile::new("lock-handed");
        let open = || File::options().read(true).write(true).open(image.path()).unwrap();
        let old = open();
        assert_eq!(lock(&old, false).unwrap(), Lock::Held);
        let handed = old.try_clone().unwrap();
        // A third process is in the middle of its attempt: its locks are set, and it looks next.
        let third = open();
        assert_eq!(lock(&third, false).unwrap(), Lock::Taken);
        let watch = open();
        let new = std::thread::spawn(move || lock_handed_over(&handed, false).unwrap());
        // As long as the new process waits, and after it has given up.
        while !new.is_finished() {
            assert!(others_hold(&watch, PERMISSION_BASE + 1).unwrap());
            assert_eq!(lock(&third, false).unwrap(), Lock::Taken, "the old server has it");
        }
        assert_eq!(new.join().unwrap(), Lock::Taken);
        release(&third).unwrap();
        assert_eq!(lock(&third, false).unwrap(), Lock::Taken);
        release(&third).unwrap();
        let handed = old.try_clone().unwrap();
        assert_eq!(lock_handed_over(&handed, false).unwrap(), Lock::Held);
    }
}
