//! A record as a file, written while it is made.
//!
//! ```text
//!   "HWREC1\n\0"   then entries:   length u32, kind u8, disk u8, four u64, length of the first text u32, two texts, check u32
//!   disks and commands, the nodes of the durable trees, CHECKPOINT, the steps
//! ```
//!
//! `length` counts what stands between it and the check, a hash of that. A file that was cut short by a kill -9 is read up to its last whole
//! entry; one without a checkpoint is refused. Bytes are input: nothing panics, and memory is proportional to the file's length.

use std::io::{self, Read, Write};
use std::sync::Arc;

use crate::hash;
use crate::record::{Action, Change, Disk, Record};
use crate::tree::{Kind, NewNode, ROOT, Tree};

const MAGIC: &[u8; 8] = b"HWREC1\n\0";
/// Bytes of an entry's fixed part, between length and texts.
const FIXED: usize = 2 + 4 * 8 + 4;
/// Bytes of an entry at most; a write has a mebibyte.
const ENTRY_MAX: usize = 4 << 20;
/// Offset at most, as files have it.
const OFFSET_MAX: u64 = 1 << 43;
/// Disks of a record at most.
const DISKS_MAX: usize = 8;

const DISK: u8 = 0;
const COMMAND: u8 = 1;
const CHECKPOINT: u8 = 2;

/// An entry of the file.
#[derive(Default)]
struct Entry<'a> {
    kind: u8,
    disk: u8,
    numbers: [u64; 4],
    first: &'a [u8],
    second: &'a [u8],
}

/// Writes a record, step by step.
pub struct RecordWriter {
    into: Box<dyn Write + Send>,
    buffer: Vec<u8>,
}

impl std::fmt::Debug for RecordWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RecordWriter")
    }
}

impl RecordWriter {
    /// Writes the head of a record: its disks, commands and trees; its steps are the caller's to write.
    pub fn new(into: impl Write + Send + 'static, record: &Record) -> io::Result<Self> {
        let mut writer = Self { into: Box::new(into), buffer: MAGIC.to_vec() };
        for disk in &record.disks {
            let numbers = [u64::from(disk.keeps_all), 0, 0, 0];
            writer.put(&Entry {
                kind: DISK,
                numbers,
                first: disk.name.as_bytes(),
                ..Entry::default()
            })?;
        }
        for (name, command) in &record.commands {
            let (first, second) = (name.as_bytes(), command.as_bytes());
            writer.put(&Entry { kind: COMMAND, first, second, ..Entry::default() })?;
        }
        for (index, tree) in record.base.iter().enumerate() {
            writer.put_tree(index as u8, tree)?;
        }
        writer.put(&Entry { kind: CHECKPOINT, ..Entry::default() })?;
        writer.flush()?;
        Ok(writer)
    }

    /// Writes a step of the record.
    pub fn push(&mut self, change: &Change) -> io::Result<()> {
        let Change { disk, action } = change;
        let mut entry = Entry { disk: *disk, ..Entry::default() };
        let mut numbers = |kind, numbers| {
            entry.kind = kind;
            entry.numbers = numbers;
        };
        match action {
            Action::Make { node, parent, name, new } => {
                let mode = u64::from(new.mode) | u64::from(new.device) << 32;
                let owner = u64::from(new.uid) | u64::from(new.gid) << 32;
                numbers(3, [*node, *parent, mode, owner]);
                (entry.first, entry.second) = (name, &new.target);
            }
            Action::Link { node, parent, name } => {
                numbers(4, [*node, *parent, 0, 0]);
                entry.first = name;
            }
            Action::Remove { node, parent, name, directory } => {
                numbers(5, [*node, *parent, u64::from(*directory), 0]);
                entry.first = name;
            }
            Action::Rename { node, parent, name, new_parent, new_name, replaced } => {
                numbers(6, [*node, *parent, *new_parent, *replaced]);
                (entry.first, entry.second) = (name, new_name);
            }
            Action::Write { node, offset, data, grown, mapped } => {
                numbers(7, [*node, *offset, u64::from(*grown), u64::from(*mapped)]);
                entry.first = data;
            }
            Action::Truncate { node, size } => numbers(8, [*node, *size, 0, 0]),
            Action::Punch { node, offset, length } => numbers(9, [*node, *offset, *length, 0]),
            Action::Attributes { node, mode, uid, gid } => {
                numbers(10, [*node, u64::from(*mode), u64::from(*uid), u64::from(*gid)]);
            }
            Action::Sync { node, data_only } => numbers(11, [*node, u64::from(*data_only), 0, 0]),
            Action::SyncRange { node, offset, length } => numbers(15, [*node, *offset, *length, 0]),
            Action::SyncDirectory { node } => numbers(12, [*node, 0, 0, 0]),
            Action::SyncAll => numbers(13, [0; 4]),
            Action::Line { text } => {
                numbers(14, [0; 4]);
                entry.first = text;
            }
        }
        self.put(&entry)
    }

    /// Passes on what is buffered.
    pub fn flush(&mut self) -> io::Result<()> {
        self.into.write_all(&self.buffer)?;
        self.buffer.clear();
        self.into.flush()
    }

    fn put(&mut self, entry: &Entry<'_>) -> io::Result<()> {
        let length = FIXED + entry.first.len() + entry.second.len();
        let out = &mut self.buffer;
        out.extend((length as u32).to_le_bytes());
        let begin = out.len();
        out.extend([entry.kind, entry.disk]);
        entry.numbers.iter().for_each(|number| out.extend(number.to_le_bytes()));
        out.extend((entry.first.len() as u32).to_le_bytes());
        out.extend_from_slice(entry.first);
        out.extend_from_slice(entry.second);
        let check = hash::hash(&out[begin..]) as u32;
        out.extend(check.to_le_bytes());
        if self.buffer.len() >= 1 << 20 { self.flush() } else { Ok(()) }
    }

    /// The nodes of a tree as the steps that make them.
    fn put_tree(&mut self, disk: u8, tree: &Tree) -> io::Result<()> {
        let mut names = Vec::new();
        tree.walk(&mut |number, path| names.push((number, path.to_vec())));
        let mut made = std::collections::HashMap::new();
        for (number, path) in names {
            let Ok(node) = tree.node(number) else { continue };
            let cut = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
            let parent = *made.get(&path[..cut]).unwrap_or(&ROOT);
            let name: Box<[u8]> = path.get(cut + 1..).unwrap_or_default().into();
            let known = made.values().any(|one| *one == number);
            made.insert(path, number);
            let (target, device) = match &node.kind {
                Kind::Symlink(target) => (target.clone(), 0),
                Kind::Special(device) => (Box::default(), *device),
                _ => (Box::default(), 0),
            };
            let new = NewNode { mode: node.mode, uid: node.uid, gid: node.gid, target, device };
            let action = match (number, known) {
                (ROOT, _) => {
                    Action::Attributes { node: ROOT, mode: new.mode, uid: new.uid, gid: new.gid }
                }
                (_, true) => Action::Link { node: number, parent, name },
                _ => Action::Make { node: number, parent, name, new },
            };
            self.push(&Change { disk, action })?;
            if let (Kind::File(content), false) = (&node.kind, known) {
                for (offset, data) in content.data() {
                    let data = Arc::from(data);
                    let action =
                        Action::Write { node: number, offset, data, grown: true, mapped: false };
                    self.push(&Change { disk, action })?;
                }
                let action = Action::Truncate { node: number, size: content.size() };
                self.push(&Change { disk, action })?;
            }
        }
        Ok(())
    }
}

/// Reads a record. An error says why the bytes are none.
pub fn read_record(mut from: impl Read) -> io::Result<Record> {
    let refused = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why);
    let mut magic = [0; 8];
    if from.read_exact(&mut magic).is_err() || &magic != MAGIC {
        return Err(refused("this is no record of a crash test"));
    }
    let mut record = Record::new(Vec::new(), Vec::new());
    let mut begun = false;
    let mut bytes = Vec::new();
    while let Some(entry) = next_entry(&mut from, &mut bytes)? {
        match entry.kind {
            DISK if record.disks.len() < DISKS_MAX => {
                let name = String::from_utf8_lossy(entry.first).into_owned();
                record.disks.push(Disk { name, keeps_all: entry.numbers[0] != 0 });
                record.base.push(Tree::new(0, 0));
            }
            COMMAND => {
                let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
                record.commands.push((text(entry.first), text(entry.second)));
            }
            CHECKPOINT => begun = true,
            _ => {
                let change =
                    change(&entry).filter(|one| usize::from(one.disk) < record.disks.len());
                let change =
                    change.ok_or_else(|| refused("the record has a step that no version knows"))?;
                match begun {
                    true => record.changes.push(change),
                    false => change.action.replay(&mut record.base[usize::from(change.disk)]),
                }
            }
        }
    }
    match begun {
        true => Ok(record),
        false => Err(refused("the record ends before its program began")),
    }
}

/// Reads an entry; none at the end, and where the rest is not whole.
fn next_entry<'a>(from: &mut impl Read, bytes: &'a mut Vec<u8>) -> io::Result<Option<Entry<'a>>> {
    let mut length = [0; 4];
    bytes.clear();
    let ended = |error: io::Error| match error.kind() {
        io::ErrorKind::UnexpectedEof => Ok(None),
        _ => Err(error),
    };
    if let Err(error) = from.read_exact(&mut length) {
        return ended(error);
    }
    let length = u32::from_le_bytes(length) as usize;
    if !(FIXED..=ENTRY_MAX).contains(&length) {
        return Ok(None);
    }
    let read = from.take(length as u64 + 4).read_to_end(bytes)?;
    if read < length + 4 {
        return Ok(None);
    }
    let (bytes, check) = bytes.split_at(length);
    if check != (hash::hash(bytes) as u32).to_le_bytes() {
        return Ok(None);
    }
    Ok(parsed(bytes))
}

fn parsed(bytes: &[u8]) -> Option<Entry<'_>> {
    let (head, texts) = bytes.split_at_checked(FIXED)?;
    let word = |at: usize| head[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
    let first = head[FIXED - 4..].try_into().map_or(0, u32::from_le_bytes) as usize;
    let (first, second) = texts.split_at_checked(first)?;
    let numbers = [word(2), word(10), word(18), word(26)];
    Some(Entry { kind: head[0], disk: head[1], numbers, first, second })
}

fn change(entry: &Entry<'_>) -> Option<Change> {
    let [node, a, b, c] = entry.numbers;
    let name = |bytes: &[u8]| -> Option<Box<[u8]>> {
        let plain = !bytes.is_empty() && bytes.len() <= headworks_fuse::NAME_MAX;
        let inside =
            !bytes.contains(&b'/') && !bytes.contains(&0) && bytes != b"." && bytes != b"..";
        (plain && inside).then(|| bytes.into())
    };
    let within =
        |offset: u64, length: u64| offset.checked_add(length).is_some_and(|end| end <= OFFSET_MAX);
    let action = match entry.kind {
        3 => {
            let target = (!entry.second.contains(&0)).then(|| entry.second.into())?;
            let (mode, device) = (b as u32, (b >> 32) as u32);
            let new = NewNode { mode, uid: c as u32, gid: (c >> 32) as u32, target, device };
            (node != ROOT).then_some(())?;
            Action::Make { node, parent: a, name: name(entry.first)?, new }
        }
        4 => Action::Link { node, parent: a, name: name(entry.first)? },
        5 => Action::Remove { node, parent: a, name: name(entry.first)?, directory: b != 0 },
        6 => {
            let (name, new_name) = (name(entry.first)?, name(entry.second)?);
            Action::Rename { node, parent: a, name, new_parent: b, new_name, replaced: c }
        }
        7 if within(a, entry.first.len() as u64) => Action::Write {
            node,
            offset: a,
            data: entry.first.into(),
            grown: b != 0,
            mapped: c != 0,
        },
        8 if within(a, 0) => Action::Truncate { node, size: a },
        9 => Action::Punch { node, offset: a, length: b },
        10 => Action::Attributes { node, mode: a as u32, uid: b as u32, gid: c as u32 },
        11 => Action::Sync { node, data_only: a != 0 },
        12 => Action::SyncDirectory { node },
        13 => Action::SyncAll,
        14 => Action::Line { text: entry.first.into() },
        15 if within(a, b) => Action::SyncRange { node, offset: a, length: b },
        _ => return None,
    };
    Some(Change { disk: entry.disk, action })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{SharedBytes, sample};
    use headworks_core::prng::Prng;

    fn written(record: &Record) -> Vec<u8> {
        let bytes = SharedBytes::default();
        let mut writer = RecordWriter::new(bytes.clone(), record).unwrap();
        record.changes.iter().for_each(|change| writer.push(change).unwrap());
        writer.flush().unwrap();
        bytes.bytes()
    }

    #[test]
    fn record_is_read_as_it_was_written() {
        let record = sample();
        let again = read_record(&written(&record)[..]).unwrap();
        assert_eq!(again.changes, record.changes);
        assert_eq!((&again.disks, &again.commands), (&record.disks, &record.commands));
        let hashes = |record: &Record| record.base.iter().map(Tree::hash).collect::<Vec<_>>();
        assert_eq!(hashes(&again), hashes(&record));
        assert_eq!(written(&again), written(&record));
    }

    #[test]
    fn record_cut_short_is_read_up_to_its_last_whole_step() {
        let record = sample();
        let bytes = written(&record);
        let mut steps = Vec::new();
        for end in 0..=bytes.len() {
            if let Ok(cut) = read_record(&bytes[..end]) {
                assert_eq!(cut.changes, record.changes[..cut.changes.len()]);
                steps.push(cut.changes.len());
            }
        }
        assert!(steps.is_sorted());
        assert_eq!(steps.last(), Some(&record.changes.len()));
    }

    #[test]
    fn changed_bytes_are_refused_or_end_the_record() {
        let record = sample();
        let bytes = written(&record);
        let mut prng = Prng::new(3);
        for _ in 0..2000 {
            let mut spoiled = bytes.clone();
            for _ in 0..=prng.below(3) {
                let at = prng.below(bytes.len() as u64) as usize;
                spoiled[at] ^= 1 << prng.below(8);
            }
            if let Ok(read) = read_record(&spoiled[..]) {
                assert_eq!(read.changes, record.changes[..read.changes.len()]);
            }
        }
    }

    #[test]
    fn hostile_steps_are_refused_or_harmless() {
        let mut prng = Prng::new(7);
        for round in 0..3000 {
            let mut bytes = MAGIC.to_vec();
            let mut writer = RecordWriter { into: Box::new(io::sink()), buffer: Vec::new() };
            writer.put(&Entry { kind: DISK, first: b"dir", ..Entry::default() }).unwrap();
            for step in 0..40 {
                if step == 20 {
                    writer.put(&Entry { kind: CHECKPOINT, ..Entry::default() }).unwrap();
                }
                let number = |prng: &mut Prng| match prng.below(8) {
                    0 => u64::MAX,
                    1 => 1 << 42,
                    _ => prng.below(6),
                };
                let numbers = std::array::from_fn(|_| number(&mut prng));
                let names: [&[u8]; 4] = [b"a", b"b", b"..", b"x/y"];
                let (first, second) =
                    (names[prng.below(3) as usize], names[prng.below(4) as usize]);
                let kind = 3 + prng.below(if round % 2 == 0 { 12 } else { 14 }) as u8;
                writer.put(&Entry { kind, disk: 0, numbers, first, second }).unwrap();
            }
            bytes.append(&mut writer.buffer);
            if let Ok(record) = read_record(&bytes[..]) {
                let trees = record.trees(record.changes.len());
                assert_eq!(trees[0].hash(), trees[0].clone().hash());
            }
        }
    }
}
