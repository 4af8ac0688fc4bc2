//! The NBD frontend of a shard: connections, their transports, and the bytes they send.

pub mod connection;
pub mod outgoing;
pub mod transport;
pub mod window;
