//! What a program says when it opens a disk: `struct hw_options`, which may grow.
//!
//! The first field is the size of the struct as the program was compiled with. A library that knows more fields takes the missing ones as zeros,
//! their defaults; one that knows fewer refuses those that are not zero. So a program and a library of different versions understand
//! each other or say that they do not.

use std::ffi::{CStr, c_char};
use std::mem::size_of;

use headworks::{CacheOptions, EngineChoice, OwnerOptions, Scheduler};

use crate::error::Failure;

/// `hw_options.flags`: writes, discards and zeroing fail with `EPERM`, and a file is opened for reading alone.
pub const HW_OPEN_READ_ONLY: u32 = 1;
/// `hw_options.flags`: the library's own thread does all work, so that `hw_submit` never takes longer than to hand it over. Without it the
/// threads that submit and wait do the work, which costs half as much CPU.
pub const HW_OPEN_OWNER_DRIVES: u32 = 2;

/// `hw_options.engine`: io_uring where it works, else threads.
pub const HW_ENGINE_AUTO: u32 = 0;
/// `hw_options.engine`: io_uring, or `hw_open` fails.
pub const HW_ENGINE_URING: u32 = 1;
/// `hw_options.engine`: threads that wait in system calls.
pub const HW_ENGINE_THREADS: u32 = 2;

/// The largest size of a struct of options of any version.
const SIZE_MAX: usize = 4096;
const QUEUES_MAX: u32 = 1024;
const DEPTH_MAX: u32 = 4096;
/// 64 KiB: what a kernel's read-ahead or a copy of an image asks for at once, most often.
const SLOT_BYTES: u32 = 64 << 10;
/// Bytes of a frame of the page cache.
const FRAME: u64 = 4096;

/// Options of `hw_open`. Set all of it to zero, then `size`, then what differs from the default.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// `sizeof(struct hw_options)`.
    pub size: u32,
    /// Any of `HW_OPEN_READ_ONLY` and `HW_OPEN_OWNER_DRIVES`.
    pub flags: u32,
    /// Number of queues, 1 to 1024: one for each thread that does I/O. 0 is 1.
    pub queues: u32,
    /// I/Os that each queue can have in flight, 1 to 4096. 0 is 32.
    pub depth: u32,
    /// Bytes of the largest read or write, at least the block size; `queues * depth * slot_bytes` are allocated. 0 is 64 KiB.
    pub slot_bytes: u32,
    /// `HW_ENGINE_AUTO`, `HW_ENGINE_URING` or `HW_ENGINE_THREADS`.
    pub engine: u32,
    /// Bytes of the page cache. 0: none, and reads and writes are whole blocks of the device.
    pub cache_bytes: u64,
    /// The scheduler: "none", "mq-deadline" or "bfq". Null: that of the device.
    pub scheduler: *const c_char,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            size: size_of::<Self>() as u32,
            flags: 0,
            queues: 0,
            depth: 0,
            slot_bytes: 0,
            engine: HW_ENGINE_AUTO,
            cache_bytes: 0,
            scheduler: std::ptr::null(),
        }
    }
}

/// Options that were read and checked.
pub struct Settings {
    pub read_only: bool,
    pub scheduler: Option<Scheduler>,
    pub owner: OwnerOptions,
}

impl Options {
    /// Copies the options of a program; null are the defaults.
    ///
    /// # Safety
    /// `theirs` is null or points to as many bytes as its first field says.
    pub unsafe fn read(theirs: *const Self) -> Result<Self, Failure> {
        let mut options = Self::default();
        if theirs.is_null() {
            return Ok(options);
        }
        // SAFETY: the first field is there, says the caller; the pointer may have any alignment.
        let size = unsafe { theirs.cast::<u32>().read_unaligned() } as usize;
        if !(size_of::<Self>()..=SIZE_MAX).contains(&size) {
            let message = format!(
                "options.size is {size}: set it to sizeof(struct hw_options), which is {}",
                size_of::<Self>()
            );
            return Err(Failure::invalid(message));
        }
        // SAFETY: the program has as many bytes.
        let bytes = unsafe { std::slice::from_raw_parts(theirs.cast::<u8>(), size) };
        if bytes[size_of::<Self>()..].iter().any(|&byte| byte != 0) {
            let version = env!("CARGO_PKG_VERSION");
            let message = format!(
                "options has fields that version {version} of the library does not know: leave them 0, or use a newer library"
            );
            return Err(Failure::new(libc::E2BIG, message));
        }
        // SAFETY: both have so many bytes; every value of them is a value of the fields.
        unsafe {
            let own = (&raw mut options).cast::<u8>();
            own.copy_from_nonoverlapping(bytes.as_ptr(), size_of::<Self>());
        }
        Ok(options)
    }

    /// Checks the values.
    ///
    /// # Safety
    /// `scheduler` is null or a C string.
    pub unsafe fn settings(&self) -> Result<Settings, Failure> {
        let known = HW_OPEN_READ_ONLY | HW_OPEN_OWNER_DRIVES;
        if self.flags & !known != 0 {
            let message = format!("options.flags is {:#x}, and {known:#x} are known", self.flags);
            return Err(Failure::invalid(message));
        }
        let queues = within("queues", self.queues.max(1), QUEUES_MAX)?;
        let depth = if self.depth == 0 { OwnerOptions::default().depth } else { self.depth };
        let slot_bytes = if self.slot_bytes == 0 { SLOT_BYTES } else { self.slot_bytes };
        let engine = match self.engine {
            HW_ENGINE_AUTO => EngineChoice::Auto,
            HW_ENGINE_URING => EngineChoice::Uring,
            HW_ENGINE_THREADS => EngineChoice::Threads,
            other => {
                let message = format!("options.engine is {other}: use one of HW_ENGINE_*");
                return Err(Failure::invalid(message));
            }
        };
        let mut chosen = None;
        if !self.scheduler.is_null() {
            // SAFETY: a C string, says the caller.
            chosen = Some(scheduler(unsafe { text("options.scheduler", self.scheduler) }?)?);
        }
        let units = u32::try_from(self.cache_bytes.div_ceil(FRAME)).unwrap_or(u32::MAX);
        let mut cache = CacheOptions { units, ..CacheOptions::default() };
        // One for each handle and one for the owner.
        cache.writers_max = cache.writers_max.max(queues + 1);
        cache.validate()?;
        let mut owner = OwnerOptions {
            handles: queues as usize,
            depth: within("depth", depth, DEPTH_MAX)?,
            slot_bytes: slot_bytes as usize,
            cache,
            engine,
            devices_max: 1,
            volumes_max: 1,
            ..OwnerOptions::default()
        };
        if self.flags & HW_OPEN_OWNER_DRIVES != 0 {
            owner.drive = headworks::Drive::Thread;
        }
        let read_only = self.flags & HW_OPEN_READ_ONLY != 0;
        Ok(Settings { read_only, scheduler: chosen, owner })
    }
}

fn scheduler(name: &str) -> Result<Scheduler, Failure> {
    let found = Scheduler::ALL.into_iter().find(|known| known.name() == name);
    found.ok_or_else(|| {
        let names = Scheduler::NAMES.join(", ");
        Failure::invalid(format!("options.scheduler is `{name}`: use one of {names}"))
    })
}

fn within(field: &str, value: u32, most: u32) -> Result<u32, Failure> {
    match (1..=most).contains(&value) {
        true => Ok(value),
        false => {
            Err(Failure::invalid(format!("options.{field} is {value}, not within 1..={most}")))
        }
    }
}

/// The text of an argument.
///
/// # Safety
/// `from` is null or a C string, which lives as long as the text is used.
pub unsafe fn text<'a>(what: &str, from: *const c_char) -> Result<&'a str, Failure> {
    if from.is_null() {
        return Err(Failure::invalid(format!("{what} is null")));
    }
    // SAFETY: as the caller says.
    let bytes = unsafe { CStr::from_ptr(from) };
    bytes.to_str().map_err(|_| Failure::invalid(format!("{what} is no UTF-8")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errno(options: &Options) -> Option<i32> {
        // SAFETY: options of this library's own version.
        unsafe { Options::read(options).and_then(|read| read.settings()) }.err().map(|e| e.errno)
    }

    #[test]
    fn zeros_and_null_are_the_defaults() {
        // SAFETY: null is allowed.
        let options = unsafe { Options::read(std::ptr::null()) }.unwrap();
        // SAFETY: there is no scheduler.
        let Settings { read_only, scheduler, owner } = unsafe { options.settings() }.unwrap();
        assert!(!read_only && scheduler.is_none() && !owner.cache.is_on());
        assert_eq!((owner.handles, owner.depth, owner.slot_bytes), (1, 32, 65536));
    }

    #[test]
    fn values_out_of_range_are_refused() {
        let wrong = [
            Options { flags: 4, ..Options::default() },
            Options { queues: 1025, ..Options::default() },
            Options { depth: 4097, ..Options::default() },
            Options { engine: 3, ..Options::default() },
            Options { scheduler: c"noop".as_ptr(), ..Options::default() },
            Options { scheduler: c"\xff".as_ptr(), ..Options::default() },
            Options { cache_bytes: u64::MAX, ..Options::default() },
            Options { size: 0, ..Options::default() },
            Options { size: size_of::<Options>() as u32 - 1, ..Options::default() },
            Options { size: 4097, ..Options::default() },
        ];
        for options in wrong {
            assert_eq!(errno(&options), Some(libc::EINVAL), "{options:?}");
        }
        assert_eq!(errno(&Options { scheduler: c"bfq".as_ptr(), ..Options::default() }), None);
        assert_eq!(
            errno(&Options { queues: 1024, cache_bytes: 1 << 20, ..Options::default() }),
            None
        );
    }

    #[test]
    fn newer_options_are_taken_while_their_new_fields_are_zero() {
        #[repr(C)]
        struct Newer {
            known: Options,
            added: u64,
        }
        let size = size_of::<Newer>() as u32;
        let mut newer = Newer { known: Options { size, depth: 9, ..Options::default() }, added: 0 };
        // SAFETY: as many bytes as `size` says, here and below.
        let read = unsafe { Options::read((&raw const newer).cast()) }.unwrap();
        assert_eq!(read.depth, 9);
        newer.added = 1;
        // SAFETY: as above.
        let refused = unsafe { Options::read((&raw const newer).cast()) }.unwrap_err();
        assert_eq!(refused.errno, libc::E2BIG);
    }
}
