//! The server side of NBD: connections, their transports and their send queues.

pub mod connection;
pub mod receive_path;
pub mod transport;
pub mod world;
