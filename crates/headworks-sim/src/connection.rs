//! A simulated connection: a job, its buffers, and the state of each bio.
//!
//! ```text
//!   Free --submit--> Waiting --Final-----------------> Free (poisoned)
//!                       `--Early--> Answered --Released--^
//! ```
//!
//! A bio's sequence is (count << 8 | slot): it increases, and leads to the buffer without a search.
//! Any other order of answers is a violation.

use headworks_core::time::SEC;
use headworks_core::{Bio, BioId, EXTENTS_BYTES, ExportId, Instant, ReplyStage, ShardId};

use crate::buffers::PoisonedBuffers;
use crate::oracle::Ticket;
use crate::workload::Job;

/// State of a bio, as its connection sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BioStage {
    /// The slot is free.
    #[default]
    Free,
    /// Submitted, and not answered.
    Waiting,
    /// Answered by a time-out; its buffer is not released.
    Answered,
}

/// A slot of a connection, with the bio that occupies it.
#[derive(Clone, Copy, Debug, Default)]
pub struct InFlightBio {
    /// The bio as it was submitted.
    pub bio: Bio,
    /// State of the bio.
    pub stage: BioStage,
    /// The bio is malformed and must be rejected.
    pub malformed: bool,
    /// It waited for limits and was submitted when its connection or its volume ended, whether or not the shard had room.
    pub was_released: bool,
    /// Virtual time of its submission.
    pub since: Instant,
    /// Its volume was shrunk below the end of the bio after submission.
    pub is_cut_off: bool,
    /// The other shard that the bio was forwarded to.
    pub holder: Option<ShardId>,
    /// The oracle's record of the bio.
    pub ticket: Ticket,
}

/// A connection of one job.
pub struct Connection {
    /// The connection number in every bio id.
    pub id: u32,
    /// The shard of its volume.
    pub home: ShardId,
    /// The workload that it runs.
    pub job: Job,
    /// Its memory, one buffer for each slot.
    pub buffers: PoisonedBuffers,
    /// State of each request slot.
    pub slots: Vec<InFlightBio>,
    /// The shard had no free bio slot at the last attempt to submit.
    pub starved: bool,
    /// A submission is scheduled, or the connection is in the ready list.
    pub scheduled: bool,
    /// The export that its bios are charged to.
    pub export: ExportId,
    /// Submits nothing: its volume is removed, or about to be.
    pub paused: bool,
    /// Bios until it closes and reopens; 0 means never.
    pub until_close: u32,
    /// Answers in each second of virtual time.
    pub answers: Vec<u32>,
    free: Vec<u8>,
    count: u64,
}

impl Connection {
    /// A connection for `job` on the shard `home`.
    #[must_use]
    pub fn new(id: u32, home: ShardId, job: Job) -> Self {
        let depth = usize::from(job.options.depth);
        assert!((1..=256).contains(&depth), "a slot fits 8 bits");
        let close_after = job.options.close_after;
        let largest = *job.options.sizes.iter().max().expect("four sizes");
        let largest = largest.max(EXTENTS_BYTES);
        Self {
            id,
            home,
            buffers: PoisonedBuffers::new(depth, largest as usize),
            job,
            slots: vec![InFlightBio::default(); depth],
            starved: false,
            scheduled: false,
            export: ExportId(0),
            paused: false,
            until_close: close_after,
            answers: Vec::new(),
            free: (0..depth as u16).rev().map(|slot| slot as u8).collect(),
            count: 0,
        }
    }

    /// Whether it has a bio to submit and a free slot.
    #[must_use]
    pub fn can_submit(&self) -> bool {
        self.job.left > 0 && !self.free.is_empty() && !self.paused
    }

    /// Number of bios in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether its job has ended and no bio is in flight.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.job.left == 0 && self.in_flight() == 0
    }

    /// Counts an answer at `now`.
    pub fn count_answer(&mut self, now: Instant) {
        let second = (now.0 / SEC) as usize;
        let seconds = self.answers.len().max(second + 1);
        self.answers.resize(seconds, 0);
        self.answers[second] += 1;
    }

    /// Submits the next bio; returns it with its slot, and whether it is malformed.
    pub fn submit(&mut self, now: Instant) -> (Bio, usize, bool) {
        let slot = self.free.pop().expect("called only with a free slot");
        self.count += 1;
        let id = BioId {
            connection: self.id,
            volume: self.job.options.volume,
            export: self.export,
            sequence: self.count << 8 | u64::from(slot),
        };
        let (bio, malformed) = self.job.next(id);
        let slot = usize::from(slot);
        self.slots[slot] = InFlightBio {
            bio,
            stage: BioStage::Waiting,
            malformed,
            since: now,
            ..InFlightBio::default()
        };
        (bio, slot, malformed)
    }

    /// Whether it closes now, after the bio just submitted.
    pub fn closes(&mut self) -> bool {
        let closes = self.until_close == 1;
        self.until_close = self.until_close.saturating_sub(1);
        closes
    }

    /// Reopens under another id while the bios of the old id are still in flight.
    pub fn reopen(&mut self, id: u32) {
        self.id = id;
        self.until_close = self.job.options.close_after;
    }

    /// The slot of a bio in flight. A read that goes on at the base of its volume has the base's id there.
    #[must_use]
    pub fn slot(&self, id: BioId) -> Option<usize> {
        let slot = (id.sequence & 0xff) as usize;
        let flight = self.slots.get(slot)?;
        let own = BioId { volume: id.volume, ..flight.bio.id };
        (flight.stage != BioStage::Free && own == id).then_some(slot)
    }

    /// Advances the state of a bio; `None` if this answer is not allowed now.
    pub fn answer(&mut self, slot: usize, stage: ReplyStage) -> Option<()> {
        let flight = &mut self.slots[slot];
        flight.stage = match (flight.stage, stage) {
            (BioStage::Waiting, ReplyStage::Final) => BioStage::Free,
            (BioStage::Waiting, ReplyStage::Early) => BioStage::Answered,
            (BioStage::Answered, ReplyStage::Released) => BioStage::Free,
            _ => return None,
        };
        if flight.stage == BioStage::Free {
            self.free.push(slot as u8);
        }
        Some(())
    }

    /// Poisons the buffer of a finished bio.
    pub fn poison(&mut self, slot: usize) {
        let bio = self.slots[slot].bio;
        let len = bio.op.buffer_len(bio.len);
        if len > 0 {
            self.buffers.poison(slot, len);
        }
    }

    /// Resets all slots after a power cut.
    pub fn reset(&mut self) {
        for slot in 0..self.slots.len() {
            if self.slots[slot].stage != BioStage::Free {
                self.poison(slot);
                self.slots[slot].stage = BioStage::Free;
                self.free.push(slot as u8);
            }
        }
        self.job.left = 0;
        (self.starved, self.scheduled, self.paused) = (false, false, false);
    }

    /// Bytes of its buffer that a bio uses.
    #[must_use]
    pub fn data_len(bio: &Bio) -> usize {
        bio.op.buffer_len(bio.len) as usize
    }
}
