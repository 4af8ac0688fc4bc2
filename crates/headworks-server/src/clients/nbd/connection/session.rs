//! The session of a connection: its client, the phase, the export that it is bound to, and its requests in the shard.
//!
//! ```text
//!               chosen                    DISC, shutdown             all answered and sent
//!  Handshake ------------> Transmission ------------------> Leaving -------------------> finished
//!      |                       |                               |
//!      `--------- error, hang-up, stall -----------------------'---> Dead --buffers came back--> finished
//! ```
//!
//! Invariants: a buffer that the shard may still use stays in the window until `Final` or `Released`, whatever the phase is; a
//! session that has left transmission keeps its binding, since dropped data of its replies may still have to be read.

use std::sync::Arc;

use headworks_core::{
    Bio, BioFlags, BioId, DeviceId, EXTENTS_BYTES, ExportId, Input, Ioprio, Op, VolumeId, WaitTimes,
};

use super::{ConnectionEnd, ConnectionLimits, OpenWrite, Shares};
use crate::exports::access::Admission;
use crate::exports::export_range::ExportRange;
use crate::observe::latency::LatencyTable;
use crate::observe::latency::errors::ErrorReply;
use headworks::driver::Span;
use headworks_front::front_waits::FrontWaits;
use headworks_front::window::{CompletedRequest, InFlight, Window};
use headworks_house::Buffer;
use headworks_nbd::handshake::Handshake;
use headworks_nbd::reply::Replies;
use headworks_nbd::tls::TlsAcceptor;
use headworks_nbd::transmission::{Refusal, Request};
use headworks_nbd::{ExportInfo, Negotiated};

/// Phase of a connection.
enum Phase {
    Handshake(Box<Negotiation>),
    Transmission {
        binding: ExportBinding,
        /// The class was set for this connection, not inherited from its export.
        own_ioprio: bool,
    },
    /// Nothing is read; ends when everything is answered and sent.
    Leaving,
    /// The socket is closed; buffers may still be in use.
    Dead,
}

/// A handshake in progress, and what decides which exports its client sees.
pub(crate) struct Negotiation {
    pub handshake: Handshake,
    pub admission: Admission,
    /// TLS configuration for STARTTLS; none without TLS or after STARTTLS.
    pub acceptor: Option<Arc<TlsAcceptor>>,
}

/// The export that a connection is bound to, and the class of its requests.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExportBinding {
    /// Volume behind the export.
    pub volume: VolumeId,
    /// Export that the client chose.
    pub export: ExportId,
    /// Device of the volume.
    pub device: DeviceId,
    /// Class of all requests of the connection.
    pub ioprio: Ioprio,
    /// Range of the volume that the export serves.
    pub range: ExportRange,
}

/// State that a connection of another process continues with when its export is bound.
#[derive(Debug, Default)]
pub(crate) struct Resumption {
    pub ioprio: Option<Ioprio>,
    pub skip: Option<(u32, Refusal)>,
    pub open: Option<OpenWrite>,
}

/// A read of data that were dropped from the send queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reread {
    pub sequence: u64,
    /// Bytes of the buffer before the dropped data.
    pub skip: usize,
    /// Bytes of the dropped data.
    pub len: usize,
}

/// A client, and its requests in the shard.
pub(crate) struct Session {
    id: u32,
    peer: String,
    /// Name of the listener that the client came through.
    listener: Option<Arc<str>>,
    bounds: ConnectionLimits,
    phase: Phase,
    form: Replies,
    /// Smallest block of the export in bytes.
    block: u32,
    window: Window,
    /// Wait times of its requests, from the first one on.
    latency: Option<LatencyTable>,
    /// Export that its requests are counted for.
    export: ExportId,
    /// The read of dropped data in flight, with its first byte.
    reread: Option<Reread>,
    /// Why the connection cannot continue, as a sentence for the log.
    fault: Option<String>,
    /// The binding of a connection that has left transmission.
    binding_left: Option<ExportBinding>,
    /// Where the connection of another process stopped, until its export is bound.
    resumption: Option<Box<Resumption>>,
}

impl Session {
    /// A session that reads nothing, until it has a phase.
    pub fn new(peer: String, bounds: ConnectionLimits) -> Self {
        Self {
            id: 0,
            peer,
            listener: None,
            bounds,
            phase: Phase::Leaving,
            form: Replies { structured: false },
            block: 1,
            window: Window::new(bounds.requests),
            latency: None,
            export: ExportId::default(),
            reread: None,
            fault: None,
            binding_left: None,
            resumption: None,
        }
    }

    /// Begins the handshake of a new client.
    pub fn negotiate(&mut self, negotiation: Negotiation) {
        self.phase = Phase::Handshake(Box::new(negotiation));
    }

    /// The handshake, if it is in one.
    pub fn negotiation(&self) -> Option<&Negotiation> {
        match &self.phase {
            Phase::Handshake(negotiation) => Some(negotiation),
            _ => None,
        }
    }

    /// The same, to be changed.
    pub fn negotiation_mut(&mut self) -> Option<&mut Negotiation> {
        match &mut self.phase {
            Phase::Handshake(negotiation) => Some(negotiation),
            _ => None,
        }
    }

    /// What a connection of another process continues with, until its export is bound.
    pub fn set_resumption(&mut self, resumption: Resumption) {
        self.resumption = Some(Box::new(resumption));
    }

    /// Ends the handshake, and returns what another process has left of requests.
    pub fn begin(
        &mut self,
        binding: ExportBinding,
        export: &ExportInfo,
        terms: Negotiated,
    ) -> Option<Box<Resumption>> {
        self.form = Replies { structured: terms.structured };
        self.latency = Some(LatencyTable::default());
        self.export = binding.export;
        self.block = export.block_sizes.min;
        let resumption = self.resumption.take();
        let own = resumption.as_ref().and_then(|resumption| resumption.ioprio);
        let ioprio = own.unwrap_or(binding.ioprio);
        let binding = ExportBinding { ioprio, ..binding };
        self.phase = Phase::Transmission { binding, own_ioprio: own.is_some() };
        resumption
    }

    /// No more requests are taken; false if it is dead already.
    pub fn leave(&mut self) -> bool {
        if self.is_dead() {
            return false;
        }
        self.binding_left = self.last_binding().copied();
        self.phase = Phase::Leaving;
        true
    }

    /// The socket is closed.
    pub fn die(&mut self) {
        self.phase = Phase::Dead;
    }

    pub fn is_negotiating(&self) -> bool {
        matches!(self.phase, Phase::Handshake(_))
    }

    pub fn is_leaving(&self) -> bool {
        matches!(self.phase, Phase::Leaving)
    }

    pub fn is_dead(&self) -> bool {
        matches!(self.phase, Phase::Dead)
    }

    /// Whether it takes requests, now or later.
    pub fn reads(&self) -> bool {
        !matches!(self.phase, Phase::Leaving | Phase::Dead)
    }

    pub fn id(&self) -> u32 {
        self.id
    }

    pub fn set_id(&mut self, id: u32) {
        self.id = id;
    }

    pub fn peer(&self) -> &str {
        &self.peer
    }

    pub fn listener(&self) -> Option<&Arc<str>> {
        self.listener.as_ref()
    }

    pub fn set_listener(&mut self, name: Arc<str>) {
        self.listener = Some(name);
    }

    pub fn bounds(&self) -> &ConnectionLimits {
        &self.bounds
    }

    /// The form of its replies.
    pub fn form(&self) -> Replies {
        self.form
    }

    /// Smallest block of the export in bytes.
    pub fn block(&self) -> u32 {
        self.block
    }

    /// Export that its requests are counted for.
    pub fn export(&self) -> ExportId {
        self.export
    }

    /// The export's binding during transmission; none before and after.
    pub fn binding(&self) -> Option<ExportBinding> {
        match &self.phase {
            Phase::Transmission { binding, .. } => Some(*binding),
            _ => None,
        }
    }

    /// The binding, also of a connection that has left transmission.
    #[inline]
    pub fn last_binding(&self) -> Option<&ExportBinding> {
        match &self.phase {
            Phase::Transmission { binding, .. } => Some(binding),
            _ => self.binding_left.as_ref(),
        }
    }

    /// The class of its requests, if it has one of its own.
    pub fn own_ioprio(&self) -> Option<Ioprio> {
        match &self.phase {
            Phase::Transmission { binding, own_ioprio: true } => Some(binding.ioprio),
            _ => None,
        }
    }

    /// Sets a class for this connection alone; false outside of transmission.
    pub fn set_ioprio(&mut self, ioprio: Ioprio) -> bool {
        let Phase::Transmission { binding, own_ioprio } = &mut self.phase else { return false };
        (binding.ioprio, *own_ioprio) = (ioprio, true);
        true
    }

    /// Applies a changed class of an export, unless this connection has its own.
    pub fn follow(&mut self, export: ExportId, ioprio: Ioprio) {
        if let Phase::Transmission { binding, own_ioprio: false } = &mut self.phase
            && binding.export == export
        {
            binding.ioprio = ioprio;
        }
    }

    /// Its requests in the shard.
    #[inline]
    pub fn window(&self) -> &Window {
        &self.window
    }

    /// The same, to be changed.
    #[inline]
    pub fn window_mut(&mut self) -> &mut Window {
        &mut self.window
    }

    /// Memory of a request in flight.
    pub fn buffer(&mut self, sequence: u64) -> Option<Span> {
        let buffer = self.window.get(sequence)?.buffer.as_ref()?;
        // SAFETY: the buffer is put back after the request's last reply, when no span of it is used any more.
        Some(unsafe { buffer.span() })
    }

    /// Wait times of its requests; none before transmission.
    pub fn latency(&self) -> Option<&LatencyTable> {
        self.latency.as_ref()
    }

    /// Counts a completed request.
    #[inline]
    pub fn count(&mut self, answered: &CompletedRequest, wait_times: WaitTimes) {
        if let Some(table) = &mut self.latency {
            table.record(answered.op, answered.len, answered.total_ns, wait_times);
        }
    }

    /// Counts a request that failed.
    pub fn count_error(&mut self, reply: ErrorReply) {
        if let Some(table) = &mut self.latency {
            table.record_error(reply);
        }
    }

    /// The read of dropped data in flight.
    pub fn reread(&self) -> Option<Reread> {
        self.reread
    }

    pub fn begin_reread(&mut self, reread: Reread) {
        self.reread = Some(reread);
    }

    pub fn end_reread(&mut self) -> Option<Reread> {
        self.reread.take()
    }

    pub fn has_fault(&self) -> bool {
        self.fault.is_some()
    }

    /// The connection cannot continue.
    pub fn fail(&mut self, sentence: String) {
        if !self.is_dead() {
            self.fault.get_or_insert(sentence);
        }
    }

    /// Removes and returns the reason why the connection cannot continue.
    pub fn take_fault(&mut self) -> Option<String> {
        self.fault.take()
    }

    /// Makes the bio of a request, which has a slot of the shard; returns its sequence number.
    #[inline]
    pub fn submit(
        &mut self,
        request: &Request,
        flags: BioFlags,
        waits: FrontWaits,
        block: Option<Buffer>,
        shares: &mut Shares<'_>,
    ) -> u64 {
        let binding = self.last_binding().expect("a request has an export");
        let ExportBinding { volume, export, ioprio, range, .. } = *binding;
        let op = request.op();
        let status = op == Op::BlockStatus;
        if let Some(block) = block.as_ref().filter(|_| status) {
            // Cleared, so that nothing of an earlier use is reported.
            // SAFETY: the buffer is private and holds a list.
            unsafe { block.base().write_bytes(0, EXTENTS_BYTES as usize) };
        }
        let mut flags = flags;
        if op == Op::Read && block.is_none() {
            flags = flags.with(BioFlags::NO_BUFFER);
        }
        let Request { cookie, offset, len, .. } = *request;
        let on_volume = range.on_volume(offset, len);
        let sequence = self.window.insert(cookie, offset, len, op, block, shares.now);
        if let Some(in_flight) = self.window.get(sequence).filter(|_| status) {
            in_flight.one_extent = flags.contains(BioFlags::ONE_EXTENT);
        }
        if !waits.is_none()
            && let Some(in_flight) = self.window.get(sequence)
        {
            in_flight.front = waits.wait_times();
            in_flight.since = waits.began(in_flight.since);
        }
        shares.turn.room =
            shares.turn.room.checked_sub(1).expect("a bio is made only with a slot for it");
        shares.inputs.push(Input::Bio(Bio {
            id: BioId { connection: self.id, volume, export, sequence },
            offset: on_volume,
            len,
            op,
            flags,
            ioprio,
        }));
        sequence
    }

    /// Number of requests in flight that change the volume, answered ones included that the device has not ended.
    pub fn writes_in_flight(&self) -> usize {
        self.window.all().filter(|in_flight| in_flight.op.is_write()).count()
    }

    /// Takes a request out of the window that is answered, or returned.
    #[inline]
    pub fn take(&mut self, sequence: u64) -> Option<InFlight> {
        self.window.remove(sequence)
    }

    /// How the connection ends whose client closed it, `in_request` or not. `keys`: TLS is being agreed on.
    pub fn hang_up(&self, keys: bool, in_request: bool) -> ConnectionEnd {
        match &self.phase {
            // A probe of the port connects, sends nothing and closes.
            Phase::Handshake(negotiation) if negotiation.handshake.is_untouched() => {
                ConnectionEnd::HungUp
            }
            Phase::Handshake(_) if keys => {
                ConnectionEnd::Fault("the client disconnected during the TLS handshake".into())
            }
            Phase::Handshake(_) => {
                ConnectionEnd::Fault("the client disconnected during the handshake".into())
            }
            Phase::Transmission { .. } if in_request => {
                ConnectionEnd::Fault("the client disconnected in the middle of a request".into())
            }
            _ => ConnectionEnd::HungUp,
        }
    }
}
