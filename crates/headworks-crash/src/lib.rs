//! Power cuts for programs that use files. A program runs once, on a directory that records what it does; every state that a power cut
//! may leave is then computed from the record, made as a plain directory and checked, without a second run.
//!
//! ```text
//!   Directory (FUSE) --> Recording --> Record --> Walk: a place, what is pending there (Pending, Model)
//!                                                   |  choices on its axes: drawn, or all of them (explore)
//!                                                   v
//!                                                 trees --> write_tree --> the user's check
//!                                                   |  a failure: shrink, Explainer
//!                                                   v
//!                                                 causes: which sync is missing
//! ```
//!
//! [`Replay`] repeats a record on a real file system, and [`Walk::find`] says which state of a model its directory is after a cut.
//!
//! A program that injects its own I/O needs no mount: it calls the [`Recording`]. Everything but `directory`, `materialize` and `replay` is policy:
//! no clock, no thread, no system call; the same record, seed and number give the same trees on every machine.
//!
//! ```
//! use headworks_crash::{Disk, Limits, Model, NewNode, ROOT, Record, Recording, Time, Tree, Walk};
//!
//! let disk = Disk { name: "dir".into(), keeps_all: false };
//! let mut recording = Recording::new(Record::new(vec![disk], vec![Tree::new(0, 0)]), Limits::default());
//! let (now, file) = (Time::default(), NewNode { mode: 0o100600, uid: 0, gid: 0, target: [].into(), device: 0 });
//! let log = recording.make(0, ROOT, b"log", file, now).unwrap();
//! recording.write(0, log, 0, b"hello", (false, false), now).unwrap();
//! recording.line(b"written");
//! let record = recording.close().unwrap();
//!
//! let mut walk = Walk::new(&record, Model::Journal, 4096);
//! walk.go(record.changes.len());
//! assert_eq!(walk.states(100), Some(8)); // the name, the bytes and the length, each kept or lost
//! let lost = walk.trees(&walk.nothing_kept());
//! assert!(lost[0].is_empty());
//! ```

#[cfg(test)]
mod brute_tests;
mod cause;
mod content;
mod directory;
mod explore;
mod file;
mod find;
mod hash;
#[cfg(test)]
mod image_tests;
mod materialize;
mod model;
#[cfg(test)]
mod model_tests;
mod record;
mod recording;
mod replay;
mod shrink;
mod slow;
mod state;
#[cfg(test)]
mod testing;
mod tree;

pub use cause::{Effect, Explainer, generalized};
pub use content::Content;
pub use directory::{Directory, MountUser, SharedRecording, lock};
pub use explore::{Draws, next_choices};
pub use file::{RecordWriter, read_record};
pub use find::Membership;
pub use headworks_fuse::{Access, AttributeChange, Mount, NoAccess, Time, Way, remove_stale};
pub use materialize::{read_tree, write_tree};
pub use model::{Axis, Model, Pending};
pub use record::{Action, Change, Counts, Disk, Record};
pub use recording::{ImageChange, Limits, Recording};
pub use replay::Replay;
pub use shrink::shrink;
pub use slow::{
    Commands, Durability, Ended, SlowDirectory, SlowDisk, SlowMount, SlowOptions, SlowReport,
    SlowWrite, WaitKind, Waits, WriteMode,
};
pub use state::{State, Walk};
pub use tree::{Errno, Kind, NewNode, Node, ROOT, Tree};
