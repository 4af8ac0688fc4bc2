//! Payloads of writes: memory as bytes come, and parts that are written before the rest has come.
//!
//! ```text
//!   header --begin--> claim a block --bytes--> part whole --give--> piece in the shard --.     next part: claim ..
//!                      ^   | refused, or over its window, and 4 KiB are whole: the part ends there             |
//!                      `---'                                                             all given, all answered --> one reply
//! ```
//!
//! - Up to its window (1 MiB, less while many payloads are incomplete: [`Memory::window`](headworks_front::memory::Memory::window)) a write is one bio, made when
//!   its payload is whole. A longer one is given in pieces that end at multiples of the window on the volume, in order, at most
//!   [`PIECES_MAX`] at a time. NBD promises nothing of a write before its reply.
//! - A block is claimed when a connection is read from, for the whole part if its payloads come quickly, else for twice what has come. It
//!   is cut to what has come when the connection is silent. So a silent payload keeps less than twice what was sent of it.
//! - A payload within its window grows without a share, since all windows together are a quarter of the pool
//!   ([`MemoryShare::may_keep`](headworks_front::memory::MemoryShare::may_keep)). While another payload of its export is beyond its window,
//!   it waits: that one is written.
//! - A payload that may not grow otherwise, or is beyond its window since others began, is written as far as whole blocks have come. What is
//!   left fits 4 KiB, which is guaranteed; so each payload goes on without any other. A write within its window comes to this only if what is shared
//!   of the pool has no block for twice what has come.
//! - Range and alignment of the whole are checked before its first piece. The first error is the reply's, after the last byte of the payload;
//!   what comes after the error is dropped. FUA is on every piece.
//! - A client that leaves in between has changed what the pieces say ([`Intake::torn_write`]). It had no reply.

use headworks_core::{Instant, IoError, Status};

use super::admission::{admission, end_refused, may_take, refuse, take_block};
use super::session::Session;
use super::{Connection, Intake, LARGE_PAYLOAD, Shares, Wire, replies};
use headworks_front::split_writes::{EndedWrite, PieceEnd};
use headworks_front::window::CompletedRequest;
use headworks_front::{FrontRequest, PART_MIN, WaitsFor};
use headworks_house::{Buffer, Pool};
use headworks_nbd::transmission::Request;

/// Pieces of a write that the shard has at once.
const PIECES_MAX: u16 = 4;
/// A payload that takes no longer is claimed a block for at once the next time.
const QUICK_NS: u64 = 10_000_000;
/// The block of a payload of which nothing has come for this long is cut.
const SILENT_NS: u64 = 1_000_000;

/// Lets a write whose window, limits and freeze agree go on: it gives a part that is whole, and claims memory for the next.
pub(super) fn advance_write(
    one: &mut FrontRequest,
    connection: &mut Connection,
    shares: &mut Shares<'_>,
) -> WaitsFor {
    if !one.has_payload() {
        connection.intake.set_large(one.request.len as usize >= LARGE_PAYLOAD);
        one.begin_part(part_window(&connection.session, shares));
    }
    if one.part_is_whole() {
        let waits = give(one, connection, shares);
        if waits != WaitsFor::Nothing || one.payload.given == one.request.len {
            return waits;
        }
    }
    let Connection { wire, intake, session } = &mut *connection;
    let within = is_within(one, session, shares);
    if one.payload.refused.is_some() || claim(one, within, (wire, intake), shares) {
        return WaitsFor::Client;
    }
    if intake.refuses() {
        return refuse(one, connection, shares);
    }
    one.payload.within = within;
    one.payload.for_others =
        within && !shares.memory.fits_windows(Pool::block_bytes(one.next_growth()).unwrap_or(0));
    if one.payload.for_others {
        return WaitsFor::Buffer;
    }
    // What has come is written, so that the rest finds room.
    if intake.end_early(one, part_align(session)) {
        return admission(one, connection, shares);
    }
    WaitsFor::Buffer
}

/// The window as a multiple of the export's block.
fn part_window(session: &Session, shares: &Shares<'_>) -> u32 {
    shares.window.max(part_align(session))
}

/// Whether a write is to be one bio: it is no longer than its window.
fn is_within(one: &FrontRequest, session: &Session, shares: &Shares<'_>) -> bool {
    one.payload.given == 0 && one.request.len <= part_window(session, shares)
}

/// Parts of payloads end at multiples of this on the volume.
pub(super) fn part_align(session: &Session) -> u32 {
    session.block().max(PART_MIN)
}

/// What a request of which a bio comes now waits for, as far as the connection's own pieces and requests in flight say. A request has a
/// place among those in flight since its header; a piece that is not its write's last leaves all `others` that wait theirs.
pub(super) fn place_waits(
    one: &FrontRequest,
    others: usize,
    intake: &Intake,
    session: &Session,
) -> Option<WaitsFor> {
    let is_piece =
        one.has_payload() && (one.payload.given > 0 || one.payload.part < one.request.len);
    if is_piece && intake.splits().pieces_of(one.payload.split) >= PIECES_MAX {
        return Some(WaitsFor::Pieces);
    }
    let others = if is_piece { others } else { 0 };
    (session.window().used() + others >= session.bounds().requests).then_some(WaitsFor::Window)
}

/// Whether a write that waited for its own pieces can go on.
pub(super) fn has_piece_room(intake: &Intake) -> bool {
    let last = intake.waiting().last();
    last.is_some_and(|last| intake.splits().pieces_of(last.payload.split) < PIECES_MAX)
}

/// Gives the present part to the shard, which has a slot for it; what has come beyond it moves to a block of its own. `Nothing` if it is
/// given.
fn give(one: &mut FrontRequest, connection: &mut Connection, shares: &mut Shares<'_>) -> WaitsFor {
    let Connection { wire, intake, session } = &mut *connection;
    let is_whole = one.payload.given == 0 && one.payload.part == one.request.len;
    if !is_whole && one.payload.split == 0 && !begin_split(one, intake, session, shares) {
        return if one.payload.got < one.request.len {
            WaitsFor::Client
        } else {
            end_refused(one, connection, shares)
        };
    }
    let (from, end) = (one.payload.given as usize, one.payload.part as usize);
    let beyond = one.payload.got as usize - end;
    let mut next = None;
    if beyond > 0 {
        next = take_tail(one, beyond, (wire, intake), shares);
        if next.is_none() {
            return WaitsFor::Buffer;
        }
    }
    let Some(mut block) = one.payload.block.take() else { return WaitsFor::Nothing };
    if let Some(next) = &next {
        // SAFETY: both blocks are ours alone; the first has these bytes and the second room for them.
        unsafe {
            let source = block.base().add(end - from);
            next.base().copy_from_nonoverlapping(source, beyond);
        }
    }
    // SAFETY: what lies behind the part was copied, and nothing uses it.
    unsafe { intake.cut(&mut block, end - from, shares.pool) };
    intake.set_quick(shares.now.since(one.since()) < QUICK_NS);
    let waits = one.settle(shares.now);
    let flags = one.request.bio_flags();
    if is_whole {
        session.submit(&one.request, flags, waits, Some(block), shares);
        one.payload.given = one.request.len;
        return WaitsFor::Nothing;
    }
    let number = one.payload.split;
    let Request { offset, command, flags: with, .. } = one.request;
    let (cookie, offset) = (u64::from(number), offset + from as u64);
    let piece = Request { cookie, offset, len: (end - from) as u32, command, flags: with };
    let sequence = session.submit(&piece, flags, Default::default(), Some(block), shares);
    if let Some(in_flight) = session.window_mut().get(sequence) {
        in_flight.piece = true;
    }
    one.payload.given = one.payload.part;
    one.payload.block = next;
    let is_last = one.payload.given == one.request.len;
    let whole = (waits.wait_times(), waits.began(shares.now));
    intake.splits_mut().give(number, is_last, whole);
    if !is_last {
        one.begin_part(part_window(session, shares));
    }
    WaitsFor::Nothing
}

/// Takes a block for what has come beyond a part that is given: less than a block of the volume, and with what is guaranteed it needs
/// no share: payloads that each wait for memory of the others would never go on. What nothing has come for is returned before.
fn take_tail(
    one: &mut FrontRequest,
    beyond: usize,
    (wire, intake): (&Wire, &mut Intake),
    shares: &mut Shares<'_>,
) -> Option<Buffer> {
    let kept = one.kept();
    if let Some(block) = one.payload.block.as_mut() {
        // SAFETY: nothing has come behind these bytes, and no receive is in progress.
        unsafe { intake.cut(block, kept, shares.pool) };
    }
    if Pool::block_bytes(beyond)? > shares.memory.limits().guaranteed() {
        return take_block(beyond, false, wire, intake, shares);
    }
    let tail = shares.pool.try_take(beyond)?;
    intake.charge(tail.len());
    Some(tail)
}

/// Makes the record of a write that is given in pieces; false if it may not begin, and then it is refused.
fn begin_split(
    one: &mut FrontRequest,
    intake: &mut Intake,
    session: &Session,
    shares: &mut Shares<'_>,
) -> bool {
    let Request { offset, len, .. } = one.request;
    let size = shares.exports.size_of(session.export());
    let end = offset.checked_add(u64::from(len));
    let is_misaligned = (offset | u64::from(len)) & (u64::from(session.block()) - 1) != 0;
    let refused = if end.is_none_or(|end| size.is_none_or(|size| end > size)) {
        Some(IoError::NoSpace)
    } else {
        is_misaligned.then_some(IoError::Invalid)
    };
    if refused.is_some() {
        one.payload.refused = refused;
        intake.set_large(false);
        intake.drop_block(one, shares.pool);
        return false;
    }
    one.payload.split = intake.splits_mut().begin(one.request);
    true
}

/// Counts a piece that the shard has answered; returns the request if this completed it.
pub(super) fn on_piece(
    connection: &mut Connection,
    now: Instant,
    number: u64,
    status: Status,
    pool: &mut Pool,
) -> Option<CompletedRequest> {
    let Connection { wire, intake, session } = connection;
    match intake.splits_mut().on_piece(now, number, status)? {
        PieceEnd::Open(status) => {
            if let (Err(error), Some(one)) = (status, intake.waiting_mut().last_mut())
                && u64::from(one.payload.split) == number
            {
                one.payload.refused = Some(error);
                let block = one.payload.block.take();
                block.into_iter().for_each(|block| intake.return_block(block, pool));
            }
            None
        }
        PieceEnd::Others => None,
        PieceEnd::Last(_) if session.is_dead() => None,
        PieceEnd::Last(EndedWrite { cookie, offset, status, completed }) => {
            replies::answer_write(wire, session, now, (offset, cookie), status);
            completed
        }
    }
}

/// Takes memory for bytes that may come; false if there is none, and nothing is whole that could be given instead. `within`: the write is
/// within its window.
fn claim(
    one: &mut FrontRequest,
    within: bool,
    (wire, intake): (&Wire, &mut Intake),
    shares: &mut Shares<'_>,
) -> bool {
    let (little, left) = (one.next_growth(), (one.payload.part - one.payload.given) as usize);
    intake.is_quick() && grow(one, (left, false), (wire, intake), shares)
        || grow(one, (little, within), (wire, intake), shares)
}

/// Grows the block of a payload to `len` bytes, in place if what lies behind it is free. `keeps`: it is within its window.
fn grow(
    one: &mut FrontRequest,
    (len, keeps): (usize, bool),
    (wire, intake): (&Wire, &mut Intake),
    shares: &mut Shares<'_>,
) -> bool {
    let before = one.payload.block.as_ref().map_or(0, |block| block.len());
    let Some(wanted) = Pool::block_bytes(len).filter(|&wanted| wanted > before) else {
        return before > 0;
    };
    let may_keep = || keeps && shares.memory.may_keep((before, wanted), shares.pool.taken());
    if !may_take(wanted - before, false, wire, intake, shares) && !may_keep() {
        return false;
    }
    let kept = one.kept();
    let pool = &mut *shares.pool;
    if !one.payload.block.as_mut().is_some_and(|block| pool.extend(block, len)) {
        let Some(larger) = pool.try_take(len) else { return false };
        if let Some(block) = one.payload.block.take() {
            // SAFETY: both blocks are ours alone, and each holds what has come.
            unsafe { larger.base().copy_from_nonoverlapping(block.base(), kept) };
            pool.put(block);
        }
        one.payload.block = Some(larger);
    }
    intake.charge(wanted - before);
    true
}

/// Cuts the block of a payload of which nothing has come for a while.
pub(super) fn note_silence(wire: &Wire, intake: &mut Intake, shares: &mut Shares<'_>) {
    if intake.has_incomplete_payload() && shares.now.since(wire.heard()) >= SILENT_NS {
        intake.set_quick(false);
        intake.cut_payload(shares.pool);
    }
}
