//! The rules of the world, as far as they are looked at one by one.

use headworks_core::limits::{LimitKind, LimitedIo};
use headworks_core::time::{MS, SEC};
use headworks_core::{Bio, Input, Op};
use headworks_front::{PART_MIN, WaitsFor};
use headworks_nbd::Command;

use super::client::{Answer, Asked, EINVAL, EIO, ENOMEM, ENOSPC, EPERM};
use super::content::{SECTOR, write_of};
use super::{LONGEST_NS, SLACK, World};

impl World {
    pub(super) fn check_answer(&mut self, index: usize, answer: &Answer) -> Result<(), String> {
        let Answer { asked, error, parts } = answer;
        let (client, now) = (&self.lines[index].client, self.now);
        let say = |rule: &str| -> Result<(), String> {
            Err(format!("client {index}: {rule}: error {error} to {asked:?}"))
        };
        let line = &self.lines[index];
        let is_troubled = line.export == self.front.troubled;
        let is_slow_device = is_troubled && (self.front.silent || self.unstuck >= asked.since);
        self.met.answers += 1;
        self.met.errors += u64::from(*error != 0);
        self.met.hash =
            self.met.hash.rotate_left(5) ^ now.0 ^ asked.header.cookie << 32 ^ u64::from(*error);
        if client.sent < asked.end {
            return say("a reply before the last byte of the payload");
        }
        let took = now.since(asked.since);
        if self.scenario.quiet > 0 && line.export == 0 && client.is_fast() && !self.is_ending {
            if took > LONGEST_NS {
                return say(&format!("it took {} ms beside others", took / MS));
            }
            self.lines[index].took.push(took);
        }
        if self.lines[index].client.honest {
            self.met.longest_ms = self.met.longest_ms.max(took / MS);
        }
        match *error {
            0 if asked.is_bad => say("success of a bad request"),
            0 => self.check_success(index, asked, parts),
            ENOMEM => say("no memory"),
            EPERM | EINVAL | ENOSPC if asked.is_bad => {
                self.met.refused += 1;
                Ok(())
            }
            EIO if is_troubled && self.scenario.errors > 0 || is_slow_device => Ok(()),
            _ => say("an error that nobody caused"),
        }
    }

    fn check_success(
        &self,
        index: usize,
        asked: &Asked,
        parts: &[(u64, Vec<u8>)],
    ) -> Result<(), String> {
        let (begin, len) = (asked.header.offset, u64::from(asked.header.len));
        if asked.is(Command::Read) {
            let got: u64 = parts.iter().map(|(_, data)| data.len() as u64).sum();
            let inside = parts.iter().all(|(offset, data)| {
                *offset >= begin && offset + data.len() as u64 <= begin + len
            });
            if got != len || !inside {
                return Err(format!("client {index}: {got} bytes of {asked:?}"));
            }
            for (offset, data) in parts {
                let content = &self.contents[usize::from(self.lines[index].export)];
                let checked = content.check(*offset, data, (asked.since, self.now));
                checked.map_err(|rule| format!("client {index}: {rule}, {asked:?}"))?;
            }
        }
        if asked.id > 0 && self.writes[asked.id as usize].applied < len {
            return Err(format!("client {index}: a write succeeds that was not done: {asked:?}"));
        }
        Ok(())
    }

    pub(super) fn check_bio(&mut self, bio: &Bio) -> Result<(), String> {
        if self.front.frozen && bio.op.is_write() && bio.id.export.0 == self.front.troubled {
            return Err(format!("a frozen volume is changed: {bio:?}"));
        }
        if let Some(index) = self.ring_of(bio.id.connection) {
            self.check_ring_bio(index, bio)?;
            return match LimitedIo::of(bio.op, bio.len) {
                Some(io) if bio.id.export.0 == self.front.troubled => self.check_limits(io),
                _ => Ok(()),
            };
        }
        let id = bio.id.connection;
        let found = self
            .lines
            .iter()
            .position(|line| line.connection.as_ref().is_some_and(|it| it.id() == id));
        let Some(index) = found else { return Ok(()) };
        let line = &mut self.lines[index];
        if bio.op.is_write() && line.client.read_only {
            return Err(format!("client {index} changes a read-only export: {bio:?}"));
        }
        let limited = match bio.op {
            Op::Read => {
                let fits = |asked: &&Asked| {
                    asked.is(Command::Read)
                        && (asked.header.offset, asked.header.len) == (bio.offset, bio.len)
                        && !line.submitted.contains(&asked.header.cookie)
                };
                let asked = line.client.asked.values().find(fits);
                let Some(cookie) = asked.map(|asked| asked.header.cookie) else {
                    // Dropped data are read again.
                    return Ok(());
                };
                line.submitted.insert(cookie);
                Some(bio.len)
            }
            Op::Write => self.check_write(index, bio)?,
            _ => Some(bio.len),
        };
        match limited.and_then(|len| LimitedIo::of(bio.op, len)) {
            Some(io) if bio.id.export.0 == self.front.troubled => self.check_limits(io),
            _ => Ok(()),
        }
    }

    /// A part of a write goes to the shard. Returns the length of the whole, if it is the first part.
    fn check_write(&mut self, index: usize, bio: &Bio) -> Result<Option<u32>, String> {
        let memory = self.connection(bio.id.connection).and_then(|it| it.buffer(bio.id.sequence));
        let memory = memory.ok_or("a write without a buffer")?.part(0, bio.len as usize);
        // SAFETY: what is submitted has come, and is not changed until the reply.
        let bytes = unsafe { memory.bytes() };
        let first = bio.offset / SECTOR as u64;
        let id = bytes.get(..SECTOR).and_then(|sector| write_of(sector, first));
        let of_one = (first..)
            .zip(bytes.chunks(SECTOR))
            .all(|(sector, bytes)| write_of(bytes, sector) == id);
        let Some(id) = id.filter(|&id| id > 0 && of_one) else {
            return Err(format!("client {index}: the payload of {bio:?} is of no write"));
        };
        let is_short = self.short.remove(&(bio.id.connection, bio.id.sequence));
        self.writes[id as usize].torn |= is_short;
        let state = self.writes[id as usize];
        let stays_whole = state.len <= self.least_window() && !state.torn;
        if !state.is_whole && (stays_whole || bio.len == state.len) {
            return Err(format!(
                "client {index}: write {id} is submitted before its payload is there"
            ));
        }
        if bio.offset < state.offset
            || bio.offset + u64::from(bio.len) > state.offset + u64::from(state.len)
        {
            return Err(format!("client {index}: write {id} goes elsewhere: {bio:?}"));
        }
        let line = &mut self.lines[index];
        if bio.len > line.window {
            let window = line.window;
            return Err(format!(
                "client {index}: a part of {state:?} is longer than its window {window}: {bio:?}"
            ));
        }
        if id < line.last_write {
            return Err(format!("client {index}: write {id} after {}", line.last_write));
        }
        line.last_write = id;
        self.met.pieces += u64::from(bio.len < state.len);
        self.writes[id as usize].given = self.now;
        Ok((bio.offset == state.offset).then_some(state.len))
    }

    /// Notes the writes among the bios from `first` on of which no more could come: the pool has no block for it.
    pub(super) fn note_short(&mut self, first: usize) {
        for at in first..self.front.inputs.len() {
            let Input::Bio(bio) = self.front.inputs[at] else { continue };
            // Its block was to be that of twice what had come, less than a block of the volume beyond this.
            let more = 2 * (bio.len + PART_MIN) as usize;
            if bio.op == Op::Write && !self.front.has_block(more) {
                self.short.insert((bio.id.connection, bio.id.sequence));
            }
        }
    }

    /// A write of so many bytes is given in parts only if the pool has no block for it, whatever other payloads are incomplete.
    fn least_window(&self) -> u32 {
        let part = self.scenario.pool as u64 / 4 / self.scenario.count;
        1 << part.max(4096).ilog2().min(20)
    }

    /// Since they were set, limits have let no more through than their rate, their slack and one request.
    fn check_limits(&mut self, io: LimitedIo) -> Result<(), String> {
        if self.scenario.stuck {
            // What waited went through when the device ceased to answer.
            return Ok(());
        }
        let elapsed = self.now.since(self.passed.since) + 2 * SLACK;
        for kind in LimitKind::ALL {
            let rate = self.passed.limits.rate(kind).average;
            if rate == 0 || !kind.covers(io.direction) {
                continue;
            }
            let (part, longest) = match kind.is_bytes() {
                // What had passed before they were set was charged nothing.
                true => (u64::from(io.bytes), 2 * self.scenario.pool as u64),
                false => (1, 2 * (self.scenario.count + self.scenario.rings)),
            };
            let count = &mut self.passed.counts[kind as usize];
            *count += part;
            let most =
                (u128::from(elapsed) * u128::from(rate) / u128::from(SEC)) as u64 + longest + 1;
            if *count > most {
                return Err(format!(
                    "a limit of {kind:?} {rate} lets {count} through, at most {most}"
                ));
            }
        }
        Ok(())
    }

    /// The pool has lent what connections hold.
    pub(super) fn check_pool(&self) -> Result<(), String> {
        let alive = self.lines.iter().filter_map(|line| line.connection.as_deref());
        let rings = self.front.rings.iter().filter_map(|ring| ring.client.as_ref());
        let held: usize = alive.chain(&self.dying).map(|connection| connection.held()).sum();
        let held = held + rings.map(|client| client.held()).sum::<usize>();
        let taken = self.front.pool.taken();
        if held == taken {
            Ok(())
        } else {
            Err(format!("{taken} bytes of the pool are taken, {held} held"))
        }
    }

    /// Closes connections that passed their deadlines, if that is right; returns whether there was one.
    pub(super) fn close_stalled(&mut self) -> Result<bool, String> {
        let before = self.met.stalls;
        if self.front.paused {
            return Ok(false);
        }
        for index in 0..self.lines.len() {
            let line = &self.lines[index];
            let Some(connection) = &line.connection else { continue };
            if connection.deadline().is_none_or(|at| at > self.now) {
                continue;
            }
            let owes = line.client.owes() || line.unread_replies() > 0;
            if line.end.is_some() && !owes {
                let why = connection.timeout_message();
                return Err(format!("client {index} owes nothing, and is closed: {why}"));
            }
            if line.end.is_some()
                && connection.stopped_by() != WaitsFor::Nothing
                && !connection.has_outgoing()
            {
                let waits = connection.stopped_by();
                return Err(format!("client {index} waits for {waits:?}, and is closed"));
            }
            self.met.stalls += 1;
            self.close(index);
        }
        Ok(self.met.stalls > before)
    }
}
