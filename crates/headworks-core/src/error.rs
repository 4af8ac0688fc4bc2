//! What can go wrong, one small enum per boundary.
//!
//! [`IoError`] travels with data and is `Copy`; [`ConfigError`] is for the control path and says which option was wrong and
//! what would be right. The mapping to errno stands here once, for every frontend and device.

use std::fmt;

/// Why an I/O failed. The discriminants are stable: they are recorded and hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum IoError {
    /// The medium or the device failed (EIO).
    Medium = 1,
    /// No room to write (ENOSPC).
    NoSpace = 2,
    /// The device did not answer within `io_timeout` (ETIMEDOUT).
    TimedOut = 3,
    /// The request is malformed for this volume: alignment, range or flags (EINVAL).
    Invalid = 4,
    /// The volume is read-only (EPERM).
    ReadOnly = 5,
    /// The device cannot do this operation, or not as fast as was asked (ENOTSUP).
    Unsupported = 6,
    /// No slot or memory was left (ENOMEM).
    NoMemory = 7,
    /// The device refused for now; the queue tries again. Never reaches a frontend (EAGAIN).
    Busy = 8,
    /// The volume is going away (ESHUTDOWN).
    ShutDown = 9,
}

/// The outcome of an I/O.
pub type Status = Result<(), IoError>;

/// Linux errno numbers, so that core needs no libc.
mod errno {
    pub const EPERM: i32 = 1;
    pub const EINTR: i32 = 4;
    pub const EIO: i32 = 5;
    pub const EAGAIN: i32 = 11;
    pub const ENOMEM: i32 = 12;
    pub const EBUSY: i32 = 16;
    pub const EINVAL: i32 = 22;
    pub const EFBIG: i32 = 27;
    pub const ENOSPC: i32 = 28;
    pub const EROFS: i32 = 30;
    pub const ENOTSUP: i32 = 95;
    pub const ESHUTDOWN: i32 = 108;
    pub const ETIMEDOUT: i32 = 110;
    pub const EDQUOT: i32 = 122;
}

impl IoError {
    /// Every error, in the order of their codes.
    pub const ALL: [IoError; 9] = [
        IoError::Medium,
        IoError::NoSpace,
        IoError::TimedOut,
        IoError::Invalid,
        IoError::ReadOnly,
        IoError::Unsupported,
        IoError::NoMemory,
        IoError::Busy,
        IoError::ShutDown,
    ];

    /// The positive errno that stands for this error.
    #[must_use]
    pub const fn errno(self) -> i32 {
        match self {
            IoError::Medium => errno::EIO,
            IoError::NoSpace => errno::ENOSPC,
            IoError::TimedOut => errno::ETIMEDOUT,
            IoError::Invalid => errno::EINVAL,
            IoError::ReadOnly => errno::EPERM,
            IoError::Unsupported => errno::ENOTSUP,
            IoError::NoMemory => errno::ENOMEM,
            IoError::Busy => errno::EAGAIN,
            IoError::ShutDown => errno::ESHUTDOWN,
        }
    }

    /// The error that a positive errno means; what is unknown is the medium's fault. What was interrupted did nothing, and is no
    /// fault: a ring cannot start it again by itself, as a system call is.
    #[must_use]
    pub const fn from_errno(number: i32) -> Self {
        match number {
            errno::EPERM | errno::EROFS => IoError::ReadOnly,
            errno::EAGAIN | errno::EBUSY | errno::EINTR => IoError::Busy,
            errno::ENOMEM => IoError::NoMemory,
            errno::EINVAL => IoError::Invalid,
            errno::ENOSPC | errno::EDQUOT | errno::EFBIG => IoError::NoSpace,
            errno::ENOTSUP => IoError::Unsupported,
            errno::ESHUTDOWN => IoError::ShutDown,
            errno::ETIMEDOUT => IoError::TimedOut,
            _ => IoError::Medium,
        }
    }

    /// 0 for success, the stable code otherwise.
    #[must_use]
    pub const fn code(status: Status) -> u8 {
        match status {
            Ok(()) => 0,
            Err(error) => error as u8,
        }
    }

    /// The reverse of [`IoError::code`]; an unknown code reads as a medium error.
    pub fn from_code(code: u8) -> Status {
        match code {
            0 => Ok(()),
            n => Err(*Self::ALL.get(usize::from(n) - 1).unwrap_or(&IoError::Medium)),
        }
    }
}

impl fmt::Display for IoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IoError::Medium => "input/output error",
            IoError::NoSpace => "no space left on the device",
            IoError::TimedOut => "the device did not answer in time",
            IoError::Invalid => "invalid request",
            IoError::ReadOnly => "the volume is read-only",
            IoError::Unsupported => "operation not supported",
            IoError::NoMemory => "no slot or memory left",
            IoError::Busy => "the device is busy",
            IoError::ShutDown => "the volume is shutting down",
        })
    }
}

impl std::error::Error for IoError {}

/// An option that cannot be: which one, what it was, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The option's name as the user writes it.
    pub option: &'static str,
    /// One sentence: what was wrong and what would be right.
    pub message: String,
}

impl ConfigError {
    /// An error about `option`.
    pub fn new(option: &'static str, message: impl Into<String>) -> Self {
        Self { option, message: message.into() }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.option, self.message)
    }
}

impl std::error::Error for ConfigError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_errnos_come_back_as_they_went() {
        assert_eq!(IoError::from_code(IoError::code(Ok(()))), Ok(()));
        for error in IoError::ALL {
            assert_eq!(IoError::from_code(error as u8), Err(error));
            assert_eq!(IoError::from_errno(error.errno()), error);
        }
        assert_eq!(IoError::from_code(200), Err(IoError::Medium));
        assert_eq!([4, 11, 16].map(IoError::from_errno), [IoError::Busy; 3], "tried again");
    }
}
