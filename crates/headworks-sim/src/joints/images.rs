//! Images that are deleted, replaced, renamed, restored and attached again between the death of a server and the next start: whose the
//! kept blocks are.
//!
//! ```text
//!   host: filesystems (with handles, birth times, reused inodes, or without), disks with reused numbers, a clock that jumps
//!   server: rows of its volumes, blocks kept and written out --death--> what others do --start--> each image, each row: `judge`
//! ```
//!
//! The host knows each object by a number of its own. Rules:
//!
//! - a kept block goes only to the object that it is of, unless the kernel says the same of both;
//! - it does not go to an object that others changed since, unless the kernel does not say so (a block device, a clock set back);
//! - it goes to its object if no other program changed it and the kernel's names tell so, whatever its path is now;
//! - it is kept, in a recovery file or in the memory of the dead server, where it goes to no image.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use headworks_cache_memory::{DeadServer, ImageState, Verdict, VolumeRow, judge};
use headworks_core::prng::Prng;
use headworks_core::time::{MS, SEC};
use headworks_house::Identity;

use crate::check::violation;
use crate::oracle::Violation;

/// The kernel's clock for times of files.
const TICK: u64 = 4 * MS;
/// Time after the death in which the kernel may write what the server gave it.
const LATE: u64 = 1_900 * MS;
/// Time after the death in which a change by others is not told from one by the server, as durability.md says: if it had commands
/// in flight, or not.
const GRACE: u64 = 2 * SEC;
/// See [`GRACE`].
const SOON: u64 = 20 * MS;
/// Size of all images.
const SIZE: u64 = 1 << 20;

/// A wrong decision, planted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ImagesDefect {
    /// The decision is the server's.
    #[default]
    None,
    /// Device and inode numbers are all that tells images apart.
    Numbers,
    /// Birth times are not looked at.
    Births,
    /// Times of change are not looked at.
    Times,
    /// A shorter image is taken.
    Shorter,
    /// What has the path is the image.
    Paths,
    /// Nothing is ever the image.
    Nothing,
}

impl ImagesDefect {
    /// All that are planted by tests.
    pub const ALL: [Self; 6] =
        [Self::Numbers, Self::Births, Self::Times, Self::Shorter, Self::Paths, Self::Nothing];
}

/// What worlds have met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImagesMet {
    /// Volumes with kept blocks.
    pub volumes: u64,
    /// Of them: written to their image.
    pub restored: u64,
    /// To a recovery file, or not served.
    pub beside: u64,
    /// Written to another object, or to one that others changed, of which the kernel says nothing else.
    pub not_told: u64,
    /// Objects that have numbers of one that is gone.
    pub reused: u64,
}

impl ImagesMet {
    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Self) {
        self.volumes += other.volumes;
        self.restored += other.restored;
        self.beside += other.beside;
        self.not_told += other.not_told;
        self.reused += other.reused;
    }
}

/// What the kernel tells of the files of a filesystem.
#[derive(Clone, Copy, Debug)]
struct Filesystem {
    number: u64,
    handles: bool,
    births: bool,
    reuses: bool,
    is_disks: bool,
}

/// A file or a disk.
#[derive(Clone, Copy, Debug)]
struct Object {
    filesystem: usize,
    inode: u64,
    /// Given out once: of a file's handle, or the sequence of a disk.
    generation: u64,
    born: u64,
    changed: u64,
    size: u64,
    /// Somebody else changed its bytes or length since the death.
    bytes_changed: bool,
    /// Somebody else did anything to it since the death.
    touched: bool,
}

struct Host {
    prng: Prng,
    filesystems: Vec<Filesystem>,
    objects: Vec<Object>,
    /// Inode numbers that are free again, by filesystem.
    free: Vec<Vec<u64>>,
    /// What has each path; a path that is absent has nothing.
    paths: BTreeMap<u8, usize>,
    now: u64,
    /// The clock was set back by so much.
    back: u64,
    generation: u64,
    reused: u64,
    log: Vec<String>,
}

impl Host {
    fn new(mut prng: Prng) -> Self {
        let count = prng.between(1, 3) as usize;
        let filesystems = (0..count).map(|index| {
            let [handles, births] = [prng.below(4) > 0, prng.below(4) > 0];
            let is_disks = prng.below(4) == 0;
            let number = 64 + index as u64;
            Filesystem { number, handles, births, reuses: prng.below(3) > 0, is_disks }
        });
        let filesystems: Vec<_> = filesystems.collect();
        let free = vec![Vec::new(); filesystems.len()];
        let now = 1_700_000_000 * SEC;
        let (objects, paths, log) = (Vec::new(), BTreeMap::new(), Vec::new());
        Self {
            prng,
            filesystems,
            objects,
            free,
            paths,
            now,
            back: 0,
            generation: 1,
            reused: 0,
            log,
        }
    }

    fn clock(&self) -> u64 {
        (self.now - self.back) / TICK * TICK
    }

    fn pass(&mut self, most: u64) {
        self.now += self.prng.below(most);
    }

    /// Makes an object on a filesystem and gives it a path.
    fn make(&mut self, path: u8, filesystem: usize) -> usize {
        self.generation += 1;
        let kind = self.filesystems[filesystem];
        let reused = (kind.reuses || kind.is_disks).then(|| self.free[filesystem].pop()).flatten();
        self.reused += u64::from(reused.is_some());
        let inode = reused.unwrap_or(1000 + self.generation);
        let (generation, clock) = (self.generation, self.clock());
        let object = Object {
            filesystem,
            inode,
            generation,
            born: clock,
            changed: clock,
            size: SIZE,
            bytes_changed: true,
            touched: true,
        };
        self.objects.push(object);
        self.place(path, self.objects.len() - 1);
        self.objects.len() - 1
    }

    /// Gives an object a path; what had it is gone.
    fn place(&mut self, path: u8, object: usize) {
        if let Some(old) = self.paths.insert(path, object) {
            self.free_numbers(old);
        }
    }

    fn free_numbers(&mut self, object: usize) {
        let Object { filesystem, inode, .. } = self.objects[object];
        self.free[filesystem].push(inode);
    }

    /// What the kernel says of an object.
    fn state_of(&self, object: usize) -> ImageState {
        let Object { filesystem, inode, generation, born, changed, size, .. } =
            self.objects[object];
        let Filesystem { number, handles, births, is_disks, .. } = self.filesystems[filesystem];
        // As `Identity::to_bytes` has it: the numbers, birth or sequence, digest of the handle.
        let words = match is_disks {
            true => [number << 32 | inode, 0, if births { generation } else { 0 }, 7, 0],
            false => {
                let handle = if handles { inode << 32 | generation } else { 0 };
                [number, inode, if births { born } else { 0 }, handle, handle]
            }
        };
        let mut bytes = [0; Identity::BYTES];
        for (place, word) in bytes.chunks_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        let changed = (!is_disks).then_some(changed);
        let identity = Identity::from_bytes(&bytes);
        let (disk, is_partition, has_local_times) = (0, false, true);
        ImageState { identity, size, changed, disk, is_partition, has_local_times }
    }

    fn touch(&mut self, object: usize, bytes: bool) {
        let clock = self.clock();
        let object = &mut self.objects[object];
        object.changed = clock;
        object.touched = true;
        object.bytes_changed |= bytes;
    }

    fn any_path(&mut self) -> Option<u8> {
        let paths: Vec<u8> = self.paths.keys().copied().collect();
        (!paths.is_empty()).then(|| paths[self.prng.below(paths.len() as u64) as usize])
    }

    /// Something that others do.
    fn disturb(&mut self, paths: u8) {
        let most = [10 * MS, SEC, 5 * SEC, 3600 * SEC][self.prng.below(4) as usize];
        self.pass(most);
        let Some(path) = self.any_path() else { return };
        let object = self.paths[&path];
        let is_disk = self.filesystems[self.objects[object].filesystem].is_disks;
        let what = match self.prng.below(10) {
            0 | 1 => {
                self.paths.remove(&path);
                self.free_numbers(object);
                let again = self.prng.below(3) > 0;
                if again {
                    self.pass(20 * MS);
                    self.make(path, self.objects[object].filesystem);
                }
                format!(
                    "path {path}: object {object} deleted, {}",
                    if again { "made anew" } else { "gone" }
                )
            }
            2 => {
                let filesystem = self.prng.below(self.filesystems.len() as u64) as usize;
                let new = self.make(path, filesystem);
                format!("path {path}: object {new} renamed over object {object}")
            }
            3 => {
                let Some(other) = self.any_path() else { return };
                let second = self.paths[&other];
                self.paths.insert(path, second);
                self.paths.insert(other, object);
                // Renames change the times of what is renamed, on most filesystems.
                if self.prng.below(2) == 0 {
                    self.touch(object, false);
                    self.touch(second, false);
                }
                format!("paths {path} and {other} swapped")
            }
            4 => {
                self.touch(object, true);
                format!("object {object}: a backup was copied over it")
            }
            5 => {
                self.objects[object].size = SIZE - self.prng.below(SIZE / 4096) * 4096;
                self.touch(object, true);
                format!("object {object}: cut to {} bytes", self.objects[object].size)
            }
            6 => {
                self.touch(object, false);
                format!("object {object}: its mode was changed")
            }
            7 if is_disk => {
                // The same disk gets a new sequence: it cannot be told from another one.
                self.generation += 1;
                (self.objects[object].generation, self.objects[object].touched) =
                    (self.generation, true);
                format!("object {object}: attached again")
            }
            8 => {
                self.back += self.prng.below(20 * SEC);
                format!("the clock was set back, by {} ms in all", self.back / MS)
            }
            _ => {
                let free = (0..paths).find(|path| !self.paths.contains_key(path));
                let Some(free) = free else { return };
                let filesystem = self.prng.below(self.filesystems.len() as u64) as usize;
                format!("path {free}: object {} made", self.make(free, filesystem))
            }
        };
        self.log.push(what);
    }
}

/// A volume of the dead server.
struct Left {
    object: usize,
    row: VolumeRow,
    /// What the kernel said of its image when it was opened.
    known: ImageState,
    done: bool,
}

fn path_of(path: u8) -> PathBuf {
    PathBuf::from(format!("/images/{path}.img"))
}

/// What the server decides; or with a defect another decision.
fn decide(
    row: &VolumeRow,
    left: &DeadServer,
    image: &ImageState,
    path: &Path,
    defect: ImagesDefect,
) -> bool {
    let mut row = row.clone();
    let mut image = *image;
    let edit = |identity: &Identity, words: std::ops::Range<usize>| {
        let mut bytes = identity.to_bytes();
        bytes[words.start * 8..words.end * 8].fill(1);
        Identity::from_bytes(&bytes)
    };
    match defect {
        ImagesDefect::Numbers => {
            (row.identity, image.identity) =
                (edit(&row.identity, 2..5), edit(&image.identity, 2..5));
        }
        ImagesDefect::Births => {
            (row.identity, image.identity) =
                (edit(&row.identity, 2..3), edit(&image.identity, 2..3));
        }
        ImagesDefect::Times => image.changed = image.changed.map(|_| 0),
        ImagesDefect::Shorter => image.size = image.size.max(row.size),
        ImagesDefect::Paths if row.path == path => row.identity = image.identity,
        ImagesDefect::Nothing => return false,
        ImagesDefect::None | ImagesDefect::Paths => {}
    }
    judge(left, &row, &image, true) == Verdict::Unchanged
}

/// Runs the world of a seed.
///
/// # Errors
/// The violated rule, and what happened.
pub fn run(seed: u64, defect: ImagesDefect) -> Result<ImagesMet, (Violation, Vec<String>)> {
    let mut host = Host::new(Prng::new(seed).split("images"));
    let paths = host.prng.between(1, 4) as u8;
    for path in 0..paths {
        let filesystem = host.prng.below(host.filesystems.len() as u64) as usize;
        host.make(path, filesystem);
        host.pass(10 * SEC);
    }
    let started = host.now;
    let mut left = serve(&mut host);
    let (alive, was_idle) = (host.now, host.prng.below(2) == 0);
    if !was_idle {
        finish_writes(&mut host, &left);
    }
    host.pass(20 * SEC);
    let dead = DeadServer { alive, started, was_idle };
    for _ in 0..host.prng.below(7) {
        host.disturb(paths + 2);
    }
    host.pass(3600 * SEC);
    let met = start(&host, &mut left, (&dead, defect));
    met.map_err(|violation| (violation, host.log))
}

/// A server with all images, until its death.
fn serve(host: &mut Host) -> Vec<Left> {
    for object in &mut host.objects {
        (object.touched, object.bytes_changed) = (false, false);
    }
    host.pass(3600 * SEC);
    let mut left = Vec::new();
    for (path, object) in host.paths.clone() {
        let known = host.state_of(object);
        let identity = match host.prng.below(8) {
            // A server of the version before wrote the row.
            0 => Identity::of_numbers(known.identity.filesystem, known.identity.inode),
            _ => known.identity,
        };
        let row = VolumeRow {
            identity,
            path: path_of(path),
            size: SIZE,
            suspect: false,
            ahead: 0,
            disk: 0,
            touched: 0,
        };
        left.push(Left { object, row, known, done: false });
        if host.prng.below(2) == 0 {
            host.objects[object].changed = host.clock();
        }
        host.pass(60 * SEC);
    }
    left
}

/// What the dead server gave to the kernel is written a moment later.
fn finish_writes(host: &mut Host, left: &[Left]) {
    for volume in left {
        if host.prng.below(3) == 0 {
            host.objects[volume.object].changed = host.clock() + host.prng.below(LATE);
        }
    }
    host.pass(LATE);
}

/// The next server opens what has a path, in any order, and decides.
fn start(
    host: &Host,
    left: &mut [Left],
    (dead, defect): (&DeadServer, ImagesDefect),
) -> Result<ImagesMet, Violation> {
    let mut met =
        ImagesMet { volumes: left.len() as u64, reused: host.reused, ..ImagesMet::default() };
    for (&path, &object) in &host.paths {
        let image = host.state_of(object);
        for volume in left.iter_mut().filter(|volume| !volume.done) {
            if !decide(&volume.row, dead, &image, &path_of(path), defect) {
                continue;
            }
            volume.done = true;
            let is_it = object == volume.object;
            let told = match (is_it, host.objects[object].bytes_changed) {
                (true, false) => None,
                (true, true) => Some(others_changed(host, volume, object, dead)),
                (false, _) => Some(is_told_apart(volume, &image)),
            };
            met.restored += u64::from(told.is_none());
            met.not_told += u64::from(told == Some(false));
            if told == Some(true) {
                let detail = format!(
                    "blocks of object {} went to object {object}, {image:?}; {:?}",
                    volume.object, volume.row
                );
                return Err(violation(
                    "a kept block goes to its image only, as that was left",
                    detail,
                ));
            }
        }
    }
    for volume in left.iter().filter(|volume| !volume.done) {
        met.beside += 1;
        let Object { touched, filesystem, .. } = host.objects[volume.object];
        let Filesystem { handles, births, is_disks, .. } = host.filesystems[filesystem];
        let has_path = host.paths.values().any(|&object| object == volume.object);
        let is_named = if is_disks { births } else { handles || births };
        let has_row = volume.row.identity == volume.known.identity;
        if has_path && !touched && is_named && has_row {
            let detail = format!("object {}: {:?}", volume.object, volume.row);
            return Err(violation("a kept block goes to its image if nobody touched that", detail));
        }
    }
    Ok(met)
}

/// Whether the kernel says that others changed an object: not of a disk, and not if the clock was set back.
fn others_changed(host: &Host, volume: &Left, object: usize, dead: &DeadServer) -> bool {
    let Object { filesystem, size, changed, .. } = host.objects[object];
    let is_told = changed > dead.alive + if dead.was_idle { SOON } else { GRACE };
    size < volume.row.size || !host.filesystems[filesystem].is_disks && is_told
}

/// Whether the kernel says other things of an image than of the one that the row is of.
fn is_told_apart(volume: &Left, image: &ImageState) -> bool {
    let is_named = volume.row.identity.is_known() && image.identity.is_known();
    volume.row.identity != image.identity && is_named
}
