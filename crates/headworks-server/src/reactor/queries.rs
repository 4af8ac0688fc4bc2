//! Answers to queries of the control socket, between two turns.
//!
//! ```text
//!   Set --input, with a token--> shard --Notice::Set, at once or when the queue has drained--> answer
//!    `-- the server stops: the channel is dropped ------------------> the waiter ends with ESHUTDOWN
//! ```

use headworks_core::{Control, DeviceId, Input, Instant, IoError, Op, Status, VolumeId};

use super::{Reactor, in_flight, latency, targets};
use crate::clients::client::ShardClient;
use crate::observe::latency::usage::VolumeUse;
use crate::reactor::messages::in_flight::{Unanswered, WaitPlace};
use crate::reactor::messages::query::{
    CacheReport, ConnectionReport, ControlQuery, DeviceReport, FailedRange, OpCounts, QueryAnswer,
    VolumeReport,
};

/// Pending changes of options; more than clients of the control socket. One whose client gave up stays until the shard
/// answers.
const SETS_MAX: usize = 64;

/// Latency tables (6 KiB and 12 KiB for each operation in use) copied in one turn: half a millisecond at most.
pub(super) const TABLES_MAX: usize = 32;

/// Changes of options that the shard has not answered.
#[derive(Default)]
pub(super) struct Sets {
    waiting: Vec<(u32, QueryAnswer<Status>)>,
    last_token: u32,
}

impl Sets {
    /// Ends the waits of all pending changes.
    pub fn abandon(&mut self) {
        self.waiting.clear();
    }
}

impl Reactor {
    pub(super) fn on_question(&mut self, now: Instant, question: ControlQuery) {
        // The client may have given up; a send to it may fail.
        match question {
            ControlQuery::Device { device, volumes, answer } => {
                if let Some(report) = self.report_device(now, device, &volumes) {
                    let _ = answer.send(report);
                }
            }
            ControlQuery::Elevator { device, answer } => {
                let state = self.parts.driver.shard().elevator_state(now, device);
                let _ = answer.send(state.map(Box::new));
            }
            ControlQuery::Volume { volume, answer } => {
                if let Some(report) = self.report_volume(volume) {
                    let _ = answer.send(report);
                }
            }
            ControlQuery::Turns { answer } => {
                let _ = answer.send(*self.parts.driver.shard().turn_stats());
            }
            ControlQuery::Exports { answer } => {
                let _ = answer.send(self.report_exports());
            }
            ControlQuery::Drain { volume, answer } => {
                let bytes = self.parts.driver.shard().dirty_bytes(volume).unwrap_or(0);
                let (told, status) = std::sync::mpsc::channel();
                self.drain(volume, told);
                let _ = answer.send((bytes, status));
            }
            ControlQuery::Freeze { volume, limit_ns, answer } => {
                let _ = answer.send(self.freeze_one(now, volume, limit_ns));
            }
            ControlQuery::FrozenWrites { volume, answer } => {
                let _ = answer.send(self.door.writes_in_flight(&mut self.parts, volume));
            }
            ControlQuery::Thaw { volume, answer } => {
                let _ = answer.send(self.door.thaw_volume(&mut self.parts, now, volume));
            }
            ControlQuery::Latency { from, answer } => {
                let _ = answer.send(latency::report_latency(&self.door, &mut self.parts.io, from));
            }
            ControlQuery::Slow { export, device, filter, answer } => {
                let _ = answer.send(latency::report_slow(
                    &self.door,
                    &mut self.parts,
                    now,
                    (export, device),
                    filter,
                ));
            }
            ControlQuery::SlowestExports { filter, answer } => {
                let _ = answer.send(latency::report_slowest_exports(
                    &self.parts.io.latency,
                    now,
                    filter,
                ));
            }
            ControlQuery::DeviceUses { answer } => {
                let mut all = Vec::new();
                let keep = |volume, device, used| all.push(VolumeUse { volume, device, used });
                self.parts.driver.shard().device_uses(keep);
                let _ = answer.send(all);
            }
            ControlQuery::Usage { times, answer } => {
                let _ = answer.send(self.ticks.usage.during(&times));
            }
            ControlQuery::InFlight { from, answer } => {
                let report = in_flight::report_in_flight(&self.door, &mut self.parts, now, from);
                let _ = answer.send(report);
            }
            ControlQuery::LastErrors { answer } => {
                let _ = answer.send((now, self.errors.last()));
            }
            ControlQuery::BioWaits { ids, answer } => {
                let _ = answer.send(self.parts.driver.shard().bio_waits(&ids));
            }
            ControlQuery::Connections { from, answer } => {
                let _ = answer.send(self.report_connections(now, from));
            }
            ControlQuery::Owner { export, tenant, answer } => {
                self.door.exports.set_owner(export, tenant);
                let _ = answer.send(());
            }
            ControlQuery::Set { device, tunable, value, answer } => {
                self.set(answer, |token| Control::Set { device, tunable, value, token });
            }
            ControlQuery::SetDirty { tunable, value, answer } => {
                self.set(answer, |token| Control::SetDirty { tunable, value, token });
            }
            ControlQuery::Cache { answer } => {
                let shard = self.parts.driver.shard();
                let report = CacheReport { cache: shard.cache_stats(), dirty: shard.dirty_stats() };
                let _ = answer.send(report);
            }
            ControlQuery::ExportBlocks { exports, answer } => {
                let shard = self.parts.driver.shard();
                let blocks = exports.iter().map(|export| shard.export_blocks(*export));
                let _ = answer.send(blocks.collect());
            }
            ControlQuery::Buffers { answer } => {
                let _ = answer.send(self.door.buffer_stats(&self.parts));
            }
            ControlQuery::BufferUsers { answer } => {
                let _ = answer.send(self.door.buffer_users(&mut self.parts));
            }
            ControlQuery::Failed { volume, answer } => {
                let mut ranges = Vec::new();
                self.parts.driver.shard().failed_ranges(volume, &mut ranges);
                let range = |(offset, len, error)| FailedRange { offset, len, error };
                let _ = answer.send(ranges.into_iter().map(range).collect());
            }
            ControlQuery::Tell { control, answer } => {
                // Inputs are handled in order, so this precedes everything received later.
                self.on_control(control);
                let _ = answer.send(());
            }
            ControlQuery::ExportIoprio { export, ioprio, answer } => {
                self.door.exports.set_ioprio(export, ioprio);
                self.for_each_connection(|connection| connection.follow(export, ioprio));
                let _ = answer.send(());
            }
            ControlQuery::SetLimits { target, limits, answer } => {
                self.door.limits.set(now, target, &limits);
                let _ = answer.send(());
            }
            ControlQuery::Targets { answer } => {
                let _ = answer.send(targets::report_targets(
                    now,
                    self.parts.driver.shard(),
                    &self.door.exports,
                ));
            }
            ControlQuery::SmallestLatency { device, answer } => {
                let _ = answer.send(self.parts.driver.watch_smallest_latency(now, device));
            }
            ControlQuery::Limits { answer } => {
                let _ = answer.send(self.door.limits.reports(now));
            }
            ControlQuery::ConnectionIoprio { connection: id, ioprio, answer } => {
                let mut found = false;
                self.for_each_connection(|connection| {
                    found |= connection.id() == id && connection.set_ioprio(ioprio);
                });
                let _ = answer.send(found);
            }
        }
    }

    /// Freezes a volume whose home is this shard.
    fn freeze_one(
        &mut self,
        now: Instant,
        volume: VolumeId,
        limit_ns: u64,
    ) -> Result<(), &'static str> {
        if !self.stop.is_running() || self.has_pause() {
            return Err("the server stops, or another takes over");
        }
        self.door.freeze_volume(&mut self.parts, now, volume, limit_ns)
    }

    /// Submits a change of an option, which the shard answers by its token.
    fn set(&mut self, answer: QueryAnswer<Status>, control: impl FnOnce(u32) -> Control) {
        let sets = &mut self.sets;
        if !self.stop.is_running() {
            return;
        }
        if sets.waiting.len() == SETS_MAX {
            let _ = answer.send(Err(IoError::Busy));
            return;
        }
        sets.last_token = sets.last_token.wrapping_add(1);
        let token = sets.last_token;
        sets.waiting.push((token, answer));
        self.parts.driver.push(Input::Control(control(token)));
    }

    /// Sends the shard's answers to their waiters.
    pub(super) fn answer_sets(&mut self) {
        for (token, status) in self.parts.io.sets.drain(..) {
            let waiting = &mut self.sets.waiting;
            if let Some(index) = waiting.iter().position(|(other, _)| *other == token) {
                let _ = waiting.swap_remove(index).1.send(status);
            }
        }
    }

    fn report_device(
        &self,
        now: Instant,
        device: DeviceId,
        volumes: &[VolumeId],
    ) -> Option<DeviceReport> {
        let shard = self.parts.driver.shard();
        let (queue, tags) = shard.queue_stats(device)?;
        let mut ops = [OpCounts::default(); Op::COUNT];
        for stats in volumes.iter().filter_map(|volume| shard.stats(*volume)) {
            OpCounts::add(&mut ops, stats);
        }
        Some(DeviceReport {
            state: shard.device_state(device)?,
            options: *shard.queue_options(device)?,
            queue,
            busy_ns: queue.busy_until(now),
            tags,
            tags_depth: shard.tag_options(device)?.depth,
            tags_free: shard.tags_free(device)?,
            smallest_ns: shard.smallest_latency(now, device),
            oldest: shard
                .oldest_command(device)
                .map(|command| Unanswered::of_command(now, device, command)),
            ops,
        })
    }

    fn report_volume(&self, volume: VolumeId) -> Option<VolumeReport> {
        let shard = self.parts.driver.shard();
        let (unflushed, suspect) = shard.unflushed(volume)?;
        Some(VolumeReport { stats: shard.stats(volume)?.clone(), unflushed, suspect })
    }

    fn report_connections(
        &mut self,
        now: Instant,
        from: u32,
    ) -> (Vec<ConnectionReport>, Option<u32>) {
        let mut some = Vec::new();
        for slot in self.parts.io.slots().skip(from as usize) {
            if some.len() == TABLES_MAX {
                return (some, Some(slot));
            }
            let Some((connection, _)) = self.parts.io.connection(slot) else { continue };
            let mut waiting = 0;
            connection.each_unanswered(now, |one, bio| {
                waiting += usize::from(bio.is_none() && one.place != WaitPlace::Elsewhere)
            });
            some.push(ConnectionReport {
                id: connection.id(),
                kind: connection.kind(),
                peer: connection.peer().to_owned(),
                listener: connection.listener().cloned(),
                chosen: connection.binding().map(|binding| (binding.export, binding.ioprio)),
                in_flight: connection.in_flight(),
                waiting,
                oldest_ns: connection.oldest_request_ns(now),
                latency: connection.latency().map(|(_, table)| table.clone()),
            });
        }
        (some, None)
    }

    pub(super) fn for_each_connection(&mut self, mut act: impl FnMut(&mut ShardClient)) {
        for slot in self.parts.io.slots() {
            if let Some((connection, _)) = self.parts.io.connection(slot) {
                act(connection);
            }
        }
    }
}
