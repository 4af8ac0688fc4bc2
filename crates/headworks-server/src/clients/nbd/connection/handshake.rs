//! The handshake of a connection: options are parsed and answered, and STARTTLS changes the transport.

use super::{Connection, ConnectionEnd, ReceiveOutcome, Shares};
use crate::clients::nbd::transport::Transport;
use crate::exports::access::ClientOffer;
use headworks_front::WaitsFor;
use headworks_front::outgoing::SendOutcome;
use headworks_nbd::handshake::Outcome;

use super::session::Negotiation;

/// Parses bytes of a handshake; returns the number of those that were used.
pub(super) fn parse(
    connection: &mut Connection,
    bytes: &[u8],
    shares: &mut Shares<'_>,
) -> (usize, ReceiveOutcome) {
    let Connection { wire, session, .. } = &mut *connection;
    let requests = session.bounds().requests;
    let Some(Negotiation { handshake, admission, .. }) = session.negotiation_mut() else {
        return (0, ReceiveOutcome::Idle);
    };
    if !admission.is_certified()
        && let Some(names) = wire.transport().and_then(Transport::peer_names)
    {
        admission.certify(names);
    }
    let offer = ClientOffer::new(shares.exports, admission);
    let mut used = 0;
    loop {
        let mut out = Vec::new();
        let (count, outcome) = handshake.feed(&offer, &bytes[used..], &mut out);
        used += count;
        if !out.is_empty() {
            wire.outgoing_mut().header(|headers| headers.extend_from_slice(&out));
        }
        let received = match outcome {
            Outcome::Reply if wire.outgoing().has_room_for_answers(requests) => continue,
            Outcome::Reply => ReceiveOutcome::Waits(WaitsFor::Window),
            Outcome::NeedMore => ReceiveOutcome::Worked,
            Outcome::Encrypt => encrypt(connection, bytes.len() - used, shares),
            Outcome::Ready { export, terms } => ReceiveOutcome::Chosen { export, terms },
            Outcome::Closed => ReceiveOutcome::End(ConnectionEnd::Goodbye),
            Outcome::Failed(sentence) => ReceiveOutcome::End(ConnectionEnd::Fault(sentence)),
        };
        return (used, received);
    }
}

/// Answers STARTTLS in the clear and encrypts everything after it. `early` bytes arrived after the request in the
/// clear: they may come from an attacker in between.
fn encrypt(connection: &mut Connection, early: usize, shares: &mut Shares<'_>) -> ReceiveOutcome {
    let Connection { wire, session, .. } = connection;
    let fault = |sentence: String| ReceiveOutcome::End(ConnectionEnd::Fault(sentence));
    if early > 0 {
        return fault(format!("{early} unencrypted bytes followed the request for TLS"));
    }
    let acceptor = session.negotiation_mut().and_then(|negotiation| negotiation.acceptor.take());
    let Some(acceptor) = acceptor.filter(|_| wire.transport().is_some()) else {
        return fault("TLS was negotiated but is not available".to_owned());
    };
    // The reply is short: a client whose socket does not take it does not read.
    match wire.send_answer(shares.pool) {
        Ok(SendOutcome::All) => {}
        Ok(_) => return fault("the client does not read the handshake replies".to_owned()),
        Err(error) => return fault(format!("sending failed: {error}")),
    }
    match (acceptor.session(), wire.transport_mut()) {
        (Ok(session), Some(transport)) => transport.encrypt(session),
        (Err(error), _) => return fault(error.to_string()),
        (Ok(_), None) => return fault("TLS was negotiated but is not available".to_owned()),
    }
    ReceiveOutcome::Worked
}
