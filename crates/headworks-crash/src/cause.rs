//! Causes: what a state lost, as sentences with the sync that is missing.
//!
//! Of a sequence, and of the writes to a block, the earliest change that is lost is the one that decides in a state that was shrunk: losing
//! one less does not fail. So it is the one that is named.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::model::Axis;
use crate::record::{Action, Change, Record};
use crate::tree::ROOT;

/// Depth of directories at most, when paths are made.
const DEPTH_MAX: usize = 256;
/// Bytes of a sector, in which causes on an image count.
const SECTOR: u64 = 512;
/// Bytes of a promise that are quoted.
const QUOTED_MAX: usize = 60;

/// A change that a state lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effect {
    /// Index of its step.
    pub step: usize,
    /// What it was: `write`, `rename`, `create` and the like.
    pub operation: &'static str,
    /// The file or name that it concerns.
    pub path: String,
    /// Of a write: where its bytes begin.
    pub offset: u64,
    /// Of a write: their number.
    pub length: u64,
    /// The sentence: what was not durable, and which sync is missing.
    pub said: String,
}

impl Effect {
    /// Operation and path, with numbers replaced.
    #[must_use]
    pub fn in_general(&self) -> String {
        generalized(&format!("{} {}", self.operation, self.path))
    }
}

/// Names of nodes throughout a record, for sentences.
#[derive(Debug)]
pub struct Explainer<'a> {
    record: &'a Record,
    /// Bytes that are lost or kept together.
    block: u64,
    /// By disk and node: from which step on it had which name in which directory.
    names: HashMap<(u8, u64), Vec<NameAt>>,
}

#[derive(Debug)]
struct NameAt {
    step: usize,
    parent: u64,
    name: Box<[u8]>,
}

impl<'a> Explainer<'a> {
    /// Collects the names of a record.
    #[must_use]
    pub fn new(record: &'a Record) -> Self {
        let mut names: HashMap<_, Vec<NameAt>> = HashMap::new();
        let mut add = |disk, node, step, parent, name: &[u8]| {
            names.entry((disk, node)).or_default().push(NameAt { step, parent, name: name.into() });
        };
        for (disk, tree) in record.base.iter().enumerate() {
            let mut directories = vec![ROOT];
            tree.walk(&mut |node, _| {
                directories.extend(tree.entries(node).is_ok().then_some(node))
            });
            for directory in directories.into_iter().skip(1) {
                let Ok(entries) = tree.entries(directory) else { continue };
                for (name, node) in entries {
                    add(disk as u8, *node, 0, directory, name);
                }
            }
        }
        for (step, change) in record.changes.iter().enumerate() {
            match &change.action {
                Action::Make { node, parent, name, .. } | Action::Link { node, parent, name } => {
                    add(change.disk, *node, step, *parent, name);
                }
                Action::Rename { node, new_parent, new_name, .. } => {
                    add(change.disk, *node, step, *new_parent, new_name);
                }
                _ => {}
            }
        }
        Self { record, block: 4096, names }
    }

    /// The same for states whose parts are blocks of so many bytes, 4096 or 512.
    #[must_use]
    pub fn with_block(self, block: u64) -> Self {
        Self { block, ..self }
    }

    /// What choices lose at a place, earliest first; a write once, whichever of its blocks are lost.
    #[must_use]
    pub fn effects(&self, axes: &[Axis], choices: &[u32], place: usize) -> Vec<Effect> {
        let mut steps: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
        let mut others = Vec::new();
        for (axis, choice) in axes.iter().zip(choices).filter(|(_, choice)| **choice > 0) {
            match axis {
                Axis::Sequence(of) => {
                    steps.entry(of[of.len() - *choice as usize]).or_default();
                }
                Axis::Single(step) => {
                    steps.entry(*step).or_default();
                }
                Axis::OldName(step) => others.push(self.old_name(*step, place)),
                Axis::Block { block, writes, .. } => {
                    let step = writes[writes.len() - *choice as usize];
                    steps.entry(step).or_default().push(*block);
                }
                Axis::Size { disk, node, sizes: kept } => {
                    let length = kept[kept.len() - *choice as usize];
                    others.push(self.length(*disk, *node, length, place));
                }
            }
        }
        let lost = steps.into_iter().map(|(step, blocks)| self.effect(step, &blocks, place));
        lost.chain(others).collect()
    }

    /// All that choices lose, in general: operation and path with numbers replaced. A cause with these is in any state that has them all.
    #[must_use]
    pub fn lost_in_general(
        &self,
        axes: &[Axis],
        choices: &[u32],
        place: usize,
    ) -> BTreeSet<String> {
        let mut steps = BTreeSet::new();
        let mut all = BTreeSet::new();
        for (axis, choice) in axes.iter().zip(choices).filter(|(_, choice)| **choice > 0) {
            match axis {
                Axis::Sequence(of) | Axis::Block { writes: of, .. } => {
                    steps.extend(&of[of.len() - *choice as usize..]);
                }
                Axis::Single(step) => {
                    steps.insert(*step);
                }
                Axis::OldName(step) => {
                    all.insert(self.old_name(*step, place).in_general());
                }
                Axis::Size { disk, node, sizes } => {
                    let length = sizes[sizes.len() - *choice as usize];
                    all.insert(self.length(*disk, *node, length, place).in_general());
                }
            }
        }
        all.extend(steps.into_iter().map(|step| self.effect(step, &[], place).in_general()));
        all
    }

    /// Why a state fails that lost nothing. `mapped`: the file whose later stores to a mapping would have made it hold; without one it is the
    /// program's own order.
    #[must_use]
    pub fn without_loss(&self, place: usize, mapped: Option<(u8, u64)>) -> String {
        let changes = &self.record.changes;
        let promised = changes[..place].iter().rev().find_map(|change| change.line());
        let at =
            promised.map_or_else(String::new, |line| format!(", at the promise {}", quoted(line)));
        match mapped {
            Some((disk, node)) => format!(
                "bytes of {} were only in memory, in a mapping{at}: no msync of it before",
                self.path(disk, node, place)
            ),
            None => "nothing was lost: the order of the program itself".to_owned(),
        }
    }

    fn effect(&self, step: usize, blocks: &[u64], place: usize) -> Effect {
        let change = &self.record.changes[step];
        let disk = change.disk;
        let path = |node| self.path(disk, node, step);
        let inside = |parent, name: &[u8]| joined(&self.path(disk, parent, step), name);
        let (operation, path, what, synced) = match &change.action {
            Action::Make { parent, name, new, .. } => {
                let operation = match new.mode & libc::S_IFMT {
                    libc::S_IFDIR => "mkdir",
                    libc::S_IFLNK => "symlink",
                    _ => "create",
                };
                let made = inside(*parent, name);
                (operation, made.clone(), format!("{operation} of {made}"), path(*parent))
            }
            Action::Link { parent, name, .. } => {
                let made = inside(*parent, name);
                ("link", made.clone(), format!("link of {made}"), path(*parent))
            }
            Action::Remove { parent, name, directory, .. } => {
                let operation = if *directory { "rmdir" } else { "unlink" };
                let gone = inside(*parent, name);
                (operation, gone.clone(), format!("{operation} of {gone}"), path(*parent))
            }
            Action::Rename { parent, name, new_parent, new_name, .. } => {
                let (old, new) = (inside(*parent, name), inside(*new_parent, new_name));
                ("rename", new.clone(), format!("rename of {old} to {new}"), path(*new_parent))
            }
            Action::Write { offset, data, .. } if self.is_image(disk) => {
                let what = self.sectors(disk, step, *offset, data.len() as u64);
                ("write", String::new(), what, String::new())
            }
            Action::Write { node, offset, data, .. } => {
                let what = format!("write of {} bytes {offset}+{}", path(*node), data.len());
                ("write", path(*node), what, path(*node))
            }
            Action::Truncate { node, size } => {
                let what = format!("truncate of {} to {size} bytes", path(*node));
                ("truncate", path(*node), what, path(*node))
            }
            Action::Punch { node, offset, length } => {
                let what = format!("hole of {} at {offset}+{length}", path(*node));
                ("punch", path(*node), what, path(*node))
            }
            _ => ("step", String::new(), format!("step {step}"), String::new()),
        };
        let (offset, length) = match &change.action {
            Action::Write { offset, data, .. } => (*offset, data.len() as u64),
            _ => (0, 0),
        };
        let part = self.part(step, blocks);
        let missing = match self.is_image(disk) {
            true => self.without_flush(step, place),
            false => self.missing(&synced, step, place),
        };
        let said = format!("{what} was not durable{part}: {missing}");
        Effect { step, operation, path, offset, length, said }
    }

    fn old_name(&self, step: usize, place: usize) -> Effect {
        let change = &self.record.changes[step];
        let (mut path, mut said) = (String::new(), String::new());
        if let Action::Rename { parent, name, new_parent, new_name, .. } = &change.action {
            let directory = self.path(change.disk, *parent, step);
            path = joined(&directory, name);
            let new = joined(&self.path(change.disk, *new_parent, step), new_name);
            let missing = self.missing(&directory, step, place);
            said =
                format!("end of the old name {path}, renamed to {new}, was not durable: {missing}");
        }
        Effect { step, operation: "old name", path, offset: 0, length: 0, said }
    }

    fn length(&self, disk: u8, node: u64, (step, size): (usize, u64), place: usize) -> Effect {
        let path = self.path(disk, node, place);
        let stayed = match &self.record.changes[step].action {
            Action::Write { offset, data, .. } => {
                size < offset + data.len() as u64 && !size.is_multiple_of(self.block)
            }
            _ => false,
        };
        let said = match stayed {
            true => format!("the length of {path} stayed {size} bytes when bytes were durable"),
            false => format!("the length of {path}, {size} bytes, was durable before its bytes"),
        };
        Effect { step: place, operation: "length", path, offset: 0, length: size, said }
    }

    fn is_image(&self, disk: u8) -> bool {
        self.record.disks[usize::from(disk)].is_image()
    }

    /// A write to an image: its sectors, and the flush that it came after.
    fn sectors(&self, disk: u8, step: usize, offset: u64, length: u64) -> String {
        let flush =
            |change: &&Change| change.disk == disk && matches!(change.action, Action::Sync { .. });
        let after = match self.record.changes[..step].iter().filter(flush).count() {
            0 => ", before the first flush".to_owned(),
            flushes => format!(", after flush {flushes}"),
        };
        format!("write of sector {}+{}{after}", offset / SECTOR, length.div_ceil(SECTOR))
    }

    /// The flush that would have had to stand before the next promise.
    fn without_flush(&self, step: usize, place: usize) -> String {
        let promised = self.record.changes[step..place].iter().find_map(|change| change.line());
        match promised {
            Some(line) => format!("no flush before the promise {}", quoted(line)),
            None => "no flush follows".to_owned(),
        }
    }

    /// Names the blocks if a part of a write is lost.
    fn part(&self, step: usize, blocks: &[u64]) -> String {
        let Action::Write { offset, data, .. } = &self.record.changes[step].action else {
            return String::new();
        };
        let all = (offset + data.len() as u64).div_ceil(self.block) - offset / self.block;
        match blocks {
            [block] if all > 1 => format!(" (block {block})"),
            [first, ..] if (blocks.len() as u64) < all => {
                format!(" ({} of {all} blocks, from {first} on)", blocks.len())
            }
            _ => String::new(),
        }
    }

    /// The sync that would have had to stand before the next promise.
    fn missing(&self, synced: &str, step: usize, place: usize) -> String {
        let promised = self.record.changes[step..place].iter().find_map(|change| change.line());
        match promised {
            Some(line) => format!("no fsync of {synced} before the promise {}", quoted(line)),
            None => format!("no fsync of {synced} follows"),
        }
    }

    /// The path that a node had at a step, from the root of its disk on.
    fn path(&self, disk: u8, node: u64, step: usize) -> String {
        let mut parts: Vec<String> = Vec::new();
        let mut at = node;
        while at != ROOT && parts.len() < DEPTH_MAX {
            let names = self.names.get(&(disk, at)).map_or(&[][..], Vec::as_slice);
            let Some(name) = names.iter().rev().find(|name| name.step <= step) else { break };
            parts.push(String::from_utf8_lossy(&name.name).escape_debug().to_string());
            at = name.parent;
        }
        parts.reverse();
        let disks = self.record.disks.iter().filter(|disk| !disk.keeps_all).count();
        let disk = &self.record.disks[usize::from(disk)].name;
        let root = if disks > 1 { format!("${disk}") } else { String::new() };
        format!("{root}/{}", parts.join("/"))
    }
}

/// A sentence with its numbers replaced: causes that differ in numbers alone are one.
#[must_use]
pub fn generalized(said: &str) -> String {
    let mut general = String::with_capacity(said.len());
    for letter in said.chars() {
        match letter.is_ascii_digit() {
            true if general.ends_with('N') => {}
            true => general.push('N'),
            false => general.push(letter),
        }
    }
    general
}

fn joined(directory: &str, name: &[u8]) -> String {
    let slash = if directory.ends_with('/') { "" } else { "/" };
    format!("{directory}{slash}{}", String::from_utf8_lossy(name).escape_debug())
}

fn quoted(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    let short: String = text.chars().take(QUOTED_MAX).collect();
    let more = if short.len() < text.len() { ".." } else { "" };
    format!("\"{}{more}\"", short.escape_debug())
}
