//! Devices: what holds or fakes the bytes. One file each; wrappers are devices too.

use std::any::Any;
use std::fmt;
use std::ops::Range;

use headworks_core::extent::{EXTENTS_MAX, ExtentState, ExtentWriter};
use headworks_core::{
    BioFlags, Completion, DeviceId, Instant, IoError, Op, RequestId, Status, VolumeId,
    VolumeOptions,
};

use std::os::fd::RawFd;

use crate::engine::{DiskDone, DiskQueue, Interest};
use crate::memory::Span;

mod file;
mod filter;
mod mem;
mod null;
mod safe;

pub use file::{
    Direct, FileDevice, FileOptions, OpenFile, folder_of, share_lock, size_of_file, sync_directory,
};
pub use filter::{Filter, FilterDevice};
pub use mem::MemDevice;
pub use null::NullDevice;
pub(crate) use safe::Safe;
pub use safe::{Answers, SafeDevice, Work};

/// One command, with its data as spans of [`CommandBatch::spans`].
#[derive(Clone, Copy, Debug)]
pub struct Command {
    /// Given back in the completion.
    pub id: RequestId,
    /// Which of the device's files.
    pub volume: VolumeId,
    /// What to do. A `Write` without spans writes `len` zeros.
    pub op: Op,
    /// `FUA`, `NO_UNMAP`, `HOLE_OK` and `ONE_EXTENT` matter to devices.
    pub flags: BioFlags,
    /// First byte on the volume.
    pub offset: u64,
    /// Length of the range in bytes.
    pub len: u32,
    /// Index of its first span in [`CommandBatch::spans`].
    pub first_span: u32,
    /// Number of its spans.
    pub spans: u16,
}

impl Command {
    /// A flush of a volume.
    #[must_use]
    pub fn flush(id: RequestId, volume: VolumeId) -> Self {
        let flags = BioFlags::NONE;
        Self { id, volume, op: Op::Flush, flags, offset: 0, len: 0, first_span: 0, spans: 0 }
    }

    /// The answer of a command that did all it was asked.
    #[inline]
    #[must_use]
    pub fn done(&self) -> Completion {
        Completion { id: self.id, transferred: self.len, status: Ok(()), hole: false }
    }

    /// The answer of a command that did nothing.
    #[inline]
    #[must_use]
    pub fn failed(&self, error: IoError) -> Completion {
        Completion { transferred: 0, status: Err(error), ..self.done() }
    }

    /// The answer of a command that did all or nothing.
    #[inline]
    #[must_use]
    pub fn ended(&self, status: Status) -> Completion {
        status.map_or_else(|error| self.failed(error), |()| self.done())
    }

    /// Tells the list of a `BlockStatus` command into its one span, by `tell`; it fails if that is too small for an extent.
    ///
    /// # Safety
    /// The command's spans are valid and ours.
    pub unsafe fn tell_extents(
        &self,
        spans: &[Span],
        tell: impl FnOnce(&mut ExtentWriter<'_>),
    ) -> Completion {
        let [span] = spans else { return self.failed(IoError::Invalid) };
        // SAFETY: the caller's promise.
        let bytes = unsafe { span.bytes_mut() };
        let one = self.flags.contains(BioFlags::ONE_EXTENT);
        let mut writer = ExtentWriter::new(bytes, self.len, if one { 1 } else { EXTENTS_MAX });
        tell(&mut writer);
        if writer.finish() == 0 { self.failed(IoError::Invalid) } else { self.done() }
    }

    /// Tells that all of the range of a `BlockStatus` command is data, for a device that knows no holes.
    ///
    /// # Safety
    /// As [`Command::tell_extents`].
    unsafe fn tell_all_data(&self, spans: &[Span]) -> Completion {
        // SAFETY: the caller's promise, passed on.
        unsafe {
            self.tell_extents(spans, |list| _ = list.push(self.len.into(), ExtentState::DATA))
        }
    }
}

/// Commands that are submitted together, in order.
#[derive(Clone, Copy, Debug)]
pub struct CommandBatch<'a> {
    /// The commands, in submission order.
    pub commands: &'a [Command],
    /// The memory of all of them.
    pub spans: &'a [Span],
}

impl<'a> CommandBatch<'a> {
    /// The memory of one of the commands.
    #[inline]
    #[must_use]
    pub fn spans_of(&self, command: &Command) -> &'a [Span] {
        let first = command.first_span as usize;
        &self.spans[first..first + usize::from(command.spans)]
    }

    /// Some neighbouring commands of the batch, with the memory of all; `None` if they are none.
    #[inline]
    #[must_use]
    pub fn part(self, commands: Range<usize>) -> Option<Self> {
        (!commands.is_empty()).then(|| Self { commands: &self.commands[commands], ..self })
    }
}

/// What a device works with while it is called.
pub struct DeviceIo<'a> {
    /// The id of the device on its shard, for the device's file operations.
    pub device: DeviceId,
    /// Where it puts answers, at once or later; each command gets exactly one.
    pub completions: &'a mut Vec<Completion>,
    /// Where it sends file operations, and has its descriptors watched.
    pub disk: &'a mut dyn DiskQueue,
    /// Volumes of which something is lost; see [`DeviceIo::lose`] and [`DeviceIo::give_up`].
    pub lost: &'a mut Vec<Loss>,
}

/// What a device has lost of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Writes that were acknowledged since its last successful flush may be gone.
    Unflushed(VolumeId),
    /// It belongs to another server now: what is cached of it is void, and nothing more can be written.
    Everything(VolumeId),
}

impl Loss {
    /// The volume that is concerned.
    #[must_use]
    pub const fn volume(self) -> VolumeId {
        let (Self::Unflushed(volume) | Self::Everything(volume)) = self;
        volume
    }
}

impl DeviceIo<'_> {
    /// Places of a device, for descriptors that it watches.
    pub const PLACES: u16 = crate::engine::PLACES;

    /// Waits for `interest` on `fd` once; then [`Device::on_ready`] is called with `place`, which is below
    /// [`DeviceIo::PLACES`].
    pub fn watch(&mut self, place: u16, fd: RawFd, interest: Interest) {
        self.disk.watch_place(self.device, place, fd, interest);
    }

    /// Ends the watch of a place; to be called before its descriptor is closed.
    pub fn forget(&mut self, place: u16) {
        self.disk.forget_place(self.device, place);
    }

    /// Says that writes of a volume which were acknowledged since its last successful flush may be gone. Its flushes and FUA writes fail
    /// from then on until an operator acknowledges it. The shard hears it before any completion of this call and of later ones.
    pub fn lose(&mut self, volume: VolumeId) {
        self.lost.push(Loss::Unflushed(volume));
    }

    /// Says that a volume belongs to another server now. Its shard answers nothing from its cache any more and fails every request, until
    /// the volume is removed; flushes fail as after [`DeviceIo::lose`].
    pub fn give_up(&mut self, volume: VolumeId) {
        self.lost.push(Loss::Everything(volume));
    }
}

/// An open image that becomes a volume of a device with several, which knows the types of those that it holds: [`OpenFile`], for one.
pub trait Image: Any + Send + fmt::Debug {
    /// What the volume should be.
    fn volume_options(&self) -> VolumeOptions;
}

impl dyn Image {
    /// The image, if it is a `T`.
    ///
    /// # Errors
    /// The image, if it is something else.
    pub fn downcast<T: Image>(self: Box<Self>) -> Result<Box<T>, Box<dyn Image>> {
        if !(&*self as &dyn Any).is::<T>() {
            return Err(self);
        }
        let image: Box<dyn Any> = self;
        Ok(image.downcast().expect("it was asked"))
    }
}

/// Moves bytes for one queue. Never blocks for long, never panics on what a disk or a user can cause. In an
/// [`Owner`](crate::Owner) any thread that submits may call it, one at a time.
///
/// What only some devices can do is theirs, and found through wrappers: [`find`](trait.Device.html#method.find).
pub trait Device: Any + Send {
    /// Starts every command of the batch. A command that cannot be taken now is answered `Busy`.
    ///
    /// # Safety
    /// The spans are valid, and stay so and unshared as [`Span`] says, until the command's completion was delivered.
    unsafe fn submit(&mut self, now: Instant, batch: CommandBatch<'_>, io: &mut DeviceIo<'_>);

    /// A file operation that the device pushed has ended.
    fn on_disk(&mut self, _now: Instant, _done: DiskDone, _io: &mut DeviceIo<'_>) {}

    /// The descriptor watched in a place may be ready, and its watch is gone. A hint: the place may have been forgotten meanwhile, or used
    /// for another descriptor, so nothing may block here. A call handles at most 64 replies or 256 KiB; a device with more to do watches
    /// again, which calls it in the next turn.
    fn on_ready(&mut self, _now: Instant, _place: u16, _io: &mut DeviceIo<'_>) {}

    /// The time that [`Device::next_timeout`] named has come.
    fn on_timeout(&mut self, _now: Instant, _io: &mut DeviceIo<'_>) {}

    /// When the device wants to be called though nothing else happens. A time that has passed calls it in the next turn; so a device with
    /// descriptors begins to watch them.
    fn next_timeout(&self) -> Option<Instant> {
        None
    }

    /// The device around which this one stands, if it is a wrapper. What is no command goes on to it by default: images, growth, and what
    /// is asked of a device of a certain type.
    fn below(&mut self) -> Option<&mut dyn Device> {
        None
    }

    /// Attaches an image as a new volume of the device.
    ///
    /// # Errors
    /// The image, if the device holds no images of its kind or has one for this volume already.
    fn attach(&mut self, volume: VolumeId, image: Box<dyn Image>) -> Result<(), Box<dyn Image>> {
        let Some(below) = self.below() else { return Err(image) };
        below.attach(volume, image)
    }

    /// Detaches the image of a volume that has no command in flight; `None` if there is none. Dropping what is returned closes and
    /// unlocks the image.
    fn detach(&mut self, volume: VolumeId) -> Option<Box<dyn Send>> {
        self.below()?.detach(volume)
    }

    /// The volume has `size` bytes from now on, not fewer than before; of a file that is the file's size already.
    ///
    /// # Errors
    /// It cannot have them.
    fn grow(&mut self, volume: VolumeId, size: u64) -> Result<(), IoError> {
        self.below().ok_or(IoError::Unsupported)?.grow(volume, size)
    }
}

impl dyn Device {
    /// This device as a `D`, or the first `D` below it. So code that knows a type reaches what only that type can do, whatever filters
    /// and delays stand around it.
    pub fn find<D: Device>(&mut self) -> Option<&mut D> {
        if (&*self as &dyn Any).is::<D>() {
            return (self as &mut dyn Any).downcast_mut();
        }
        self.below()?.find()
    }

    /// The memory that holds the bytes of a volume in their order, if the device lends it: code that holds the device's thread may read
    /// them there, as `Handle::lend` does, without a command and a copy. Not that of a device below, since what is read there passes no
    /// wrapper.
    pub(crate) fn memory(&self) -> Option<Span> {
        (self as &dyn Any).downcast_ref().map(MemDevice::memory)
    }
}
