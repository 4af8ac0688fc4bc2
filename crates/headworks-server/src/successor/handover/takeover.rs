//! What a starting server takes over from a running one, as a part of its options.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use headworks_core::ConfigError;

use super::record::Handover;
use super::standing::Standing;
use crate::successor::leftovers::Leftovers;

/// A step of the new process that waits for the old one.
pub type TakeoverStep<T> = Box<dyn FnOnce() -> Result<T, ConfigError> + Send>;

/// What becomes of clients whose disk the new server does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnmatchedClients {
    /// They end the takeover: the old server goes on with them.
    Refuse,
    /// Their connections are closed: the old server is gone.
    Close,
}

/// What a starting server takes over, and how it tells the old one of its progress.
pub struct TakeoverSteps {
    /// What becomes of clients whose disk the new server does not have.
    pub unmatched: UnmatchedClients,
    /// Listeners, locks and settings, handed over while the old server serves.
    pub standing: Handover,
    /// Says that the new server is prepared, and waits until the old one is paused: connections and contents of caches.
    pub live: TakeoverStep<Handover>,
    /// Says that everything is adopted, and waits until the old process has left the service to this one.
    pub adopted: TakeoverStep<()>,
}

/// The steps of a takeover that are left when its standing part is read.
pub(crate) type LaterSteps = (TakeoverStep<Handover>, TakeoverStep<()>);

/// A takeover in the options of a server. A server that starts takes the steps out, so that no clone can use them a second time.
#[derive(Clone)]
pub struct Takeover {
    unmatched: UnmatchedClients,
    standing: Arc<Standing>,
    steps: Arc<Mutex<Option<LaterSteps>>>,
}

impl Takeover {
    /// A takeover that one server can carry out.
    ///
    /// # Errors
    /// The running server is of a version whose record this one cannot read.
    pub fn new(steps: TakeoverSteps) -> Result<Self, ConfigError> {
        let TakeoverSteps { unmatched, standing, live, adopted } = steps;
        let standing = Standing::read(standing).map_err(refused)?;
        let steps = Some((live, adopted));
        Ok(Self { unmatched, standing: Arc::new(standing), steps: Arc::new(Mutex::new(steps)) })
    }

    /// Gives the locks of the images to `leftovers`, with which the images are opened.
    pub fn give_locks(&self, leftovers: &Leftovers) {
        self.standing.give_locks(leftovers);
    }

    /// Whether the contents of the old server's cache move: its memory is then the
    /// [`ProcessContext::cache_file`](crate::ProcessContext::cache_file).
    #[must_use]
    pub fn has_memory(&self) -> bool {
        self.standing.has_memory
    }

    /// What was changed over the control socket and saved nowhere, as a configuration file.
    #[must_use]
    pub fn changes(&self) -> &str {
        &self.standing.changes
    }

    pub(crate) fn unmatched(&self) -> UnmatchedClients {
        self.unmatched
    }

    pub(crate) fn standing(&self) -> &Standing {
        &self.standing
    }

    /// Takes the steps out; none the second time.
    pub(crate) fn take(&self) -> Option<LaterSteps> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl fmt::Debug for Takeover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Takeover")
    }
}

/// The error of a takeover, as a sentence.
pub(crate) fn refused(reason: String) -> ConfigError {
    ConfigError::new("upgrade", reason)
}
