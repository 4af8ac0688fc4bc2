//! Requests of clients that are not answered yet, for a client of the control socket that asks: nothing is counted for them before.
//!
//! A request is in the list of those that wait before their bio, or in the window of its connection; where it waits from then on is
//! asked of the shard, of the oldest request of each export.

use std::collections::BTreeMap;

use headworks_core::{BioId, ExportId, Instant};

use super::ReactorParts;
use super::door::Door;
use crate::reactor::messages::in_flight::{InFlightReport, Unanswered, WaitPlace};

/// Exports in one part: the shard looks through its tables for each.
const EXPORTS_MAX: usize = 64;

/// Requests in flight of each export with clients on this shard, from `from` on, and the first export of the next part.
pub(super) fn report_in_flight(
    door: &Door,
    parts: &mut ReactorParts,
    now: Instant,
    from: ExportId,
) -> (Vec<InFlightReport>, Option<ExportId>) {
    let mut all: BTreeMap<ExportId, (InFlightReport, Option<BioId>)> = BTreeMap::new();
    for slot in parts.io.slots() {
        let Some(export) = door.export_of(slot).filter(|export| *export >= from) else { continue };
        let Some((connection, _)) = parts.io.connection(slot) else { continue };
        connection.each_unanswered(now, |one, bio| {
            let (report, oldest) = all.entry(export).or_default();
            if report.count(one.age_ns) {
                (report.oldest, *oldest) = (Some(one), bio);
            }
        });
    }
    let next = all.keys().nth(EXPORTS_MAX).copied();
    all.retain(|export, _| next.is_none_or(|next| *export < next));
    let ids: Vec<BioId> = all.values().filter_map(|(_, bio)| *bio).collect();
    let mut waits = parts.driver.shard().bio_waits(&ids).into_iter();
    let reports = all.into_iter().map(|(export, (mut report, bio))| {
        let wait = bio.and_then(|_| waits.next()).flatten();
        if let Some(oldest) = &mut report.oldest {
            oldest.device = door.exports.device_of(export).unwrap_or_default();
            if let Some(wait) = wait {
                set_wait(oldest, wait);
            }
        }
        InFlightReport { export, ..report }
    });
    (reports.collect(), next)
}

/// Sets where a request waits.
pub(crate) fn set_wait(one: &mut Unanswered, wait: headworks_core::BioWait) {
    (one.place, one.device) = (WaitPlace::Stage(wait.kind), wait.device);
    one.sent_on = wait.sent_on;
}
