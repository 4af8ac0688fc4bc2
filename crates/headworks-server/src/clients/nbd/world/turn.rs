//! A turn of the world: clients move bytes, connections receive, bios begin, replies are sent.

use std::io::{ErrorKind, Read, Write};

use headworks_core::Input;

use super::front::Line;
use super::{
    Event, Flight, IDLE_TURNS, QUIET_NS, STILL_TURNS, TURNS_MAX, World, WriteState, export,
};
use crate::clients::nbd::connection::{ConnectionEnd, ReceiveOutcome};
use headworks_front::WaitsFor;

impl World {
    /// Turns until nothing moves at this instant.
    pub(super) fn settle(&mut self) -> Result<(), String> {
        loop {
            self.turns += 1;
            if self.turns > TURNS_MAX {
                return Err(format!("{TURNS_MAX} turns: {}", self.left_over()));
            }
            let before = self.progress;
            for index in 0..self.lines.len() {
                self.step_client(index)?;
            }
            for index in 0..self.front.rings.len() {
                self.step_ring(index)?;
            }
            let worked = self.receive_all()? | self.receive_rings()?;
            self.take_inputs()?;
            let again = self.publish_rings()? | self.send_all()? | self.wake_all();
            self.check_pool()?;
            let moved = self.progress != before;
            self.idle_turns = if worked && !moved { self.idle_turns + 1 } else { 0 };
            if self.idle_turns >= IDLE_TURNS {
                return Err(format!("{IDLE_TURNS} turns count as work in which nothing moves"));
            }
            self.still_turns = if moved { 0 } else { self.still_turns + 1 };
            if self.still_turns >= STILL_TURNS {
                return Err(format!("{STILL_TURNS} turns wake connections and move nothing"));
            }
            if !worked && !moved && !again {
                if !self.front.paused && self.arm_rings() {
                    continue;
                }
                self.front.cut_payloads(self.now, &mut self.lines);
                self.check_pool()?;
                if self.wake_all() {
                    continue;
                }
                self.check_rest()?;
                return self.move_connections();
            }
        }
    }

    /// The client prepares, sends and takes what it may now.
    fn step_client(&mut self, index: usize) -> Result<(), String> {
        let (now, size) = (self.now, self.scenario.clients.size);
        let line = &mut self.lines[index];
        line.client.keep_time(now);
        for asked in line.client.prepare(now, &mut self.write_ids, size) {
            if asked.id > 0 {
                let (offset, len) = (asked.header.offset, asked.header.len);
                self.writes.push(WriteState { offset, len, ..WriteState::default() });
            }
        }
        self.deliver(index)?;
        self.take_replies(index)?;
        let line = &mut self.lines[index];
        if line.client.up.is_cut() && line.end.take().is_some() {
            self.met.vanished += 1;
            self.progress += 1;
        }
        Ok(())
    }

    /// Moves bytes of the client's stream into the server's socket.
    fn deliver(&mut self, index: usize) -> Result<(), String> {
        let now = self.now;
        let line = &mut self.lines[index];
        let unread = line.unread();
        let (client, Some(end)) = (&mut line.client, &mut line.end) else { return Ok(()) };
        let count = client.up.allowed(now, client.waiting(), unread);
        if count == 0 {
            return Ok(());
        }
        let sent = match end.write(client.bytes(count)) {
            Ok(sent) => sent,
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            // The server has closed; the replies say so.
            Err(_) => return Ok(()),
        };
        client.note_sent(now, sent);
        self.progress += sent as u64;
        for asked in client.asked.values().filter(|asked| asked.id > 0 && asked.end <= client.sent)
        {
            self.writes[asked.id as usize].is_whole = true;
        }
        Ok(())
    }

    fn take_replies(&mut self, index: usize) -> Result<(), String> {
        let now = self.now;
        loop {
            let line = &mut self.lines[index];
            let unread = line.unread_replies();
            if unread == 0 && line.connection.is_none() {
                // The server has closed, and it has everything.
                line.end = None;
            }
            let Some(end) = &mut line.end else { break };
            let count = line.client.down.allowed(now, unread, 0).min(1 << 20);
            if count == 0 {
                break;
            }
            let mut bytes = vec![0; count];
            let got = end.read(&mut bytes).map_err(|error| format!("client {index}: {error}"))?;
            line.client.down.note(now, got);
            self.progress += got as u64;
            let answers = line.client.understand(&bytes[..got]);
            for answer in answers.map_err(|rule| format!("client {index}: {rule}"))? {
                self.check_answer(index, &answer)?;
            }
        }
        let line = &mut self.lines[index];
        if line.end.is_none() && line.connection.is_none() {
            return self.connect_again(index);
        }
        Ok(())
    }

    fn connect_again(&mut self, index: usize) -> Result<(), String> {
        let (now, size) = (self.now, self.scenario.clients.size);
        let line = &mut self.lines[index];
        line.client.reconnect(now);
        let export = export(line, size);
        self.front.connect(now, line, &export)?;
        self.progress += 1;
        Ok(())
    }

    fn receive_all(&mut self) -> Result<bool, String> {
        if self.front.paused {
            return Ok(false);
        }
        let now = self.now;
        let (count, mut worked) = (self.lines.len(), false);
        let mut shares = self.front.begin_turn(count);
        let first = self.prng.below(count as u64) as usize;
        for index in (0..count).map(|at| (first + at) % count) {
            let line = &mut self.lines[index];
            if !line.hot && !line.is_readable() {
                continue;
            }
            self.note_window(index);
            let line = &mut self.lines[index];
            let held = line.connection.as_ref().map_or(0, |connection| connection.held());
            let (unread, bios) = (line.unread(), self.front.inputs.len());
            let parked = line.connection.as_ref().map_or(0, |connection| connection.parked());
            let received = self.front.receive(now, (index, &mut *line), &mut shares);
            let after = line.connection.as_ref().map_or(0, |connection| connection.parked());
            self.progress += (unread - line.unread()) as u64;
            self.progress += (self.front.inputs.len() - bios) as u64 + u64::from(parked != after);
            self.check_taken(index, held)?;
            self.note_short(bios);
            match received {
                ReceiveOutcome::Worked | ReceiveOutcome::Waits(WaitsFor::Turn) => worked = true,
                ReceiveOutcome::Waits(WaitsFor::Buffer | WaitsFor::Room) => self.met.waits += 1,
                ReceiveOutcome::Waits(WaitsFor::Freeze) => self.met.frozen += 1,
                ReceiveOutcome::End(end) => self.on_end(index, &end)?,
                _ => {}
            }
        }
        Ok(worked)
    }

    /// A connection has ended by itself: its client has vanished, or broke the protocol, which none does.
    fn on_end(&mut self, index: usize, end: &ConnectionEnd) -> Result<(), String> {
        if self.lines[index].end.is_some() {
            return Err(format!("client {index} is closed: {end:?}"));
        }
        self.close(index);
        Ok(())
    }

    pub(super) fn close(&mut self, index: usize) {
        let line = &mut self.lines[index];
        self.dying.extend(self.front.close(self.now, index, line).map(|one| *one));
        self.progress += 1;
    }

    /// Bios go to the device; what may be submitted now is checked.
    fn take_inputs(&mut self) -> Result<(), String> {
        let (inputs, deaths) = (std::mem::take(&mut self.front.inputs), self.met.deaths);
        for input in inputs {
            if self.met.deaths != deaths {
                // The process that had them is dead.
                break;
            }
            let Input::Bio(bio) = input else { continue };
            self.check_bio(&bio)?;
            self.progress += 1;
            let (connection, sequence) = (bio.id.connection, bio.id.sequence);
            let flight = Flight { bio, at: self.now, answered: false };
            self.flights.insert((connection, sequence), flight);
            if self.front.in_flight > self.scenario.slots {
                return Err("more bios than slots: the shard answers with no memory".into());
            }
            let event = Event::Done { connection, sequence };
            let export = bio.id.export.0;
            if self.scenario.quiet > 0 && export == 0 {
                self.plan_at(self.now.after(QUIET_NS), event);
            } else if !self.front.silent || export != self.front.troubled {
                self.plan(self.scenario.latency, event);
            } else if self.front.stuck {
                self.fail(connection, sequence)?;
            }
        }
        self.short.clear();
        Ok(())
    }

    fn send_all(&mut self) -> Result<bool, String> {
        let mut again = false;
        for index in 0..self.lines.len() {
            match self.front.send(self.now, (index, &mut self.lines[index])) {
                Ok((sent, due)) => {
                    self.progress += sent;
                    again |= due;
                }
                Err(fault) => {
                    let device = self.scenario.errors > 0 || self.scenario.stuck;
                    let is_troubled = self.lines[index].export == self.front.troubled;
                    if self.lines[index].end.is_some() && !(device && is_troubled) {
                        return Err(format!("client {index} is closed: {fault}"));
                    }
                    self.close(index);
                    again = true;
                }
            }
        }
        Ok(again)
    }

    /// Wakes what goes on now, as the reactor does after it has sent; returns whether anything does.
    fn wake_all(&mut self) -> bool {
        let (now, lines) = (self.now, &mut self.lines);
        let mut any = self.front.wake_waiters(lines);
        let dropped = self.front.give_way(now, lines);
        self.met.dropped += dropped;
        self.progress += dropped;
        any |= self.front.shorten_payloads(now, lines);
        any | self.front.wake_waiters(lines) | (dropped > 0)
    }

    /// Moves all connections once none has a request in the shard.
    fn move_connections(&mut self) -> Result<(), String> {
        let rests = |line: &Line| line.connection.as_ref().is_none_or(|it| it.is_at_rest());
        if !self.front.paused || !self.lines.iter().all(rests) || !self.rings_are_at_rest() {
            return Ok(());
        }
        let (now, size) = (self.now, self.scenario.clients.size);
        for line in &mut self.lines {
            let export = export(line, size);
            self.met.moved += u64::from(self.front.hand_over(now, line, &export));
            line.submitted.clear();
            line.waits.clear();
        }
        self.front.memory.clear_waiters();
        self.move_rings()?;
        self.end_pause();
        self.settle()
    }
}
