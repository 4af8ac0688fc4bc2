//! A record repeated on file systems of the kernel, whose disks are recorded in turn.
//!
//! A pass may be disturbed: between steps of the program another file of the same file system is synced, so that the journal is committed,
//! or a part of what the program wrote is written back. The kernel does both at times of its own choosing; here the seed chooses.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

use headworks_core::prng::Prng;
use headworks_crash::{Action, Disk, Limits, MountUser, Record, Replay, Tree, lock};

use super::file_system::{FileSystem, MountedImage};
use super::program::{self, mount};
use super::workplace::Workplace;

/// Name of the image in the directory that records.
const IMAGE: &str = "disk.img";
/// Directory of the program on the file system.
const FILES: &str = "files";
/// The file that disturbances sync.
const OTHER: &str = "other";
/// Steps back from which something is written back.
const BACK: u64 = 8;
/// Bytes of the record of a disk.
const RECORD_MAX: u64 = 4 << 30;
/// Requests of btrfs that commit its transaction, and wait for it.
const START_SYNC: libc::c_ulong = 0x8008_9418;
const WAIT_SYNC: libc::c_ulong = 0x4008_9416;

/// What the disks of file systems did while a record was repeated on them.
pub struct Pass {
    /// Of the disks: each has one file, its image.
    pub disks: Record,
    /// By number of steps of the program: number of steps of the disks then.
    pub positions: Vec<usize>,
    /// Whether something else than the program asked for syncs.
    pub disturbed: bool,
}

/// Disks with file systems of one kind, on which a record can be repeated.
pub struct Stand<'a> {
    pub kind: FileSystem,
    pub place: &'a Workplace,
    pub record: &'a Record,
    /// Of the program's disks those that may lose something, with their names.
    disks: Vec<(usize, String)>,
    /// The disks with file systems on them, the program's base not yet there.
    base: Vec<Tree>,
    limits: Limits,
}

impl<'a> Stand<'a> {
    /// Makes the file systems.
    pub fn new(kind: FileSystem, place: &'a Workplace, record: &'a Record) -> Result<Self, String> {
        let losing = record.disks.iter().enumerate().filter(|(_, disk)| !disk.keeps_all);
        let disks: Vec<_> = losing.map(|(at, disk)| (at, disk.name.clone())).collect();
        let end = record.trees(record.changes.len());
        let used = record.base.iter().chain(&end).map(Tree::used).max().unwrap_or(0);
        let size = kind.image_size(used);
        let limits = Limits { size: 2 * size, record: RECORD_MAX };
        let base = disks.iter().map(|_| Tree::new(0, 0)).collect();
        let mut stand = Self { kind, place, record, disks, base, limits };
        let mounted = mount(place, stand.start(), limits, "disk-", MountUser::Process)?;
        for (_, path) in &mounted.paths {
            let image = path.join(IMAGE);
            let made = File::create(&image).and_then(|file| file.set_len(size));
            made.map_err(|error| format!("{} cannot be made: {error}", image.display()))?;
            kind.make(&image)?;
        }
        let recording = lock(&mounted.recording);
        stand.base = (0..stand.disks.len()).map(|disk| recording.tree(disk).clone()).collect();
        drop(recording);
        Ok(stand)
    }

    /// Mounts disks with these contents and what is on them. The paths are those of the program's directories.
    pub fn mount(&self, trees: Vec<Tree>) -> Result<MountedDisks, String> {
        let mut start = self.start();
        start.base = trees;
        let disks = mount(self.place, start, self.limits, "disk-", MountUser::Process)?;
        let mut images = Vec::new();
        let mut paths = Vec::new();
        for (name, path) in &disks.paths {
            let image = path.join(IMAGE);
            let mount = || {
                let point = self.place.mount_point(&format!("{}-{name}", self.kind))?;
                self.kind.mount(&image, &point)
            };
            // Loop devices are everybody's: another program may take the one that was free.
            let image = mount().or_else(|_| mount())?;
            paths.push((name.clone(), image.point().join(FILES)));
            images.push(image);
        }
        Ok(MountedDisks { images, paths, disks })
    }

    /// Mounts the file systems as they were made.
    pub fn mount_base(&self) -> Result<MountedDisks, String> {
        self.mount(self.base.clone())
    }

    /// Repeats the record. `disturb`: a seed for disturbances, none for the program's syncs alone.
    pub fn pass(&self, disturb: Option<u64>, until: Instant) -> Result<Pass, String> {
        let mounted = self.mount_base()?;
        let failed = |error: std::io::Error| {
            format!("the record cannot be repeated on {}: {error}", self.kind)
        };
        let mut roots = vec![None; self.record.disks.len()];
        for ((disk, _), (_, path)) in self.disks.iter().zip(&mounted.paths) {
            roots[*disk] = Some(path.clone());
        }
        let mut replay = Replay::begin(self.record, roots).map_err(failed)?;
        for image in &mounted.images {
            fs::write(image.point().join(OTHER), b"").map_err(failed)?;
            let root = File::open(image.point()).map_err(failed)?;
            // SAFETY: the descriptor is open during the call.
            unsafe { libc::syncfs(root.as_raw_fd()) };
        }
        let recording = &mounted.disks.recording;
        lock(recording).checkpoint(|_| Ok(None)).map_err(failed)?;
        let mut prng = disturb.map(Prng::new);
        let mut positions = vec![0];
        loop {
            let more = replay.step().map_err(|error| {
                format!(
                    "step {} of the record cannot be repeated on {}: {error}",
                    replay.done(),
                    self.kind
                )
            })?;
            if !more {
                break;
            }
            // Before the disturbance: a cut may come between it and the step.
            positions.push(lock(recording).steps());
            if let Some(prng) = &mut prng {
                self.disturb(prng, &replay, &mounted.images).map_err(failed)?;
            }
            if Instant::now() >= until {
                return Err(format!(
                    "the record takes too long on {}: --time gives it longer",
                    self.kind
                ));
            }
        }
        let MountedDisks { images, disks, .. } = mounted;
        drop(images);
        let disks = lock(&disks.recording).close().map_err(failed)?;
        Ok(Pass { disks, positions, disturbed: disturb.is_some() })
    }

    /// A record of the disks without steps.
    fn start(&self) -> Record {
        let named = |(_, name): &(usize, String)| Disk { name: name.clone(), keeps_all: false };
        Record::new(self.disks.iter().map(named).collect(), self.base.clone())
    }

    /// Commits the journal, writes something back, or does nothing.
    fn disturb(
        &self,
        prng: &mut Prng,
        replay: &Replay<'_>,
        images: &[MountedImage],
    ) -> std::io::Result<()> {
        match prng.below(4) {
            0 => images.iter().try_for_each(|image| self.commit(image.point())),
            1 => {
                let back = prng.below(BACK) as usize + 1;
                let Some(step) = replay.done().checked_sub(back) else { return Ok(()) };
                let Action::Write { offset, data, .. } = &self.record.changes[step].action else {
                    return Ok(());
                };
                let pages = (data.len() as u64).div_ceil(4096).max(1);
                let first = prng.below(pages);
                let count = 1 + prng.below(pages - first);
                replay.write_back(step, offset + first * 4096, count * 4096)
            }
            _ => Ok(()),
        }
    }

    fn commit(&self, root: &Path) -> std::io::Result<()> {
        if self.kind == FileSystem::Btrfs {
            let root = File::open(root)?;
            let mut transaction = 0u64;
            // SAFETY: both calls read or write eight bytes, which live during the call.
            unsafe {
                libc::ioctl(root.as_raw_fd(), START_SYNC, &raw mut transaction);
                libc::ioctl(root.as_raw_fd(), WAIT_SYNC, &raw mut transaction);
            }
            return Ok(());
        }
        let mut other = OpenOptions::new().append(true).open(root.join(OTHER))?;
        other.write_all(b"x")?;
        other.sync_all()
    }
}

/// Disks that are mounted, with the file systems on them.
pub struct MountedDisks {
    /// Before the disks: they are unmounted first.
    images: Vec<MountedImage>,
    /// The program's directories, by the names of their variables.
    pub paths: Vec<(String, PathBuf)>,
    disks: program::Mounted,
}
