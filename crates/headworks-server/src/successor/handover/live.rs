//! The live part of a hand-over: what every moment of serving changes. It is complete, since the old server is paused.
//!
//! Connections and files of FUSE with what is unfinished of them, the contents of the caches, and volumes whose device failed a flush.

use headworks_core::{Ioprio, VolumeId};
use headworks_fuse::Time;
use headworks_nbd::transmission::{Refusal, Request};
use headworks_nbd::wire::{Command, CommandFlags, NbdError, REQUEST_BYTES, RequestHeader};
use headworks_nbd::{Negotiated, TransmissionFlags};
use serde_json::{Value, json};
use std::os::unix::ffi::OsStrExt;

use super::disk::ToldExport;
use super::record::{Handover, Reader, Writer, fitting, list, number, text, truth, wrong};
use super::standing::read_path;
use crate::clients::files::hand_over::{AgreedTerms, HandedFile, LongKind, LongRequest};
use crate::clients::files::{FilePlace, WRITE_MAX};
use crate::clients::nbd::connection::{HandedConnection, OpenWrite};
use crate::reactor::messages::hand_over::PausedShard;
use headworks_front::outgoing::UnsentPiece;

/// What a new process takes over of a paused one.
#[derive(Debug, Default)]
pub(crate) struct Live {
    /// Connections, each with what its client was told of its export.
    pub connections: Vec<(ToldExport, HandedConnection)>,
    /// Files of FUSE, each with what its programs know of its export.
    pub files: Vec<(ToldExport, HandedFile)>,
    /// All files that are mounted: those of `files`, and others that no shard serves.
    pub mounted: Vec<FilePlace>,
    /// Contents of the caches, by shard.
    pub contents: Vec<Option<Vec<u64>>>,
    /// Volumes whose flushes fail until an operator acknowledges it.
    pub suspect: Vec<VolumeId>,
}

/// The hand-over of paused shards, in their order, and of the files that are mounted.
pub(super) fn write(shards: Vec<PausedShard>, mounted: &[FilePlace]) -> Handover {
    let mut writer = Writer::default();
    let (mut connections, mut open_writes) = (Vec::new(), Vec::new());
    let (mut files, mut caches, mut suspect) = (Vec::new(), Vec::new(), Vec::new());
    for shard in shards {
        for (told, handed) in shard.connections {
            // A process before this version would take the rest of a payload for requests: it does not know the list, and closes them.
            let list = if handed.open.is_some() { &mut open_writes } else { &mut connections };
            list.push(write_connection(&told, handed, &mut writer));
        }
        for (told, handed) in shard.files {
            files.push(write_file(&told, handed, &mut writer));
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
        "files": files,
        "mounted": mounted.iter().map(write_place).collect::<Vec<_>>(),
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
    let own = json!({
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
    });
    with_told(told, own)
}

/// A client with what it was told of its export.
fn with_told(told: &ToldExport, client: Value) -> Value {
    let told = json!({
        "export": told.name,
        "volume": told.volume.0,
        "start": told.start,
        "size": told.size,
        "block_size": told.block_size,
        "flags": told.flags.0,
    });
    match (told, client) {
        (Value::Object(mut told), Value::Object(client)) => {
            told.extend(client);
            Value::Object(told)
        }
        (_, client) => client,
    }
}

fn write_place(place: &FilePlace) -> Value {
    json!({ "directory": place.directory.as_os_str().as_bytes(), "name": place.name })
}

fn write_file(told: &ToldExport, handed: HandedFile, writer: &mut Writer) -> Value {
    let HandedFile { device, id, place, ioprio, opens, modified, terms, long } = handed;
    let long: Vec<_> = long
        .iter()
        .map(|&LongRequest { cookie, kind, next, end }| {
            let name = LongKind::NAMES.iter().find(|(one, _)| *one == kind).map(|(_, name)| name);
            json!({ "cookie": cookie, "kind": name, "next": next, "end": end })
        })
        .collect();
    let terms = terms.map(|AgreedTerms { minor, flags, write_max }| {
        json!({ "minor": minor, "flags": flags, "write_max": write_max })
    });
    let own = json!({
        "id": id,
        "place": write_place(&place),
        "ioprio": ioprio.map(Ioprio::code),
        "opens": opens,
        "modified": [modified.seconds, modified.nanoseconds],
        "terms": terms,
        "long": long,
        "descriptor": writer.descriptor(device),
    });
    with_told(told, own)
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
        // A process before this version hands no files over.
        let entries = |name| head.get(name).and_then(Value::as_array).into_iter().flatten();
        for entry in entries("files") {
            let told = read_told(entry)?;
            let file = read_file(entry, &told, &mut reader)?;
            live.files.push((told, file));
        }
        for entry in entries("mounted") {
            live.mounted.push(read_place(entry)?);
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

fn read_ioprio(entry: &Value) -> Option<Ioprio> {
    let code = entry.get("ioprio").and_then(Value::as_u64)?;
    Ioprio::from_code(u8::try_from(code).ok()?)
}

fn read_place(entry: &Value) -> Result<FilePlace, String> {
    let directory = read_path(&entry["directory"]).ok_or_else(|| wrong("no path of a file"))?;
    Ok(FilePlace { directory, name: text(entry, "name")?.to_owned() })
}

fn read_file(entry: &Value, told: &ToldExport, reader: &mut Reader) -> Result<HandedFile, String> {
    let terms = match entry.get("terms").filter(|terms| !terms.is_null()) {
        None => None,
        Some(terms) => {
            let write_max = fitting(terms, "write_max")?;
            if write_max > WRITE_MAX {
                return Err(wrong("a file with larger writes than this version takes"));
            }
            let (minor, flags) = (fitting(terms, "minor")?, number(terms, "flags")?);
            Some(AgreedTerms { minor, flags, write_max })
        }
    };
    let mut long = Vec::new();
    for one in list(entry, "long")? {
        let name = text(one, "kind")?;
        let kind = LongKind::NAMES.iter().find(|(_, other)| *other == name);
        let kind = kind.map(|(kind, _)| *kind).ok_or_else(|| wrong("an unknown request"))?;
        let (next, end) = (number(one, "next")?, number(one, "end")?);
        if next >= end || end > told.size {
            return Err(wrong("a request without an end"));
        }
        long.push(LongRequest { cookie: number(one, "cookie")?, kind, next, end });
    }
    let modified = list(entry, "modified")?;
    let modified = modified.first().and_then(Value::as_i64).zip(modified.get(1));
    let modified = modified.and_then(|(seconds, nanoseconds)| {
        let nanoseconds = u32::try_from(nanoseconds.as_u64()?).ok()?;
        Some(Time { seconds, nanoseconds })
    });
    Ok(HandedFile {
        id: fitting(entry, "id")?,
        place: read_place(&entry["place"])?,
        ioprio: read_ioprio(entry),
        opens: number(entry, "opens")?,
        modified: modified.ok_or_else(|| wrong("no time of a file"))?,
        terms,
        long,
        device: reader.descriptor(&entry["descriptor"])?,
    })
}

fn read_connection(entry: &Value, reader: &mut Reader) -> Result<HandedConnection, String> {
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
        ioprio: read_ioprio(entry),
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

#[cfg(test)]
mod tests {
    use super::*;
    use headworks_core::ShardId;

    fn file(long: Vec<LongRequest>, write_max: u32) -> (ToldExport, HandedFile) {
        let told = ToldExport {
            name: "disk".to_owned(),
            volume: VolumeId(3),
            start: 512,
            size: 1 << 20,
            block_size: 512,
            flags: TransmissionFlags::READ_ONLY,
        };
        let directory = read_path(&json!(b"/mnt/\xff")).unwrap();
        let handed = HandedFile {
            device: std::fs::File::open("/dev/null").unwrap().into(),
            id: 9,
            place: FilePlace { directory, name: "a%2Fb".to_owned() },
            ioprio: Ioprio::from_code(11),
            opens: 2,
            modified: Time { seconds: -1, nanoseconds: 5 },
            terms: Some(AgreedTerms { minor: 40, flags: 1 << 36, write_max }),
            long,
        };
        (told, handed)
    }

    fn record(file: (ToldExport, HandedFile)) -> Handover {
        let mounted =
            [file.1.place.clone(), FilePlace { name: "other".into(), ..file.1.place.clone() }];
        let shard = PausedShard {
            shard: ShardId(0),
            connections: Vec::new(),
            files: vec![file],
            stay: 0,
            contents: None,
            suspect: Vec::new(),
        };
        write(vec![shard], &mounted)
    }

    #[test]
    fn files_come_as_they_went() {
        let long = LongRequest { cookie: 7, kind: LongKind::Hole, next: 4096, end: 1 << 20 };
        let all = LongKind::NAMES.map(|(kind, _)| LongRequest { kind, ..long });
        let live = Live::read(record(file(all.to_vec(), WRITE_MAX))).unwrap();
        let (told, found) = &live.files[0];
        let (expected, handed) = file(all.to_vec(), WRITE_MAX);
        assert_eq!((told, &found.long[..]), (&expected, &all[..]));
        assert_eq!((found.id, found.opens, found.ioprio), (9, 2, handed.ioprio));
        assert_eq!((&found.place, found.modified), (&handed.place, handed.modified));
        assert_eq!(found.terms, handed.terms);
        let names: Vec<_> = live.mounted.iter().map(|place| place.name.as_str()).collect();
        assert_eq!(names, ["a%2Fb", "other"]);
    }

    #[test]
    fn files_that_this_version_cannot_serve_are_refused() {
        let refused = |file| Live::read(record(file)).unwrap_err();
        assert!(refused(file(Vec::new(), WRITE_MAX + 1)).contains("larger writes"));
        let long = LongRequest { cookie: 7, kind: LongKind::Punch, next: 8, end: 8 };
        for end in [8, (1 << 20) + 1] {
            let long = LongRequest { end, ..long };
            assert!(refused(file(vec![long], WRITE_MAX)).contains("without an end"));
        }
        let mut gone = record(file(Vec::new(), WRITE_MAX));
        gone.descriptors.clear();
        assert!(Live::read(gone).unwrap_err().contains("descriptor"));
        // A process before this version knows no files.
        let mut old = record(file(Vec::new(), WRITE_MAX));
        for name in [&b"\"files\""[..], b"\"mounted\""] {
            let at = old.record.windows(name.len()).position(|bytes| bytes == name).unwrap();
            old.record[at + 1] = b'x';
        }
        let live = Live::read(old).unwrap();
        assert!(live.files.is_empty() && live.mounted.is_empty());
    }
}
