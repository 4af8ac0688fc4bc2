//! Asynchronous direct I/O on a kernel's device, by the interface that fio calls `libaio`.
//!
//! All commands use one buffer: what reads return and writes contain does not matter here, only when they end. Invariant: the buffer
//! is mapped until the context is destroyed, which waits for all commands.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use headworks_core::Op;

/// The kernel's `struct iocb`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Command {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    len: u64,
    offset: u64,
    reserved: u64,
    flags: u32,
    event_fd: u32,
}

/// The kernel's `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Event {
    data: u64,
    command: u64,
    result: i64,
    result2: i64,
}

const _: () = assert!(size_of::<Command>() == 64 && size_of::<Event>() == 32);

const READ: u16 = 0;
const WRITE: u16 = 1;
/// Most completions of one call.
const EVENTS: usize = 64;

/// A command to the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct AioCommand {
    /// Returned with its completion.
    pub token: u64,
    pub op: Op,
    pub offset: u64,
    pub len: u32,
}

/// A completed command: its token, and the bytes moved or an error number below 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AioCompletion {
    pub token: u64,
    pub result: i64,
}

/// A device with its context and its buffer.
pub(super) struct Aio {
    file: File,
    context: u64,
    buffer: *mut libc::c_void,
    buffer_len: usize,
}

// SAFETY: the buffer is memory of the process that no reference points to; the context belongs to the process, not to a thread.
unsafe impl Send for Aio {}

impl Aio {
    /// A context for `depth` commands of up to `len_max` bytes.
    pub fn new(file: File, depth: u32, len_max: u32) -> io::Result<Self> {
        let buffer_len = len_max as usize;
        // SAFETY: a new private mapping, which nothing else knows.
        let buffer = unsafe {
            let (rights, kind) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            libc::mmap(std::ptr::null_mut(), buffer_len, rights, kind, -1, 0)
        };
        if buffer == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mut aio = Self { file, context: 0, buffer, buffer_len };
        // SAFETY: the kernel fills the number that it is given.
        check(unsafe { libc::syscall(libc::SYS_io_setup, depth, &raw mut aio.context) })?;
        Ok(aio)
    }

    /// Submits commands; blocks while the device's queue has no request left.
    pub fn submit(&self, commands: &[AioCommand]) -> io::Result<()> {
        let mut list: Vec<Command> = commands.iter().map(|command| self.encode(command)).collect();
        let pointers: Vec<*mut Command> = list.iter_mut().map(std::ptr::from_mut).collect();
        let mut sent = 0;
        while sent < pointers.len() {
            let rest = &pointers[sent..];
            // SAFETY: the pointers are to commands that are alive during the call, which copies them; the buffer outlives them.
            let count = check(unsafe {
                libc::syscall(libc::SYS_io_submit, self.context, rest.len(), rest.as_ptr())
            });
            match count {
                Ok(count) => sent += count as usize,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn encode(&self, command: &AioCommand) -> Command {
        assert!(command.len as usize <= self.buffer_len, "the buffer is for the longest command");
        Command {
            data: command.token,
            opcode: if command.op == Op::Write { WRITE } else { READ },
            fd: self.file.as_raw_fd() as u32,
            buffer: self.buffer as u64,
            len: command.len.into(),
            offset: command.offset,
            ..Command::default()
        }
    }

    /// Waits up to `limit_ns` for a completion, and takes all that there are.
    pub fn wait(&self, limit_ns: u64, mut take: impl FnMut(AioCompletion)) -> io::Result<()> {
        let mut events = [Event::default(); EVENTS];
        let limit = libc::timespec {
            tv_sec: (limit_ns / 1_000_000_000) as libc::time_t,
            tv_nsec: (limit_ns % 1_000_000_000) as libc::c_long,
        };
        // SAFETY: the kernel fills up to as many events as the array has.
        let count = check(unsafe {
            let (context, room) = (self.context, EVENTS as libc::c_long);
            let events = events.as_mut_ptr();
            libc::syscall(libc::SYS_io_getevents, context, 1, room, events, &raw const limit)
        });
        match count {
            Ok(count) => {
                for event in &events[..count as usize] {
                    take(AioCompletion { token: event.data, result: event.result });
                }
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Aio {
    fn drop(&mut self) {
        // SAFETY: the context is ours, and the call waits for its commands; then nothing uses the buffer.
        unsafe {
            if self.context != 0 {
                libc::syscall(libc::SYS_io_destroy, self.context);
            }
            libc::munmap(self.buffer, self.buffer_len);
        }
    }
}

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
