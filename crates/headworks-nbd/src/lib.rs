//! The NBD protocol: the codec of both sides as state machines over bytes, TLS sessions, and a client.
//!
//! The codec has no socket, no clock, and allocates nothing per request.
//!
//! A connection lives in two phases. [`Handshake`] is fed received bytes and appends its answers, until the client has
//! chosen an export or is gone. Then a [`RequestParser`] turns received bytes into [`Request`]s, and [`Replies`] encodes
//! their answers. The owner of the socket decides when to read and to send, and moves the payloads: no payload passes through
//! this code.
//!
//! ```text
//!   accept --> Handshake::new --feed--> Reply, NeedMore, ... --> Ready { export, terms }
//!                                 |                                 |
//!                                 +--> Closed | Failed              v
//!                                                   RequestParser::parse --> Request --> Op, BioFlags
//!                                                     |        |                            |
//!                                         Disconnect | End   Refused --> Replies <-- outcome of the bio
//! ```
//!
//! Invariant: malformed input ends its own connection at most, with one sentence for the log. It never causes a panic or more
//! than [`OPTION_BYTES_MAX`](wire::OPTION_BYTES_MAX) of memory a connection.

pub mod client;
pub mod device;
pub mod export;
pub mod handshake;
pub mod meta;
pub mod reply;
pub mod status;
pub mod tls;
pub mod transmission;
pub mod wire;

pub use export::{BlockSizes, ExportInfo, Negotiated, Offer};
pub use handshake::{Encryption, Handshake, Outcome};
pub use reply::Replies;
pub use transmission::{Parsed, ProtocolError, Refusal, Request, RequestParser};
pub use wire::{Command, CommandFlags, NbdError, TransmissionFlags};
