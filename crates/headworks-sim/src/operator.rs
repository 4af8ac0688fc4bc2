//! The operator of the world: changes queues while they work, now and then to a value that is none.
//!
//! Where there are caches, one change in three is of a shard's write-back. One change is under way per device; the next is planned when it is answered. Invariant, checked when all is quiet: every
//! change was answered, with the answer that it deserves.

use headworks_core::prng::Prng;
use headworks_core::time::{MS, US};
use headworks_core::writeback::DirtyTunable;
use headworks_core::{
    Control, DeviceId, IoError, QueueOptions, Scheduler, Status, TagPolicy, Tunable,
};

/// Values that a device may be switched to, none beyond what the modelled disk was said to take.
fn draw_value(tunable: Tunable, most: &QueueOptions, prng: &mut Prng) -> u64 {
    let values: &[u64] = match tunable {
        Tunable::NrRequests => &[1, 2, 7, 62, 64, 300],
        Tunable::MaxSectorsKb => &[4, 8, 64, 128],
        Tunable::NoMerges => &[0, 1, 2],
        Tunable::Scheduler => &[Scheduler::None as u64, Scheduler::MqDeadline as u64],
        Tunable::Tags => {
            &[TagPolicy::Fair as u64, TagPolicy::Fair as u64, TagPolicy::KuaiV3 as u64]
        }
        Tunable::InflightKb => &[0, 0, 1, 64, 1024],
        Tunable::ReadAheadKb => &[0, 4, 64, 512, 4096],
        Tunable::MaxFolioOrder => &[0, 1, 3, 9],
        Tunable::AsyncDepth => &[0, 1, 16],
        Tunable::FifoBatch => &[1, 2, 16],
        Tunable::ReadExpire | Tunable::WriteExpire | Tunable::PrioAgingExpire => &[0, 1, 500],
        _ => &[0, 1],
    };
    let value = values[prng.below(values.len() as u64) as usize];
    if tunable == Tunable::MaxSectorsKb { value.min(tunable.get(most)) } else { value }
}

const CHANGED: [Tunable; 15] = [
    Tunable::NrRequests,
    Tunable::NrRequests,
    Tunable::MaxSectorsKb,
    Tunable::NoMerges,
    Tunable::Scheduler,
    Tunable::Scheduler,
    Tunable::Tags,
    Tunable::InflightKb,
    Tunable::AsyncDepth,
    Tunable::FifoBatch,
    Tunable::FrontMerges,
    Tunable::WriteExpire,
    Tunable::PrioAgingExpire,
    Tunable::ReadAheadKb,
    Tunable::MaxFolioOrder,
];

/// Values of write-back, so that the pools of worlds are now far below the limit and now far above it.
fn draw_dirty(tunable: DirtyTunable, prng: &mut Prng) -> u64 {
    const BLOCK: u64 = 4096;
    let values: &[u64] = match tunable {
        DirtyTunable::Ratio => &[1, 5, 20, 90],
        DirtyTunable::Bytes => &[2 * BLOCK, 16 * BLOCK, 40 * BLOCK, 1000 * BLOCK],
        DirtyTunable::BackgroundRatio => &[0, 5, 50],
        DirtyTunable::BackgroundBytes => &[BLOCK, 8 * BLOCK, 500 * BLOCK],
        DirtyTunable::ExpireCentisecs => &[1, 2, 50],
        DirtyTunable::WritebackCentisecs => &[0, 1, 50],
        DirtyTunable::MaxPauseMs => &[10, 50, 200],
        DirtyTunable::Throttle => &[0, 0, 1, 2],
    };
    values[prng.below(values.len() as u64) as usize]
}

/// A change that was asked for.
#[derive(Clone, Copy, Debug)]
struct PendingChange {
    token: u32,
    wrong: bool,
    /// Whatever is not wrong succeeds.
    sure: bool,
}

/// See the head of this file.
#[derive(Debug)]
pub struct Operator {
    prng: Prng,
    /// By device.
    asked: Vec<Option<PendingChange>>,
    left: u32,
    tokens: u32,
    cached: bool,
}

impl Operator {
    /// An operator of so many devices, and of caches if there are any, with nothing to do.
    #[must_use]
    pub fn new(seed: u64, devices: usize, cached: bool) -> Self {
        let prng = Prng::new(seed).split("operator");
        Self { prng, asked: vec![None; devices], left: 0, tokens: 0, cached }
    }

    /// A new round: so many changes, on all devices together. Returns when each device gets its first.
    pub fn start(&mut self, changes: u32) -> Vec<u64> {
        self.left = changes;
        self.asked.fill(None);
        let first = if changes > 0 { self.asked.len() } else { 0 };
        (0..first).map(|_| self.prng.between(US, 20 * MS)).collect()
    }

    /// The next change of a device whose queue was made with `most`.
    pub fn change(&mut self, device: DeviceId, most: &QueueOptions) -> Option<Control> {
        if self.left == 0 {
            return None;
        }
        self.left -= 1;
        self.tokens += 1;
        if self.cached && self.prng.below(3) == 0 {
            return Some(self.change_dirty(device));
        }
        let tunable = CHANGED[self.prng.below(CHANGED.len() as u64) as usize];
        let wrong = self.prng.below(10) == 0;
        let value = match wrong {
            true => tunable.range().end() + 1,
            false => draw_value(tunable, most, &mut self.prng),
        };
        let token = self.tokens;
        self.asked[usize::from(device.0)] = Some(PendingChange { token, wrong, sure: false });
        Some(Control::Set { device, tunable, value, token })
    }

    /// A change of a shard's write-back, instead of one of the device.
    fn change_dirty(&mut self, device: DeviceId) -> Control {
        let tunable = DirtyTunable::ALL[self.prng.below(8) as usize];
        let wrong = self.prng.below(10) == 0;
        let value = match wrong {
            true => tunable.range().end() + 1,
            false => draw_dirty(tunable, &mut self.prng),
        };
        let token = self.tokens;
        self.asked[usize::from(device.0)] = Some(PendingChange { token, wrong, sure: true });
        Control::SetDirty { tunable, value, token }
    }

    /// A change was answered: its device and when the next is due.
    ///
    /// # Errors
    /// An answer that it does not deserve.
    pub fn on_answer(&mut self, token: u32, status: Status) -> Result<(DeviceId, u64), String> {
        let found = self.asked.iter().position(|asked| asked.is_some_and(|a| a.token == token));
        let Some(device) = found else {
            return Err(format!("an answer with token {token}, which nobody waits for"));
        };
        let taken = self.asked[device].take();
        let PendingChange { wrong, sure, .. } = taken.expect("its place was just found");
        let fits = match status {
            status if sure => status == if wrong { Err(IoError::Invalid) } else { Ok(()) },
            // Smaller than a block, too.
            Err(IoError::Invalid) => true,
            // Tags that given-up commands hold are not replaced.
            Ok(()) | Err(IoError::Busy) => !wrong,
            Err(_) => false,
        };
        if !fits {
            return Err(format!("change {token} (wrong: {wrong}) was answered {status:?}"));
        }
        Ok((DeviceId(device as u16), self.prng.between(US, 5 * MS)))
    }

    /// Changes that nobody answered.
    #[must_use]
    pub fn unanswered(&self) -> usize {
        self.asked.iter().flatten().count()
    }

    /// The power failed: nobody will answer.
    pub fn cut(&mut self) {
        self.asked.fill(None);
        self.left = 0;
    }
}
