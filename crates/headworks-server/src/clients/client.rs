//! A client of a shard: what has a slot there, whatever it speaks.
//!
//! The reactor and the door know this type alone, so ids, turns, weights, tenants, limits, freezes, tables and what the control socket
//! asks are the same for each kind:
//!
//! | kind | what it is | requests come by | answers go by |
//! |---|---|---|---|
//! | [`ShardClient::Nbd`] | a connection | its socket, in `receive` | its socket, in `send` |
//! | [`ShardClient::Rings`] | a vhost-user device, whatever its queues | memory that it shares, in `receive` | the same, made known in `send` |
//! | [`ShardClient::Fuse`] | a file of FUSE, whatever programs have it open | the device of its mount, in `receive` | the same, in `reply` |
//!
//! An enum and no trait object: a call is a branch, which NBD's path predicts. What only a byte stream has (unread replies, lent frames,
//! payloads in pieces, TLS) is nothing for the others, and is said here.

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

use headworks_core::limits::{LimitDirection, LimitedIo};
use headworks_core::{BioId, ExportId, Instant, Ioprio, ReplyStage, Status, WaitTimes};

use crate::clients::files::FuseClient;
use crate::clients::files::hand_over::HandedFile;
use crate::clients::nbd::connection::{
    Connection, ExportBinding, HandedConnection, ReceiveOutcome, Shares,
};
use crate::clients::rings::RingClient;
use crate::exports::access::ListenerKind;
use crate::observe::latency::LatencyTable;
use crate::reactor::messages::in_flight::Unanswered;
use headworks::driver::Span;
use headworks_front::WaitsFor;
use headworks_front::intake::PayloadCounts;
use headworks_front::memory::{KeptPayload, MemoryLimits, Wants};
use headworks_front::outgoing::SendOutcome;
use headworks_front::window::CompletedRequest;
use headworks_house::{Buffer, Pool};

/// What a slot of a shard has.
pub enum ShardClient {
    /// An NBD connection.
    Nbd(Box<Connection>),
    /// A vhost-user device.
    Rings(Box<RingClient>),
    /// A file of FUSE.
    Fuse(Box<FuseClient>),
}

/// A client for another process.
pub enum HandedClient {
    /// An NBD connection.
    Connection(HandedConnection),
    /// A file of FUSE.
    File(HandedFile),
}

/// The same call of each kind.
macro_rules! each {
    ($client:expr, $one:ident => $call:expr) => {
        match $client {
            ShardClient::Nbd($one) => $call,
            ShardClient::Rings($one) => $call,
            ShardClient::Fuse($one) => $call,
        }
    };
}

/// A call of a connection, and what it is for the others.
macro_rules! nbd_or {
    ($client:expr, $one:ident => $call:expr, $else:expr) => {
        match $client {
            ShardClient::Nbd($one) => $call,
            ShardClient::Rings(_) | ShardClient::Fuse(_) => $else,
        }
    };
}

impl ShardClient {
    /// What it speaks with the server.
    #[must_use]
    pub fn kind(&self) -> ListenerKind {
        match self {
            Self::Nbd(_) => ListenerKind::Nbd,
            Self::Rings(_) => ListenerKind::VhostUser,
            Self::Fuse(_) => ListenerKind::Fuse,
        }
    }

    // Who it is.

    /// Sets the id that its bios carry.
    pub fn set_id(&mut self, id: u32) {
        each!(self, it => it.set_id(id));
    }

    /// Id that its bios carry.
    #[inline]
    #[must_use]
    pub fn id(&self) -> u32 {
        each!(self, it => it.id())
    }

    /// Address of the client for the log.
    #[must_use]
    pub fn peer(&self) -> &str {
        each!(self, it => it.peer())
    }

    /// Name of the listener that it came through; none if it is not known.
    #[must_use]
    pub fn listener(&self) -> Option<&Arc<str>> {
        each!(self, it => it.listener())
    }

    /// Number of the listener of a connection in its handshake.
    #[must_use]
    pub fn negotiates_through(&self) -> Option<u16> {
        nbd_or!(self, it => it.negotiates_through(), None)
    }

    /// What is watched for requests; none when it is closed.
    #[must_use]
    pub fn socket(&self) -> Option<RawFd> {
        each!(self, it => it.socket())
    }

    /// Whether what is received at once has to fit the receive buffer.
    #[must_use]
    pub fn receives_whole(&self) -> bool {
        nbd_or!(self, it => it.is_encrypted(), true)
    }

    /// Whether the next bytes may cost a signature.
    #[must_use]
    pub fn agrees_on_keys(&self) -> bool {
        nbd_or!(self, it => it.agrees_on_keys(), false)
    }

    /// Whether the client is known to have left: no more requests come.
    #[must_use]
    pub fn client_has_left(&self) -> bool {
        nbd_or!(self, it => it.client_has_left(), false)
    }

    /// The export's binding while requests are taken; none before and after.
    #[inline]
    #[must_use]
    pub fn binding(&self) -> Option<ExportBinding> {
        each!(self, it => it.binding())
    }

    /// The export that its requests are counted for.
    #[must_use]
    pub fn export_of_requests(&self) -> ExportId {
        each!(self, it => it.export_of_requests())
    }

    /// Sets a class for this client alone; false if it has no export.
    pub fn set_ioprio(&mut self, ioprio: Ioprio) -> bool {
        each!(self, it => it.set_ioprio(ioprio))
    }

    /// Applies a changed class of an export, unless this client has its own.
    pub fn follow(&mut self, export: ExportId, ioprio: Ioprio) {
        each!(self, it => it.follow(export, ioprio));
    }

    /// Whether nothing uses it: a file that no program has open.
    #[must_use]
    pub fn is_unused(&self) -> bool {
        matches!(self, Self::Fuse(it) if it.is_unused())
    }

    // What it has in the shard.

    /// Wait times and the export that they are counted for; none before it has an export.
    #[must_use]
    pub fn latency(&self) -> Option<(ExportId, &LatencyTable)> {
        each!(self, it => it.latency())
    }

    /// Counts a completed request.
    #[inline]
    pub fn count(&mut self, answered: &CompletedRequest, wait_times: WaitTimes) {
        each!(self, it => it.count(answered, wait_times));
    }

    /// Number of requests in flight.
    #[inline]
    #[must_use]
    pub fn in_flight(&self) -> usize {
        each!(self, it => it.in_flight())
    }

    /// Number of requests in flight that change the volume.
    #[must_use]
    pub fn writes_in_flight(&self) -> usize {
        each!(self, it => it.writes_in_flight())
    }

    /// Nanoseconds since its oldest request came that is not answered.
    #[must_use]
    pub fn oldest_request_ns(&self, now: Instant) -> Option<u64> {
        each!(self, it => it.oldest_request_ns(now))
    }

    /// Tells `each` the requests that are not answered, and the bio of those that are in the shard.
    pub fn each_unanswered(&self, now: Instant, each: impl FnMut(Unanswered, Option<BioId>)) {
        each!(self, it => it.each_unanswered(now, each));
    }

    /// Bytes of the pool in use: for requests, and for unread replies.
    #[inline]
    #[must_use]
    pub fn held(&self) -> usize {
        each!(self, it => it.held())
    }

    /// Bytes of the pool in use for requests without an answer.
    #[inline]
    #[must_use]
    pub fn request_bytes(&self) -> usize {
        each!(self, it => it.request_bytes())
    }

    /// Received bytes that wait to be parsed.
    #[inline]
    #[must_use]
    pub fn stashed(&self) -> usize {
        nbd_or!(self, it => it.stashed(), 0)
    }

    /// Returns the memory of received bytes, all of which are parsed.
    pub fn release_idle_memory(&mut self) {
        nbd_or!(self, it => it.release_idle_memory(), ());
    }

    // What it brings.

    /// Whether it takes requests, now or later.
    #[must_use]
    pub fn reads(&self) -> bool {
        each!(self, it => it.reads())
    }

    /// Receives once and submits bios for complete requests.
    #[inline]
    pub fn receive(&mut self, shares: &mut Shares<'_>) -> ReceiveOutcome {
        each!(self, it => it.receive(shares))
    }

    /// Submits again what waits and is not the client's to send once more ([`ShardClient::has_returned`]); false if one must wait. Nothing is
    /// received.
    pub fn resubmit(&mut self, shares: &mut Shares<'_>) -> bool {
        match self {
            Self::Nbd(it) => it.resubmit(shares),
            Self::Rings(it) => it.resubmit(shares),
            Self::Fuse(it) => it.resubmit_waiting(shares),
        }
    }

    /// Submits what has passed its limits before the client leaves; what must wait is dropped.
    pub fn submit_before_leaving(&mut self, shares: &mut Shares<'_>) {
        match self {
            Self::Nbd(it) => it.submit_before_leaving(shares),
            Self::Rings(it) => drop(it.resubmit(shares)),
            Self::Fuse(it) => drop(it.resubmit(shares)),
        }
    }

    /// Sets whether the device does not answer: then requests of a connection fail for which there is no room, instead of waiting for it.
    /// Returns whether they do: those of others wait for their share of the slots, as for a disk.
    #[inline]
    pub fn set_refuses(&mut self, refuses: bool) -> bool {
        nbd_or!(self, it => it.set_refuses(refuses), return false);
        refuses
    }

    /// Whether the last write had a large payload that comes by a socket.
    #[inline]
    #[must_use]
    pub fn brings_large_payloads(&self) -> bool {
        nbd_or!(self, it => it.brings_large_payloads(), false)
    }

    /// What it waits for before anything is read from the client; `Nothing` if it is read from.
    #[inline]
    #[must_use]
    pub fn stopped_by(&self) -> WaitsFor {
        each!(self, it => it.stopped_by())
    }

    /// Whether a request of it waits for something, or the client does.
    #[must_use]
    pub fn waits_for(&self, what: WaitsFor) -> bool {
        each!(self, it => it.waits_for(what))
    }

    /// Whether requests wait to be submitted.
    #[must_use]
    pub fn has_waiting(&self) -> bool {
        match self {
            Self::Nbd(it) => it.has_waiting(),
            Self::Rings(it) => it.has_left_over(),
            Self::Fuse(it) => it.has_left_over(),
        }
    }

    /// Whether requests wait that are submitted even while nothing is received: reads that the cache returned, what was taken from
    /// rings, which knows no other process, and what was read from the device of a file.
    #[must_use]
    pub fn has_returned(&self) -> bool {
        match self {
            Self::Nbd(it) => it.has_returned(),
            Self::Rings(it) => it.has_left_over(),
            Self::Fuse(it) => it.has_waiting(),
        }
    }

    /// Whether what it has read ends before another process goes on, or this one stops to: it is no stream that can be read again.
    #[must_use]
    pub fn ends_what_it_read(&self) -> bool {
        nbd_or!(self, _it => false, true)
    }

    /// Whether what stops it is gone: a reply was sent, or a request answered.
    #[inline]
    #[must_use]
    pub fn goes_on(&self) -> bool {
        each!(self, it => it.goes_on())
    }

    /// What it waits for, if that is a buffer or a bio slot.
    #[must_use]
    pub fn wants(&self, limits: &MemoryLimits) -> Wants {
        each!(self, it => it.wants(limits))
    }

    /// Number of requests that wait for a buffer.
    #[must_use]
    pub fn buffer_waits(&self) -> usize {
        each!(self, it => it.buffer_waits())
    }

    /// Takes the counts of payloads that were written early or cut.
    #[inline]
    pub fn take_payload_counts(&mut self) -> PayloadCounts {
        nbd_or!(self, it => it.take_payload_counts(), PayloadCounts::default())
    }

    /// Number of requests that wait for limits, or have just passed them.
    #[must_use]
    pub fn parked(&self) -> usize {
        each!(self, it => it.parked())
    }

    /// Lets the first request of a direction pass; returns what limits know of the one behind it.
    pub fn pass(&mut self, direction: LimitDirection) -> Option<LimitedIo> {
        each!(self, it => it.pass(direction))
    }

    /// Lets all requests pass: their export knows no limits any more.
    pub fn pass_all(&mut self) {
        each!(self, it => it.pass_all());
    }

    /// Whether a payload has begun and the client is to send more of it.
    #[inline]
    #[must_use]
    pub fn has_incomplete_payload(&self) -> bool {
        nbd_or!(self, it => it.has_incomplete_payload(), false)
    }

    /// Whether it can do nothing before its socket is ready.
    #[inline]
    #[must_use]
    pub fn rests(&self) -> bool {
        nbd_or!(self, it => it.rests(), false)
    }

    /// The payload that the shard does not have yet, and what it keeps.
    #[inline]
    #[must_use]
    pub fn kept_payload(&self) -> Option<KeptPayload> {
        nbd_or!(self, it => it.kept_payload(), None)
    }

    /// Whether a payload keeps more than a window.
    #[must_use]
    pub fn is_beyond(&self, window: u32) -> bool {
        nbd_or!(self, it => it.is_beyond(window), false)
    }

    /// Returns the part of an incomplete payload's block in which nothing has come.
    pub fn cut_payload(&mut self, pool: &mut Pool) {
        nbd_or!(self, it => it.cut_payload(pool), ());
    }

    /// What a write that ends here without a reply has changed, as a sentence for the log, once.
    pub fn take_torn_write(&mut self) -> Option<String> {
        nbd_or!(self, it => it.take_torn_write(), None)
    }

    /// What went wrong with it, once, as a sentence for the log; it goes on.
    #[inline]
    #[must_use]
    pub fn take_complaint(&mut self) -> Option<String> {
        match self {
            Self::Nbd(_) => None,
            Self::Rings(it) => it.take_complaint(),
            Self::Fuse(it) => it.take_complaint(),
        }
    }

    // What the shard answers.

    /// Memory of a request in flight.
    #[inline]
    #[must_use]
    pub fn buffer(&mut self, sequence: u64) -> Option<Span> {
        each!(self, it => it.buffer(sequence))
    }

    /// Memory of a part of a request in flight, piece by piece; a client whose requests have one buffer gives a part of that.
    #[inline]
    pub fn pieces(&mut self, sequence: u64, (offset, len): (u32, u32), mut each: impl FnMut(Span)) {
        match self {
            Self::Rings(it) => it.pieces(sequence, (offset, len), each),
            Self::Nbd(_) | Self::Fuse(_) => {
                let buffer = self.buffer(sequence).unwrap_or(Span::EMPTY);
                each(buffer.part(offset as usize, len as usize));
            }
        }
    }

    /// Takes a reply of the shard, or the return of a buffer; returns the request if this completed it.
    #[inline]
    pub fn reply(
        &mut self,
        now: Instant,
        sequence: u64,
        outcome: (Status, bool, ReplyStage),
        pool: &mut Pool,
    ) -> Option<CompletedRequest> {
        each!(self, it => it.reply(now, sequence, outcome, pool))
    }

    /// Queues the reply to a read without a buffer, whose data are in `frames`; returns the request.
    #[inline]
    pub fn reply_frames(
        &mut self,
        now: Instant,
        sequence: u64,
        frames: &[Span],
    ) -> Option<CompletedRequest> {
        nbd_or!(self, it => it.reply_frames(now, sequence, frames), {
            unreachable!("every read of them has memory of its own")
        })
    }

    /// Takes back a read that the cache cannot answer: it needs a buffer.
    pub fn needs_buffer(&mut self, now: Instant, returned: (u64, WaitTimes)) {
        nbd_or!(self, it => it.needs_buffer(now, returned), ());
    }

    // What is sent.

    /// Sends queued output, or makes answers known.
    ///
    /// # Errors
    /// The connection is broken.
    #[inline]
    pub fn send(
        &mut self,
        now: Instant,
        pool: &mut Pool,
        spans: &mut Vec<Span>,
    ) -> io::Result<SendOutcome> {
        match self {
            Self::Nbd(it) => it.send(now, pool, spans),
            Self::Rings(it) => {
                it.publish();
                Ok(SendOutcome::All)
            }
            Self::Fuse(_) => Ok(SendOutcome::All),
        }
    }

    /// Whether it may have requests when it was answered, of which nothing tells: a ring that had no room for one has some again, and asks for
    /// no kick meanwhile; a long request of a file goes on.
    #[must_use]
    pub fn has_more_after_answers(&self) -> bool {
        match self {
            Self::Nbd(_) => false,
            Self::Rings(_) => true,
            Self::Fuse(it) => it.has_left_over(),
        }
    }

    /// Bytes that were sent in transmission and before.
    #[inline]
    #[must_use]
    pub fn sent_bytes(&self) -> u64 {
        nbd_or!(self, it => it.sent_bytes(), 0)
    }

    /// Bytes of buffers, and of lent frames, with data to be sent.
    #[inline]
    #[must_use]
    pub fn unsent(&self) -> usize {
        nbd_or!(self, it => it.unsent(), 0)
    }

    /// Whether what is left of it may stay without end: output waits for the client, or requests for something else.
    #[must_use]
    pub fn has_outgoing(&self) -> bool {
        match self {
            Self::Nbd(it) => it.has_outgoing(),
            Self::Rings(it) => it.has_left_over(),
            Self::Fuse(it) => it.has_left_over(),
        }
    }

    /// Whether the client leaves data of replies unread.
    #[inline]
    #[must_use]
    pub fn is_stalled(&self, now: Instant) -> bool {
        nbd_or!(self, it => it.is_stalled(now), false)
    }

    /// Bytes of buffers that [`ShardClient::drop_data`] can return.
    #[must_use]
    pub fn droppable(&self, now: Instant) -> usize {
        nbd_or!(self, it => it.droppable(now), 0)
    }

    /// Time of the oldest unsent data.
    #[must_use]
    pub fn oldest_data(&self) -> Option<Instant> {
        nbd_or!(self, it => it.oldest_data(), None)
    }

    /// Drops old unsent data of at least `wanted` bytes, if there are as many. Returns the bytes of the buffers and the number of
    /// replies.
    pub fn drop_data(&mut self, now: Instant, wanted: usize, pool: &mut Pool) -> (usize, usize) {
        nbd_or!(self, it => it.drop_data(now, wanted, pool), (0, 0))
    }

    /// The socket takes more: the next turn reads dropped data again. False if something else comes first.
    pub fn note_dropped_next(&mut self) -> bool {
        nbd_or!(self, it => it.note_dropped_next(), false)
    }

    /// Number of lent pieces in the send queue.
    #[inline]
    #[must_use]
    pub fn lent(&self) -> usize {
        nbd_or!(self, it => it.lent(), 0)
    }

    /// The frames that are lent to it.
    pub fn lent_frames(&self) -> impl Iterator<Item = Span> {
        let lent = nbd_or!(self, it => Some(it.lent_frames()), None);
        lent.into_iter().flatten()
    }

    /// Makes unsent data independent of frames that are about to change ([`Connection::keep_lent`]).
    pub fn keep_lent(
        &mut self,
        changing: Span,
        now: Instant,
        take: impl FnMut(usize, usize) -> Option<Buffer>,
    ) {
        nbd_or!(self, it => it.keep_lent(changing, now, take), ());
    }

    /// The volume of its export has another size.
    pub fn resize(&mut self, volume: u64) {
        match self {
            // It was told at its beginning.
            Self::Nbd(_) => {}
            Self::Rings(it) => it.resize(volume),
            Self::Fuse(it) => it.resize(volume),
        }
    }

    // How it ends.

    /// Gives what came from the thread of a door back to it; it has left its slot.
    pub fn retire(self) {
        match self {
            Self::Nbd(_) => {}
            Self::Rings(it) => it.retire(),
            Self::Fuse(it) => it.retire(),
        }
    }

    /// Stops reading. Requests in flight are still answered.
    pub fn leave(&mut self, pool: &mut Pool) {
        each!(self, it => it.leave(pool));
    }

    /// Closes it. Buffers in use stay until the shard returns them.
    pub fn close(&mut self, pool: &mut Pool) {
        each!(self, it => it.close(pool));
    }

    /// Removes and returns the reason why the client cannot continue.
    #[inline]
    pub fn take_fault(&mut self) -> Option<String> {
        nbd_or!(self, it => it.take_fault(), None)
    }

    /// Whether nothing of it is left.
    #[inline]
    #[must_use]
    pub fn is_finished(&self) -> bool {
        each!(self, it => it.is_finished())
    }

    /// Time at which it is closed without progress; none if nothing is expected of the client.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        nbd_or!(self, it => it.deadline(), None)
    }

    /// The log message for a client that passed its deadline.
    #[must_use]
    pub fn timeout_message(&self) -> String {
        nbd_or!(self, it => it.timeout_message(), String::new())
    }

    /// Whether nothing of it is in the shard.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        each!(self, it => it.is_at_rest())
    }

    /// What another process needs to go on with it; none if it cannot move.
    #[must_use]
    pub fn hand_over(&self) -> Option<HandedClient> {
        match self {
            Self::Nbd(it) => it.hand_over().map(HandedClient::Connection),
            Self::Rings(_) => None,
            Self::Fuse(it) => it.hand_over().map(HandedClient::File),
        }
    }
}
