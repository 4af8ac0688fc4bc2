//! A simulated virtual machine and its front end: memory, rings, requests, and the messages by which it connects.
//!
//! The memory, the rings and the in-flight region outlive the server's process. A machine with a region goes on after a death or a
//! break of the connection: the next process answers what the last one had taken. Without one it starts again with empty rings, and
//! forgets its requests. A hostile machine breaks the rules of a ring now and then, and starts again later.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use headworks_core::Instant;
use headworks_core::prng::Prng;
use headworks_core::time::{MS, US};
use headworks_vhost::features::{self, protocol};
use headworks_vhost::notify::Wish;
use headworks_vhost::wire::request as message;
use headworks_vhost::wire::{InFlightDescription, Message, RegionDescription, RingAddresses};
use headworks_vhost::{RequestOp, WRITEBACK_AT};

use super::client::ClientScenario;
use super::content::{SECTOR, WriteId};
use super::machine_memory::MachineMemory;
use super::machine_queue::{
    Kind, MachineAnswer, MachineQueue, MachineRequest, PAGE, PHYSICAL, RingPlaces, VIRTUAL, event,
    segments,
};

/// Most bytes of a request.
const LARGEST: u32 = 64 << 10;
/// So many times the requests of a connection: most are small and soon answered.
const REQUESTS: u64 = 4;
/// Time between two breaks of the rules.
const PEACE: u64 = 500 * MS;
/// How long a machine that broke the rules runs on.
const MADNESS: u64 = 60 * MS;

/// A message of the front end: number, body, descriptors.
pub type FrontEndMessage = (u32, Vec<u8>, Vec<OwnedFd>);

/// A virtual machine with its disk's rings.
#[derive(Debug)]
pub struct Machine {
    prng: Prng,
    memory: MachineMemory,
    /// The memory is two regions that meet here; 0: one.
    split: usize,
    pub queues: Vec<MachineQueue>,
    features: u64,
    pub read_only: bool,
    /// Writes are answered when they are durable.
    writes_through: bool,
    /// The server and the machine track what is in flight.
    pub has_region: bool,
    region: Option<(InFlightDescription, MachineMemory)>,
    is_hostile: bool,
    /// When it breaks the rules next.
    breaks_at: Option<Instant>,
    /// It has broken the rules, and starts again then.
    pub mad_until: Option<Instant>,
    depth: usize,
    largest: u32,
    /// Requests that it is still to make.
    left: u32,
    /// A request for which no ring had room.
    refused: Option<MachineRequest>,
    next_request: Instant,
}

impl Machine {
    /// Draws a machine, its rings and what it may do.
    pub fn draw(mut prng: Prng, now: Instant, scenario: &ClientScenario) -> std::io::Result<Self> {
        let count = prng.between(1, 4) as u16;
        let largest = LARGEST.min(scenario.largest) >> prng.below(3);
        let largest = largest.max(SECTOR as u32);
        let sizes: Vec<u16> =
            (0..count).map(|_| [4, 8, 16, 64, 256][prng.below(5) as usize]).collect();
        let depths: Vec<u16> = sizes.iter().map(|_| prng.between(1, 8) as u16).collect();
        let mut features = features::VERSION_1 | features::PROTOCOL_FEATURES | features::MQ;
        let optional = [
            features::FLUSH,
            features::FLUSH,
            features::CONFIG_WCE,
            features::DISCARD,
            features::WRITE_ZEROES,
            features::INDIRECT,
            features::EVENT_IDX,
        ];
        for bit in optional {
            features |= if prng.below(2) == 0 { 0 } else { bit };
        }
        let read_only = prng.below(8) == 0;
        if read_only {
            features |= features::RO;
            features &= !(features::DISCARD | features::WRITE_ZEROES);
        }
        let is_hostile = prng.below(4) == 0;
        let (places, split, len) = lay_out(&mut prng, &sizes, &depths, largest);
        let memory = MachineMemory::new(len)?;
        let wish = if features & features::EVENT_IDX == 0 { Wish::Flags } else { Wish::EventIndex };
        let mut queues = Vec::new();
        for (index, place) in places.into_iter().enumerate() {
            let how = (wish, features & features::INDIRECT != 0, prng.below(3) == 0);
            let numbers = (index as u16, sizes[index], depths[index]);
            queues.push(MachineQueue::new(numbers, place, how)?);
        }
        Ok(Self {
            memory,
            split,
            queues,
            features,
            read_only,
            writes_through: prng.below(2) == 0,
            has_region: prng.below(4) > 0,
            region: None,
            is_hostile,
            breaks_at: is_hostile.then(|| now.after(prng.below(PEACE))),
            mad_until: None,
            depth: prng.between(1, scenario.depth.max(8)) as usize,
            largest,
            left: prng.between(1, REQUESTS * u64::from(scenario.requests)) as u32,
            refused: None,
            next_request: now.after(prng.below(50 * MS)),
            prng,
        })
    }

    /// Whether writes have to be durable when they are answered: the rule of the virtio specification.
    pub fn needs_fua(&self) -> bool {
        let has = |bits| self.features & bits != 0;
        !has(features::FLUSH) || has(features::CONFIG_WCE) && self.writes_through
    }

    /// Requests that were given and not answered.
    pub fn in_flight(&self) -> usize {
        self.queues.iter().map(|queue| queue.asked.len()).sum()
    }

    /// A request that waits for its answer, in words; none if none does.
    pub fn left_over(&self) -> Option<String> {
        let in_rings = self.queues.iter().find_map(|queue| {
            let (head, asked) = queue.asked.first_key_value()?;
            Some(format!("head {head} of ring {}: {asked:?}", queue.index))
        });
        in_rings.or_else(|| Some(format!("in no ring: {:?}", self.refused.as_ref()?)))
    }

    /// Whether it has nothing more to do.
    pub fn is_done(&self) -> bool {
        let has_more = self.left > 0 || self.refused.is_some() || self.mad_until.is_some();
        !has_more && self.in_flight() == 0
    }

    /// The end of the world is near: it makes few more requests, and breaks no rule.
    pub fn hurry(&mut self, now: Instant) {
        self.left = self.left.min(3);
        self.is_hostile = false;
        self.breaks_at = None;
        self.mad_until = self.mad_until.map(|_| now);
        self.next_request = now;
    }

    /// When it does something by itself.
    pub fn next_instant(&self) -> Option<Instant> {
        let more = self.left > 0 && self.in_flight() < self.depth;
        let all = [more.then_some(self.next_request), self.breaks_at, self.mad_until];
        all.into_iter().flatten().min()
    }

    /// Puts requests into its rings as far as its depth and the rings go; `ids` counts writes. Calls `new` with each; returns whether the
    /// device was shown something.
    pub fn prepare(
        &mut self,
        now: Instant,
        (ids, size): (&mut WriteId, u64),
        mut new: impl FnMut(&MachineRequest),
    ) -> bool {
        if self.mad_until.is_some() {
            return false;
        }
        while self.in_flight() < self.depth && self.next_request <= now {
            let asked = match self.refused.take() {
                Some(asked) => asked,
                None if self.left == 0 => break,
                None => {
                    self.left -= 1;
                    let asked = self.draw_request(now, ids, size);
                    new(&asked);
                    asked
                }
            };
            let nth = self.prng.below(self.queues.len() as u64) as usize;
            if !self.queues[nth].put(&mut self.prng, &self.memory, &asked) {
                self.refused = Some(asked);
                break;
            }
            if self.prng.below(4) == 0 {
                self.next_request = now.after(self.prng.below(20 * MS) + US);
            }
        }
        let Self { queues, memory, .. } = self;
        queues.iter_mut().fold(false, |any, queue| any | queue.submit(memory))
    }

    fn draw_request(&mut self, now: Instant, ids: &mut WriteId, size: u64) -> MachineRequest {
        let (sector, prng) = (SECTOR as u64, &mut self.prng);
        let has = |bits| self.features & bits != 0;
        let sectors = u64::from(self.largest) / sector;
        let most = if prng.below(4) == 0 { sectors } else { sectors.min(16) };
        let mut range = || {
            let len = prng.between(1, most) * sector;
            (prng.below((size - len) / sector + 1) * sector, len as u32)
        };
        let one = range();
        let several: Vec<_> = std::iter::repeat_with(&mut range).take(4).collect();
        let count = segments(prng).min(4) as usize;
        let (kind, parts) = match prng.below(100) {
            0..45 => (Kind::Disk(RequestOp::Read), vec![one]),
            45..85 => (Kind::Disk(RequestOp::Write), vec![one]),
            85..90 => (Kind::Disk(RequestOp::Flush), vec![(0, 0)]),
            90..94 if has(features::DISCARD) => {
                (Kind::Disk(RequestOp::Discard), several[..count].to_vec())
            }
            94..97 if has(features::WRITE_ZEROES) => {
                (Kind::Disk(RequestOp::WriteZeroes), several[..count].to_vec())
            }
            97 => (Kind::Unknown, Vec::new()),
            _ => (Kind::Name, Vec::new()),
        };
        let mut asked = MachineRequest::new(kind, &parts, now);
        let changes = !matches!(kind, Kind::Disk(RequestOp::Read | RequestOp::Flush) | Kind::Name);
        asked.is_bad = kind == Kind::Unknown || self.read_only && changes;
        let is_ranged = parts.iter().any(|part| part.1 > 0);
        if is_ranged && prng.below(40) == 0 {
            asked.is_bad = true;
            asked.parts[0].offset = size - u64::from(asked.parts[0].len) / 2 / sector * sector;
        } else if kind == Kind::Disk(RequestOp::WriteZeroes) {
            asked.segment_flags = prng.below(2) as u32;
        }
        if kind == Kind::Disk(RequestOp::Write) {
            asked.id = *ids;
            *ids += 1;
        }
        asked
    }

    /// Takes the answers that it knows of.
    ///
    /// # Errors
    /// A head is answered that was not given, or a second time.
    pub fn reap(&mut self) -> Result<Vec<MachineAnswer>, String> {
        let Self { queues, memory, .. } = self;
        let mut answers = Vec::new();
        for queue in queues {
            match queue.reap(memory) {
                Ok(more) => answers.extend(more),
                // What it is answered is its own fault.
                Err(_) if self.mad_until.is_some() => {}
                Err(rule) => return Err(rule),
            }
        }
        if self.mad_until.is_some() {
            answers.clear();
        }
        Ok(answers)
    }

    /// Breaks the rules of a ring if it is time; returns how.
    pub fn break_rules(&mut self, now: Instant) -> Option<&'static str> {
        self.breaks_at.filter(|at| *at <= now)?;
        let Self { queues, memory, prng, .. } = self;
        let nth = prng.below(queues.len() as u64) as usize;
        let broken = queues[nth].break_rules(prng, memory);
        self.breaks_at = None;
        match broken {
            Some(_) => self.mad_until = Some(now.after(self.prng.below(MADNESS) + MS)),
            None => self.breaks_at = Some(now.after(self.prng.below(PEACE) + MS)),
        }
        broken
    }

    /// The server's process has died.
    pub fn on_death(&mut self, now: Instant) {
        self.queues.iter().for_each(MachineQueue::forget_signals);
        self.on_break(now);
    }

    /// The connection has ended with requests in flight.
    pub fn on_break(&mut self, now: Instant) {
        if !self.has_region || self.mad_until.is_some() {
            self.start_again(now);
        }
    }

    /// The machine starts again: rings are empty, and what was asked is forgotten.
    fn start_again(&mut self, now: Instant) {
        for queue in &mut self.queues {
            queue.reset(&self.memory);
            queue.forget_signals();
        }
        (self.region, self.mad_until) = (None, None);
        self.breaks_at = self.is_hostile.then(|| now.after(self.prng.below(PEACE) + MS));
    }

    /// Indices of the rings that the device has published.
    pub fn used_indices(&self) -> Vec<u16> {
        self.queues.iter().map(|queue| queue.used_index(&self.memory)).collect()
    }

    /// A ring that has answers of which the machine was not notified, and wants to be.
    pub fn unnoticed(&self) -> Option<u16> {
        let queue = self.queues.iter().find(|queue| !queue.is_noticed(&self.memory))?;
        Some(queue.index)
    }

    /// Heads that the in-flight region says are taken; none without a region.
    pub fn taken_in_region(&self) -> Option<usize> {
        let (about, region) = self.region.as_ref()?;
        let area = (16 + 16 * usize::from(about.queue_size)).next_multiple_of(64);
        let of_queue = |queue: &MachineQueue| {
            let entries = (0..usize::from(queue.size)).map(move |head| 16 + 16 * head);
            let base = area * usize::from(queue.index);
            let is_taken = |at: &usize| region.word(base + at).load(Ordering::Relaxed) & 0xff == 1;
            entries.filter(is_taken).count()
        };
        Some(self.queues.iter().map(of_queue).sum())
    }

    // Messages.

    /// Everything by which it connects.
    pub fn connect(&mut self) -> std::io::Result<Vec<FrontEndMessage>> {
        let integer = |value: u64| value.to_le_bytes().to_vec();
        let (mut wanted, has_wce) =
            (protocol::MQ | protocol::REPLY_ACK | protocol::CONFIG, features::CONFIG_WCE);
        wanted |= if self.has_region { protocol::INFLIGHT_SHMFD } else { 0 };
        let mut orders = vec![
            (message::SET_OWNER, Vec::new(), Vec::new()),
            (message::SET_PROTOCOL_FEATURES, integer(wanted), Vec::new()),
            (message::SET_FEATURES, integer(self.features), Vec::new()),
        ];
        if self.features & has_wce != 0 {
            let mut body = [WRITEBACK_AT, 1, 0].map(u32::to_le_bytes).concat();
            body.push(u8::from(!self.writes_through));
            orders.push((message::SET_CONFIG, body, Vec::new()));
        }
        match &self.region {
            Some((about, region)) => {
                orders.push((message::SET_INFLIGHT_FD, about.bytes(), vec![region.fd()?]));
            }
            None if self.has_region => {
                let queue_size = self.queues.iter().map(|queue| queue.size).max().unwrap_or(2);
                let queues = self.queues.len() as u16;
                let about = InFlightDescription { queues, queue_size, ..Default::default() };
                orders.push((message::GET_INFLIGHT_FD, about.bytes(), Vec::new()));
            }
            None => {}
        }
        orders.push(self.table()?);
        let bases = self.used_indices();
        for (index, base) in bases.into_iter().enumerate() {
            orders.extend(self.start(index, base)?);
        }
        Ok(orders)
    }

    /// The table of its memory.
    pub fn table(&self) -> std::io::Result<FrontEndMessage> {
        let (len, split) = (self.memory.len(), self.split);
        let ends = if split == 0 { vec![(0, len)] } else { vec![(0, split), (split, len)] };
        let mut body = (ends.len() as u64).to_le_bytes().to_vec();
        let mut fds = Vec::new();
        for (begin, end) in ends {
            let (at, size) = (begin as u64, (end - begin) as u64);
            let (guest, user) = (PHYSICAL + at, VIRTUAL + at);
            body.extend(RegionDescription { guest, size, user, file_offset: at }.bytes());
            fds.push(self.memory.fd()?);
        }
        Ok((message::SET_MEM_TABLE, body, fds))
    }

    /// The messages that start a ring.
    pub fn start(&mut self, index: usize, base: u16) -> std::io::Result<Vec<FrontEndMessage>> {
        let queue = &self.queues[index];
        let at = |place: usize| VIRTUAL + place as u64;
        let addresses = RingAddresses {
            descriptors: at(queue.places.descriptors),
            used: at(queue.places.used),
            available: at(queue.places.available),
            log: None,
        };
        let (kick, call) = (queue.kick.try_clone()?, queue.call.try_clone()?);
        let (number, name) = (u32::from(queue.index), (index as u64).to_le_bytes().to_vec());
        let enable = (message::SET_VRING_ENABLE, pair(number, 1), Vec::new());
        let kick = (message::SET_VRING_KICK, name.clone(), vec![kick]);
        let mut orders = vec![
            (message::SET_VRING_NUM, pair(number, u32::from(queue.size)), Vec::new()),
            (message::SET_VRING_BASE, pair(number, u32::from(base)), Vec::new()),
            (message::SET_VRING_ADDR, addresses.bytes(number), Vec::new()),
            (message::SET_VRING_CALL, name, vec![call]),
        ];
        orders.extend(if self.prng.below(2) == 0 { [enable, kick] } else { [kick, enable] });
        Ok(orders)
    }

    /// What a front end may do while requests are in flight: new memory, new descriptors, rings that stop for a while.
    pub fn disturb(&mut self) -> std::io::Result<Vec<FrontEndMessage>> {
        let index = self.prng.below(self.queues.len() as u64) as usize;
        let number = index as u32;
        let name = u64::from(number).to_le_bytes().to_vec();
        Ok(match self.prng.below(4) {
            0 => vec![self.table()?],
            1 => {
                let enable = |value| (message::SET_VRING_ENABLE, pair(number, value), Vec::new());
                vec![enable(0), enable(1)]
            }
            2 => {
                let queue = &mut self.queues[index];
                // What was kicked by the old one counts.
                (queue.kick, queue.call) = (event()?, event()?);
                let (kick, call) = (queue.kick.try_clone()?, queue.call.try_clone()?);
                vec![
                    (message::SET_VRING_KICK, name.clone(), vec![kick]),
                    (message::SET_VRING_CALL, name, vec![call]),
                ]
            }
            _ => vec![(message::GET_VRING_BASE, pair(number, 0), Vec::new())],
        })
    }

    /// Takes the answer to a message; returns what follows from it.
    ///
    /// # Errors
    /// It is not what the front end expects.
    pub fn on_reply(&mut self, reply: Message) -> Result<Vec<FrontEndMessage>, String> {
        let failed = |error: std::io::Error| format!("no descriptor: {error}");
        let (request, body) = (reply.header.request, &reply.body);
        match (request, reply.fds.into_iter().next()) {
            (message::GET_INFLIGHT_FD, Some(fd)) if body.len() == InFlightDescription::BYTES => {
                let (size, queues) = (u64_at(body, 0), u64_at(body, 16));
                let about = InFlightDescription {
                    size,
                    offset: u64_at(body, 8),
                    queues: queues as u16,
                    queue_size: (queues >> 16) as u16,
                };
                let region = MachineMemory::of(fd, size as usize).map_err(failed)?;
                self.region = Some((about, region));
                Ok(Vec::new())
            }
            (message::GET_VRING_BASE, None) if body.len() == 8 => {
                let state = u64_at(body, 0);
                let (index, base) = (state as u32 as usize, (state >> 32) as u16);
                let used = self.queues[index].used_index(&self.memory);
                if base != used && self.mad_until.is_none() {
                    return Err(format!("ring {index} stops at {base}, and has answered {used}"));
                }
                self.start(index, base).map_err(failed)
            }
            (_, None) if body.len() == 8 && u64_at(body, 0) == 0 => Ok(Vec::new()),
            _ => Err(format!("message {request} is answered by {body:02x?}")),
        }
    }
}

fn u64_at(body: &[u8], at: usize) -> u64 {
    body[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

fn pair(index: u32, value: u32) -> Vec<u8> {
    [index, value].map(u32::to_le_bytes).concat()
}

/// Places of the queues, where the memory is split into two regions, and its length: rings first, then slots, then data.
fn lay_out(
    prng: &mut Prng,
    sizes: &[u16],
    depths: &[u16],
    largest: u32,
) -> (Vec<RingPlaces>, usize, usize) {
    let data_bytes = RingPlaces::data_bytes(largest);
    let (mut places, mut end) = (Vec::new(), 0);
    for &size in sizes {
        let [descriptors, available, used] = RingPlaces::ring_bytes(size);
        let place = RingPlaces {
            descriptors: end,
            available: end + descriptors,
            used: end + descriptors + available,
            data_bytes,
            ..RingPlaces::default()
        };
        end += descriptors + available + used;
        places.push(place);
    }
    for (place, &depth) in places.iter_mut().zip(depths) {
        place.slots = end;
        end += PAGE * usize::from(depth);
    }
    let data = end;
    for (place, &depth) in places.iter_mut().zip(depths) {
        place.data = end;
        end += data_bytes * usize::from(depth);
    }
    // A piece of data may lie across the border of two regions; a ring and a table of descriptors may not.
    let pages = (end - data) / PAGE;
    let split =
        if prng.below(2) == 0 { 0 } else { data + PAGE * prng.below(pages as u64) as usize };
    (places, split, end)
}
