//! The live part of a hand-over: what every moment of serving changes. It is complete, since the old server is paused.
//!
//! Connections with what is unfinished of them, the contents of the caches, and volumes whose device failed a flush.

use headworks_core::{Ioprio, VolumeId};
use headworks_nbd::transmission::{Refusal, Request};
use headworks_nbd::wire::{Command, CommandFlags, NbdError, REQUEST_BYTES, RequestHeader};
use headworks_nbd::{Negotiated, TransmissionFlags};
use serde_json::{Value, json};

use super::disk::ToldExport;
use super::record::{Handover, Reader, Writer, fitting, list, number, text, truth, wrong};
use crate::clients::nbd::connection::{HandedConnection, OpenWrite};
use crate::reactor::messages::hand_over::PausedShard;
use headworks_front::outgoing::UnsentPiece;

/// What a new process takes over of a paused one.
#[derive(Debug, Default)]
pub(crate) struct Live {
    /// Connections, each with what its client was told of its export.
    pub connections: Vec<(ToldExport, HandedConnection)>,
    /// Contents of the caches, by shard.
    pub contents: Vec<Option<Vec<u64>>>,
    /// Volumes whose flushes fail until an operator acknowledges it.
    pub suspect: Vec<VolumeId>,
}

/// The hand-over of paused shards, in their order.
pub(super) fn write(shards: Vec<PausedShard>) -> Handover {
    let mut writer = Writer::default();
    let (mut connections, mut open_writes) = (Vec::new(), Vec::new());
    let (mut caches, mut suspect) = (Vec::new(), Vec::new());
    for shard in shards {
        for (told, handed) in shard.connections {
            // A process before this version would take the rest of a payload for requests: it does not know the list, and closes them.
            let list = if handed.open.is_some() { &mut open_writes } else { &mut connections };
            list.push(write_connection(&told, handed, &mut writer));
        }
        caches.push(match shard.contents {
            Some(words) => {
                let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                writer.bytes(&bytes)
            }
            None => Value::Null,
        });
        suspect.extend(shard.suspect.iter().map(|volume| volume.0));
    }
    writer.finish(&json!({
        "connections": connections,
        "open_writes": open_writes,
        "caches": caches,
        "suspect": suspect,
    }))
}

fn write_connection(told: &ToldExport, handed: HandedConnection, writer: &mut Writer) -> Value {
    let HandedConnection {
        socket,
        id,
        peer,
        listener,
        terms,
        ioprio,
        unparsed,
        skip,
        open,
        unsent,
        replies,
    } = handed;
    let skip = skip.map(|(bytes, Refusal { cookie, in_chunks, error })| {
        json!({ "bytes": bytes, "cookie": cookie, "in_chunks": in_chunks, "error": error.code() })
    });
    let open = open.map(|OpenWrite { request, given, before }| {
        let before: Vec<_> = before.iter().flat_map(Request::header).collect();
        let (header, before) = (writer.bytes(&request.header()), writer.bytes(&before));
        json!({ "header": header, "given": given, "before": before })
    });
    let unsent: Vec<_> = unsent
        .iter()
        .map(|piece| match piece {
            UnsentPiece::Bytes(bytes) => json!({ "bytes": writer.bytes(bytes) }),
            UnsentPiece::Zeros(len) => json!({ "zeros": len }),
            UnsentPiece::Dropped { offset, len } => json!({ "offset": offset, "len": len }),
        })
        .collect();
    json!({
        "export": told.name,
        "volume": told.volume.0,
        "start": told.start,
        "size": told.size,
        "block_size": told.block_size,
        "flags": told.flags.0,
        "id": id,
        "peer": peer,
        "listener": listener,
        "structured": terms.structured,
        "base_allocation": terms.base_allocation,
        "ioprio": ioprio.map(Ioprio::code),
        "unparsed": writer.bytes(&unparsed),
        "skip": skip,
        "open": open,
        "unsent": unsent,
        "replies": replies,
        "descriptor": writer.descriptor(socket),
    })
}

impl Live {
    /// Reads what another process hands over.
    ///
    /// # Errors
    /// A sentence: it is of another version.
    pub fn read(handover: Handover) -> Result<Self, String> {
        let (head, mut reader) = Reader::open(handover)?;
        let mut live = Self::default();
        // A process before this version has none of the second kind.
        let open = head.get("open_writes").and_then(Value::as_array);
        for entry in list(&head, "connections")?.iter().chain(open.into_iter().flatten()) {
            live.connections.push((read_told(entry)?, read_connection(entry, &mut reader)?));
        }
        for cache in list(&head, "caches")? {
            live.contents.push(match cache {
                Value::Null => None,
                reference => {
                    let words = reader.bytes(reference)?.as_chunks().0;
                    Some(words.iter().map(|word| u64::from_le_bytes(*word)).collect())
                }
            });
        }
        for volume in list(&head, "suspect")? {
            let id = volume.as_u64().and_then(|id| u16::try_from(id).ok());
            live.suspect.extend(id.map(VolumeId));
        }
        Ok(live)
    }
}

fn read_told(entry: &Value) -> Result<ToldExport, String> {
    Ok(ToldExport {
        name: text(entry, "export")?.to_owned(),
        volume: VolumeId(fitting(entry, "volume")?),
        // A process before this version has none: its exports are whole images.
        start: entry.get("start").and_then(Value::as_u64).unwrap_or(0),
        size: number(entry, "size")?,
        block_size: fitting(entry, "block_size")?,
        flags: TransmissionFlags(fitting(entry, "flags")?),
    })
}

fn read_connection(entry: &Value, reader: &mut Reader) -> Result<HandedConnection, String> {
    let ioprio = entry.get("ioprio").and_then(Value::as_u64);
    let ioprio = ioprio.and_then(|code| Ioprio::from_code(u8::try_from(code).ok()?));
    let skip = match entry.get("skip").filter(|skip| !skip.is_null()) {
        None => None,
        Some(skip) => {
            let error = NbdError::from_code(fitting(skip, "error")?);
            let (cookie, in_chunks) = (number(skip, "cookie")?, truth(skip, "in_chunks")?);
            Some((fitting(skip, "bytes")?, Refusal { cookie, in_chunks, error }))
        }
    };
    let open = match entry.get("open").filter(|open| !open.is_null()) {
        None => None,
        Some(open) => {
            let request = reader.bytes(&open["header"])?.first_chunk().and_then(request_of);
            let given = fitting(open, "given")?;
            let (before, _) = reader.bytes(&open["before"])?.as_chunks();
            let before = before.iter().map(request_of).collect::<Option<_>>();
            let is_open = |request: &Request| given > 0 && given < request.len;
            let (Some(request), Some(before)) = (request.filter(is_open), before) else {
                return Err(wrong("a write that is none"));
            };
            Some(OpenWrite { request, given, before })
        }
    };
    let mut unsent = Vec::new();
    for piece in list(entry, "unsent")? {
        unsent.push(if let Some(bytes) = piece.get("bytes") {
            UnsentPiece::Bytes(reader.bytes(bytes)?.to_vec())
        } else if piece.get("zeros").is_some() {
            UnsentPiece::Zeros(fitting(piece, "zeros")?)
        } else {
            UnsentPiece::Dropped { offset: number(piece, "offset")?, len: fitting(piece, "len")? }
        });
    }
    Ok(HandedConnection {
        id: fitting(entry, "id")?,
        peer: text(entry, "peer")?.to_owned(),
        // A process before this version has none.
        listener: entry.get("listener").and_then(Value::as_str).map(str::to_owned),
        terms: Negotiated {
            structured: truth(entry, "structured")?,
            base_allocation: truth(entry, "base_allocation")?,
        },
        ioprio,
        unparsed: reader.bytes(&entry["unparsed"])?.to_vec(),
        skip,
        open,
        unsent,
        replies: fitting(entry, "replies")?,
        socket: reader.descriptor(&entry["descriptor"])?,
    })
}

/// The request of a header; none if it is no header.
fn request_of(header: &[u8; REQUEST_BYTES]) -> Option<Request> {
    let RequestHeader { flags, command, cookie, offset, len } =
        RequestHeader::decode(header).ok()?;
    let command = Command::from_code(command)?;
    Some(Request { cookie, offset, len, command, flags: CommandFlags(flags) })
}
