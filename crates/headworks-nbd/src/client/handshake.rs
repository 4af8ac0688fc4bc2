//! The client's side of option negotiation.
//!
//! ```text
//!   OptionNegotiation::open, start --> ask_structured, list, info (any number, any order) --> go --> (socket, Export)
//!                                                                             \--> abort
//! ```
//!
//! A server without GO (older than 2017) is asked by EXPORT_NAME, which reports size and flags only.
//!
//! Rule: a server takes neither time nor memory. Connecting and all options together have one deadline ([`Socket`]). Each reply has at most
//! `REPLY_BYTES_MAX`, each option a number of replies that its question allows, and what was not asked for ends the connection before it is
//! kept: another context, a text over the protocol's limit.

use std::io::{Read, Write};
use std::time::Duration;

use super::{ClientError, Socket, Uri, protocol};
use crate::meta::BASE_ALLOCATION;
use crate::tls::Session;
use crate::wire::{
    GREETING_BYTES, INIT_MAGIC, OPTION_MAGIC, OPTION_REPLY_HEADER_BYTES, OPTION_REPLY_MAGIC,
    STRING_BYTES_MAX, TransmissionFlags, be16, be32, be64, handshake_flags, info, option,
    option_reply,
};
use crate::{BlockSizes, wire};

/// Longest option reply that is accepted, in bytes: two of the protocol's strings, and what comes before them.
const REPLY_BYTES_MAX: u32 = 2 * STRING_BYTES_MAX as u32 + 64;
/// Longest list of exports that is accepted, and its bytes.
const LIST_MAX: (usize, usize) = (100_000, 64 << 20);
/// Most metadata contexts of an export.
const CONTEXTS_MAX: usize = 256;
/// Most pieces of information about an export: the protocol has four kinds, and unknown ones are ignored.
const INFO_MAX: u32 = 32;
/// Characters of a server's message that are shown.
const MESSAGE_MAX: usize = 256;

/// A server's description of an export.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Export {
    /// Canonical name if the server reports it, else the requested one.
    pub name: String,
    /// Description in one sentence; may be empty.
    pub description: String,
    /// Size of the export in bytes.
    pub size: u64,
    /// Transmission flags of the export.
    pub flags: TransmissionFlags,
    /// Block sizes, if the server reports them.
    pub block_sizes: Option<BlockSizes>,
    /// Reads are answered with structured replies.
    pub structured: bool,
    /// Version and cipher of TLS; none in the clear.
    pub tls: Option<String>,
    /// Metadata contexts, if they were queried.
    pub contexts: Vec<String>,
    /// Number of `base:allocation`, if it was chosen.
    pub allocation: Option<u32>,
}

/// One entry of a server's list of exports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// Name of the export.
    pub name: String,
    /// Description in one sentence; may be empty.
    pub description: String,
}

/// A connection in option negotiation.
#[derive(Debug)]
pub struct OptionNegotiation {
    socket: Socket,
    structured: bool,
    no_zeroes: bool,
    allocation: Option<u32>,
}

impl OptionNegotiation {
    /// Connects to the server of `uri`, through TLS if it demands that. This and all options wait for at most `limit` together; then each
    /// wait of the connection has that limit.
    pub fn open(uri: &Uri, limit: Duration) -> Result<Self, ClientError> {
        // Errors of certificates are reported before a connection is opened.
        let session = match &uri.tls {
            Some(trust) => Some(trust.session(uri.host()).map_err(ClientError::Usage)?),
            None => None,
        };
        let negotiation = Self::start(Socket::connect(&uri.target, limit)?)?;
        match session {
            Some(session) => negotiation.start_tls(session),
            None => Ok(negotiation),
        }
    }

    /// Gives the options that follow the whole limit again.
    pub fn renew_limit(&mut self) {
        self.socket.renew_deadline();
    }

    fn start_tls(mut self, session: Session) -> Result<Self, ClientError> {
        self.ask(option::STARTTLS, &[])?;
        match self.answer(option::STARTTLS)? {
            (option_reply::ACK, _) => Ok(Self { socket: self.socket.encrypt(session)?, ..self }),
            (kind, data) => Err(refused(kind, &data)),
        }
    }

    /// Reads the server's greeting and answers it.
    pub fn start(mut socket: Socket) -> Result<Self, ClientError> {
        let mut greeting = [0; GREETING_BYTES];
        socket.read_exact(&mut greeting)?;
        if be64(&greeting, 0) != INIT_MAGIC {
            return Err(protocol("it does not send the greeting of an NBD server"));
        }
        let flags = be16(&greeting, 16);
        if be64(&greeting, 8) != OPTION_MAGIC || flags & handshake_flags::FIXED_NEWSTYLE == 0 {
            return Err(protocol("it supports only the oldstyle handshake"));
        }
        let ours = flags & (handshake_flags::FIXED_NEWSTYLE | handshake_flags::NO_ZEROES);
        socket.write_all(&u32::from(ours).to_be_bytes())?;
        let no_zeroes = ours & handshake_flags::NO_ZEROES != 0;
        Ok(Self { socket, structured: false, no_zeroes, allocation: None })
    }

    /// Negotiates structured replies; returns true when the server agrees.
    pub fn ask_structured(&mut self) -> Result<bool, ClientError> {
        self.ask(option::STRUCTURED_REPLY, &[])?;
        self.structured = match self.answer(option::STRUCTURED_REPLY)? {
            (option_reply::ACK, _) => true,
            (kind, _) if kind & option_reply::ERROR_BIT != 0 => false,
            (kind, _) => return Err(unexpected(kind)),
        };
        Ok(self.structured)
    }

    /// Returns true when structured replies were negotiated.
    #[must_use]
    pub fn is_structured(&self) -> bool {
        self.structured
    }

    /// Lists the metadata contexts of an export; empty if the server has none.
    pub fn contexts(&mut self, name: &str) -> Result<Vec<String>, ClientError> {
        let contexts = self.ask_contexts(option::LIST_META_CONTEXT, name, &[])?;
        Ok(contexts.into_iter().map(|(_, name)| name).collect())
    }

    /// Sets `base:allocation` for the export that is opened next; returns true when the server has it.
    pub fn ask_allocation(&mut self, name: &str) -> Result<bool, ClientError> {
        let chosen = self.ask_contexts(option::SET_META_CONTEXT, name, &[BASE_ALLOCATION])?;
        let ours = chosen.into_iter().find(|(_, name)| name == BASE_ALLOCATION);
        self.allocation = ours.map(|(id, _)| id);
        Ok(self.allocation.is_some())
    }

    fn ask_contexts(
        &mut self,
        code: u32,
        name: &str,
        queries: &[&str],
    ) -> Result<Vec<(u32, String)>, ClientError> {
        // Contexts need structured replies.
        if !self.structured {
            return Ok(Vec::new());
        }
        let mut data = (name.len() as u32).to_be_bytes().to_vec();
        data.extend(name.as_bytes());
        data.extend((queries.len() as u32).to_be_bytes());
        for query in queries {
            data.extend((query.len() as u32).to_be_bytes());
            data.extend(query.as_bytes());
        }
        self.ask(code, &data)?;
        let most = if queries.is_empty() { CONTEXTS_MAX } else { queries.len() };
        let mut contexts: Vec<(u32, String)> = Vec::new();
        loop {
            let (kind, data) = self.answer(code)?;
            match kind {
                option_reply::ACK => return Ok(contexts),
                option_reply::META_CONTEXT if data.len() >= 4 => {
                    if contexts.len() == most {
                        return Err(protocol(format!("it sends more than {most} contexts")));
                    }
                    let name = text(&data[4..])?;
                    if !queries.is_empty() && !queries.contains(&name.as_str()) {
                        return Err(protocol("it sends a context that was not requested"));
                    }
                    contexts.push((be32(&data, 0), name));
                }
                // An unknown export is reported when it is opened.
                _ if kind & option_reply::ERROR_BIT != 0 => return Ok(Vec::new()),
                _ => return Err(unexpected(kind)),
            }
        }
    }

    /// Lists the exports of the server.
    pub fn list(&mut self) -> Result<Vec<Listed>, ClientError> {
        self.ask(option::LIST, &[])?;
        let (mut exports, mut bytes) = (Vec::new(), 0);
        loop {
            let (kind, data) = self.answer(option::LIST)?;
            bytes += data.len();
            match kind {
                option_reply::ACK => return Ok(exports),
                option_reply::SERVER if exports.len() == LIST_MAX.0 || bytes > LIST_MAX.1 => {
                    return Err(protocol("its list of exports does not end"));
                }
                option_reply::SERVER => exports.push(listed(&data)?),
                _ => return Err(refused(kind, &data)),
            }
        }
    }

    /// Queries an export without opening it.
    pub fn info(&mut self, name: &str) -> Result<Export, ClientError> {
        self.ask_info(option::INFO, name)?.map_err(|(kind, data)| refused(kind, &data))
    }

    /// Opens an export; the socket is then in the transmission phase.
    pub fn go(mut self, name: &str) -> Result<(Socket, Export), ClientError> {
        match self.ask_info(option::GO, name)? {
            Ok(export) => {
                self.socket.end_negotiation()?;
                let allocation = self.allocation;
                Ok((self.socket, Export { allocation, ..export }))
            }
            Err((option_reply::ERR_UNSUP, _)) => self.open_by_export_name(name),
            Err((kind, data)) => {
                let error = refused(kind, &data);
                self.abort().and(Err(error))
            }
        }
    }

    /// Ends the session in an orderly way.
    pub fn abort(mut self) -> Result<(), ClientError> {
        self.ask(option::ABORT, &[])?;
        // Servers may close without the answer that the protocol wants.
        let _ = self.answer(option::ABORT);
        Ok(())
    }

    fn open_by_export_name(mut self, name: &str) -> Result<(Socket, Export), ClientError> {
        self.ask(option::EXPORT_NAME, name.as_bytes())?;
        let mut head = [0; 10];
        self.socket.read_exact(&mut head).map_err(|_| {
            ClientError::Refused(format!("it closed the connection over export {name:?}"))
        })?;
        if !self.no_zeroes {
            self.socket.read_exact(&mut [0; wire::EXPORT_NAME_PADDING_BYTES])?;
        }
        self.socket.end_negotiation()?;
        let export = Export {
            name: name.into(),
            size: be64(&head, 0),
            flags: TransmissionFlags(be16(&head, 8)),
            structured: self.structured,
            tls: self.socket.tls(),
            ..Export::default()
        };
        Ok((self.socket, export))
    }

    /// Sends INFO or GO; returns the export, or the code and text of the error.
    #[allow(clippy::type_complexity)] // Said once, here.
    fn ask_info(
        &mut self,
        code: u32,
        name: &str,
    ) -> Result<Result<Export, (u32, Vec<u8>)>, ClientError> {
        let wanted = [info::NAME, info::DESCRIPTION, info::BLOCK_SIZE];
        let mut data = (name.len() as u32).to_be_bytes().to_vec();
        data.extend(name.bytes());
        data.extend((wanted.len() as u16).to_be_bytes());
        data.extend(wanted.iter().flat_map(|kind| kind.to_be_bytes()));
        self.ask(code, &data)?;
        let (structured, tls) = (self.structured, self.socket.tls());
        let mut export = Export { name: name.into(), structured, tls, ..Export::default() };
        let (mut sized, mut replies) = (false, 0);
        loop {
            let (kind, data) = self.answer(code)?;
            replies += 1;
            match kind {
                option_reply::INFO if replies > INFO_MAX => {
                    return Err(protocol("its information about the export does not end"));
                }
                option_reply::INFO => sized |= learn(&mut export, &data)?,
                option_reply::ACK if sized => return Ok(Ok(export)),
                option_reply::ACK => {
                    return Err(protocol("it did not send the size of the export"));
                }
                _ if kind & option_reply::ERROR_BIT != 0 => return Ok(Err((kind, data))),
                _ => return Err(unexpected(kind)),
            }
        }
    }

    fn ask(&mut self, code: u32, data: &[u8]) -> Result<(), ClientError> {
        let mut bytes = OPTION_MAGIC.to_be_bytes().to_vec();
        bytes.extend(code.to_be_bytes());
        bytes.extend((data.len() as u32).to_be_bytes());
        bytes.extend(data);
        Ok(self.socket.write_all(&bytes)?)
    }

    /// Receives one reply to the option `code`: its type and data.
    fn answer(&mut self, code: u32) -> Result<(u32, Vec<u8>), ClientError> {
        let mut header = [0; OPTION_REPLY_HEADER_BYTES];
        self.socket.read_exact(&mut header)?;
        let (kind, len) = (be32(&header, 12), be32(&header, 16));
        if be64(&header, 0) != OPTION_REPLY_MAGIC || be32(&header, 8) != code {
            return Err(protocol("it replied to another option"));
        }
        if len > REPLY_BYTES_MAX {
            return Err(protocol(format!("it answers an option with {len} bytes")));
        }
        let mut data = vec![0; len as usize];
        self.socket.read_exact(&mut data)?;
        Ok((kind, data))
    }
}

/// Decodes one piece of information; returns true when it was the size.
fn learn(export: &mut Export, data: &[u8]) -> Result<bool, ClientError> {
    let Some((kind, rest)) = data.split_first_chunk::<2>() else {
        return Err(protocol("it sends information without a kind"));
    };
    match (u16::from_be_bytes(*kind), rest.len()) {
        (info::EXPORT, 10) => {
            export.size = be64(rest, 0);
            export.flags = TransmissionFlags(be16(rest, 8));
            return Ok(true);
        }
        (info::BLOCK_SIZE, 12) => {
            export.block_sizes = Some(BlockSizes {
                min: be32(rest, 0),
                preferred: be32(rest, 4),
                max: be32(rest, 8),
            });
        }
        (info::NAME, _) => export.name = text(rest)?,
        (info::DESCRIPTION, _) => export.description = text(rest)?,
        (info::EXPORT | info::BLOCK_SIZE, len) => {
            return Err(protocol(format!("it sends information of {len} bytes")));
        }
        // The protocol demands that unknown information is ignored.
        _ => {}
    }
    Ok(false)
}

fn listed(data: &[u8]) -> Result<Listed, ClientError> {
    let named = data
        .split_first_chunk::<4>()
        .and_then(|(len, rest)| rest.split_at_checked(u32::from_be_bytes(*len) as usize));
    let (name, description) =
        named.ok_or_else(|| protocol("it lists a name longer than its reply"))?;
    Ok(Listed { name: text(name)?, description: text(description)? })
}

/// Decodes a string of the protocol.
fn text(bytes: &[u8]) -> Result<String, ClientError> {
    if bytes.len() > STRING_BYTES_MAX {
        return Err(protocol(format!("it sends a text of {} bytes", bytes.len())));
    }
    Ok(String::from_utf8_lossy(bytes).into_owned())
}

fn unexpected(kind: u32) -> ClientError {
    protocol(format!("it answers an option with kind {kind:#x}"))
}

/// Formats an error reply, with the server's message if it has one.
fn refused(kind: u32, data: &[u8]) -> ClientError {
    // Control characters stay out of logs and terminals.
    let said: String = String::from_utf8_lossy(data).chars().take(MESSAGE_MAX).collect();
    let said = said.replace(char::is_control, " ");
    let meaning = match kind {
        option_reply::ERR_UNSUP => "it does not know the option",
        option_reply::ERR_POLICY => "its policy forbids the option",
        option_reply::ERR_INVALID => "it rejects the option as malformed",
        option_reply::ERR_TLS_REQD => "it requires TLS: use nbds or nbds+unix",
        option_reply::ERR_UNKNOWN => "it has no such export",
        option_reply::ERR_TOO_BIG => "it rejects the option as too long",
        _ if kind & option_reply::ERROR_BIT != 0 => "it gives no reason",
        _ => return unexpected(kind),
    };
    let said = if said.is_empty() { meaning.to_owned() } else { format!("{meaning} ({})", said) };
    ClientError::Refused(said)
}
