//! The models against their table, one rule a test; all states of random programs against an independent enumeration.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use headworks_core::prng::Prng;
use headworks_fuse::{AttributeChange, Time};

use crate::cause::Explainer;
use crate::explore::next_choices;
use crate::model::{Axis, Model};
use crate::record::{Action, Record};
use crate::state::{State, Walk};
use crate::testing::{carry_out, new_node, record, recording};
use crate::tree::{Kind, ROOT, Tree};

/// Files of a tree in short: `a=xxx d/`.
fn listing(tree: &Tree) -> String {
    let mut all = Vec::new();
    tree.walk(&mut |node, path| {
        let path = String::from_utf8_lossy(path.strip_prefix(b"/").unwrap_or(path)).into_owned();
        match &tree.node(node).unwrap().kind {
            _ if path.is_empty() => {}
            Kind::File(content) => {
                let mut bytes = vec![0; content.size() as usize];
                content.read(0, &mut bytes);
                let runs = bytes.chunk_by(|one, other| one == other);
                let runs = runs.map(|run| match (run[0], run.len()) {
                    (0, length) => format!("0*{length}"),
                    (byte, 1) => char::from(byte).to_string(),
                    (byte, length) => format!("{}*{length}", char::from(byte)),
                });
                all.push(format!("{path}={}", runs.collect::<String>()));
            }
            _ => all.push(format!("{path}/")),
        }
    });
    all.join(" ")
}

/// All states at the end of a record.
fn listings(record: &Record, model: Model) -> BTreeSet<String> {
    let mut walk = Walk::new(record, model, 4096);
    walk.go(usize::MAX);
    let mut choices = vec![0; walk.axes().len()];
    let mut all = BTreeSet::new();
    loop {
        all.insert(listing(&walk.trees(&choices)[0]));
        if !next_choices(walk.axes(), &mut choices) {
            return all;
        }
    }
}

fn states(program: &str, model: Model) -> Vec<String> {
    listings(&record(program), model).into_iter().collect()
}

#[test]
fn names_of_a_journal_are_kept_in_order() {
    let program = "create a; create b; rename a c";
    assert_eq!(states(program, Model::Journal), ["", "a=", "a= b=", "b= c="]);
    assert_eq!(states(program, Model::LogTree), ["", "a=", "a= b=", "b= c="]);
    assert_eq!(states(program, Model::Any), ["", "a=", "a= b=", "b=", "b= c=", "c="]);
}

#[test]
fn early_write_of_a_block_is_not_lost_alone() {
    let program = "create a; syncdir /; write a 0 1 x; write a 1 1 y";
    let expected = ["a=", "a=0*1", "a=0*2", "a=x", "a=x0*1", "a=xy"];
    assert_eq!(states(program, Model::Journal), expected);
    assert_eq!(states(program, Model::Any), expected);
}

#[test]
fn blocks_are_independent_and_the_length_may_be_whole() {
    let program = "create a; syncdir /; write a 4095 2 x";
    // 4096 bytes without any: the block had a place before the write, which ext4 then counts block by block.
    let expected =
        ["a=", "a=0*4095x", "a=0*4095x*2", "a=0*4095x0*1", "a=0*4096", "a=0*4096x", "a=0*4097"];
    assert_eq!(states(program, Model::Journal), expected);
}

#[test]
fn length_may_be_any_that_the_file_had() {
    // Seen on ext4: a block was written back with 2 bytes, appended to, and the journal was committed.
    let program = "create a; syncdir /; write a 0 2 x; write a 2 1 y; write a 3 1 z";
    let expected = [
        "a=",
        "a=0*2",
        "a=0*3",
        "a=0*4",
        "a=x*2",
        "a=x*20*1",
        "a=x*20*2",
        "a=x*2y",
        "a=x*2y0*1",
        "a=x*2yz",
    ];
    assert_eq!(states(program, Model::Journal), expected);
    // A truncation that is kept takes the length that was before it; one that is lost does not.
    let shorter = states(&format!("{program}; truncate a 3"), Model::Journal);
    assert!(shorter.contains(&"a=0*4".to_owned()) && shorter.contains(&"a=0*3".to_owned()));
    let synced = states(&format!("{program}; truncate a 3; syncdir /; sync a"), Model::Journal);
    assert_eq!(synced, ["a=x*2y"]);
}

#[test]
fn old_name_may_stay_when_the_new_directory_alone_was_synced() {
    // Seen on btrfs.
    let program = "mkdir d; create d/a; checkpoint; rename d/a b; syncdir /";
    assert_eq!(states(program, Model::LogTree), ["b= d/", "b= d/ d/a="]);
    assert_eq!(states(program, Model::Journal), ["b= d/"]);
    for sync in ["syncdir d", "sync b", "syncfs"] {
        assert_eq!(states(&format!("{program}; {sync}"), Model::LogTree), ["b= d/"], "{sync}");
    }
    let inside = "create a; checkpoint; rename a b; syncdir /";
    assert_eq!(states(inside, Model::LogTree), ["b="]);
}

#[test]
fn zeros_of_a_truncation_may_be_there_before_it() {
    // Seen on ext4: the page that is cut is written back before the journal is committed.
    let program = "create a; write a 0 5000 s; sync a; truncate a 4000";
    let expected = ["a=s*4000", "a=s*40000*96s*904", "a=s*5000"];
    assert_eq!(states(program, Model::Journal), expected);
    assert_eq!(states(program, Model::Any), ["", "a=s*4000", "a=s*40000*96s*904", "a=s*5000"]);
    let hole = "create a; write a 0 5000 s; sync a; punch a 10 20";
    assert_eq!(states(hole, Model::Journal), ["a=s*100*20s*4970", "a=s*5000"]);
}

#[test]
fn length_may_be_the_old_one_though_bytes_behind_it_are_written() {
    // Seen on XFS: the page in which the file ended was written, and the transaction of the new length was not.
    let program = "create a; write a 0 5000 s; checkpoint; write a 4000 6000 B";
    let journal = states(program, Model::Journal);
    assert!(journal.contains(&"a=s*4000B*1000".to_owned()), "{journal:?}");
    assert!(!journal.contains(&"a=s*4000B*1001".to_owned()), "{journal:?}");
    let record = record(program);
    let mut walk = Walk::new(&record, Model::Journal, 4096);
    walk.go(usize::MAX);
    let size = walk.axes().iter().position(|axis| matches!(axis, Axis::Size { .. })).unwrap();
    let said = |choice: u32| {
        let mut choices = vec![0; walk.axes().len()];
        choices[size] = choice;
        Explainer::new(&record).effects(walk.axes(), &choices, walk.place()).remove(0).said
    };
    assert_eq!(said(3), "the length of /a stayed 5000 bytes when bytes were durable");
    assert_eq!(said(2), "the length of /a, 8192 bytes, was durable before its bytes");
    // A file that ended with a block has no bytes there.
    let whole = "create a; write a 0 4096 s; checkpoint; write a 4096 10 B";
    let expected = ["a=s*4096", "a=s*40960*10", "a=s*4096B*10"];
    assert_eq!(states(whole, Model::Journal), expected);
}

#[test]
fn old_bytes_may_have_a_length_from_behind_a_truncation_in_a_log() {
    // Seen on btrfs: the fsync of the directory logged the file with its length, and nothing of its bytes.
    let program = "create a; write a 0 9000 s; checkpoint; truncate a 0; write a 0 6000 B; rename a b; syncdir /";
    let old = "b=s*6000".to_owned();
    assert!(states(program, Model::LogTree).contains(&old));
    assert!(states(program, Model::Any).contains(&old));
    assert!(!states(program, Model::Journal).contains(&old));
    let synced = states(&format!("{program}; sync b"), Model::LogTree);
    assert_eq!(synced, ["b=B*6000"]);
}

#[test]
fn hole_may_be_there_without_the_zeros_at_its_edges() {
    // Seen on btrfs after a commit that the program did not ask for.
    let program = "create a; write a 0 9000 s; checkpoint; punch a 4000 6000";
    for model in [Model::Journal, Model::LogTree] {
        let expected = [
            "a=s*40000*4192s*808",
            "a=s*40000*5000",
            "a=s*40000*96s*40960*808",
            "a=s*40000*96s*4904",
            "a=s*40960*4096s*808",
            "a=s*40960*4904",
            "a=s*81920*808",
            "a=s*9000",
        ];
        assert_eq!(states(program, model), expected, "{model}");
        assert_eq!(states(&format!("{program}; sync a"), model), ["a=s*40000*5000"]);
    }
}

#[test]
fn fsync_of_a_file_with_a_pending_name_commits_the_sequence() {
    let program = "create a; create b; sync a; create c";
    assert_eq!(states(program, Model::Journal), ["a=", "a= b=", "a= b= c="]);
    let program = "create b; create a; sync a; create c";
    assert_eq!(states(program, Model::Journal), ["a= b=", "a= b= c="]);
    assert_eq!(states(program, Model::LogTree), ["a=", "a= b=", "a= b= c="]);
    assert_eq!(states("create a; write a 0 1 x; sync a", Model::Any), ["", "a=x"]);
}

#[test]
fn fsync_of_a_file_that_grew_commits_the_sequence() {
    let before = "create a; syncdir /; create b; ";
    let grown = format!("{before}write a 0 1 x; sync a");
    assert_eq!(states(&grown, Model::Journal), ["a=x b="]);
    assert_eq!(states(&grown, Model::LogTree), ["a=x", "a=x b="]);
    let same = "create a; write a 0 1 x; sync a; create b; write a 0 1 y; sync a";
    assert_eq!(states(same, Model::Journal), ["a=y", "a=y b="]);
}

#[test]
fn fsync_of_a_directory_commits_up_to_its_last_change() {
    let program = "mkdir d; create a; create d/b; syncdir /; create d/c";
    assert_eq!(states(program, Model::Journal), ["a= d/", "a= d/ d/b=", "a= d/ d/b= d/c="]);
    let inner = "mkdir d; create a; create d/b; syncdir d";
    assert_eq!(states(inner, Model::Journal), ["a= d/ d/b="]);
    assert_eq!(states(inner, Model::LogTree), ["a= d/ d/b=", "d/ d/b="]);
    assert_eq!(states(inner, Model::Any), ["", "a=", "a= d/ d/b=", "d/ d/b="]);
    let bytes = "create a; write a 0 1 x; syncdir /";
    assert_eq!(states(bytes, Model::Journal), ["a=", "a=0*1", "a=x"]);
}

#[test]
fn log_of_a_file_has_the_directories_above() {
    let program = "create z; mkdir d; mkdir d/e; create d/e/a; sync d/e/a";
    assert_eq!(states(program, Model::LogTree), ["d/ d/e/ d/e/a=", "d/ d/e/ d/e/a= z="]);
}

#[test]
fn log_of_a_file_has_those_whose_names_it_took() {
    // Seen on btrfs: the new file d/c was synced; the one that had the name before is in the log with its new name, the directory e is not.
    let program = "mkdir d; create a; create d/c; write d/c 0 9 s; checkpoint
                   unlink a; mkdir e; rename d/c a; create d/c; sync d/c";
    let left = ["a=s*9 d/ d/c=", "a=s*9 d/ d/c= e/"];
    assert_eq!(states(program, Model::LogTree), left);
    assert_eq!(states(program, Model::Journal), [left[1]]);
    // Seen on btrfs: a name that was never on the disk is no conflict, and its file is not in the log. It is nowhere, or has its new name.
    let new = "mkdir d; create d/c; write d/c 0 9 s; checkpoint; create b; rename b d/c; create b; sync b";
    assert_eq!(states(new, Model::LogTree), ["b= d/ d/c=", "b= d/ d/c=s*9"]);
}

#[test]
fn truncations_of_a_journal_are_in_its_sequence() {
    let program = "create a; write a 0 5000 x; sync a; create b; truncate a 4096";
    let expected = ["a=x*4096 b=", "a=x*5000", "a=x*5000 b="];
    assert_eq!(states(program, Model::Journal), expected);
    let any = ["", "a=x*4096", "a=x*4096 b=", "a=x*5000", "a=x*5000 b=", "b="];
    assert_eq!(states(program, Model::Any), any);
}

#[test]
fn syncfs_and_checkpoint_make_all_durable() {
    let program = "create a; write a 0 1 x; create b; ";
    for end in ["syncfs", "checkpoint"] {
        for model in Model::ALL {
            assert_eq!(states(&format!("{program}{end}"), model), ["a=x b="]);
        }
    }
}

#[test]
fn bytes_that_no_state_can_reach_have_no_axes() {
    let record = record("create t; syncdir /; write t 0 9000 x; unlink t; syncdir /");
    let mut walk = Walk::new(&record, Model::Journal, 4096);
    walk.go(3);
    assert_eq!(walk.axes().len(), 4);
    walk.go(usize::MAX);
    assert_eq!(walk.axes(), []);
    // An unlink that may be lost brings the bytes back, or not.
    walk = Walk::new(&record, Model::Journal, 4096);
    walk.go(4);
    assert_eq!(walk.axes().len(), 5);
}

#[test]
fn smaller_blocks_tear_a_page() {
    let record = record("create a; syncdir /; write a 0 1024 x");
    let mut walk = Walk::new(&record, Model::Journal, 512);
    walk.go(usize::MAX);
    assert_eq!(walk.axes().len(), 3);
    assert_eq!(listing(&walk.trees(&[1, 0, 0])[0]), "a=0*512x*512");
}

#[test]
fn disks_lose_apart_and_some_lose_nothing() {
    let disks = ["dir", "dir2", "state"];
    let disk = |name: &str| crate::record::Disk { name: name.into(), keeps_all: name == "state" };
    let trees = vec![Tree::new(0, 0); 3];
    let record = Record::new(disks.into_iter().map(disk).collect(), trees);
    let mut recording = crate::recording::Recording::new(record, Default::default());
    let now = Time::default();
    for index in [0, 1, 2] {
        recording.make(index, ROOT, b"a", new_node(0o100644), now).unwrap();
    }
    recording.sync_directory(0, ROOT).unwrap();
    let record = recording.close().unwrap();
    let mut walk = Walk::new(&record, Model::Journal, 4096);
    walk.go(usize::MAX);
    let lost: Vec<_> = walk.trees(&walk.nothing_kept()).iter().map(listing).collect();
    assert_eq!(lost, ["a=", "", "a="]);
    let effects = Explainer::new(&record).effects(walk.axes(), &[1], walk.place());
    assert_eq!(effects[0].said, "create of $dir2/a was not durable: no fsync of $dir2/ follows");
}

/// The pattern that replaces a file, with the syncs that are named, and what the check of its user finds wrong.
fn rename_pattern(file: bool, directory: bool) -> Vec<String> {
    let mut program =
        String::from("create config; write config 0 3 o; sync config; syncdir /; checkpoint; ");
    for (sync, text) in [
        (true, "create config.tmp; write config.tmp 0 3 n; "),
        (file, "sync config.tmp; "),
        (true, "rename config.tmp config; "),
        (directory, "syncdir /; "),
        (true, "say done"),
    ] {
        program += if sync { text } else { "" };
    }
    let record = record(&program);
    let mut wrong = HashSet::new();
    for place in 0..=record.changes.len() {
        let mut walk = Walk::new(&record, Model::Journal, 4096);
        walk.go(place);
        let promised = !record.promises(place).is_empty();
        let mut choices = vec![0; walk.axes().len()];
        loop {
            let left = listing(&walk.trees(&choices)[0]);
            let config = left.split(' ').find_map(|one| one.strip_prefix("config="));
            match config {
                Some("n*3") => {}
                Some("o*3") if !promised => {}
                Some("o*3") => {
                    wrong.insert("lost".to_owned());
                }
                _ => {
                    wrong.insert(format!("torn: {}", config.unwrap_or("gone")));
                }
            }
            if !next_choices(walk.axes(), &mut choices) {
                break;
            }
        }
    }
    let mut wrong: Vec<_> = wrong.into_iter().collect();
    wrong.sort();
    wrong
}

#[test]
fn rename_pattern_needs_both_syncs() {
    assert_eq!(rename_pattern(true, true), Vec::<String>::new());
    assert_eq!(rename_pattern(true, false), ["lost"]);
    assert_eq!(rename_pattern(false, true), ["torn: ", "torn: 0*3"]);
    assert_eq!(rename_pattern(false, false), ["lost", "torn: ", "torn: 0*3"]);
}

#[test]
fn causes_name_the_missing_sync() {
    let record = record(
        "create db; write db 0 8192 x; sync db; create db-journal; sync db-journal; say ok 11; write db 4096 4096 y; unlink db-journal; say ok 12; \
         create t; rename t u; mkdir d",
    );
    let explainer = Explainer::new(&record);
    let mut walk = Walk::new(&record, Model::Any, 4096);
    walk.go(usize::MAX);
    let said: Vec<String> = explainer
        .effects(walk.axes(), &walk.nothing_kept(), walk.place())
        .into_iter()
        .map(|one| one.said)
        .collect();
    assert_eq!(
        said,
        [
            "create of /db was not durable: no fsync of / before the promise \"ok 11\"",
            "create of /db-journal was not durable: no fsync of / before the promise \"ok 11\"",
            "write of /db bytes 4096+4096 was not durable: no fsync of /db before the promise \"ok 12\"",
            "unlink of /db-journal was not durable: no fsync of / before the promise \"ok 12\"",
            "create of /t was not durable: no fsync of / follows",
            "rename of /t to /u was not durable: no fsync of / follows",
            "mkdir of /d was not durable: no fsync of / follows",
        ]
    );
}

#[test]
fn stores_to_a_mapping_that_came_later_are_a_cause_only_if_they_are_missing() {
    let mut recording = recording();
    carry_out(&mut recording, "create a; create b; checkpoint; say ok 1");
    let (now, tree) = (Time::default(), recording.tree(0).clone());
    let [a, b] = [&b"a"[..], b"b"].map(|name| tree.lookup(ROOT, name).unwrap());
    for (file, mapped) in [(b, true), (a, false), (a, true), (b, true)] {
        recording.write(0, file, 0, b"x", (mapped, false), now).unwrap();
    }
    let record = recording.close().unwrap();
    let mut walk = Walk::new(&record, Model::Journal, 4096);
    walk.go(1);
    assert_eq!(walk.mapped_later(), [(0, b), (0, a)]);
    assert_eq!(listing(&walk.with_mapped(&[(0, a)])[0]), "a=x b=");
    assert_eq!(listing(&walk.with_mapped(&walk.mapped_later())[0]), "a=x b=x");
    assert_eq!(listing(&walk.whole()[0]), "a= b=");
    let explainer = Explainer::new(&record);
    let said = explainer.without_loss(1, Some((0, a)));
    assert_eq!(
        said,
        "bytes of /a were only in memory, in a mapping, at the promise \"ok 1\": no msync of it before"
    );
    assert_eq!(
        explainer.without_loss(1, None),
        "nothing was lost: the order of the program itself"
    );
    walk.go(usize::MAX);
    assert_eq!(walk.mapped_later(), []);
}

#[test]
fn text_of_a_state_repeats_it() {
    let record = record("create a; write a 0 9000 x; write a 0 10 y; rename a b; create c");
    let mut walk = Walk::new(&record, Model::Journal, 4096);
    walk.go(usize::MAX);
    let mut choices = vec![0; walk.axes().len()];
    loop {
        let state = State::new(walk.place(), &choices);
        let again: State = state.to_string().parse().unwrap();
        assert_eq!(again.choices(walk.axes()), Some(choices.clone()));
        if !next_choices(walk.axes(), &mut choices) {
            break;
        }
    }
    for wrong in ["5", "5:", "x:1", "5:1+1", "5:2+1", "5:1.x"] {
        assert!(wrong.parse::<State>().is_err(), "{wrong}");
    }
    for beyond in ["5:0", "5:99", "5:1.99"] {
        assert_eq!(beyond.parse::<State>().unwrap().choices(walk.axes()), None, "{beyond}");
    }
}

#[test]
fn same_state_has_the_same_number_on_every_machine() {
    let record = crate::testing::sample();
    let mut walk = Walk::new(&record, Model::Journal, 4096);
    walk.go(usize::MAX);
    let trees = walk.trees(&walk.nothing_kept());
    assert_eq!((walk.hash(&trees), walk.hash(&walk.trees(&vec![0; walk.axes().len()]))), GOLDEN);
}

const GOLDEN: (u64, u64) = (9_480_421_533_602_770_593, 4_530_966_553_484_397_713);

/// A random program of at most so many changes.
fn random_record(prng: &mut Prng, changes: u64) -> Record {
    let mut recording = recording();
    carry_out(&mut recording, "mkdir d; create a; write a 0 5000 o; create d/b; checkpoint");
    let now = Time::default();
    let mut left = changes;
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
                let size = prng.below(9000);
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
            (6, Ok(file)) => recording.sync(0, file, false).map(|()| false),
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
        let length = matches!(action, Action::Truncate { .. } | Action::Punch { .. });
        action.is_name() || length
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
            (Action::SyncDirectory { node }, Model::Any) => name && self.action(index).is_name_in(*node),
            (Action::Sync { node, .. }, Model::Journal) => (index..sync).any(|own| {
                let grew = matches!(self.action(own), Action::Write { node: of, grown: true, .. } if of == node);
                grew || self.owns(own, *node)
            }),
            (Action::SyncDirectory { node }, Model::Journal) => (index..sync).any(|own| {
                self.action(own).is_name_in(*node) || self.is_sequence(own) && self.action(own).node() == *node
            }),
            (Action::Sync { node, .. }, Model::LogTree) => self.logged(*node, sync).contains(&self.action(index).node()),
            (Action::SyncDirectory { node }, Model::LogTree) => {
                self.action(index).is_name_in(*node) || self.logged(*node, sync).contains(&self.action(index).node())
            }
            _ => false,
        })
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
                        let lengths = ends.chain((!before.is_multiple_of(4096)).then_some(before));
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
                Action::Punch { .. } => {
                    let edges = self.hole(index).into_iter().filter(|(from, to)| to - from < 4096);
                    atoms.extend(edges.map(|(from, _)| (index, from / 4096)));
                }
                _ => {}
            }
        }
        let olds: Vec<usize> =
            (0..place).filter(|one| self.old_name_may_stay(*one, place)).collect();
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
            let ordered =
                self.model == Model::Any || !(1..names.len()).any(|at| lost(at - 1) && !lost(at));
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
                        tree.replay_content(*node, |content| content.truncate(*size));
                        lengths.remove(node);
                    } else {
                        longer.insert(*node);
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
        }
        tree
    }
}

#[test]
fn all_states_equal_those_of_an_independent_enumeration() {
    let mut prng = Prng::new(17);
    for round in 0..50 {
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
