//! The modelled devices of the cases with default options.
//!
//! Nothing is tuned for them: a device announces the commands that it takes, as a kernel driver
//! does, and everything else has its default.

use headworks_core::time::{MS, SEC};
use headworks_core::{Op, QueueOptions};
use headworks_disks::{
    DeviceModel, Hdd, HddProfile, Ssd, SsdProfile, Stream, StreamProfile, VirtualDisk,
    VirtualDiskProfile,
};

pub(super) const MIB: u32 = 1 << 20;

/// A modelled device and the depth that it announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Device {
    /// The disk of seed 000 with a cache of 32 MiB and NCQ.
    Disk,
    /// A disk of 5400 rotations a minute, which nothing was tuned on.
    Disk5400,
    /// A disk of 10,000 rotations a minute, which nothing was tuned on.
    Disk10k,
    /// A SATA disk of flash with NCQ.
    Sata,
    /// An NVMe disk.
    Nvme,
    /// A cloud machine's disk, whose throughput scatters.
    Virtual,
    /// A device of 700 MB/s that serves commands one at a time, as in seed 002.
    Stream700,
    /// The same with 60 MB/s and 8 ms for each change of stream.
    Stream60,
}

impl Device {
    /// The calibrated devices, the slowest first.
    pub const ALL: [Self; 3] = [Self::Disk, Self::Sata, Self::Nvme];

    /// All drives, calibrated or not.
    pub const DRIVES: [Self; 5] =
        [Self::Disk, Self::Disk5400, Self::Disk10k, Self::Sata, Self::Nvme];

    /// Whether the device moves a head.
    pub const fn is_disk(self) -> bool {
        matches!(self, Self::Disk | Self::Disk5400 | Self::Disk10k)
    }

    /// The name in rows.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Disk => "hdd-32",
            Self::Disk5400 => "hdd-5400",
            Self::Disk10k => "hdd-10k",
            Self::Sata => "sata",
            Self::Nvme => "nvme",
            Self::Virtual => "virtual",
            Self::Stream700 => "stream-700",
            Self::Stream60 => "stream-60",
        }
    }

    fn model(self) -> (u64, Box<dyn DeviceModel>) {
        let ssd = |profile: SsdProfile| -> (u64, Box<dyn DeviceModel>) {
            (profile.capacity, Box::new(Ssd::new(profile)))
        };
        let disk = |profile: HddProfile| -> (u64, Box<dyn DeviceModel>) {
            (profile.capacity, Box::new(Hdd::new(profile)))
        };
        let stream = |profile| -> (u64, Box<dyn DeviceModel>) {
            (1_000_000_000_000, Box::new(Stream::new(profile)))
        };
        match self {
            Self::Disk => disk(HddProfile::seed_000(32)),
            Self::Disk5400 => disk(HddProfile::rpm_5400()),
            Self::Disk10k => disk(HddProfile::rpm_10k()),
            Self::Sata => ssd(SsdProfile::sata()),
            Self::Nvme => ssd(SsdProfile::nvme()),
            Self::Virtual => {
                let profile = VirtualDiskProfile::cloud();
                (profile.capacity, Box::new(VirtualDisk::new(profile, 1)))
            }
            Self::Stream700 => stream(StreamProfile::new(700_000_000, 0)),
            Self::Stream60 => stream(StreamProfile::new(60_000_000, 8 * MS)),
        }
    }

    /// Bytes of the device, in whole MiB.
    pub fn size(self) -> u64 {
        self.model().0 / u64::from(MIB) * u64::from(MIB)
    }

    /// A new, idle device.
    pub fn make(self) -> Box<dyn DeviceModel> {
        self.model().1
    }

    /// Commands that the device takes: 32 with NCQ.
    pub fn queue_depth(self, tags: u32) -> u32 {
        let usual = QueueOptions::default().queue_depth;
        let depth = if self.is_disk() || self == Self::Sata { 32 } else { usual };
        depth.min(tags)
    }

    /// The direction that the device is usually asked for: a drive's cache takes writes, flash is
    /// read.
    pub const fn usual_op(self) -> Op {
        match self {
            Self::Disk | Self::Disk5400 | Self::Disk10k | Self::Stream60 => Op::Write,
            _ => Op::Read,
        }
    }

    /// Time of a request when the device is busy, for lengths of runs only.
    pub fn about_ns(self, op: Op, bytes: u32) -> u64 {
        let (command, per_mib) = match (self, op) {
            (Self::Disk | Self::Disk5400 | Self::Disk10k, Op::Read) => (8 * MS, 10 * MS),
            (Self::Disk | Self::Disk5400 | Self::Disk10k, _) => (4 * MS, 10 * MS),
            (Self::Sata, _) => (10_500, 1_900_000),
            (Self::Nvme, Op::Read) => (2_200, 375_000),
            (Self::Nvme, _) => (5_700, 500_000),
            (Self::Virtual, _) => (2_000, 440_000),
            (Self::Stream700, _) => (26_000, 1_500_000),
            (Self::Stream60, _) => (16 * MS, 17 * MS),
        };
        command + per_mib * u64::from(bytes) / u64::from(MIB)
    }

    /// Shortest ramp: the drive's cache is full, and its extents are in the steady state.
    pub const fn ramp_ns(self) -> u64 {
        match self {
            Self::Disk | Self::Disk5400 | Self::Disk10k | Self::Stream60 => 10 * SEC,
            _ => SEC / 50,
        }
    }
}
