//! Fixtures of the device tests: a disk queue without an engine, a bench that drives one device, and a vector model.
//!
//! A crate beside the library, so that no program has them, and no feature of it, which would build the library and all that depends on
//! it once more. The library's own unit tests include this file: a crate that depends on it has other types than they.

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use headworks::driver::{DiskDone, DiskOp, DiskQueue, Interest, Span, Watch};
use headworks::house::{Loss, Mapping, execute};
use headworks::{Command, CommandBatch, Device, DeviceIo};
use headworks_core::extent::extents;
use headworks_core::prng::Prng;
use headworks_core::{
    BioFlags, Completion, DeviceId, Extent, ExtentState, Instant, Op, RequestId, Status, VolumeId,
};

/// A disk queue that executes one operation per call, with the system calls of an engine.
#[derive(Default)]
pub struct TestDisk {
    queue: VecDeque<(DiskOp, Vec<Span>)>,
    /// All operations that were pushed.
    pub log: Vec<DiskOp>,
    /// Results of the next operations; `None` executes the operation.
    pub script: VecDeque<Option<i32>>,
    /// Rejects pushes while set.
    pub full: bool,
    /// The watched places with their descriptors.
    pub watches: Vec<(u16, RawFd, Interest)>,
}

impl Watch for TestDisk {
    fn watch_place(&mut self, device: DeviceId, place: u16, fd: RawFd, interest: Interest) {
        self.forget_place(device, place);
        let is_free = |&(_, other, _): &(u16, RawFd, Interest)| other != fd;
        assert!(self.watches.iter().all(is_free), "a descriptor is in one place");
        self.watches.push((place, fd, interest));
    }

    fn forget_place(&mut self, _: DeviceId, place: u16) {
        self.watches.retain(|&(other, ..)| other != place);
    }
}

impl DiskQueue for TestDisk {
    unsafe fn push(&mut self, op: DiskOp, spans: &[Span]) -> bool {
        if !self.full {
            self.log.push(op);
            self.queue.push_back((op, spans.to_vec()));
        }
        !self.full
    }
}

impl TestDisk {
    /// Executes the oldest operation.
    pub fn step(&mut self) -> Option<DiskDone> {
        self.step_at(0)
    }

    /// Executes an operation out of turn: the oldest after `older` others.
    pub fn step_at(&mut self, older: usize) -> Option<DiskDone> {
        let (op, spans) = self.queue.remove(older)?;
        let result = match self.script.pop_front().flatten() {
            Some(result) => result,
            // SAFETY: the spans are valid by the promise of the command's submitter.
            None => unsafe { execute(&op, &spans) },
        };
        Some(DiskDone { device: op.device, id: op.id, result })
    }

    /// Takes a place whose descriptor is ready, after `wait` milliseconds at most.
    pub fn ready(&mut self, wait: i32) -> Option<u16> {
        let events = |interest| match interest {
            Interest::Read => libc::POLLIN,
            Interest::Write => libc::POLLOUT,
            Interest::ReadWrite => libc::POLLIN | libc::POLLOUT,
        };
        let poll = |&(_, fd, interest)| libc::pollfd { fd, events: events(interest), revents: 0 };
        let mut polls: Vec<_> = self.watches.iter().map(poll).collect();
        // SAFETY: the list lives during the call.
        while unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as _, wait) } < 0 {
            let error = std::io::Error::last_os_error();
            // A fuzzer's alarm comes every some seconds.
            assert_eq!(error.kind(), std::io::ErrorKind::Interrupted, "{error}");
        }
        let index = polls.iter().position(|poll| poll.revents != 0)?;
        Some(self.watches.remove(index).0)
    }
}

/// Drives one device: submits commands, collects completions and advances the clock to the device's next time-out.
pub struct Bench<D: ?Sized> {
    device: Box<D>,
    /// The disk queue in place of an engine.
    pub disk: TestDisk,
    /// The time that the device is told.
    pub now: Instant,
    /// Completions not yet taken by the test.
    pub completions: Vec<Completion>,
    /// Volumes that the device said it has lost data of.
    pub lost: Vec<Loss>,
    /// The volume of the next commands.
    pub volume: VolumeId,
    buffer: Mapping,
    generation: u32,
}

/// Bytes of the bench's buffer: the largest command with data.
pub const BUFFER: usize = 2 << 20;

impl<D: Device> Bench<D> {
    /// A bench that drives `device`.
    pub fn new(device: D) -> Self {
        Self::boxed(Box::new(device))
    }
}

impl<D: Device + ?Sized> Bench<D> {
    /// Drives a device whose type need not be known.
    pub fn boxed(device: Box<D>) -> Self {
        Self {
            device,
            disk: TestDisk::default(),
            now: Instant(1),
            completions: Vec::new(),
            lost: Vec::new(),
            volume: VolumeId(0),
            buffer: Mapping::new(BUFFER).unwrap(),
            generation: 0,
        }
    }

    /// The device that is driven.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// The device, to change it.
    pub fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// The data buffer of the commands.
    pub fn buffer(&mut self) -> &mut [u8] {
        // SAFETY: the buffer is the bench's, and no command is in flight while a test uses it.
        unsafe { std::slice::from_raw_parts_mut(self.buffer.base(), BUFFER) }
    }

    /// Submits a command on the first `len` bytes of the buffer, in up to three spans cut at multiples of 4096.
    pub fn submit(&mut self, op: Op, flags: BioFlags, offset: u64, len: u32) -> RequestId {
        let mut spans = Vec::new();
        if op == Op::BlockStatus {
            let len = op.buffer_len(len) as usize;
            // SAFETY: the start of the bench's buffer, which outlives its commands.
            spans.push(unsafe { Span::new(self.buffer.base(), len) });
        }
        if op.has_data() {
            let len = len as usize;
            let cuts = [0, (len / 3) & !4095, (len / 2) & !4095, len];
            for cut in cuts.windows(2).filter(|cut| cut[0] < cut[1]) {
                // SAFETY: commands with data fit into the buffer, which outlives its commands.
                spans.push(unsafe { Span::new(self.buffer.base().add(cut[0]), cut[1] - cut[0]) });
            }
        }
        self.submit_spans(op, flags, offset, len, &spans)
    }

    /// Submits a command on `spans`.
    pub fn submit_spans(
        &mut self,
        op: Op,
        flags: BioFlags,
        offset: u64,
        len: u32,
        spans: &[Span],
    ) -> RequestId {
        self.generation += 1;
        let id = RequestId { slot: self.generation % 64, generation: self.generation };
        let command = Command {
            id,
            volume: self.volume,
            op,
            flags,
            offset,
            len,
            first_span: 0,
            spans: spans.len() as u16,
        };
        let batch = CommandBatch { commands: &[command], spans };
        self.submit_batch(batch);
        id
    }

    /// Submits commands on spans that stay valid until the commands are drained.
    pub fn submit_batch(&mut self, batch: CommandBatch<'_>) {
        let mut io = DeviceIo {
            device: DeviceId(3),
            completions: &mut self.completions,
            disk: &mut self.disk,
            lost: &mut self.lost,
        };
        // SAFETY: tests keep the memory that they name until they have drained the bench.
        unsafe { self.device.submit(self.now, batch, &mut io) };
    }

    /// Executes one operation or handles a ready descriptor, or else advances the clock to the next time-out. Returns false when nothing
    /// is pending.
    pub fn step(&mut self) -> bool {
        if self.step_now() {
            return true;
        }
        let Some(at) = self.device.next_timeout() else {
            return false;
        };
        self.now = self.now.max(at);
        let now = self.now;
        self.call(|device, io| device.on_timeout(now, io));
        true
    }

    /// Executes one operation out of turn, after `older` others; returns false when there is none.
    pub fn step_at(&mut self, older: usize) -> bool {
        let (now, done) = (self.now, self.disk.step_at(older));
        if let Some(done) = done {
            self.call(|device, io| device.on_disk(now, done, io));
        }
        done.is_some()
    }

    /// A step that needs no time: an operation, a ready descriptor, or a time-out that has come.
    pub fn step_now(&mut self) -> bool {
        let now = self.now;
        if let Some(done) = self.disk.step() {
            self.call(|device, io| device.on_disk(now, done, io));
            return true;
        }
        if let Some(place) = self.disk.ready(0) {
            self.call(|device, io| device.on_ready(now, place, io));
            return true;
        }
        let is_due = self.device.next_timeout().is_some_and(|at| at <= now);
        if is_due {
            self.call(|device, io| device.on_timeout(now, io));
        }
        is_due
    }

    /// Calls the device as an executor does.
    pub fn call(&mut self, call: impl FnOnce(&mut D, &mut DeviceIo<'_>)) {
        let mut io = DeviceIo {
            device: DeviceId(3),
            completions: &mut self.completions,
            disk: &mut self.disk,
            lost: &mut self.lost,
        };
        call(&mut self.device, &mut io);
    }

    /// Steps until nothing is pending and returns all completions.
    pub fn drain(&mut self) -> Vec<Completion> {
        while self.step() {}
        std::mem::take(&mut self.completions)
    }

    /// Executes one command and returns its completion.
    pub fn run(&mut self, op: Op, flags: BioFlags, offset: u64, len: u32) -> Completion {
        let id = self.submit(op, flags, offset, len);
        let done = self.drain();
        assert_eq!(done.len(), 1, "each command gets exactly one answer: {done:?}");
        assert_eq!(done[0].id, id);
        done[0]
    }

    /// As [`Bench::run`], for a `Write` of zeros without spans.
    pub fn write_zeros(&mut self, flags: BioFlags, offset: u64, len: u32) -> Completion {
        self.submit_spans(Op::Write, flags, offset, len, &[]);
        let done = self.drain();
        assert_eq!(done.len(), 1);
        done[0]
    }
}

/// Checks random commands of whole blocks against a vector. Discards are expected to read as zeros afterwards, as all our
/// devices do. Short transfers are continued as the queue does.
pub fn against_model<D: Device + ?Sized>(
    bench: &mut Bench<D>,
    seed: u64,
    size: usize,
    block: usize,
    steps: usize,
) {
    let mut prng = Prng::new(seed);
    let mut model = vec![0u8; size];
    for step in 0..steps {
        let op = Op::ALL[prng.below(Op::COUNT as u64) as usize];
        let (offset, len) = random_range(&mut prng, size, block);
        let flags = BioFlags([0, 1, 2, 3][prng.below(4) as usize]);
        let range = offset..offset + len;
        let what = format!("seed {seed} step {step}: {op:?} {flags:?} at {offset} + {len}");
        match op {
            Op::Read => {
                bench.buffer()[..len].fill(0xee);
                let hole_ok = flags.with(BioFlags::HOLE_OK);
                let hole = continue_to_end(bench, Op::Read, hole_ok, offset, len, &what);
                if hole {
                    assert!(model[range].iter().all(|&byte| byte == 0), "{what}");
                } else {
                    assert!(bench.buffer()[..len] == model[range], "{what}");
                }
            }
            Op::Write => {
                let stamp = prng.next();
                for (index, byte) in bench.buffer()[..len].iter_mut().enumerate() {
                    *byte = (stamp >> (index % 8 * 8)) as u8 ^ (index / 512) as u8;
                }
                model[range].copy_from_slice(&bench.buffer()[..len]);
                continue_to_end(bench, Op::Write, flags, offset, len, &what);
            }
            Op::BlockStatus => {
                assert_eq!(ok(bench.run(op, flags, offset as u64, len as u32)), Ok(()), "{what}");
                let mut at = offset;
                for Extent { len, state } in extents(bench.buffer(), len as u32) {
                    let zeros = model[at..at + len as usize].iter().all(|&byte| byte == 0);
                    assert!(zeros || !state.contains(ExtentState::ZERO), "{what}: {len} at {at}");
                    at += len as usize;
                }
                assert!(at > offset, "{what}: told nothing");
            }
            Op::Flush | Op::Prefetch => {
                assert_eq!(ok(bench.run(Op::Flush, flags, 0, 0)), Ok(()), "{what}");
            }
            Op::Discard | Op::WriteZeroes => {
                let done = match prng.below(4) {
                    0 => bench.write_zeros(flags, offset as u64, len as u32),
                    _ => bench.run(op, flags, offset as u64, len as u32),
                };
                assert_eq!((ok(done), done.transferred as usize), (Ok(()), len), "{what}");
                model[range].fill(0);
            }
        }
    }
    let chunk = BUFFER / block * block;
    for offset in (0..size).step_by(chunk) {
        let len = chunk.min(size - offset);
        continue_to_end(bench, Op::Read, BioFlags::NONE, offset, len, "the end");
        assert!(bench.buffer()[..len] == model[offset..offset + len], "the end");
    }
}

fn ok(done: Completion) -> Status {
    done.status
}

/// A range of whole blocks: mostly short, sometimes up to 256 KiB.
fn random_range(prng: &mut Prng, size: usize, block: usize) -> (usize, usize) {
    let blocks = size / block;
    let most = (256 << 10) / block;
    let first = prng.below(blocks as u64) as usize;
    let shift = prng.below(most.ilog2() as u64 + 1);
    let count = 1 + prng.below(1 << shift) as usize;
    (first * block, count.min(blocks - first) * block)
}

fn continue_to_end<D: Device + ?Sized>(
    bench: &mut Bench<D>,
    op: Op,
    flags: BioFlags,
    offset: usize,
    len: usize,
    what: &str,
) -> bool {
    let mut at = 0;
    loop {
        // SAFETY: within the buffer, as `len` is.
        let span = unsafe { Span::new(bench.buffer.base().add(at), len - at) };
        let rest = (len - at) as u32;
        if at == 0 {
            bench.submit(op, flags, offset as u64, rest);
        } else {
            bench.submit_spans(op, flags, (offset + at) as u64, rest, &[span]);
        }
        let done = bench.drain();
        assert_eq!(done.len(), 1, "{what}");
        assert_eq!(ok(done[0]), Ok(()), "{what}");
        assert!(done[0].transferred > 0 && done[0].transferred <= rest, "{what}");
        at += done[0].transferred as usize;
        if at == len {
            return done[0].hole && done[0].transferred as usize == len;
        }
    }
}

/// A path unique to one test; the file is removed on drop.
pub struct TempFile(PathBuf);

impl TempFile {
    /// Creates an empty file.
    pub fn new(name: &str) -> Self {
        let file = Self::absent(name);
        std::fs::write(file.path(), []).unwrap();
        file
    }

    /// Reserves the path without creating the file.
    pub fn absent(name: &str) -> Self {
        Self::absent_in(&std::env::temp_dir(), name)
    }

    /// Reserves a path in `directory` without creating the file.
    pub fn absent_in(directory: &Path, name: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self(directory.join(format!("headworks-{name}-{}-{number}", std::process::id())))
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        // The file may not exist.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A new directory, removed on drop with everything in it.
pub struct TempDir(TempFile);

impl TempDir {
    /// Creates an empty directory.
    pub fn new(name: &str) -> Self {
        let path = TempFile::absent(name);
        std::fs::create_dir(path.path()).unwrap();
        Self(path)
    }
}

impl std::ops::Deref for TempDir {
    type Target = Path;

    fn deref(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // A test may have removed it.
        let _ = std::fs::remove_dir_all(self.0.path());
    }
}

/// A disk without data that answers after a constant time, at once if that is 0: to measure the path and the simulation, too.
pub struct LateDevice {
    wait_ns: u64,
    answers: VecDeque<(Instant, Completion)>,
}

impl LateDevice {
    /// A disk that answers after `wait_ns` nanoseconds.
    pub fn new(wait_ns: u64) -> Self {
        Self { wait_ns, answers: VecDeque::new() }
    }
}

impl Device for LateDevice {
    unsafe fn submit(&mut self, now: Instant, batch: CommandBatch<'_>, io: &mut DeviceIo<'_>) {
        let at = now.after(self.wait_ns);
        self.answers.extend(batch.commands.iter().map(|command| (at, command.done())));
        self.on_timeout(now, io);
    }
    fn on_timeout(&mut self, now: Instant, io: &mut DeviceIo<'_>) {
        let due = self.answers.partition_point(|(at, _)| *at <= now);
        io.completions.extend(self.answers.drain(..due).map(|(_, answer)| answer));
    }
    fn next_timeout(&self) -> Option<Instant> {
        self.answers.front().map(|(at, _)| *at)
    }
}

/// Returns a writable directory on a memory filesystem, if the machine has one.
pub fn memory_directory() -> Option<PathBuf> {
    let shm = PathBuf::from("/dev/shm");
    let probe = TempFile::absent_in(&shm, "probe");
    std::fs::write(probe.path(), []).ok()?;
    Some(shm)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;
    use std::os::unix::thread::JoinHandleExt;

    use super::*;

    extern "C" fn nothing(_: libc::c_int) {}

    #[test]
    fn wait_for_descriptors_goes_on_after_signals() {
        let handler: extern "C" fn(libc::c_int) = nothing;
        // SAFETY: the handler does nothing, and nothing else in this process uses the signal.
        unsafe { libc::signal(libc::SIGUSR1, handler as *const () as libc::sighandler_t) };
        let (heard, mut bell) = UnixStream::pair().unwrap();
        let waiting = std::thread::spawn(move || {
            let mut disk = TestDisk::default();
            disk.watch_place(DeviceId(0), 3, heard.as_raw_fd(), Interest::Read);
            disk.ready(60_000)
        });
        for _ in 0..1000 {
            // SAFETY: a thread that was not joined.
            unsafe { libc::pthread_kill(waiting.as_pthread_t(), libc::SIGUSR1) };
            std::thread::yield_now();
        }
        bell.write_all(&[0]).unwrap();
        assert_eq!(waiting.join().unwrap(), Some(3));
    }
}
