//! The wire of a connection: the transport of its bytes, what is received and not parsed yet, what is to be sent, and the times at
//! which the client was heard and took bytes.
//!
//! It knows no request: what bytes mean is decided by others.
//!
//! ```text
//!   transport --receive--> payload of the last request, scratch --keep--> stash (parsed first in the next turn)
//!   transport <--send----- outgoing
//! ```
//!
//! Invariant: after `close` there is no transport, and nothing waits to be sent.

use std::io;

use headworks::driver::Span;
use headworks_core::Instant;
use headworks_house::Pool;

use crate::outgoing::{Outgoing, SendOutcome};
use crate::transport::Transport;

/// The bytes of a connection in both directions.
#[derive(Debug)]
pub struct Wire<T> {
    /// None when it is closed.
    transport: Option<T>,
    outgoing: Outgoing,
    /// Received bytes that are not parsed yet; at most one receive.
    stash: Vec<u8>,
    /// Time of the last bytes from the client; in the handshake, of the connect.
    heard: Instant,
    /// Time at which the client last took output, or at which there was none.
    taken: Instant,
    /// The last send found no output.
    silent: bool,
}

impl<T: Transport> Wire<T> {
    /// A wire with room for the headers of `replies` replies.
    #[must_use]
    pub fn new(transport: T, replies: usize, now: Instant) -> Self {
        Self {
            transport: Some(transport),
            outgoing: Outgoing::new(replies),
            stash: Vec::new(),
            heard: now,
            taken: now,
            silent: false,
        }
    }

    /// The transport; none when it is closed.
    #[inline]
    #[must_use]
    pub fn transport(&self) -> Option<&T> {
        self.transport.as_ref()
    }

    /// The same, to be changed.
    pub fn transport_mut(&mut self) -> Option<&mut T> {
        self.transport.as_mut()
    }

    /// The replies that are to be sent.
    #[inline]
    #[must_use]
    pub fn outgoing(&self) -> &Outgoing {
        &self.outgoing
    }

    /// The same, to be changed.
    #[inline]
    pub fn outgoing_mut(&mut self) -> &mut Outgoing {
        &mut self.outgoing
    }

    /// The client's time counts from now, in both directions.
    pub fn restart_clocks(&mut self, now: Instant) {
        (self.heard, self.taken) = (now, now);
    }

    /// The client's time counts from now.
    #[inline]
    pub fn note_heard(&mut self, now: Instant) {
        self.heard = now;
    }

    /// Time of the last bytes from the client.
    #[must_use]
    pub fn heard(&self) -> Instant {
        self.heard
    }

    /// Receives into `direct` and `scratch` as [`Transport::receive`]; none if the wire is closed.
    #[inline]
    pub fn receive(
        &mut self,
        direct: Option<Span>,
        scratch: &mut [u8],
        tail: usize,
    ) -> Option<io::Result<usize>> {
        Some(self.transport.as_mut()?.receive(direct, scratch, tail))
    }

    /// Received bytes that are not parsed yet.
    #[must_use]
    pub fn stash(&self) -> &[u8] {
        &self.stash
    }

    /// Bytes of memory for received bytes.
    #[must_use]
    pub fn stash_capacity(&self) -> usize {
        self.stash.capacity()
    }

    /// Whether received bytes wait to be parsed.
    #[inline]
    #[must_use]
    pub fn has_stash(&self) -> bool {
        !self.stash.is_empty()
    }

    /// Takes the received bytes to parse them; [`Wire::put_stash`] follows.
    pub fn take_stash(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.stash)
    }

    /// Keeps what is left of received bytes.
    pub fn put_stash(&mut self, stash: Vec<u8>) {
        self.stash = stash;
    }

    /// Keeps received bytes that cannot be used now.
    #[inline]
    pub fn keep(&mut self, bytes: &[u8]) {
        self.stash.extend_from_slice(bytes);
    }

    /// Forgets received bytes: nothing is parsed any more.
    pub fn drop_stash(&mut self) {
        self.stash = Vec::new();
    }

    /// Returns the memory of received bytes, all of which are parsed.
    pub fn release_idle_memory(&mut self) {
        if self.stash.is_empty() {
            self.stash = Vec::new();
        }
    }

    /// Sends queued output; `leaves` if nothing follows it.
    ///
    /// # Errors
    /// The wire is broken.
    pub fn send(
        &mut self,
        now: Instant,
        leaves: bool,
        pool: &mut Pool,
        spans: &mut Vec<Span>,
    ) -> io::Result<SendOutcome> {
        let Some(transport) = &mut self.transport else {
            return Ok(SendOutcome::All);
        };
        if leaves && self.outgoing.is_empty() {
            transport.goodbye();
        }
        if self.outgoing.is_empty() && !transport.has_unsent() {
            self.silent = true;
            return Ok(SendOutcome::All);
        }
        if std::mem::take(&mut self.silent) {
            // The time limit counts from the first unsent reply.
            self.taken = now;
        }
        let before = (self.outgoing.waiting(), transport.progress());
        let sent = self.outgoing.send(transport, pool, spans)?;
        if leaves && self.outgoing.is_empty() {
            // After the last reply, in the same send: no event would follow.
            transport.goodbye();
        }
        let sent = transport.settle(sent, pool)?;
        // The client took everything there was: the next data are late because of the server.
        let took_all = matches!(sent, SendOutcome::All | SendOutcome::Dropped);
        if took_all || (self.outgoing.waiting(), transport.progress()) != before {
            self.taken = now;
        }
        Ok(sent)
    }

    /// Sends a short answer of the handshake before the transport changes.
    ///
    /// # Errors
    /// The wire is broken.
    pub fn send_answer(&mut self, pool: &mut Pool) -> io::Result<SendOutcome> {
        let Some(transport) = &mut self.transport else {
            return Ok(SendOutcome::All);
        };
        self.outgoing.send(transport, pool, &mut Vec::new())
    }

    /// Whether output waits to be sent.
    #[must_use]
    pub fn has_outgoing(&self) -> bool {
        !self.outgoing.is_empty() || self.transport.as_ref().is_some_and(Transport::has_unsent)
    }

    /// Bytes of the pool with data to be sent.
    #[inline]
    #[must_use]
    pub fn held(&self) -> usize {
        self.outgoing.held() + self.transport.as_ref().map_or(0, Transport::held)
    }

    /// The same with lent frames.
    #[must_use]
    pub fn unsent(&self) -> usize {
        self.held() + self.outgoing.lent().0
    }

    /// Time until which the client is to take output; none if there is none.
    #[must_use]
    pub fn send_deadline(&self, stall_ns: u64) -> Option<Instant> {
        self.has_outgoing().then(|| self.taken.after(stall_ns))
    }

    /// Whether everything was sent, a closing alert included.
    #[must_use]
    pub fn has_sent_all(&self) -> bool {
        self.outgoing.is_empty() && self.transport.as_ref().is_none_or(Transport::is_finished)
    }

    /// Closes the transport, and forgets what waits to be sent.
    pub fn close(&mut self, pool: &mut Pool) {
        self.outgoing.abandon(pool);
        if let Some(mut transport) = self.transport.take() {
            transport.abandon(pool);
        }
    }
}
