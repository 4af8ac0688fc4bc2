//! What a device tells other threads of its remote.
//!
//! The device writes it when its state changes, never for a command; readers copy it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use headworks_core::Instant;

/// Whether a device has connections to its remote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RemoteState {
    /// Commands are sent.
    #[default]
    Up,
    /// Commands wait for a new connection, or fail because none came in time.
    Down,
    /// The remote has another export under the name: commands fail.
    Barred,
}

impl RemoteState {
    /// Name for metrics and the control socket.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
            Self::Barred => "barred",
        }
    }
}

/// Connections of a device to its remote, and what happened to them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemoteReport {
    /// Whether there are connections.
    pub state: RemoteState,
    /// When that began, by the clock of the device.
    pub since: Instant,
    /// Number of open connections.
    pub connections: u32,
    /// Attempts to connect since the last reply.
    pub attempts: u32,
    /// How often connections were opened anew.
    pub reconnects: u64,
    /// How often acknowledged writes may have been lost with the remote.
    pub losses: u64,
    /// Why there is no connection; empty while there is one.
    pub reason: String,
}

/// A [`RemoteReport`] that a device keeps up to date.
#[derive(Debug, Default)]
pub struct RemoteStatus(Mutex<RemoteReport>);

impl RemoteStatus {
    /// A copy of the report.
    #[must_use]
    pub fn report(&self) -> RemoteReport {
        self.lock().clone()
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut RemoteReport)) {
        change(&mut self.lock());
    }

    fn lock(&self) -> MutexGuard<'_, RemoteReport> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
