//! The control socket: JSON-RPC over a unix socket, for the operator.
//!
//! ```text
//!   client --line--> rpc --method--> service --query or command--> shard thread
//!                                      ^-------- answer, or a closed channel when the server has ended
//! ```
//!
//! `socket` accepts clients, `client` frames lines, `rpc` of headworks-control is JSON-RPC 2.0, `credentials` checks the peer. `service` has the
//! methods, whose requests and answers are the types of headworks-control, `tree` the names of settings, `report`, `latency` and `io_stat` the tables of answers, `explain` collects what slow
//! requests waited for, `verdict` decides whether they are slow, `why` makes the report, `blame` the part on the holders, `in_flight` what is not answered yet, `targets` latency targets,
//! `elevator` the state of an elevator. `inventory` records devices, volumes and exports;
//! the room `change` adds, removes and resizes them.

mod blame;
mod client;
mod credentials;
mod elevator;
pub(crate) mod explain;
pub mod exports;
pub mod in_flight;
pub(crate) mod inventory;
mod io_stat;
mod latency;
pub(crate) mod queries;
pub(crate) mod report;
pub(crate) mod service;
pub(crate) mod settings;
pub(crate) mod shards;
mod socket;
mod targets;
pub(crate) mod tenants;
#[cfg(test)]
mod tests;
pub(crate) mod tree;
mod verdict;
mod why;

pub(crate) use socket::ControlSocket;
