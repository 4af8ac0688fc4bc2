//! Which state of a model a directory is: the choices on the axes of a place that make it.
//!
//! Names are tried one choice after the other; the blocks of a file are then decided each by itself, because none depends on another but by
//! the length, which is known. Modes,
//! owners and times do not count: models do not lose them.

use crate::explore::next_choices;
use crate::model::Axis;
use crate::record::Action;
use crate::state::Walk;
use crate::tree::Tree;

/// Choices of names that are tried at most.
const NAMES_MAX: u64 = 1 << 16;

/// The length of a file, and the choice for one of its blocks that gives it.
type Fitting = (u64, u32);

/// What a search found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Membership {
    /// The directories are the state of these choices, a number for each axis.
    Member(Vec<u32>),
    /// No state of the place is like them.
    Stranger,
    /// The place has too many choices of names to tell.
    Unknown,
}

impl Walk<'_> {
    /// Looks for the state that these directories are, one a disk; those of disks that keep all are not compared.
    #[must_use]
    pub fn find(&self, seen: &[Tree]) -> Membership {
        let axes = self.axes();
        let is_name =
            |axis: &Axis| matches!(axis, Axis::Sequence(_) | Axis::Single(_) | Axis::OldName(_));
        let names: Vec<usize> = (0..axes.len()).filter(|at| is_name(&axes[*at])).collect();
        let name_axes: Vec<Axis> = names.iter().map(|at| axes[*at].clone()).collect();
        let count = name_axes.iter().try_fold(1u64, |count, axis| {
            count.checked_mul(u64::from(axis.most()) + 1).filter(|count| *count <= NAMES_MAX)
        });
        if count.is_none() {
            return Membership::Unknown;
        }
        let mut name_choices = vec![0; names.len()];
        loop {
            let mut choices = vec![0; axes.len()];
            names.iter().zip(&name_choices).for_each(|(at, choice)| choices[*at] = *choice);
            if let Some(found) = self.find_bytes(choices, seen) {
                return Membership::Member(found);
            }
            if !next_choices(&name_axes, &mut name_choices) {
                return Membership::Stranger;
            }
        }
    }

    /// Decides blocks and lengths, once the names are chosen.
    fn find_bytes(&self, mut choices: Vec<u32>, seen: &[Tree]) -> Option<Vec<u32>> {
        let whole = self.trees(&choices);
        let differing = self.differing(&whole, seen)?;
        for (disk, node, length) in differing {
            let own: Vec<usize> =
                (0..choices.len()).filter(|at| self.is_of(*at, disk, node)).collect();
            let is_size = |at: &usize| matches!(self.axes()[*at], Axis::Size { .. });
            let size = own.iter().copied().find(is_size);
            let blocks: Vec<usize> = own.into_iter().filter(|at| !is_size(at)).collect();
            let most = |at: usize| self.axes()[at].most();
            let kept = size.map_or_else(Vec::new, |at| self.size_choices(at, length));
            // What a truncation left behind its end is seen in a file that is longer.
            let longer = size.zip(kept.first().copied());
            blocks.iter().for_each(|at| choices[*at] = most(*at));
            let mut assigned = Vec::new();
            for at in &blocks {
                // The file's length if of all blocks this one alone is kept, by the choice there.
                let mut fitting = Vec::new();
                for choice in 0..=most(*at) {
                    choices[*at] = choice;
                    let mut trees = self.trees(&choices);
                    let content = trees[usize::from(disk)].content(node);
                    let end = content.map_or(0, |content| content.size());
                    if let Some((size, kept)) = longer.filter(|_| self.is_cut(*at)) {
                        choices[size] = kept;
                        trees = self.trees(&choices);
                        choices[size] = 0;
                    }
                    let (tree, seen) = (&trees[usize::from(disk)], &seen[usize::from(disk)]);
                    if self.has_same_block(*at, tree, node, (seen, length), &whole) {
                        fitting.push((end, choice));
                    }
                }
                choices[*at] = most(*at);
                if fitting.is_empty() {
                    return None;
                }
                assigned.push(fitting);
            }
            // The length that follows the bytes, with the fewest losses; one that is kept without them; the longest of bytes that fit into it.
            let fewest: Vec<u32> = assigned.iter().map(|fitting| fewest(fitting)).collect();
            let longest: Vec<u32> =
                assigned.iter().map(|fitting| longest(fitting, length)).collect();
            let ways = |way| {
                [(way, None)].into_iter().chain(kept.iter().map(move |kept| (way, Some(*kept))))
            };
            let fits = ways(&fewest).chain(ways(&longest)).any(|(way, kept)| {
                blocks.iter().zip(way).for_each(|(at, choice)| choices[*at] = *choice);
                if let Some(size) = size {
                    choices[size] = kept.unwrap_or(0);
                }
                let tree = &self.trees(&choices)[usize::from(disk)];
                tree.content(node).is_ok_and(|content| content.size() == length)
            });
            if !fits {
                return None;
            }
        }
        self.differing(&self.trees(&choices), seen).filter(Vec::is_empty).map(|_| choices)
    }

    /// The files whose bytes are others: disk, node, and the length that was seen; none if names or links differ.
    fn differing(&self, trees: &[Tree], seen: &[Tree]) -> Option<Vec<(u8, u64, u64)>> {
        let mut all = Vec::new();
        for (disk, (tree, seen)) in (0..).zip(trees.iter().zip(seen)) {
            if self.record().disks[usize::from(disk)].keeps_all {
                continue;
            }
            let different = tree.different_files(seen)?;
            all.extend(different.into_iter().map(|(node, length)| (disk, node, length)));
        }
        Some(all)
    }

    fn is_of(&self, at: usize, own_disk: u8, own: u64) -> bool {
        match self.axes()[at] {
            Axis::Block { disk, node, .. } | Axis::Size { disk, node, .. } => {
                (disk, node) == (own_disk, own)
            }
            _ => false,
        }
    }

    /// Whether a truncation ended in a block.
    fn is_cut(&self, at: usize) -> bool {
        let Axis::Block { writes, .. } = &self.axes()[at] else { return false };
        let changes = &self.record().changes;
        writes.iter().any(|step| matches!(changes[*step].action, Action::Truncate { .. }))
    }

    /// The choices that keep this length, those of the last steps first.
    fn size_choices(&self, at: usize, length: u64) -> Vec<u32> {
        let Axis::Size { sizes, .. } = &self.axes()[at] else { return Vec::new() };
        let back = (1..).zip(sizes.iter().rev());
        back.filter(|(_, (_, size))| *size == length).map(|(choice, _)| choice).collect()
    }

    /// Whether a block has the bytes that were seen, up to the length that was seen: what is behind it may have been cut. The file has the same
    /// name in both, which `whole` knows.
    fn has_same_block(
        &self,
        at: usize,
        tree: &Tree,
        node: u64,
        (seen, end): (&Tree, u64),
        whole: &[Tree],
    ) -> bool {
        let Axis::Block { disk, block, .. } = self.axes()[at] else { return false };
        let path = whole[usize::from(disk)].path(node).unwrap_or_default();
        let Some(theirs) = seen.at(&path).and_then(|node| seen.content(node).ok()) else {
            return false;
        };
        let Ok(ours) = tree.content(node) else { return false };
        let length = end.saturating_sub(block * self.block()).min(self.block()) as usize;
        let (mut one, mut other) = (vec![0; length], vec![0; length]);
        ours.read(block * self.block(), &mut one);
        theirs.read(block * self.block(), &mut other);
        one == other
    }
}

/// The choice that loses least.
fn fewest(fitting: &[Fitting]) -> u32 {
    fitting.iter().map(|(_, choice)| *choice).min().unwrap_or(0)
}

/// The choice with the longest file of at most `length` bytes.
fn longest(fitting: &[Fitting], length: u64) -> u32 {
    let fits = fitting.iter().filter(|(end, _)| *end <= length);
    let longest = fits.max_by_key(|(end, choice)| (*end, u32::MAX - choice));
    longest.map_or_else(|| fewest(fitting), |(_, choice)| *choice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Model;
    use crate::record::Record;
    use crate::testing::{record, sample};

    /// Every state of every place is found, as a state with the same directory.
    fn finds_all(record: &Record, model: Model) {
        let mut walk = Walk::new(record, model, 4096);
        for place in 0..=record.changes.len() {
            walk.go(place);
            if walk.states(5000).is_none() {
                continue;
            }
            let mut choices = vec![0; walk.axes().len()];
            loop {
                let trees = walk.trees(&choices);
                let found = walk.find(&trees);
                let Membership::Member(same) = found else {
                    panic!("{model} {place} {choices:?}: {found:?}")
                };
                assert!(walk.trees(&same)[0].has_same_contents(&trees[0]), "{place} {choices:?}");
                if !next_choices(walk.axes(), &mut choices) {
                    break;
                }
            }
        }
    }

    #[test]
    fn every_state_is_found() {
        let versions = "create a; write a 0 6000 x; write a 4000 3000 y; write a 100 10 z; create b; rename a b; truncate b 4500; write b 9000 10 w";
        for model in Model::ALL {
            finds_all(&sample(), model);
            finds_all(&record(versions), model);
        }
    }

    #[test]
    fn what_no_state_is_like_is_a_stranger() {
        let done = record("create a; write a 0 6000 x; sync a; create b; write b 0 10 y");
        let mut walk = Walk::new(&done, Model::Journal, 4096);
        walk.go(done.changes.len());
        for other in [
            "create b; write b 0 10 y",
            "create a; write a 0 6000 z",
            "create a; write a 0 5999 x",
            "create a; write a 0 6000 x; link a b",
            "create a; write a 0 6000 x; create b; write b 0 11 y",
        ] {
            let other = record(other);
            assert_eq!(walk.find(&other.trees(other.changes.len())), Membership::Stranger);
        }
        let other = record("create a; write a 0 6000 x; create b; truncate b 10");
        let found = walk.find(&other.trees(other.changes.len()));
        assert!(matches!(found, Membership::Member(_)), "{found:?}");
    }
}
