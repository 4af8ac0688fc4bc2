//! Disks by name, and every parameter of a disk by its key.
//!
//! A [`Disk`] is the profile of one of the models. Keys, units and limits of its parameters are one table for each model ([`Field`]),
//! so a SPEC, a file and what is shown of a disk say the same words. Invariant: a disk that [`Disk::check`] accepts makes a model that
//! does not panic.

use crate::device_model::DeviceModel;
use crate::hdd::{Hdd, HddProfile};
use crate::ssd::{Ssd, SsdProfile};
use crate::token_bucket::IopsBudget;
use crate::virtual_disk::{VirtualDisk, VirtualDiskProfile};

/// A modelled disk with its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disk {
    /// A drive that turns.
    Hdd(HddProfile),
    /// Flash behind a controller; `true` if it has been written from end to end.
    Ssd(SsdProfile, bool),
    /// A virtual disk of a host that works for others, too.
    Virtual(VirtualDiskProfile),
}

/// What the number of a parameter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Bytes in a second.
    BytesPerSecond,
    /// Nanoseconds.
    Time,
    /// A number.
    Count,
    /// Thousandths of a mean.
    Thousandths,
    /// 0 or 1.
    Switch,
}

/// A parameter of a disk.
#[derive(Clone, Copy)]
pub struct Field {
    /// The key in a SPEC or a file.
    pub key: &'static str,
    /// What its number counts.
    pub unit: Unit,
    /// Smallest and largest number.
    pub range: (u64, u64),
    get: fn(&Disk) -> u64,
    set: fn(&mut Disk, u64),
}

/// A disk that is known by its name.
pub struct NamedDisk {
    /// The name in a SPEC.
    pub name: &'static str,
    /// The parameters of its model.
    pub disk: Disk,
    /// Where they are from.
    pub source: &'static str,
    /// What the disk does and the model does not.
    pub not_modelled: &'static [&'static str],
}

const HDD_NOT: &[&str] =
    &["zones of different rates", "reads from the write cache", "bad sectors", "spin-up"];
const SSD_NOT: &[&str] = &["reads from the write buffer", "the place of data on dies", "trim"];
const CLOUD_NOT: &[&str] =
    &["the first read of a block from a snapshot", "the limit of the instance"];
const GIB: u64 = 1 << 30;

/// Every disk with a name.
pub const NAMED: [NamedDisk; 11] = [
    NamedDisk {
        name: "hdd-7200",
        disk: Disk::Hdd(HddProfile::seed_000(32).flushing()),
        source: "fitted to the writes of a published measurement of a 4 TB drive of 7200/min",
        not_modelled: HDD_NOT,
    },
    NamedDisk {
        name: "hdd-5400",
        disk: Disk::Hdd(HddProfile::rpm_5400().flushing()),
        source: "of no product: as data sheets describe quiet drives of 5400/min",
        not_modelled: HDD_NOT,
    },
    NamedDisk {
        name: "hdd-10k",
        disk: Disk::Hdd(HddProfile::rpm_10k().flushing()),
        source: "of no product: as data sheets describe drives of 10,000/min",
        not_modelled: HDD_NOT,
    },
    NamedDisk {
        name: "ultrastar-7k8",
        disk: Disk::Hdd(HddProfile::ultrastar_7k8()),
        source: "from the data sheet of the HGST Ultrastar 7K8; 64 MiB of write cache are assumed",
        not_modelled: HDD_NOT,
    },
    NamedDisk {
        name: "st2000dm006",
        disk: Disk::Hdd(HddProfile::st2000dm006()),
        source: "fitted to a Seagate ST2000DM006 as ublk-disksim measured it",
        not_modelled: HDD_NOT,
    },
    NamedDisk {
        name: "sata",
        disk: Disk::Ssd(SsdProfile::sata_flushing(), false),
        source: "from the data sheet of the Samsung 870 EVO; flushes fitted to published synced writes",
        not_modelled: SSD_NOT,
    },
    NamedDisk {
        name: "sata-qlc",
        disk: Disk::Ssd(SsdProfile::sata_qlc_flushing(), false),
        source: "of no product: four bits a cell behind a link of 3 Gbit/s",
        not_modelled: SSD_NOT,
    },
    NamedDisk {
        name: "nvme",
        disk: Disk::Ssd(SsdProfile::nvme(), false),
        source: "from the data sheet of the Intel P3700, which survives a loss of power",
        not_modelled: SSD_NOT,
    },
    NamedDisk {
        name: "cloud-gp2",
        disk: Disk::Virtual(VirtualDiskProfile::gp2(100 * GIB)),
        source: "from the documentation of AWS; latencies are assumed",
        not_modelled: CLOUD_NOT,
    },
    NamedDisk {
        name: "cloud-gp3",
        disk: Disk::Virtual(VirtualDiskProfile::gp3()),
        source: "from the documentation of AWS; latencies are assumed",
        not_modelled: CLOUD_NOT,
    },
    NamedDisk {
        name: "virtual",
        disk: Disk::Virtual(VirtualDiskProfile::cloud()),
        source: "fitted to the disk of a cloud's machine",
        not_modelled: CLOUD_NOT,
    },
];

impl NamedDisk {
    /// Finds a disk by its name.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        const { &NAMED }.iter().find(|disk| disk.name == name)
    }
}

impl Disk {
    /// The disk of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        NamedDisk::find(name).map(|named| named.disk)
    }

    /// Its model's name: `hdd`, `ssd` or `virtual`.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Hdd(_) => "hdd",
            Self::Ssd(..) => "ssd",
            Self::Virtual(_) => "virtual",
        }
    }

    /// Whether a seek costs time.
    #[must_use]
    pub const fn rotates(&self) -> bool {
        matches!(self, Self::Hdd(_))
    }

    /// Its parameters, in the order in which they are shown.
    #[must_use]
    pub const fn fields(&self) -> &'static [Field] {
        match self {
            Self::Hdd(_) => const { &HDD },
            Self::Ssd(..) => const { &SSD },
            Self::Virtual(_) => const { &VIRTUAL },
        }
    }

    /// Finds a parameter by its key.
    #[must_use]
    pub fn field(&self, key: &str) -> Option<&'static Field> {
        self.fields().iter().find(|field| field.key == key)
    }

    /// The keys of all models.
    pub fn keys() -> impl Iterator<Item = &'static str> {
        const { &HDD }.iter().chain(const { &SSD }).chain(const { &VIRTUAL }).map(|field| field.key)
    }

    /// Commands that the disk takes at once: 32 with the queues of SATA, whose links are half duplex.
    #[must_use]
    pub const fn depth(&self) -> u32 {
        match self {
            Self::Ssd(profile, _) if profile.duplex => 128,
            Self::Virtual(_) => 128,
            Self::Hdd(_) | Self::Ssd(..) => 32,
        }
    }

    /// Makes flash one that has been written from end to end: what it can write fast is used up.
    ///
    /// # Errors
    /// It is no flash.
    pub fn fill(&mut self) -> Result<(), String> {
        match self {
            Self::Ssd(_, full) => *full = true,
            Self::Hdd(_) | Self::Virtual(_) => {
                return Err("`full` is of flash; this disk does not age".into());
            }
        }
        Ok(())
    }

    /// Whether it is flash that has been written from end to end.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        matches!(self, Self::Ssd(_, true))
    }

    /// Checks that the parameters fit each other.
    ///
    /// # Errors
    /// What does not, and what would.
    pub fn check(&self) -> Result<(), String> {
        match self {
            Self::Virtual(profile) => {
                if profile.step_deviation + profile.level_deviation > 900 {
                    return Err(
                        "step-deviation and level-deviation are at most 900 together".into()
                    );
                }
                let IopsBudget { iops, burst_iops, .. } = profile.budget;
                match burst_iops < iops {
                    true => Err(format!("burst-iops is at least iops, which is {iops}")),
                    false => Ok(()),
                }
            }
            Self::Hdd(profile) if profile.track_bytes() < 4096 => {
                Err("a turn at the media-rate passes at least 4096 bytes".into())
            }
            Self::Ssd(profile, _) if profile.gc_channels > profile.channels => {
                Err(format!("gc-channels is at most channels, which is {}", profile.channels))
            }
            Self::Hdd(_) | Self::Ssd(..) => Ok(()),
        }
    }

    /// An idle disk; `seed` is of what varies by chance.
    #[must_use]
    pub fn model(&self, seed: u64) -> Box<dyn DeviceModel + Send> {
        match *self {
            Self::Hdd(profile) => Box::new(Hdd::new(profile)),
            Self::Ssd(profile, full) => {
                let mut ssd = Ssd::new(profile);
                if full {
                    ssd.fill();
                }
                Box::new(ssd)
            }
            Self::Virtual(profile) => Box::new(VirtualDisk::new(profile, seed)),
        }
    }
}

impl Field {
    /// The number of this parameter.
    #[must_use]
    pub fn get(&self, disk: &Disk) -> u64 {
        (self.get)(disk)
    }

    /// Sets the parameter.
    ///
    /// # Errors
    /// The number is out of range.
    pub fn set(&self, disk: &mut Disk, number: u64) -> Result<(), String> {
        let (least, most) = self.range;
        if !(least..=most).contains(&number) {
            return Err(match self.unit {
                Unit::Time => format!("it is from {least} ns to {} s", most / SECOND),
                _ => format!("it is from {least} to {most}"),
            });
        }
        (self.set)(disk, number);
        Ok(())
    }
}

const SECOND: u64 = 1_000_000_000;
/// Sizes of disks: up to 16 PiB, so that no sum of them overflows.
const SIZE: (u64, u64) = (1 << 20, 1 << 54);
/// Parts of a disk.
const PART: (u64, u64) = (0, 1 << 54);
/// Sizes of units: a transfer of the largest takes hours, and no more.
const UNIT: (u64, u64) = (4096, 1 << 30);
/// Bytes in a second: up to 10 GB, so that the product of a track and a turn fits.
const RATE: (u64, u64) = (1_000_000, 10_000_000_000);
const TIME: (u64, u64) = (0, 100 * SECOND);
/// A turn of the medium.
const TURN: (u64, u64) = (100_000, SECOND);
/// A step of a bandwidth.
const STEP: (u64, u64) = (1_000_000, 100 * SECOND);
const NUMBER: (u64, u64) = (1, 1 << 20);

/// A parameter of one model: key, unit, range, the model, and where its profile has the number.
macro_rules! field {
    ($key:literal, $unit:ident, $range:expr, $kind:pat => $place:expr) => {
        Field {
            key: $key,
            unit: Unit::$unit,
            range: $range,
            get: |disk| match disk {
                $kind => $place as u64,
                _ => 0,
            },
            set: |disk, number| {
                if let $kind = disk {
                    assign(&mut $place, number);
                }
            },
        }
    };
}

/// A number of a profile.
trait Number {
    fn assign(&mut self, number: u64);
}

impl Number for u64 {
    fn assign(&mut self, number: u64) {
        *self = number;
    }
}

impl Number for u32 {
    fn assign(&mut self, number: u64) {
        *self = u32::try_from(number).unwrap_or(Self::MAX);
    }
}

impl Number for usize {
    fn assign(&mut self, number: u64) {
        *self = usize::try_from(number).unwrap_or(Self::MAX);
    }
}

impl Number for bool {
    fn assign(&mut self, number: u64) {
        *self = number != 0;
    }
}

fn assign(place: &mut impl Number, number: u64) {
    place.assign(number);
}

const HDD: [Field; 13] = [
    field!("size", Bytes, SIZE, Disk::Hdd(it) => it.capacity),
    field!("turn", Time, TURN, Disk::Hdd(it) => it.turn_ns),
    field!("seek", Time, TIME, Disk::Hdd(it) => it.seek_ns),
    field!("stroke", Time, TIME, Disk::Hdd(it) => it.stroke_ns),
    field!("settle", Time, TIME, Disk::Hdd(it) => it.settle_ns),
    field!("media-rate", BytesPerSecond, RATE, Disk::Hdd(it) => it.media_bytes_per_second),
    field!("command", Time, TIME, Disk::Hdd(it) => it.command_ns),
    field!("link-rate", BytesPerSecond, RATE, Disk::Hdd(it) => it.link_bytes_per_second),
    field!("write-cache", Bytes, SIZE, Disk::Hdd(it) => it.cache_bytes),
    field!("write-window", Count, NUMBER, Disk::Hdd(it) => it.window),
    field!("write-unit", Bytes, UNIT, Disk::Hdd(it) => it.unit_bytes),
    field!("read-window", Count, NUMBER, Disk::Hdd(it) => it.read_window),
    field!("flushes", Switch, (0, 1), Disk::Hdd(it) => it.flushes),
];

const SSD: [Field; 22] = [
    field!("size", Bytes, SIZE, Disk::Ssd(it, _) => it.capacity),
    field!("channels", Count, (1, 4096), Disk::Ssd(it, _) => it.channels),
    field!("read", Time, TIME, Disk::Ssd(it, _) => it.read_ns),
    field!("read-ahead", Time, TIME, Disk::Ssd(it, _) => it.read_ahead_ns),
    field!("write", Time, TIME, Disk::Ssd(it, _) => it.write_ns),
    field!("read-command", Time, TIME, Disk::Ssd(it, _) => it.command_ns[0]),
    field!("write-command", Time, TIME, Disk::Ssd(it, _) => it.command_ns[1]),
    field!("read-link", BytesPerSecond, RATE, Disk::Ssd(it, _) => it.link_bytes_per_second[0]),
    field!("write-link", BytesPerSecond, RATE, Disk::Ssd(it, _) => it.link_bytes_per_second[1]),
    field!("duplex", Switch, (0, 1), Disk::Ssd(it, _) => it.duplex),
    field!("chunk", Bytes, UNIT, Disk::Ssd(it, _) => it.chunk_bytes),
    field!("whole-commands", Switch, (0, 1), Disk::Ssd(it, _) => it.whole_commands),
    field!("drain", Time, TIME, Disk::Ssd(it, _) => it.drain_ns),
    field!("drain-rate", BytesPerSecond, RATE, Disk::Ssd(it, _) => it.drain_bytes_per_second),
    field!("buffer", Time, TIME, Disk::Ssd(it, _) => it.buffer_ns),
    field!("flushes", Switch, (0, 1), Disk::Ssd(it, _) => it.flushes),
    field!("flush", Time, TIME, Disk::Ssd(it, _) => it.flush_ns),
    field!("fast", Bytes, PART, Disk::Ssd(it, _) => it.fast_bytes),
    field!("sustained-rate", BytesPerSecond, RATE, Disk::Ssd(it, _) => it.sustained_bytes_per_second),
    field!("gc-every", Bytes, PART, Disk::Ssd(it, _) => it.gc_every_bytes),
    field!("gc-time", Time, TIME, Disk::Ssd(it, _) => it.gc_ns),
    field!("gc-channels", Count, (0, 4096), Disk::Ssd(it, _) => it.gc_channels),
];

/// The size of a virtual disk, from which other parameters may follow.
const VIRTUAL_SIZE: Field = Field {
    set: |disk, number| match disk {
        Disk::Virtual(it) if it.by_size => *it = VirtualDiskProfile::gp2(number),
        Disk::Virtual(it) => it.capacity = number,
        _ => {}
    },
    ..field!("size", Bytes, SIZE, Disk::Virtual(it) => it.capacity)
};

const VIRTUAL: [Field; 14] = [
    field!("by-size", Switch, (0, 1), Disk::Virtual(it) => it.by_size),
    VIRTUAL_SIZE,
    field!("rate", BytesPerSecond, RATE, Disk::Virtual(it) => it.bytes_per_second),
    field!("command", Time, TIME, Disk::Virtual(it) => it.command_ns),
    field!("latency", Time, TIME, Disk::Virtual(it) => it.latency_ns),
    field!("tail", Time, TIME, Disk::Virtual(it) => it.tail_ns),
    field!("step", Time, STEP, Disk::Virtual(it) => it.step_ns),
    field!("step-deviation", Thousandths, (0, 999), Disk::Virtual(it) => it.step_deviation),
    field!("level-deviation", Thousandths, (0, 999), Disk::Virtual(it) => it.level_deviation),
    field!("iops", Count, (1, IopsBudget::UNLIMITED), Disk::Virtual(it) => it.budget.iops),
    field!("burst-iops", Count, (1, IopsBudget::UNLIMITED), Disk::Virtual(it) => it.budget.burst_iops),
    field!("credits", Count, (0, 1_000_000_000), Disk::Virtual(it) => it.budget.credits),
    field!("credits-max", Count, (0, 1_000_000_000), Disk::Virtual(it) => it.budget.credits_max),
    field!("unit", Bytes, UNIT, Disk::Virtual(it) => it.budget.unit_bytes),
];

#[cfg(test)]
mod tests {
    use headworks_core::prng::Prng;
    use headworks_core::{Instant, Op};

    use super::*;
    use crate::ModelCommand;
    use crate::device_model::testing::{drive, random, sequential};

    /// Asserts that a figure is within 10 % of the published one.
    fn near(what: &str, found: f64, published: f64) {
        let error = found / published - 1.0;
        assert!(error.abs() <= 0.1, "{what}: {found:.1} for {published} ({:+.1} %)", error * 100.0);
    }

    fn size(disk: &Disk) -> u64 {
        disk.field("size").unwrap().get(disk)
    }

    /// Commands in a second at a depth.
    fn rate(disk: Disk, op: Op, depth: u64) -> f64 {
        let mut model = disk.model(1);
        drive(&mut *model, depth, (200, 3_000), random(op, 4096, size(&disk))).per_second()
    }

    /// Milliseconds of a flush after `count` writes of 4 KiB at random places.
    fn flush_ms(disk: Disk, count: u64) -> f64 {
        let mut model = disk.model(1);
        let mut places = random(Op::Write, 4096, size(&disk));
        let (mut now, mut done) = (Instant(0), Vec::new());
        for token in 0..count {
            model.submit(now, ModelCommand { token, ..places(token) });
        }
        while done.len() < count as usize {
            now = model.next_timeout().unwrap();
            model.on_timeout(now, &mut done);
        }
        let flushed = now;
        model.submit(now, ModelCommand { token: count, op: Op::Flush, offset: 0, len: 0 });
        while done.len() <= count as usize {
            now = model.next_timeout().unwrap();
            model.on_timeout(now, &mut done);
        }
        now.since(flushed) as f64 / 1e6
    }

    fn named(name: &str) -> Disk {
        Disk::named(name).unwrap()
    }

    #[test]
    fn drive_from_its_data_sheet_meets_it() {
        // 8.0 ms to seek and 4.16 for half a turn; the sheet has no figure for a queue.
        let drive_of_8_tb = named("ultrastar-7k8");
        near("ms of a read", 1e3 / rate(drive_of_8_tb, Op::Read, 1), 12.16);
        let mut model = drive_of_8_tb.model(1);
        let commands = sequential(Op::Read, 1 << 20);
        let mib = drive(&mut *model, 1, (10, 500), commands).per_second();
        near("MB/s", mib * f64::from(1 << 20) / 1e6, 205.0);
    }

    #[test]
    fn drive_that_misses_its_data_sheet_meets_its_measurements() {
        let barracuda = named("st2000dm006");
        near("ms of a read", 1e3 / rate(barracuda, Op::Read, 1), 17.5);
        near("reads at depth 32", rate(barracuda, Op::Read, 32), 94.0);
        near("ms of a flush of 64 writes", flush_ms(barracuda, 64), 630.0);
        let mut model = barracuda.model(1);
        let commands = sequential(Op::Read, 1 << 20);
        let mib = drive(&mut *model, 1, (10, 500), commands).per_second();
        near("MB/s", mib * f64::from(1 << 20) / 1e6, 143.0);
    }

    #[test]
    fn flash_syncs_as_published() {
        // 248 to 311 writes with a sync each in a second.
        let synced = 1e3 / (flush_ms(named("sata"), 1) + 1e3 / rate(named("sata"), Op::Write, 1));
        near("synced writes", synced, 280.0);
        assert!(flush_ms(named("nvme"), 64) < 0.1, "it survives a loss of power");
    }

    #[test]
    fn flush_empties_the_cache_and_experiments_know_none() {
        let flushing = flush_ms(named("hdd-7200"), 64);
        assert!((150.0..900.0).contains(&flushing), "{flushing} ms");
        assert!(flush_ms(Disk::Hdd(HddProfile::seed_000(32)), 64) < 0.1);
    }

    #[test]
    fn written_flash_is_slower_behind_its_fast_region() {
        let (fresh, mut worn) = (named("sata-qlc"), named("sata-qlc"));
        worn.fill().unwrap();
        let rate = |disk: Disk| {
            let mut model = disk.model(1);
            let commands = sequential(Op::Write, 1 << 20);
            drive(&mut *model, 8, (100, 2_000), commands).per_second() * f64::from(1 << 20) / 1e6
        };
        let (fresh, worn) = (rate(fresh), rate(worn));
        assert!(fresh > 100.0 && worn < 80.0, "{fresh:.0} and {worn:.0} MB/s");
        assert!(named("hdd-7200").fill().is_err());
    }

    #[test]
    fn size_of_a_gp2_volume_decides_its_rate() {
        let gib = 1 << 30;
        for (size, iops, burst) in
            [(10, 100, 3_000), (100, 300, 3_000), (2_000, 6_000, 6_000), (9_999, 16_000, 16_000)]
        {
            let mut disk = named("cloud-gp2");
            disk.field("size").unwrap().set(&mut disk, size * gib).unwrap();
            let get = |key| disk.field(key).unwrap().get(&disk);
            assert_eq!((get("size"), get("iops"), get("burst-iops")), (size * gib, iops, burst));
        }
        let mut empty = named("cloud-gp2");
        empty.field("credits").unwrap().set(&mut empty, 0).unwrap();
        near("a second without credits", rate(empty, Op::Read, 32), 300.0);
        near("a second with credits", rate(named("cloud-gp2"), Op::Read, 32), 3_000.0);
        near("a second of gp3", rate(named("cloud-gp3"), Op::Read, 32), 3_000.0);
    }

    #[test]
    fn every_parameter_is_set_and_read_by_its_key() {
        for NamedDisk { name, disk, .. } in &NAMED {
            assert_eq!(disk.check(), Ok(()), "{name}");
            for field in disk.fields() {
                let mut changed = *disk;
                let other =
                    if field.get(disk) == field.range.0 { field.range.1 } else { field.range.0 };
                field.set(&mut changed, other).unwrap();
                assert_eq!(field.get(&changed), other, "{name} {}", field.key);
                assert!(field.set(&mut changed, field.range.1 + 1).is_err());
                field.set(&mut changed, field.get(disk)).unwrap();
                assert_eq!(field.get(&changed), field.get(disk));
            }
        }
    }

    #[test]
    fn any_accepted_disk_completes_every_command() {
        let mut prng = Prng::new(5);
        let mut accepted = 0;
        for round in 0..400 {
            let mut disk = NAMED[round % NAMED.len()].disk;
            for field in disk.fields() {
                let (least, most) = field.range;
                match prng.below(8) {
                    0 => field.set(&mut disk, least).unwrap(),
                    1 => field.set(&mut disk, most).unwrap(),
                    2 => field.set(&mut disk, prng.between(least, most)).unwrap(),
                    _ => {}
                }
            }
            if disk.check().is_err() {
                continue;
            }
            accepted += 1;
            let mut model = disk.model(round as u64);
            let (mut now, mut done) = (Instant(0), Vec::new());
            for token in 0..40 {
                let op = [Op::Read, Op::Write, Op::Flush][prng.below(3) as usize];
                let len = if op == Op::Flush { 0 } else { prng.between(1, 256) as u32 * 4096 };
                let offset = prng.below(1 << 36) * 4096;
                model.submit(now, ModelCommand { token, op, offset, len });
                while prng.below(2) == 0
                    && let Some(at) = model.next_timeout()
                {
                    assert!(at >= now, "{disk:?}");
                    now = at;
                    model.on_timeout(now, &mut done);
                }
            }
            while done.len() < 40 {
                now = model.next_timeout().unwrap_or_else(|| panic!("{disk:?} lost a command"));
                model.on_timeout(now, &mut done);
            }
            done.sort_unstable();
            assert!(done.iter().copied().eq(0..40), "{disk:?}");
        }
        assert!(accepted > 200, "{accepted}");
    }
}
