//! The control side of a device: the messages of a front end, without I/O.
//!
//! ```text
//!   Message --> Session::on_message --> Step::Reply(message)            send it
//!                                  --> Step::Order(order)              give it to the device ..
//!                                        Session::on_answer <-- Answer   .. whose answer may be a reply
//!                                  --> Step::Done                      nothing to send
//! ```
//!
//! At most one order is outstanding; the next message is read after its answer. A refused message is answered with a value that is not
//! zero if the front end asked for an acknowledgement, else the connection ends. Descriptors of refused messages are closed.
//!
//! | state | refused in it |
//! |---|---|
//! | no features yet | KICK, which starts a ring |
//! | ring not started | GET_VRING_BASE answers the base that was set |
//! | ring started | NUM, BASE, an in-flight region; features other than LOG_ALL |

use std::marker::PhantomData;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use crate::config_space::{CONFIG_BYTES, Disk, SEGMENTS_MAX, WRITEBACK_AT};
use crate::device::{Answer, Order};
use crate::event::{CallFd, EventFd, Notifier};
use crate::features::{self, Features, protocol};
use crate::in_flight::InFlightRegion;
use crate::log::DirtyLog;
use crate::memory::{GuestMemory, REGIONS_MAX};
use crate::observer::{NoObserver, StoreObserver};
use crate::ring::{Ring, RingStart};
use crate::wire::request as message;
use crate::wire::{
    ADDRESSES_BYTES, BACKEND_CONFIG_CHANGE, InFlightDescription, Message, RegionDescription,
    RingAddresses, u32_at, u64_at,
};
use crate::{QUEUE_SIZE_MAX, QUEUES_MAX};

/// Most regions of SET_MEM_TABLE.
const TABLE_REGIONS_MAX: usize = 8;
/// Bit of KICK, CALL and ERR: there is no descriptor.
const NO_FD: u64 = 1 << 8;

/// What a device offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The disk that is offered.
    pub disk: Disk,
    /// Number of queues, 1 to [`QUEUES_MAX`].
    pub queues: u16,
    /// Requests in flight survive the process: only where its death loses no acknowledged write.
    pub has_in_flight: bool,
}

/// What follows from a message.
#[derive(Debug)]
pub enum Step<O: StoreObserver = NoObserver> {
    /// Nothing is sent.
    Done,
    /// The message is the answer.
    Reply(Message),
    /// The device carries this out; [`Session::on_answer`] takes its answer.
    Order(Order<O>),
}

/// A ring as the front end describes it before it starts.
#[derive(Debug, Default)]
struct RingConfig {
    num: u16,
    base: u16,
    addresses: Option<RingAddresses>,
    is_enabled: bool,
    is_started: bool,
    call: Option<CallFd>,
    error: Option<CallFd>,
}

/// What the answer to the outstanding order becomes.
#[derive(Debug)]
struct Awaited {
    request: u32,
    needs_reply: bool,
    /// A ring that this order starts or stops.
    effect: Effect,
}

#[derive(Debug)]
enum Effect {
    None,
    Started(usize),
    Memory(Arc<GuestMemory>),
    Reset,
    Stopped(usize),
}

/// The control side of one connection.
#[derive(Debug)]
pub struct Session<O: StoreObserver = NoObserver> {
    offer: Offer,
    notifier: Arc<Notifier>,
    features: Option<u64>,
    protocol: u64,
    memory: Arc<GuestMemory>,
    rings: Vec<RingConfig>,
    in_flight: Option<Arc<InFlightRegion>>,
    is_writeback: bool,
    backend: Option<OwnedFd>,
    awaited: Option<Awaited>,
    observer: PhantomData<O>,
}

/// A refusal: a sentence.
type Refused = String;

impl Session {
    /// The session of a new connection, whose front end is signalled by `notifier`.
    ///
    /// # Panics
    /// If the offer has no queue or too many.
    #[must_use]
    pub fn new(offer: Offer, notifier: Arc<Notifier>) -> Self {
        Self::observed(offer, notifier)
    }
}

impl<O: StoreObserver> Session<O> {
    /// As [`Session::new`], for a device whose observer is told of its stores.
    ///
    /// # Panics
    /// If the offer has no queue or too many.
    #[must_use]
    pub fn observed(offer: Offer, notifier: Arc<Notifier>) -> Self {
        assert!((1..=QUEUES_MAX).contains(&offer.queues), "1 to 64 queues");
        Self {
            offer,
            notifier,
            features: None,
            protocol: 0,
            memory: Arc::default(),
            rings: (0..offer.queues).map(|_| RingConfig::default()).collect(),
            in_flight: None,
            is_writeback: true,
            backend: None,
            awaited: None,
            observer: PhantomData,
        }
    }

    /// Whether the answer to an order is outstanding, so that no message may be read.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.awaited.is_some()
    }

    /// Changes the disk that is offered; the configuration space has it from now on. A message that says so to the front end, with the
    /// socket on which it is sent, if the front end has given one.
    pub fn set_disk(&mut self, disk: Disk) -> Option<(RawFd, Message)> {
        self.offer.disk = disk;
        let notice = Message::request(BACKEND_CONFIG_CHANGE, Vec::new(), Vec::new(), false);
        Some((self.backend.as_ref()?.as_raw_fd(), notice))
    }

    /// What follows from a message. The error is a sentence; the connection ends.
    ///
    /// # Panics
    /// If the answer to an order is outstanding.
    pub fn on_message(&mut self, message: Message) -> Result<Step<O>, String> {
        assert!(self.awaited.is_none(), "a message is read after the answer to the last order");
        let (request, asks) = (message.header.request, message.header.needs_reply());
        if message.header.is_reply() {
            return Err(format!("message {request} is a reply to nothing"));
        }
        let taken = self.dispatch(message);
        // SET_PROTOCOL_FEATURES itself may have negotiated acknowledgements.
        let needs_reply = asks && self.protocol & protocol::REPLY_ACK != 0;
        match taken {
            Ok(Done::Reply(reply)) => Ok(Step::Reply(reply)),
            Ok(Done::Quiet) if needs_reply => Ok(Step::Reply(Message::reply_u64(request, 0))),
            Ok(Done::Quiet) => Ok(Step::Done),
            Ok(Done::Order(order, effect)) => {
                self.awaited = Some(Awaited { request, needs_reply, effect });
                Ok(Step::Order(order))
            }
            // An acknowledgement has room for a value, other answers have none for a refusal.
            Err(_) if needs_reply && !has_reply(request) => {
                Ok(Step::Reply(Message::reply_u64(request, 1)))
            }
            Err(sentence) => Err(format!("vhost-user message {request}: {sentence}")),
        }
    }

    /// The device has carried out the outstanding order, or refused it. The reply, if the front end wants one; the error is a sentence and
    /// ends the connection. What the order replaced is dropped here.
    ///
    /// # Panics
    /// If no order is outstanding.
    pub fn on_answer(&mut self, answer: Answer<O>) -> Result<Option<Message>, String> {
        let awaited = self.awaited.take().expect("an answer belongs to an order");
        let Awaited { request, needs_reply, effect } = awaited;
        let base = match answer {
            Answer::Refused(sentence, _) if needs_reply && !has_reply(request) => {
                drop(sentence);
                return Ok(Some(Message::reply_u64(request, 1)));
            }
            Answer::Refused(sentence, _) => {
                return Err(format!("vhost-user message {request}: {sentence}"));
            }
            Answer::Stopped { base, .. } => base,
            Answer::Done(_) => 0,
        };
        match effect {
            Effect::None => {}
            Effect::Memory(memory) => self.memory = memory,
            Effect::Started(queue) => self.rings[queue].is_started = true,
            Effect::Reset => self.forget(),
            Effect::Stopped(queue) => {
                let ring = &mut self.rings[queue];
                (ring.is_started, ring.base) = (false, base);
                return Ok(Some(ring_state(request, queue as u32, base)));
            }
        }
        Ok(match request {
            // QEMU waits for an answer to this one, whether or not it asked for it.
            message::SET_LOG_BASE if self.protocol & protocol::LOG_SHMFD != 0 => {
                Some(Message::reply_u64(request, 0))
            }
            _ => needs_reply.then(|| Message::reply_u64(request, 0)),
        })
    }

    /// RESET_DEVICE and RESET_OWNER: rings and features are forgotten, memory and protocol stay.
    fn forget(&mut self) {
        self.features = None;
        self.is_writeback = true;
        for ring in &mut self.rings {
            ring.is_started = false;
            ring.is_enabled = false;
        }
    }

    fn dispatch(&mut self, message: Message) -> Result<Done<O>, Refused> {
        let Message { header, body, fds } = message;
        let request = header.request;
        let takes_fds = matches!(
            request,
            message::SET_MEM_TABLE
                | message::ADD_MEM_REG
                | message::SET_LOG_BASE
                | message::SET_LOG_FD
                | message::SET_VRING_KICK
                | message::SET_VRING_CALL
                | message::SET_VRING_ERR
                | message::SET_BACKEND_REQ_FD
                | message::SET_INFLIGHT_FD
                // Front ends send the region's descriptor along; it is not needed.
                | message::REM_MEM_REG
        );
        if !fds.is_empty() && !takes_fds {
            return Err(format!("{} descriptors that it does not take", fds.len()));
        }
        match request {
            message::GET_FEATURES => {
                Ok(Done::Reply(Message::reply_u64(request, self.offer.disk.features())))
            }
            message::SET_FEATURES => self.set_features(&body),
            message::GET_PROTOCOL_FEATURES => {
                Ok(Done::Reply(Message::reply_u64(request, self.protocol_offer())))
            }
            message::SET_PROTOCOL_FEATURES => self.set_protocol_features(&body),
            message::SET_OWNER => Ok(Done::Quiet),
            message::RESET_OWNER | message::RESET_DEVICE => {
                Ok(Done::Order(Order::Reset, Effect::Reset))
            }
            message::GET_QUEUE_NUM => {
                Ok(Done::Reply(Message::reply_u64(request, u64::from(self.offer.queues))))
            }
            message::GET_MAX_MEM_SLOTS => {
                Ok(Done::Reply(Message::reply_u64(request, REGIONS_MAX as u64)))
            }
            message::SET_MEM_TABLE => self.set_memory(&body, fds),
            message::ADD_MEM_REG => self.add_memory(&body, fds),
            message::REM_MEM_REG => self.remove_memory(&body),
            message::SET_VRING_NUM => self.set_ring_size(&body),
            message::SET_VRING_BASE => self.set_ring_base(&body),
            message::SET_VRING_ADDR => self.set_ring_addresses(&body),
            message::GET_VRING_BASE => self.stop_ring(&body),
            message::SET_VRING_ENABLE => self.enable_ring(&body),
            message::SET_VRING_KICK => self.set_kick(&body, fds),
            message::SET_VRING_CALL => self.set_call(&body, fds, true),
            message::SET_VRING_ERR => self.set_call(&body, fds, false),
            message::GET_CONFIG => Ok(Done::Reply(self.config(&body)?)),
            message::SET_CONFIG => self.set_config(&body),
            message::GET_INFLIGHT_FD => self.make_in_flight(&body),
            message::SET_INFLIGHT_FD => self.take_in_flight(&body, fds),
            message::SET_LOG_BASE => self.set_log(&body, fds),
            // Nothing is written to this descriptor: the front end looks at its log when it wants to.
            message::SET_LOG_FD => Ok(Done::Quiet),
            message::SET_BACKEND_REQ_FD => {
                self.backend = Some(one_fd(fds)?);
                Ok(Done::Quiet)
            }
            _ => Err("it is not supported".to_owned()),
        }
    }

    fn is_any_started(&self) -> bool {
        self.rings.iter().any(|ring| ring.is_started)
    }

    fn protocol_offer(&self) -> u64 {
        match self.offer.has_in_flight {
            true => protocol::ALL,
            false => protocol::ALL & !protocol::INFLIGHT_SHMFD,
        }
    }

    fn set_features(&mut self, body: &[u8]) -> Result<Done<O>, Refused> {
        let bits = integer(body)?;
        let unknown = bits & !self.offer.disk.features();
        if unknown != 0 {
            return Err(format!("features {unknown:#x} were not offered"));
        }
        if bits & features::VERSION_1 == 0 {
            return Err("legacy drivers are not supported: VERSION_1 is missing".to_owned());
        }
        let changed = self.features.map_or(0, |before| before ^ bits);
        if changed & !features::LOG_ALL != 0 && self.is_any_started() {
            return Err(format!("features {changed:#x} cannot change while rings are started"));
        }
        self.features = Some(bits);
        Ok(Done::Order(Order::Features(Features::new(bits)), Effect::None))
    }

    fn set_protocol_features(&mut self, body: &[u8]) -> Result<Done<O>, Refused> {
        let bits = integer(body)?;
        let unknown = bits & !self.protocol_offer();
        if unknown != 0 {
            return Err(format!("protocol features {unknown:#x} were not offered"));
        }
        self.protocol = bits;
        Ok(Done::Quiet)
    }

    fn memory_order(&self, memory: GuestMemory) -> Done<O> {
        let memory = Arc::new(memory);
        Done::Order(Order::Memory(Arc::clone(&memory)), Effect::Memory(memory))
    }

    fn set_memory(&mut self, body: &[u8], fds: Vec<OwnedFd>) -> Result<Done<O>, Refused> {
        if body.len() < 8 {
            return Err(format!("a table of {} bytes", body.len()));
        }
        let count = u32_at(body, 0) as usize;
        if count == 0 || count > TABLE_REGIONS_MAX || count != fds.len() {
            return Err(format!(
                "{count} regions with {} descriptors; 1 to {TABLE_REGIONS_MAX}, one each",
                fds.len()
            ));
        }
        let regions = body[8..].chunks_exact(RegionDescription::BYTES);
        if body.len() != 8 + count * RegionDescription::BYTES {
            return Err(format!("{} bytes for {count} regions", body.len()));
        }
        let regions = regions.map(RegionDescription::parse).zip(fds).collect();
        Ok(self.memory_order(GuestMemory::map(regions, &self.memory)?))
    }

    fn add_memory(&mut self, body: &[u8], fds: Vec<OwnedFd>) -> Result<Done<O>, Refused> {
        let about = single_region(body)?;
        Ok(self.memory_order(self.memory.with(about, one_fd(fds)?)?))
    }

    fn remove_memory(&mut self, body: &[u8]) -> Result<Done<O>, Refused> {
        Ok(self.memory_order(self.memory.without(&single_region(body)?)?))
    }

    /// The ring of a message's queue.
    fn queue(&self, queue: u64) -> Result<usize, Refused> {
        let known = usize::try_from(queue).ok().filter(|queue| *queue < self.rings.len());
        known.ok_or_else(|| format!("queue {queue}; there are {}", self.rings.len()))
    }

    fn ring_and_value(&self, body: &[u8]) -> Result<(usize, u32), Refused> {
        if body.len() != 8 {
            return Err(format!("{} bytes, not 8", body.len()));
        }
        Ok((self.queue(u64::from(u32_at(body, 0)))?, u32_at(body, 4)))
    }

    /// A ring that has not started, which may be described.
    fn stopped_ring(&mut self, queue: usize) -> Result<&mut RingConfig, Refused> {
        let ring = &mut self.rings[queue];
        if ring.is_started { Err(format!("ring {queue} is started")) } else { Ok(ring) }
    }

    fn set_ring_size(&mut self, body: &[u8]) -> Result<Done<O>, Refused> {
        let (queue, num) = self.ring_and_value(body)?;
        let fits = u16::try_from(num).ok();
        let fits = fits.filter(|num| num.is_power_of_two() && (2..=QUEUE_SIZE_MAX).contains(num));
        let num = fits.ok_or_else(|| {
            format!("a ring of {num} descriptors; a power of two, 2 to {QUEUE_SIZE_MAX}")
        })?;
        self.stopped_ring(queue)?.num = num;
        Ok(Done::Quiet)
    }

    fn set_ring_base(&mut self, body: &[u8]) -> Result<Done<O>, Refused> {
        let (queue, base) = self.ring_and_value(body)?;
        let base = u16::try_from(base).map_err(|_| format!("a base of {base}"))?;
        self.stopped_ring(queue)?.base = base;
        Ok(Done::Quiet)
    }

    fn set_ring_addresses(&mut self, body: &[u8]) -> Result<Done<O>, Refused> {
        if body.len() != ADDRESSES_BYTES {
            return Err(format!("{} bytes, not {ADDRESSES_BYTES}", body.len()));
        }
        let (queue, addresses) = RingAddresses::parse(body);
        let queue = self.queue(u64::from(queue))?;
        let ring = &mut self.rings[queue];
        ring.addresses = Some(addresses);
        Ok(match ring.is_started {
            true => Done::Order(Order::Addresses { queue: queue as u16, addresses }, Effect::None),
            false => Done::Quiet,
        })
    }

    fn stop_ring(&mut self, body: &[u8]) -> Result<Done<O>, Refused> {
        let (queue, _) = self.ring_and_value(body)?;
        let ring = &self.rings[queue];
        if !ring.is_started {
            return Ok(Done::Reply(ring_state(message::GET_VRING_BASE, queue as u32, ring.base)));
        }
        Ok(Done::Order(Order::Stop { queue: queue as u16 }, Effect::Stopped(queue)))
    }

    fn enable_ring(&mut self, body: &[u8]) -> Result<Done<O>, Refused> {
        let (queue, value) = self.ring_and_value(body)?;
        if value > 1 {
            return Err(format!("ring {queue} cannot be enabled by {value}"));
        }
        let (ring, is_enabled) = (&mut self.rings[queue], value == 1);
        ring.is_enabled = is_enabled;
        Ok(match ring.is_started {
            true => Done::Order(Order::Enable { queue: queue as u16, is_enabled }, Effect::None),
            false => Done::Quiet,
        })
    }

    /// The queue and the descriptor of KICK, CALL and ERR.
    fn queue_and_fd(
        &self,
        body: &[u8],
        fds: Vec<OwnedFd>,
    ) -> Result<(usize, Option<EventFd>), Refused> {
        let value = integer(body)?;
        if value & !(NO_FD | 0xff) != 0 {
            return Err(format!("a ring named {value:#x}"));
        }
        let queue = self.queue(value & 0xff)?;
        if value & NO_FD != 0 && fds.is_empty() {
            return Ok((queue, None));
        }
        Ok((queue, Some(EventFd::check(one_fd(fds)?)?)))
    }

    fn set_kick(&mut self, body: &[u8], fds: Vec<OwnedFd>) -> Result<Done<O>, Refused> {
        let (queue, kick) = self.queue_and_fd(body, fds)?;
        let ring = &mut self.rings[queue];
        if ring.is_started {
            let order = Order::Kick { queue: queue as u16, fd: kick };
            return Ok(Done::Order(order, Effect::None));
        }
        let features = self.features.ok_or("a kick before SET_FEATURES")?;
        let addresses = ring.addresses.ok_or("a kick before SET_VRING_ADDR")?;
        if ring.num == 0 {
            return Err("a kick before SET_VRING_NUM".to_owned());
        }
        if features & features::PROTOCOL_FEATURES == 0 {
            ring.is_enabled = true;
        }
        let start = RingStart {
            queue: queue as u16,
            num: ring.num,
            base: ring.base,
            addresses,
            is_enabled: ring.is_enabled,
            kick,
            call: ring.call.take(),
            error: ring.error.take(),
        };
        let started = Ring::new(start, &self.memory, self.in_flight.as_ref())?;
        Ok(Done::Order(Order::Start(Box::new(started)), Effect::Started(queue)))
    }

    fn set_call(
        &mut self,
        body: &[u8],
        fds: Vec<OwnedFd>,
        is_call: bool,
    ) -> Result<Done<O>, Refused> {
        let (queue, fd) = self.queue_and_fd(body, fds)?;
        let fd = fd.map(|fd| CallFd::new(fd, Arc::clone(&self.notifier)));
        let ring = &mut self.rings[queue];
        let number = queue as u16;
        if ring.is_started {
            let order = match is_call {
                true => Order::Call { queue: number, fd },
                false => Order::Error { queue: number, fd },
            };
            return Ok(Done::Order(order, Effect::None));
        }
        *(if is_call { &mut ring.call } else { &mut ring.error }) = fd;
        Ok(Done::Quiet)
    }

    /// The answer to GET_CONFIG has the shape of the message; size 0 is a refusal.
    fn config(&self, body: &[u8]) -> Result<Message, Refused> {
        if body.len() < 12 {
            return Err(format!("{} bytes, at least 12", body.len()));
        }
        let (offset, size) = (u32_at(body, 0) as usize, u32_at(body, 4) as usize);
        let range = offset..offset.saturating_add(size);
        if size == 0 || range.end > CONFIG_BYTES {
            let mut refusal = body[..12].to_vec();
            refusal[4..8].fill(0);
            return Ok(Message::reply(message::GET_CONFIG, refusal, Vec::new()));
        }
        let rings = self.rings.iter().filter(|ring| ring.num > 0);
        let segments = rings.map(|ring| ring.num - 2).fold(SEGMENTS_MAX, u16::min).max(1);
        let space = self.offer.disk.config_space(self.offer.queues, segments, self.is_writeback);
        let mut reply = body[..12].to_vec();
        reply.extend(&space[range]);
        Ok(Message::reply(message::GET_CONFIG, reply, Vec::new()))
    }

    fn set_config(&mut self, body: &[u8]) -> Result<Done<O>, Refused> {
        let is_writeback = match body {
            [head @ .., value @ 0..=1] if head.len() == 12 => {
                let is_field = u32_at(head, 0) == WRITEBACK_AT && u32_at(head, 4) == 1;
                is_field.then_some(*value == 1)
            }
            _ => None,
        };
        let can_switch = self.features.is_some_and(|bits| bits & features::CONFIG_WCE != 0);
        match is_writeback.filter(|_| can_switch) {
            Some(is_writeback) => {
                self.is_writeback = is_writeback;
                Ok(Done::Order(Order::Writeback(is_writeback), Effect::None))
            }
            None => Err("only the field writeback may be written, with CONFIG_WCE".to_owned()),
        }
    }

    fn make_in_flight(&mut self, body: &[u8]) -> Result<Done<O>, Refused> {
        let about = self.in_flight_body(body)?;
        if about.queues == 0 || about.queues > self.offer.queues || about.queue_size == 0 {
            return Err(format!("{} queues of {}", about.queues, about.queue_size));
        }
        if about.queue_size > QUEUE_SIZE_MAX {
            return Err(format!("queues of {}, at most {QUEUE_SIZE_MAX}", about.queue_size));
        }
        let made = InFlightRegion::create(about.queues, about.queue_size);
        let (region, fd) = made.map_err(|error| format!("cannot make a region: {error}"))?;
        let reply =
            Message::reply(message::GET_INFLIGHT_FD, region.description().bytes(), vec![fd]);
        self.in_flight = Some(Arc::new(region));
        Ok(Done::Reply(reply))
    }

    fn take_in_flight(&mut self, body: &[u8], fds: Vec<OwnedFd>) -> Result<Done<O>, Refused> {
        let about = self.in_flight_body(body)?;
        self.in_flight = Some(Arc::new(InFlightRegion::map(about, one_fd(fds)?)?));
        Ok(Done::Quiet)
    }

    fn in_flight_body(&self, body: &[u8]) -> Result<InFlightDescription, Refused> {
        if !self.offer.has_in_flight {
            return Err("the in-flight region was not offered".to_owned());
        }
        if self.is_any_started() {
            return Err("an in-flight region while rings are started".to_owned());
        }
        // 20 bytes and padding; some front ends leave the padding out.
        if body.len() != InFlightDescription::BYTES && body.len() != 20 {
            return Err(format!("{} bytes, not {}", body.len(), InFlightDescription::BYTES));
        }
        Ok(InFlightDescription::parse(body))
    }

    fn set_log(&mut self, body: &[u8], fds: Vec<OwnedFd>) -> Result<Done<O>, Refused> {
        if body.len() != 16 {
            return Err(format!("{} bytes, not 16", body.len()));
        }
        let log = DirtyLog::map(u64_at(body, 0), u64_at(body, 8), one_fd(fds)?)?;
        Ok(Done::Order(Order::Log(Some(Arc::new(log))), Effect::None))
    }
}

/// How a message was taken.
enum Done<O: StoreObserver> {
    Quiet,
    Reply(Message),
    Order(Order<O>, Effect),
}

/// Whether a message has an answer of its own, so that an acknowledgement would be taken for it.
fn has_reply(request: u32) -> bool {
    matches!(
        request,
        message::GET_FEATURES
            | message::GET_PROTOCOL_FEATURES
            | message::GET_VRING_BASE
            | message::GET_QUEUE_NUM
            | message::GET_CONFIG
            | message::GET_INFLIGHT_FD
            | message::GET_MAX_MEM_SLOTS
    )
}

fn ring_state(request: u32, queue: u32, value: u16) -> Message {
    let mut body = queue.to_le_bytes().to_vec();
    body.extend(u32::from(value).to_le_bytes());
    Message::reply(request, body, Vec::new())
}

fn integer(body: &[u8]) -> Result<u64, Refused> {
    match body.len() {
        8 => Ok(u64_at(body, 0)),
        len => Err(format!("{len} bytes, not 8")),
    }
}

/// The region of ADD_MEM_REG and REM_MEM_REG, behind 8 bytes of padding.
fn single_region(body: &[u8]) -> Result<RegionDescription, Refused> {
    match body.len() {
        40 => Ok(RegionDescription::parse(&body[8..])),
        len => Err(format!("{len} bytes, not 40")),
    }
}

fn one_fd(mut fds: Vec<OwnedFd>) -> Result<OwnedFd, Refused> {
    match (fds.pop(), fds.is_empty()) {
        (Some(fd), true) => Ok(fd),
        (_, _) => Err("it takes one descriptor".to_owned()),
    }
}
