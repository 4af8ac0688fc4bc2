//! The simulated operator: changes tunables under load, sometimes to an invalid value.
//!
//! With caches, one change in three concerns a shard's write-back. At most one change per device is
//! outstanding; the next is scheduled when it is answered. Invariant, checked when the world is
//! idle: every change was answered, valid ones with success and invalid ones with an error.

use headworks_core::prng::Prng;
use headworks_core::time::{MS, US};
use headworks_core::writeback::DirtyTunable;
use headworks_core::{Control, DeviceId, IoError, QueueOptions, Scheduler, Status, Tunable};

/// Draws a value for a tunable, within the limits of the modelled disk.
fn draw_value(tunable: Tunable, most: &QueueOptions, prng: &mut Prng) -> u64 {
    let values: &[u64] = match tunable {
        Tunable::NrRequests => &[1, 2, 7, 62, 64, 300],
        Tunable::MaxSectorsKb => &[4, 8, 64, 128],
        Tunable::NoMerges => &[0, 1, 2],
        Tunable::Scheduler => {
            &[Scheduler::None as u64, Scheduler::MqDeadline as u64, Scheduler::Bfq as u64]
        }
        Tunable::SliceIdleUs => &[0, 100, 8000],
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

const CHANGED: [Tunable; 18] = [
    Tunable::NrRequests,
    Tunable::NrRequests,
    Tunable::MaxSectorsKb,
    Tunable::NoMerges,
    Tunable::Scheduler,
    Tunable::Scheduler,
    Tunable::AsyncDepth,
    Tunable::InflightKb,
    Tunable::AsyncDepth,
    Tunable::FifoBatch,
    Tunable::FrontMerges,
    Tunable::WriteExpire,
    Tunable::PrioAgingExpire,
    Tunable::SliceIdleUs,
    Tunable::LowLatency,
    Tunable::StrictGuarantees,
    Tunable::ReadAheadKb,
    Tunable::MaxFolioOrder,
];

/// Draws a write-back value, so that pools are sometimes far below the dirty limit and sometimes
/// far above it.
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
        DirtyTunable::Throttle => &[0, 0, 0, 2],
    };
    values[prng.below(values.len() as u64) as usize]
}

/// An outstanding change of a tunable.
#[derive(Clone, Copy, Debug)]
struct PendingChange {
    token: u32,
    wrong: bool,
    /// A valid change must succeed.
    sure: bool,
}

/// The operator of all devices.
#[derive(Debug)]
pub struct Operator {
    prng: Prng,
    /// Outstanding change by device.
    asked: Vec<Option<PendingChange>>,
    left: u32,
    tokens: u32,
    cached: bool,
    /// Changes limits of caches, in some worlds.
    limits: Option<Prng>,
}

impl Operator {
    /// An operator of `devices` devices, and of write-back if there are caches.
    #[must_use]
    pub fn new(seed: u64, devices: usize, cached: bool) -> Self {
        let prng = Prng::new(seed).split("operator");
        let mut limits = Prng::new(seed).split("cache limits");
        let limits = (cached && limits.below(3) == 0).then_some(limits);
        Self { prng, asked: vec![None; devices], left: 0, tokens: 0, cached, limits }
    }

    /// A new limit for the cache of some shard with a pool of `units`, in worlds that have such changes.
    pub fn change_limit(&mut self, units: u32) -> Option<Control> {
        let prng = self.limits.as_mut().filter(|_| units > 0)?;
        let limits = [0, 257, units / 2, units * 3 / 4, units - 1, units, u32::MAX];
        let [most, dirtyable] = [0, 1].map(|_| prng.below(limits.len() as u64) as usize);
        Some(Control::CacheLimit { units: limits[most], dirtyable: limits[dirtyable] })
    }

    /// Starts a round of `changes` changes over all devices; returns the delay of each device's
    /// first change.
    pub fn start(&mut self, changes: u32) -> Vec<u64> {
        self.left = changes;
        self.asked.fill(None);
        let first = if changes > 0 { self.asked.len() } else { 0 };
        (0..first).map(|_| self.prng.between(US, 20 * MS)).collect()
    }

    /// The next change of a device whose queue was created with the options `most`.
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

    /// A change of a shard's write-back, in place of one of the device.
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

    /// Handles the answer to a change; returns its device and the delay until the next change.
    ///
    /// # Errors
    /// An answer that the change should not get.
    pub fn on_answer(&mut self, token: u32, status: Status) -> Result<(DeviceId, u64), String> {
        let found = self.asked.iter().position(|asked| asked.is_some_and(|a| a.token == token));
        let Some(device) = found else {
            return Err(format!("an answer with the unknown token {token}"));
        };
        let taken = self.asked[device].take();
        let PendingChange { wrong, sure, .. } = taken.expect("its slot was just found");
        let fits = match status {
            status if sure => status == if wrong { Err(IoError::Invalid) } else { Ok(()) },
            // Smaller than a block, too.
            Err(IoError::Invalid) => true,
            // Tags held by timed-out commands are not replaced.
            Ok(()) | Err(IoError::Busy) => !wrong,
            Err(_) => false,
        };
        if !fits {
            return Err(format!("change {token} (wrong: {wrong}) was answered {status:?}"));
        }
        Ok((DeviceId(device as u16), self.prng.between(US, 5 * MS)))
    }

    /// Number of outstanding changes.
    #[must_use]
    pub fn unanswered(&self) -> usize {
        self.asked.iter().flatten().count()
    }

    /// Forgets outstanding changes after a power cut.
    pub fn cut(&mut self) {
        self.asked.fill(None);
        self.left = 0;
    }
}
