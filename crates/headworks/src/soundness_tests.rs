//! Programs that must not compile: safe code cannot make the library use memory that it does not own.
//!
//! The first program hands the kernel the address of an immutable box. Made of safe code it does not compile, because
//! [`Span::new`](crate::driver::Span::new) and [`DiskQueue::push`](crate::driver::DiskQueue::push) are unsafe:
//!
//! ```compile_fail,E0133
//! use headworks::EngineChoice;
//! use headworks::driver::{DiskKind, DiskOp, Span, open_engine};
//! use std::os::fd::AsRawFd;
//!
//! let victim = Box::new([1_u8; 16]);
//! let base = (&raw const *victim).cast::<u8>().cast_mut();
//! let zero = std::fs::File::open("/dev/zero").unwrap();
//! let (mut engine, _) = open_engine(EngineChoice::Threads, 4).unwrap();
//! let (device, id) = Default::default();
//! let op = DiskOp { device, id, fd: zero.as_raw_fd(), kind: DiskKind::Read, offset: 0, len: 16 };
//! engine.push(op, &[Span::new(base, 16)]);
//! ```
//!
//! A span cannot be made from its parts either:
//!
//! ```compile_fail,E0451
//! let span = headworks::driver::Span { base: std::ptr::null_mut(), len: 16 };
//! ```
//!
//! The same program with its two unsafe calls marked does compile, so nothing else is wrong with the first:
//!
//! ```no_run
//! use headworks::EngineChoice;
//! use headworks::driver::{DiskKind, DiskOp, Span, open_engine};
//! use std::os::fd::AsRawFd;
//!
//! let victim = Box::new([1_u8; 16]);
//! let base = (&raw const *victim).cast::<u8>().cast_mut();
//! let zero = std::fs::File::open("/dev/zero").unwrap();
//! let (mut engine, _) = open_engine(EngineChoice::Threads, 4).unwrap();
//! let (device, id) = Default::default();
//! let op = DiskOp { device, id, fd: zero.as_raw_fd(), kind: DiskKind::Read, offset: 0, len: 16 };
//! unsafe { engine.push(op, &[Span::new(base, 16)]) };
//! ```
//!
//! Memory is handed to the executor by an unsafe trait:
//!
//! ```compile_fail,E0200
//! use headworks::driver::{ActionSink, Span};
//! use headworks_core::{BioId, Instant, Message, Notice, ReplyStage, ShardId, Status, WaitTimes};
//!
//! struct Sink;
//! impl ActionSink for Sink {
//!     fn buffer(&mut self, _: BioId) -> Span { Span::EMPTY }
//!     fn frames(&self) -> Span { Span::EMPTY }
//!     fn reply(&mut self, _: BioId, _: Status, _: bool, _: ReplyStage, _: WaitTimes) {}
//!     fn send(&mut self, _: ShardId, _: Message) {}
//!     fn timer(&mut self, _: Instant) {}
//!     fn notice(&mut self, _: Notice) {}
//! }
//! ```
//!
//! Bytes that a handle lends are gone before the handle's next turn, which may change them:
//!
//! ```compile_fail,E0499
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let (_owner, mut handles) = headworks::Owner::start(Default::default())?;
//!     let bytes = handles[0].lend(headworks_core::VolumeId(0), 0, 512)?;
//!     handles[0].submit();
//!     println!("{}", bytes.len());
//!     Ok(())
//! }
//! ```
//!
//! With a drop in between it compiles:
//!
//! ```no_run
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let (_owner, mut handles) = headworks::Owner::start(Default::default())?;
//!     let bytes = handles[0].lend(headworks_core::VolumeId(0), 0, 512)?;
//!     drop(bytes);
//!     handles[0].submit();
//!     Ok(())
//! }
//! ```
//!
//! A device of safe code cannot use the data of a command that it has answered:
//!
//! ```compile_fail,E0382
//! use headworks::{Answers, Work};
//!
//! fn answer(work: Work, answers: &mut Answers<'_>) {
//!     work.complete(Ok(()), answers);
//!     work.read_into(0, &mut [0; 512]);
//! }
//! ```
//!
//! nor make answers of its own:
//!
//! ```compile_fail,E0451
//! let mut none = Vec::new();
//! let answers = headworks::Answers { completions: &mut none };
//! ```
