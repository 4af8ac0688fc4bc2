//! Errors at the border: a negative errno for the program, and a sentence for its user.
//!
//! [`guard`] is around every call that does anything: it turns errors and panics into numbers and keeps the sentence in the calling
//! thread. A call that succeeds touches neither. `EAGAIN`, which a program meets while it works, has a sentence that is not made anew.

use std::any::Any;
use std::borrow::Cow;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use headworks::headworks_core::escape_controls;
use headworks::{ConfigError, IoError};

/// What a call returns that fails.
pub type Code = i32;

/// A failed call: the positive errno and a sentence.
#[derive(Debug)]
pub struct Failure {
    pub errno: Code,
    pub sentence: Cow<'static, CStr>,
}

impl Failure {
    /// A failure with a sentence about its values.
    pub fn new(errno: Code, sentence: impl Into<Vec<u8>>) -> Self {
        // A program's own words may be in it, but none with a zero byte: they came as C strings.
        let sentence = CString::new(sentence).unwrap_or_else(|_| c"unknown error".to_owned());
        Self { errno, sentence: Cow::Owned(sentence) }
    }

    /// An argument that is null or out of range.
    pub fn invalid(sentence: impl Into<Vec<u8>>) -> Self {
        Self::new(libc::EINVAL, sentence)
    }

    /// A failure whose sentence is the same every time.
    pub const fn fixed(errno: Code, sentence: &'static CStr) -> Self {
        Self { errno, sentence: Cow::Borrowed(sentence) }
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::invalid(error.to_string())
    }
}

impl From<IoError> for Failure {
    fn from(error: IoError) -> Self {
        Self::new(error.errno(), error.to_string())
    }
}

thread_local! {
    static LAST: RefCell<Cow<'static, CStr>> = const { RefCell::new(Cow::Borrowed(c"")) };
}

/// The sentence of the last call of this thread that failed, empty if none has. It stays until the next one fails.
pub fn last_sentence() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

fn keep(failure: Failure) -> Code {
    // A thread that is ending reads it no more.
    let _ = LAST.try_with(|last| *last.borrow_mut() = failure.sentence);
    -failure.errno
}

/// Runs a call: its value, or the negative errno of its failure or panic.
#[inline]
pub fn guard<T: From<Code>>(call: impl FnOnce() -> Result<T, Failure>) -> T {
    // What a panic left half done is not used again: see `Queue::enter`.
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => value,
        Ok(Err(failure)) => T::from(keep(failure)),
        Err(panic) => T::from(keep(panicked(panic.as_ref()))),
    }
}

/// As [`guard`], of a call that returns a pointer, which is null if it fails.
pub fn guard_pointer<T>(call: impl FnOnce() -> Result<*mut T, Failure>) -> *mut T {
    let mut found = std::ptr::null_mut();
    guard::<i64>(|| {
        found = call()?;
        Ok(0)
    });
    found
}

#[cold]
fn panicked(panic: &(dyn Any + Send)) -> Failure {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let text = escape_controls(text.unwrap_or("without a message"));
    Failure::new(
        libc::ENOTRECOVERABLE,
        format!("the library has a fault, please report it: {text}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sentence() -> String {
        // SAFETY: nothing fails between this call and the copy.
        unsafe { CStr::from_ptr(last_sentence()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn every_error_is_its_negative_errno_with_a_sentence() {
        assert_eq!(sentence(), "");
        for error in IoError::ALL {
            let code: i32 = guard(|| Err(error.into()));
            assert_eq!((code, sentence()), (-error.errno(), error.to_string()));
            assert!(code < 0 && !sentence().is_empty());
        }
        let wrong = ConfigError::new("size", "0 is too small");
        assert_eq!(guard::<i64>(|| Err(wrong.into())), -i64::from(libc::EINVAL));
        assert_eq!(sentence(), "size: 0 is too small");
        assert_eq!(guard::<i32>(|| Ok(7)), 7);
        assert_eq!(sentence(), "size: 0 is too small", "a success leaves it");
    }

    #[test]
    fn panic_is_an_error_and_its_message_the_sentence() {
        for (n, message) in [(0, "slot 3 is lost"), (1, "of a zero byte")] {
            let code: i32 = guard(|| match n {
                0 => panic!("slot {} is lost", 3),
                _ => std::panic::panic_any("of a zero byte"),
            });
            assert_eq!(code, -libc::ENOTRECOVERABLE);
            assert!(sentence().ends_with(message), "{}", sentence());
        }
        assert!(guard_pointer::<u8>(|| panic!("no pointer")).is_null());
    }

    #[test]
    fn sentence_belongs_to_its_thread() {
        let _: i32 = guard(|| Err(Failure::invalid("of this thread")));
        std::thread::spawn(|| assert_eq!(sentence(), "")).join().unwrap();
        assert_eq!(sentence(), "of this thread");
    }
}
