//! A connection between two processes: what one knows of its client, for another that goes on with the same socket.
//!
//! Only a plain connection in transmission moves, and only while none of its requests is in flight. What the client has sent of a
//! request becomes bytes again, as they came, so the other process needs no other way to read them. Unsent replies move as bytes;
//! dropped data (`outgoing`) as ranges to be read again.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use headworks_core::{Instant, Ioprio};
use headworks_nbd::Negotiated;
use headworks_nbd::transmission::Refusal;

use super::session::Resumption;
use super::{Connection, ConnectionLimits, OpenWrite};
use headworks_front::outgoing::UnsentPiece;

/// A connection for another process.
#[derive(Debug)]
pub struct HandedConnection {
    /// A descriptor of the client's socket.
    pub socket: OwnedFd,
    /// Its id in the old process.
    pub id: u32,
    /// Address of the client for the log.
    pub peer: String,
    /// Name of the listener that the client came through.
    pub listener: Option<String>,
    /// Protocol features agreed on in the handshake.
    pub terms: Negotiated,
    /// Class of its requests, if it has one of its own.
    pub ioprio: Option<Ioprio>,
    /// What the client has sent of requests that did not begin.
    pub unparsed: Vec<u8>,
    /// Bytes of a refused write's payload that are to be dropped before `unparsed`, and the refusal.
    pub skip: Option<(u32, Refusal)>,
    /// A write of which a part is written: `unparsed` begins with the rest of its payload.
    pub open: Option<OpenWrite>,
    /// Replies that are not sent yet, in order.
    pub unsent: Vec<UnsentPiece>,
    /// Number of those replies.
    pub replies: usize,
}

/// What another process needs to go on with a connection; none if it cannot move.
pub(super) fn hand_over(connection: &Connection) -> Option<HandedConnection> {
    let Connection { wire, intake, session } = connection;
    let parser = intake.parser()?;
    let transport = wire.transport().filter(|transport| !transport.is_encrypted())?;
    assert!(connection.is_at_rest(), "no request is in flight");
    let socket = transport.duplicate().ok()?;
    let mut unparsed = intake.bytes();
    unparsed.extend_from_slice(wire.stash());
    Some(HandedConnection {
        socket,
        id: session.id(),
        peer: session.peer().to_owned(),
        listener: session.listener().map(|name| name.to_string()),
        terms: parser.terms(),
        ioprio: session.own_ioprio(),
        unparsed,
        skip: intake.skipping(),
        open: intake.open_write(),
        unsent: wire.outgoing().unsent(),
        replies: wire.outgoing().replies(),
    })
}

/// Goes on with a connection of another process, once it has its export.
pub(super) fn adopt(
    handed: HandedConnection,
    limits: ConnectionLimits,
    now: Instant,
) -> Connection {
    let HandedConnection {
        socket,
        peer,
        listener,
        ioprio,
        unparsed,
        skip,
        open,
        unsent,
        replies,
        ..
    } = handed;
    let mut connection = Connection::without_greeting(socket, peer, limits, now);
    let Connection { wire, session, .. } = &mut connection;
    if let Some(name) = listener {
        session.set_listener(Arc::from(name));
    }
    wire.put_stash(unparsed);
    wire.outgoing_mut().adopt(unsent, replies);
    session.set_resumption(Resumption { ioprio, skip, open });
    connection
}
