//! Experiments: what the seeds measured, what the best old way gives, what Headworks gives, and the goal.
//!
//! One folder or file each. An experiment prints rows with its configuration and raw counts, so that anyone can recompute
//! the verdict, and then the table; before and after share seed, workload and device.

pub mod baseline;
pub mod cached;
pub mod chart;
pub mod contention;
pub mod crash;
pub mod experiment;
pub mod fairness;
pub mod harness;
pub mod live;
pub mod report;
pub mod seed000;
pub mod seed001;
pub mod seed002;
pub mod seed003;
pub mod seed004;
