//! Records for tests: programs as short texts, carried out on a recording.
//!
//! `create a`, `mkdir d`, `write a 0 4096 x`, `sync a`, `syncdir /`, `rename a b`, `unlink a`, `rmdir d`, `link a b`, `truncate a 10`,
//! `punch a 0 10`, `datasync a`, `syncfs`, `say ok 1`, one on a line or between `;`.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use headworks_fuse::{AttributeChange, Time};

use crate::record::{Disk, Record};
use crate::recording::{Limits, Recording};
use crate::tree::{NewNode, ROOT, Tree};

/// Bytes that a writer collects for a test.
#[derive(Clone, Default)]
pub struct SharedBytes(Arc<Mutex<Vec<u8>>>);

impl SharedBytes {
    pub fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap().clone()
    }
}

impl Write for SharedBytes {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub fn new_node(mode: u32) -> NewNode {
    NewNode { mode, uid: 0, gid: 0, target: Box::default(), device: 0 }
}

fn find(tree: &Tree, path: &str) -> u64 {
    let parts = path.split('/').filter(|part| !part.is_empty());
    parts.fold(ROOT, |at, part| tree.lookup(at, part.as_bytes()).unwrap())
}

/// The directory of a path, and its last part.
fn split(tree: &Tree, path: &str) -> (u64, Vec<u8>) {
    let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
    (find(tree, directory), name.as_bytes().to_vec())
}

/// A recording of one disk.
pub fn recording() -> Recording {
    let disk = Disk { name: "dir".into(), keeps_all: false };
    Recording::new(Record::new(vec![disk], vec![Tree::new(0, 0)]), Limits::default())
}

/// Carries out a program.
pub fn carry_out(recording: &mut Recording, program: &str) {
    let now = Time::default();
    for line in program.split([';', '\n']).map(str::trim).filter(|line| !line.is_empty()) {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let words: Vec<&str> = rest.split(' ').collect();
        let tree = recording.tree(0).clone();
        let node = || find(&tree, words[0]);
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        match word {
            "create" | "mkdir" => {
                let (parent, name) = split(&tree, words[0]);
                let mode = if word == "mkdir" { 0o040755 } else { 0o100644 };
                recording.make(0, parent, &name, new_node(mode), now).unwrap();
            }
            "link" => {
                let (parent, name) = split(&tree, words[1]);
                recording.link(0, node(), parent, &name, now).unwrap();
            }
            "unlink" | "rmdir" => {
                let (parent, name) = split(&tree, words[0]);
                recording.remove(0, parent, &name, word == "rmdir", now).unwrap();
            }
            "rename" => {
                let (from, to) = (split(&tree, words[0]), split(&tree, words[1]));
                recording.rename(0, (from.0, &from.1), (to.0, &to.1), false, now).unwrap();
            }
            "write" => {
                let data = words[3].as_bytes().repeat(number(2) as usize);
                recording.write(0, node(), number(1), &data, (false, false), now).unwrap();
            }
            "truncate" => {
                let change =
                    AttributeChange { size: Some(number(1)), ..AttributeChange::default() };
                recording.set_attributes(0, node(), &change, now).unwrap();
            }
            "punch" => recording.allocate(0, node(), (number(1), number(2)), 3, now).unwrap(),
            "sync" => recording.sync(0, node(), false).unwrap(),
            "datasync" => recording.sync(0, node(), true).unwrap(),
            "syncdir" => recording.sync_directory(0, node()).unwrap(),
            "syncfs" => recording.sync_all(0).unwrap(),
            "say" => recording.line(rest.as_bytes()),
            "checkpoint" => recording.checkpoint(|_| Ok(None)).unwrap(),
            _ => panic!("{word}"),
        }
    }
}

/// The record of a program.
pub fn record(program: &str) -> Record {
    let mut recording = recording();
    carry_out(&mut recording, program);
    recording.close().unwrap()
}

/// A record with something of everything.
pub fn sample() -> Record {
    let mut record = record(
        "mkdir d; create d/old; write d/old 100 5000 o; link d/old twin; create sparse; truncate sparse 1000000; checkpoint
         create a; write a 0 5000 x; sync a; rename a b; syncdir /; say ok 1
         write d/old 4000 300 y; truncate d/old 4100; punch d/old 0 200; link b d/c; unlink b; say ok 2; syncfs
         rename d/c e; mkdir f; rmdir f; write e 9000 10 z",
    );
    record.commands.push(("run".into(), "./load $dir".into()));
    record
}
