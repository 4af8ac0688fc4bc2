//! Who waits for what, and who goes on.
//!
//! Lines are first come, first served. Whoever leaves the line of credit or of frames has what it waited for: a wake-up that
//! carries nothing would lose the race to a newcomer.

use crate::bio::DeviceId;
use crate::cache::waiters::operation::{OpStep, Operation, WaitFor};
use crate::cache::{Cache, TimerKind, Turn};
use crate::error::IoError;
use crate::list::Fifo;
use crate::slab::{NIL, Slab};
use crate::time::Instant;
use crate::wait_times::{WaitKind, WaitRecorder, WaitTimes};
use crate::writeback::WriterId;

/// The lines of a cache.
#[derive(Debug)]
pub(in crate::cache) struct WaitLists {
    /// Can go on.
    pub ready: Fifo,
    /// Have copied as much as one may in a turn.
    pub later: Fifo,
    /// Wait for a frame.
    pub frames: Fifo,
    /// Wait for a bio of the cache's own, by account.
    pub bios: Vec<Fifo>,
    /// Wait for dirty credit, by device.
    pub credit: Vec<Fifo>,
    /// The first one there was refused, by device.
    pub refused: Vec<bool>,
    /// Wait for the end of their writer's pause, by writer.
    pub paused: Vec<Fifo>,
}

impl WaitLists {
    pub fn new(devices: usize, writers: u32) -> Self {
        Self {
            ready: Fifo::new(),
            later: Fifo::new(),
            frames: Fifo::new(),
            bios: (0..2 * devices).map(|_| Fifo::new()).collect(),
            credit: (0..devices).map(|_| Fifo::new()).collect(),
            refused: vec![false; devices],
            paused: (0..=writers).map(|_| Fifo::new()).collect(),
        }
    }

    pub fn next_ready(&mut self, ops: &mut Slab<Operation>) -> Option<u32> {
        self.ready.pop(ops)
    }
}

impl Cache {
    /// Puts an operation where what it waits for will find it.
    pub(in crate::cache) fn park(&mut self, turn: &mut Turn, slot: u32, park: WaitFor) {
        self.stirred = true;
        self.ops[slot].waits_for = park;
        self.begin_wait(turn.now, slot);
        self.count_wait(park);
        match park {
            WaitFor::Nothing | WaitFor::Slot => unreachable!("this is no place to wait"),
            WaitFor::Folio(unit) => {
                self.ops[slot].next = std::mem::replace(&mut self.folios[unit].waiters, slot);
            }
            WaitFor::Turn => {
                self.lines.later.push(&mut self.ops, slot);
                turn.timers.set(self.timer_base + TimerKind::Turn as u32, turn.now);
            }
            WaitFor::Frames => self.lines.frames.push(&mut self.ops, slot),
            WaitFor::Bios(account) => {
                self.lines.bios[account as usize].push(&mut self.ops, slot);
            }
            WaitFor::Credit(_) => {
                let device = self.device_of(slot);
                self.lines.credit[device].push(&mut self.ops, slot);
            }
            WaitFor::Writer => {
                let writer = self.ops[slot].writer;
                self.lines.paused[writer as usize].push(&mut self.ops, slot);
                self.arm_writer(turn, writer);
            }
            WaitFor::Range(other) => self.ranges.wait(&mut self.ops, other, slot),
            WaitFor::Sync => self.wait_for_sync(turn, slot),
            // These are found by the answers of the device.
            WaitFor::Own | WaitFor::Below => {}
        }
    }

    fn begin_wait(&mut self, now: Instant, slot: u32) {
        let waits = &mut self.waits[slot as usize];
        if self.ops[slot].waits == NIL {
            self.ops[slot].waits = slot;
            *waits = WaitRecorder::default();
        }
        waits.begin(now);
    }

    /// An operation is parked no longer.
    pub(in crate::cache) fn end_wait(&mut self, now: Instant, op: &mut Operation) {
        let park = std::mem::take(&mut op.waits_for);
        if op.waits == NIL {
            return;
        }
        let waits = &mut self.waits[op.waits as usize];
        match park {
            WaitFor::Nothing | WaitFor::Slot => {}
            WaitFor::Writer | WaitFor::Credit(_) => waits.end(now, WaitKind::Dirty),
            _ => waits.end_below(now),
        }
    }

    /// All that an operation waited for.
    pub(in crate::cache) fn wait_times(&self, op: &Operation) -> WaitTimes {
        if op.waits == NIL { WaitTimes::NONE } else { self.waits[op.waits as usize].wait_times() }
    }

    fn count_wait(&mut self, park: WaitFor) {
        let kind = match park {
            WaitFor::Frames | WaitFor::Bios(_) => 0,
            WaitFor::Credit(_) => 1,
            WaitFor::Writer => 2,
            WaitFor::Range(_) => 4,
            WaitFor::Folio(_) => 5,
            _ => return,
        };
        self.stats.waits[kind] += 1;
    }

    pub(in crate::cache) fn device_of(&self, slot: u32) -> usize {
        let volume = self.ops[slot].bio.id.volume;
        usize::from(self.volumes[usize::from(volume.0)].device.0)
    }

    /// It can go on.
    pub(in crate::cache) fn ready(&mut self, slot: u32) {
        self.lines.ready.push(&mut self.ops, slot);
    }

    /// Something of a folio ended: whoever waited for it goes on, in the order in which it came. Of a fill that failed, those
    /// whose cursor is within `failed` (blocks of the volume) are over.
    pub(in crate::cache) fn wake_folio(
        &mut self,
        unit: u32,
        failed: Option<(u64, u64, IoError)>,
        below: WaitTimes,
    ) {
        let mut waiting = std::mem::replace(&mut self.folios[unit].waiters, NIL);
        // The list is the youngest first.
        let mut oldest = NIL;
        while waiting != NIL {
            let next = std::mem::replace(&mut self.ops[waiting].next, oldest);
            oldest = std::mem::replace(&mut waiting, next);
        }
        while oldest != NIL {
            let slot = oldest;
            oldest = self.ops[slot].next;
            self.waits[slot as usize].below = below;
            if let Some((first, end, error)) = failed {
                let op = &self.ops[slot];
                let block = op.at() >> crate::cache::pool::folio::BLOCK_SHIFT;
                // Who writes the whole block, or waits for a write-out, does not need what could not be read.
                let needs = match op.step {
                    OpStep::Read => true,
                    OpStep::Write => !self.part(op).whole,
                    _ => false,
                };
                if needs && (first..end).contains(&block) {
                    self.ops[slot].status = Err(error);
                }
            }
            self.ready(slot);
        }
    }

    /// Hands free credit to whoever waits for it, in turn.
    pub(in crate::cache) fn serve_credit(&mut self) {
        for device in 0..self.lines.credit.len() {
            while let Some(slot) = self.lines.credit[device].head() {
                let WaitFor::Credit(want) = self.ops[slot].waits_for else {
                    unreachable!("it waits for credit")
                };
                let id = DeviceId(device as u16);
                let class = self.ops[slot].bio.ioprio.class();
                // The limit may have been lowered since it asked.
                let most = self.credit_most(id);
                if want > most {
                    self.ops[slot].waits_for = WaitFor::Credit(most);
                    self.lines.refused[device] = false;
                    continue;
                }
                // Once refused, the throttle knows what it wants and says when that is there.
                if self.lines.refused[device] && !self.throttle.freed(id) {
                    break;
                }
                self.lines.refused[device] = !self.throttle.reserve_for(id, want, class);
                if self.lines.refused[device] {
                    break;
                }
                self.ops[slot].credit += want;
                self.lines.credit[device].pop(&mut self.ops);
                self.ready(slot);
            }
        }
    }

    /// Write-out of a device has come to a stop: whoever waits for credit, or pauses, asks again, and hears of the error if there
    /// is no room.
    pub(in crate::cache) fn free_writers(&mut self, device: usize) {
        let mut line = std::mem::replace(&mut self.lines.credit[device], Fifo::new());
        self.lines.refused[device] = false;
        self.throttle.forget_refused(DeviceId(device as u16));
        self.lines.ready.append(&mut self.ops, &mut line);
        for writer in 0..self.lines.paused.len() {
            let head = self.lines.paused[writer].head();
            if head.is_some_and(|slot| self.device_of(slot) == device) {
                let mut line = std::mem::replace(&mut self.lines.paused[writer], Fifo::new());
                self.lines.ready.append(&mut self.ops, &mut line);
            }
        }
    }

    /// Whether somebody waits for credit of a device.
    pub(in crate::cache) fn waits_for_credit(&self, device: usize) -> bool {
        self.lines.credit[device].head().is_some()
    }

    /// The time at which a writer may go on, if it must wait.
    pub(in crate::cache) fn pause_of(&mut self, turn: &Turn, writer: u32) -> Option<Instant> {
        if writer == NIL {
            return None;
        }
        match self.throttle.paused_until(WriterId(writer)) {
            Some(until) if until <= turn.now => self.throttle.resume(turn.now, WriterId(writer)),
            paused => paused,
        }
    }

    /// Whether bios of a writer wait for the end of its pause.
    pub(in crate::cache) fn has_paused(&self, writer: u32) -> bool {
        self.lines.paused[writer as usize].head().is_some()
    }

    fn arm_writer(&mut self, turn: &mut Turn, writer: u32) {
        // If it is over by now, the timer says so at once.
        let until = self.pause_of(turn, writer).unwrap_or(turn.now);
        turn.timers.set(self.timer_base + TimerKind::Writer as u32 + writer, until);
    }

    /// A writer's pause is over: what waited goes on until it has to pause again.
    pub(in crate::cache) fn resume_writer(&mut self, turn: &mut Turn, writer: u32) {
        loop {
            if self.pause_of(turn, writer).is_some() {
                if self.has_paused(writer) {
                    self.arm_writer(turn, writer);
                }
                return;
            }
            let Some(slot) = self.lines.paused[writer as usize].pop(&mut self.ops) else {
                return;
            };
            self.resume(turn, slot);
        }
    }

    /// A connection is gone. What it brought goes on without a pause, in nobody's name.
    pub(in crate::cache) fn release_writer(&mut self, turn: &mut Turn, connection: u32) {
        let Some(writer) = self.throttle.close(connection) else {
            return;
        };
        turn.timers.clear(self.timer_base + TimerKind::Writer as u32 + writer.0);
        for slot in 0..self.ops.capacity() {
            if self.ops.is_taken(slot) && self.ops[slot].bio.id.connection == connection {
                self.ops[slot].writer = NIL;
            }
        }
        while let Some(slot) = self.lines.paused[writer.0 as usize].pop(&mut self.ops) {
            self.stats.closed_paused += 1;
            self.ready(slot);
        }
    }
}
