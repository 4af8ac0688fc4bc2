//! Requests of the control socket for a reload of the configuration, which the program carries out: it reads files.

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

/// Result of a reload, as sentences for the operator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReloadOutcome {
    /// What is wrong with the configuration; if there is anything, it was not loaded.
    pub problems: Vec<String>,
    /// Changes that took effect.
    pub changed: Vec<String>,
    /// Differences that stay, and why.
    pub refused: Vec<String>,
    /// Changes that were tried and failed, and why.
    pub failed: Vec<String>,
    /// Options that take effect after a restart.
    pub restart: Vec<String>,
    /// Values of a file that a later one overrides.
    pub overridden: Vec<String>,
}

/// A request for a reload. Dropped without an answer, it is answered with a refusal.
#[derive(Debug)]
pub struct ReloadRequest(Sender<Result<ReloadOutcome, String>>);

impl ReloadRequest {
    /// Answers with the result.
    pub fn answer(self, outcome: ReloadOutcome) {
        // A client that is gone needs no answer.
        let _ = self.0.send(Ok(outcome));
    }

    /// Refuses, because of what else is in progress.
    pub fn refuse(self, busy: &str) {
        let _ = self.0.send(Err(busy.to_owned()));
    }
}

/// A function of the program that takes requests for a reload; it must not block.
#[derive(Clone)]
pub struct ReloadHook(Arc<dyn Fn(ReloadRequest) + Send + Sync>);

impl ReloadHook {
    /// Wraps a function that passes requests to the thread that carries them out.
    pub fn new(take: impl Fn(ReloadRequest) + Send + Sync + 'static) -> Self {
        Self(Arc::new(take))
    }

    /// Asks for a reload and waits for the result, as long as exports that leave are written out; a stop of the server ends it.
    ///
    /// # Errors
    /// What else is in progress.
    pub(crate) fn ask(&self) -> Result<ReloadOutcome, String> {
        let (answer, result) = channel();
        (self.0)(ReloadRequest(answer));
        result.recv().unwrap_or_else(|_| Err("the server gave no answer".to_owned()))
    }
}

impl fmt::Debug for ReloadHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReloadHook")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_is_answered_refused_or_dropped() {
        let outcome = ReloadOutcome { changed: vec!["a".into()], ..Default::default() };
        let told = outcome.clone();
        let hook = ReloadHook::new(move |request| request.answer(told.clone()));
        assert_eq!(hook.ask(), Ok(outcome));
        assert_eq!(ReloadHook::new(|request| request.refuse("busy")).ask(), Err("busy".into()));
        assert!(ReloadHook::new(drop).ask().is_err());
    }
}
