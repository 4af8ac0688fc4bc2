//! The requests of a connection that are not answered yet, for a client of the control socket that asks.

use headworks_core::{BioId, ExportId, Instant};

use super::Connection;
use super::session::Session;
use crate::reactor::messages::in_flight::{Unanswered, WaitPlace};
use headworks_front::Origin;
use headworks_front::intake::Intake;

/// Tells `each` the requests of a client that are not answered, and the bio of those that are in the shard. Those whose payload is to
/// come wait for their client, and are left out.
pub(crate) fn each_unanswered(
    (intake, session): (&Intake, &Session),
    now: Instant,
    mut each: impl FnMut(Unanswered, Option<BioId>),
) {
    let Some(binding) = session.last_binding() else { return };
    let connection = session.id();
    let export: ExportId = session.export();
    let of = Unanswered {
        volume: binding.volume,
        export: Some(export),
        connection: Some(connection),
        device: binding.device,
        ..Unanswered::default()
    };
    let front = intake.waiting().all().filter(|one| one.origin != Origin::Reread);
    for one in front {
        let Some(place) = WaitPlace::of_front(one.waits_for()) else { continue };
        let request = &one.request;
        let (offset, len, op) = (request.offset, request.len, request.op());
        each(Unanswered { op, offset, len, age_ns: now.since(one.began()), place, ..of }, None);
    }
    for one in session.window().all().filter(|one| !one.answered) {
        let bio = BioId { connection, volume: binding.volume, export, sequence: one.sequence };
        let (op, offset, len) = (one.op, one.offset, one.len);
        each(Unanswered { op, offset, len, age_ns: now.since(one.since), ..of }, Some(bio));
    }
}

/// Nanoseconds since the oldest request of a client came that is not answered.
pub(crate) fn oldest_request_ns(parts: (&Intake, &Session), now: Instant) -> Option<u64> {
    let mut oldest = None;
    each_unanswered(parts, now, |one, _| oldest = oldest.max(Some(one.age_ns)));
    oldest
}

impl Connection {
    /// Tells `each` the requests that are not answered, and the bio of those that are in the shard.
    pub fn each_unanswered(&self, now: Instant, each: impl FnMut(Unanswered, Option<BioId>)) {
        each_unanswered((&self.intake, &self.session), now, each);
    }

    /// Nanoseconds since its oldest request came that is not answered.
    #[must_use]
    pub fn oldest_request_ns(&self, now: Instant) -> Option<u64> {
        oldest_request_ns((&self.intake, &self.session), now)
    }
}
