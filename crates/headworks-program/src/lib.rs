//! What the programs of users share: `headworks`, and `headworks-bench`, which it runs.
//!
//! What a program prints goes through [`shown`], errors are one sentence ([`complain`], [`explain`]), options take words and values with
//! answers of their own, and each program begins and ends in the same way ([`begin`], [`end`]).

#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod bench;
mod complaints;
pub mod known_words;
mod lifetime;
pub mod shown;
pub mod tunables;
pub mod value_words;

pub use complaints::{USAGE, complain, complain_in_lines, explain};
pub use lifetime::{begin, close_images, end};
