//! Answers of the shard become replies: their headers and data join the send queue, and their buffers return to the pool or are sent from.

use headworks_core::{EXTENTS_BYTES, Instant, IoError, Op, ReplyStage, Status};

use super::session::Session;
use super::{Connection, Wire, payload, reread};
use crate::observe::latency::errors::ErrorReply;
use headworks_front::window::{CompletedRequest, InFlight};
use headworks_house::{Buffer, Pool};
use headworks_nbd::status::StatusQuery;
use headworks_nbd::wire::NbdError;

/// Takes a reply of the shard, or the return of a buffer; returns the request if this completed it.
pub(super) fn reply(
    connection: &mut Connection,
    now: Instant,
    sequence: u64,
    (status, hole, stage): (Status, bool, ReplyStage),
    pool: &mut Pool,
) -> Option<CompletedRequest> {
    let Connection { wire, intake, session } = &mut *connection;
    if session.reread().is_some_and(|reread| reread.sequence == sequence) {
        reread::on_reread(connection, now, sequence, (status, hole, stage), pool);
        return None;
    }
    if stage == ReplyStage::Early {
        return on_time_out(connection, now, sequence, status, pool);
    }
    let in_flight = session.take(sequence)?;
    let counted = in_flight.completed(now);
    let InFlight { op, cookie, offset, len, one_extent, answered, buffer, piece, .. } = in_flight;
    intake.discharge(buffer.as_ref().map_or(0, |buffer| buffer.len()));
    if piece {
        buffer.into_iter().for_each(|buffer| pool.put(buffer));
        return if answered {
            None
        } else {
            payload::on_piece(connection, now, cookie, status, pool)
        };
    }
    let mut buffer = buffer;
    if !session.is_dead() && !answered {
        match (op, status) {
            (_, Err(error)) => answer_failure(wire, session, now, (op, offset, cookie), error),
            (Op::Read, Ok(())) if hole => answer_hole(wire, session, (cookie, offset, len)),
            (Op::Read, Ok(())) => {
                let form = session.form();
                wire.outgoing_mut().header(|out| form.read_data(out, cookie, offset, len));
                if let Some(buffer) = buffer.take() {
                    wire.outgoing_mut().data(buffer, len as usize, offset, now);
                }
            }
            (Op::BlockStatus, Ok(())) => {
                let (form, block) = (session.form(), session.block());
                let question = StatusQuery { cookie, offset, len, block, one: one_extent };
                let list = buffer.as_ref().map_or(&[][..], list_of);
                wire.outgoing_mut().header(|out| form.block_status(out, &question, list));
            }
            (_, Ok(())) => {
                let form = session.form();
                wire.outgoing_mut().header(|out| form.done(out, cookie, Ok(())));
            }
        }
    }
    if let Some(buffer) = buffer {
        pool.put(buffer);
    }
    (!answered).then_some(counted)
}

/// Answers a request that timed out: its buffer stays in use.
#[cold]
fn on_time_out(
    connection: &mut Connection,
    now: Instant,
    sequence: u64,
    status: Status,
    pool: &mut Pool,
) -> Option<CompletedRequest> {
    let in_flight = connection.session.window_mut().get(sequence)?;
    in_flight.answered = true;
    let InFlight { op, offset, cookie, piece: is_piece, .. } = *in_flight;
    let answered = in_flight.completed(now);
    if is_piece {
        let status = status.and(Err(IoError::TimedOut));
        return payload::on_piece(connection, now, cookie, status, pool);
    }
    let Connection { wire, session, .. } = connection;
    if !session.is_dead() {
        let error = status.err().unwrap_or(IoError::TimedOut);
        answer_failure(wire, session, now, (op, offset, cookie), error);
    }
    Some(answered)
}

fn answer_hole(wire: &mut Wire, session: &Session, (cookie, offset, len): (u64, u64, u32)) {
    let (form, mut said) = (session.form(), false);
    wire.outgoing_mut().header(|out| said = form.read_hole(out, cookie, offset, len));
    if !said {
        wire.outgoing_mut().zeros(len as usize);
    }
}

/// Answers a request with an error, and counts it.
pub(super) fn answer_failure(
    wire: &mut Wire,
    session: &mut Session,
    at: Instant,
    (op, offset, cookie): (Op, u64, u64),
    error: IoError,
) {
    let connection = session.id();
    session.count_error(ErrorReply { at, op, offset, connection, error });
    let (form, error) = (session.form(), NbdError::from(error));
    wire.outgoing_mut().header(|out| match op {
        Op::Read | Op::BlockStatus => form.read_error(out, cookie, error),
        _ => form.done(out, cookie, Err(error)),
    });
}

/// Answers a write that was given in pieces.
pub(super) fn answer_write(
    wire: &mut Wire,
    session: &mut Session,
    now: Instant,
    (offset, cookie): (u64, u64),
    status: Status,
) {
    match status {
        Err(error) => answer_failure(wire, session, now, (Op::Write, offset, cookie), error),
        Ok(()) => {
            let form = session.form();
            wire.outgoing_mut().header(|out| form.done(out, cookie, Ok(())));
        }
    }
}

/// The extents that a device wrote into the buffer of a block status.
fn list_of(buffer: &Buffer) -> &[u8] {
    assert!(buffer.len() >= EXTENTS_BYTES as usize, "it was taken for a list");
    // SAFETY: the buffer is ours alone again, and holds a list's bytes.
    unsafe { std::slice::from_raw_parts(buffer.base(), EXTENTS_BYTES as usize) }
}
