//! A feeder's end: slots, a ring of bios out, a ring of answers in.
//!
//! ```text
//!   slot: yours --put--> batch --submit--> in flight --answer, Final or Released--> yours
//!                                             `--answer, Early--> still in flight (timed out; `Released` follows)
//! ```

use std::sync::Arc;

use headworks_core::{Bio, BioFlags, BioId, Ioprio, Op, ReplyStage, Status};

use super::bed::Bed;
use super::{Buffers, Ends};
use crate::engine::Waker;
use crate::ring::{Consumer, Producer, Sleeper};

/// Looks at the ring before the CPU is given away, each about 40 ns: an owner that is awake on another CPU answers a batch
/// in a few microseconds.
const SPINS: u32 = 64;
/// Times that the CPU is given away before a sleep. An owner that shares this CPU runs in them; a sleep would cost it a
/// system call to end.
const YIELDS: u32 = 16;

/// What to do with a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Io {
    /// What.
    pub op: Op,
    /// First byte on the volume.
    pub offset: u64,
    /// Bytes, from the start of the slot's buffer; 0 for a flush.
    pub len: u32,
    /// How.
    pub flags: BioFlags,
    /// Before whom.
    pub ioprio: Ioprio,
}

/// What became of a slot's bio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Which slot.
    pub slot: u32,
    /// How it went. Of a `Released` slot the outcome was told before.
    pub status: Status,
    /// The read data are all zeros and are not in the buffer.
    pub hole: bool,
    /// Whether the slot is yours again: always, but after `Early`.
    pub stage: ReplyStage,
}

/// How often one end of the rings did what costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingCounts {
    /// Messages pushed.
    pub messages: u64,
    /// Batches in which they went.
    pub pushes: u64,
    /// System calls to wake the other end.
    pub wakes: u64,
    /// Own sleeps.
    pub sleeps: u64,
}

/// One feeder's way to the device. It may move between threads, and is used by one at a time.
pub struct Handle {
    index: u32,
    buffers: Arc<Buffers>,
    in_flight: Vec<bool>,
    batch: Vec<Bio>,
    bios: Producer<Bio>,
    answers: Consumer<Answer>,
    sleeper: Arc<Sleeper>,
    bed: Arc<Bed>,
    owner: Waker,
    ends: Arc<Ends>,
    counts: RingCounts,
}

/// What a handle is made of.
pub(super) struct Parts {
    pub index: u32,
    pub depth: u32,
    pub buffers: Arc<Buffers>,
    pub bios: Producer<Bio>,
    pub answers: Consumer<Answer>,
    pub sleeper: Arc<Sleeper>,
    pub bed: Arc<Bed>,
    pub owner: Waker,
    pub ends: Arc<Ends>,
}

impl Handle {
    pub(super) fn new(parts: Parts) -> Self {
        let Parts { index, depth, buffers, bios, answers, sleeper, bed, owner, ends } = parts;
        Self {
            index,
            buffers,
            in_flight: vec![false; depth as usize],
            batch: Vec::with_capacity(depth as usize),
            bios,
            answers,
            sleeper,
            bed,
            owner,
            ends,
            counts: RingCounts::default(),
        }
    }

    /// How many slots there are; they are called `0..depth`.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.in_flight.len() as u32
    }

    /// The bytes of a slot.
    ///
    /// # Panics
    /// If the slot is not yours at present.
    pub fn buffer(&mut self, slot: u32) -> &mut [u8] {
        assert!(!self.in_flight[slot as usize], "slot {slot} is in flight");
        // SAFETY: inside the mapping, which lives as long as we; nobody else touches a slot that is not in flight.
        unsafe { std::slice::from_raw_parts_mut(self.buffers.slot(slot), self.buffers.slot_bytes) }
    }

    /// Adds a slot to the batch. It is not yours until it is answered.
    ///
    /// # Panics
    /// If the slot is not yours at present, or if its buffer is smaller than `io` says.
    #[inline]
    pub fn put(&mut self, slot: u32, io: Io) {
        let known = &mut self.in_flight[slot as usize];
        assert!(!*known, "slot {slot} is in flight");
        let bytes = io.op.buffer_len(io.len);
        let fits = bytes as usize <= self.buffers.slot_bytes;
        assert!(fits, "{bytes} bytes in a slot of {}", self.buffers.slot_bytes);
        *known = true;
        self.batch.push(Bio {
            id: BioId { connection: self.index, sequence: slot.into(), ..BioId::default() },
            offset: io.offset,
            len: io.len,
            op: io.op,
            flags: io.flags,
            ioprio: io.ioprio,
        });
    }

    /// Sends the batch.
    pub fn submit(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        self.counts.messages += self.batch.len() as u64;
        self.counts.pushes += 1;
        if self.bios.push(&mut self.batch) {
            self.counts.wakes += 1;
            self.owner.wake();
        }
        assert!(self.batch.is_empty(), "a ring has room for every slot");
    }

    /// Takes up to `limit` answers that are there; returns how many.
    #[inline]
    pub fn reap(&mut self, limit: usize, answers: &mut Vec<Answer>) -> usize {
        let first = answers.len();
        let count = self.answers.pop(limit, answers);
        for answer in &answers[first..] {
            self.in_flight[answer.slot as usize] = answer.stage == ReplyStage::Early;
        }
        count
    }

    /// Waits until there is an answer; false when the owner is gone and none will come.
    pub fn wait(&mut self) -> bool {
        for look in 0..SPINS + YIELDS {
            if !self.answers.is_empty() {
                return true;
            }
            match look < SPINS {
                true => std::hint::spin_loop(),
                false => std::thread::yield_now(),
            }
        }
        loop {
            // Before the ring: what the owner said last is in it when it is gone.
            let over = self.ends.is_over();
            if !self.answers.is_empty() {
                return true;
            }
            if over {
                return false;
            }
            if self.sleeper.may_sleep(|| self.answers.is_empty()) {
                self.counts.sleeps += 1;
                self.bed.sleep();
                self.sleeper.woken();
            }
        }
    }

    /// What it cost so far.
    #[must_use]
    pub fn counts(&self) -> RingCounts {
        self.counts
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // What was put and not submitted never was; what is in flight goes on without us, its buffer stays with the owner.
        self.ends.close();
        self.owner.wake();
    }
}
