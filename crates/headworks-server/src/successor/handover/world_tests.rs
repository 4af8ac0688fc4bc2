//! Upgrades with changed configurations and images: no connection goes on with another disk, and no cached block moves to one.
//!
//! A seed draws exports over real files, opens them as a server does, changes some of both, opens them again as the next server does, and
//! asks the rule of `disk` for each connection. What a connection was bound to is known by the inode of a file that stays open.
//! Rules:
//!
//! - a connection goes on only with the file that it was opened on, not shorter than its client was told, with the access it was told;
//! - it goes on if nothing changed for its export;
//! - cached blocks move only to the volume of the same file, and not to one that is read-only now.
//!
//! `HEADWORKS_SEED=N` runs one seed, `HEADWORKS_SCHEDULES=N` more of them.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use headworks_core::ShardId;
use headworks_core::prng::Prng;
use headworks_nbd::TransmissionFlags;

use super::disk::{HandedVolume, ToldExport};
use super::take::Disks;
use crate::exports::assemble::export_info::{ServedExport, served_exports};
use crate::exports::assemble::topology::topology;
use crate::{Assembly, ExportSpec, ServerOptions};

/// Seeds of a run.
const SEEDS: u64 = 300;
/// Images at most.
const IMAGES: u64 = 4;
const BLOCK: u64 = 4096;

/// A wrong rule, planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Defect {
    None,
    /// The export's name alone binds.
    Names,
    /// The path of the image is its identity.
    Paths,
    /// Sizes are not compared.
    Sizes,
    /// Access is not compared.
    Access,
}

/// An export of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Export {
    name: String,
    image: usize,
    read_only: bool,
    /// Wrapped by a device that changes no bytes.
    wrapped: bool,
}

/// What a server serves.
struct Served {
    exports: Vec<ServedExport>,
    volumes: Vec<HandedVolume>,
    assembly: Assembly,
    /// The file and size behind each volume.
    files: Vec<(u64, u64)>,
}

struct World {
    prng: Prng,
    directory: PathBuf,
    /// Keeps inodes from being used again, as the old process does.
    open: Vec<File>,
    exports: Vec<Export>,
}

impl World {
    fn new(seed: u64) -> Self {
        // Tests run side by side, some with the same seeds.
        static WORLDS: AtomicU32 = AtomicU32::new(0);
        let number = WORLDS.fetch_add(1, Ordering::Relaxed);
        let directory =
            std::env::temp_dir().join(format!("hw-upgrades-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let mut world = Self {
            prng: Prng::new(seed).split("upgrades"),
            directory,
            open: Vec::new(),
            exports: Vec::new(),
        };
        let images = world.prng.between(1, IMAGES) as usize;
        for image in 0..images {
            world.make(image);
        }
        for number in 0..world.prng.between(1, 4) {
            let export = world.draw_export(format!("e{number}"), images);
            world.exports.push(export);
        }
        world
    }

    fn draw_export(&mut self, name: String, images: usize) -> Export {
        let image = self.prng.below(images as u64) as usize;
        // Exports of one image agree.
        let other = self.exports.iter().find(|other| other.image == image);
        let read_only = other.map_or(self.prng.below(4) == 0, |other| other.read_only);
        let wrapped = other.map_or(self.prng.below(5) == 0, |other| other.wrapped);
        Export { name, image, read_only, wrapped }
    }

    fn path(&self, image: usize) -> PathBuf {
        self.directory.join(format!("{image}.img"))
    }

    /// Makes a new file in place of an image.
    fn make(&mut self, image: usize) {
        let new = self.directory.join("new");
        let file = File::create(&new).unwrap();
        file.set_len(self.prng.between(1, 4) * 16 * BLOCK).unwrap();
        self.open.push(file);
        std::fs::rename(&new, self.path(image)).unwrap();
    }

    fn serve(&self) -> Option<Served> {
        let text = |export: &Export| {
            let path = self.path(export.image);
            let file = format!("file:path={}", path.display());
            let read_only = if export.read_only { ",read-only=on" } else { "" };
            match export.wrapped {
                true => format!("{}=delay:read=1us,of={file}{read_only}", export.name),
                false => format!("{}={file}{read_only}", export.name),
            }
        };
        let specs: Vec<_> = self
            .exports
            .iter()
            .map(|export| ExportSpec::parse(&text(export), false).unwrap())
            .collect();
        let assembly = Assembly::new(&specs).ok()?;
        let options = ServerOptions::default();
        let config = topology(&assembly, &options);
        let exports = served_exports(&assembly, &config, &options.tenants);
        let homes: Vec<ShardId> = config.volumes.iter().map(|volume| volume.home).collect();
        let volumes = Disks::new(&[], &assembly, &homes).own().to_vec();
        let files =
            volumes.iter().map(|volume| state_of(volume.path.as_deref().unwrap())).collect();
        Some(Served { exports, volumes, assembly, files })
    }

    /// Something that changes before the upgrade.
    fn change(&mut self) {
        let images = self.exports.iter().map(|export| export.image).max().unwrap_or(0) + 1;
        let image = self.prng.below(images as u64) as usize;
        let at = self.prng.below(self.exports.len().max(1) as u64) as usize;
        match self.prng.below(9) {
            0 => self.make(image),
            1 => {
                let size = self.prng.between(1, 8) * 8 * BLOCK;
                File::options().write(true).open(self.path(image)).unwrap().set_len(size).unwrap();
            }
            2 => {
                let other = self.prng.below(images as u64) as usize;
                let (one, two, aside) =
                    (self.path(image), self.path(other), self.directory.join("aside"));
                std::fs::rename(&one, &aside).unwrap();
                if other != image {
                    std::fs::rename(&two, &one).unwrap();
                }
                std::fs::rename(&aside, &two).unwrap();
            }
            3 if self.exports.len() > 1 => {
                let other = self.prng.below(self.exports.len() as u64) as usize;
                let (one, two) = (self.exports[at].name.clone(), self.exports[other].name.clone());
                (self.exports[at].name, self.exports[other].name) = (two, one);
            }
            4 => self.exports[at].name = format!("n{}", self.prng.below(2)),
            5 if self.exports.len() > 1 => drop(self.exports.remove(at)),
            6 => {
                let (image, flag) = (self.exports[at].image, !self.exports[at].read_only);
                self.each_of(image, |export| export.read_only = flag);
            }
            7 => {
                let (image, flag) = (self.exports[at].image, !self.exports[at].wrapped);
                self.each_of(image, |export| export.wrapped = flag);
            }
            _ => {
                let name = format!("x{}", self.prng.below(3));
                let export = self.draw_export(name, images);
                self.exports.push(export);
            }
        }
        self.exports.sort_by(|one, other| one.name.cmp(&other.name));
        self.exports.dedup_by(|one, other| one.name == other.name);
        if self.prng.below(3) == 0 {
            self.exports.reverse();
        }
    }

    fn each_of(&mut self, image: usize, change: impl Fn(&mut Export)) {
        self.exports.iter_mut().filter(|export| export.image == image).for_each(change);
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // What stays is in a directory for temporary files.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// The inode and size of a file.
fn state_of(path: &Path) -> (u64, u64) {
    let metadata = std::fs::metadata(path).unwrap();
    (metadata.ino(), metadata.len())
}

/// Runs a seed; the number of connections that go on, and of those that do not.
fn run(seed: u64, defect: Defect) -> Result<[u64; 2], String> {
    let mut world = World::new(seed);
    let before = world.exports.clone();
    let Some(mut old) = world.serve() else { return Ok([0, 0]) };
    let told: Vec<ToldExport> = old
        .exports
        .iter()
        .map(|served| ToldExport::new(&served.info, served.binding.volume, served.binding.range))
        .collect();
    // The locks go to the next server.
    old.assembly = Assembly::default();
    for _ in 0..world.prng.below(4) {
        world.change();
    }
    let Some(new) = world.serve() else { return Ok([0, 0]) };
    let homes: Vec<ShardId> = new.volumes.iter().map(|volume| volume.home).collect();
    let mut disks = Disks::new(&old.volumes, &new.assembly, &homes);
    let mut told = told;
    plant(defect, &mut disks, &mut told);
    let mut counts = [0; 2];
    for (at, told) in told.iter().enumerate() {
        let bound = disks.export_of(told, &new.exports).ok();
        counts[usize::from(bound.is_none())] += 1;
        let was = &old.exports[at];
        check(&world, (&before, &old, was), (&new, bound))?;
    }
    check_contents(&old, &new, &disks)?;
    Ok(counts)
}

fn plant(defect: Defect, disks: &mut Disks, told: &mut [ToldExport]) {
    match defect {
        Defect::None => {}
        Defect::Names => disks.edit(|volume| (volume.key, volume.size) = (String::new(), 0)),
        Defect::Paths => disks.edit(|volume| volume.key = format!("{:?}", volume.path)),
        Defect::Sizes => {
            disks.edit(|volume| volume.size = 0);
            told.iter_mut().for_each(|told| told.size = 0);
        }
        Defect::Access => told.iter_mut().for_each(|told| {
            // Whatever the client was told: taken for read-only and for writable.
            told.flags = told.flags.without(TransmissionFlags::READ_ONLY);
        }),
    }
}

/// Checks where a connection went.
fn check(
    world: &World,
    (before, old, was): (&[Export], &Served, &ServedExport),
    (new, bound): (&Served, Option<&ServedExport>),
) -> Result<(), String> {
    let volume = usize::from(was.binding.volume.0);
    let (inode, size) = old.files[volume];
    let is_read_only =
        |served: &ServedExport| served.info.flags.contains(TransmissionFlags::READ_ONLY);
    let name = &was.info.name;
    if let Some(now) = bound {
        let found = new.files[usize::from(now.binding.volume.0)];
        let fits = found.0 == inode
            && now.info.name == *name
            && now.info.size >= size
            && is_read_only(now) == is_read_only(was);
        return match fits {
            true => Ok(()),
            false => Err(format!(
                "a client of {name} on file {inode} of {size} bytes went on with {found:?} as {}",
                now.info.name
            )),
        };
    }
    let export = before.iter().find(|export| export.name == *name);
    let same = export.is_some_and(|export| world.exports.contains(export));
    let now = new.exports.iter().find(|served| served.info.name == *name);
    let unchanged = now.is_some_and(|now| {
        let found = new.files[usize::from(now.binding.volume.0)];
        same && found.0 == inode && found.1 >= size
    });
    if unchanged {
        Err(format!("a client of {name} was not let go on, though nothing changed for it"))
    } else {
        Ok(())
    }
}

/// Checks where cached blocks go.
fn check_contents(old: &Served, new: &Served, disks: &Disks) -> Result<(), String> {
    for volume in &old.volumes {
        let Ok(heir) = disks.heir_of(volume) else { continue };
        let file = old.files[usize::from(volume.id.0)];
        let target = new.files[usize::from(heir.id.0)];
        if file.0 != target.0 || target.1 < file.1 || heir.read_only && !volume.read_only {
            return Err(format!("cached blocks of file {file:?} went to {target:?}"));
        }
    }
    Ok(())
}

fn seeds() -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    match number("HEADWORKS_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("HEADWORKS_SCHEDULES").unwrap_or(SEEDS),
    }
}

#[test]
fn connections_go_on_with_their_own_disk_only() {
    let mut counts = [0; 2];
    for seed in seeds() {
        match run(seed, Defect::None) {
            Ok([on, off]) => counts = [counts[0] + on, counts[1] + off],
            Err(rule) => panic!(
                "{rule}; repeat with: HEADWORKS_SEED={seed} cargo test -p headworks-server connections_go_on_with_their_own"
            ),
        }
    }
    println!("{} connections went on, {} did not", counts[0], counts[1]);
    assert!(seeds().count() < 100 || counts.iter().all(|&count| count > 20), "{counts:?}");
}

#[test]
fn wrong_bindings_are_found() {
    for defect in [Defect::Names, Defect::Paths, Defect::Sizes, Defect::Access] {
        let found = (0..SEEDS).find(|&seed| run(seed, defect).is_err());
        println!("{defect:?}: {found:?}");
        assert!(found.is_some(), "{defect:?}");
    }
}
