//! Experiments that reproduce the seeds' measurements, with their baselines and goals.
//!
//! Each experiment is a file or folder. It prints rows with its configuration and raw counts, from
//! which anyone can recompute the verdicts, and then a table. Baseline and Headworks share seed,
//! workload and device. The `headworks-lab` command is [`cli`]: here and not in the program, and all tests are here too, so that
//! a test run compiles the crate once.

pub mod baseline;
pub mod bfq;
pub mod cached;
pub mod chart;
pub mod cli;
pub mod contention;
pub mod crash;
pub mod dirty_shares;
pub mod experiment;
pub mod fairness;
pub mod harness;
pub mod live;
pub mod report;
pub mod row_filter;
pub mod seed000;
pub mod seed001;
pub mod seed002;
pub mod seed003;
pub mod seed004;
