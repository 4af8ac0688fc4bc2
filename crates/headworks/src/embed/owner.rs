//! The owner as the embedding program sees it: start, hot-add, hot-remove, end.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use headworks_core::limits::{ClientSetting, LimitTarget, Limits};
use headworks_core::options::TENANTS_MAX;
use headworks_core::stats::VolumeStats;
use headworks_core::{
    ChangeError, ConfigError, DeviceId, ExportConfig, ExportId, Instant, IoError, Notice,
    TenantConfig, TenantId, VolumeId, VolumeOptions, WriteMode,
};

use super::driver::{Client, Driver};
use super::driving::SharedDriver;
use super::handle::{Handle, Parts, RingCounts};
use super::parker::Parker;
use super::removal::{Answer, Claim, Removal};
use super::thread::OwnerThread;
use super::{
    Buffers, DeviceSetup, JOINING, OwnerOptions, OwnerState, SHUTTING_DOWN, ShutdownGuard,
};
use crate::device::{Device, FileDevice, Image, OpenFile};
use crate::ring::{Sleeper, ring};

/// How long a caller whose time is over waits for the owner's own answer.
const OWN_ANSWER: Duration = Duration::from_millis(100);
/// Time between two tries to give a removal up.
const STEP: Duration = Duration::from_millis(1);
const LENDS_HERE: &str = "this thread has lent bytes, and the owner waits until they are dropped: drop them before the call";

fn ended() -> ConfigError {
    ConfigError::new("owner", "the owner's thread has ended")
}

/// The statistics of an owner that has ended.
#[derive(Clone, Debug, Default)]
pub struct OwnerReport {
    /// Statistics of the volumes that were there at the end.
    pub volumes: Vec<(VolumeId, VolumeStats)>,
    /// Calls of the shard.
    pub turns: u64,
    /// Those of `turns` on the threads of feeders ([`Drive::Feeders`]).
    ///
    /// [`Drive::Feeders`]: super::Drive::Feeders
    pub feeder_turns: u64,
    /// Times that a feeder had driven for long enough and left with batches of others in their rings.
    pub hand_overs: u64,
    /// Replies, and the cost of the owner's end of the rings.
    pub counts: RingCounts,
    /// The first 16 notices of the shard: devices that break the protocol, failed flushes.
    pub notices: Vec<Notice>,
    /// Cached volumes whose final flush failed: data were lost.
    pub flush_errors: Vec<(VolumeId, IoError)>,
}

/// What the owner's thread is asked to do with the right to drive; it sends its own answer.
pub(super) type Command = Box<dyn FnOnce(&mut Driver, Instant) + Send>;

/// The owner of devices, volumes and the cache, with a thread of its own.
///
/// Devices and volumes are added and removed while it runs. A dropped owner ends as by [`Owner::shutdown`], and failures
/// are logged.
///
/// ```
/// use headworks::{DeviceSetup, Io, MemDevice, Owner, OwnerOptions, VolumeOptions};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (owner, mut handles) = Owner::start(OwnerOptions::default())?;
/// let disk = DeviceSetup::new(MemDevice::new(1 << 20)?, MemDevice::queue_options());
/// let device = owner.add_device(disk)?;
/// let options = VolumeOptions { size: 1 << 20, block_size: 512, ..Default::default() };
/// let volume = owner.add_volume(device, options)?;
///
/// let handle = &mut handles[0];
/// let mut slot = handle.slot().ok_or("no free slot")?;
/// slot.fill(7);
/// handle.put(volume, slot, Io::write(0, 4096).fua())?;
/// let mut completions = Vec::new();
/// while handle.reap(1, &mut completions) == 0 {
///     handle.wait();
/// }
/// completions[0].status?;
///
/// drop(handles);
/// let report = owner.join()?;
/// assert!(report.flush_errors.is_empty());
/// # Ok(())
/// # }
/// ```
pub struct Owner {
    commands: Sender<Command>,
    shared: Arc<SharedDriver>,
    thread: Option<JoinHandle<io::Result<OwnerReport>>>,
}

impl Owner {
    /// Starts the owner's thread, without devices.
    ///
    /// # Errors
    /// An option is out of range, or memory, a thread, a file descriptor or an engine cannot be had.
    pub fn start(options: OwnerOptions) -> Result<(Self, Vec<Handle>), ConfigError> {
        options.validate()?;
        let sleeper = Arc::new(Sleeper::default());
        let (mut clients, mut ends) = (Vec::new(), Vec::new());
        let depth = options.depth as usize;
        for _ in 0..options.handles {
            let parker = Parker::new().map_err(|error| {
                ConfigError::new("handles", format!("cannot make an eventfd for each: {error}"))
            })?;
            let (parker, own_sleeper) = (Arc::new(parker), Arc::new(Sleeper::default()));
            let (bio_in, bios) = ring(depth, &sleeper);
            // A bio that timed out has two replies: `Early` and `Released`.
            let (reply_in, replies) = ring(2 * depth, &own_sleeper);
            let buffers = Arc::new(Buffers::new(options.depth, options.slot_bytes)?);
            ends.push((bio_in, replies, own_sleeper, Arc::clone(&parker), Arc::clone(&buffers)));
            clients.push(Client::new(bios, reply_in, parker, buffers));
        }
        let (commands, inbox) = mpsc::channel();
        let (ready, started) = mpsc::channel();
        let parkers = clients.iter().map(|client| Arc::clone(&client.parker)).collect();
        let state = Arc::new(OwnerState { parkers, ..OwnerState::default() });
        let thread = std::thread::Builder::new().name("headworks-owner".to_owned());
        let thread = thread.spawn(move || {
            match OwnerThread::new(&options, clients, inbox, sleeper, state) {
                Ok(thread) => {
                    let _guard = ShutdownGuard(Arc::clone(thread.shared()));
                    let _ = ready.send(Ok(Arc::clone(thread.shared())));
                    thread.run()
                }
                Err(error) => {
                    let _ = ready.send(Err(error));
                    Ok(OwnerReport::default())
                }
            }
        });
        let thread = thread
            .map_err(|error| ConfigError::new("threads", format!("cannot start one: {error}")))?;
        let shared: Arc<SharedDriver> = started
            .recv()
            .map_err(|_| ConfigError::new("threads", "the owner's thread died at its start"))??;
        let handle = |(index, (bios, replies, sleeper, parker, buffers))| {
            Handle::new(Parts {
                index,
                depth: options.depth,
                buffers,
                bios,
                replies,
                sleeper,
                parker,
                shared: Arc::clone(&shared),
            })
        };
        let handles = (0..).zip(ends).map(handle).collect();
        Ok((Self { commands, shared, thread: Some(thread) }, handles))
    }

    /// Adds a device.
    ///
    /// # Errors
    /// An option is out of range, or `devices_max` or `tags_max` is reached.
    pub fn add_device(&self, setup: DeviceSetup) -> Result<DeviceId, ConfigError> {
        self.ask(|driver, now| driver.add_device(now, setup))?
    }

    /// Adds a volume to a device that has one range of bytes.
    ///
    /// # Errors
    /// An option is out of range, a slot is smaller than the block size, or `volumes_max` is reached.
    pub fn add_volume(
        &self,
        device: DeviceId,
        options: VolumeOptions,
    ) -> Result<VolumeId, ConfigError> {
        self.ask(move |driver, now| driver.add_volume(now, device, options, None))?
    }

    /// Adds an image to a device that holds several ([`Device::attach`]), as a [`FileDevice`] does files. Without a cache `mode` has no effect.
    ///
    /// # Errors
    /// As [`Owner::add_volume`]; or the device holds no images of this kind.
    pub fn add_image(
        &self,
        device: DeviceId,
        image: impl Image,
        mode: WriteMode,
    ) -> Result<VolumeId, ConfigError> {
        let options = VolumeOptions { mode, ..image.volume_options() };
        let image: Box<dyn Image> = Box::new(image);
        self.ask(move |driver, now| driver.add_volume(now, device, options, Some(image)))?
    }

    /// Adds a [`FileDevice`] of its own with one image.
    ///
    /// # Errors
    /// As [`Owner::add_device`] and [`Owner::add_image`].
    pub fn add_file(&self, image: OpenFile, mode: WriteMode) -> Result<VolumeId, ConfigError> {
        let queue = image.queue_options();
        let device = self.add_device(DeviceSetup::new(FileDevice::new(Vec::new()), queue))?;
        self.add_image(device, image, mode).inspect_err(|_| {
            let _ = self.remove_device(device, Duration::from_secs(1));
        })
    }

    /// Removes a volume: rejects new I/Os, flushes what is cached, and waits for the I/Os in flight. Its id is reused last.
    ///
    /// # Errors
    /// There is no such volume, its flush failed, or something still used it when `timeout` expired. It then works as before.
    pub fn remove_volume(&self, volume: VolumeId, timeout: Duration) -> Result<(), ChangeError> {
        self.ask_within(timeout, move |until, answer| Removal::volume(volume, until, answer))
    }

    /// Removes a device without volumes, and returns it.
    ///
    /// # Errors
    /// There is no such device, it has volumes, or it still had commands when `timeout` expired.
    pub fn remove_device(
        &self,
        device: DeviceId,
        timeout: Duration,
    ) -> Result<Box<dyn Device>, ChangeError> {
        self.ask_within(timeout, move |until, answer| Removal::device(device, until, answer))
    }

    /// Sets the share of a handle ([`Handle::export`]): its weight beside others of its tenant, the tenant, a latency target, and how much of
    /// the cache it may have dirty. It begins with the default of each.
    ///
    /// # Errors
    /// A value is out of range, or no handle has the number.
    pub fn set_share(&self, handle: ExportId, share: ExportConfig) -> Result<(), ConfigError> {
        share.validate()?;
        self.check_target(LimitTarget::Export(handle))?;
        self.set(ClientSetting::Share(handle, share))
    }

    /// Sets the weight of a tenant beside other tenants and handles without one, 1..=10000.
    ///
    /// # Errors
    /// The weight is out of range, or there can be no such tenant.
    pub fn set_tenant_weight(&self, tenant: TenantId, weight: u16) -> Result<(), ConfigError> {
        TenantConfig { weight, ..TenantConfig::default() }.validate()?;
        self.check_target(LimitTarget::Tenant(tenant))?;
        self.set(ClientSetting::TenantWeight(tenant, weight))
    }

    /// Limits bytes and I/Os a second of a handle, of a tenant's handles together, or of all ([`LimitTarget::Server`]). What is beyond it waits
    /// behind [`Handle::submit`], reads and writes of a handle each in their order. Flushes and [`Handle::lend`] are free; the owner's end is, too.
    ///
    /// # Errors
    /// A limit is out of range, or there can be no such handle or tenant.
    pub fn set_limits(&self, target: LimitTarget, limits: Limits) -> Result<(), ConfigError> {
        limits.validate()?;
        self.check_target(target)?;
        self.set(ClientSetting::Limits(target, limits))
    }

    fn set(&self, setting: ClientSetting) -> Result<(), ConfigError> {
        self.ask(move |driver, now| driver.apply(now, &setting))
    }

    fn check_target(&self, target: LimitTarget) -> Result<(), ConfigError> {
        let (option, number, places) = match target {
            LimitTarget::Server => return Ok(()),
            LimitTarget::Tenant(tenant) => ("tenant", tenant.0, TENANTS_MAX),
            LimitTarget::Export(export) => ("handle", export.0, self.shared.state.parkers.len()),
        };
        match usize::from(number) < places {
            true => Ok(()),
            false => Err(ConfigError::new(option, format!("{number} is not one of {places}"))),
        }
    }

    /// The statistics of a volume; `None` if there is no such volume, the owner has ended or this thread has [`LentBytes`](super::LentBytes).
    #[must_use]
    pub fn stats(&self, volume: VolumeId) -> Option<VolumeStats> {
        self.ask(move |driver, _| driver.shard.stats(volume).cloned()).ok()?
    }

    /// Waits until every handle is dropped, completes what is in flight, flushes the cached volumes and ends.
    ///
    /// # Errors
    /// The engine failed, the thread panicked, or a device did not complete its commands within the shutdown time-out after
    /// the last handle was dropped.
    pub fn join(mut self) -> io::Result<OwnerReport> {
        self.end(JOINING)
    }

    /// Completes what was submitted, flushes the cached volumes and ends. Handles may still exist; what they submit later is never
    /// completed.
    ///
    /// # Errors
    /// As [`Owner::join`]; or this thread has [`LentBytes`](super::LentBytes): the owner ends when they are dropped.
    pub fn shutdown(mut self) -> io::Result<OwnerReport> {
        self.end(SHUTTING_DOWN)
    }

    fn end(&mut self, how: u8) -> io::Result<OwnerReport> {
        let Some(thread) = self.thread.take() else {
            return Err(io::Error::other("the owner has ended"));
        };
        // Release: pairs with `OwnerState::is_ending`.
        self.shared.state.end.store(how, Ordering::Release);
        self.shared.owner.wake();
        if self.shared.lends_here() {
            return Err(io::Error::other(LENDS_HERE));
        }
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the owner's thread panicked")))
    }

    fn ask<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut Driver, Instant) -> T + Send + 'static,
    ) -> Result<T, ConfigError> {
        let (answer, answered) = mpsc::channel();
        // An owner that is gone does not wait for its answer.
        self.send(Box::new(move |driver, now| _ = answer.send(call(driver, now))))?;
        answered.recv().map_err(|_| ended())
    }

    /// As [`Owner::ask`], for at most `timeout` of the caller's clock, and a little for the owner's own answer, which says what
    /// is in flight. After [`ChangeError::Busy`] nothing has changed, and nothing will.
    fn ask_within<T: Send + 'static>(
        &self,
        timeout: Duration,
        removal: impl FnOnce((Instant, Claim), Answer<T>) -> Removal + Send + 'static,
    ) -> Result<T, ChangeError> {
        let ((answer, answered), claim) = (mpsc::channel(), Claim::default());
        let its = claim.clone();
        self.send(Box::new(move |driver, now| {
            let deadline = Instant(now.0.saturating_add(timeout.as_nanos() as u64));
            driver.begin_removal(now, removal((deadline, its), answer));
        }))?;
        let mut wait = timeout.saturating_add(OWN_ANSWER);
        loop {
            match answered.recv_timeout(wait) {
                Ok(result) => return result,
                Err(RecvTimeoutError::Disconnected) => return Err(ended().into()),
                Err(RecvTimeoutError::Timeout) if claim.give_up() => {
                    return Err(ChangeError::Busy("the owner's thread waits for lent bytes"));
                }
                // A step of the owner's thread takes microseconds.
                Err(RecvTimeoutError::Timeout) => wait = STEP,
            }
        }
    }

    fn send(&self, command: Command) -> Result<(), ConfigError> {
        if self.shared.lends_here() {
            return Err(ConfigError::new("owner", LENDS_HERE));
        }
        self.commands.send(command).map_err(|_| ended())?;
        // Release: pairs with the swap in `OwnerThread::take_commands`.
        self.shared.state.command.store(true, Ordering::Release);
        self.shared.owner.wake();
        Ok(())
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if self.thread.is_none() {
            return;
        }
        match self.end(SHUTTING_DOWN) {
            Ok(report) => {
                for (volume, error) in report.flush_errors {
                    let volume = volume.0;
                    tracing::error!(
                        "data lost: the final flush of volume {volume} failed: {error}"
                    );
                }
            }
            Err(error) => tracing::error!("a dropped owner did not end well: {error}"),
        }
    }
}
