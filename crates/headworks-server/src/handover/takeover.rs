//! What a starting server takes over from a running one, as a part of its options.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use headworks_core::ConfigError;

/// State of a server for another process: a versioned record, and the descriptors that it refers to by index.
#[derive(Debug, Default)]
pub struct Handover {
    /// The record, in the format of this crate.
    pub record: Vec<u8>,
    /// Descriptors in the order of their indices in the record.
    pub descriptors: Vec<OwnedFd>,
}

/// A step of the new process that waits for the old one.
pub type TakeoverStep<T> = Box<dyn FnOnce() -> Result<T, ConfigError> + Send>;

/// What a starting server takes over, and how it tells the old one of its progress.
pub struct TakeoverSteps {
    /// Listeners, locks, memory and settings, handed over while the old server serves.
    pub standing: Handover,
    /// Says that the new server is prepared, and waits until the old one is paused: connections and contents of caches.
    pub live: TakeoverStep<Handover>,
    /// Says that everything is adopted, and waits until the old process has left the service to this one.
    pub adopted: TakeoverStep<()>,
}

/// A takeover in the options of a server. A server that starts takes it out, so that no clone can use it a second time.
#[derive(Clone)]
pub struct Takeover(Arc<Mutex<Option<TakeoverSteps>>>);

impl Takeover {
    /// A takeover that one server can carry out.
    #[must_use]
    pub fn new(steps: TakeoverSteps) -> Self {
        Self(Arc::new(Mutex::new(Some(steps))))
    }

    /// Takes the steps out; none the second time.
    #[must_use]
    pub fn take(&self) -> Option<TakeoverSteps> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl fmt::Debug for Takeover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Takeover")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takeover_is_taken_once_by_any_clone() {
        let steps = TakeoverSteps {
            standing: Handover { record: vec![1], descriptors: Vec::new() },
            live: Box::new(|| Ok(Handover::default())),
            adopted: Box::new(|| Ok(())),
        };
        let takeover = Takeover::new(steps);
        assert_eq!(takeover.clone().take().map(|steps| steps.standing.record), Some(vec![1]));
        assert!(takeover.take().is_none());
    }
}
