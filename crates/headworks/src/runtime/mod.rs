//! What a thread that drives a shard needs beside it: a clock, a decision whether to poll, a CPU.

mod clock;
mod polling;
mod threads;

pub use clock::Clock;
pub use polling::Polling;
pub use threads::pin_thread;
