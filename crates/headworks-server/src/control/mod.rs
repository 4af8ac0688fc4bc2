//! The control socket: JSON-RPC over a unix socket, for the operator.
//!
//! ```text
//!   client --line--> rpc --method--> service --query or command--> shard thread
//!                                      ^-------- answer, or a closed channel when the server has ended
//! ```
//!
//! `socket` accepts clients, `client` frames lines, `rpc` is JSON-RPC 2.0, `credentials` checks the peer. `service` has the
//! methods, `tree` the names of settings, `report`, `latency` and `io_stat` the tables of answers, `explain` collects what slow
//! requests waited for, `why` makes the report, `blame` the part on who held it, `targets` latency targets, `methods` the table of methods and parameters,
//! `elevator` the state of an elevator. `inventory` records devices, volumes and exports;
//! `changes` adds, removes and resizes them.

mod blame;
pub(crate) mod changes;
mod client;
mod credentials;
mod elevator;
mod explain;
pub mod exports;
pub(crate) mod inventory;
mod io_stat;
mod latency;
mod methods;
mod params;
pub(crate) mod queries;
mod report;
pub(crate) mod rpc;
pub(crate) mod service;
mod settings;
pub(crate) mod shards;
mod socket;
mod targets;
pub(crate) mod tenants;
#[cfg(test)]
mod tests;
pub(crate) mod tree;
mod why;

pub use changes::{AccessReport, ReloadReport, RetuneReport, TenantReport};
pub use methods::{CONTROL_METHODS, ControlMethod, ControlParameter};
pub use report::DISKSTATS_FIELDS;
pub(crate) use socket::ControlSocket;
