//! The server's side of the fixed newstyle handshake: option negotiation before transmission.
//!
//! ```text
//!   new: greeting out
//!     |
//!   Flags --4 bytes--> Header --16 bytes--> Body { option, len } --len bytes--> answer --> Header
//!                        ^                    |                                   |
//!                        |                    | len > 64 KiB                      +--> Ready (GO, EXPORT_NAME)
//!                        +-- ERR_TOO_BIG -- Skip                                  +--> Closed (ABORT)
//!   anything that cannot be answered: Failed, with one sentence for the log
//! ```
//!
//! STARTTLS resets everything that was negotiated in the clear, because an attacker in between may have negotiated it.
//!
//! A client may see only some of the exports ([`Offer`]). Another one is answered in the same words as a name that does not exist,
//! whatever option asks for it, so its existence is not told.
//!
//! Invariants: a call answers at most one option, so its output is bounded by one list of all exports; at most 64 KiB of received
//! bytes are kept; after `Ready`, `Closed` or `Failed` no byte is consumed.

use super::export::{BlockSizes, ExportInfo, Negotiated, Offer, find};
use super::meta::MetaContexts;
use super::wire::{
    EXPORT_NAME_PADDING_BYTES, INIT_MAGIC, OPTION_BYTES_MAX, OPTION_HEADER_BYTES, OPTION_MAGIC,
    OPTION_REPLY_MAGIC, STRING_BYTES_MAX, be16, be32, be64, handshake_flags, info, option,
    option_reply,
};

/// Most options of one handshake. Most clients send fewer than ten; `nbdinfo --list` and `qemu-nbd --list` send several for each
/// export, of which there may be a thousand. More than this is an attack or a loop.
pub const OPTIONS_MAX: u32 = 10_000;

/// Result of one call of [`Handshake::feed`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All bytes are consumed; more are needed.
    NeedMore,
    /// An option was answered. Send the output, then feed the rest.
    Reply,
    /// STARTTLS was accepted: send the output, then encrypt. Bytes received behind the option must be dropped, because they
    /// came in the clear.
    Encrypt,
    /// The client chose an export. Send the output; unconsumed bytes belong to the transmission phase.
    Ready {
        /// Index of the export.
        export: usize,
        /// Result of the negotiation.
        terms: Negotiated,
    },
    /// The client ended the session. Send the output and close.
    Closed,
    /// The client cannot be served: send the output, log the sentence, close.
    Failed(String),
}

/// TLS policy and state of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encryption {
    /// TLS is not available.
    #[default]
    Off,
    /// TLS is available and optional.
    Offered,
    /// TLS is required before any other option.
    Required,
    /// The connection is encrypted.
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Flags,
    Header,
    Body { option: u32, len: usize },
    Skip { option: u32, left: u32 },
    Ended,
}

/// The handshake of one connection.
#[derive(Debug)]
pub struct Handshake {
    state: State,
    /// Received part of the item that `state` expects.
    pending: Vec<u8>,
    options: u32,
    no_zeroes: bool,
    terms: Negotiated,
    encryption: Encryption,
    contexts: MetaContexts,
}

impl Handshake {
    /// Starts a handshake; the greeting is appended to `out`.
    #[must_use]
    pub fn new(out: &mut Vec<u8>) -> Self {
        let flags = handshake_flags::FIXED_NEWSTYLE | handshake_flags::NO_ZEROES;
        out.extend(INIT_MAGIC.to_be_bytes());
        out.extend(OPTION_MAGIC.to_be_bytes());
        out.extend(flags.to_be_bytes());
        Self {
            state: State::Flags,
            pending: Vec::new(),
            options: 0,
            no_zeroes: false,
            terms: Negotiated::default(),
            encryption: Encryption::Off,
            contexts: MetaContexts::default(),
        }
    }

    /// Sets the TLS policy. Call it before the first byte is fed.
    pub fn offer(&mut self, encryption: Encryption) {
        self.encryption = encryption;
    }

    /// Returns true when no byte of the client was fed yet.
    #[must_use]
    pub fn is_untouched(&self) -> bool {
        self.state == State::Flags && self.pending.is_empty()
    }

    /// Feeds the next bytes of the stream; returns how many were consumed, and the result.
    ///
    /// `offer` may differ from call to call, so a server can add and remove exports, and change what the client sees.
    pub fn feed(&mut self, offer: &dyn Offer, bytes: &[u8], out: &mut Vec<u8>) -> (usize, Outcome) {
        let mut consumed = 0;
        loop {
            let rest = &bytes[consumed..];
            let (taken, complete) = self.take(rest);
            consumed += taken;
            if !complete {
                return (consumed, Outcome::NeedMore);
            }
            let outcome = self.step(offer, out);
            self.pending.clear();
            if matches!(outcome, Outcome::Ready { .. } | Outcome::Closed | Outcome::Failed(_)) {
                self.state = State::Ended;
                self.pending = Vec::new();
            }
            if outcome != Outcome::NeedMore {
                return (consumed, outcome);
            }
        }
    }

    /// Consumes what the current state still needs; returns the count and whether the item is complete.
    fn take(&mut self, bytes: &[u8]) -> (usize, bool) {
        let wanted = match &mut self.state {
            State::Flags => 4,
            State::Header => OPTION_HEADER_BYTES,
            State::Body { len, .. } => *len,
            State::Skip { left, .. } => {
                let taken = bytes.len().min(*left as usize);
                *left -= taken as u32;
                return (taken, *left == 0);
            }
            State::Ended => return (0, false),
        };
        let taken = bytes.len().min(wanted - self.pending.len());
        self.pending.extend_from_slice(&bytes[..taken]);
        (taken, self.pending.len() == wanted)
    }

    /// Handles a complete item.
    fn step(&mut self, offer: &dyn Offer, out: &mut Vec<u8>) -> Outcome {
        match self.state {
            State::Flags => self.on_client_flags(),
            State::Header => self.on_header(),
            State::Body { option, .. } => {
                self.state = State::Header;
                let body = std::mem::take(&mut self.pending);
                self.on_option(option, &body, offer, out)
            }
            State::Skip { option, .. } => {
                self.state = State::Header;
                self.on_long_option(option, out)
            }
            State::Ended => Outcome::NeedMore,
        }
    }

    fn on_client_flags(&mut self) -> Outcome {
        let flags = be32(&self.pending, 0);
        let no_zeroes = u32::from(handshake_flags::NO_ZEROES);
        let unknown = flags & !(u32::from(handshake_flags::FIXED_NEWSTYLE) | no_zeroes);
        if unknown != 0 {
            return Outcome::Failed(format!("the client set unknown flags {unknown:#x}"));
        }
        self.no_zeroes = flags & no_zeroes != 0;
        self.state = State::Header;
        Outcome::NeedMore
    }

    fn on_header(&mut self) -> Outcome {
        let magic = be64(&self.pending, 0);
        if magic != OPTION_MAGIC {
            return Outcome::Failed(format!(
                "the client sent {magic:#018x} where an option must begin"
            ));
        }
        self.options += 1;
        if self.options > OPTIONS_MAX {
            return Outcome::Failed(format!("the client sent more than {OPTIONS_MAX} options"));
        }
        let (option, len) = (be32(&self.pending, 8), be32(&self.pending, 12));
        if len <= OPTION_BYTES_MAX {
            self.state = State::Body { option, len: len as usize };
        } else if option == option::EXPORT_NAME {
            return Outcome::Failed(format!("the client sent an export name of {len} bytes"));
        } else {
            self.state = State::Skip { option, left: len };
        }
        Outcome::NeedMore
    }

    fn on_option(
        &mut self,
        option: u32,
        body: &[u8],
        offer: &dyn Offer,
        out: &mut Vec<u8>,
    ) -> Outcome {
        let empty = body.is_empty();
        match option {
            option::STARTTLS => self.on_start_tls(empty, out),
            option::EXPORT_NAME if self.encryption == Encryption::Required => Outcome::Failed(
                "the client chose an export without TLS, which is required".to_owned(),
            ),
            option if self.encryption == Encryption::Required && option != option::ABORT => {
                refuse(out, option, option_reply::ERR_TLS_REQD, "start TLS first")
            }
            option::EXPORT_NAME => self.on_export_name(body, offer, out),
            option::GO | option::INFO => self.on_info(option, body, offer, out),
            option::ABORT => {
                reply(out, option, option_reply::ACK, &[]);
                Outcome::Closed
            }
            option::LIST | option::STRUCTURED_REPLY if !empty => {
                refuse(out, option, option_reply::ERR_INVALID, "the option takes no data")
            }
            option::LIST => {
                let listed =
                    offer.exports().iter().enumerate().filter(|(index, export)| {
                        export.unavailable.is_none() && offer.sees(*index)
                    });
                for (_, export) in listed {
                    let name = export.name.as_bytes();
                    let len = (name.len() as u32).to_be_bytes();
                    let description = export.description.as_bytes();
                    reply(out, option, option_reply::SERVER, &[&len, name, description]);
                }
                reply(out, option, option_reply::ACK, &[])
            }
            option::STRUCTURED_REPLY => {
                self.terms.structured = true;
                reply(out, option, option_reply::ACK, &[])
            }
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                self.contexts.on_option(option, self.terms.structured, body, offer, out)
            }
            _ => refuse(out, option, option_reply::ERR_UNSUP, "the option is not supported"),
        }
    }

    /// Answers an option whose data were dropped because they were too long. ABORT is obeyed at any length.
    fn on_long_option(&self, option: u32, out: &mut Vec<u8>) -> Outcome {
        match option {
            option::ABORT => {
                reply(out, option, option_reply::ACK, &[]);
                Outcome::Closed
            }
            option if option != option::STARTTLS && self.encryption == Encryption::Required => {
                refuse(out, option, option_reply::ERR_TLS_REQD, "start TLS first")
            }
            _ => refuse(out, option, option_reply::ERR_TOO_BIG, "the option is too long"),
        }
    }

    fn on_start_tls(&mut self, empty: bool, out: &mut Vec<u8>) -> Outcome {
        let (kind, message) = match self.encryption {
            Encryption::Off => (option_reply::ERR_POLICY, "the server was started without TLS"),
            Encryption::Done => (option_reply::ERR_INVALID, "the connection is encrypted already"),
            _ if !empty => (option_reply::ERR_INVALID, "the option takes no data"),
            Encryption::Offered | Encryption::Required => {
                self.encryption = Encryption::Done;
                self.terms = Negotiated::default();
                self.contexts = MetaContexts::default();
                reply(out, option::STARTTLS, option_reply::ACK, &[]);
                return Outcome::Encrypt;
            }
        };
        refuse(out, option::STARTTLS, kind, message)
    }

    /// Answers EXPORT_NAME. The protocol has no error reply for it, so a failure ends the session.
    fn on_export_name(&self, name: &[u8], offer: &dyn Offer, out: &mut Vec<u8>) -> Outcome {
        let index = match find(offer, name) {
            Ok(index) => index,
            Err(message) => return Outcome::Failed(message),
        };
        let export = &offer.exports()[index];
        if export.refuses_clients {
            return Outcome::Failed(export.refusal());
        }
        out.extend(export.size.to_be_bytes());
        out.extend(export.flags_for(self.terms).0.to_be_bytes());
        if !self.no_zeroes {
            out.extend([0; EXPORT_NAME_PADDING_BYTES]);
        }
        self.ready(index, export)
    }

    fn on_info(&self, option: u32, body: &[u8], offer: &dyn Offer, out: &mut Vec<u8>) -> Outcome {
        let Some((name, wanted)) = parse_info(body) else {
            let message = "the option's lengths do not add up";
            return refuse(out, option, option_reply::ERR_INVALID, message);
        };
        let index = match find(offer, name) {
            Ok(index) => index,
            Err(message) => return refuse(out, option, option_reply::ERR_UNKNOWN, &message),
        };
        let export = &offer.exports()[index];
        if export.refuses_clients && option == option::GO {
            // Told, and then ended: the log has a line for it.
            refuse(out, option, option_reply::ERR_POLICY, &export.refusal());
            return Outcome::Failed(export.refusal());
        }
        let mut tell = |kind: u16, parts: [&[u8]; 3]| {
            let [a, b, c] = parts;
            reply(out, option, option_reply::INFO, &[&kind.to_be_bytes(), a, b, c]);
        };
        let flags = export.flags_for(self.terms).0;
        tell(info::EXPORT, [&export.size.to_be_bytes(), &flags.to_be_bytes(), &[]]);
        // Sent unasked, as qemu does; clients ignore information that they do not know.
        let BlockSizes { min, preferred, max } = export.block_sizes;
        let sizes = [min.to_be_bytes(), preferred.to_be_bytes(), max.to_be_bytes()];
        tell(info::BLOCK_SIZE, [&sizes[0], &sizes[1], &sizes[2]]);
        let asked = |kind: u16| wanted.chunks_exact(2).any(|pair| be16(pair, 0) == kind);
        if asked(info::NAME) {
            tell(info::NAME, [export.name.as_bytes(), &[], &[]]);
        }
        if asked(info::DESCRIPTION) && !export.description.is_empty() {
            tell(info::DESCRIPTION, [export.description.as_bytes(), &[], &[]]);
        }
        let answered = reply(out, option, option_reply::ACK, &[]);
        if option == option::GO {
            return self.ready(index, export);
        }
        answered
    }

    fn ready(&self, index: usize, export: &ExportInfo) -> Outcome {
        let base_allocation = self.contexts.is_set_for(export);
        Outcome::Ready { export: index, terms: Negotiated { base_allocation, ..self.terms } }
    }
}

/// Splits the data of INFO and GO: a name with its length before it, then a count and that many 16-bit codes.
fn parse_info(body: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = body.split_first_chunk::<4>()?;
    let (name, rest) = rest.split_at_checked(u32::from_be_bytes(*len) as usize)?;
    let (count, wanted) = rest.split_first_chunk::<2>()?;
    let fits = wanted.len() == 2 * usize::from(u16::from_be_bytes(*count));
    (fits && name.len() <= STRING_BYTES_MAX).then_some((name, wanted))
}

pub(super) fn refuse(out: &mut Vec<u8>, option: u32, kind: u32, message: &str) -> Outcome {
    reply(out, option, kind, &[message.as_bytes()])
}

/// Appends one option reply.
pub(super) fn reply(out: &mut Vec<u8>, option: u32, kind: u32, parts: &[&[u8]]) -> Outcome {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    out.extend(OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend(option.to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend((len as u32).to_be_bytes());
    for part in parts {
        out.extend_from_slice(part);
    }
    Outcome::Reply
}

#[cfg(test)]
#[path = "handshake_tests.rs"]
mod tests;
