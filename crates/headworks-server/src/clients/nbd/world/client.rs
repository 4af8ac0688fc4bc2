//! A simulated client: requests as the bytes of NBD, and what it understands of the bytes that come back.
//!
//! A client is honest unless it is drawn otherwise: its link is slow or comes in units, it stops in the middle of its stream (*half*),
//! leaves replies unread (*silent*), or vanishes at a byte, and then connects again, with what was not answered or without.

use std::collections::BTreeMap;

use headworks_core::Instant;
use headworks_core::prng::Prng;
use headworks_core::time::{MS, SEC, US};
use headworks_nbd::Command;
use headworks_nbd::wire::{
    CHUNK_HEADER_BYTES, REQUEST_BYTES, RequestHeader, SIMPLE_REPLY_BYTES, SIMPLE_REPLY_MAGIC,
    STRUCTURED_REPLY_MAGIC, chunk,
};

use super::content::{SECTOR, WriteId, payload};
use super::pipe::Pipe;

/// A command that no server knows.
const UNKNOWN: u16 = 99;
/// Errors on the wire.
pub const EPERM: u32 = 1;
pub const EIO: u32 = 5;
pub const ENOMEM: u32 = 12;
pub const EINVAL: u32 = 22;
pub const ENOSPC: u32 = 28;
/// Most bytes that a client has prepared beyond one request.
const PREPARED: usize = 1 << 20;

/// A request without an answer.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub header: RequestHeader,
    /// The number of a write with a payload; 0 otherwise.
    pub id: WriteId,
    /// When it was prepared.
    pub since: Instant,
    /// It goes past the end, is unknown or changes a read-only export: the only right answer is an error.
    pub is_bad: bool,
    /// Byte of the stream behind its header.
    header_end: u64,
    /// Byte of the stream behind its payload.
    pub end: u64,
}

impl Asked {
    pub fn is(&self, command: Command) -> bool {
        self.header.command == command as u16
    }
}

/// Data with their offsets.
pub type Parts = Vec<(u64, Vec<u8>)>;

/// An answer as the client understood it.
#[derive(Debug)]
pub struct Answer {
    pub asked: Asked,
    /// Its error on the wire; 0 is success.
    pub error: u32,
    /// Data of a read, with their offsets.
    pub parts: Parts,
}

/// A stop in the middle of the stream.
#[derive(Clone, Copy, Debug)]
pub struct Stop {
    /// Byte of the stream.
    pub at: u64,
    /// Bytes a second that go on.
    pub drip: u64,
    /// How long it takes.
    pub for_ns: u64,
}

/// A client of the world.
#[derive(Debug)]
pub struct Client {
    prng: Prng,
    /// The link to the server.
    pub up: Pipe,
    /// The link from the server.
    pub down: Pipe,
    pub structured: bool,
    pub read_only: bool,
    /// It is one of those whose requests may never take long.
    pub honest: bool,
    depth: usize,
    largest: u32,
    large: u64,
    /// Requests that it is still to make.
    pub left: u32,
    pub stop: Option<Stop>,
    /// When a stop, or a silence, is over.
    pub resumes_at: Option<Instant>,
    rates: (u64, u64),
    next_request: Instant,
    outbox: Vec<u8>,
    outbox_at: usize,
    /// Bytes of the stream that the server's socket has.
    pub sent: u64,
    pub asked: BTreeMap<u64, Asked>,
    /// By cookie: what has come of structured replies, and their error.
    parts: BTreeMap<u64, (Parts, u32)>,
    inbox: Vec<u8>,
    cookie: u64,
}

/// What a world draws for all of its clients.
#[derive(Clone, Copy, Debug)]
pub struct ClientScenario {
    /// Bytes of the image.
    pub size: u64,
    /// Most bytes of a request.
    pub largest: u32,
    /// Requests of a client.
    pub requests: u32,
    /// Most requests in flight of a client.
    pub depth: u64,
    /// One of so many requests is as large as any.
    pub large: u64,
    /// Most clients with a fault vanish.
    pub vanishes: bool,
}

/// What kinds a client is drawn of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Temper {
    Any,
    /// Without faults; its link to the server may be slow.
    Quiet,
    /// Most have a fault.
    Hostile,
}

impl Client {
    /// Draws a client and its faults.
    pub fn draw(mut prng: Prng, now: Instant, scenario: &ClientScenario, temper: Temper) -> Self {
        let fast = 1 << 30;
        let rates: [u64; 5] = [fast, fast, 20 << 20, 1 << 20, 100_000];
        let honest = match temper {
            Temper::Any => prng.below(2) == 0,
            Temper::Quiet => true,
            Temper::Hostile => prng.below(8) == 0,
        };
        let rate = |prng: &mut Prng| if honest { fast } else { rates[prng.below(5) as usize] };
        let (mut up_rate, down_rate) = (rate(&mut prng), rate(&mut prng));
        if temper == Temper::Quiet && prng.below(3) == 0 {
            up_rate = rates[prng.between(2, 4) as usize];
        }
        let unit = [1, 1, 1, 16 << 10][prng.below(4) as usize];
        let room = [16 << 10, 64 << 10, 128 << 10][prng.below(3) as usize].max(unit);
        let mut client = Self {
            up: Pipe::new(up_rate, room, unit, now),
            down: Pipe::new(down_rate, usize::MAX, unit, now),
            structured: prng.below(2) == 0,
            read_only: prng.below(8) == 0,
            honest,
            depth: prng.between(1, scenario.depth) as usize,
            largest: scenario.largest >> prng.below(if scenario.large < 6 { 2 } else { 6 }),
            large: scenario.large,
            left: prng.between(1, u64::from(scenario.requests)) as u32,
            stop: None,
            resumes_at: None,
            rates: (up_rate, down_rate),
            next_request: now.after(prng.below(50 * MS)),
            outbox: Vec::new(),
            outbox_at: 0,
            sent: 0,
            asked: BTreeMap::new(),
            parts: BTreeMap::new(),
            inbox: Vec::new(),
            cookie: 0,
            prng,
        };
        if !honest {
            client.draw_fault(now, scenario);
        }
        client
    }

    fn draw_fault(&mut self, now: Instant, scenario: &ClientScenario) {
        let at = self.prng.below(4 * u64::from(scenario.largest));
        let for_ns = [100 * MS, SEC, 4 * SEC][self.prng.below(3) as usize];
        match self.prng.below(5) {
            kind if scenario.vanishes && kind < 3 => self.up.cut_at = Some(at),
            0 | 1 => {
                let drip = [0, 0, 64, 1024, 10_000][self.prng.below(5) as usize];
                self.stop = Some(Stop { at, drip, for_ns });
            }
            2 => {
                self.down.set_rate(now, 0);
                self.resumes_at = Some(now.after(for_ns));
            }
            3 => self.up.cut_at = Some(at),
            _ => {}
        }
    }

    /// Everything goes on at full speed: the end of the world is near, and each request is to be answered.
    pub fn hurry(&mut self, now: Instant) {
        (self.stop, self.resumes_at, self.up.cut_at) = (None, None, None);
        self.rates = (1 << 30, 1 << 30);
        self.left = self.left.min(3);
        self.resume(now);
    }

    fn resume(&mut self, now: Instant) {
        self.resumes_at = None;
        self.up.set_rate(now, self.rates.0);
        self.down.set_rate(now, self.rates.1);
    }

    /// Begins a stop whose byte has come, or ends one whose time is over.
    pub fn keep_time(&mut self, now: Instant) {
        if self.resumes_at.is_some_and(|at| at <= now) {
            self.resume(now);
        }
        if let Some(stop) = self.stop.take_if(|stop| stop.at <= self.sent) {
            self.up.set_rate(now, stop.drip);
            self.resumes_at = Some(now.after(stop.for_ns));
        }
    }

    /// Whether its link to the server is none of the slow ones.
    pub fn is_fast(&self) -> bool {
        self.rates.0 >= 1 << 30
    }

    /// Whether it has nothing more to do.
    pub fn is_done(&self) -> bool {
        self.left == 0 && self.asked.is_empty()
    }

    /// Bytes that wait to be sent, up to the next stop.
    pub fn waiting(&self) -> usize {
        let waiting = self.outbox.len() - self.outbox_at;
        let to_stop =
            self.stop.map_or(usize::MAX, |stop| (stop.at - self.sent.min(stop.at)) as usize);
        waiting.min(to_stop)
    }

    /// The next bytes of its stream.
    pub fn bytes(&self, count: usize) -> &[u8] {
        &self.outbox[self.outbox_at..][..count]
    }

    /// Notes that the server's socket has taken bytes.
    pub fn note_sent(&mut self, now: Instant, count: usize) {
        self.up.note(now, count);
        self.sent += count as u64;
        self.outbox_at += count;
        if self.outbox_at == self.outbox.len() {
            self.outbox.clear();
            self.outbox_at = 0;
        }
    }

    /// Whether its server waits for bytes of a request that has begun.
    pub fn owes(&self) -> bool {
        let begins = |asked: &Asked| asked.header_end - REQUEST_BYTES as u64;
        self.asked.values().any(|asked| begins(asked) < self.sent && self.sent < asked.end)
    }

    /// Prepares requests as far as its depth goes; `ids` counts writes. Returns those that are new.
    pub fn prepare(&mut self, now: Instant, ids: &mut WriteId, size: u64) -> Vec<Asked> {
        let mut new = Vec::new();
        while self.left > 0
            && self.asked.len() < self.depth
            && self.next_request <= now
            && self.outbox.len() - self.outbox_at < PREPARED
        {
            self.left -= 1;
            let (header, is_bad) = self.draw_request(size);
            let id = if header.command == Command::Write as u16 { *ids } else { 0 };
            *ids += u64::from(id > 0);
            let asked = Asked { header, id, since: now, is_bad, header_end: 0, end: 0 };
            new.push(self.encode(asked));
            if self.prng.below(4) == 0 {
                self.next_request = now.after(self.prng.below(20 * MS) + US);
            }
        }
        new
    }

    /// When it makes its next request.
    pub fn next_request(&self) -> Option<Instant> {
        (self.left > 0 && self.asked.len() < self.depth).then_some(self.next_request)
    }

    fn draw_request(&mut self, size: u64) -> (RequestHeader, bool) {
        let (sector, prng) = (SECTOR as u64, &mut self.prng);
        let sectors = (u64::from(self.largest) / sector).max(1);
        // Most are small: a few large ones use up the pool.
        let most = if prng.below(self.large) == 0 { sectors } else { sectors.min(16) };
        let len = prng.between(1, most) * sector;
        let offset = prng.below((size - len) / sector + 1) * sector;
        let mut command = match prng.below(100) {
            0..45 => Command::Read,
            45..90 => Command::Write,
            90..94 => Command::Flush,
            94..97 => Command::Trim,
            _ => Command::WriteZeroes,
        } as u16;
        let (mut offset, mut len) = (offset, len as u32);
        let mut is_bad =
            self.read_only && ![Command::Read as u16, Command::Flush as u16].contains(&command);
        if command == Command::Flush as u16 {
            (offset, len) = (0, 0);
        } else if prng.below(40) == 0 {
            is_bad = true;
            match prng.below(3) {
                0 => command = UNKNOWN,
                _ => offset = size - u64::from(len) / 2 / sector * sector,
            }
        }
        let is_write = command == Command::Write as u16;
        let flags = u16::from(is_write && prng.below(4) == 0);
        self.cookie += 1;
        (RequestHeader { flags, command, cookie: self.cookie, offset, len }, is_bad)
    }

    /// Appends a request to the stream.
    fn encode(&mut self, mut asked: Asked) -> Asked {
        let begin = self.sent + (self.outbox.len() - self.outbox_at) as u64;
        asked.header_end = begin + REQUEST_BYTES as u64;
        asked.end = asked.header_end;
        self.outbox.extend_from_slice(&asked.header.encode());
        if asked.id > 0 {
            let RequestHeader { offset, len, .. } = asked.header;
            self.outbox.extend_from_slice(&payload(asked.id, offset, len));
            asked.end += u64::from(len);
        }
        self.asked.insert(asked.header.cookie, asked);
        asked
    }

    /// A new connection: what was not answered is sent again, or forgotten. Returns what is forgotten.
    pub fn reconnect(&mut self, now: Instant) -> Vec<Asked> {
        self.outbox.clear();
        self.inbox.clear();
        self.parts.clear();
        (self.outbox_at, self.sent) = (0, 0);
        (self.stop, self.up.cut_at) = (None, None);
        self.resume(now);
        let unanswered = std::mem::take(&mut self.asked);
        if self.prng.below(2) == 0 {
            return unanswered.into_values().collect();
        }
        unanswered.into_values().for_each(|asked| {
            self.encode(asked);
        });
        Vec::new()
    }

    /// Takes bytes of replies; returns the answers that are whole.
    ///
    /// # Errors
    /// They are not what the protocol says.
    pub fn understand(&mut self, bytes: &[u8]) -> Result<Vec<Answer>, String> {
        self.inbox.extend_from_slice(bytes);
        let inbox = std::mem::take(&mut self.inbox);
        let (mut at, mut answers) = (0, Vec::new());
        while let Some(used) = self.reply(&inbox[at..], &mut answers)? {
            at += used;
        }
        self.inbox = inbox[at..].to_vec();
        Ok(answers)
    }

    /// Takes one reply or chunk; none if it is not whole.
    fn reply(&mut self, bytes: &[u8], answers: &mut Vec<Answer>) -> Result<Option<usize>, String> {
        let Some(magic) = bytes.first_chunk().map(|magic| u32::from_be_bytes(*magic)) else {
            return Ok(None);
        };
        match magic {
            SIMPLE_REPLY_MAGIC => self.simple(bytes, answers),
            STRUCTURED_REPLY_MAGIC if self.structured => self.chunk(bytes, answers),
            _ => Err(format!("a reply begins with {magic:#x}")),
        }
    }

    fn asked(&self, cookie: u64) -> Result<Asked, String> {
        let asked = self.asked.get(&cookie).copied();
        asked.ok_or_else(|| format!("a reply to {cookie}, which was not asked, or a second one"))
    }

    fn simple(&mut self, bytes: &[u8], answers: &mut Vec<Answer>) -> Result<Option<usize>, String> {
        if bytes.len() < SIMPLE_REPLY_BYTES {
            return Ok(None);
        }
        let (error, cookie) = (be32(bytes, 4), be64(bytes, 8));
        let asked = self.asked(cookie)?;
        let len = if asked.is(Command::Read) && error == 0 { asked.header.len as usize } else { 0 };
        if len > 0 && self.structured {
            return Err("data in a simple reply, where structured ones were agreed on".into());
        }
        let Some(data) = bytes[SIMPLE_REPLY_BYTES..].get(..len) else { return Ok(None) };
        self.asked.remove(&cookie);
        let parts = if len > 0 { vec![(asked.header.offset, data.to_vec())] } else { Vec::new() };
        answers.push(Answer { asked, error, parts });
        Ok(Some(SIMPLE_REPLY_BYTES + len))
    }

    fn chunk(&mut self, bytes: &[u8], answers: &mut Vec<Answer>) -> Result<Option<usize>, String> {
        if bytes.len() < CHUNK_HEADER_BYTES {
            return Ok(None);
        }
        let (flags, kind) = (be32(bytes, 4) >> 16, (be32(bytes, 4) & 0xffff) as u16);
        let (cookie, len) = (be64(bytes, 8), be32(bytes, 16) as usize);
        let Some(body) = bytes[CHUNK_HEADER_BYTES..].get(..len) else { return Ok(None) };
        let asked = self.asked(cookie)?;
        let (parts, error) = self.parts.entry(cookie).or_default();
        match kind {
            chunk::NONE => {}
            chunk::OFFSET_DATA if len > 8 => parts.push((be64(body, 0), body[8..].to_vec())),
            chunk::OFFSET_HOLE if len == 12 => {
                parts.push((be64(body, 0), vec![0; be32(body, 8) as usize]));
            }
            chunk::ERROR | chunk::ERROR_OFFSET if len >= 6 => *error = be32(body, 0),
            _ => return Err(format!("a chunk of type {kind} with {len} bytes")),
        }
        if flags & u32::from(chunk::DONE) != 0 {
            let (parts, error) = self.parts.remove(&cookie).unwrap_or_default();
            self.asked.remove(&cookie);
            answers.push(Answer { asked, error, parts });
        }
        Ok(Some(CHUNK_HEADER_BYTES + len))
    }
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().fold(0, |all, &byte| all << 8 | u32::from(byte))
}

fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from(be32(bytes, at)) << 32 | u64::from(be32(bytes, at + 4))
}
