//! What a server shows of itself: metrics, the status page, histograms of latencies, and recordings of requests.
//!
//! `control` answers questions; this room has what is shown without one. `recorder` writes the requests of clients to a file,
//! `recorded_requests` reads one.

pub(crate) mod latency;
pub(crate) mod metrics;
pub(crate) mod recorded_requests;
pub(crate) mod recorder;
pub(crate) mod status_page;
