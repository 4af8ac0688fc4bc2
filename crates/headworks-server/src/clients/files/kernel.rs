//! The kernel of a file in tests: what it would send and get by the device.

use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

pub const READ: u32 = 15;
pub const WRITE: u32 = 16;
pub const FSYNC: u32 = 20;
pub const ALLOCATE: u32 = 43;
pub const SEEK: u32 = 46;

/// The kernel's end of a device, which has packets as `/dev/fuse` has requests.
pub struct Kernel(std::fs::File);

impl Kernel {
    /// A device, and the kernel that has it.
    pub fn with_device() -> (OwnedFd, Self) {
        let mut fds = [0; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: room for two descriptors, which are new.
        let [ours, theirs] = unsafe {
            assert_eq!(libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()), 0);
            fds.map(|fd| OwnedFd::from_raw_fd(fd))
        };
        (ours, Self(theirs.into()))
    }

    /// The next answer, for which the test waits.
    pub fn awaited(&mut self) -> (i32, u64, Vec<u8>) {
        let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor that is open during the call.
        assert_eq!(unsafe { libc::poll(&raw mut poll, 1, 20_000) }, 1, "it is answered");
        self.answer().unwrap()
    }

    /// A request: its operation, number and body.
    pub fn ask(&mut self, operation: u32, unique: u64, body: &[u8]) {
        let mut bytes = ((40 + body.len()) as u32).to_le_bytes().to_vec();
        bytes.extend(operation.to_le_bytes());
        bytes.extend(unique.to_le_bytes());
        bytes.extend(1u64.to_le_bytes());
        bytes.extend([0; 16]);
        bytes.extend(body);
        assert_eq!(self.0.write(&bytes).unwrap(), bytes.len());
    }

    /// The next answer: its errno, number and body; none if there is none.
    pub fn answer(&mut self) -> Option<(i32, u64, Vec<u8>)> {
        let mut bytes = vec![0; 2 << 20];
        let length = self.0.read(&mut bytes).ok()?;
        let word = |at: usize| i32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!(word(0) as usize, length, "an answer says its length");
        let unique = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
        Some((-word(4), unique, bytes[16..length].to_vec()))
    }
}

pub fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

pub fn read_of(offset: u64, size: u32) -> Vec<u8> {
    words(&[0, offset, size.into(), 0, 0])
}

pub fn write_of(offset: u64, data: &[u8], flags: u32) -> Vec<u8> {
    let mut body = words(&[0, offset, data.len() as u64, 0, flags.into()]);
    body.extend(data);
    body
}

pub fn allocate_of(offset: u64, length: u64, mode: i32) -> Vec<u8> {
    words(&[0, offset, length, mode as u64])
}
