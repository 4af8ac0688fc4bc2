//! Devices of virtual machines among the clients of the world: real rings in shared memory, real sessions with front ends.
//!
//! ```text
//!   machine --rings, kick--> RingClient::receive --> bios --random latency--> image
//!      |  ^--used ring, call-- RingClient::publish <-- replies <-----------------'
//!      '-- messages --> Session --orders--> RingClient, between two turns
//! ```
//!
//! Drawn are queues, ring sizes, chains (direct, indirect, out of order, data in pieces that are no whole sectors), how both sides ask for
//! notifications, the features, the in-flight region or none; front ends that break off, stop rings, replace memory and descriptors; machines
//! that break the rules of their rings; and deaths of the server's process before any store of a ring, a status or the region (`deaths`).
//! The next process adopts the regions. Rules, beside those of all clients:
//!
//! - each head is answered once, and no other one; a success was done by a device, by this process or one before;
//! - a bio is of a request that was given and not answered, once for each process; a write that must be durable says so;
//! - with a region nothing is lost: after a death or a break every request is still answered;
//! - a ring stops at what it has answered, and no ring of a machine that keeps the rules ends;
//! - at rest no ring has a request that the server was not kicked for, nor an answer of which the machine was not notified;
//! - in the end no region has a head in flight.
//!
//! What a device does for a machine that has broken the rules is not looked at, but its writes are dropped: the oracle knows no others'.

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::{Arc, LazyLock};

use headworks_core::limits::NodeId;
use headworks_core::time::{MS, SEC};
use headworks_core::{Bio, BioFlags, DeviceId, ExportId, IoError, Op, Status, VolumeId};
use headworks_front::WaitsFor;
use headworks_nbd::ExportInfo;
use headworks_vhost::wire::Message;
use headworks_vhost::{Disk, Notifier, Offer, Order, RequestOp, Session, Step, Ticket};

use super::deaths::{self, MortalProcess};
use super::machine::{FrontEndMessage, Machine};
use super::machine_queue::{Kind, MachineAnswer, MachineRequest};
use super::{Event, Scenario, World, WriteState};
use crate::clients::nbd::connection::{ConnectionLimits, ExportBinding, ReceiveOutcome};
use crate::clients::rings::RingClient;
use crate::clients::rings::line::{News, NewsReceiver, line};

/// Within this time a front end connects again.
const AWAY: u64 = 20 * MS;
/// Within this time a front end disturbs its rings.
const DISTURBED: u64 = 300 * MS;
/// Within this time after the last death the next one is chosen.
const LIFE: u64 = 400 * MS;
/// Most stores from the choice of a death to the death.
const STORES: u64 = 80;
/// Of these from the beginning of a process that dies while it recovers.
const RECOVERY_STORES: u64 = 40;

/// The notifier of all machines: the end of one takes milliseconds.
fn notifier() -> Arc<Notifier> {
    static ALL: LazyLock<Arc<Notifier>> = LazyLock::new(|| Arc::new(Notifier::new()));
    Arc::clone(&ALL)
}

/// Where a machine's connection is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Serving,
    /// Its front end has left; its requests end.
    Leaving,
    /// It connects at this time.
    Away(headworks_core::Instant),
}

/// The device of a machine, in a process that dies.
pub type MachineClient = RingClient<MortalProcess>;

/// A machine, its front end's connection, and its device.
pub struct RingLine {
    pub machine: Machine,
    /// None while it is away.
    pub client: Option<Box<MachineClient>>,
    session: Option<Session<MortalProcess>>,
    news: Option<NewsReceiver<MortalProcess>>,
    /// Messages that are still to be sent.
    messages: VecDeque<FrontEndMessage>,
    phase: Phase,
    pub leaf: Option<NodeId>,
    /// It is tried in each turn.
    pub hot: bool,
    /// It sends in this turn.
    pub is_listed: bool,
    /// The device of its export is of the same shard.
    is_local: bool,
    pub export: u16,
    /// Number of its connection among all of the world.
    number: u64,
}

impl RingLine {
    /// The export as its device knows it.
    pub fn binding(&self) -> ExportBinding {
        let (volume, device) = (VolumeId(self.export), DeviceId(self.export));
        let export = ExportId(self.export);
        ExportBinding { volume, export, device, ..ExportBinding::default() }
    }

    /// The disk as the machine sees it.
    fn disk(&self, size: u64) -> Disk {
        let disk = Disk { is_read_only: self.machine.read_only, ..Disk::new(size) };
        disk.with_serial(&serial(self.export))
    }

    /// Whether its front end has nothing to send, and waits for no answer.
    fn is_settled(&self) -> bool {
        let waits = self.session.as_ref().is_some_and(|session| session.is_waiting());
        self.phase == Phase::Serving && self.messages.is_empty() && !waits
    }

    /// The request of a bio, by its name in the rings.
    fn asked(&mut self, sequence: u64) -> Option<(&mut MachineRequest, usize)> {
        let in_flight = self.client.as_mut()?.session.window_mut().get(sequence)?;
        let Ticket { queue, head, part } = Ticket::from_bits(in_flight.cookie as u32);
        let queue = self.machine.queues.get_mut(usize::from(queue))?;
        Some((queue.asked.get_mut(&head)?, usize::from(part)))
    }
}

fn serial(export: u16) -> String {
    format!("export {export}")
}

/// Whether a descriptor is ready.
fn is_ready(fd: RawFd) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry; it does not wait.
    unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
}

fn op_of(op: RequestOp) -> Op {
    match op {
        RequestOp::Read => Op::Read,
        RequestOp::Write => Op::Write,
        RequestOp::Flush => Op::Flush,
        RequestOp::Discard => Op::Discard,
        RequestOp::WriteZeroes => Op::WriteZeroes,
    }
}

impl World {
    /// Draws the machines. Nothing dies before they are there.
    pub(super) fn draw_machines(&mut self) -> Result<(), String> {
        deaths::plan(None);
        let Scenario { rings, clients, deaths, .. } = self.scenario;
        for index in 0..rings {
            let mut prng = self.prng.split(&format!("machine {index}"));
            let is_local = prng.below(3) > 0;
            let machine = Machine::draw(prng, self.now, &clients);
            let machine = machine.map_err(|error| format!("no machine: {error}"))?;
            self.front.rings.push(RingLine {
                machine,
                client: None,
                session: None,
                news: None,
                messages: VecDeque::new(),
                phase: Phase::Away(self.now),
                leaf: None,
                hot: true,
                is_listed: false,
                is_local,
                export: self.scenario.export_of(self.scenario.quiet + index),
                number: 0,
            });
        }
        if rings > 0 {
            self.plan(DISTURBED, Event::Disturb);
        }
        if deaths {
            self.plan(LIFE, Event::Death);
        }
        Ok(())
    }

    /// The end is near: the process lives on, and machines keep the rules.
    pub(super) fn hurry_machines(&mut self) {
        deaths::plan(None);
        self.front.rings.iter_mut().for_each(|ring| ring.machine.hurry(self.now));
    }

    /// The process dies before one of the next stores.
    pub(super) fn plan_death(&mut self) {
        deaths::plan(Some(self.prng.below(STORES)));
    }

    /// A front end does something that it may do at any time.
    pub(super) fn disturb(&mut self) -> Result<(), String> {
        let index = self.prng.below(self.front.rings.len() as u64) as usize;
        self.plan(DISTURBED, Event::Disturb);
        let ring = &mut self.front.rings[index];
        if !ring.is_settled() || ring.machine.mad_until.is_some() {
            return Ok(());
        }
        if self.prng.below(3) == 0 {
            self.leave_ring(index);
            return Ok(());
        }
        let messages = ring.machine.disturb().map_err(|error| format!("no descriptor: {error}"))?;
        ring.messages.extend(messages);
        Ok(())
    }

    /// The front end leaves with requests in flight.
    fn leave_ring(&mut self, index: usize) {
        self.front.close_ring(self.now, self.lines.len(), index);
        let ring = &mut self.front.rings[index];
        ring.messages.clear();
        (ring.phase, ring.is_listed) = (Phase::Leaving, true);
        self.met.left += 1;
        self.progress += 1;
    }

    fn connect_ring(&mut self, index: usize) -> Result<(), String> {
        let failed = |error: std::io::Error| format!("no descriptor: {error}");
        let size = self.scenario.clients.size;
        self.served += 1;
        let id = self.front.id();
        let limits: ConnectionLimits = self.front.bounds;
        let ring = &mut self.front.rings[index];
        let disk = ring.disk(size);
        let (sender, news) = line().map_err(failed)?;
        let names = ("machine".to_owned(), Arc::from("rings"));
        let mut client = RingClient::new(disk, names, limits, sender).map_err(failed)?;
        client.set_id(id);
        client.begin(ring.binding(), &ExportInfo { size, ..ExportInfo::default() }, ring.is_local);
        let queues = ring.machine.queues.len() as u16;
        let offer = Offer { disk, queues, has_in_flight: ring.machine.has_region };
        ring.session = Some(Session::observed(offer, notifier()));
        (ring.client, ring.news) = (Some(Box::new(client)), Some(news));
        ring.messages = ring.machine.connect().map_err(failed)?.into();
        (ring.phase, ring.hot, ring.number) = (Phase::Serving, true, self.served);
        self.progress += 1;
        Ok(())
    }

    /// A machine and its front end do what they may now.
    pub(super) fn step_ring(&mut self, index: usize) -> Result<(), String> {
        let now = self.now;
        let ring = &mut self.front.rings[index];
        match ring.phase {
            Phase::Away(at) if at <= now && !self.front.paused => self.connect_ring(index)?,
            Phase::Serving if ring.machine.mad_until.is_some_and(|until| until <= now) => {
                self.leave_ring(index);
            }
            Phase::Serving if ring.is_settled() && ring.machine.break_rules(now).is_some() => {
                self.met.broken += 1;
                self.progress += 1;
            }
            _ => {}
        }
        let named = |rule: String| format!("machine {index}: {rule}");
        if self.exchange_messages(index).map_err(named)? {
            return self.die();
        }
        let answers = self.front.rings[index].machine.reap().map_err(named)?;
        for answer in answers {
            self.progress += 1;
            self.check_ring_answer(index, &answer).map_err(named)?;
        }
        let size = self.scenario.clients.size;
        let Self { front, writes, write_ids, .. } = self;
        let shown = front.rings[index].machine.prepare(now, (write_ids, size), |asked| {
            if asked.id > 0 {
                let (offset, len) = (asked.parts[0].offset, asked.parts[0].len);
                writes.push(WriteState { offset, len, is_whole: true, ..WriteState::default() });
            }
        });
        self.progress += u64::from(shown);
        Ok(())
    }

    /// Sends messages of the front end as far as they are answered; true: the process has died.
    fn exchange_messages(&mut self, index: usize) -> Result<bool, String> {
        loop {
            let ring = &mut self.front.rings[index];
            let RingLine { machine, client, session, news, messages, .. } = ring;
            let (Some(client), Some(session), Some(news)) = (client, session, news) else {
                return Ok(false);
            };
            if ring.phase != Phase::Serving {
                return Ok(false);
            }
            let reply: Option<Message> = match news.news.try_recv() {
                Ok(News::Answer(answer)) => session.on_answer(answer)?,
                Ok(News::Disk(_) | News::Ended(_)) => return Err("news that nothing caused".into()),
                Err(_) if session.is_waiting() => return Ok(false),
                Err(_) => {
                    let Some((request, body, fds)) = messages.pop_front() else { return Ok(false) };
                    let step = session.on_message(Message::request(request, body, fds, true))?;
                    if deaths::is_dead() {
                        return Ok(true);
                    }
                    match step {
                        Step::Done => None,
                        Step::Reply(reply) => Some(reply),
                        Step::Order(order) => {
                            if let Order::Start(started) = &order {
                                self.met.adopted += started.taken_over() as u64;
                            }
                            client.on_order(order);
                            (ring.hot, ring.is_listed) = (true, true);
                            None
                        }
                    }
                }
            };
            if let Some(reply) = reply {
                let follows = machine.on_reply(reply)?;
                messages.extend(follows);
            }
            self.progress += 1;
        }
    }

    /// Receives from the rings; true: one has worked.
    pub(super) fn receive_rings(&mut self) -> Result<bool, String> {
        let mut worked = false;
        let (now, lines) = (self.now, self.lines.len());
        for index in 0..self.front.rings.len() {
            let ring = &mut self.front.rings[index];
            let Some(client) = &mut ring.client else { continue };
            if client.socket().is_some_and(is_ready) {
                client.on_kick();
                (ring.hot, ring.is_listed) = (true, true);
            }
            if self.front.paused {
                if ring.client.as_ref().is_some_and(|client| client.has_left_over()) {
                    self.front.resubmit_ring(now, lines, index);
                }
            } else if ring.hot {
                let (bios, parked) = (self.front.inputs.len(), self.front.parked_ring(index));
                let received = self.front.receive_ring(now, lines, index);
                let moved = self.front.inputs.len() - bios;
                self.progress += moved as u64 + u64::from(parked != self.front.parked_ring(index));
                let ring = &mut self.front.rings[index];
                ring.is_listed |= received != ReceiveOutcome::Idle;
                match received {
                    ReceiveOutcome::Worked | ReceiveOutcome::Waits(WaitsFor::Turn) => worked = true,
                    ReceiveOutcome::Waits(WaitsFor::Buffer | WaitsFor::Room) => self.met.waits += 1,
                    ReceiveOutcome::Waits(WaitsFor::Freeze) => self.met.frozen += 1,
                    _ => {}
                }
            }
            if deaths::is_dead() {
                self.die()?;
                return Ok(true);
            }
        }
        Ok(worked)
    }

    /// Makes answers known; true: a ring goes on for it.
    pub(super) fn publish_rings(&mut self) -> Result<bool, String> {
        let (now, mut again) = (self.now, false);
        for index in 0..self.front.rings.len() {
            let ring = &mut self.front.rings[index];
            let Some(client) = ring.client.as_mut().filter(|_| ring.is_listed) else { continue };
            ring.is_listed = false;
            let before = ring.machine.used_indices();
            client.publish();
            self.progress += u64::from(before != ring.machine.used_indices());
            if let Some(complaint) = client.take_complaint() {
                if ring.machine.mad_until.is_none() && !deaths::is_dead() {
                    return Err(format!("machine {index} keeps the rules: {complaint}"));
                }
                self.met.ended += 1;
                self.progress += 1;
            }
            let stopped = client.stopped_by();
            let goes_on = client.goes_on() && client.waits_for(stopped);
            ring.hot |= goes_on || stopped == WaitsFor::Nothing;
            again |= goes_on;
            let is_finished = client.is_finished();
            self.front.note_ring(self.lines.len(), index);
            if deaths::is_dead() {
                self.die()?;
                return Ok(true);
            }
            if is_finished {
                let ring = &mut self.front.rings[index];
                (ring.client, ring.session, ring.news) = (None, None, None);
                ring.machine.on_break(now);
                ring.phase = Phase::Away(now.after(self.prng.below(AWAY)));
                self.progress += 1;
            }
        }
        Ok(again)
    }

    /// Before a sleep: rings that were tried in each turn are watched; true: one has something already.
    pub(super) fn arm_rings(&mut self) -> bool {
        let mut any = false;
        for ring in self.front.rings.iter_mut().filter(|ring| ring.hot) {
            ring.hot = ring.client.as_mut().is_some_and(|client| client.arm());
            any |= ring.hot;
        }
        any
    }

    /// At rest: nothing was slept through by either side, and a ring that is tried moves nothing.
    pub(super) fn check_ring_rest(&mut self) -> Result<(), String> {
        let (now, lines) = (self.now, self.lines.len());
        for index in 0..self.front.rings.len() {
            let ring = &mut self.front.rings[index];
            if !ring.is_settled() || ring.hot || ring.machine.mad_until.is_some() {
                continue;
            }
            if let Some(queue) = ring.machine.unnoticed() {
                return Err(format!("machine {index} was not notified of answers of ring {queue}"));
            }
            if !self.scenario.tries {
                continue;
            }
            let waits = ring.client.as_ref().map(|client| client.stopped_by());
            let parked = self.front.parked_ring(index);
            let received = self.front.receive_ring_only(now, lines, index);
            let is_still = !matches!(received, ReceiveOutcome::Worked | ReceiveOutcome::End(_));
            let moves = !self.front.inputs.is_empty() || parked != self.front.parked_ring(index);
            if moves || !is_still {
                return Err(format!("machine {index} waited for {waits:?}, which it is given"));
            }
            self.front.note_ring(lines, index);
        }
        Ok(())
    }

    /// The ring client of a bio.
    pub(super) fn ring_of(&self, connection: u32) -> Option<usize> {
        let is = |ring: &RingLine| ring.client.as_ref().is_some_and(|it| it.id() == connection);
        self.front.rings.iter().position(is)
    }

    /// Checks a bio of a machine.
    pub(super) fn check_ring_bio(&mut self, index: usize, bio: &Bio) -> Result<(), String> {
        let ring = &mut self.front.rings[index];
        if bio.op.is_write() && ring.machine.read_only {
            return Err(format!("machine {index} changes a read-only export: {bio:?}"));
        }
        if ring.machine.mad_until.is_some() {
            return Ok(());
        }
        let (number, needs_fua) = (ring.number, ring.machine.needs_fua());
        let Some((asked, part)) = ring.asked(bio.id.sequence) else {
            return Err(format!("machine {index}: a bio of no request: {bio:?}"));
        };
        let (id, kind, is_bad) = (asked.id, asked.kind, asked.is_bad);
        let Some(part) = asked.parts.get_mut(part).filter(|_| !is_bad) else {
            return Err(format!("machine {index}: a bad request is submitted: {bio:?}"));
        };
        let is_same = matches!(kind, Kind::Disk(op) if op_of(op) == bio.op);
        if !is_same || (part.offset, part.len) != (bio.offset, bio.len) {
            return Err(format!("machine {index}: {bio:?} is of {kind:?} {part:?}"));
        }
        if std::mem::replace(&mut part.given_to, number) == number {
            return Err(format!("machine {index}: a request is submitted twice: {bio:?}"));
        }
        let changes = matches!(bio.op, Op::Write | Op::Discard | Op::WriteZeroes);
        if changes && needs_fua && !bio.flags.contains(BioFlags::FUA) {
            return Err(format!("machine {index}: a write without FLUSH is not durable: {bio:?}"));
        }
        let bytes = self.ring_bytes(index, bio);
        if bio.op == Op::Write && bytes != super::content::payload(id, bio.offset, bio.len) {
            return Err(format!("machine {index}: other bytes than those of write {id}: {bio:?}"));
        }
        Ok(())
    }

    /// The bytes of a bio in flight.
    fn ring_bytes(&mut self, index: usize, bio: &Bio) -> Vec<u8> {
        let mut bytes = Vec::new();
        if let Some(client) =
            self.front.rings[index].client.as_mut().filter(|_| bio.op == Op::Write)
        {
            client.pieces(bio.id.sequence, (0, bio.len), |piece| {
                // SAFETY: memory of a request in flight; the world is one thread.
                bytes.extend_from_slice(unsafe { piece.bytes() });
            });
        }
        bytes
    }

    /// Does what a bio of a machine asks for.
    pub(super) fn execute_ring(&mut self, index: usize, bio: &Bio) -> Result<Status, String> {
        let (now, is_mad) = (self.now, self.front.rings[index].machine.mad_until.is_some());
        let bytes = self.ring_bytes(index, bio);
        let content = &mut self.contents[usize::from(bio.id.export.0)];
        let is_ranged = bio.op != Op::Flush;
        if is_ranged && bio.offset + u64::from(bio.len) > content.size() {
            return Ok(Err(IoError::Invalid));
        }
        match bio.op {
            Op::Read => {
                let Some(client) = &mut self.front.rings[index].client else { return Ok(Ok(())) };
                let mut from = bio.offset;
                client.pieces(bio.id.sequence, (0, bio.len), |piece| {
                    // SAFETY: memory of a request in flight, which this device fills.
                    let to = unsafe { piece.bytes_mut() };
                    to.copy_from_slice(content.bytes(from, to.len()));
                    from += to.len() as u64;
                });
            }
            _ if is_mad => {}
            Op::Write => {
                let id = content.write(now, bio.offset, &bytes)?;
                self.writes[id as usize].applied += u64::from(bio.len);
            }
            Op::Discard | Op::WriteZeroes => content.zero(now, bio.offset, bio.len),
            _ => {}
        }
        if let Some((asked, part)) = self.front.rings[index].asked(bio.id.sequence)
            && let Some(part) = asked.parts.get_mut(part)
        {
            part.is_done = true;
        }
        Ok(Ok(()))
    }

    /// Checks what a machine was answered.
    fn check_ring_answer(&mut self, index: usize, answer: &MachineAnswer) -> Result<(), String> {
        let MachineAnswer { asked, status, written, data } = answer;
        let export = self.front.rings[index].export;
        let is_troubled = export == self.front.troubled;
        let is_slow_device = is_troubled && (self.front.silent || self.unstuck >= asked.since);
        self.met.ring_answers += 1;
        self.met.hash =
            self.met.hash.rotate_left(5) ^ self.now.0 ^ asked.id << 32 ^ u64::from(*status);
        let say =
            |rule: &str| Err(format!("{rule}: status {status}, {written} written, {asked:?}"));
        let right = if *status == 0 { data.len() as u32 + 1 } else { 1 };
        if *written != right {
            return say("another number of bytes than were written");
        }
        match *status {
            0 if asked.is_bad => say("success of a bad request"),
            0 if !asked.parts.iter().all(|part| part.is_done) => {
                say("success of what was not done")
            }
            0 => {
                if asked.kind == Kind::Name && !data.starts_with(serial(export).as_bytes()) {
                    return say("another disk's serial");
                }
                if asked.kind == Kind::Disk(RequestOp::Read) {
                    let content = &self.contents[usize::from(export)];
                    let checked =
                        content.check(asked.parts[0].offset, data, (asked.since, self.now));
                    return checked.map_err(|rule| format!("{rule}, {asked:?}"));
                }
                Ok(())
            }
            1 | 2 if asked.is_bad => {
                self.met.refused += 1;
                Ok(())
            }
            1 if is_troubled && self.scenario.errors > 0 || is_slow_device => {
                self.met.errors += 1;
                Ok(())
            }
            _ => say("an error that nothing caused"),
        }
    }

    /// The process is dead. Stores after the death are taken back, the device ends or forgets what it had, and another process begins.
    pub(super) fn die(&mut self) -> Result<(), String> {
        deaths::take_back();
        self.met.deaths += 1;
        self.front.inputs.clear();
        // What the dead process had in the kernel has ended before the next one has the image's lock, done or not.
        let flights = std::mem::take(&mut self.flights);
        for flight in flights.into_values().filter(|flight| !flight.answered) {
            if self.prng.below(2) == 0 {
                self.execute(&flight.bio)?.ok();
            }
        }
        self.dying.clear();
        self.short.clear();
        for line in &mut self.lines {
            line.die();
        }
        let now = self.now;
        for ring in &mut self.front.rings {
            (ring.client, ring.session, ring.news, ring.leaf) = (None, None, None, None);
            ring.messages.clear();
            ring.machine.on_death(now);
            ring.phase = Phase::Away(now.after(self.prng.below(AWAY)));
        }
        let (is_silent, is_paused) = (self.front.silent, self.front.paused);
        let of_process = |event: &Event| match event {
            Event::Done { .. } => true,
            Event::TimeOut | Event::Unstuck => is_silent,
            _ => false,
        };
        self.events.retain(|std::cmp::Reverse((_, _, event))| !of_process(event));
        self.front.restart(self.scenario.pool, self.lines.len())?;
        if is_silent {
            self.unstuck = now;
            self.plan(2 * SEC, Event::Stuck);
        }
        if is_paused {
            self.plan(SEC, Event::Pause);
        }
        let limits = self.passed.limits;
        self.set_limits(&limits);
        self.plan(LIFE, Event::Death);
        if self.prng.below(3) == 0 {
            deaths::plan(Some(self.prng.below(RECOVERY_STORES)));
        }
        self.progress += 1;
        Ok(())
    }

    /// A request of a machine that is not answered, in words.
    pub(super) fn left_over_of_machines(&self) -> Option<String> {
        let mut rings = self.front.rings.iter().enumerate();
        rings.find_map(|(index, ring)| Some((index, ring.phase, ring.machine.left_over()?))).map(
            |(index, phase, request)| {
                format!("a request of machine {index} ({phase:?}) is never answered: {request}")
            },
        )
    }

    /// Whether the process has died in the call before.
    pub(super) fn is_dead() -> bool {
        deaths::is_dead()
    }

    /// All requests are answered: the devices end, and no region has a head in flight.
    pub(super) fn end_rings(&mut self) -> Result<(), String> {
        deaths::plan(None);
        for index in 0..self.front.rings.len() {
            if self.front.rings[index].client.is_none() {
                continue;
            }
            self.leave_ring(index);
            self.publish_rings()?;
            let ring = &self.front.rings[index];
            if ring.client.is_some() {
                return Err(format!("the device of machine {index} is left in the end"));
            }
            let taken = ring.machine.taken_in_region().filter(|taken| *taken > 0);
            if let Some(taken) = taken {
                return Err(format!(
                    "{taken} heads are in flight in the region of machine {index}"
                ));
            }
        }
        Ok(())
    }

    /// When something happens to machines by itself.
    pub(super) fn next_of_machines(&self) -> impl Iterator<Item = headworks_core::Instant> {
        self.front.rings.iter().flat_map(|ring| {
            let connects = match ring.phase {
                Phase::Away(at) => Some(at),
                _ => None,
            };
            [connects, ring.machine.next_instant()].into_iter().flatten()
        })
    }

    /// Whether no machine has a request in the shard, so that connections may move.
    pub(super) fn rings_are_at_rest(&self) -> bool {
        let rests = |ring: &RingLine| ring.client.as_ref().is_none_or(|client| client.is_at_rest());
        self.front.rings.iter().all(rests)
    }

    /// Front ends of machines connect to the other process.
    pub(super) fn move_rings(&mut self) -> Result<(), String> {
        for index in 0..self.front.rings.len() {
            if self.front.rings[index].phase == Phase::Serving {
                self.leave_ring(index);
            }
        }
        self.publish_rings().map(drop)
    }
}
