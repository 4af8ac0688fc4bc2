//! What the control notes beside its measurements: how requests are cut, what the limit in use is worth, and what was tried.
//!
//! Invariant: plain values, which the control alone changes.

use crate::time::Instant;

/// How large requests are cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cuts {
    /// Large commands are cut.
    pub now: bool,
    /// The search is for cut commands.
    pub next: bool,
    /// Requests are cut before they wait.
    pub early: bool,
    /// Cut commands that the limit takes at once, beside one more.
    pub pieces: u64,
}

/// What is known of the limit in use while nothing is tried.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cruise {
    /// Its throughput, and that of small requests alone.
    pub rate: f64,
    pub small: f64,
    /// Square of the relative error of `rate`.
    pub error: f64,
    /// Throughput of a limit that is large enough.
    pub reference: f64,
    pub next_trial: Instant,
    pub rest_ns: u64,
}

/// Requests that wait for the limit.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bound {
    /// When some waited last.
    pub at: Instant,
    /// Some waited during this measurement.
    pub now: bool,
}

/// The limits that were tried.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tried {
    /// The search is the first one of its range.
    pub fresh: bool,
    /// Samples after which an uncertain measurement of the reference begins again.
    pub reference_samples: u32,
    pub trials: u64,
    /// Trials whose limit was too small.
    pub too_small: u64,
}
