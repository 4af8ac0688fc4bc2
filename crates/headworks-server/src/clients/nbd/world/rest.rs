//! What holds when nothing moves at an instant, and what clients of a quiet export notice of others.

use headworks_core::time::{MS, US};
use headworks_core::{DeviceId, Instant, WaitKind};
use headworks_front::memory::{Wanted, Wants};
use headworks_front::window::CompletedRequest;
use headworks_front::{FrontRequest, Origin, PART_MIN, WaitsFor};

use super::front::Line;
use super::{Flight, QUIET_NS, World};
use crate::clients::nbd::connection::Connection;

/// The part of its time for which a slow link may be stopped: a twentieth.
const BLOCKED_PART: u64 = 20;
/// The longest wait for a buffer of a client on a quiet export.
const BUFFER_NS: u64 = 25 * MS;

impl World {
    /// Nothing moves: checks that this is right.
    pub(super) fn check_rest(&mut self) -> Result<(), String> {
        if self.front.paused {
            return Ok(());
        }
        for index in 0..self.lines.len() {
            self.check_connection(index).map_err(|rule| format!("client {index}: {rule}"))?;
        }
        self.check_incomplete()?;
        self.check_ring_rest()?;
        if self.scenario.tries { self.try_all() } else { Ok(()) }
    }

    fn check_connection(&mut self, index: usize) -> Result<(), String> {
        let line = &self.lines[index];
        let (Some(connection), unread) = (&line.connection, line.unread()) else { return Ok(()) };
        if connection.awaits_payload() && unread > 0 {
            let stopped = connection.stopped_by();
            return Err(format!(
                "{unread} bytes of a payload with room are not received: {stopped:?}"
            ));
        }
        if connection.waits_for(WaitsFor::Client)
            && unread == 0
            && line.end.is_some()
            && !line.client.owes()
        {
            return Err("a request waits for a client that owes nothing".into());
        }
        let reread = connection.waiting().find(|one| one.origin == Origin::Reread);
        let reread = reread.map_or(WaitsFor::Room, FrontRequest::waits_for);
        if !matches!(reread, WaitsFor::Room | WaitsFor::Buffer | WaitsFor::Window) {
            return Err(format!("data that continue a reply wait for {reread:?}"));
        }
        let write = WaitsFor::Limit(headworks_core::limits::LimitDirection::Write);
        if connection.waits_for(write) && connection.kept_payload().is_some() {
            return Err("a write whose payload has begun waits for a limit".into());
        }
        if connection.stopped_by() == WaitsFor::Buffer {
            return self.check_waiter(index);
        }
        Ok(())
    }

    /// A connection waits for a buffer.
    fn check_waiter(&mut self, index: usize) -> Result<(), String> {
        let limits = self.front.memory.limits();
        let connection = self.lines[index].connection.as_ref();
        let wants = connection.map(|connection| connection.wants(&limits));
        let mut wants = wants.into_iter().flat_map(Wants::all);
        wants.try_for_each(|wanted| self.check_wanted(index, wanted))
    }

    /// A connection waits for this.
    fn check_wanted(&mut self, index: usize, wanted: Wanted) -> Result<(), String> {
        let Some(connection) = &self.lines[index].connection else { return Ok(()) };
        let limits = self.front.memory.limits();
        let kept = connection.kept_payload().map_or(0, |kept| kept.bytes);
        let (bytes, reads) = match wanted {
            Wanted::Block { bytes, reads } => (bytes, reads),
            Wanted::Growth { for_others: false, .. } if kept > 2 * PART_MIN as usize => {
                return Err(format!("a payload keeps {kept} bytes and waits: {wanted:?}"));
            }
            Wanted::Growth { from: 0, to, .. } => (to, false),
            _ => return Ok(()),
        };
        let export = self.lines[index].export;
        let free_slots = self.front.slots - self.front.in_flight;
        let has_slot = self.front.memory.slots(Some(DeviceId(export)), free_slots) > 0;
        if connection.held() > 0 || reads && connection.is_stalled(self.now) || !has_slot {
            return Ok(());
        }
        // Closing connections are none of the account's here.
        if bytes <= limits.guaranteed() && self.dying.is_empty() {
            return Err(format!("it holds nothing and waits: {wanted:?}"));
        }
        let of_export = self.lines.iter().filter(|line| line.export == export);
        let of_export = of_export.filter_map(|line| line.connection.as_deref());
        let of_rings = self.front.rings.iter().filter(|ring| ring.export == export);
        let of_rings = of_rings.filter_map(|ring| ring.client.as_ref());
        let held: usize = of_export.map(Connection::held).sum();
        let held = held + of_rings.map(|client| client.held()).sum::<usize>();
        let first = self.front.memory.first().filter(|(slot, _)| *slot != index as u32);
        let kept = first.map_or(0, |(_, wanted)| wanted.bytes());
        let free = limits.shared().saturating_sub(self.front.pool.taken() + kept);
        // The block of the first waiter may count as its own export's.
        let is_free = self.front.pool.try_take(bytes).map(|block| self.front.pool.put(block));
        if held + bytes + kept <= free && is_free.is_some() {
            return Err(format!(
                "it holds nothing, its export {held} bytes, {free} are free, and it waits: {wanted:?}"
            ));
        }
        Ok(())
    }

    /// While a connection waits for memory, payloads that can be written keep a quarter of the pool, and a block each.
    fn check_incomplete(&self) -> Result<(), String> {
        let is_free = |connection: &&Connection| connection.stopped_by() == WaitsFor::Nothing;
        let connections = self.lines.iter().filter_map(|line| line.connection.as_deref());
        let payloads = connections.filter(is_free).filter_map(Connection::kept_payload);
        let kept: usize = payloads.map(|kept| kept.bytes).sum();
        let most = self.front.pool.size() / 4 + self.lines.len() * PART_MIN as usize;
        if self.front.memory.needs_payloads() && kept > most {
            return Err(format!("incomplete payloads keep {kept} bytes, {most} at most"));
        }
        Ok(())
    }

    /// A connection is about to receive: notes the window that it has for its payload beside those of others.
    pub(super) fn note_window(&mut self, index: usize) {
        let others = self.lines.iter().enumerate().filter(|(other, _)| *other != index);
        let others = others.filter_map(|(_, line)| line.connection.as_ref()?.kept_payload());
        let exports: Vec<_> = others.map(|kept| kept.export.0).collect();
        let quarter = self.front.pool.size() / 4;
        let line = &mut self.lines[index];
        let has_payload = line.connection.as_ref().is_some_and(|it| it.kept_payload().is_some());
        let of_own = exports.iter().filter(|&&export| export == line.export).count();
        let mut parties = exports.clone();
        parties.push(line.export);
        parties.sort_unstable();
        parties.dedup();
        // Its own does not count before it has begun: beside one other, of whatever export, it begins as one that is alone.
        let window = match exports.len() {
            0 => quarter,
            1 if !has_payload => quarter,
            _ if has_payload => quarter / parties.len() / (of_own + 1),
            _ => quarter / parties.len() / of_own.max(1),
        };
        let least = quarter / self.scenario.count as usize;
        let window = 1 << window.max(least).max(PART_MIN as usize).ilog2().min(20);
        line.window = if has_payload { line.window.max(window) } else { window };
    }

    /// Tries every connection: none goes on.
    fn try_all(&mut self) -> Result<(), String> {
        let (now, count) = (self.now, self.lines.len());
        for index in 0..count {
            let mut shares = self.front.begin_turn(count);
            let line = &mut self.lines[index];
            let Some(connection) = &line.connection else { continue };
            let waits = connection.stopped_by();
            let window = self.front.memory.window(connection.export_of_requests());
            // It would be written as far as it has come, which is for others that wait; requests before a payload are tried with each part
            // of it that comes.
            if waits == WaitsFor::Nothing
                && (connection.is_beyond(window) || connection.awaits_payload())
            {
                continue;
            }
            let before = (line.unread(), connection.parked(), connection.kept_payload());
            let wants = connection.wants(&self.front.memory.limits());
            self.front.receive_only(now, (index, &mut *line), &mut shares);
            let Some(connection) = &line.connection else { continue };
            let after = (line.unread(), connection.parked(), connection.kept_payload());
            let grows =
                after.2.map_or(0, |kept| kept.bytes) > before.2.map_or(0, |kept| kept.bytes);
            let moves = before.0 != after.0 || before.1 != after.1 || !self.front.inputs.is_empty();
            // What is read from takes a block for what may come.
            if moves || grows && waits != WaitsFor::Nothing {
                return Err(format!(
                    "client {index} waited for {waits:?} ({wants:?}), which it is given: {before:?} to {after:?}"
                ));
            }
            if let Some(connection) = &mut line.connection {
                connection.cut_payload(&mut self.front.pool);
            }
            self.front.note(now, index, line);
        }
        Ok(())
    }

    /// A connection has received, and held so many bytes before: it left the last part of the pool free, unless it holds little.
    pub(super) fn check_taken(&self, index: usize, before: usize) -> Result<(), String> {
        let Some(connection) = &self.lines[index].connection else { return Ok(()) };
        let (held, taken) = (connection.held(), self.front.pool.taken());
        let limits = self.front.memory.limits();
        // What is guaranteed, and a chunk of a reply that is continued.
        let little = 2 * limits.guaranteed();
        let shared = limits.size() - limits.size() / 8;
        if held > before && held > little && taken > shared + little {
            return Err(format!(
                "client {index} holds {held} bytes, and {taken} of {} are taken",
                limits.size()
            ));
        }
        Ok(())
    }

    /// What a request waited in front of the shard, by kind, is its time less that in the shard.
    pub(super) fn check_waits(
        &self,
        counted: &CompletedRequest,
        flight: &Flight,
    ) -> Result<(), String> {
        let is_whole = (counted.offset, counted.len) == (flight.bio.offset, flight.bio.len);
        if !is_whole || flight.answered {
            return Ok(());
        }
        let in_shard = self.now.since(flight.at);
        let waited = counted.total_ns.saturating_sub(in_shard);
        let sum = front_waits(counted);
        if counted.total_ns < in_shard || sum + 1000 < waited || sum > waited / 2 * 3 + 1000 {
            return Err(format!(
                "waits of {sum} ns are counted of {} ns, {in_shard} in the shard: {counted:?}",
                counted.total_ns
            ));
        }
        Ok(())
    }

    /// How long a request waited before its bio, as virtual time says; none if its connection is closed.
    pub(super) fn waited(&self, connection: u32, cookie: u64) -> Option<u64> {
        let id = |line: &Line| line.connection.as_ref().map(|it| it.id());
        let line = self.lines.iter().find(|line| id(line) == Some(connection))?;
        Some(line.waits.get(&cookie).copied().unwrap_or(0))
    }

    /// What is counted as a request's waits is what it waited.
    pub(super) fn check_waited(
        counted: &CompletedRequest,
        flight: &Flight,
        waited: u64,
    ) -> Result<(), String> {
        let is_whole = (counted.offset, counted.len) == (flight.bio.offset, flight.bio.len);
        let sum = front_waits(counted);
        if is_whole && !flight.answered && (sum + 1000 < waited || sum > waited / 2 * 3 + 1000) {
            return Err(format!(
                "a request waited {waited} ns, and {sum} are counted: {counted:?}"
            ));
        }
        Ok(())
    }

    /// Counts the time until the next instant for what waits: requests, and clients that the server does not read from for want of memory or
    /// slots.
    pub(super) fn count_blocked(&mut self, next: Instant) -> Result<(), String> {
        let lasts = next.since(self.now);
        self.count_waits(lasts)?;
        for line in self.lines.iter_mut().filter(|line| line.client.waiting() > 0) {
            let waits = line.connection.as_ref().map(|connection| connection.stopped_by());
            let is_full = line.unread() >= line.client.up.room;
            if is_full && matches!(waits, Some(WaitsFor::Buffer | WaitsFor::Room)) {
                line.blocked_ns += lasts;
            }
        }
        Ok(())
    }

    /// Counts time for which requests wait; on a quiet export none waits long for a buffer.
    fn count_waits(&mut self, lasts: u64) -> Result<(), String> {
        let quiet = self.scenario.quiet as usize;
        for (index, line) in self.lines.iter_mut().enumerate() {
            let Some(connection) = &line.connection else { continue };
            let waits = |one: &&FrontRequest| {
                let what = one.waits_for();
                one.origin != Origin::Reread
                    && (one.was_limited()
                        || matches!(what, WaitsFor::Freeze | WaitsFor::Buffer | WaitsFor::Room))
            };
            for one in connection.waiting().filter(waits) {
                *line.waits.entry(one.request.cookie).or_default() += lasts;
            }
            let waits = connection.buffer_waits() > 0;
            line.buffer_ns = if waits { line.buffer_ns + lasts } else { 0 };
            if index >= quiet || self.is_ending {
                continue;
            }
            self.met.longest_buffer_us = self.met.longest_buffer_us.max(line.buffer_ns / US);
            if line.buffer_ns > BUFFER_NS {
                let wants = connection.wants(&self.front.memory.limits());
                return Err(format!("client {index} waits for a buffer for 25 ms: {wants:?}"));
            }
        }
        Ok(())
    }

    /// What the clients of a quiet export noticed of the others.
    pub(super) fn check_quiet(&self, alone: &Self) -> Result<(), String> {
        let lasted = self.now.since(Instant(headworks_core::time::SEC));
        // What they have at once may come in one burst here and in several alone, and few slots take it one after the other.
        let at_once = self.scenario.quiet * self.scenario.quiet_clients().depth;
        let burst = QUIET_NS * at_once / u64::from(alone.scenario.slots);
        for (index, (line, before)) in self.lines.iter().zip(&alone.lines).enumerate() {
            let (took, took_alone) = (percentile(&line.took), percentile(&before.took));
            if took > 2 * took_alone + burst.max(MS) {
                return Err(format!(
                    "client {index}: its 99th percentile is {} us beside others, {} alone",
                    took / 1000,
                    took_alone / 1000
                ));
            }
            if line.blocked_ns > lasted / BLOCKED_PART {
                let blocked = line.blocked_ns / MS;
                return Err(format!(
                    "client {index} was not received from for {blocked} of {} ms",
                    lasted / MS
                ));
            }
        }
        Ok(())
    }
}

/// What is counted of a request's waits before its bio.
fn front_waits(counted: &CompletedRequest) -> u64 {
    let kinds = [WaitKind::Limit, WaitKind::Buffer];
    let counted = kinds.map(|kind| match counted.front.bucket(kind) {
        0 => 0,
        _ => counted.front.at_most(kind),
    });
    counted.iter().sum()
}

/// The 99th percentile; 0 of nothing.
fn percentile(took: &[u64]) -> u64 {
    let mut sorted = took.to_vec();
    sorted.sort_unstable();
    sorted.get((sorted.len() * 99 / 100).min(sorted.len().saturating_sub(1))).copied().unwrap_or(0)
}
