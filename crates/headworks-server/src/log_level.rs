//! How much is logged, shown and set while the server runs.
//!
//! The library logs through `tracing` and does not know who listens; whoever installed the listener gives this, and `log-level` of
//! the control socket calls it.

use std::fmt;
use std::sync::Arc;

use serde_json::json;

use super::rpc::RpcFault;
use super::service::RpcResult;

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
}

impl fmt::Debug for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LogLevel({})", (self.0)(None))
    }
}

/// The method: with a level it is set first.
pub(super) fn log_level(switch: Option<&LogLevel>, wanted: Option<&str>) -> RpcResult {
    let Some(LogLevel(switch)) = switch else {
        return Err(RpcFault::refused(
            "ENOTSUP",
            "this program's log has no level that can be set",
        ));
    };
    let level = wanted.map(|wanted| {
        let found = LOG_LEVELS.into_iter().find(|level| *level == wanted);
        found.ok_or_else(|| {
            let accepted = LOG_LEVELS.join(", ");
            let message = format!("`{wanted}` is no level; there are {accepted}");
            RpcFault::refused("EINVAL", message).accepts(accepted)
        })
    });
    Ok(json!({ "level": switch(level.transpose()?) }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn a_level_is_set_and_shown_and_a_wrong_one_changes_nothing() {
        let now = Mutex::new("info");
        let switch = LogLevel::new(move |wanted| {
            let mut now = now.lock().unwrap();
            *now = wanted.unwrap_or(*now);
            *now
        });
        let say = |wanted| log_level(Some(&switch), wanted);
        assert_eq!(say(None).unwrap(), json!({ "level": "info" }));
        assert_eq!(say(Some("debug")).unwrap(), json!({ "level": "debug" }));
        let fault = say(Some("loud")).unwrap_err();
        let accepted = "error, warn, info, debug, trace";
        let expected = format!("`loud` is no level; there are {accepted}");
        assert_eq!(fault, RpcFault::refused("EINVAL", expected).accepts(accepted));
        assert_eq!(say(None).unwrap(), json!({ "level": "debug" }));
        assert!(log_level(None, None).is_err());
    }
}
