//! A disk of the C API: one device with its volume, the thread that owns it, and its queues.

use std::ptr::NonNull;
use std::time::Duration;

use headworks::headworks_core::limits::{LimitKind, LimitTarget, Limits};
use headworks::headworks_core::{ExportConfig, ExportId};
use headworks::{DeviceSetup, Owner, OwnerOptions, VolumeOptions, WriteMode};
use headworks_server::{Assembly, ExportSpec, wait_for_closes};

use crate::error::Failure;
use crate::options::Settings;
use crate::queue::{Queue, VolumeFacts};

/// How long a close waits until a cluster has given up the locks of its images.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);

/// An open disk. Any thread may use it, several at a time, until it is closed.
pub struct Disk {
    owner: Owner,
    /// Each is used by one thread at a time, through its pointer.
    queues: Vec<NonNull<Queue>>,
    pub(crate) capacity: u64,
    pub(crate) block_size: u32,
}

/// Blocks the signals of the calling thread while it exists, so that threads that are started meanwhile have none: handlers of the program run on
/// its own threads. Those that a thread causes itself stay, since one that is blocked ends the process unheard.
struct SignalsBlocked(libc::sigset_t);

impl SignalsBlocked {
    fn new() -> Self {
        let mut blocked = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        let mut before = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: the first call fills `blocked`, the last one `before`, which nothing but a wrong first argument keeps it from.
        unsafe {
            libc::sigfillset(blocked.as_mut_ptr());
            for own in [
                libc::SIGSEGV,
                libc::SIGBUS,
                libc::SIGILL,
                libc::SIGFPE,
                libc::SIGTRAP,
                libc::SIGSYS,
            ] {
                libc::sigdelset(blocked.as_mut_ptr(), own);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, blocked.as_ptr(), before.as_mut_ptr());
            Self(before.assume_init())
        }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: the mask that the thread had before.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut())
        };
    }
}

impl Disk {
    /// Opens what a SPEC names.
    pub(crate) fn open(spec: &str, settings: &Settings) -> Result<Self, Failure> {
        let _blocked = SignalsBlocked::new();
        let mut export = ExportSpec::parse(spec, true)?;
        export.read_only |= settings.read_only;
        let read_only = !export.writes();
        let mut assembly = Assembly::new(&[export])?;
        if assembly.lacks_writes() {
            let notes = assembly.notes.join(" ");
            return Err(Failure::new(libc::EUCLEAN, notes));
        }
        let (Some((mut queue, device)), Some((_, mut volume))) =
            (assembly.devices.pop(), assembly.volumes.pop())
        else {
            return Err(Failure::invalid(format!("`{spec}` is no device")));
        };
        volume.read_only |= read_only;
        queue.scheduler = settings.scheduler.unwrap_or(queue.scheduler);
        Self::start(DeviceSetup::boxed(device, queue), volume, settings)
    }

    /// Starts the owner of a device with one volume.
    pub(crate) fn start(
        device: DeviceSetup,
        volume: VolumeOptions,
        settings: &Settings,
    ) -> Result<Self, Failure> {
        let options = OwnerOptions { tags_max: device.queue.nr_requests, ..settings.owner };
        let (owner, handles) = Owner::start(options)?;
        let id = owner.add_volume(owner.add_device(device)?, volume)?;
        // The cache takes any bytes: it reads what it needs of their blocks.
        let is_cached = options.cache.is_on() && volume.mode != WriteMode::None;
        let block_size = if is_cached { 1 } else { volume.block_size };
        let facts = VolumeFacts {
            id,
            size: volume.size,
            block_size,
            slot_bytes: options.slot_bytes as u64,
            read_only: volume.read_only,
        };
        let queue = |handle| Box::new(Queue::new(handle, facts));
        let queues = handles.into_iter().map(queue).map(Box::into_raw);
        let queues = queues.filter_map(NonNull::new).collect();
        Ok(Self { owner, queues, capacity: volume.size, block_size })
    }

    /// The queue of a number.
    pub(crate) fn queue(&self, index: u32) -> Option<NonNull<Queue>> {
        self.queues.get(index as usize).copied()
    }

    /// Sets the weight of a queue.
    pub(crate) fn set_weight(&self, queue: u32, weight: u16) -> Result<(), Failure> {
        let share = ExportConfig { weight, ..ExportConfig::default() };
        Ok(self.owner.set_share(export_of(queue), share)?)
    }

    /// Sets the limits of a queue: bytes and I/Os a second, 0 for none.
    pub(crate) fn set_limits(&self, queue: u32, (bytes, ios): (u64, u64)) -> Result<(), Failure> {
        let mut limits = Limits::default();
        limits.rates[LimitKind::BpsTotal as usize].average = bytes;
        limits.rates[LimitKind::IopsTotal as usize].average = ios;
        Ok(self.owner.set_limits(LimitTarget::Export(export_of(queue)), limits)?)
    }

    /// Completes what was submitted, flushes and ends.
    pub(crate) fn close(self) -> Result<(), Failure> {
        let Self { owner, queues, .. } = self;
        for queue in queues {
            // SAFETY: made by `Box::into_raw` in `start`, and freed here alone: the disk is gone afterwards. The program uses no queue
            // of a disk that it closes.
            drop(unsafe { Box::from_raw(queue.as_ptr()) });
        }
        let ended = owner.join();
        let closed = wait_for_closes(CLOSE_LIMIT);
        let report = ended.map_err(|error| {
            Failure::new(
                error.raw_os_error().unwrap_or(libc::EIO),
                format!("the disk did not end well, and unflushed writes may be lost: {error}"),
            )
        })?;
        if let Some((_, error)) = report.flush_errors.first() {
            let message = format!("the last flush failed, and unflushed writes are lost: {error}");
            return Err(Failure::new(error.errno(), message));
        }
        match closed {
            true => Ok(()),
            false => Err(Failure::fixed(
                libc::ETIMEDOUT,
                c"the cluster has not closed the image yet: its lock lasts until the cluster takes it away",
            )),
        }
    }
}

/// The export of a queue: of the handle of its number. No owner has as many as the last one.
fn export_of(queue: u32) -> ExportId {
    ExportId(u16::try_from(queue).unwrap_or(u16::MAX))
}

#[cfg(test)]
mod tests {
    use headworks::headworks_core::Instant;
    use headworks::{Answers, IoError, QueueOptions, SafeDevice, Work};

    use std::ffi::c_int;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::options::Options;
    use crate::*;

    /// A device that fails a read at block n with the error of that number, and panics at a write.
    struct Spoiled;

    impl SafeDevice for Spoiled {
        fn start(&mut self, _: Instant, work: Work, answers: &mut Answers<'_>) {
            assert!(!work.op().is_write(), "the device has a fault");
            let status = IoError::from_code((work.offset() / 512) as u8);
            work.complete(status, answers);
        }
    }

    fn spoiled(flags: u32) -> Box<Disk> {
        // SAFETY: there is no scheduler.
        let settings = unsafe { Options { flags, ..Options::default() }.settings() }.unwrap();
        let volume = VolumeOptions { size: 1 << 20, block_size: 512, ..VolumeOptions::default() };
        let device = DeviceSetup::safe(Spoiled, QueueOptions::default());
        Box::new(Disk::start(device, volume, &settings).unwrap())
    }

    #[test]
    fn every_error_of_a_device_is_the_errno_of_the_completion() {
        let disk = Box::into_raw(spoiled(0));
        // SAFETY: an open disk, its queue, and memory that lives as long.
        unsafe {
            let queue = hw_queue_at(disk, 0);
            let mut bytes = [0_u8; 512];
            // The queue hands out no others.
            let is_seen = |error: &IoError| !matches!(error, IoError::Busy | IoError::NotFlushed);
            for error in IoError::ALL.into_iter().filter(is_seen) {
                let (offset, user_data) = (512 * error as u64, error as u64);
                let put = hw_read(queue, offset, bytes.as_mut_ptr().cast(), 512, 0, user_data);
                assert_eq!(put, 0);
                let mut completion = Completion::default();
                while hw_reap(queue, &raw mut completion, 1) == 0 {
                    assert_eq!(hw_wait(queue, -1), 1);
                }
                assert_eq!((completion.result, completion.user_data), (-error.errno(), user_data));
                let waited = hw_pread(queue, bytes.as_mut_ptr().cast(), 512, offset);
                assert_eq!(waited, -error.errno());
            }
            assert_eq!(hw_close(disk), 0);
        }
    }

    /// Answers a command only once it may.
    struct Late {
        held: Option<Work>,
        looks: Instant,
        may: Arc<AtomicBool>,
    }

    impl SafeDevice for Late {
        fn start(&mut self, now: Instant, work: Work, _: &mut Answers<'_>) {
            (self.held, self.looks) = (Some(work), now);
        }

        fn on_timeout(&mut self, now: Instant, answers: &mut Answers<'_>) {
            match self.may.load(Ordering::Relaxed) {
                true => {
                    self.held.take().into_iter().for_each(|work| work.complete(Ok(()), answers))
                }
                false => self.looks = now.after(1_000_000),
            }
        }

        fn next_timeout(&self) -> Option<Instant> {
            self.held.as_ref().map(|_| self.looks)
        }
    }

    #[test]
    fn registered_memory_is_not_forgotten_while_a_late_device_has_it() {
        #[repr(align(4096))]
        struct Page([u8; 4096]);
        let mut page = Box::new(Page([0; 4096]));
        // SAFETY: there is no scheduler.
        let settings = unsafe { Options::default().settings() }.unwrap();
        let queue = QueueOptions { io_timeout_ns: 1_000_000, ..QueueOptions::default() };
        let volume = VolumeOptions { size: 1 << 20, block_size: 512, ..VolumeOptions::default() };
        let may = Arc::new(AtomicBool::new(false));
        let late = Late { held: None, looks: Instant(0), may: Arc::clone(&may) };
        let device = DeviceSetup::safe(late, queue);
        let disk = Box::into_raw(Box::new(Disk::start(device, volume, &settings).unwrap()));
        // SAFETY: an open disk, its queue, and memory that lives as long.
        unsafe {
            let queue = hw_queue_at(disk, 0);
            let memory = page.0.as_mut_ptr().cast();
            assert_eq!(hw_register(queue, memory, 4096), 0);
            assert_eq!(hw_read(queue, 0, memory, 4096, 0, 0), 0);
            let mut completion = Completion::default();
            while hw_reap(queue, &raw mut completion, 1) == 0 {
                assert_eq!(hw_wait(queue, -1), 1);
            }
            assert_eq!((completion.result, completion.slot), (-libc::ETIMEDOUT, HW_NO_SLOT));
            assert_eq!(hw_unregister(queue, memory), -libc::EBUSY);
            may.store(true, Ordering::Relaxed);
            let mut code = -libc::EBUSY;
            while code == -libc::EBUSY {
                code = hw_unregister(queue, memory);
            }
            assert_eq!((code, hw_close(disk)), (0, 0));
        }
    }

    #[test]
    fn parts_of_blocks_are_refused_but_in_discards() {
        let disk = Box::into_raw(spoiled(0));
        let mut bytes = [0_u8; 1024];
        let buffer = bytes.as_mut_ptr().cast();
        // SAFETY: as above.
        unsafe {
            let queue = hw_queue_at(disk, 0);
            assert_eq!(hw_block_size(disk), 512);
            for code in [
                hw_read(queue, 1, buffer, 512, 0, 0),
                hw_read(queue, 0, buffer, 511, 0, 0),
                hw_write(queue, 512, buffer, 513, 0, 0),
                hw_write_zeroes(queue, 256, 512, 0, 0),
                hw_pread(queue, buffer, 1000, 0),
            ] {
                assert_eq!(code, -libc::EINVAL);
            }
            let sentence = std::ffi::CStr::from_ptr(hw_error()).to_str().unwrap();
            assert!(sentence.contains("whole blocks of 512 bytes"), "{sentence}");
            assert_eq!(hw_discard(queue, 100, 300, 0, 0), 0);
            assert_eq!(hw_close(disk), 0);
        }
    }

    /// The sentence of a call that is refused.
    fn refused(code: c_int) -> String {
        assert_eq!(code, -libc::EINVAL);
        // SAFETY: it stays until the next call that fails.
        unsafe { std::ffi::CStr::from_ptr(hw_error()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn queue_has_a_weight_and_limits() {
        let disk = Box::into_raw(spoiled(0));
        let mut bytes = [0_u8; 1536];
        // SAFETY: as above.
        unsafe {
            let queue = hw_queue_at(disk, 0);
            assert_eq!((hw_set_weight(disk, 0, 700), hw_set_limits(disk, 0, 0, 1)), (0, 0));
            for at in 0..3 {
                let part = bytes.as_mut_ptr().add(512 * at).cast();
                assert_eq!(hw_read(queue, 1 << 19, part, 512, 0, at as u64), 0);
            }
            let began = std::time::Instant::now();
            assert_eq!(hw_wait(queue, -1), 1);
            let mut completions = [Completion::default(); 3];
            let first: c_int = hw_reap(queue, completions.as_mut_ptr(), 3);
            let most = 2 + began.elapsed().as_secs() as c_int;
            assert!((1..=most).contains(&first), "{first} of 3 passed");
            // What one limit held back another lets pass.
            assert_eq!(hw_set_limits(disk, 0, 1 << 30, 0), 0);
            while hw_reap(queue, completions.as_mut_ptr(), 3) > 0 || hw_wait(queue, -1) > 0 {}
            for (code, said) in [
                (refused(hw_set_weight(disk, 0, 0)), "weight: 0 is not within 1..=10000"),
                (refused(hw_set_weight(disk, 65536, 1)), "handle: 65535 is not one of 1"),
                (
                    refused(hw_set_limits(disk, 0, 1, 0)),
                    "bps-total: 1 is too low; the least is 4096",
                ),
                (refused(hw_set_limits(std::ptr::null(), 0, 0, 0)), "disk is null"),
            ] {
                assert_eq!(code, said);
            }
            assert_eq!(hw_close(disk), 0);
        }
    }

    #[test]
    fn panic_of_a_device_is_an_error_and_closes_nothing_but_its_disk() {
        for flags in [0, HW_OPEN_OWNER_DRIVES] {
            let disk = Box::into_raw(spoiled(flags));
            // SAFETY: as above.
            unsafe {
                let queue = hw_queue_at(disk, 0);
                let bytes = [0_u8; 512];
                let code = hw_pwrite(queue, bytes.as_ptr().cast(), 512, 0);
                // In the call, or in the thread of the disk.
                assert!([-libc::ENOTRECOVERABLE, -libc::ESHUTDOWN].contains(&code), "{code}");
                let again = hw_wait(queue, 60_000);
                assert!([-libc::ENOTRECOVERABLE, -libc::ESHUTDOWN].contains(&again), "{again}");
                assert!(hw_close(disk) <= 0);
            }
        }
    }
}
