//! Connections, buffers and rings of a shard: the executor's [`ActionSink`].
//!
//! Ids of connections (`connection_id`) tell a bio of this shard from a foreign one, and a late reply to a closed
//! connection from one to its successor in the slot. The memory of a foreign bio belongs to its sender; its span
//! arrives with the message and is kept until the bio is done.

use std::collections::VecDeque;

use headworks_core::limits::LeaseMessage;
use headworks_core::options::DEVICES_MAX;
use headworks_core::{
    BioId, DeviceId, DeviceState, Instant, Message, Notice, ReplyStage, ShardId, Status, WaitTimes,
};

use super::foreign_spans::ForeignSpans;
use crate::clients::client::ShardClient;
use crate::clients::connection_id::{
    CONNECTIONS_MAX, OWN_FLUSHES, RESTORES, connection_id, is_of_shard, next_generation, slot_of,
};
use crate::observe::latency::exports::ExportLatencies;
use headworks::driver::{ActionSink, Span};
use headworks::house::{Consumer, Mapping, Populator, Producer};
use headworks_core::limits::LimitTarget;
use headworks_front::lent_frames::LentFrames;
use headworks_front::memory::MemoryLimits;
use headworks_house::Pool;

/// What one shard's thread tells another's.
#[derive(Clone, Copy, Debug)]
pub enum Envelope {
    /// A message between shards, with the memory of its bio.
    Shard {
        /// The message for the shard.
        message: Message,
        /// Memory of the message's bio, for the executor.
        span: Span,
    },
    /// Tokens of a limit.
    Lease {
        /// What the limit is set on.
        target: LimitTarget,
        /// Request, answer or return.
        message: LeaseMessage,
    },
}

const _: () = assert!(
    size_of::<LeaseMessage>() <= size_of::<Message>() + size_of::<Span>(),
    "limits make the entries of rings no larger"
);

/// Both rings between this shard and another.
pub struct Peer {
    /// Ring to the other shard.
    pub producer: Producer<Envelope>,
    /// Ring from the other shard.
    pub consumer: Consumer<Envelope>,
    /// Messages of this turn that are not in the ring yet.
    pub outbox: Vec<Envelope>,
}

struct ConnectionSlot {
    generation: u32,
    client: Option<ShardClient>,
    /// The slot is in `to_send`.
    listed: bool,
}

/// What a shard's thread has beside the shard and its devices.
pub struct ShardIo {
    shard: ShardId,
    places: Vec<ConnectionSlot>,
    free: Vec<u32>,
    /// Buffers of this shard's connections.
    pub pool: Pool,
    /// Makes the memory of frames before they are used; ends before they are unmapped.
    populator: Option<Populator>,
    /// Frames of this shard's cache.
    pub frames: Option<Mapping>,
    /// Which connections have frames of it in their send queues.
    lent: LentFrames,
    /// Watermarks of the pool.
    memory_limits: MemoryLimits,
    /// Connections with reads that the cache returned in this turn.
    pub returned: Vec<u32>,
    /// Rings indexed by shard; none for the own shard.
    pub peers: Vec<Option<Peer>>,
    foreign: ForeignSpans,
    /// Start of the turn: the time of replies in this turn.
    pub now: Instant,
    /// Wait times of this shard's exports.
    pub latency: ExportLatencies,
    /// When the shard wants `Input::Timer`.
    pub timer: Option<Instant>,
    /// Slots with replies that are not sent yet.
    pub to_send: Vec<u32>,
    /// Those of them with large replies, in the order of their turns.
    large_to_send: VecDeque<u32>,
    /// Completions of the shard's own flushes.
    pub own_flushes: Vec<(BioId, Status)>,
    /// Completions of the writes that restore what a dead server left.
    restored: Vec<(BioId, Status)>,
    /// Answers to changes of options, by token; bounded by the changes submitted.
    pub sets: Vec<(u32, Status)>,
    /// Devices that ceased to answer or answer again; never dropped, a change of state takes a time-out.
    pub device_states: Vec<(DeviceId, DeviceState)>,
    /// Notices to be logged, bounded by `NOTICES_MAX`.
    pub notices: Vec<Notice>,
    /// Notices dropped beyond the bound.
    pub notices_lost: u64,
}

/// Unsent data of at most this many bytes need no turn.
pub const SMALL_REPLIES: usize = 64 << 10;
/// Notices kept for one turn.
const NOTICES_MAX: usize = 16;

impl ShardIo {
    /// Room for `connections` clients and `foreign_bios` bios of other shards.
    #[must_use]
    pub fn new(
        shard: ShardId,
        connections: usize,
        pool: Pool,
        (frames, populator): (Option<Mapping>, Option<Populator>),
        peers: Vec<Option<Peer>>,
        foreign_bios: usize,
    ) -> Self {
        let connections = connections.min(CONNECTIONS_MAX);
        let places = (0..connections)
            .map(|_| ConnectionSlot { generation: 0, client: None, listed: false })
            .collect();
        Self {
            shard,
            populator,
            lent: LentFrames::new(connections),
            memory_limits: MemoryLimits::new(pool.size(), connections),
            returned: Vec::with_capacity(connections),
            places,
            free: (0..connections as u32).rev().collect(),
            pool,
            frames,
            foreign: ForeignSpans::new(foreign_bios),
            peers,
            now: Instant(0),
            latency: ExportLatencies::default(),
            timer: None,
            to_send: Vec::with_capacity(connections),
            large_to_send: VecDeque::with_capacity(connections),
            restored: Vec::new(),
            own_flushes: Vec::new(),
            sets: Vec::new(),
            device_states: Vec::with_capacity(DEVICES_MAX),
            notices: Vec::with_capacity(NOTICES_MAX),
            notices_lost: 0,
        }
    }

    /// Number of connections, closed ones with buffers in use included.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Whether a slot is free.
    #[must_use]
    pub fn has_place(&self) -> bool {
        !self.free.is_empty()
    }

    /// Takes a client in; returns it when all slots are taken.
    pub fn insert(&mut self, mut client: ShardClient) -> Result<u32, ShardClient> {
        let Some(slot) = self.free.pop() else {
            return Err(client);
        };
        let place = &mut self.places[slot as usize];
        place.generation = next_generation(place.generation);
        client.set_id(connection_id(self.shard, place.generation, slot));
        place.client = Some(client);
        Ok(slot)
    }

    /// Removes a client; its counts stay with the export.
    pub fn remove(&mut self, slot: u32) -> Option<ShardClient> {
        let client = self.places[slot as usize].client.take()?;
        if let Some((export, table)) = client.latency() {
            self.latency.close(export, table);
        }
        self.lent.note(slot, 0);
        self.free.push(slot);
        Some(client)
    }

    /// Whether reads of a connection may be answered from frames.
    pub fn may_lend(&self, slot: u32) -> bool {
        self.lent.may_lend(slot)
    }

    /// Records how much of the frames a connection has in its send queue.
    pub fn note_lent(&mut self, slot: u32) {
        let place = &self.places[slot as usize];
        let lent = place.client.as_ref().map_or(0, |client| client.lent());
        self.lent.note(slot, lent as u32);
    }

    /// Lets no connection send bytes of the frames that are about to change.
    #[cold]
    fn keep_lent(&mut self, changing: Span) {
        self.lent.clear_marks();
        let mut index = 0;
        while let Some(slot) = self.lent.borrower(index) {
            self.keep_lent_of(slot, changing);
            index += 1;
        }
        self.lent.forget_idle();
    }

    /// Lets a connection send nothing of the frames that are about to change, and marks what it still sends from others.
    fn keep_lent_of(&mut self, slot: u32, changing: Span) {
        let Self { places, pool, lent, memory_limits, now, .. } = self;
        let Some(connection) = &mut places[slot as usize].client else { return };
        connection.keep_lent(changing, *now, |held, len| {
            let block = Pool::block_bytes(len)?;
            let admitted =
                memory_limits.may_copy(held, block, pool.taken()) && lent.may_copy(*now, len);
            admitted.then(|| pool.try_take(len)).flatten()
        });
        connection.lent_frames().for_each(|frames| lent.mark(frames));
        lent.note(slot, connection.lent() as u32);
    }

    /// A client, and the pool that its buffers are from.
    pub fn connection(&mut self, slot: u32) -> Option<(&mut ShardClient, &mut Pool)> {
        let client = self.places.get_mut(slot as usize)?.client.as_mut()?;
        Some((client, &mut self.pool))
    }

    /// The clients of all slots.
    pub fn clients(&self) -> impl Iterator<Item = &ShardClient> {
        self.places.iter().filter_map(|place| place.client.as_ref())
    }

    /// Whether completions of own flushes, answers to changes or notices wait to be passed on.
    pub fn has_news(&self) -> bool {
        !self.sets.is_empty()
            || !self.own_flushes.is_empty()
            || !self.notices.is_empty()
            || !self.device_states.is_empty()
    }

    /// Slots of all connections.
    pub fn slots(&self) -> impl Iterator<Item = u32> + use<> {
        0..self.places.len() as u32
    }

    /// Adds a connection to those that have something to send.
    pub fn list(&mut self, slot: u32) {
        let place = &mut self.places[slot as usize];
        if !std::mem::replace(&mut place.listed, true) {
            self.to_send.push(slot);
        }
    }

    /// Removes and returns the next connection that has something to send: those with small replies first, then, if
    /// `large`, those with large ones by turns.
    pub fn next_listed(&mut self, large: bool) -> Option<u32> {
        while let Some(slot) = self.to_send.pop() {
            let place = &mut self.places[slot as usize];
            let unsent = place.client.as_ref().map_or(0, |client| client.unsent());
            if unsent <= SMALL_REPLIES {
                place.listed = false;
                return Some(slot);
            }
            self.large_to_send.push_back(slot);
        }
        let slot = if large { self.large_to_send.pop_front()? } else { return None };
        self.places[slot as usize].listed = false;
        Some(slot)
    }

    /// Whether connections with large replies wait for their turn to send.
    pub fn has_large_to_send(&self) -> bool {
        !self.large_to_send.is_empty()
    }

    /// Records the memory of a foreign bio.
    pub fn keep_foreign(&mut self, message: &Message, span: Span) {
        if let Message::Bio { bio, .. } = *message {
            self.foreign.insert(bio.id, span);
        }
    }

    /// Records the memory of a bio that is neither a client's nor the cache's.
    pub fn insert_foreign(&mut self, bio: BioId, span: Span) {
        self.foreign.insert(bio, span);
    }

    /// Takes the completions of restoring writes.
    pub fn take_restored(&mut self) -> Vec<(BioId, Status)> {
        std::mem::take(&mut self.restored)
    }

    /// Number of foreign bios in this shard's devices.
    #[must_use]
    pub fn foreign(&self) -> usize {
        self.foreign.len()
    }

    /// Sends something to another shard at the end of the turn.
    pub fn post(&mut self, to: ShardId, envelope: Envelope) {
        if let Some(Some(peer)) = self.peers.get_mut(usize::from(to.0)) {
            peer.outbox.push(envelope);
        }
    }

    fn is_own(&self, id: BioId) -> bool {
        is_of_shard(id.connection, self.shard)
    }

    fn slot_of(&self, id: BioId) -> Option<u32> {
        let slot = slot_of(id.connection);
        let place = self.places.get(slot as usize)?;
        let client = place.client.as_ref()?;
        (client.id() == id.connection).then_some(slot)
    }
}

// SAFETY: a bio's buffer is its connection's until the last reply, or the sending shard's, which waits for `Done`; buffers,
// frames and the memory of other shards are different mappings, which outlive the shard.
unsafe impl ActionSink for ShardIo {
    const KEEPS_FRAMES: bool = true;
    const HAS_PIECES: bool = true;

    fn buffer(&mut self, bio: BioId) -> Span {
        if !self.is_own(bio) {
            return self.foreign.get(bio).unwrap_or(Span::EMPTY);
        }
        if let Some(unit) = bio.unit() {
            return self.frames().frames_from(unit);
        }
        let slot = self.slot_of(bio);
        let client = slot.and_then(|slot| self.places[slot as usize].client.as_mut());
        client.and_then(|client| client.buffer(bio.sequence)).unwrap_or(Span::EMPTY)
    }

    #[inline]
    fn pieces(&mut self, bio: BioId, (offset, len): (u32, u32), mut each: impl FnMut(Span)) {
        let slot = if self.is_own(bio) && bio.unit().is_none() { self.slot_of(bio) } else { None };
        let client = slot.and_then(|slot| self.places[slot as usize].client.as_mut());
        match client {
            Some(client) => client.pieces(bio.sequence, (offset, len), each),
            None => each(self.buffer(bio).part(offset as usize, len as usize)),
        }
    }

    fn frames(&self) -> Span {
        // SAFETY: the mapping lives as long as the shard, and does not grow.
        self.frames.as_ref().map_or(Span::EMPTY, |frames| unsafe { frames.span() })
    }

    fn reply(
        &mut self,
        id: BioId,
        status: Status,
        hole: bool,
        stage: ReplyStage,
        wait_times: WaitTimes,
    ) {
        if id.connection == OWN_FLUSHES {
            self.own_flushes.push((id, status));
            return;
        }
        if id.connection == RESTORES {
            self.foreign.remove(id);
            self.restored.push((id, status));
            return;
        }
        let Some(slot) = self.slot_of(id) else { return };
        let now = self.now;
        if let Some((connection, pool)) = self.connection(slot) {
            let answered = connection.reply(now, id.sequence, (status, hole, stage), pool);
            if let Some(answered) = answered {
                let wait_times = wait_times.with_front(answered.front);
                connection.count(&answered, wait_times);
                self.latency.record(now, (id.export, id.connection), &answered, wait_times);
            }
            self.list(slot);
        }
    }

    fn reply_frames(&mut self, id: BioId, frames: &[Span], wait_times: WaitTimes) {
        let Some(slot) = self.slot_of(id) else { return };
        let now = self.now;
        let Some((connection, _)) = self.connection(slot) else { return };
        if let Some(answered) = connection.reply_frames(now, id.sequence, frames) {
            let wait_times = wait_times.with_front(answered.front);
            connection.count(&answered, wait_times);
            self.latency.record(now, (id.export, id.connection), &answered, wait_times);
        }
        frames.iter().for_each(|&span| self.lent.mark(span));
        self.note_lent(slot);
        if self.lent.is_over_limit() {
            let all = self.frames();
            self.keep_lent_of(slot, all);
        }
        self.list(slot);
    }

    fn needs_buffer(&mut self, id: BioId, wait_times: WaitTimes) {
        let Some(slot) = self.slot_of(id) else { return };
        let now = self.now;
        if let Some((connection, _)) = self.connection(slot) {
            connection.needs_buffer(now, (id.sequence, wait_times));
            if self.returned.last() != Some(&slot) {
                self.returned.push(slot);
            }
        }
    }

    #[inline]
    fn before_change(&mut self, frames: Span) {
        if self.lent.may_have(frames) {
            self.keep_lent(frames);
        }
    }

    fn prepare(&mut self, frames: Span) {
        if let Some(populator) = &self.populator {
            populator.populate(frames);
        }
    }

    fn release(&mut self, frames: Span) {
        if let Some(mapping) = &self.frames {
            // SAFETY: frames that hold nothing, which no device or reply uses.
            unsafe { mapping.release(frames) };
        }
    }

    fn send(&mut self, to: ShardId, message: Message) {
        let span = match message {
            Message::Bio { bio, .. } if bio.op.buffer_len(bio.len) > 0 => self.buffer(bio.id),
            Message::Done { id, stage, .. } if stage != ReplyStage::Early => {
                self.foreign.remove(id);
                Span::EMPTY
            }
            _ => Span::EMPTY,
        };
        self.post(to, Envelope::Shard { message, span });
    }

    fn timer(&mut self, at: Instant) {
        self.timer = Some(at);
    }

    fn notice(&mut self, notice: Notice) {
        if let Notice::Set { token, status } = notice {
            self.sets.push((token, status));
        } else if let Notice::DeviceState { device, state } = notice {
            self.device_states.push((device, state));
        } else if self.notices.len() < NOTICES_MAX {
            self.notices.push(notice);
        } else {
            self.notices_lost += 1;
        }
    }
}
