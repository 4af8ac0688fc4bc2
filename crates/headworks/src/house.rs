//! What the other crates of this project share with the library, and no other program should: it changes with them, without a word.

pub use crate::memory::{HUGE, PAGE, page_size};
