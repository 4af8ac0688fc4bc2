//! Listeners of clients: accept, and hot-add and hot-remove of listeners.
//!
//! One shard has the listeners. A listener's number names it in the engine's tokens and in the admissions of clients that are in
//! their handshake. Invariant: when a number is given again, no client of its former listener is in its handshake.

use std::sync::Arc;

use headworks_core::Instant;
use tracing::{error, warn};

use super::ReactorParts;
use super::door::Door;
use crate::listen::{ClientListener, DoorThread};
use crate::reactor::messages::command::Released;
use headworks::driver::{Engine, Interest};
use headworks_nbd::tls::TlsAcceptor;

/// Tokens of listeners start here; below are connections' slots.
pub(super) const LISTENERS: u32 = 1 << 12;
/// Connections accepted in one turn. A listener with more is ready again in the next turn.
const ACCEPTS_MAX: usize = 16;

/// The listeners of a shard.
#[derive(Default)]
pub(super) struct Listeners {
    /// By number.
    all: Vec<Option<ClientListener>>,
    /// Clients are accepted.
    listens: bool,
    /// `accept` failed for want of a file descriptor: listeners pause until the next tick.
    paused: bool,
}

impl Listeners {
    /// The listeners by number, which accept clients at once or when they are told so.
    pub fn new(all: Vec<Option<ClientListener>>, listens: bool) -> Self {
        Self { all, listens, paused: false }
    }

    /// Accepts clients from now on.
    pub fn listen(&mut self, engine: &mut dyn Engine) {
        self.listens = true;
        self.watch_all(engine);
    }

    /// Watches every listener, if clients are accepted.
    pub fn watch_all(&self, engine: &mut dyn Engine) {
        (0..self.all.len()).for_each(|number| self.watch(number, engine));
    }

    /// Watches listeners again that have paused.
    pub fn retry(&mut self, engine: &mut dyn Engine) {
        if std::mem::take(&mut self.paused) {
            self.watch_all(engine);
        }
    }

    fn watch(&self, number: usize, engine: &mut dyn Engine) {
        if let Some(Some(own)) = self.all.get(number).filter(|_| self.listens) {
            engine.watch(LISTENERS + number as u32, own.listener.fd(), Interest::Read);
        }
    }

    /// The listener of a number.
    pub fn get(&self, number: u16) -> Option<&ClientListener> {
        self.all.get(usize::from(number))?.as_ref()
    }

    /// Accepts clients of a listener; false if it pauses until the next tick.
    pub fn accept(
        &mut self,
        now: Instant,
        number: u32,
        door: &mut Door,
        parts: &mut ReactorParts,
    ) -> bool {
        if door.is_paused() {
            // The end of the pause watches it again.
            return true;
        }
        if let Some(ClientListener { thread: Some(DoorThread::Directory(it)), .. }) =
            self.get(number as u16)
        {
            // Ready once: it is not watched again before a pause has ended, which changes nothing for it.
            (it.begin)();
            return true;
        }
        for _ in 0..ACCEPTS_MAX {
            let Some(own) = self.get(number as u16) else { return true };
            match own.listener.accept() {
                Ok(Some(client)) => match &own.thread {
                    None => door.add_client(parts, now, client, (number as u16, Some(own))),
                    // A directory accepts no client.
                    Some(DoorThread::Directory(_)) => {}
                    Some(DoorThread::FrontEnds(front_ends)) => {
                        if front_ends.try_send(client.0).is_err() && door.log.admits() {
                            warn!(
                                listener = &*own.name,
                                "closed: it has a front end, and others wait"
                            );
                        }
                    }
                },
                Ok(None) => break,
                Err(error) => {
                    error!("cannot accept a client: {error}; retrying in 1 s");
                    self.paused = true;
                    return false;
                }
            }
        }
        self.watch(number as usize, &mut *parts.engine);
        true
    }

    /// Adds a listener whose number is free.
    pub fn add(&mut self, number: u16, listener: ClientListener, engine: &mut dyn Engine) {
        let index = usize::from(number);
        if self.all.len() <= index {
            self.all.resize_with(index + 1, || None);
        }
        assert!(self.all[index].is_none(), "the number of a new listener is free");
        self.all[index] = Some(listener);
        self.watch(index, engine);
    }

    /// Changes what later clients of a listener get; returns whether it has another TLS configuration. Then clients in their handshake are to
    /// be ended, since what the listener offers from now on may be meant for that configuration alone.
    pub fn change(
        &mut self,
        number: u16,
        name: Arc<str>,
        acceptor: Option<Arc<TlsAcceptor>>,
    ) -> bool {
        let Some(Some(own)) = self.all.get_mut(usize::from(number)) else { return false };
        let pointer = |acceptor: &Option<Arc<TlsAcceptor>>| acceptor.as_ref().map(Arc::as_ptr);
        let is_same = pointer(&own.acceptor) == pointer(&acceptor);
        (own.name, own.acceptor) = (name, acceptor);
        !is_same
    }

    /// Removes a listener, which `remains` closes; clients that are in their handshake through it are to be ended. False if there is none.
    pub fn remove(&mut self, number: u16, engine: &mut dyn Engine, remains: &mut Released) -> bool {
        let own = self.all.get_mut(usize::from(number)).and_then(Option::take);
        let Some(own) = own else { return false };
        engine.forget(LISTENERS + u32::from(number));
        remains.keep(Some(own.listener));
        true
    }

    /// Closes all listeners: no client comes any more.
    pub fn close_all(&mut self, engine: &mut dyn Engine) {
        for (number, own) in std::mem::take(&mut self.all).into_iter().enumerate() {
            if own.is_some() {
                engine.forget(LISTENERS + number as u32);
            }
        }
    }
}
