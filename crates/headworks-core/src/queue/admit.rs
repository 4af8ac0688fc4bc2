//! Admission: what a request asks for, who gets tags, and the cutting of bios over the limits.
//!
//! A request asks for one tag, a bio over the limits for as many as its pieces may use at once; whose turn it is says the tag
//! policy. What is granted counts against the bytes that may be in flight. A split bio's pieces are made as tags come: with
//! `fair` all at once and each finished one hands its tag to the next, with the baselines one for each grant.
//!
//! Invariants: `admitted_bytes` is the sum of what every admitted request is charged, given-up ones left out; a split request
//! ends when no piece is out and no tag is owed to it.

use super::{Pools, Queue};
use crate::bio::{ExportId, Op};
use crate::merge::Limits;
use crate::options::{ExportConfig, QueueOptions, ShardConfig};
use crate::request::{Request, RequestStart, SlotId, State};
use crate::slab::NIL;
use crate::tags::{self, ByteBudget, Grant, Requester, TagRequest};
use crate::time::Instant;

impl Queue {
    /// Hands freed tags to those whose turn it is.
    pub(super) fn grant(&mut self, now: Instant, pools: &mut Pools) {
        loop {
            if self.freed.count > 0 {
                self.tags.put(now, std::mem::take(&mut self.freed));
            }
            let room = if self.is_full() { ByteBudget::LightOnly } else { ByteBudget::Available };
            let Some(Grant { requester, tags }) = self.tags.next_grant(now, room) else {
                break;
            };
            match requester {
                Requester::Request(id) => {
                    self.index.remove(&mut pools.slots, id);
                    self.tags.charge_growth(cost_bytes(pools.slots[id].op, pools.slots[id].len));
                    self.admit(now, pools, id, tags);
                }
                Requester::Shard(shard) => self.lend(pools, shard, tags),
            }
        }
    }

    /// What a request asks for: one tag, or for a bio over the limits as many as it has pieces, but never so many that the line
    /// would wait for a nearly empty device, and no more bytes at once than half of what is admitted.
    pub(super) fn ask_of(&self, pools: &mut Pools, id: SlotId) -> TagRequest {
        let request = &pools.slots[id];
        let mut want = 1;
        if self.must_split(request) {
            let piece = self.limits.piece(self.block_size(request));
            let by_bytes = (self.inflight_max / 2 / u64::from(piece)).clamp(1, u16::MAX.into());
            let pieces = request.len.div_ceil(piece);
            let pieces = if self.tags.reuses_tags() { pieces.min(by_bytes as u32) } else { pieces };
            want = self.tags.tags_for(pieces);
        }
        let (bytes, sync) = (cost_bytes(request.op, request.len), request.is_sync());
        let from = pools.bios[request.bio_head].bio.id;
        pools.slots[id].owed = want;
        TagRequest {
            requester: Requester::Request(id),
            tags: want,
            bytes,
            sync,
            connection: from.connection,
            export: from.export,
            weight: self.weights.of(from.export),
        }
    }

    /// An export's share changes; what waits already keeps the old one.
    pub fn set_weight(&mut self, export: ExportId, weight: u16) {
        self.weights.set(export, weight);
    }

    /// How many of the asks, from the front, the bytes in flight leave room for.
    pub(super) fn most_by_bytes(&self) -> usize {
        if self.inflight_max == u64::MAX {
            return self.asks.len();
        }
        let mut room = self.inflight_max.saturating_sub(self.admitted_bytes);
        let fits = self.asks.iter().take_while(|ask| {
            let fits = room > 0;
            room = room.saturating_sub(ask.bytes.into());
            fits
        });
        fits.count()
    }

    pub(super) fn must_split(&self, request: &Request) -> bool {
        let limits = &self.limits;
        request.op.has_data()
            && request.parent == NIL
            && (request.len > limits.max_bytes || request.segments > limits.max_segments)
    }

    /// The request has its tags, or the next of them.
    pub(super) fn admit(&mut self, now: Instant, pools: &mut Pools, id: SlotId, tags: u16) {
        if pools.slots[id].state != State::Split {
            pools.slots[id].stamps[2] = now;
            if !self.must_split(&pools.slots[id]) {
                pools.slots[id].state = State::Queued;
                self.charge(pools, id, cost_bytes(pools.slots[id].op, pools.slots[id].len));
                self.ready.push(id);
                return;
            }
            pools.slots[id].state = State::Split;
        }
        pools.slots[id].owed = pools.slots[id].owed.saturating_sub(tags);
        for _ in 0..tags {
            self.spawn_piece(pools, id);
        }
        self.end_split(now, pools, id);
    }

    /// No more bytes are admitted now.
    pub(super) fn is_full(&self) -> bool {
        self.admitted_bytes >= self.inflight_max
    }

    /// The request counts for so many bytes more.
    #[inline]
    pub(super) fn charge(&mut self, pools: &mut Pools, id: SlotId, bytes: u32) {
        if self.inflight_max < u64::MAX {
            pools.slots[id].charged += bytes;
            self.admitted_bytes += u64::from(bytes);
        }
    }

    /// The next piece of a split request goes its way; it uses one of the tags that the split request was granted.
    pub(super) fn spawn_piece(&mut self, pools: &mut Pools, parent: SlotId) {
        let from = &pools.slots[parent];
        if from.done == from.len {
            // Fewer pieces than tags: the tag is not needed.
            if !from.is(Request::LEASED) {
                self.put_tag(from.is_sync());
            }
            return;
        }
        let limit = self.limits.piece(self.block_size(from));
        let id = pools.slots.try_take().expect("there are slots for every bio and every tag");
        let piece = RequestStart::of_piece(&pools.slots[parent], parent, limit, &self.limits);
        let len = piece.len;
        let from = &mut pools.slots[parent];
        from.done += len;
        from.pieces += 1;
        pools.slots[id].begin(piece);
        self.charge(pools, id, len);
        self.ready.push(id);
    }
}

pub(super) fn inflight_max(options: &QueueOptions) -> u64 {
    match options.hw_inflight_kb {
        0 => u64::MAX,
        kb => u64::from(kb) * 1024,
    }
}

/// The weights of a shard's exports.
#[derive(Debug)]
pub(crate) struct Weights(Vec<u16>);

impl Weights {
    pub fn new(config: &ShardConfig) -> Self {
        Self(config.exports.iter().map(|export| export.weight).collect())
    }

    pub fn of(&self, export: ExportId) -> u16 {
        self.0.get(usize::from(export.0)).copied().unwrap_or(ExportConfig::default().weight)
    }

    pub fn set(&mut self, export: ExportId, weight: u16) {
        if let Some(known) = self.0.get_mut(usize::from(export.0)) {
            *known = weight;
        }
    }
}

/// What a wish counts for against the share of who has it. A discard or zeroing moves nothing: whatever its length it counts
/// as one large read, and would else wait for thousands of turns.
pub(crate) fn cost_bytes(op: Op, len: u32) -> u32 {
    match op {
        Op::Read | Op::Write => len,
        // However long the range: it costs the device about what the smallest read does.
        Op::BlockStatus => 4096,
        Op::Flush | Op::Discard | Op::WriteZeroes | Op::Prefetch => len.min(128 << 10),
    }
}

/// How many tags a data bio of `len` bytes asks for: its pieces, bounded by what `nr_requests` serve.
pub(crate) fn pieces(limits: &Limits, block_size: u32, len: u32, nr_requests: u32) -> u16 {
    let pieces = len.div_ceil(limits.piece(block_size)).max(1);
    pieces.min(u32::from(tags::max_request_tags(nr_requests))) as u16
}
