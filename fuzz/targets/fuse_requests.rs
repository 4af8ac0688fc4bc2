//! What may be read from the device of a FUSE mount: heads, bodies, names and counts, whole and cut.
//!
//! The input is a list of requests: operation, length, body; operation 255 is a head as it comes. A request that is let through has what its head
//! says, names that are single components, and data within its bytes; one that is cut is refused with the number to answer, if that came.
//! Fields that a later kernel appends change nothing but INIT, which looks for them. Each answer says its length and repeats the number.
#![cfg_attr(fuzzing, no_main)]

use headworks_fuse::{
    Attributes, FileSystemSize, Malformed, NAME_MAX, Operation, Reply, Request, WRITE_MAX,
    head_of_data, parse,
};

const HEAD: usize = 40;
const REQUESTS_MAX: usize = 64;
const RAW: u8 = 255;

fn request_of(operation: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = ((HEAD + body.len()) as u32).to_le_bytes().to_vec();
    bytes.extend(u32::from(operation).to_le_bytes());
    for word in [7_u64, 9] {
        bytes.extend(word.to_le_bytes());
    }
    for word in [1000_u32, 100, 4711, 0] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(body);
    bytes
}

fn check_name(name: &[u8]) {
    assert!(!name.is_empty() && name.len() <= NAME_MAX, "a name has a length");
    assert!(!name.contains(&b'/') && !name.contains(&0), "it is one component");
    assert!(name != b"." && name != b"..", "it is below its directory");
}

/// Checks what a request asks for, of which `body` are the bytes.
fn check(request: &Request<'_>, body: &[u8]) {
    match &request.operation {
        Operation::Lookup { name }
        | Operation::MakeNode { name, .. }
        | Operation::MakeDirectory { name, .. }
        | Operation::Unlink { name }
        | Operation::RemoveDirectory { name }
        | Operation::Link { name, .. }
        | Operation::Create { name, .. } => check_name(name),
        Operation::Rename { name, new_name, .. } => {
            check_name(name);
            check_name(new_name);
        }
        Operation::Symlink { name, target } => {
            check_name(name);
            assert!(target.len() < 4096 && !target.contains(&0));
        }
        Operation::Write { data, .. } => {
            let size = u32::from_le_bytes(body[16..20].try_into().expect("it has a size"));
            assert_eq!(*data, &body[40..40 + size as usize], "data are those that it announces");
        }
        Operation::BatchForget(forgets) => {
            let count = u32::from_le_bytes(body[..4].try_into().expect("it has a count"));
            assert_eq!(forgets.iter().count(), count as usize);
            assert!(8 + 16 * count as usize <= body.len());
        }
        Operation::SetAttributes(change) => {
            assert!(change.mode.is_none_or(|mode| mode <= 0o7777), "a type is not changed");
        }
        _ => {}
    }
}

/// Answers a request, as something of its kind is answered.
fn answer(reply: &mut Reply, request: &Request<'_>, name: &[u8]) {
    let attributes = Attributes { node: request.node, size: 4096, ..Attributes::default() };
    let answer = reply.begin(request.unique);
    let mut most = 144;
    match request.operation {
        Operation::Init { readahead, flags, .. } => answer.init(readahead, flags as u32),
        Operation::Lookup { .. } | Operation::MakeNode { .. } => answer.entry(&attributes),
        Operation::GetAttributes => answer.attributes(&attributes),
        Operation::Open { .. } => answer.open_parallel(1),
        Operation::Write { data, .. } => answer.written(data.len() as u32),
        Operation::Seek { offset, .. } => answer.offset(offset),
        Operation::FileSystemStatus => {
            answer.file_system(FileSystemSize { blocks: 1, free: 0, files: 1, files_free: 0 });
        }
        Operation::Read { size, .. } => {
            let data = vec![1; (size as usize).min(WRITE_MAX)];
            most += data.len();
            let head = head_of_data(request.unique, data.len());
            answer.data(&data);
            assert_eq!(reply.bytes()[..head.len()], head, "both ways to answer are one");
        }
        Operation::ReadDirectory { size, offset, .. } => {
            let (mut entries, mut next) = (answer.entries(size), offset);
            // As many as a turn of a file system would add.
            while next.wrapping_sub(offset) < 64 {
                next = next.wrapping_add(1);
                if !entries.add(next, next, libc::S_IFREG, &name[..name.len().min(NAME_MAX)]) {
                    break;
                }
            }
            most = 16 + (size as usize).min(WRITE_MAX);
        }
        _ => answer.error(libc::ENOSYS),
    }
    let bytes = reply.bytes();
    assert!(bytes.len() >= 16 && bytes.len() <= most, "{} of {most} bytes", bytes.len());
    assert_eq!(bytes[..4], (bytes.len() as u32).to_le_bytes(), "an answer says its length");
    assert_eq!(bytes[8..16], request.unique.to_le_bytes(), "and whose it is");
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let (mut data, mut reply) = (data, Reply::default());
    for _ in 0..REQUESTS_MAX {
        let Some(([operation, low, high, cut], rest)) = data.split_first_chunk::<4>() else {
            break;
        };
        let len = usize::from(u16::from_le_bytes([*low, *high]));
        let (body, rest) = rest.split_at(len.min(rest.len()));
        data = rest;
        let bytes = match *operation {
            RAW => body.to_vec(),
            operation => request_of(operation, body),
        };
        let parsed = parse(&bytes);
        if let Ok(request) = &parsed {
            let body = &bytes[HEAD..];
            assert_eq!(bytes[8..16], request.unique.to_le_bytes());
            assert_eq!(bytes[16..24], request.node.to_le_bytes());
            assert_eq!(bytes[24..28], request.uid.to_le_bytes());
            assert_eq!(bytes[28..32], request.gid.to_le_bytes());
            check(request, body);
            answer(&mut reply, request, body);
            // A later kernel appends fields.
            let number = u32::from_le_bytes(bytes[4..8].try_into().expect("it has a head"));
            let mut more = bytes.clone();
            more.extend(&bytes[..usize::from(cut % 32)]);
            let length = more.len() as u32;
            more[..4].copy_from_slice(&length.to_le_bytes());
            let later = parse(&more);
            assert!(later.is_ok(), "what is appended is ignored");
            assert!(number == 26 || later == parsed, "{later:?}, not {parsed:?}");
        }
        // It comes whole or not at all.
        let whole = bytes.len();
        let short = &bytes[..whole - (1 + usize::from(*cut)).min(whole)];
        if short.len() < whole {
            let unique = (short.len() >= HEAD)
                .then(|| u64::from_le_bytes(short[8..16].try_into().expect("it has a head")));
            let says_less = short.len() >= HEAD && short[..4] == (short.len() as u32).to_le_bytes();
            assert!(says_less || parse(short) == Err(Malformed { unique }), "{short:?}");
        }
    }
});
