//! The C API of Headworks: the embedding API of the crate `headworks`, with devices named by a SPEC as `headworks serve` takes it.
//!
//! ```text
//!   C program:  hw_open --> hw_disk --hw_queue_at--> hw_queue (one thread at a time) --hw_read, hw_submit, hw_reap--> completions
//!   this crate: Disk: the Owner and its queues       Queue: a Handle, and what each slot is used for
//! ```
//!
//! What is decided here:
//!
//! - **Ownership.** `hw_open` makes everything, `hw_close` frees everything. Pointers that other calls return belong to the disk.
//! - **Threads.** A disk may be used by any thread. A queue is used by one thread at a time and may move between threads. No thread of
//!   the library calls the program.
//! - **Errors.** A call that fails returns a negative errno, and `hw_error` has a sentence for the calling thread. A completion has
//!   the negative errno of its I/O.
//! - **Panics** never unwind into the caller. Where they unwind (`--profile library`, and debug builds) a call returns `-ENOTRECOVERABLE`, and its
//!   queue does nothing more; where they abort (`release`, `dist`) the process ends with the panic's message.
//!
//! `include/headworks.h` is generated from this crate by cbindgen and checked in; `tests/header.rs` compares both.
//!
//! Invariants: every slot of a queue is with the program, in flight or free, and a call that fails leaves it where it was; memory of
//! the program is touched only between the call that names it and the completion of that I/O.

mod disk;
mod disk_calls;
mod error;
mod options;
mod queue;
mod queue_calls;

pub use disk::Disk;
pub use disk_calls::{
    hw_block_size, hw_capacity, hw_close, hw_error, hw_open, hw_queue_at, hw_set_limits,
    hw_set_weight, hw_version,
};
pub use options::{
    HW_ENGINE_AUTO, HW_ENGINE_THREADS, HW_ENGINE_URING, HW_OPEN_OWNER_DRIVES, HW_OPEN_READ_ONLY,
    Options,
};
pub use queue::{
    Completion, HW_BACKGROUND, HW_COMPLETION_HOLE, HW_DISCARD, HW_FLUSH, HW_FUA, HW_HOLE_OK,
    HW_NO_SLOT, HW_NO_UNMAP, HW_PIECES_MAX, HW_READ, HW_REGISTERED_MAX, HW_WRITE, HW_WRITE_ZEROES,
    Queue,
};
pub use queue_calls::{
    hw_arm, hw_buffer, hw_depth, hw_discard, hw_eventfd, hw_flush, hw_fsync, hw_pread, hw_put,
    hw_pwrite, hw_read, hw_readv, hw_reap, hw_register, hw_release, hw_slot, hw_slot_bytes,
    hw_submit, hw_unregister, hw_wait, hw_write, hw_write_zeroes, hw_writev,
};
