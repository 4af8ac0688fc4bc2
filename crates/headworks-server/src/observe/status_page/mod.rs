//! The status page: a read-only web page on the metrics listener that draws the last ten minutes of the server.
//!
//! ```text
//!   browser --GET /, /status.js, ...--> files    the files of the page, compiled into the program
//!           --GET /status.json--------> history  the last ten minutes; the first request starts the sampling
//!   every second, until ten minutes after the last request:  snapshot --counters--> history
//! ```
//!
//! While no page is open nothing is sampled and nothing is kept. `snapshot` reads the counters by the same queries as `stats`, `history`
//! makes the growth of each second of them, `json` writes what the page draws, `files` has the page itself. Times are arguments.

pub mod files;
mod history;
mod json;
mod snapshot;

use std::sync::Arc;
use std::time::Instant;

use crate::control::service::ControlService;
use history::History;
use snapshot::Snapshot;

/// What the page shows of one server.
pub struct StatusPage {
    service: Arc<ControlService>,
    history: History,
}

impl StatusPage {
    /// The page of the server behind `service`, not opened yet.
    pub fn new(service: Arc<ControlService>) -> Self {
        Self { service, history: History::default() }
    }

    /// When [`StatusPage::on_timeout`] has something to do; none while no page is open.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.history.next_timeout()
    }

    /// Takes the sample that is due, or forgets everything ten minutes after the last request.
    pub fn on_timeout(&mut self, now: Instant) {
        if self.history.on_timeout(now) {
            self.sample(now);
        }
    }

    /// The data as JSON, with the samples after number `after`; none while the server does not answer.
    pub fn data(&mut self, now: Instant, after: u64) -> Option<String> {
        if self.history.look(now) {
            self.sample(now);
        }
        Some(json::data(&self.history, after)?.to_string())
    }

    fn sample(&mut self, now: Instant) {
        let before = Instant::now();
        match Snapshot::take(&self.service) {
            Ok(snapshot) => self.history.on_snapshot(now, snapshot),
            // The shards do not answer, or the server is stopping; the wait for them must not delay the next request.
            Err(_) => self.history.on_failure(now + before.elapsed()),
        }
    }
}
