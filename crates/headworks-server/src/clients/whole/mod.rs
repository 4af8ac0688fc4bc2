//! Clients whose requests come whole, with their data: the rings of a virtual machine, and files of FUSE.
//!
//! ```text
//!   source --next--> request --admission--> bio of the shard --answer--> source
//!                      `-- waits: window, limit, freeze, bio slot, turn, buffer; behind it nothing is taken from the source
//! ```
//!
//! Here such a client is what a connection is: it has a window, waiting requests, limits, shares of the pool, tables. Where its requests
//! come from and where answers go is its [`Source`].

pub(crate) mod admission;

use std::sync::Arc;

use headworks_core::limits::{LimitDirection, LimitedIo};
use headworks_core::{BioId, ExportId, Instant, IoError, Ioprio, WaitTimes};

use crate::clients::nbd::connection::session::Session;
use crate::clients::nbd::connection::unanswered::{each_unanswered, oldest_request_ns};
use crate::clients::nbd::connection::{ConnectionLimits, ExportBinding, ReceiveOutcome, Shares};
use crate::observe::latency::LatencyTable;
use crate::reactor::messages::in_flight::Unanswered;
pub(crate) use admission::{NoBlock, take_block};
use headworks_front::WaitsFor;
use headworks_front::intake::Intake;
use headworks_front::memory::{MemoryLimits, Wants};
use headworks_front::window::CompletedRequest;
use headworks_house::Buffer;
use headworks_nbd::transmission::Request;
use headworks_nbd::{ExportInfo, Negotiated};

/// Requests of a client in the shard: more than one connection has, since it is all programs that use the disk, or the file.
pub(crate) const REQUESTS_MIN: usize = 256;

/// What a source has when it is asked for a request.
#[derive(Clone, Copy, Debug)]
pub enum Next {
    /// A request, in the terms of the front: limits, waits and tables are the same for all clients.
    Request(Request),
    /// Nothing.
    Nothing,
    /// Nothing now; it has done something else, or has answers to make known.
    Others,
    /// Nothing before this comes.
    Waits(WaitsFor),
    /// The client has left.
    Gone,
}

/// Where the requests of a client come from.
pub trait Source {
    /// The next request that was taken before, or with `looks` comes from the client, which has at most `room` more.
    fn next(
        &mut self,
        room: usize,
        looks: bool,
        intake: &mut Intake,
        shares: &mut Shares<'_>,
    ) -> Next;

    /// Whether requests were taken that `next` has not told.
    fn has_taken(&self) -> bool;

    /// Bytes of data that it keeps for requests which were told and are not submitted.
    fn kept(&self) -> usize {
        0
    }

    /// The block of the pool for a request's data; none if it needs none.
    ///
    /// # Errors
    /// No block is free.
    fn block(
        &mut self,
        request: &Request,
        intake: &mut Intake,
        shares: &mut Shares<'_>,
    ) -> Result<Option<Buffer>, NoBlock>;

    /// Answers a request of which no bio comes.
    fn refuse(&mut self, request: &Request, error: IoError);
}

/// A client whose requests come whole.
pub struct WholeClient<S> {
    pub(crate) session: Session,
    pub(crate) intake: Intake,
    pub(crate) source: S,
}

impl<S> WholeClient<S> {
    /// A client without an export.
    pub fn of(source: S, (peer, listener): (String, Arc<str>), limits: ConnectionLimits) -> Self {
        let requests = limits.requests.max(REQUESTS_MIN);
        let mut session = Session::new(peer, ConnectionLimits { requests, ..limits });
        session.set_listener(listener);
        Self { session, intake: Intake::default(), source }
    }

    /// Binds it to its export: from now on requests are taken.
    pub fn bind(&mut self, binding: ExportBinding, info: &ExportInfo) {
        let before = self.session.begin(binding, info, Negotiated::default());
        let has_stream = before.is_some_and(|it| it.skip.is_some() || it.open.is_some());
        debug_assert!(!has_stream, "its requests come whole");
    }

    /// Sets the id that its bios carry.
    pub fn set_id(&mut self, id: u32) {
        self.session.set_id(id);
    }

    /// Id that its bios carry.
    #[inline]
    #[must_use]
    pub fn id(&self) -> u32 {
        self.session.id()
    }

    /// The client's name in the log.
    #[must_use]
    pub fn peer(&self) -> &str {
        self.session.peer()
    }

    /// Name of the listener that it came through.
    #[must_use]
    pub fn listener(&self) -> Option<&Arc<str>> {
        self.session.listener()
    }

    /// The export's binding while requests are taken; none afterwards.
    #[inline]
    #[must_use]
    pub fn binding(&self) -> Option<ExportBinding> {
        self.session.binding()
    }

    /// The export that its requests are counted for.
    #[must_use]
    pub fn export_of_requests(&self) -> ExportId {
        self.session.export()
    }

    /// Sets a class for this client alone; false if it takes no requests.
    pub fn set_ioprio(&mut self, ioprio: Ioprio) -> bool {
        self.session.set_ioprio(ioprio)
    }

    /// Applies a changed class of an export, unless this client has its own.
    pub fn follow(&mut self, export: ExportId, ioprio: Ioprio) {
        self.session.follow(export, ioprio);
    }

    /// Wait times and the export that they are counted for.
    #[must_use]
    pub fn latency(&self) -> Option<(ExportId, &LatencyTable)> {
        self.session.latency().map(|table| (self.session.export(), table))
    }

    /// Counts a completed request.
    #[inline]
    pub fn count(&mut self, answered: &CompletedRequest, wait_times: WaitTimes) {
        self.session.count(answered, wait_times);
    }

    /// Number of bios in flight.
    #[inline]
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.session.window().used()
    }

    /// Number of bios in flight that change the volume.
    #[must_use]
    pub fn writes_in_flight(&self) -> usize {
        self.session.writes_in_flight()
    }

    /// Nanoseconds since its oldest request came that is not answered.
    #[must_use]
    pub fn oldest_request_ns(&self, now: Instant) -> Option<u64> {
        oldest_request_ns((&self.intake, &self.session), now)
    }

    /// Tells `each` the requests that are not answered, and the bio of those that are in the shard.
    pub fn each_unanswered(&self, now: Instant, each: impl FnMut(Unanswered, Option<BioId>)) {
        each_unanswered((&self.intake, &self.session), now, each);
    }

    /// Bytes of the pool in use.
    #[inline]
    #[must_use]
    pub fn held(&self) -> usize {
        self.intake.block_bytes()
    }

    /// The same: there are no unread replies.
    #[inline]
    #[must_use]
    pub fn request_bytes(&self) -> usize {
        self.intake.block_bytes()
    }

    /// Whether it takes requests, now or later.
    #[must_use]
    pub fn reads(&self) -> bool {
        self.session.reads()
    }

    /// What it waits for before anything is taken from its source.
    #[inline]
    #[must_use]
    pub fn stopped_by(&self) -> WaitsFor {
        self.intake.stopped_by()
    }

    /// Whether a request of it waits for something, or the client does.
    #[must_use]
    pub fn waits_for(&self, what: WaitsFor) -> bool {
        self.intake.waits_for(what)
    }

    /// Whether requests wait to be submitted.
    #[must_use]
    pub fn has_waiting(&self) -> bool {
        !self.intake.waiting().is_empty()
    }

    /// Whether its window has room again.
    #[inline]
    #[must_use]
    pub fn goes_on(&self) -> bool {
        self.intake.stopped_by() == WaitsFor::Window && admission::window_room(self) > 0
    }

    /// What it waits for, if that is a buffer or a bio slot.
    #[must_use]
    pub fn wants(&self, limits: &MemoryLimits) -> Wants {
        self.intake.wants_of_whole(limits)
    }

    /// Number of requests that wait for a buffer.
    #[must_use]
    pub fn buffer_waits(&self) -> usize {
        self.intake.buffer_waits()
    }

    /// Number of requests that wait for limits, or have just passed them.
    #[must_use]
    pub fn parked(&self) -> usize {
        self.intake.parked()
    }

    /// Lets the first request of a direction pass; returns what limits know of the one behind it.
    pub fn pass(&mut self, direction: LimitDirection) -> Option<LimitedIo> {
        self.intake.pass(direction)
    }

    /// Lets all requests pass: their export knows no limits any more.
    pub fn pass_all(&mut self) {
        self.intake.pass_all();
    }
}

impl<S: Source> WholeClient<S> {
    /// Takes requests from its source and submits them.
    #[inline]
    pub fn receive(&mut self, shares: &mut Shares<'_>) -> ReceiveOutcome {
        admission::receive(self, shares)
    }

    /// Submits what was taken from its source, as far as nothing concerns it; false if something must wait.
    pub fn resubmit(&mut self, shares: &mut Shares<'_>) -> bool {
        admission::resubmit(self, shares)
    }

    /// Submits what waits, as far as nothing concerns it; false if something must wait. Nothing is taken from the source.
    pub fn resubmit_waiting(&mut self, shares: &mut Shares<'_>) -> bool {
        admission::resubmit_waiting(self, shares)
    }

    /// Whether requests of it wait for something that may not come.
    #[must_use]
    pub fn has_left_over(&self) -> bool {
        self.has_waiting() || self.source.has_taken()
    }
}
