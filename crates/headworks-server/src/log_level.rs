//! How much is logged, shown and set while the server runs.
//!
//! The library logs through `tracing` and does not know who listens; whoever installed the listener gives this, and `log-level` of
//! the control socket calls it.

use std::fmt;
use std::sync::Arc;

/// The levels, from little to much.
pub const LOG_LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

type Switch = dyn Fn(Option<&'static str>) -> &'static str + Send + Sync;

/// Shows how much is logged, and sets it.
#[derive(Clone)]
pub struct LogLevel(Arc<Switch>);

impl LogLevel {
    /// `switch` sets the level that it is given, one of [`LOG_LEVELS`], and says which is in force.
    pub fn new(
        switch: impl Fn(Option<&'static str>) -> &'static str + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(switch))
    }

    /// Sets the level if one is given; returns the level in force.
    pub(crate) fn switch(&self, level: Option<&'static str>) -> &'static str {
        (self.0)(level)
    }
}

impl fmt::Debug for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LogLevel({})", self.switch(None))
    }
}
