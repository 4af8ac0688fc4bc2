//! Volumes with jobs, one side of a comparison: owners of the library that hold them in their caches, or files and block devices in the
//! kernel's.
//!
//! ```text
//!   ours:   job 0..n --Handle--> owner 0 (cache, null device) = volume 0     job n..2n --> owner 1 = volume 1    ...
//!   kernel: job 0..n --pread, pwrite--> file or device 0                     job n..2n --> file or device 1      ...
//! ```
//!
//! A job is a thread's own means of one call at a time, with a buffer of its own: a slot of a handle, or a descriptor of an opened file.

use std::path::{Path, PathBuf};

use headworks::{
    DeviceSetup, Handle, Io, IoCompletion, NullDevice, Owner, OwnerOptions, VolumeId, WaitOutcome,
};
use headworks_core::cache::folio::BLOCK;
use headworks_core::writeback::DirtyOptions;
use headworks_core::{CacheOptions, ConfigError, Op, QueueOptions, VolumeOptions};

use super::broken;
use super::driver::{stamp, stamp_all};
use super::kernel::Kernel;

/// Bytes of a write that fills a cache.
const FILL_BYTES: u32 = 1 << 20;
/// Bytes of a call of a job.
pub const CALL_BYTES: u32 = 64 << 10;

/// A thread's means of one call at a time.
pub trait Job: Send {
    /// Makes one call: a read, a write of stamped blocks, or a discard.
    ///
    /// # Errors
    /// The call failed.
    fn call(&mut self, op: Op, offset: u64, len: u32) -> Result<(), ConfigError>;

    /// I/Os for which the job had to sleep, since it was made.
    fn sleeps(&self) -> u64;
}

impl Job for Kernel {
    fn call(&mut self, op: Op, offset: u64, len: u32) -> Result<(), ConfigError> {
        Self::call(self, op, offset, len).map_err(broken)
    }

    fn sleeps(&self) -> u64 {
        0
    }
}

/// A handle and the volume that it uses.
pub struct HandleJob {
    handle: Handle,
    volume: VolumeId,
    completions: Vec<IoCompletion>,
}

fn failed(what: impl ToString) -> ConfigError {
    ConfigError::new("cache", what.to_string())
}

impl Job for HandleJob {
    fn call(&mut self, op: Op, offset: u64, len: u32) -> Result<(), ConfigError> {
        self.run(op, offset, len, |_| Ok(()))
    }

    fn sleeps(&self) -> u64 {
        self.handle.counts().sleeps
    }
}

impl HandleJob {
    /// Makes a call, and looks at the slot afterwards.
    fn run(
        &mut self,
        op: Op,
        offset: u64,
        len: u32,
        look: impl FnOnce(&[u8]) -> Result<(), ConfigError>,
    ) -> Result<(), ConfigError> {
        let mut slot = self.handle.slot().ok_or_else(|| failed("a job has no slot"))?;
        if op == Op::Write {
            stamp_all(&mut slot[..len as usize], offset);
        }
        let io = Io::new(op, offset, len);
        self.handle.put(self.volume, slot, io).map_err(|rejected| failed(rejected.reason))?;
        self.handle.submit();
        while self.handle.reap(1, &mut self.completions) == 0 {
            if self.handle.wait() != WaitOutcome::Ready {
                return Err(failed("the owner ended"));
            }
        }
        let completion = self.completions.pop().ok_or_else(|| failed("no completion"))?;
        completion.status.map_err(|error| failed(format!("{op:?} failed: {error:?}")))?;
        let slot = completion.slot.ok_or_else(|| failed("a call timed out"))?;
        look(&slot)?;
        self.handle.release(slot);
        Ok(())
    }
}

/// The sizes of a side: how much is cached of each volume, and how many jobs it has.
#[derive(Clone, Copy, Debug)]
pub struct Volume {
    /// Bytes of the volume, all of which are cached.
    pub size: u64,
    /// Jobs that use it.
    pub jobs: u32,
}

/// One side of a comparison.
pub trait Side {
    /// Its jobs.
    type Job: Job;

    /// Its name in rows.
    fn name(&self) -> &str;

    /// The jobs of all volumes in their order.
    fn jobs(&mut self) -> &mut [Self::Job];

    /// Writes all of a volume once, so that it is cached, and dirty.
    ///
    /// # Errors
    /// A write failed.
    fn dirty_all(&mut self, volume: usize) -> Result<(), ConfigError>;

    /// Writes out what is dirty of a volume.
    ///
    /// # Errors
    /// The device failed.
    fn settle(&mut self, volume: usize) -> Result<(), ConfigError>;
}

/// Owners over null devices.
pub struct OwnedVolumes {
    name: String,
    // First, so that they are dropped before the owners wait for them.
    jobs: Vec<HandleJob>,
    volumes: Vec<Volume>,
    /// The first job of each volume.
    first: Vec<usize>,
    _owners: Vec<Owner>,
}

impl OwnedVolumes {
    /// Owners with as many volumes each as `volumes` has in an element, and folios up to `max_folio_order`.
    ///
    /// # Errors
    /// Not enough memory, or an owner cannot start.
    pub fn new(name: &str, max_folio_order: u8, owners: &[&[Volume]]) -> Result<Self, ConfigError> {
        let mut made = Self {
            name: name.into(),
            jobs: Vec::new(),
            volumes: Vec::new(),
            first: Vec::new(),
            _owners: Vec::new(),
        };
        for volumes in owners {
            made.add_owner(max_folio_order, volumes)?;
        }
        for volume in 0..made.volumes.len() {
            made.dirty_all(volume)?;
            made.settle(volume)?;
        }
        Ok(made)
    }

    fn add_owner(&mut self, max_folio_order: u8, volumes: &[Volume]) -> Result<(), ConfigError> {
        let jobs: u32 = volumes.iter().map(|volume| volume.jobs).sum();
        let size: u64 = volumes.iter().map(|volume| volume.size).sum();
        // All of it may be dirty without a write-out beside the jobs: the background threshold is at most half of the limit.
        let units = (size / u64::from(BLOCK) * 5 / 2).next_multiple_of(512) as u32;
        let dirty = DirtyOptions {
            dirty_ratio: 90,
            dirty_background_ratio: 90,
            dirty_writeback_centisecs: 0,
            ..DirtyOptions::default()
        };
        let (owner, handles) = Owner::start(OwnerOptions {
            handles: jobs as usize,
            depth: 1,
            slot_bytes: FILL_BYTES as usize,
            cache: CacheOptions { units, writers_max: jobs + 1, ..CacheOptions::default() },
            dirty,
            ..OwnerOptions::default()
        })?;
        let queue = QueueOptions { max_folio_order, ..NullDevice::queue_options() };
        let mut handles = handles.into_iter();
        for &volume in volumes {
            let device = owner.add_device(DeviceSetup::new(NullDevice, queue))?;
            let options =
                VolumeOptions { size: volume.size, block_size: 512, ..VolumeOptions::default() };
            let id = owner.add_volume(device, options)?;
            self.first.push(self.jobs.len());
            self.volumes.push(volume);
            let own = handles.by_ref().take(volume.jobs as usize);
            let job = |handle| HandleJob { handle, volume: id, completions: Vec::with_capacity(2) };
            self.jobs.extend(own.map(job));
        }
        self._owners.push(owner);
        Ok(())
    }

    /// Checks the stamp of a block of a volume.
    ///
    /// # Errors
    /// The cache lost the block.
    pub fn check(&mut self, volume: usize, offset: u64) -> Result<(), ConfigError> {
        let job = &mut self.jobs[self.first[volume]];
        job.run(Op::Read, offset, BLOCK, |block| match block[..8] == stamp(offset) {
            true => Ok(()),
            false => Err(failed(format!("the block at {offset} has wrong contents"))),
        })
    }
}

impl Side for OwnedVolumes {
    type Job = HandleJob;

    fn name(&self) -> &str {
        &self.name
    }

    fn jobs(&mut self) -> &mut [HandleJob] {
        &mut self.jobs
    }

    fn dirty_all(&mut self, volume: usize) -> Result<(), ConfigError> {
        let job = &mut self.jobs[self.first[volume]];
        let mut offsets = (0..self.volumes[volume].size).step_by(FILL_BYTES as usize);
        offsets.try_for_each(|offset| job.call(Op::Write, offset, FILL_BYTES))
    }

    fn settle(&mut self, volume: usize) -> Result<(), ConfigError> {
        self.jobs[self.first[volume]].call(Op::Flush, 0, 0)
    }
}

/// Files of a file system, or block devices, in the kernel's page cache.
pub struct KernelVolumes {
    name: String,
    jobs: Vec<Kernel>,
    volumes: Vec<Kernel>,
}

impl KernelVolumes {
    /// Files that are made in a folder, or block devices, one for each volume. They are overwritten.
    ///
    /// # Errors
    /// They cannot be used, or are too few.
    pub fn new(name: &str, paths: &[PathBuf], volumes: &[Volume]) -> Result<Self, ConfigError> {
        let folder = paths.first().filter(|path| path.is_dir());
        let mut made = Self { name: name.into(), jobs: Vec::new(), volumes: Vec::new() };
        for (index, volume) in volumes.iter().enumerate() {
            let file = folder.map(|folder| folder.join(index.to_string()));
            let too_few = || {
                let message = format!("{name}: {} devices are needed", volumes.len());
                ConfigError::new("beside", message)
            };
            let path: &Path = match &file {
                Some(file) => file,
                None => paths.get(index).ok_or_else(too_few)?,
            };
            let first = Kernel::new(name, path, volume.size)?;
            for _ in 0..volume.jobs {
                made.jobs.push(first.reopened(path, CALL_BYTES)?);
            }
            made.volumes.push(first);
        }
        Ok(made)
    }

    /// Pages in a folio of the kernel's cache, if it may be read.
    #[must_use]
    pub fn pages_per_folio(&self) -> Option<f64> {
        self.volumes[0].pages_per_folio()
    }
}

impl Side for KernelVolumes {
    type Job = Kernel;

    fn name(&self) -> &str {
        &self.name
    }

    fn jobs(&mut self) -> &mut [Kernel] {
        &mut self.jobs
    }

    fn dirty_all(&mut self, volume: usize) -> Result<(), ConfigError> {
        self.volumes[volume].overwrite().map_err(broken)
    }

    fn settle(&mut self, volume: usize) -> Result<(), ConfigError> {
        self.volumes[volume].settle().map_err(broken)
    }
}
