//! The modelled disks of the experiment and the options of their queues.
//!
//! `hdd-32`, `sata` and `nvme` are those that elevators were tuned on. `hdd-5400`, `hdd-10k` and `sata-qlc` are not: nothing in
//! the elevators was chosen after a run on them.

use headworks_core::{DepthMode, QueueOptions, Scheduler};
use headworks_disks::{DeviceModel, Hdd, HddProfile, Ssd, SsdProfile};

/// A modelled disk of the experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disk {
    /// The disk of seed 000 with a cache of 32 MiB.
    Hdd,
    /// A disk of 5400/min.
    Hdd5400,
    /// A disk of 10,000/min.
    Hdd10k,
    /// A SATA disk of flash.
    Sata,
    /// A SATA disk of few slow dies behind a slow link.
    SataQlc,
    /// An NVMe disk.
    Nvme,
}

/// The disks that turn.
pub(super) const ROTATING: &[Disk] = &[Disk::Hdd, Disk::Hdd5400, Disk::Hdd10k];
/// The disks of flash.
pub(super) const FLASH: &[Disk] = &[Disk::Sata, Disk::SataQlc, Disk::Nvme];
/// The NVMe disk alone.
pub(super) const NVME: &[Disk] = &[Disk::Nvme];
/// The SATA disks of flash.
pub(super) const SATA: &[Disk] = &[Disk::Sata, Disk::SataQlc];

impl Disk {
    /// Every disk of the experiment.
    pub const ALL: [Self; 6] =
        [Self::Hdd, Self::Hdd5400, Self::Hdd10k, Self::Sata, Self::SataQlc, Self::Nvme];

    /// The disk of this name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|disk| disk.name() == name)
    }

    /// The name in rows.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hdd => "hdd-32",
            Self::Hdd5400 => "hdd-5400",
            Self::Hdd10k => "hdd-10k",
            Self::Sata => "sata",
            Self::SataQlc => "sata-qlc",
            Self::Nvme => "nvme",
        }
    }

    /// Whether a seek costs time.
    #[must_use]
    pub const fn rotates(self) -> bool {
        matches!(self, Self::Hdd | Self::Hdd5400 | Self::Hdd10k)
    }

    const fn hdd(self) -> HddProfile {
        match self {
            Self::Hdd5400 => HddProfile::rpm_5400(),
            Self::Hdd10k => HddProfile::rpm_10k(),
            _ => HddProfile::seed_000(32),
        }
    }

    const fn ssd(self) -> SsdProfile {
        match self {
            Self::Sata => SsdProfile::sata(),
            Self::SataQlc => SsdProfile::sata_qlc(),
            _ => SsdProfile::nvme(),
        }
    }

    /// Bytes of the disk, in whole blocks.
    #[must_use]
    pub const fn size(self) -> u64 {
        let capacity = if self.rotates() { self.hdd().capacity } else { self.ssd().capacity };
        capacity / 4096 * 4096
    }

    /// Bytes per second of one sequential reader with the disk to itself.
    #[must_use]
    pub const fn media_bytes_per_second(self) -> u64 {
        match self.rotates() {
            true => self.hdd().media_bytes_per_second,
            false => self.ssd().link_bytes_per_second[0],
        }
    }

    /// A new, idle disk.
    #[must_use]
    pub fn make(self) -> Box<dyn DeviceModel> {
        match self.rotates() {
            true => Box::new(Hdd::new(self.hdd())),
            false => Box::new(Ssd::new(self.ssd())),
        }
    }

    /// The queue's options: those of a kernel driver, everything else as by default.
    #[must_use]
    pub fn queue(self, scheduler: Scheduler) -> QueueOptions {
        let usual = QueueOptions { scheduler, ..QueueOptions::default() };
        let depth = if self == Self::Nvme { usual.queue_depth } else { 32 };
        QueueOptions { queue_depth: depth.min(usual.queue_depth), ..usual }
    }

    /// The same with bounds by hand: a little more than bandwidth times the latency of one small command in the device, and
    /// requests that are a small part of that.
    #[must_use]
    pub fn bounded_queue(self, scheduler: Scheduler) -> QueueOptions {
        let (hw_inflight_kb, max_sectors_kb) =
            if self == Self::Nvme { (320, 64) } else { (56, 16) };
        let hw_depth = DepthMode::Fixed;
        QueueOptions { hw_inflight_kb, max_sectors_kb, hw_depth, ..self.queue(scheduler) }
    }
}
