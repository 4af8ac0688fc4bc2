//! NBD as plain state machines over bytes: no socket, no clock, no allocation per request.
//!
//! A connection lives in two phases. [`Handshake`] is fed received bytes and appends its answers, until the client has
//! chosen an export or is gone. Then a [`RequestParser`] turns received bytes into [`Request`]s, and [`Replies`] encodes
//! their answers. Whoever owns the socket decides when to read and to send, and moves the payloads: a payload never passes
//! through here.
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
//! Invariant of all of it: whatever a peer sends ends this connection at most, with one sentence; it never makes anything
//! here panic or grow beyond [`OPTION_BYTES_MAX`](wire::OPTION_BYTES_MAX) a connection.

pub mod client;
pub mod handshake;
pub mod meta;
pub mod reply;
pub mod status;
pub mod tls;
pub mod transmission;
pub mod wire;

pub use handshake::{BlockSizes, Encryption, ExportInfo, Handshake, Negotiated, Outcome};
pub use reply::Replies;
pub use transmission::{Parsed, ProtocolError, Refusal, Request, RequestParser};
pub use wire::{Command, CommandFlags, NbdError, TransmissionFlags};
