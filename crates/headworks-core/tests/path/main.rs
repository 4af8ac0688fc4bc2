//! The policy path, rule by rule: what goes into a shard, and what must come out.
//!
//! Every test is named for the rule that it shows and reads like it: bios, commands and replies are short words (see `bench`).
//! `cargo test -p headworks-core --test path` runs them all in well under a second.

mod bench;

mod busy;
mod change;
mod deadline;
mod flush;
mod inflight;
mod leases;
mod partial;
mod plug;
mod queue;
mod shares;
mod split;
mod stats;
mod switch;
mod timeouts;
mod volume;
mod wait_times;
mod zeroes;
