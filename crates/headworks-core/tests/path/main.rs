//! The path of uncached bios through a shard, rule by rule: inputs and expected actions.
//!
//! Each test is named after the rule that it checks; bios, commands and replies are short words (see `bench`).
//! `cargo test -p headworks-core --test path` runs them all in well under a second.

mod bench;
mod bfq;

mod busy;
mod change;
mod deadline;
mod flush;
mod inflight;
mod lease_bypass;
mod leases;
mod partial;
mod plug;
mod queue;
mod shares;
mod split;
mod stats;
mod stuck;
mod switch;
mod targets;
mod timeouts;
mod volume;
mod wait_times;
mod waits;
mod weights;
mod zeroes;
