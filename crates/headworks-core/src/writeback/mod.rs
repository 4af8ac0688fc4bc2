//! Writing back: how much may be dirty, who waits for it, and what is written when.

mod options;

pub use options::{DirtyOptions, ThrottlePolicy};
