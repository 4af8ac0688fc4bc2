//! A frontend's connection: a job, its buffers, and what became of each bio.
//!
//! ```text
//!   Free --submit--> Waiting --Final-----------------> Free (poisoned)
//!                       `--Early--> Answered --Released--^
//! ```
//!
//! A sequence is (count << 8 | slot), so it counts up and leads to its buffer without a search. Any answer that does not fit
//! the picture is a violation.

use headworks_core::{Bio, BioId, EXTENTS_BYTES, ReplyStage, ShardId};

use crate::buffers::PoisonedBuffers;
use crate::oracle::Ticket;
use crate::workload::Job;

/// Where a bio is, as its connection sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BioStage {
    /// Nobody's.
    #[default]
    Free,
    /// Submitted.
    Waiting,
    /// Answered by time-out; its buffer is still out.
    Answered,
}

/// A bio on its way.
#[derive(Clone, Copy, Debug, Default)]
pub struct InFlightBio {
    /// What was asked.
    pub bio: Bio,
    /// Where it is.
    pub stage: BioStage,
    /// It must be refused.
    pub malformed: bool,
    /// Its volume became shorter than its end meanwhile.
    pub is_cut_off: bool,
    /// The other shard that got it.
    pub holder: Option<ShardId>,
    /// The oracle's.
    pub ticket: Ticket,
}

/// See the head of this file.
pub struct Connection {
    /// Its number, the same in every id.
    pub id: u32,
    /// The shard of its volume.
    pub home: ShardId,
    /// What it does.
    pub job: Job,
    /// Its memory, one buffer a slot.
    pub buffers: PoisonedBuffers,
    /// By slot.
    pub slots: Vec<InFlightBio>,
    /// The shard had no room when it wanted to submit.
    pub starved: bool,
    /// It will submit at a time already set, or is listed to.
    pub planned: bool,
    /// It submits nothing: its volume is about to leave, or away.
    pub paused: bool,
    /// Bios until it closes; 0: it stays.
    pub until_close: u32,
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
            planned: false,
            paused: false,
            until_close: close_after,
            free: (0..depth as u16).rev().map(|slot| slot as u8).collect(),
            count: 0,
        }
    }

    /// Whether it has a bio to submit and a slot for it.
    #[must_use]
    pub fn can_submit(&self) -> bool {
        self.job.left > 0 && !self.free.is_empty() && !self.paused
    }

    /// Bios that are not over.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether all its bios are over.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.job.left == 0 && self.in_flight() == 0
    }

    /// The next bio and its slot.
    pub fn submit(&mut self) -> (Bio, usize, bool) {
        let slot = self.free.pop().expect("asked only with a free slot");
        self.count += 1;
        let id = BioId {
            connection: self.id,
            volume: self.job.options.volume,
            sequence: self.count << 8 | u64::from(slot),
            ..BioId::default()
        };
        let (bio, malformed) = self.job.next(id);
        let slot = usize::from(slot);
        self.slots[slot] =
            InFlightBio { bio, stage: BioStage::Waiting, malformed, ..InFlightBio::default() };
        (bio, slot, malformed)
    }

    /// Whether it closes now, after the bio that it just submitted.
    pub fn closes(&mut self) -> bool {
        let closes = self.until_close == 1;
        self.until_close = self.until_close.saturating_sub(1);
        closes
    }

    /// It comes again under another id, while what the old one has on its way is still to be answered.
    pub fn reopen(&mut self, id: u32) {
        self.id = id;
        self.until_close = self.job.options.close_after;
    }

    /// The slot of a bio in flight.
    #[must_use]
    pub fn slot(&self, id: BioId) -> Option<usize> {
        let slot = (id.sequence & 0xff) as usize;
        let flight = self.slots.get(slot)?;
        (flight.stage != BioStage::Free && flight.bio.id == id).then_some(slot)
    }

    /// Hotplug a bio on; `None` if this answer cannot come now.
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

    /// Poisons what nobody may use any longer.
    pub fn poison(&mut self, slot: usize) {
        let bio = self.slots[slot].bio;
        let len = bio.op.buffer_len(bio.len);
        if len > 0 {
            self.buffers.poison(slot, len);
        }
    }

    /// The power failed: nothing comes back.
    pub fn reset(&mut self) {
        for slot in 0..self.slots.len() {
            if self.slots[slot].stage != BioStage::Free {
                self.poison(slot);
                self.slots[slot].stage = BioStage::Free;
                self.free.push(slot as u8);
            }
        }
        self.job.left = 0;
        (self.starved, self.planned, self.paused) = (false, false, false);
    }

    /// Bytes of a bio's buffer that it uses.
    #[must_use]
    pub fn data_len(bio: &Bio) -> usize {
        bio.op.buffer_len(bio.len) as usize
    }
}
