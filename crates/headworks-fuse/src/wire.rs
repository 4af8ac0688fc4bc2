//! Requests of the kernel, parsed: `fuse_in_header` and the body of each operation, as `linux/fuse.h` has them in version 7.31.
//!
//! A body that is too short, a name without its end and a length beyond the body are [`Malformed`], never a panic. Fields that a later
//! kernel appends to a body are ignored, as the protocol demands.

/// Longest name of a file, as Linux has it.
pub const NAME_MAX: usize = 255;
/// Longest target of a symbolic link.
const TARGET_MAX: usize = 4095;
/// Bytes of the largest write that the mount asks the kernel for.
pub const WRITE_MAX: usize = 1 << 20;
/// Bytes of `fuse_in_header`.
const HEAD: usize = 40;

/// A time of a file: seconds and nanoseconds of the epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Time {
    /// Whole seconds since the epoch, negative before it.
    pub seconds: i64,
    /// Nanoseconds of the second.
    pub nanoseconds: u32,
}

/// Changes of attributes, one `setattr`; what is none stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttributeChange {
    /// Permission bits, without the type.
    pub mode: Option<u32>,
    /// Number of the owner.
    pub uid: Option<u32>,
    /// Number of the group.
    pub gid: Option<u32>,
    /// New length in bytes: a truncation or an extension.
    pub size: Option<u64>,
    /// Time of the last change; the inner none means the present.
    pub modified: Option<Option<Time>>,
}

/// A request of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// Number that the answer repeats.
    pub unique: u64,
    /// The file or directory that it concerns.
    pub node: u64,
    /// User of the process that asks.
    pub uid: u32,
    /// Group of the process that asks.
    pub gid: u32,
    /// What is asked for.
    pub operation: Operation<'a>,
}

/// What a request asks for. Names are single components of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The fields are those of linux/fuse.h.
pub enum Operation<'a> {
    /// Begins the connection: versions and flags of the kernel.
    Init { major: u32, minor: u32, readahead: u32, flags: u64 },
    /// Looks up a name; the kernel counts one use of the node.
    Lookup { name: &'a [u8] },
    /// Gives uses of the node back; has no answer.
    Forget { count: u64 },
    /// Gives uses of many nodes back; has no answer.
    BatchForget(Forgets<'a>),
    /// Asks for the attributes of the node.
    GetAttributes,
    /// Changes attributes of the node.
    SetAttributes(AttributeChange),
    /// Reads the target of a symbolic link.
    ReadLink,
    /// Makes a symbolic link.
    Symlink { name: &'a [u8], target: &'a [u8] },
    /// Makes a file, socket, fifo or device node; the mode has the type.
    MakeNode { name: &'a [u8], mode: u32, device: u32 },
    /// Makes an empty directory.
    MakeDirectory { name: &'a [u8], mode: u32 },
    /// Removes a name of a file.
    Unlink { name: &'a [u8] },
    /// Removes an empty directory.
    RemoveDirectory { name: &'a [u8] },
    /// Renames; the flags are those of `renameat2`.
    Rename { name: &'a [u8], new_parent: u64, new_name: &'a [u8], flags: u32 },
    /// Gives a file another name in the node.
    Link { file: u64, name: &'a [u8] },
    /// Opens a file.
    Open { flags: u32 },
    /// Makes a file and opens it.
    Create { name: &'a [u8], mode: u32, flags: u32 },
    /// Reads bytes of a file.
    Read { offset: u64, size: u32 },
    /// Writes bytes; `mapped` if they come from the page cache, as stores to a mapping do; the flags are those of the open file.
    Write { offset: u64, data: &'a [u8], mapped: bool, flags: u32 },
    /// Asks for size and room of the file system.
    FileSystemStatus,
    /// Ends the use of an open file.
    Release,
    /// Makes a file durable.
    Sync { data_only: bool },
    /// A descriptor is closed; nothing becomes durable.
    Flush,
    /// Opens a directory.
    OpenDirectory,
    /// Reads entries behind `offset`.
    ReadDirectory { handle: u64, offset: u64, size: u32 },
    /// Ends the use of an open directory.
    ReleaseDirectory { handle: u64 },
    /// Makes a directory durable.
    SyncDirectory { data_only: bool },
    /// Asks for rights; mounts with `default_permissions` need no answer.
    Access,
    /// Interrupts another request; may be ignored, has no answer.
    Interrupt { unique: u64 },
    /// Ends the connection.
    Destroy,
    /// Reserves, punches or zeroes a range.
    Allocate { offset: u64, length: u64, mode: u32 },
    /// Seeks data or a hole.
    Seek { offset: u64, whence: u32 },
    /// Makes the whole file system durable.
    SyncFileSystem,
    /// An operation that this crate does not know; the answer is ENOSYS.
    Other { number: u32 },
}

/// Nodes and counts of a batch of forgets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forgets<'a>(&'a [u8]);

impl Forgets<'_> {
    /// Each node with the number of uses that end.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.chunks_exact(16).map(|one| (u64_at(one, 0), u64_at(one, 8)))
    }
}

/// A request that does not follow the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// Number to answer with EINVAL; none if not even the head can be read.
    pub unique: Option<u64>,
}

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a FUSE request does not follow the protocol")
    }
}

impl std::error::Error for Malformed {}

/// Parses the request that fills `bytes`.
pub fn parse(bytes: &[u8]) -> Result<Request<'_>, Malformed> {
    if bytes.len() < HEAD {
        return Err(Malformed { unique: None });
    }
    let unique = u64_at(bytes, 8);
    let body = Body(&bytes[HEAD..]);
    let whole = u32_at(bytes, 0) as usize == bytes.len();
    let operation = whole.then(|| operation(u32_at(bytes, 4), body)).flatten();
    let operation = operation.ok_or(Malformed { unique: Some(unique) })?;
    let (node, uid, gid) = (u64_at(bytes, 16), u32_at(bytes, 24), u32_at(bytes, 28));
    Ok(Request { unique, node, uid, gid, operation })
}

/// The body of a request; each reader is none beyond its end.
#[derive(Clone, Copy)]
struct Body<'a>(&'a [u8]);

impl<'a> Body<'a> {
    fn u32(self, at: usize) -> Option<u32> {
        (self.0.len() >= at + 4).then(|| u32_at(self.0, at))
    }

    fn u64(self, at: usize) -> Option<u64> {
        (self.0.len() >= at + 8).then(|| u64_at(self.0, at))
    }

    /// The bytes up to the zero behind `at`, and where the next begin.
    fn text(self, at: usize) -> Option<(&'a [u8], usize)> {
        let bytes = self.0.get(at..)?;
        let end = bytes.iter().position(|byte| *byte == 0)?;
        Some((&bytes[..end], at + end + 1))
    }

    fn name_and_next(self, at: usize) -> Option<(&'a [u8], usize)> {
        self.text(at).filter(|(name, _)| {
            let plain = !name.contains(&b'/') && *name != b"." && *name != b"..";
            !name.is_empty() && name.len() <= NAME_MAX && plain
        })
    }

    fn name(self, at: usize) -> Option<&'a [u8]> {
        Some(self.name_and_next(at)?.0)
    }
}

fn operation(number: u32, body: Body<'_>) -> Option<Operation<'_>> {
    Some(match number {
        1 => Operation::Lookup { name: body.name(0)? },
        2 => Operation::Forget { count: body.u64(0)? },
        3 => Operation::GetAttributes,
        4 => Operation::SetAttributes(attribute_change(body)?),
        5 => Operation::ReadLink,
        6 => symlink(body)?,
        8 => {
            let mode = masked(body.u32(0)?, body.u32(8)?);
            Operation::MakeNode { name: body.name(16)?, mode, device: body.u32(4)? }
        }
        9 => {
            let mode = masked(body.u32(0)?, body.u32(4)?);
            Operation::MakeDirectory { name: body.name(8)?, mode }
        }
        10 => Operation::Unlink { name: body.name(0)? },
        11 => Operation::RemoveDirectory { name: body.name(0)? },
        12 => rename(body, 0, 8)?,
        45 => rename(body, body.u32(8)?, 16)?,
        13 => Operation::Link { file: body.u64(0)?, name: body.name(8)? },
        14 => Operation::Open { flags: body.u32(0)? },
        15 => Operation::Read { offset: body.u64(8)?, size: body.u32(16)? },
        16 => write(body)?,
        17 => Operation::FileSystemStatus,
        18 => Operation::Release,
        20 => Operation::Sync { data_only: body.u32(8)? & 1 != 0 },
        25 => Operation::Flush,
        26 => Operation::Init {
            major: body.u32(0)?,
            minor: body.u32(4)?,
            readahead: body.u32(8).unwrap_or(0),
            flags: u64::from(body.u32(12).unwrap_or(0))
                | u64::from(body.u32(16).unwrap_or(0)) << 32,
        },
        27 => Operation::OpenDirectory,
        28 => Operation::ReadDirectory {
            handle: body.u64(0)?,
            offset: body.u64(8)?,
            size: body.u32(16)?,
        },
        29 => Operation::ReleaseDirectory { handle: body.u64(0)? },
        30 => Operation::SyncDirectory { data_only: body.u32(8)? & 1 != 0 },
        34 => Operation::Access,
        35 => {
            let mode = masked(body.u32(4)?, body.u32(8)?);
            Operation::Create { name: body.name(16)?, mode, flags: body.u32(0)? }
        }
        36 => Operation::Interrupt { unique: body.u64(0)? },
        38 => Operation::Destroy,
        42 => batch_forget(body)?,
        43 => {
            Operation::Allocate { offset: body.u64(8)?, length: body.u64(16)?, mode: body.u32(24)? }
        }
        46 => Operation::Seek { offset: body.u64(8)?, whence: body.u32(16)? },
        50 => Operation::SyncFileSystem,
        number => Operation::Other { number },
    })
}

/// A mode without the bits of the process's umask; its type stays.
fn masked(mode: u32, umask: u32) -> u32 {
    mode & !(umask & 0o7777)
}

fn symlink(body: Body<'_>) -> Option<Operation<'_>> {
    let (name, next) = body.name_and_next(0)?;
    let (target, _) = body.text(next).filter(|(target, _)| target.len() <= TARGET_MAX)?;
    Some(Operation::Symlink { name, target })
}

fn rename(body: Body<'_>, flags: u32, names: usize) -> Option<Operation<'_>> {
    let (name, next) = body.name_and_next(names)?;
    Some(Operation::Rename { name, new_parent: body.u64(0)?, new_name: body.name(next)?, flags })
}

fn write(body: Body<'_>) -> Option<Operation<'_>> {
    let size = body.u32(16)? as usize;
    let data = body.0.get(40..)?.get(..size)?;
    let mapped = body.u32(20)? & 1 != 0;
    Some(Operation::Write { offset: body.u64(8)?, data, mapped, flags: body.u32(32)? })
}

fn batch_forget(body: Body<'_>) -> Option<Operation<'_>> {
    let bytes = (body.u32(0)? as usize).checked_mul(16)?;
    Some(Operation::BatchForget(Forgets(body.0.get(8..)?.get(..bytes)?)))
}

/// `fuse_setattr_in`: a mask says which fields count.
fn attribute_change(body: Body<'_>) -> Option<AttributeChange> {
    let valid = body.u32(0)?;
    body.u32(84)?;
    let given = |bit: u32, at: usize| (valid & bit != 0).then(|| u32_at(body.0, at));
    let time = Time { seconds: body.u64(40)? as i64, nanoseconds: body.u32(60)? };
    let modified = match (valid & 1 << 5 != 0, valid & 1 << 8 != 0) {
        (_, true) => Some(None),
        (true, false) => Some(Some(time)),
        _ => None,
    };
    Some(AttributeChange {
        mode: given(1, 68).map(|mode| mode & 0o7777),
        uid: given(2, 76),
        gid: given(4, 80),
        size: (valid & 8 != 0).then(|| u64_at(body.0, 16)),
        modified,
    })
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(number: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes = ((HEAD + body.len()) as u32).to_le_bytes().to_vec();
        bytes.extend(number.to_le_bytes());
        for word in [7u64, 9] {
            bytes.extend(word.to_le_bytes());
        }
        for word in [1000u32, 100, 4711, 0] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(body);
        bytes
    }

    fn parsed(number: u32, body: &[u8]) -> Option<String> {
        let bytes = request(number, body);
        let request = parse(&bytes).ok()?;
        assert_eq!((request.unique, request.node, request.uid, request.gid), (7, 9, 1000, 100));
        Some(format!("{:?}", request.operation))
    }

    fn bytes(words: &[&[u8]]) -> Vec<u8> {
        words.concat()
    }

    #[test]
    fn names_are_single_components_with_an_end() {
        assert_eq!(parsed(1, b"db\0").unwrap(), format!("{:?}", Operation::Lookup { name: b"db" }));
        let long = bytes(&[&[b'a'; 256], b"\0"]);
        for bad in [&b"db"[..], b"\0", b"a/b\0", b".\0", b"..\0", b"", &long] {
            assert_eq!(parsed(1, bad), None, "{bad:?}");
        }
        assert!(parsed(1, &long[1..]).is_some());
    }

    #[test]
    fn write_has_exactly_its_bytes() {
        let head = |size: u32| {
            let mut head = vec![0; 40];
            head[8..16].copy_from_slice(&4096u64.to_le_bytes());
            head[16..20].copy_from_slice(&size.to_le_bytes());
            head[20..24].copy_from_slice(&1u32.to_le_bytes());
            head[32..36].copy_from_slice(&0o10000u32.to_le_bytes());
            head
        };
        let write = Operation::Write { offset: 4096, data: b"abc", mapped: true, flags: 0o10000 };
        assert_eq!(parsed(16, &bytes(&[&head(3), b"abc"])).unwrap(), format!("{write:?}"));
        assert_eq!(parsed(16, &bytes(&[&head(4), b"abc"])), None);
        assert_eq!(parsed(16, &bytes(&[&head(u32::MAX), b"abc"])), None);
    }

    #[test]
    fn rename_and_symlink_have_two_texts() {
        let new = 5u64.to_le_bytes();
        let rename = Operation::Rename { name: b"a", new_parent: 5, new_name: b"b", flags: 1 };
        let flags = [1, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(parsed(45, &bytes(&[&new, &flags, b"a\0b\0"])).unwrap(), format!("{rename:?}"));
        assert_eq!(parsed(12, &bytes(&[&new, b"a\0b"])), None);
        let link = Operation::Symlink { name: b"l", target: b"../x/y" };
        assert_eq!(parsed(6, b"l\0../x/y\0").unwrap(), format!("{link:?}"));
    }

    #[test]
    fn attribute_change_takes_what_its_mask_names() {
        let mut body = vec![0; 88];
        body[0] = 1 | 8;
        body[16] = 200;
        body[68..70].copy_from_slice(&0o600u16.to_le_bytes());
        let change =
            AttributeChange { mode: Some(0o600), size: Some(200), ..AttributeChange::default() };
        assert_eq!(parsed(4, &body).unwrap(), format!("{:?}", Operation::SetAttributes(change)));
        body[0..2].copy_from_slice(&[0x20, 1]);
        let now = AttributeChange { modified: Some(None), ..AttributeChange::default() };
        assert_eq!(parsed(4, &body).unwrap(), format!("{:?}", Operation::SetAttributes(now)));
    }

    #[test]
    fn forgets_beyond_the_body_are_refused() {
        let body = bytes(&[&[2, 0, 0, 0, 0, 0, 0, 0], &[1; 16], &[2; 16]]);
        let whole = request(42, &body);
        let Operation::BatchForget(forgets) = parse(&whole).unwrap().operation else { panic!() };
        assert_eq!(forgets.iter().count(), 2);
        assert_eq!(parsed(42, &body[..24]), None);
        assert_eq!(parsed(42, &[255; 8]), None);
    }

    #[test]
    fn hostile_bytes_never_panic() {
        let mut state = 1u64;
        let mut draw = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u32
        };
        for round in 0..200_000u32 {
            let length = draw() as usize % 160;
            let body: Vec<u8> = (0..length).map(|_| (draw() % 5 * 63) as u8).collect();
            let mut bytes = request(round % 56, &body);
            if draw().is_multiple_of(8) {
                bytes.truncate(draw() as usize % (bytes.len() + 1));
            }
            if let Ok(Request { operation: Operation::BatchForget(forgets), .. }) = parse(&bytes) {
                assert!(forgets.iter().count() <= bytes.len() / 16);
            }
        }
        assert_eq!(parse(&[0; 39]), Err(Malformed { unique: None }));
        assert_eq!(parse(&[0; 40]), Err(Malformed { unique: Some(0) }));
    }

    #[test]
    fn unknown_operations_are_named() {
        assert_eq!(parsed(22, b"").unwrap(), format!("{:?}", Operation::Other { number: 22 }));
    }
}
