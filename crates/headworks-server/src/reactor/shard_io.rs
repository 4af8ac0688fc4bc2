//! Where a shard's actions go in the server: its connections, its buffers, the rings to other shards.
//!
//! A connection's id says whose it is: shard (6 bits), generation (14), slot (12), so a reply for a connection that is gone
//! finds nobody, and a bio that another shard sent is told from one of our own. The bytes of a foreign bio are the sender's;
//! their span comes with the message and is kept until we say that the bio is done.

use std::collections::HashMap;

use headworks_core::{BioId, Instant, Message, Notice, ReplyStage, ShardId, Status, WaitTimes};

use crate::connection_id::{
    CONNECTIONS_MAX, OWN_FLUSHES, connection_id, is_of_shard, next_generation, slot_of,
};
use crate::latency::exports::ExportLatencies;
use crate::nbd::connection::Connection;
use headworks::driver::{ActionSink, Consumer, Mapping, Pool, Producer, Span};

/// What travels between shards: the message, and where the bytes of its bio lie.
#[derive(Clone, Copy, Debug)]
pub struct Envelope {
    /// For the shard.
    pub message: Message,
    /// For its executor.
    pub span: Span,
}

/// The way to another shard.
pub struct Peer {
    /// What goes there.
    pub producer: Producer<Envelope>,
    /// What comes from there.
    pub consumer: Consumer<Envelope>,
    /// Messages of this turn.
    pub outbox: Vec<Envelope>,
}

struct ConnectionSlot {
    generation: u32,
    connection: Option<Box<Connection>>,
    /// It is on the list of those that have something to send.
    listed: bool,
}

/// Everything outside of the shard and its devices.
pub struct ShardIo {
    shard: ShardId,
    places: Vec<ConnectionSlot>,
    free: Vec<u32>,
    /// The buffers of this shard's connections.
    pub pool: Pool,
    /// The frames of this shard's cache.
    pub frames: Option<Mapping>,
    /// Indexed by shard; none for ourselves.
    pub peers: Vec<Option<Peer>>,
    foreign: HashMap<BioId, Span>,
    /// The time of this turn: when what is answered now is answered.
    pub now: Instant,
    /// What clients waited for.
    pub latency: ExportLatencies,
    /// When the shard wants `Input::Timer`.
    pub timer: Option<Instant>,
    /// Connections that got replies and have not sent yet.
    pub to_send: Vec<u32>,
    /// Answers to our own flushes.
    pub own_flushes: Vec<(BioId, Status)>,
    /// Answers to switches, by token; as many as were asked for, so none is left out.
    pub sets: Vec<(u32, Status)>,
    /// What to tell the operator, bounded: a device that lies all the time does not fill the log.
    pub notices: Vec<Notice>,
    /// Notices that were left out.
    pub notices_lost: u64,
}

/// Notices kept per turn.
const NOTICES_MAX: usize = 16;

impl ShardIo {
    /// A desk for up to `connections` clients.
    #[must_use]
    pub fn new(
        shard: ShardId,
        connections: usize,
        pool: Pool,
        frames: Option<Mapping>,
        peers: Vec<Option<Peer>>,
    ) -> Self {
        let connections = connections.min(CONNECTIONS_MAX);
        let places = (0..connections)
            .map(|_| ConnectionSlot { generation: 0, connection: None, listed: false })
            .collect();
        Self {
            shard,
            places,
            free: (0..connections as u32).rev().collect(),
            pool,
            frames,
            foreign: HashMap::with_capacity(if peers.len() > 1 { 4096 } else { 0 }),
            peers,
            now: Instant(0),
            latency: ExportLatencies::default(),
            timer: None,
            to_send: Vec::with_capacity(connections),
            own_flushes: Vec::new(),
            sets: Vec::new(),
            notices: Vec::with_capacity(NOTICES_MAX),
            notices_lost: 0,
        }
    }

    /// How many connections there are, dead ones included.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Takes a connection in; gives it back when all places are taken.
    pub fn insert(&mut self, mut connection: Box<Connection>) -> Result<u32, Box<Connection>> {
        let Some(slot) = self.free.pop() else {
            return Err(connection);
        };
        let place = &mut self.places[slot as usize];
        place.generation = next_generation(place.generation);
        connection.set_id(connection_id(self.shard, place.generation, slot));
        place.connection = Some(connection);
        Ok(slot)
    }

    /// Takes a connection out.
    pub fn remove(&mut self, slot: u32) -> Option<Box<Connection>> {
        let connection = self.places[slot as usize].connection.take()?;
        if let Some((export, table)) = connection.latency() {
            self.latency.close(export, table);
        }
        self.free.push(slot);
        Some(connection)
    }

    /// A connection, and the pool that its buffers are from.
    pub fn connection(&mut self, slot: u32) -> Option<(&mut Connection, &mut Pool)> {
        let connection = self.places.get_mut(slot as usize)?.connection.as_deref_mut()?;
        Some((connection, &mut self.pool))
    }

    /// The slots of all connections.
    pub fn slots(&self) -> impl Iterator<Item = u32> + use<> {
        0..self.places.len() as u32
    }

    /// Puts a connection on the list of those that have something to send.
    pub fn list(&mut self, slot: u32) {
        let place = &mut self.places[slot as usize];
        if !std::mem::replace(&mut place.listed, true) {
            self.to_send.push(slot);
        }
    }

    /// Takes the next connection off that list.
    pub fn next_listed(&mut self) -> Option<u32> {
        let slot = self.to_send.pop()?;
        self.places[slot as usize].listed = false;
        Some(slot)
    }

    /// A bio came from another shard, with the place of its bytes.
    pub fn keep_foreign(&mut self, envelope: &Envelope) {
        if let Message::Bio { bio, .. } = envelope.message {
            self.foreign.insert(bio.id, envelope.span);
        }
    }

    /// Bios of other shards that are in our devices.
    #[must_use]
    pub fn foreign(&self) -> usize {
        self.foreign.len()
    }

    fn is_own(&self, id: BioId) -> bool {
        is_of_shard(id.connection, self.shard)
    }

    fn slot_of(&self, id: BioId) -> Option<u32> {
        let slot = slot_of(id.connection);
        let place = self.places.get(slot as usize)?;
        let connection = place.connection.as_ref()?;
        (connection.id() == id.connection).then_some(slot)
    }
}

// SAFETY: a bio's buffer is its connection's until the last reply, or the sending shard's, which waits for `Done`; buffers,
// frames and the memory of other shards are different mappings, which outlive the shard.
unsafe impl ActionSink for ShardIo {
    fn buffer(&mut self, bio: BioId) -> Span {
        if !self.is_own(bio) {
            return self.foreign.get(&bio).copied().unwrap_or(Span::EMPTY);
        }
        if let Some(unit) = bio.unit() {
            return self.frames().frames_from(unit);
        }
        let slot = self.slot_of(bio);
        let connection = slot.and_then(|slot| self.places[slot as usize].connection.as_mut());
        connection.and_then(|connection| connection.buffer(bio.sequence)).unwrap_or(Span::EMPTY)
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
        let Some(slot) = self.slot_of(id) else { return };
        let now = self.now;
        if let Some((connection, pool)) = self.connection(slot) {
            let answered = connection.reply(now, id.sequence, (status, hole, stage), pool);
            if let Some(answered) = answered {
                connection.count(&answered, wait_times);
                self.latency.record(now, (id.export, id.connection), &answered, wait_times);
            }
            self.list(slot);
        }
    }

    fn send(&mut self, to: ShardId, message: Message) {
        let span = match message {
            Message::Bio { bio, .. } if bio.op.buffer_len(bio.len) > 0 => self.buffer(bio.id),
            Message::Done { id, stage, .. } if stage != ReplyStage::Early => {
                self.foreign.remove(&id);
                Span::EMPTY
            }
            _ => Span::EMPTY,
        };
        if let Some(Some(peer)) = self.peers.get_mut(usize::from(to.0)) {
            peer.outbox.push(Envelope { message, span });
        }
    }

    fn timer(&mut self, at: Instant) {
        self.timer = Some(at);
    }

    fn notice(&mut self, notice: Notice) {
        if let Notice::Set { token, status } = notice {
            self.sets.push((token, status));
        } else if self.notices.len() < NOTICES_MAX {
            self.notices.push(notice);
        } else {
            self.notices_lost += 1;
        }
    }
}
