//! The front of a server: what a client's request passes between its header and its bio, and its reply afterwards.
//!
//! No socket, no thread, no clock: bytes are received and sent through a [`Transport`], and time is an argument. The server gives it sockets;
//! a test gives it whatever it likes.
//!
//! ```text
//!   bytes --Transport::receive--> requests --> window (in flight) --> bios of the shard
//!                                  `-- waiting: what cannot go on (request: what it waits for)
//!   bytes <--Transport::send----- outgoing (replies in order) <------ answers
//!                                  `-- lent_frames: data that are sent from where they are
//! ```
//!
//! A connection's half of it is in two parts: `wire` has its bytes and their clocks, `intake` what has arrived and is not in the shard.
//! `hot_list` has the connections that are tried every turn, `front_waits` what a request waited before its bio. Limits of bytes and I/Os
//! a second, which stand before a shard, are `headworks_core::limits`.

pub mod front_waits;
pub mod hot_list;
pub mod intake;
pub mod lent_frames;
pub mod memory;
pub mod outgoing;
pub mod request;
pub mod split_writes;
pub mod transport;
pub mod turn;
pub mod waiting;
pub mod window;
pub mod wire;

#[cfg(test)]
mod test_socket;

pub use request::{FrontRequest, Origin, PART_MIN, Payload, WaitsFor};
pub use transport::Transport;
pub use waiting::Waiting;
