//! All images of one filesystem as one device with one queue: plain files, and overlays.
//!
//! ```text
//!   commands, by volume ---+--> files: a `FileDevice`       --> operations with the ids of the queue
//!                          `--> overlays, one per volume    --> operations with ids of their own (`overlay::ids`), which
//!                                                               say the overlay's place: the number of its volume
//! ```
//!
//! So tenants compete for the disk, whatever kind of image each has, and the number of overlays is not bounded by the number of devices.
//! The parts know nothing of each other: flushes of an overlay, its rounds and its snapshots are its own. What is shared is the queue
//! above, whose options are what every image can do.
//!
//! Invariants: a volume is a file, an overlay, or nothing; an overlay is in the place of its volume's number, below [`PLACES_MAX`];
//! `in_flight` is the number of its commands that were not answered, and it is not detached before that is 0. No part waits for
//! descriptors or times: an overlay that does ([`OpenOverlay::can_share_device`]) is not attached.

use headworks_core::{Instant, IoError, QueueOptions, VolumeId, VolumeOptions};

use crate::overlay::ids::{PLACES_MAX, place_of};
use crate::{OpenOverlay, OverlayDevice};
use headworks::driver::DiskDone;
use headworks::{Command, CommandBatch, Device, DeviceIo, FileDevice, Image};

/// The images of one filesystem.
pub struct FilesystemDevice {
    files: FileDevice,
    /// By volume.
    overlays: Vec<Option<Box<AttachedOverlay>>>,
}

struct AttachedOverlay {
    device: OverlayDevice,
    queue: QueueOptions,
    in_flight: usize,
}

impl AttachedOverlay {
    fn new(overlay: OpenOverlay, place: u16) -> Self {
        let queue = overlay.shared_queue_options();
        Self { device: overlay.into_device_at(place), queue, in_flight: 0 }
    }

    /// Calls the overlay, and counts its answers.
    fn call(
        &mut self,
        io: &mut DeviceIo<'_>,
        call: impl FnOnce(&mut OverlayDevice, &mut DeviceIo<'_>),
    ) {
        let before = io.completions.len();
        call(&mut self.device, io);
        self.in_flight -= io.completions.len() - before;
    }
}

impl Default for FilesystemDevice {
    fn default() -> Self {
        Self { files: FileDevice::new(Vec::new()), overlays: Vec::new() }
    }
}

impl FilesystemDevice {
    /// Number of volumes that can be overlays, those with the lowest ids; files can be more.
    pub const OVERLAYS_MAX: usize = PLACES_MAX;

    /// A device without images.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What its queue should know: what every one of its images can do.
    #[must_use]
    pub fn queue_options(&self) -> QueueOptions {
        let overlays = self.overlays.iter().flatten().map(|overlay| overlay.queue);
        let all = self.files.each_queue_options().chain(overlays);
        all.reduce(QueueOptions::both).unwrap_or_default()
    }

    fn overlay(&mut self, place: usize) -> Option<&mut AttachedOverlay> {
        self.overlays.get_mut(place)?.as_deref_mut()
    }

    /// The place of the volume's overlay; `None` for what the files answer.
    fn place(&self, volume: VolumeId) -> Option<usize> {
        let place = usize::from(volume.0);
        self.overlays.get(place)?.is_some().then_some(place)
    }
}

impl Image for OpenOverlay {
    fn volume_options(&self) -> VolumeOptions {
        self.volume_options()
    }
}

impl Device for FilesystemDevice {
    unsafe fn submit(&mut self, now: Instant, batch: CommandBatch<'_>, io: &mut DeviceIo<'_>) {
        let mut rest = batch.commands;
        while let Some(first) = rest.first() {
            let place = self.place(first.volume);
            let is_other = |command: &Command| self.place(command.volume) != place;
            let count = rest.iter().position(is_other).unwrap_or(rest.len());
            let (commands, others) = rest.split_at(count);
            let part = CommandBatch { commands, ..batch };
            match place.and_then(|place| self.overlay(place)) {
                Some(overlay) => {
                    overlay.in_flight += count;
                    // SAFETY: the caller's promise, passed on.
                    overlay.call(io, |device, io| unsafe { device.submit(now, part, io) });
                }
                // SAFETY: as above.
                None => unsafe { self.files.submit(now, part, io) },
            }
            rest = others;
        }
    }

    fn on_disk(&mut self, now: Instant, done: DiskDone, io: &mut DeviceIo<'_>) {
        match place_of(done.id) {
            None => self.files.on_disk(now, done, io),
            Some(place) => {
                let overlay = self.overlay(place).expect("it has a command in flight");
                overlay.call(io, |device, io| device.on_disk(now, done, io));
            }
        }
    }

    fn attach(&mut self, volume: VolumeId, image: Box<dyn Image>) -> Result<(), Box<dyn Image>> {
        let place = usize::from(volume.0);
        if self.place(volume).is_some() || self.files.has(volume) {
            return Err(image);
        }
        let overlay = match image.downcast::<OpenOverlay>() {
            Ok(overlay) => overlay,
            Err(image) => return self.files.attach(volume, image),
        };
        if place >= PLACES_MAX || !overlay.can_share_device() {
            return Err(overlay);
        }
        if self.overlays.len() <= place {
            self.overlays.resize_with(place + 1, || None);
        }
        self.overlays[place] = Some(Box::new(AttachedOverlay::new(*overlay, volume.0)));
        Ok(())
    }

    fn detach(&mut self, volume: VolumeId) -> Option<Box<dyn Send>> {
        let Some(place) = self.place(volume) else {
            return self.files.detach(volume);
        };
        let overlay = self.overlays[place].take_if(|overlay| overlay.in_flight == 0)?;
        Some(overlay)
    }

    fn grow(&mut self, volume: VolumeId, size: u64) -> Result<(), IoError> {
        match self.place(volume) {
            Some(_) => Err(IoError::Unsupported),
            None => self.files.grow(volume, size),
        }
    }
}

impl OverlayDevice {
    /// Makes the overlay of a volume of `device`, which has nothing in flight that changes it and has been flushed, the base of this one,
    /// which answers from now on.
    ///
    /// # Errors
    /// This one, if the volume is no overlay, is the highest that there may be, or has changes that no flush covers.
    pub fn put_on(
        self: Box<Self>,
        device: &mut dyn Device,
        volume: VolumeId,
    ) -> Result<(), Box<Self>> {
        let overlay = match device.find::<FilesystemDevice>() {
            Some(images) => images.overlay(usize::from(volume.0)).map(|there| &mut there.device),
            None => device.find(),
        };
        match overlay {
            Some(overlay) => overlay.stack(self),
            None => Err(self),
        }
    }
}

#[cfg(test)]
mod tests;
