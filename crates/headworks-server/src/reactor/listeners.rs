//! Listeners of clients: accept, and hot-add and hot-remove of listeners.
//!
//! One shard has the listeners. A listener's number names it in the engine's tokens and in the admissions of clients that are in
//! their handshake. Invariant: when a number is given again, no client of its former listener is in its handshake.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use headworks_core::Instant;
use tracing::{debug, error};

use super::Reactor;
use super::connections::TOO_MANY;
use crate::listen::ClientListener;
use crate::messages::command::Released;
use crate::nbd::connection::{Connection, ConnectionEnd};
use headworks::driver::Interest;
use headworks_nbd::tls::TlsAcceptor;

/// Tokens of listeners start here; below are connections' slots.
pub(super) const LISTENERS: u32 = 1 << 12;
/// Connections accepted in one turn. A listener with more is ready again in the next turn.
const ACCEPTS_MAX: usize = 16;

impl Reactor {
    /// Accepts clients from now on.
    pub(super) fn listen(&mut self) {
        self.parts.listens = true;
        self.watch_listeners();
    }

    /// Watches every listener, if clients are accepted.
    pub(super) fn watch_listeners(&mut self) {
        (0..self.parts.listeners.len()).for_each(|number| self.watch_listener(number));
    }

    fn watch_listener(&mut self, number: usize) {
        if !self.parts.listens {
            return;
        }
        if let Some(Some(own)) = self.parts.listeners.get(number) {
            let fd = own.listener.fd();
            self.parts.engine.watch(LISTENERS + number as u32, fd, Interest::Read);
        }
    }

    pub(super) fn accept(&mut self, now: Instant, number: u32) {
        if self.is_paused() {
            // The end of the pause watches it again.
            return;
        }
        for _ in 0..ACCEPTS_MAX {
            let own = self.parts.listeners.get(number as usize);
            let Some(own) = own.and_then(Option::as_ref) else { return };
            match own.listener.accept() {
                Ok(Some((socket, peer))) => self.add_client(now, socket, peer, number as u16),
                Ok(None) => break,
                Err(error) => {
                    error!("cannot accept a client: {error}; retrying in 1 s");
                    (self.accept_paused, self.ticking) = (true, true);
                    return;
                }
            }
        }
        self.watch_listener(number as usize);
    }

    /// Begins the handshake of a client of the listener with this number.
    pub(super) fn add_client(&mut self, now: Instant, socket: OwnedFd, peer: String, number: u16) {
        debug!(peer, "client connected");
        let mut connection = Connection::new(socket, peer, self.parts.limits, now);
        let own = self.parts.listeners.get(usize::from(number)).and_then(Option::as_ref);
        if let Some(ClientListener { name, acceptor, .. }) = own {
            connection.set_listener(number, name);
            if let Some(acceptor) = acceptor {
                connection.set_tls_acceptor(acceptor);
            }
        }
        match self.parts.io.insert(Box::new(connection)) {
            Ok(slot) => {
                self.connections.reset(slot);
                self.parts.io.list(slot);
                self.connections.heat(slot);
            }
            Err(connection) => self.log_limited(&connection, TOO_MANY),
        }
    }

    /// Adds a listener whose number is free.
    pub(super) fn add_listener(&mut self, number: u16, listener: ClientListener) {
        let index = usize::from(number);
        let listeners = &mut self.parts.listeners;
        if listeners.len() <= index {
            listeners.resize_with(index + 1, || None);
        }
        assert!(listeners[index].is_none(), "the number of a new listener is free");
        listeners[index] = Some(listener);
        self.watch_listener(index);
    }

    /// Changes what later clients of a listener get. With another TLS configuration clients in their handshake are ended, since
    /// what the listener offers from now on may be meant for that configuration alone.
    pub(super) fn change_listener(
        &mut self,
        number: u16,
        name: Arc<str>,
        acceptor: Option<Arc<TlsAcceptor>>,
    ) {
        let Some(Some(own)) = self.parts.listeners.get_mut(usize::from(number)) else { return };
        let pointer = |acceptor: &Option<Arc<TlsAcceptor>>| acceptor.as_ref().map(Arc::as_ptr);
        let is_same = pointer(&own.acceptor) == pointer(&acceptor);
        (own.name, own.acceptor) = (name, acceptor);
        if !is_same {
            self.end_handshakes(number, "its listener has other certificates now");
        }
    }

    /// Removes a listener, which `remains` closes, and ends the clients that are in their handshake through it.
    pub(super) fn remove_listener(&mut self, number: u16, remains: &mut Released) {
        let own = self.parts.listeners.get_mut(usize::from(number)).and_then(Option::take);
        let Some(own) = own else { return };
        self.parts.engine.forget(LISTENERS + u32::from(number), own.listener.fd());
        remains.keep(Some(own.listener));
        self.end_handshakes(number, "its listener was removed");
    }

    /// Ends the clients of a listener that have chosen no export.
    fn end_handshakes(&mut self, number: u16, why: &str) {
        for slot in self.parts.io.slots() {
            let connection = self.parts.io.connection(slot);
            if connection.and_then(|(it, _)| it.negotiates_through()) == Some(number) {
                self.end(slot, &ConnectionEnd::Fault(why.to_owned()));
            }
        }
    }

    /// Closes all listeners.
    pub(super) fn close_listeners(&mut self) {
        for (number, own) in std::mem::take(&mut self.parts.listeners).into_iter().enumerate() {
            if let Some(own) = own {
                self.parts.engine.forget(LISTENERS + number as u32, own.listener.fd());
            }
        }
    }
}
