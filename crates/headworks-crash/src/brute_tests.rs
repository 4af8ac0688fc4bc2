//! All states of random programs against an enumeration that knows nothing of [`Pending`](crate::model::Pending): what is lost is any set, unless a rule
//! of the table refuses it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use headworks_core::prng::Prng;
use headworks_fuse::{AttributeChange, Time};

use crate::explore::next_choices;
use crate::model::{Axis, Model};
use crate::record::{Action, Record};
use crate::state::Walk;
use crate::testing::{carry_out, new_node, recording};
use crate::tree::{ROOT, Tree};

/// A random program of at most so many changes.
fn random_record(prng: &mut Prng, changes: u64) -> Record {
    let mut recording = recording();
    carry_out(&mut recording, "mkdir d; create a; write a 0 5000 o; create d/b; checkpoint");
    let now = Time::default();
    let mut left = changes;
    // Often a file that is shorter on the disk, which a hole may tell.
    if prng.below(3) == 0 {
        carry_out(&mut recording, "write a 8000 100 g");
        left -= 1;
    }
    // Or one that was cut before it got its name.
    if left == changes && prng.below(4) == 0 {
        let cut = ["truncate a 4200", "truncate a 0", "punch a 0 4500"][prng.below(3) as usize];
        carry_out(&mut recording, &format!("{cut}; rename a c"));
        left -= 2;
    }
    while left > 0 {
        let tree = recording.tree(0).clone();
        let d = tree.lookup(ROOT, b"d").unwrap();
        let names: [(u64, &[u8]); 5] =
            [(ROOT, b"a"), (d, b"b"), (ROOT, b"c"), (d, b"e"), (ROOT, b"f")];
        let pick = |prng: &mut Prng| names[prng.below(5) as usize];
        let (directory, name) = pick(prng);
        let found = tree.lookup(directory, name);
        let change = match (prng.below(10), found) {
            (0, _) => recording.make(0, directory, name, new_node(0o100644), now).map(|_| true),
            (1, _) => recording.remove(0, directory, name, false, now).map(|()| true),
            (2, _) => recording.rename(0, (directory, name), pick(prng), false, now).map(|()| true),
            (3, Ok(file)) => {
                // Often a length that the file had before a write made it longer.
                let size = [prng.below(9000), 5000, 4200][prng.below(3) as usize];
                let change = AttributeChange { size: Some(size), ..AttributeChange::default() };
                recording.set_attributes(0, file, &change, now).map(|()| true)
            }
            (4 | 5, Ok(file)) => {
                let bytes = vec![b'a' + left as u8; 1 + prng.below(200) as usize];
                recording
                    .write(0, file, prng.below(3) * 4000, &bytes, (false, false), now)
                    .map(|()| true)
            }
            (9, Ok(file)) => {
                let range = (prng.below(3) * 2500, 1 + prng.below(6000));
                recording.allocate(0, file, range, 3, now).map(|()| true)
            }
            (6, Ok(file)) => recording.sync(0, file, prng.below(2) == 0).map(|()| false),
            (7, _) => recording.sync_directory(0, directory).map(|()| false),
            (8, _) if prng.below(8) == 0 => recording.sync_all(0).map(|()| false),
            _ => continue,
        };
        left -= u64::from(change == Ok(true));
    }
    recording.close().unwrap()
}

/// A node, and a directory with a name in it.
type Named<'a> = (u64, (u64, &'a [u8]));

/// The node to which a change gives a name.
fn gave(action: &Action) -> Option<Named<'_>> {
    match action {
        Action::Make { node, parent, name, .. } | Action::Link { node, parent, name } => {
            Some((*node, (*parent, name)))
        }
        Action::Rename { node, new_parent, new_name, .. } => Some((*node, (*new_parent, new_name))),
        _ => None,
    }
}

/// The node from which a change takes a name.
fn taken(action: &Action) -> Option<Named<'_>> {
    match action {
        Action::Remove { node, parent, name, .. } | Action::Rename { node, parent, name, .. } => {
            Some((*node, (*parent, name)))
        }
        _ => None,
    }
}

/// Independent of `Pending`: what is lost is any set of atoms, and a rule of the table refuses it.
struct Brute<'a> {
    record: &'a Record,
    model: Model,
}

impl Brute<'_> {
    fn action(&self, index: usize) -> &Action {
        &self.record.changes[index].action
    }

    fn is_sequence(&self, index: usize) -> bool {
        let action = self.action(index);
        action.is_name() || matches!(action, Action::Truncate { .. }) || self.pages(index) > 0
    }

    /// Number of whole pages that a hole takes.
    fn pages(&self, index: usize) -> usize {
        self.hole(index).iter().filter(|(from, to)| to - from == 4096).count()
    }

    /// The length of a file before a step.
    fn length(&self, index: usize, node: u64) -> u64 {
        self.record.trees(index)[0].content(node).unwrap().size()
    }

    /// Whether a step takes bytes of whole pages.
    fn takes(&self, index: usize) -> bool {
        let trees = self.record.trees(index);
        self.hole(index).into_iter().filter(|(from, to)| to - from == 4096).any(|(from, _)| {
            let mut page = [0; 4096];
            trees[0].content(self.action(index).node()).unwrap().read(from, &mut page);
            page.iter().any(|byte| *byte != 0)
        })
    }

    /// Whether the sync of a file makes the sequence durable up to a step because of it.
    fn commits(&self, index: usize, sync: usize) -> bool {
        let &Action::Sync { node, data_only } = self.action(sync) else { return false };
        match self.action(index) {
            Action::Write { node: of, grown, .. } => {
                *of == node && *grown && (!data_only || !self.is_taken_back(index, sync))
            }
            Action::Make { node: of, .. } => *of == node,
            Action::Punch { node: of, .. } => *of == node && self.takes(index),
            Action::Truncate { node: of, .. } => {
                *of == node && (!data_only || self.growth_left(index).is_none())
            }
            _ => !data_only && self.owns(index, node),
        }
    }

    /// Whether a growth may never have been on the disk: the next truncation gave a length that the file had before it.
    fn is_taken_back(&self, index: usize, sync: usize) -> bool {
        let node = self.action(index).node();
        let cut = (index..sync).find(
            |at| matches!(self.action(*at), Action::Truncate { node: of, .. } if *of == node),
        );
        cut.and_then(|cut| self.growth_left(cut))
            .is_some_and(|left| left.is_none_or(|left| index > left))
    }

    /// Of a truncation to a length which the file may have on the disk: the growth that gave it, none if it had it before it grew.
    fn growth_left(&self, cut: usize) -> Option<Option<usize>> {
        let &Action::Truncate { node, size } = self.action(cut) else { return None };
        let first = self.first_growth(cut, node)?;
        if self.length(first, node) == size {
            return Some(None);
        }
        let gave = |index: &usize| match self.action(*index) {
            Action::Write { node: of, grown: true, offset, data, .. } if *of == node => {
                let end = offset + data.len() as u64;
                let filled = self.filled(*index) == Some(size);
                size == end || size % 4096 == 0 && *offset < size && size < end || filled
            }
            Action::Punch { node: of, .. } => {
                *of == node && self.length_of_hole(*index) == Some(size)
            }
            _ => false,
        };
        (first..cut).find(gave).map(Some)
    }

    /// The first write before a step that made a file longer than it is on the disk.
    fn first_growth(&self, before: usize, node: u64) -> Option<usize> {
        let settled = |index: &usize| match self.action(*index) {
            Action::SyncAll => true,
            Action::Sync { node: of, .. } | Action::Truncate { node: of, .. } => *of == node,
            _ => false,
        };
        let from = (0..before).rfind(settled).map_or(0, |at| at + 1);
        let grew = |index: &usize| matches!(self.action(*index), Action::Write { node: of, grown: true, .. } if *of == node);
        (from..before).find(grew)
    }

    /// The end of the block in which a file ended before a write behind that block.
    fn filled(&self, index: usize) -> Option<u64> {
        let &Action::Write { node, offset, .. } = self.action(index) else { return None };
        let before = self.length(index, node);
        let end = before.next_multiple_of(4096);
        (end > before && end <= offset).then_some(end)
    }

    /// The length that a hole gives a file which is shorter on the disk.
    fn length_of_hole(&self, index: usize) -> Option<u64> {
        let &Action::Punch { node, offset, length } = self.action(index) else { return None };
        let (first, size) = (self.first_growth(index, node)?, self.length(index, node));
        let end = size.min(offset + length);
        (offset <= size && end > self.length(first, node)).then_some(end)
    }

    fn owns(&self, index: usize, node: u64) -> bool {
        let replaced =
            matches!(self.action(index), Action::Rename { replaced, .. } if *replaced == node);
        self.is_sequence(index) && (self.action(index).node() == node || replaced)
    }

    /// Whether a sync before `end` made a change of names or lengths durable.
    fn name_durable(&self, index: usize, end: usize) -> bool {
        let name = self.action(index).is_name();
        (index + 1..end).any(|sync| match (self.action(sync), self.model) {
            (Action::SyncAll, _) => true,
            (Action::Sync { node, .. }, Model::Any) => !name && self.action(index).node() == *node,
            (Action::SyncDirectory { node }, Model::Any) => {
                name && self.action(index).is_name_in(*node)
            }
            (Action::Sync { node, .. }, Model::Journal) => {
                let own = !name && self.action(index).node() == *node;
                own || (index..sync).any(|own| self.commits(own, sync))
            }
            (Action::SyncDirectory { node }, Model::Journal) => (index..sync).any(|own| {
                self.action(own).is_name_in(*node)
                    || self.is_sequence(own) && self.action(own).node() == *node
            }),
            (Action::Sync { node, .. }, Model::LogTree) => {
                self.logged(*node, sync).contains(&self.action(index).node())
            }
            (Action::SyncDirectory { node }, Model::LogTree) => {
                self.action(index).is_name_in(*node)
                    || self.logged(*node, sync).contains(&self.action(index).node())
            }
            _ => false,
        })
    }

    /// Whether a truncation or hole is lost or kept by itself: with the log, a sync may have made a later name of its file durable alone.
    fn is_apart(&self, index: usize, end: usize) -> bool {
        let is_new = |later: &usize| {
            let action = self.action(*later);
            let renamed = matches!(action, Action::Rename { .. } | Action::Link { .. });
            renamed && action.node() == self.action(index).node()
        };
        let logs = |sync: &usize| {
            matches!(self.action(*sync), Action::Sync { .. } | Action::SyncDirectory { .. })
                && (index..*sync).filter(is_new).any(|name| !self.name_durable(name, sync + 1))
        };
        let cuts = matches!(self.action(index), Action::Truncate { .. } | Action::Punch { .. });
        cuts && self.model == Model::LogTree && (index..end).any(|sync| logs(&sync))
    }

    /// Whether a rename that is durable may have left its old name.
    fn old_name_may_stay(&self, index: usize, end: usize) -> bool {
        let Action::Rename { node, parent, new_parent, .. } = self.action(index) else {
            return false;
        };
        if self.model != Model::LogTree || parent == new_parent {
            return false;
        }
        let Some(first) = (index + 1..end).find(|sync| self.name_durable(index, sync + 1)) else {
            return false;
        };
        let by_the_new =
            matches!(self.action(first), Action::SyncDirectory { node } if node == new_parent);
        by_the_new
            && !(first + 1..end).any(|sync| match self.action(sync) {
                Action::SyncAll => true,
                Action::SyncDirectory { node: of } => of == parent,
                Action::Sync { node: of, .. } => of == node,
                _ => false,
            })
    }

    /// A node, the directories in which its pending names are, and the nodes that had these names before.
    fn logged(&self, node: u64, end: usize) -> HashSet<u64> {
        let mut nodes = HashSet::from([node]);
        let pending: Vec<usize> = (0..end)
            .filter(|index| self.is_sequence(*index) && !self.name_durable(*index, end))
            .collect();
        for _ in 0..8 {
            for index in pending.iter().filter(|index| self.action(**index).is_name()) {
                let Some((given, to)) = gave(self.action(*index)) else { continue };
                if !nodes.contains(&given) {
                    continue;
                }
                nodes.insert(to.0);
                nodes.extend(pending.iter().filter(|left| *left < index).filter_map(|left| {
                    let (node, name) = taken(self.action(*left))?;
                    let is_new = pending
                        .iter()
                        .filter(|given| *given < index)
                        .any(|given| gave(self.action(*given)) == Some((node, to)));
                    (name == to && !is_new).then_some(node)
                }));
            }
        }
        nodes
    }

    fn bytes_durable(&self, index: usize, end: usize) -> bool {
        let node = self.action(index).node();
        (index + 1..end).any(|sync| match self.action(sync) {
            Action::SyncAll => true,
            Action::Sync { node: of, .. } => *of == node,
            _ => false,
        })
    }

    /// Hashes of all states of a place.
    fn states(&self, place: usize) -> HashSet<u64> {
        let names: Vec<usize> = (0..place)
            .filter(|one| self.is_sequence(*one) && !self.name_durable(*one, place))
            .collect();
        let mut atoms = Vec::new();
        let mut grown: BTreeMap<u64, BTreeSet<(usize, u64)>> = BTreeMap::new();
        for index in (0..place).filter(|index| !self.bytes_durable(*index, place)) {
            match self.action(index) {
                Action::Write { node, offset, data, grown: longer, .. } => {
                    let end = offset + data.len() as u64;
                    atoms.extend((offset / 4096..=(end - 1) / 4096).map(|block| (index, block)));
                    if *longer {
                        let before = self.record.trees(index)[0].content(*node).unwrap().size();
                        let ends = (offset + 1..=end).filter(|one| one % 4096 == 0 || *one == end);
                        let last = (!before.is_multiple_of(4096)).then_some(before);
                        let lengths = ends.chain(last).chain(self.filled(index));
                        grown.entry(*node).or_default().extend(lengths.map(|end| (index, end)));
                    }
                }
                Action::Truncate { node, size } => {
                    if size % 4096 > 0 {
                        atoms.push((index, size / 4096));
                    }
                    if self.model != Model::Journal {
                        grown.entry(*node).or_default().insert((index, *size));
                    }
                }
                Action::Punch { node, .. } => {
                    let length = self.length_of_hole(index).map(|length| (index, length));
                    length.into_iter().for_each(|one| {
                        grown.entry(*node).or_default().insert(one);
                    });
                    let edges = self.hole(index).into_iter().filter(|(from, to)| to - from < 4096);
                    atoms.extend(edges.map(|(from, _)| (index, from / 4096)));
                }
                _ => {}
            }
        }
        let olds: Vec<usize> =
            (0..place).filter(|one| self.old_name_may_stay(*one, place)).collect();
        let free: Vec<bool> = names.iter().map(|one| self.is_apart(*one, place)).collect();
        let bits = names.len() + atoms.len() + olds.len();
        assert!(bits < 22, "{bits}");
        // Each file that grew keeps one of its lengths, or none.
        let mut kept = vec![HashMap::new()];
        for sizes in grown.values() {
            let with = |one: &HashMap<usize, u64>, size: &(usize, u64)| {
                one.iter().map(|(step, size)| (*step, *size)).chain([*size]).collect()
            };
            let more: Vec<_> =
                kept.iter().flat_map(|one| sizes.iter().map(move |size| with(one, size))).collect();
            kept.extend(more);
        }
        let mut all = HashSet::new();
        for set in 0..1u32 << bits {
            let lost = |at: usize| set >> at & 1 == 1;
            let apart = |at: &usize| self.model == Model::Any || free[*at];
            let sequence = (0..names.len()).filter(|at| !apart(at)).map(lost);
            let ordered = sequence.is_sorted();
            let atom_lost = |at: usize| lost(names.len() + at);
            let versions = (0..atoms.len()).all(|one| {
                let later = (one + 1..atoms.len()).filter(|at| {
                    atoms[*at].1 == atoms[one].1
                        && self.action(atoms[*at].0).node() == self.action(atoms[one].0).node()
                });
                !atom_lost(one) || later.into_iter().all(atom_lost)
            });
            if !ordered || !versions {
                continue;
            }
            for kept in &kept {
                all.insert(self.tree(place, (&names, &atoms, &olds), kept, &lost).hash());
            }
        }
        all
    }

    /// The pages of a hole, as ranges.
    fn hole(&self, index: usize) -> Vec<(u64, u64)> {
        let Action::Punch { offset, length, .. } = self.action(index) else { return Vec::new() };
        let end = offset + length;
        let pages = offset / 4096..=(end - 1) / 4096;
        pages.map(|page| ((page * 4096).max(*offset), (page * 4096 + 4096).min(end))).collect()
    }

    /// The tree that is left without what is lost. `kept`: by step, the length that a file has from then on.
    fn tree(
        &self,
        place: usize,
        (names, atoms, olds): (&[usize], &[(usize, u64)], &[usize]),
        kept: &HashMap<usize, u64>,
        lost: &dyn Fn(usize) -> bool,
    ) -> Tree {
        let mut tree = self.record.base[0].clone();
        let (mut lengths, mut longer) = (HashMap::new(), HashSet::new());
        // Bytes that a truncation has cut and whose zeros are lost, one by one.
        let mut cut: HashMap<u64, BTreeMap<u64, u8>> = HashMap::new();
        for index in 0..place {
            let is_lost =
                |index: usize| names.iter().position(|one| *one == index).is_some_and(lost);
            // The log has what had the name of a file that is in it.
            let logged = taken(self.action(index)).is_some_and(|(node, (parent, name))| {
                let again = |later: usize| {
                    let given = gave(self.action(later)).map(|(_, name)| name);
                    given == Some((parent, name)) && !is_lost(later)
                };
                tree.lookup(parent, name) == Ok(node) && (index + 1..place).any(again)
            });
            let name_lost = is_lost(index) && !(logged && self.model == Model::LogTree);
            let atom_lost = |block: u64| {
                let atom = atoms.iter().position(|atom| *atom == (index, block));
                atom.is_some_and(|at| lost(names.len() + at))
            };
            let old_stays = olds.iter().position(|one| *one == index);
            match self.action(index) {
                Action::Make { node, parent, new, .. } if name_lost => {
                    tree.replay_make(*node, *parent, None, new);
                }
                Action::Truncate { node, size } => {
                    if !name_lost {
                        let left = cut.entry(*node).or_default();
                        left.retain(|at, _| at < size);
                        let shrinks =
                            tree.content(*node).is_ok_and(|content| content.size() > *size);
                        if size % 4096 > 0 && atom_lost(size / 4096) && shrinks {
                            // What the block has on the disk, it had in memory before the first write that is lost.
                            let first = atoms.iter().enumerate().find(|(at, (index, block))| {
                                *block == size / 4096
                                    && self.action(*index).node() == *node
                                    && lost(names.len() + at)
                            });
                            let then = &self.record.trees(first.unwrap().1.0)[0];
                            for at in *size..size.next_multiple_of(4096) {
                                let mut byte = [0];
                                then.content(*node).unwrap().read(at, &mut byte);
                                left.insert(at, byte[0]);
                            }
                        }
                        tree.replay_content(*node, |content| content.truncate(*size));
                        lengths.remove(node);
                    } else {
                        longer.insert(*node);
                        if self.model == Model::Journal {
                            let length = tree.content(*node).map(|content| content.size());
                            length.into_iter().for_each(|size| {
                                lengths.entry(*node).or_insert(size);
                            });
                        }
                        if size % 4096 > 0 && !atom_lost(size / 4096) {
                            let rest = 4096 - size % 4096;
                            tree.replay_content(*node, |content| content.punch(*size, rest));
                        }
                    }
                }
                Action::Punch { node, .. } => {
                    for (from, to) in self.hole(index) {
                        let zeroed = match to - from {
                            4096 => !name_lost,
                            _ => !atom_lost(from / 4096),
                        };
                        if zeroed {
                            if to - from == 4096 {
                                cut.entry(*node)
                                    .or_default()
                                    .retain(|at, _| *at < from || *at >= to);
                            }
                            tree.replay_content(*node, |content| content.punch(from, to - from));
                        }
                    }
                }
                _ if name_lost => {}
                Action::Rename { node, new_parent, new_name, .. }
                    if old_stays.is_some_and(|at| lost(names.len() + atoms.len() + at)) =>
                {
                    tree.replay_name(*node, *new_parent, new_name);
                }
                Action::Write { node, offset, data, .. } => {
                    for (at, byte) in (*offset..).zip(data.iter()) {
                        if !atom_lost(at / 4096) {
                            tree.replay_content(*node, |content| content.write(at, &[*byte]));
                        }
                    }
                }
                action => action.replay(&mut tree),
            }
            let node = self.action(index).node();
            let moot = self.model == Model::Journal && longer.contains(&node);
            lengths.extend(kept.get(&index).filter(|_| !moot).map(|size| (node, *size)));
            if let Some(length) = lengths.get(&node) {
                tree.replay_content(node, |content| content.truncate(*length));
            }
            if matches!(self.action(index), Action::Write { .. }) {
                for (at, byte) in cut.get(&node).into_iter().flatten() {
                    tree.replay_content(node, |content| {
                        if *at < content.size() {
                            content.write(*at, &[*byte]);
                        }
                    });
                }
            }
        }
        tree
    }
}

#[test]
fn all_states_equal_those_of_an_independent_enumeration() {
    let mut prng = Prng::new(17);
    for round in 0..100 {
        let record = random_record(&mut prng, 7);
        let place = record.changes.len();
        for model in Model::ALL {
            let mut walk = Walk::new(&record, model, 4096);
            walk.go(place);
            let mut choices = vec![0; walk.axes().len()];
            let mut all = HashSet::from([walk.trees(&choices)[0].hash()]);
            while next_choices(walk.axes(), &mut choices) {
                all.insert(walk.trees(&choices)[0].hash());
            }
            let brute = Brute { record: &record, model }.states(place);
            assert_eq!(all, brute, "round {round}, {model}: {:?}", record.changes);
        }
    }
}

#[test]
fn walk_in_steps_equals_a_walk_at_once() {
    let mut prng = Prng::new(5);
    for _ in 0..50 {
        let record = random_record(&mut prng, 30);
        for model in Model::ALL {
            let mut steps = Walk::new(&record, model, 4096);
            for place in 0..=record.changes.len() {
                steps.go(place);
                let mut once = Walk::new(&record, model, 4096);
                once.go(place);
                assert_eq!(steps.axes(), once.axes());
                let choices: Vec<u32> = steps
                    .axes()
                    .iter()
                    .map(|axis: &Axis| prng.below(u64::from(axis.most()) + 1) as u32)
                    .collect();
                assert_eq!(steps.hash(&steps.trees(&choices)), once.hash(&once.trees(&choices)));
                let whole = vec![0; steps.axes().len()];
                assert_eq!(steps.trees(&whole)[0].hash(), record.trees(place)[0].hash());
            }
        }
    }
}
