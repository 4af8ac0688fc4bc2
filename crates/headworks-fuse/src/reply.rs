//! Answers to the kernel, encoded: `fuse_out_header` and the body of each operation.
//!
//! An answer lies in one buffer that is used again and again; nothing is allocated once the buffer has grown to the largest answer.

use crate::wire::{NAME_MAX, Time, WRITE_MAX};

/// Bytes of `fuse_out_header`.
const HEAD: usize = 16;
/// Version of the protocol that answers follow.
const VERSION: [u32; 2] = [7, 31];
/// Pages of the largest request.
const PAGES_MAX: u16 = (WRITE_MAX / 4096) as u16;
/// Flags of `init`: ASYNC_READ, BIG_WRITES, MAX_PAGES.
const INIT_FLAGS: u32 = 1 | 1 << 5 | 1 << 22;
/// A flag for [`Reply::init`]: the kernel sends direct I/O of one file in parallel.
pub const ASYNC_DIRECT_IO: u32 = 1 << 15;
/// A flag for [`InitTerms`]: the kernel maps files that it keeps no bytes of. Only for a kernel that offers it.
pub const MAPS_UNCACHED: u64 = 1 << 36;
/// FUSE_INIT_EXT: flags beyond the first 32 count.
const MORE_FLAGS: u64 = 1 << 30;
/// FOPEN_NOFLUSH: closing a file promises nothing.
const NO_FLUSH: u32 = 1 << 5;
/// FOPEN_KEEP_CACHE: no other process changes the file.
const KEEP_CACHE: u32 = 1 << 1;
/// FOPEN_DIRECT_IO: every read and write reaches the file system.
const UNCACHED: u32 = 1;
/// FOPEN_PARALLEL_DIRECT_WRITES: writes of one file do not wait for each other in the kernel.
const PARALLEL_WRITES: u32 = 1 << 6;
/// Seconds that the kernel may keep names and attributes: it is the only one that changes them.
const KEPT_SECONDS: u64 = 3600;

/// Attributes of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Number of the node.
    pub node: u64,
    /// Length of its content in bytes.
    pub size: u64,
    /// Blocks of 512 bytes that are occupied.
    pub blocks: u64,
    /// Time of the last change.
    pub modified: Time,
    /// Type and permission bits.
    pub mode: u32,
    /// Number of its names.
    pub links: u32,
    /// Number of the owner.
    pub uid: u32,
    /// Number of the group.
    pub gid: u32,
    /// Number of a device node.
    pub device: u32,
}

/// Size and room of a file system, in blocks of 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSystemSize {
    /// Blocks in all, free or not.
    pub blocks: u64,
    /// Blocks that are free.
    pub free: u64,
    /// Files that may exist.
    pub files: u64,
    /// Files that may still be made.
    pub files_free: u64,
}

/// What a file system agrees on with the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitTerms {
    /// Bytes that the kernel reads ahead.
    pub readahead: u32,
    /// Flags beside those that every file system here has.
    pub flags: u64,
    /// Bytes of the largest write; a read may have up to [`WRITE_MAX`] in any case.
    pub write_max: u32,
    /// Asynchronous requests that the kernel sends at once.
    pub background: u16,
}

/// The head of an answer with `data` bytes behind it: of a read, whose data lie elsewhere.
#[must_use]
pub fn head_of_data(unique: u64, data: usize) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[..4].copy_from_slice(&((HEAD + data) as u32).to_le_bytes());
    head[8..].copy_from_slice(&unique.to_le_bytes());
    head
}

/// A buffer with the answer to one request.
#[derive(Debug, Default)]
pub struct Reply {
    bytes: Vec<u8>,
}

impl Reply {
    /// Begins the answer to the request with this number: an empty success.
    pub fn begin(&mut self, unique: u64) -> &mut Self {
        self.bytes.clear();
        self.bytes.extend([0; 8]);
        self.u64(unique);
        self
    }

    /// The whole answer, with its length.
    pub fn bytes(&mut self) -> &[u8] {
        let length = self.bytes.len() as u32;
        self.bytes[..4].copy_from_slice(&length.to_le_bytes());
        &self.bytes
    }

    /// Turns the answer into an error: a positive errno.
    pub fn error(&mut self, errno: i32) {
        self.bytes.truncate(HEAD);
        self.bytes[4..8].copy_from_slice(&(-errno.abs()).to_le_bytes());
    }

    /// Answers `init`: the version, limits and flags, those of `more` included.
    pub fn init(&mut self, readahead: u32, more: u32) {
        let (flags, write_max) = (more.into(), WRITE_MAX as u32);
        self.init_with(&InitTerms { readahead, flags, write_max, background: 64 });
    }

    /// Answers `init` with these terms.
    pub fn init_with(&mut self, terms: &InitTerms) {
        let InitTerms { readahead, flags, write_max, background } = *terms;
        let more = (flags >> 32) as u32;
        let flags = flags | if more > 0 { MORE_FLAGS } else { 0 };
        for word in [VERSION[0], VERSION[1], readahead, INIT_FLAGS | flags as u32] {
            self.u32(word);
        }
        // From three quarters of them on the device counts as congested.
        let congested = background / 4 * 3;
        self.bytes.extend(background.to_le_bytes());
        self.bytes.extend(congested.to_le_bytes());
        self.u32(write_max);
        self.u32(1);
        self.bytes.extend(PAGES_MAX.to_le_bytes());
        self.bytes.extend([0; 2]);
        self.u32(more);
        self.bytes.extend([0; 28]);
    }

    /// Answers whatever names a node: lookup, create, link and the like.
    pub fn entry(&mut self, attributes: &Attributes) {
        for word in [attributes.node, 0, KEPT_SECONDS, KEPT_SECONDS, 0] {
            self.u64(word);
        }
        self.put_attributes(attributes);
    }

    /// Answers a question for attributes, and their change.
    pub fn attributes(&mut self, attributes: &Attributes) {
        self.u64(KEPT_SECONDS);
        self.u64(0);
        self.put_attributes(attributes);
    }

    /// Answers a question for attributes, which others change, too: the kernel keeps none.
    pub fn attributes_now(&mut self, attributes: &Attributes) {
        self.u64(0);
        self.u64(0);
        self.put_attributes(attributes);
    }

    /// Answers an open, with a handle; behind `entry` it answers a create.
    pub fn open(&mut self, handle: u64) {
        self.u64(handle);
        self.u32(KEEP_CACHE | NO_FLUSH);
        self.u32(0);
    }

    /// Answers like `open`; the kernel keeps no bytes of the file.
    pub fn open_uncached(&mut self, handle: u64) {
        self.u64(handle);
        self.u32(UNCACHED | NO_FLUSH);
        self.u32(0);
    }

    /// Answers like `open_uncached`; writes do not wait for each other in the kernel.
    pub fn open_parallel(&mut self, handle: u64) {
        self.u64(handle);
        self.u32(UNCACHED | NO_FLUSH | PARALLEL_WRITES);
        self.u32(0);
    }

    /// Answers the open of a directory.
    pub fn open_directory(&mut self, handle: u64) {
        self.u64(handle);
        self.u64(0);
    }

    /// Answers a write: the bytes that were written.
    pub fn written(&mut self, bytes: u32) {
        self.u32(bytes);
        self.u32(0);
    }

    /// Answers a seek: where data or the hole begin.
    pub fn offset(&mut self, offset: u64) {
        self.u64(offset);
    }

    /// Appends bytes: of a read, of a link's target.
    pub fn data(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Appends `size` zeros and returns them, to be filled.
    pub fn room(&mut self, size: usize) -> &mut [u8] {
        let at = self.bytes.len();
        self.bytes.resize(at + size, 0);
        &mut self.bytes[at..]
    }

    /// Answers the question for size and room.
    pub fn file_system(&mut self, size: FileSystemSize) {
        let FileSystemSize { blocks, free, files, files_free } = size;
        for word in [blocks, free, free, files, files_free] {
            self.u64(word);
        }
        for word in [4096, NAME_MAX as u32, 4096] {
            self.u32(word);
        }
        self.bytes.extend([0; 28]);
    }

    /// Answers a read of a directory: entries are added until no more fit into `size`.
    pub fn entries(&mut self, size: u32) -> Entries<'_> {
        let limit = self.bytes.len() + (size as usize).min(WRITE_MAX);
        Entries { bytes: &mut self.bytes, limit }
    }

    fn put_attributes(&mut self, attributes: &Attributes) {
        let Attributes { node, size, blocks, modified, mode, links, uid, gid, device } =
            *attributes;
        let seconds = modified.seconds as u64;
        for word in [node, size, blocks, seconds, seconds, seconds] {
            self.u64(word);
        }
        let part = modified.nanoseconds;
        for word in [part, part, part, mode, links, uid, gid, device, 4096, 0] {
            self.u32(word);
        }
    }

    fn u32(&mut self, word: u32) {
        self.bytes.extend(word.to_le_bytes());
    }

    fn u64(&mut self, word: u64) {
        self.bytes.extend(word.to_le_bytes());
    }
}

/// Entries of a directory that are being added to an answer.
#[derive(Debug)]
pub struct Entries<'a> {
    bytes: &'a mut Vec<u8>,
    limit: usize,
}

impl Entries<'_> {
    /// Adds an entry; `next` is the offset that continues behind it. Returns whether it still fitted.
    pub fn add(&mut self, node: u64, next: u64, mode: u32, name: &[u8]) -> bool {
        let end = (self.bytes.len() + 24 + name.len()).next_multiple_of(8);
        if end > self.limit {
            return false;
        }
        self.bytes.extend(node.to_le_bytes());
        self.bytes.extend(next.to_le_bytes());
        self.bytes.extend((name.len() as u32).to_le_bytes());
        self.bytes.extend((mode >> 12 & 15).to_le_bytes());
        self.bytes.extend_from_slice(name);
        self.bytes.resize(end, 0);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_those_of_the_kernel() {
        let length = |fill: fn(&mut Reply)| {
            let mut reply = Reply::default();
            fill(reply.begin(5));
            let bytes = reply.bytes().to_vec();
            assert_eq!(bytes[..4], (bytes.len() as u32).to_le_bytes());
            assert_eq!(bytes[8..16], 5u64.to_le_bytes());
            bytes.len() - HEAD
        };
        assert_eq!(length(|reply| reply.init(0, 0)), 64);
        assert_eq!(length(|reply| reply.entry(&Attributes::default())), 128);
        assert_eq!(length(|reply| reply.attributes(&Attributes::default())), 104);
        assert_eq!(length(|reply| reply.attributes_now(&Attributes::default())), 104);
        assert_eq!(length(|reply| reply.open(1)), 16);
        assert_eq!(length(|reply| reply.open_parallel(1)), 16);
        assert_eq!(length(|reply| reply.open_directory(1)), 16);
        assert_eq!(length(|reply| reply.written(1)), 8);
        assert_eq!(length(|reply| reply.offset(1)), 8);
        assert_eq!(
            length(|reply| reply.file_system(FileSystemSize {
                blocks: 1,
                free: 1,
                files: 1,
                files_free: 1
            })),
            80
        );
    }

    #[test]
    fn flags_beyond_32_are_announced() {
        let mut reply = Reply::default();
        let flags = MAPS_UNCACHED | u64::from(ASYNC_DIRECT_IO);
        let terms = InitTerms { readahead: 7, flags, write_max: 1 << 17, background: 256 };
        reply.begin(1).init_with(&terms);
        let body = &reply.bytes()[HEAD..];
        let word = |at: usize| u32::from_le_bytes(body[at..at + 4].try_into().unwrap());
        assert_eq!((word(8), word(12) >> 30 & 1, word(12) >> 15 & 1), (7, 1, 1));
        assert_eq!((word(16), word(20), word(32)), (192 << 16 | 256, 1 << 17, 1 << 4));
        reply.begin(1).init(0, 0);
        assert_eq!(reply.bytes()[HEAD + 15] >> 6, 0, "no flag that an old kernel does not know");
    }

    #[test]
    fn head_of_data_is_that_of_a_whole_answer() {
        let mut reply = Reply::default();
        reply.begin(5).data(b"data");
        assert_eq!(reply.bytes()[..HEAD], head_of_data(5, 4));
    }

    #[test]
    fn error_drops_what_was_answered_before() {
        let mut reply = Reply::default();
        reply.begin(1).entry(&Attributes::default());
        reply.error(2);
        assert_eq!(reply.bytes()[..8], [16, 0, 0, 0, 254, 255, 255, 255]);
        assert_eq!(reply.bytes().len(), HEAD);
    }

    #[test]
    fn entries_end_where_their_room_ends() {
        let mut reply = Reply::default();
        let mut entries = reply.begin(1).entries(64);
        assert!(entries.add(1, 1, 0o040755, b"."));
        assert!(entries.add(2, 2, 0o100644, b"12345678"));
        assert!(!entries.add(3, 3, 0o100644, b"x"));
        let bytes = reply.bytes();
        assert_eq!(bytes.len(), HEAD + 64);
        assert_eq!((bytes[HEAD + 20], bytes[HEAD + 32 + 20]), (4, 8));
    }
}
