//! States: what is left after a cut. A [`Walk`] goes through the places of a record and makes the trees of any choice of losses there.
//!
//! ```text
//!   record:  |----- durable, replayed once: base -----|first pending ...... place|
//!                                                      replayed for each state, without what it lost
//! ```

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use crate::hash;
use crate::model::{Axis, Model, Pending, taken, zeroed};
use crate::record::{Action, Change, Record};
use crate::tree::Tree;

/// Number of steps of a state's description at most.
const LOSSES_MAX: usize = 1 << 16;

/// A state: a place and what was lost there. Its text repeats it: `230:2.3+7` is place 230, choice 3 of axis 2 and choice 1 of axis 7.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// Number of steps that happened.
    pub place: usize,
    /// Axes on which something was lost, in order, with the choice; axes count from 1.
    pub lost: Vec<(u32, u32)>,
}

impl State {
    /// The state of choices on each axis.
    #[must_use]
    pub fn new(place: usize, choices: &[u32]) -> Self {
        let lost = (1..).zip(choices).filter(|(_, choice)| **choice > 0);
        Self { place, lost: lost.map(|(axis, choice)| (axis, *choice)).collect() }
    }

    /// The choices on `axes`; none if one of them has no such choice.
    #[must_use]
    pub fn choices(&self, axes: &[Axis]) -> Option<Vec<u32>> {
        let mut choices = vec![0; axes.len()];
        for (axis, choice) in &self.lost {
            let at = (*axis as usize).checked_sub(1)?;
            let most = axes.get(at)?.most();
            choices[at] = Some(*choice).filter(|choice| *choice <= most)?;
        }
        Some(choices)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.place)?;
        if self.lost.is_empty() {
            return f.write_str("-");
        }
        for (index, (axis, choice)) in self.lost.iter().enumerate() {
            let join = if index > 0 { "+" } else { "" };
            match choice {
                1 => write!(f, "{join}{axis}")?,
                _ => write!(f, "{join}{axis}.{choice}")?,
            }
        }
        Ok(())
    }
}

impl FromStr for State {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let one = |word: &str| {
            let (axis, choice) = word.split_once('.').unwrap_or((word, "1"));
            Some((axis.parse().ok()?, choice.parse().ok()?))
        };
        let parsed = word.split_once(':').and_then(|(place, lost)| {
            let place = place.parse().ok()?;
            let lost = match lost {
                "-" => Vec::new(),
                _ => lost.split('+').take(LOSSES_MAX).map(one).collect::<Option<Vec<_>>>()?,
            };
            lost.is_sorted_by(|one, other| one.0 < other.0).then_some(Self { place, lost })
        });
        parsed.ok_or_else(|| {
            format!("`{word}` is no state; 230:2.3+7 is one: place 230, losses 2.3 and 7")
        })
    }
}

/// A place of a record: what is pending there, and the trees that all its states have in common.
#[derive(Clone, Debug)]
pub struct Walk<'a> {
    record: &'a Record,
    pending: Pending,
    block: u64,
    place: usize,
    /// The trees without a loss.
    whole: Vec<Tree>,
    /// The trees before the first step that may be lost, and its index.
    base: (usize, Vec<Tree>),
    axes: Vec<Axis>,
}

impl<'a> Walk<'a> {
    /// Begins where nothing happened yet. `block`: bytes that are lost or kept together.
    #[must_use]
    pub fn new(record: &'a Record, model: Model, block: u64) -> Self {
        let trees = || record.base.clone();
        let (pending, base) = (Pending::new(model, block), (0, trees()));
        Self { record, pending, block, place: 0, whole: trees(), base, axes: Vec::new() }
    }

    /// Goes on to a place at or behind the present one; one behind the end is the end.
    pub fn go(&mut self, place: usize) {
        let place = place.min(self.record.changes.len());
        if place <= self.place {
            return;
        }
        for index in self.place..place {
            self.pending.on_change(self.record, index, &self.whole);
            let Change { disk, action } = &self.record.changes[index];
            action.replay(&mut self.whole[usize::from(*disk)]);
        }
        self.place = place;
        let first = self.pending.first().unwrap_or(place);
        for change in &self.record.changes[self.base.0..first] {
            change.action.replay(&mut self.base.1[usize::from(change.disk)]);
        }
        self.base.0 = first;
        self.axes = self.pending.axes(self.record, &self.whole);
    }

    /// The trees here without a loss, one a disk.
    #[must_use]
    pub fn whole(&self) -> &[Tree] {
        &self.whole
    }

    /// Number of steps before the cut.
    #[must_use]
    pub fn place(&self) -> usize {
        self.place
    }

    /// Bytes that are lost or kept together.
    #[must_use]
    pub fn block(&self) -> u64 {
        self.block
    }

    /// The record that is walked.
    #[must_use]
    pub fn record(&self) -> &'a Record {
        self.record
    }

    /// The degrees of freedom here.
    #[must_use]
    pub fn axes(&self) -> &[Axis] {
        &self.axes
    }

    /// Number of states here, up to `limit`; none beyond it.
    #[must_use]
    pub fn states(&self, limit: u64) -> Option<u64> {
        let count = |count: u64, axis: &Axis| count.checked_mul(u64::from(axis.most()) + 1);
        let all = self
            .axes
            .iter()
            .try_fold(1, |so_far, axis| count(so_far, axis).filter(|all| *all <= limit));
        all.filter(|all| *all <= limit)
    }

    /// The choices when nothing that is pending reached the disk.
    #[must_use]
    pub fn nothing_kept(&self) -> Vec<u32> {
        self.axes.iter().map(Axis::nothing_kept).collect()
    }

    /// The trees of a state, one a disk. `choices` has a number for each axis, at most its `most`.
    #[must_use]
    pub fn trees(&self, choices: &[u32]) -> Vec<Tree> {
        let losses = Losses::new(&self.axes, choices);
        let mut lengths = Lengths { model: self.pending.model(), ..Lengths::default() };
        let mut ends = Ends::default();
        let mut trees = self.base.1.clone();
        for index in self.base.0..self.place {
            let Change { disk, action } = &self.record.changes[index];
            let tree = &mut trees[usize::from(*disk)];
            match action {
                Action::Make { node, parent, new, .. } if losses.steps.contains(&index) => {
                    tree.replay_make(*node, *parent, None, new);
                }
                Action::Rename { node, new_parent, new_name, .. }
                    if losses.old_names.contains(&index) =>
                {
                    tree.replay_name(*node, *new_parent, new_name);
                }
                _ if losses.steps.contains(&index) && !self.is_logged(&losses, index, tree) => {
                    self.zero(&losses, index, tree);
                    lengths.on_lost(&losses, index, (*disk, action), tree);
                }
                Action::Write { node, offset, data, .. } => {
                    self.write(&losses, index, (*disk, *node), *offset, data, tree);
                    lengths.on_bytes(&losses, index, (*disk, *node), tree);
                    ends.show((*disk, *node), tree);
                }
                Action::Truncate { node, size } => {
                    let shrinks = tree.content(*node).is_ok_and(|content| content.size() > *size);
                    let kept = if shrinks { self.kept_behind(&losses, index) } else { Vec::new() };
                    ends.on_truncate((*disk, *node), kept, *size);
                    action.replay(tree);
                    lengths.on_truncate(&losses, index, (*disk, *node));
                }
                Action::Punch { node, offset, length } => {
                    let whole = taken(*offset, *length);
                    tree.replay_content(*node, |content| {
                        content.punch(whole.start, whole.end.saturating_sub(whole.start));
                    });
                    self.zero(&losses, index, tree);
                    ends.on_hole((*disk, *node), whole);
                    lengths.on_bytes(&losses, index, (*disk, *node), tree);
                }
                _ => action.replay(tree),
            }
        }
        trees
    }

    /// Files with stores to a mapping that came behind this place, in order of the first: disk and number.
    #[must_use]
    pub fn mapped_later(&self) -> Vec<(u8, u64)> {
        let mut files = Vec::new();
        for change in &self.record.changes[self.place..] {
            if let Action::Write { node, mapped: true, .. } = change.action
                && self.whole[usize::from(change.disk)].node(node).is_ok()
                && !files.contains(&(change.disk, node))
            {
                files.push((change.disk, node));
            }
        }
        files
    }

    /// The trees here without a loss, and with the stores to mappings of these files that came later, as if they had been synced before.
    #[must_use]
    pub fn with_mapped(&self, files: &[(u8, u64)]) -> Vec<Tree> {
        let mut trees = self.whole.clone();
        for Change { disk, action } in &self.record.changes[self.place..] {
            if matches!(action, Action::Write { node, mapped: true, .. } if files.contains(&(*disk, *node)))
            {
                action.replay(&mut trees[usize::from(*disk)]);
            }
        }
        trees
    }

    /// A number that states with other trees or promises do not have.
    #[must_use]
    pub fn hash(&self, trees: &[Tree]) -> u64 {
        let lines =
            self.record.changes[..self.place].iter().rposition(|change| change.line().is_some());
        let lines = lines.map_or(0, |last| last as u64 + 1);
        trees.iter().fold(lines, |state, tree| hash::pair(state, tree.hash()))
    }

    /// Whether a change that was lost in the sequence is in the log: the node has a name that a change which is kept gave to another one.
    fn is_logged(&self, losses: &Losses, index: usize, tree: &Tree) -> bool {
        let Change { disk, action } = &self.record.changes[index];
        let (Model::LogTree, Some((parent, name))) = (self.pending.model(), action.taken()) else {
            return false;
        };
        let given_again = |later: usize| {
            let change = &self.record.changes[later];
            change.disk == *disk
                && change.action.given() == Some((parent, name))
                && !losses.steps.contains(&later)
        };
        tree.lookup(parent, name) == Ok(action.node()) && (index + 1..self.place).any(given_again)
    }

    /// The bytes behind a truncation whose zeros are lost: where they begin, and they.
    fn kept_behind(&self, losses: &Losses, index: usize) -> Vec<Piece> {
        let Change { disk, action } = &self.record.changes[index];
        let (node, mut kept) = (action.node(), Vec::new());
        for range in zeroed(action).into_iter().flatten() {
            let mut at = range.start;
            while at < range.end {
                let block = at / self.block;
                let to = range.end.min((block + 1) * self.block);
                let lost = losses.blocks.get(&(*disk, node, block));
                if let Some(first) = lost.filter(|first| **first <= index) {
                    kept.push((at, self.had((*disk, node), at..to, *first)));
                }
                at = to;
            }
        }
        kept
    }

    /// Bytes of a file as they were in memory before a step, whatever else is lost.
    fn had(&self, (disk, node): (u8, u64), range: Range<u64>, before: usize) -> Vec<u8> {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        if let Ok(content) = self.base.1[usize::from(disk)].content(node) {
            content.read(range.start, &mut bytes);
        }
        let own = |change: &&Change| change.disk == disk && change.action.node() == node;
        for change in self.record.changes[self.base.0..before].iter().filter(own) {
            let (from, data) = match &change.action {
                Action::Write { offset, data, .. } => {
                    (*offset..*offset + data.len() as u64, Some(data))
                }
                Action::Truncate { size, .. } => (*size..u64::MAX, None),
                Action::Punch { offset, length, .. } => {
                    (*offset..offset.saturating_add(*length), None)
                }
                _ => continue,
            };
            for at in from.start.max(range.start)..from.end.min(range.end) {
                bytes[(at - range.start) as usize] =
                    data.map_or(0, |data| data[(at - from.start) as usize]);
            }
        }
        bytes
    }

    /// Writes the zeros of a truncation or at the edges of a hole, in the blocks that keep them.
    fn zero(&self, losses: &Losses, index: usize, tree: &mut Tree) {
        let Change { disk, action } = &self.record.changes[index];
        for range in zeroed(action).into_iter().flatten() {
            for block in range.start / self.block..=(range.end - 1) / self.block {
                let lost = losses.blocks.get(&(*disk, action.node(), block));
                if lost.is_none_or(|first| index < *first) {
                    let from = range.start.max(block * self.block);
                    let to = range.end.min((block + 1) * self.block);
                    tree.replay_content(action.node(), |content| content.punch(from, to - from));
                }
            }
        }
    }

    /// Writes the blocks of a write that are kept.
    fn write(
        &self,
        losses: &Losses,
        index: usize,
        (disk, node): (u8, u64),
        offset: u64,
        data: &[u8],
        tree: &mut Tree,
    ) {
        tree.replay_content(node, |content| {
            let mut done = 0;
            while done < data.len() as u64 {
                let at = offset + done;
                let part = (self.block - at % self.block).min(data.len() as u64 - done);
                let lost = losses.blocks.get(&(disk, node, at / self.block));
                if lost.is_none_or(|first| index < *first) {
                    content.write(at, &data[done as usize..(done + part) as usize]);
                }
                done += part;
            }
        });
    }
}

/// Lengths that do not follow the bytes, while a state is made.
#[derive(Default)]
struct Lengths {
    model: Model,
    /// By file: its length from now on.
    fixed: HashMap<(u8, u64), u64>,
    /// Files of which a truncation was lost.
    longer: HashSet<(u8, u64)>,
}

impl Lengths {
    /// A write, or a hole, even if that is lost.
    fn on_bytes(&mut self, losses: &Losses, index: usize, file: (u8, u64), tree: &mut Tree) {
        // A journal keeps no length behind a truncation that it lost.
        let in_order = self.model != Model::Journal || !self.longer.contains(&file);
        if in_order {
            self.choose(losses, index, file);
        }
        self.set(file, tree);
    }

    fn on_truncate(&mut self, losses: &Losses, index: usize, file: (u8, u64)) {
        self.fixed.remove(&file);
        self.choose(losses, index, file);
    }

    fn on_lost(
        &mut self,
        losses: &Losses,
        index: usize,
        (disk, action): (u8, &Action),
        tree: &mut Tree,
    ) {
        let file = (disk, action.node());
        if matches!(action, Action::Truncate { .. }) {
            self.longer.insert(file);
            self.choose(losses, index, file);
            // What makes the file longer behind it stands behind it in the journal: the length stays, whatever bytes are kept.
            if self.model == Model::Journal
                && let Ok(content) = tree.content(file.1)
            {
                self.fixed.entry(file).or_insert(content.size());
            }
        }
        if matches!(action, Action::Punch { .. }) {
            return self.on_bytes(losses, index, file, tree);
        }
        self.set(file, tree);
    }

    fn choose(&mut self, losses: &Losses, index: usize, file: (u8, u64)) {
        let chosen = losses.sizes.get(&file).filter(|(step, _)| *step == index);
        self.fixed.extend(chosen.map(|(_, size)| (file, *size)));
    }

    fn set(&self, file: (u8, u64), tree: &mut Tree) {
        if let Some(size) = self.fixed.get(&file) {
            tree.replay_content(file.1, |content| content.truncate(*size));
        }
    }
}

/// Bytes behind the ends that truncations gave files: the zeros there are lost, so what makes the file longer shows them.
#[derive(Default)]
struct Ends(HashMap<(u8, u64), Vec<Piece>>);

/// Where bytes of a file begin, and they.
type Piece = (u64, Vec<u8>);

impl Ends {
    fn on_truncate(&mut self, file: (u8, u64), new: Vec<Piece>, size: u64) {
        let kept = self.0.entry(file).or_default();
        kept.retain_mut(|(at, bytes)| {
            bytes.truncate(size.saturating_sub(*at) as usize);
            !bytes.is_empty()
        });
        kept.extend(new);
    }

    /// A hole took these pages. What is lost of a page is lost as a whole.
    fn on_hole(&mut self, file: (u8, u64), pages: Range<u64>) {
        let Some(kept) = self.0.get_mut(&file) else { return };
        kept.retain(|(at, _)| !pages.contains(at));
    }

    /// A write may have made the file longer. No later byte of such a block is kept, so nothing covers them.
    fn show(&self, file: (u8, u64), tree: &mut Tree) {
        for (at, bytes) in self.0.get(&file).into_iter().flatten() {
            tree.replay_content(file.1, |content| {
                let seen = content.size().saturating_sub(*at).min(bytes.len() as u64);
                content.write(*at, &bytes[..seen as usize]);
            });
        }
    }
}

/// What choices lose.
#[derive(Default)]
struct Losses {
    steps: HashSet<usize>,
    /// Renames that leave the old name.
    old_names: HashSet<usize>,
    /// By block: the first write that is lost there.
    blocks: HashMap<(u8, u64, u64), usize>,
    /// By file: the step from which it has this length.
    sizes: HashMap<(u8, u64), (usize, u64)>,
}

impl Losses {
    fn new(axes: &[Axis], choices: &[u32]) -> Self {
        assert_eq!(axes.len(), choices.len(), "a choice for each axis");
        let mut losses = Self::default();
        for (axis, choice) in axes.iter().zip(choices).filter(|(_, choice)| **choice > 0) {
            assert!(*choice <= axis.most(), "a choice that the axis has");
            match axis {
                Axis::Sequence(steps) => {
                    losses.steps.extend(&steps[steps.len() - *choice as usize..]);
                }
                Axis::Single(step) => drop(losses.steps.insert(*step)),
                Axis::OldName(step) => drop(losses.old_names.insert(*step)),
                Axis::Block { disk, node, block, writes } => {
                    let first = writes[writes.len() - *choice as usize];
                    losses.blocks.insert((*disk, *node, *block), first);
                }
                Axis::Size { disk, node, sizes } => {
                    losses.sizes.insert((*disk, *node), sizes[sizes.len() - *choice as usize]);
                }
            }
        }
        losses
    }
}
