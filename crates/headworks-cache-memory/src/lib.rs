//! A cache whose dirty data outlive the process: frames, dirty tables and request buffers in one file of shared memory.
//!
//! A process that is killed leaves the file behind, in a file descriptor store (a memfd) or in a directory in memory (tmpfs,
//! hugetlbfs). The next process finds in it every acknowledged write that no device has, and writes it to the images.
//!
//! ```text
//!   file: [head][rows: which image each volume is][shards][dirty tables] | shard 0: [frames][buffers] | shard 1: ..
//!
//!   shard --SetDirty--> executor --store--> dirty table          `DirtyLog`
//!                       executor: redo record, copy, clear       `DirtyLog`
//!   kill -9
//!   next process: `LeftCache`: redo the copy that was cut short, then write what the tables name
//! ```
//!
//! Why this is enough: a processor that runs a process stops between two instructions, and every store before that point is in
//! memory. So the order of the stores in the program is all that counts, and the compiler must not change it.
//!
//! - A frame's entry is stored after its bytes and before the reply: an acknowledged block is in the table.
//! - The entry of a clean frame is stored after the whole copy: a block that was clean is old (on its image) or new.
//! - Bytes of a frame that is entered change under a *redo record*: source, target and length are stored before the copy. The
//!   source is a request buffer in the same memory, which is not reused before the reply; so the next process does the copy again,
//!   and the block is new. A record costs four stores; an undo copy of the old block would cost the copy of 4 KiB once more.
//! - An entry is one word: old or new, never half.

mod create;
mod dirty_log;
mod layout;
mod left;
mod reserve;
mod restore;
#[cfg(test)]
mod tests;

pub use create::{CacheMemory, ShardGeometry, ShardMemory};
pub use dirty_log::DirtyLog;
pub use layout::VolumeRow;
pub use left::{DirtyBlock, LeftBlock, LeftCache, LeftVolume, dirty_blocks};
pub use reserve::{BufferSpace, FrameSpace, LimitedFilesystem};
pub use restore::{
    DeadServer, ImageState, Verdict, copy_recovery, judge, write_image, write_recovery,
};
