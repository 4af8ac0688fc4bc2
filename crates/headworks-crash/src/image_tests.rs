//! Images behind `$uri`: writes, flushes and FUA of a disk as states and causes.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use headworks_core::prng::Prng;
use headworks_fuse::Time;

use crate::testing::new_node;
use crate::{
    Action, Change, Disk, Explainer, ImageChange, Limits, Model, ROOT, Record, Recording, Tree,
    Walk, next_choices,
};

/// A recording of an image of so many bytes, and the number of its file.
fn recording(size: u64) -> (Recording, u64) {
    let disk = Disk { name: Disk::IMAGE.into(), keeps_all: false };
    let record = Record::new(vec![disk], vec![Tree::new(0, 0)]);
    let mut recording = Recording::new(record, Limits::default());
    let now = Time::default();
    let node = recording.make(0, ROOT, b"disk.img", new_node(0o100_600), now).unwrap();
    let change = headworks_fuse::AttributeChange { size: Some(size), ..Default::default() };
    recording.set_attributes(0, node, &change, now).unwrap();
    recording.checkpoint(|_| Ok(None)).unwrap();
    (recording, node)
}

fn write(sector: u64, sectors: usize, byte: u8, fua: bool) -> ImageChange {
    ImageChange::Write { offset: sector * 512, data: vec![byte; sectors * 512], fua }
}

fn record(changes: impl IntoIterator<Item = ImageChange>) -> Record {
    let (mut recording, node) = recording(1 << 16);
    for change in changes {
        recording.change_image(0, node, change).unwrap();
    }
    recording.close().unwrap()
}

/// The first byte of each sector of the image in every state of the end.
fn states(record: &Record, block: u64) -> BTreeSet<Vec<u8>> {
    let mut walk = Walk::new(record, Model::Journal, block);
    walk.go(usize::MAX);
    let mut choices = vec![0; walk.axes().len()];
    let mut all = BTreeSet::new();
    loop {
        let tree = &walk.trees(&choices)[0];
        let content = tree.content(tree.lookup(ROOT, b"disk.img").unwrap()).unwrap();
        assert_eq!(content.size(), 1 << 16, "an image keeps its size");
        let mut bytes = vec![0; 1 << 16];
        content.read(0, &mut bytes);
        all.insert(bytes.chunks(512).map(|sector| sector[0]).collect());
        if !next_choices(walk.axes(), &mut choices) {
            return all;
        }
    }
}

#[test]
fn states_of_an_image_are_versions_of_each_sector_since_flush_and_fua() {
    let mut prng = Prng::new(3);
    for _ in 0..60 {
        let changes: Vec<ImageChange> = (1..=1 + prng.below(6))
            .map(|number| match prng.below(5) {
                0 => ImageChange::Flush,
                kind => {
                    let sectors = 1 + prng.below(3) as usize;
                    write(prng.below(4), sectors, number as u8, kind == 1)
                }
            })
            .collect();
        // By itself: what each sector may hold, oldest first.
        let mut versions = vec![vec![0u8]; 128];
        for change in &changes {
            match change {
                ImageChange::Flush => {
                    versions.iter_mut().for_each(|own| drop(own.drain(..own.len() - 1)))
                }
                ImageChange::Write { offset, data, fua } => {
                    for own in &mut versions[(*offset / 512) as usize..][..data.len() / 512] {
                        if *fua {
                            own.clear();
                        }
                        own.push(data[0]);
                    }
                }
            }
        }
        let expected = versions.iter().fold(BTreeSet::from([Vec::new()]), |all, own| {
            let longer = |head: &Vec<u8>| {
                own.iter().map(|byte| [&head[..], &[*byte]].concat()).collect::<Vec<_>>()
            };
            all.iter().flat_map(longer).collect()
        });
        assert!(states(&record(changes.clone()), 512) == expected, "{changes:?}");
    }
}

#[test]
fn whole_blocks_are_lost_together_unless_a_write_has_parts_of_them() {
    let whole = record([write(0, 8, 1, false), write(8, 16, 2, false)]);
    assert_eq!((whole.image_block(), states(&whole, 4096).len()), (4096, 8));
    assert_eq!(record([write(0, 8, 1, false), write(3, 1, 2, false)]).image_block(), 512);
}

#[test]
fn causes_name_sectors_and_flushes() {
    let mut record = record([
        write(2048 / 512, 8, 1, false),
        ImageChange::Flush,
        write(16, 8, 2, false),
        write(24, 16, 3, true),
        write(16, 8, 4, false),
    ]);
    let line = Action::Line { text: b"ok 1".as_slice().into() };
    record.changes.insert(3, Change { disk: 0, action: line });
    let explainer = Explainer::new(&record);
    let mut walk = Walk::new(&record, Model::Journal, 4096);
    walk.go(usize::MAX);
    let effects = explainer.effects(walk.axes(), &walk.nothing_kept(), walk.place());
    let said: Vec<&str> = effects.iter().map(|one| one.said.as_str()).collect();
    assert_eq!(
        said,
        [
            "write of sector 16+8, after flush 1 was not durable: no flush before the promise \"ok 1\""
        ]
    );
    let block = explainer.with_block(512);
    let mut walk = Walk::new(&record, Model::Journal, 512);
    walk.go(usize::MAX);
    let mut one = vec![0; walk.axes().len()];
    one[3] = 1;
    let effects = block.effects(walk.axes(), &one, walk.place());
    assert_eq!(
        effects[0].said,
        "write of sector 16+8, after flush 1 was not durable (block 19): no flush follows"
    );
}

#[test]
fn line_stands_between_what_was_answered_before_it_and_what_came_after() {
    let (mut recording, node) = recording(1 << 16);
    let printed = Arc::new(Mutex::new(Vec::new()));
    let lines = Arc::clone(&printed);
    recording.listen(move || lines.lock().unwrap().pop());
    for line in ["first", "second"] {
        recording.change_image(0, node, write(0, 8, line.len() as u8, false)).unwrap();
        recording.change_image(0, node, ImageChange::Flush).unwrap();
        printed.lock().unwrap().push(line.as_bytes().to_vec());
    }
    recording.take_lines();
    let record = recording.close().unwrap();
    let kinds: Vec<&str> = record
        .changes
        .iter()
        .map(|change| match change.action {
            Action::Write { .. } => "write",
            Action::Sync { .. } => "flush",
            Action::Line { .. } => "line",
            _ => "other",
        })
        .collect();
    assert_eq!(kinds, ["write", "flush", "line", "write", "flush", "line"]);
}
