//! Errors of the data path ([`IoError`]) and of the control path ([`ConfigError`]).
//!
//! The mapping to errno is here for every frontend and device.

use std::fmt;

/// The reason for a failed I/O. The discriminants are stable: they are recorded and hashed.
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
    /// The device cannot do this operation, or not as fast as requested (ENOTSUP).
    Unsupported = 6,
    /// All slots or all memory are in use (ENOMEM).
    NoMemory = 7,
    /// The device refused the command for now and the queue retries it; never reaches a frontend (EAGAIN).
    Busy = 8,
    /// The volume is being removed, or belongs to another server now (ESHUTDOWN).
    ShutDown = 9,
    /// The device could not write what a flush needs for want of room: nothing was lost, and the next flush may succeed. The queue tells
    /// clients of no room; never reaches a frontend (ENOSPC).
    NotFlushed = 10,
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
    pub const ALL: [IoError; 10] = [
        IoError::Medium,
        IoError::NoSpace,
        IoError::TimedOut,
        IoError::Invalid,
        IoError::ReadOnly,
        IoError::Unsupported,
        IoError::NoMemory,
        IoError::Busy,
        IoError::ShutDown,
        IoError::NotFlushed,
    ];

    /// The name of the errno that stands for this error, without its `E`, in lower case: `io`, `nospc`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            IoError::Medium => "io",
            IoError::NoSpace | IoError::NotFlushed => "nospc",
            IoError::TimedOut => "timedout",
            IoError::Invalid => "inval",
            IoError::ReadOnly => "perm",
            IoError::Unsupported => "notsup",
            IoError::NoMemory => "nomem",
            IoError::Busy => "again",
            IoError::ShutDown => "shutdown",
        }
    }

    /// The positive errno that stands for this error.
    #[must_use]
    pub const fn errno(self) -> i32 {
        match self {
            IoError::Medium => errno::EIO,
            IoError::NoSpace | IoError::NotFlushed => errno::ENOSPC,
            IoError::TimedOut => errno::ETIMEDOUT,
            IoError::Invalid => errno::EINVAL,
            IoError::ReadOnly => errno::EPERM,
            IoError::Unsupported => errno::ENOTSUP,
            IoError::NoMemory => errno::ENOMEM,
            IoError::Busy => errno::EAGAIN,
            IoError::ShutDown => errno::ESHUTDOWN,
        }
    }

    /// Converts a positive errno; an unknown one counts as a medium error. EINTR counts as busy: the command had no effect, and a
    /// ring does not restart it as the kernel restarts a system call.
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

    /// The stable code of a status; 0 for success.
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
            IoError::NoSpace | IoError::NotFlushed => "no space left on the device",
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

/// An invalid option, with its value and what is accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The option's name as the user writes it.
    pub option: &'static str,
    /// The value and what is accepted instead, in one sentence, which is one line without control characters.
    pub message: String,
    cause: Option<i32>,
}

impl ConfigError {
    /// Creates an error about an option. Control characters of the message are escaped: it may hold names that an image or a
    /// peer chose, and goes to terminals and logs.
    pub fn new(option: &'static str, message: impl Into<String>) -> Self {
        Self { option, message: escape_controls(&message.into()), cause: None }
    }

    /// The same with the errno of the system's error that is the cause, for programs that cannot read the message.
    #[must_use]
    pub fn caused_by(self, errno: Option<i32>) -> Self {
        Self { cause: errno, ..self }
    }

    /// Errno of the system's error that is the cause; none if a value is wrong.
    #[must_use]
    pub fn cause(&self) -> Option<i32> {
        self.cause
    }
}

/// The text without control characters: each is written as an escape (`\n`, `\u{1b}`). For what others chose, such as the name of
/// an image's backing file, before it goes to a terminal or a log.
#[must_use]
pub fn escape_controls(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character.is_control() {
            true => escaped.extend(character.escape_default()),
            false => escaped.push(character),
        }
    }
    escaped
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
    fn codes_and_errnos_round_trip() {
        assert_eq!(IoError::from_code(IoError::code(Ok(()))), Ok(()));
        for error in IoError::ALL {
            assert_eq!(IoError::from_code(error as u8), Err(error));
            let from_errno = IoError::from_errno(error.errno());
            assert!(from_errno == error || error == IoError::NotFlushed);
        }
        assert_eq!(IoError::from_code(200), Err(IoError::Medium));
        assert_eq!([4, 11, 16].map(IoError::from_errno), [IoError::Busy; 3], "tried again");
    }

    #[test]
    fn message_is_one_line_whatever_names_it_holds() {
        let error = ConfigError::new(
            "path",
            "a\nb \u{1b}[31m \u{9b}2J gr\u{f6}\u{df}e \"c\" \\ is not there",
        );
        let shown = "path: a\\nb \\u{1b}[31m \\u{9b}2J gr\u{f6}\u{df}e \"c\" \\ is not there";
        assert_eq!(error.to_string(), shown);
    }
}
