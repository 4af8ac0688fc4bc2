//! The models against their table, one rule a test.

use std::collections::{BTreeSet, HashSet};

use headworks_fuse::Time;

use crate::cause::Explainer;
use crate::explore::next_choices;
use crate::model::{Axis, Model};
use crate::record::Record;
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
    // Its bytes may be lost there, also when the new name is gone.
    let gone =
        "mkdir d; create d/a; checkpoint; write d/a 0 1 x; rename d/a b; unlink b; syncdir /";
    assert_eq!(states(gone, Model::LogTree), ["d/", "d/ d/a=", "d/ d/a=0*1", "d/ d/a=x"]);
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
fn length_before_a_truncation_that_is_lost_stays_whatever_is_written_behind_it() {
    // Seen on XFS (program 6030 of `scripts/sound`): the page was written in place, and neither the truncation nor the growth was logged.
    let program = "create a; write a 0 5000 s; checkpoint; truncate a 4097; write a 4097 4096 C";
    let all = states(program, Model::Journal);
    assert!(all.contains(&"a=s*4097C*903".to_owned()), "{all:?}");
    assert!(
        !all.iter().any(|one| one.starts_with("a=s*4097C*904") || one.contains("s*5000C")),
        "{all:?}"
    );
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
fn hole_gives_its_end_as_length_to_a_file_that_was_shorter_on_the_disk() {
    // Seen on ext4.
    let grown = "create a; write a 0 9000 s; checkpoint; write a 12288 8192 x; ";
    for model in [Model::Journal, Model::LogTree] {
        let all = states(&format!("{grown}punch a 1 9000"), model);
        assert!(all.contains(&"a=s0*9000".to_owned()), "{model}: with the hole: {all:?}");
        assert!(all.contains(&"a=s*90000*1".to_owned()), "{model}: before the hole: {all:?}");
        // It is no shorter than it was, and no longer than it is.
        let all = states(&format!("{grown}punch a 1 7000"), model);
        assert!(!all.contains(&"a=s0*7000".to_owned()), "{model}: {all:?}");
        let all = states(&format!("{grown}punch a 1 90000"), model);
        assert!(all.contains(&"a=s0*20479".to_owned()), "{model}: {all:?}");
    }
}

#[test]
fn block_in_which_a_file_ended_may_be_all_that_a_write_behind_it_leaves() {
    // Seen on XFS.
    let all = states("create a; write a 0 5000 s; checkpoint; write a 12288 10 e", Model::Journal);
    assert!(all.contains(&"a=s*50000*3192".to_owned()), "{all:?}");
    assert!(!all.contains(&"a=s*50000*7288".to_owned()), "it is not on the disk: {all:?}");
}

#[test]
fn bytes_behind_a_truncation_come_back_with_the_next_length() {
    // Seen on XFS.
    let program =
        "create a; write a 0 5000 s; checkpoint; truncate a 4095; syncdir /; write a 4096 4097 e";
    let all = states(program, Model::Journal);
    let program = format!("{program}; syncfs");
    assert_eq!(states(&program, Model::Journal), ["a=s*40950*1e*4097"]);
    assert!(all.contains(&"a=s*40960*4096e".to_owned()), "{all:?}");
    assert!(all.contains(&"a=s*40950*4097e".to_owned()), "{all:?}");
    let grown = states(
        "create a; write a 0 5000 s; checkpoint; truncate a 4095; truncate a 5000",
        Model::Journal,
    );
    assert!(
        !grown.contains(&"a=s*40960*904".to_owned()),
        "a longer length alone is written behind the zeros: {grown:?}"
    );
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
fn hole_in_a_part_of_a_page_commits_nothing() {
    // Seen on XFS, after fsync and fdatasync: such a hole writes zeros into the page cache, and times that did not tick.
    let before = "create a; write a 0 5000 s; checkpoint; create b; ";
    for sync in ["sync", "datasync"] {
        let part = format!("{before}punch a 1 4095; write a 0 4097 G; {sync} a");
        assert_eq!(states(&part, Model::Journal), ["a=G*4097s*903", "a=G*4097s*903 b="], "{sync}");
        let page = format!("{before}punch a 0 4096; write a 0 1 G; {sync} a");
        assert_eq!(states(&page, Model::Journal), ["a=G0*4095s*904 b="], "{sync}");
        // Nor does a hole in a hole.
        let again =
            format!("{before}syncfs; punch a 0 4096; {sync} a; create c; punch a 0 4096; {sync} a");
        let again = states(&again, Model::Journal);
        assert_eq!(again, ["a=0*4096s*904 b=", "a=0*4096s*904 b= c="], "{sync}");
    }
}

#[test]
fn fdatasync_commits_no_names() {
    // Seen on ext4.
    let before = "create a; write a 0 5000 s; checkpoint; create b; ";
    for (names, file, lost) in [
        ("rename a x", "x", ["a=Gs*4999", "a=Gs*4999 b=", "b= x=Gs*4999"]),
        ("link a x", "x", ["a=Gs*4999", "a=Gs*4999 b=", "a=Gs*4999 b= x=Gs*4999"]),
        ("link a x; unlink a", "x", ["a=Gs*4999", "a=Gs*4999 b=", "a=Gs*4999 b= x=Gs*4999"]),
        ("create c; rename a c", "c", ["a=Gs*4999", "a=Gs*4999 b=", "a=Gs*4999 b= c="]),
    ] {
        let all = states(
            &format!("{before}{names}; write {file} 0 1 G; datasync {file}"),
            Model::Journal,
        );
        for lost in lost {
            assert!(all.contains(&lost.to_owned()), "{names}: {lost} in {all:?}");
        }
        let file =
            states(&format!("{before}{names}; write {file} 0 1 G; sync {file}"), Model::Journal);
        assert_eq!(file.len(), 1, "{names}: {file:?}");
    }
    assert_eq!(
        states("create b; create a; write a 0 1 x; datasync a; rename a c", Model::Journal),
        ["a=x b=", "b= c=x"]
    );
    assert_eq!(states("create b; create a; datasync a", Model::Journal), ["a= b="]);
}

#[test]
fn fdatasync_commits_changes_of_length_and_blocks() {
    let before = "create a; write a 0 8192 s; checkpoint; create b; ";
    for (change, left) in [
        ("write a 8192 1 x", "a=s*8192x"),
        ("truncate a 100", "a=s*100"),
        ("truncate a 8193", "a=s*81920*1"),
        ("truncate a 9000; truncate a 8192", "a=s*8192"),
        ("truncate a 100; truncate a 8192", "a=s*1000*8092"),
        ("punch a 4096 4096", "a=s*40960*4096"),
        // The first write may have been on the disk when the second was cut.
        ("write a 8192 4096 x; write a 12288 9 y; truncate a 12288", "a=s*8192x*4096"),
        ("write a 8192 8192 x; truncate a 9000", "a=s*8192x*808"),
    ] {
        let all = states(&format!("{before}{change}; datasync a"), Model::Journal);
        assert_eq!(all, [format!("{left} b=")], "{change}");
    }
    let between =
        "write a 8192 4096 x; create c; write a 12288 9 y; create d; truncate a 12288; datasync a";
    let left = "a=s*8192x*4096 b=";
    assert_eq!(
        states(&format!("{before}{between}"), Model::Journal),
        [left.to_owned(), format!("{left} c="), format!("{left} c= d=")]
    );
}

#[test]
fn truncation_that_takes_a_growth_back_commits_nothing_by_fdatasync() {
    // Seen on ext4: what made the file longer was not written back, so its length on the disk never changed.
    let program = "create a; write a 0 8192 s; checkpoint; create b; write a 8192 4096 x; truncate a 8192; write a 0 1 G";
    let all = states(&format!("{program}; datasync a"), Model::Journal);
    assert_eq!(all, ["a=Gs*8191", "a=Gs*8191 b="]);
    assert_eq!(states(&format!("{program}; sync a"), Model::Journal), ["a=Gs*8191 b="]);
    let earlier = "create a; write a 0 9000 s; checkpoint; create b; truncate a 8192; create c; write a 8192 4096 x; truncate a 8192; datasync a";
    assert_eq!(states(earlier, Model::Journal), ["a=s*8192 b=", "a=s*8192 b= c="]);
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
fn log_of_a_name_may_lack_what_cut_its_file() {
    // Seen on btrfs of Linux 6.12: the log has the new name, and the file as the disk has it.
    let program = "create a; write a 0 5000 x; create c; checkpoint; truncate a 4096; rename a b; ";
    let old = "b=x*5000 c=".to_owned();
    for sync in ["sync c", "syncdir /"] {
        assert!(states(&format!("{program}{sync}"), Model::LogTree).contains(&old), "{sync}");
        let again = format!("{program}{sync}; sync b");
        assert_eq!(states(&again, Model::LogTree), ["b=x*4096 c="], "{sync}");
    }
    for (sync, model) in [("", Model::LogTree), ("sync c", Model::Journal)] {
        assert!(!states(&format!("{program}{sync}"), model).contains(&old), "{model}");
    }
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
