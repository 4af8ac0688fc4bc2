//! The log level, shown and set while the server runs.
//!
//! The library logs through `tracing` and does not know the subscriber. The program that installs the subscriber passes
//! this; the method `log-level` of the control socket calls it.

use std::fmt;
use std::sync::Arc;

/// Log levels from few messages to many.
pub const LOG_LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

type Switch = dyn Fn(Option<&'static str>) -> &'static str + Send + Sync;

/// Shows and sets the log level of the program.
#[derive(Clone)]
pub struct LogLevel(Arc<Switch>);

impl LogLevel {
    /// Wraps a function that sets the level it is given, one of [`LOG_LEVELS`], and returns the level in force.
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
