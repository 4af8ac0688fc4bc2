//! What happened to a disk, as a file: writes with their bytes, FUA, flushes, each before its answer.
//!
//! ```text
//!   "hwdisk1\n"   then entries:   tag u8 (1 write, 2 write with FUA, 3 flush), length u32, offset u64, the bytes of a write
//! ```
//!
//! An entry is written whole before the command is answered. Where the path is a unix socket, its listener gets the entries, and answers
//! each with a byte before the command goes on: it has what a program did in one order with what it sees elsewhere, such as the program's
//! output. Bytes are input: nothing panics, and memory is bounded by [`WRITE_MAX`].

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

const MAGIC: &[u8; 8] = b"hwdisk1\n";
const WRITE: u8 = 1;
const WRITE_FUA: u8 = 2;
const FLUSH: u8 = 3;
/// Bytes of an entry before those of a write.
const HEAD: usize = 13;
/// Bytes of a write at most: the largest command.
const WRITE_MAX: usize = 64 << 20;
/// Longest wait for a listener.
const LISTENER_LIMIT: Duration = Duration::from_secs(60);
/// Bytes that are read at once.
const CHUNK: usize = 256 << 10;

/// A command that changes a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskChange<'a> {
    /// Bytes were written.
    Write {
        /// Where they begin.
        offset: u64,
        /// The bytes.
        data: &'a [u8],
        /// Whether they are durable with the answer.
        fua: bool,
    },
    /// What was answered before is durable with the answer.
    Flush,
}

/// Writes the log of a disk.
#[derive(Debug)]
pub struct DiskLog {
    into: Target,
    entry: Vec<u8>,
}

#[derive(Debug)]
enum Target {
    File(File),
    /// Each entry is answered.
    Listener(UnixStream),
}

impl DiskLog {
    /// Begins the log of a disk: in a file, in place of an older log, or at the listener of a unix socket.
    ///
    /// # Errors
    /// The file cannot be made, is there and no log, or the socket has no listener.
    pub fn new(path: &Path) -> io::Result<Self> {
        let is_socket = path.metadata().is_ok_and(|found| found.file_type().is_socket());
        let into = match is_socket {
            true => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(LISTENER_LIMIT))?;
                stream.set_write_timeout(Some(LISTENER_LIMIT))?;
                Target::Listener(stream)
            }
            false => Target::File(log_file(path)?),
        };
        let mut log = Self { into, entry: Vec::new() };
        log.write(MAGIC)?;
        Ok(log)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.into {
            Target::File(file) => file.write_all(bytes),
            Target::Listener(stream) => stream.write_all(bytes),
        }
    }

    /// Notes a change, before it is answered.
    ///
    /// # Errors
    /// The file cannot be written, or the listener is gone: the log is not whole any more.
    pub fn note(&mut self, change: DiskChange<'_>) -> io::Result<()> {
        let (tag, offset, data) = match change {
            DiskChange::Write { offset, data, fua: false } => (WRITE, offset, data),
            DiskChange::Write { offset, data, fua: true } => (WRITE_FUA, offset, data),
            DiskChange::Flush => (FLUSH, 0, &[][..]),
        };
        self.entry.clear();
        self.entry.push(tag);
        self.entry.extend((data.len() as u32).to_le_bytes());
        self.entry.extend(offset.to_le_bytes());
        self.entry.extend_from_slice(data);
        let entry = std::mem::take(&mut self.entry);
        self.write(&entry)?;
        self.entry = entry;
        match &mut self.into {
            Target::File(_) => Ok(()),
            Target::Listener(stream) => stream.read_exact(&mut [0]),
        }
    }
}

/// Opens the file of a log, emptied. What is no log may be precious, and a FIFO or a device has no end.
fn log_file(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false);
    let mut file = options.custom_flags(libc::O_NONBLOCK).open(path)?;
    let mut head = Vec::new();
    if file.metadata()?.is_file() {
        (&file).take(MAGIC.len() as u64).read_to_end(&mut head)?;
    } else {
        head.push(0);
    }
    if !head.is_empty() && head != MAGIC {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "it is there and no log of a disk",
        ));
    }
    file.set_len(0)?;
    file.rewind()?;
    Ok(file)
}

/// Reads the log of a disk, which may still grow.
#[derive(Debug)]
pub struct DiskLogReader<R> {
    from: R,
    bytes: Vec<u8>,
    /// The first byte that was not read yet.
    start: usize,
    begun: bool,
}

impl<R: Read> DiskLogReader<R> {
    /// Reads a log from its start.
    pub fn new(from: R) -> Self {
        Self { from, bytes: Vec::new(), start: 0, begun: false }
    }

    /// The next change that is there as a whole; none for now, or at the end.
    ///
    /// # Errors
    /// The file cannot be read, or is no log.
    pub fn next_change(&mut self) -> io::Result<Option<DiskChange<'_>>> {
        let refused = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why);
        if !self.begun {
            if !self.has(MAGIC.len())? {
                return Ok(None);
            }
            if &self.bytes[..MAGIC.len()] != MAGIC {
                return Err(refused("this is no log of a disk"));
            }
            (self.begun, self.start) = (true, MAGIC.len());
        }
        if !self.has(HEAD)? {
            return Ok(None);
        }
        let head = &self.bytes[self.start..self.start + HEAD];
        let tag = head[0];
        let length = head[1..5].try_into().map_or(0, u32::from_le_bytes) as usize;
        let offset = head[5..].try_into().map_or(0, u64::from_le_bytes);
        if !(WRITE..=FLUSH).contains(&tag) || length > WRITE_MAX || tag == FLUSH && length > 0 {
            return Err(refused("the log of the disk is damaged"));
        }
        if !self.has(HEAD + length)? {
            return Ok(None);
        }
        let at = self.start + HEAD;
        self.start = at + length;
        let data = &self.bytes[at..at + length];
        Ok(Some(match tag {
            FLUSH => DiskChange::Flush,
            tag => DiskChange::Write { offset, data, fua: tag == WRITE_FUA },
        }))
    }

    /// Reads until so many bytes are there; false if the file has fewer for now.
    fn has(&mut self, count: usize) -> io::Result<bool> {
        while self.bytes.len() - self.start < count {
            self.bytes.drain(..self.start);
            self.start = 0;
            let had = self.bytes.len();
            self.bytes.resize(had + CHUNK, 0);
            let read = self.from.read(&mut self.bytes[had..]);
            self.bytes.truncate(had + *read.as_ref().unwrap_or(&0));
            match read {
                Ok(0) => return Ok(false),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks_core::prng::Prng;

    fn path(name: &str) -> std::path::PathBuf {
        std::env::temp_dir().join(format!("headworks-{name}.{}", std::process::id()))
    }

    #[test]
    fn log_is_read_while_it_grows() {
        let path = path("disk-log");
        let mut log = DiskLog::new(&path).unwrap();
        let mut reader = DiskLogReader::new(File::open(&path).unwrap());
        assert_eq!(reader.next_change().unwrap(), None);
        let data: Vec<u8> = (0..300_000u32).map(|n| n as u8).collect();
        for (offset, fua) in [(512, false), (1 << 40, true)] {
            log.note(DiskChange::Write { offset, data: &data, fua }).unwrap();
            log.note(DiskChange::Flush).unwrap();
            let expected = DiskChange::Write { offset, data: &data, fua };
            assert!(reader.next_change().unwrap() == Some(expected));
            assert_eq!(reader.next_change().unwrap(), Some(DiskChange::Flush));
            assert_eq!(reader.next_change().unwrap(), None);
        }
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn older_log_is_replaced_and_no_other_file() {
        let path = path("disk-log-there");
        DiskLog::new(&path).unwrap().note(DiskChange::Flush).unwrap();
        drop(DiskLog::new(&path).unwrap());
        assert_eq!(std::fs::read(&path).unwrap(), MAGIC);
        for precious in [&b"precious"[..], b"hwdisk", b"hwdisk2\nand more"] {
            std::fs::write(&path, precious).unwrap();
            let refused = DiskLog::new(&path).unwrap_err().to_string();
            assert!(refused.contains("no log of a disk"), "{refused}");
            assert_eq!(std::fs::read(&path).unwrap(), precious);
        }
        std::fs::remove_file(path).unwrap();
        assert!(DiskLog::new(Path::new("/dev/zero")).is_err());
    }

    #[test]
    fn listener_answers_each_change_before_the_next() {
        let path = path("disk-log-socket");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let (said, heard) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut reader = DiskLogReader::new(stream.try_clone().unwrap());
            let mut count = 0;
            while let Some(change) = reader.next_change().unwrap() {
                said.send(change == DiskChange::Flush).unwrap();
                stream.write_all(&[1]).unwrap();
                count += 1;
            }
            count
        });
        let mut log = DiskLog::new(&path).unwrap();
        for index in 0..20 {
            let data = [index; 5000];
            log.note(DiskChange::Write { offset: 0, data: &data, fua: false }).unwrap();
            assert_eq!(heard.try_recv(), Ok(false), "it was heard before the answer");
            log.note(DiskChange::Flush).unwrap();
            assert_eq!(heard.try_recv(), Ok(true));
        }
        drop(log);
        assert_eq!(thread.join().unwrap(), 40);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn any_bytes_are_a_log_or_refused() {
        let mut prng = Prng::new(6);
        let mut whole = MAGIC.to_vec();
        for _ in 0..4 {
            whole.extend([1, 3, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 7, 7, 7]);
        }
        for _ in 0..2_000 {
            let mut bytes = whole[..prng.below(whole.len() as u64 + 1) as usize].to_vec();
            for _ in 0..prng.below(3) {
                if let Some(byte) = bytes.get_mut(prng.below(80) as usize) {
                    *byte = prng.next() as u8;
                }
            }
            let mut reader = DiskLogReader::new(&bytes[..]);
            let mut found = 0;
            while let Ok(Some(_)) = reader.next_change() {
                found += 1;
            }
            assert!(found <= 4);
        }
    }
}
