//! Writing back: how much may be dirty, who waits for it, and what is written when.

mod options;
mod tunable;

pub use options::{DirtyOptions, ThrottlePolicy};
pub use tunable::DirtyTunable;
