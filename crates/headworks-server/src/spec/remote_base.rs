//! Bases of overlays that are no files: exports of NBD servers, and snapshots of images of Ceph clusters. The overlay's head has the
//! specification, as in `nbd:uri=nbd://host/golden` or `rbd:image=pool/golden@v1`.
//!
//! Nothing locks a remote, and it has no time of modification: only its size is compared, and that it does not change is the user's
//! promise. So the head of an image is no base, its snapshots are.
//!
//! A program that only reads an overlay (`image flatten`) has no device of a shard; the reads of its base go through an owner of their own.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use headworks::{Device, FilterDevice, NullDevice};
use headworks_core::{ConfigError, QueueOptions, VolumeOptions};
use headworks_images::formats::ImageBases;
use headworks_images::{
    BaseFormats, BaseImage, BaseImageOptions, ErrorFilter, ErrorOptions, OpenBaseImage, REMOTE_BASE,
};
use headworks_rbd::{Access, OpenRbd};

use super::{BaseDevice, Rbd, Remote, Spec};
use crate::exports::device_reader::DeviceReader;

/// What opens the bases of overlays that are no raw files: images of formats, and remotes.
pub const BASES: BaseFormats = BaseFormats::new(&Bases);

/// Largest block that a base may ask its readers for: that of overlays.
const BLOCK_MAX: u32 = 4096;

struct Bases;

impl OpenBaseImage for Bases {
    fn open(
        &self,
        path: &Path,
        options: &BaseImageOptions,
    ) -> Result<Box<dyn BaseImage>, ConfigError> {
        if options.format != REMOTE_BASE {
            return ImageBases.open(path, options);
        }
        Ok(Box::new(RemoteBase::open(path, options.locks)?))
    }
}

/// Whether the text is the specification of a remote and not a path.
#[must_use]
pub fn is_remote_base(text: &Path) -> bool {
    let text = text.as_os_str().as_encoded_bytes();
    text.starts_with(b"nbd:") || text.starts_with(b"rbd:")
}

/// The device of a remote that is to be a base, read-only.
///
/// # Errors
/// It is none, or may change.
pub(crate) fn base_device(text: &Path) -> Result<BaseDevice, ConfigError> {
    let wrong = |why: &str| Err(ConfigError::new("base", format!("{}: {why}", text.display())));
    let Some(spec) = text.to_str() else { return wrong("it is no text") };
    match Spec::parse(spec)? {
        Spec { wrappers, .. } if !wrappers.is_empty() => {
            wrong("a base has no wrappers; put them around the overlay")
        }
        Spec { base: BaseDevice::Nbd(remote), .. } => {
            Ok(BaseDevice::Nbd(Box::new(Remote { read_only: true, ..*remote })))
        }
        Spec { base: BaseDevice::Rbd(rbd), .. } if rbd.name.snapshot.is_none() => {
            wrong("the head of an image changes; name a snapshot: rbd:image=POOL/IMAGE@SNAPSHOT")
        }
        Spec { base: BaseDevice::Rbd(rbd), .. }
            if rbd.options.conf.as_ref().is_some_and(|conf| conf.is_relative()) =>
        {
            wrong("the path of its configuration is relative; give the whole path")
        }
        Spec { base: BaseDevice::Rbd(rbd), .. } => {
            Ok(BaseDevice::Rbd(Box::new(Rbd { read_only: true, ..*rbd })))
        }
        _ => wrong("it is neither an NBD server's export nor an image of a cluster"),
    }
}

/// A remote that is open as a base.
struct RemoteBase {
    text: String,
    queue: QueueOptions,
    options: VolumeOptions,
    state: Mutex<State>,
}

/// What reads it.
enum State {
    /// A device that nothing drives.
    Device(Box<dyn Device>),
    Reader(Box<DeviceReader>),
    /// The owner could not be started.
    Failed,
}

impl RemoteBase {
    fn open(text: &Path, to_use: bool) -> Result<Self, ConfigError> {
        let (device, queue, options): (Box<dyn Device>, _, _) = match base_device(text)? {
            BaseDevice::Nbd(mut remote) => {
                if !to_use {
                    remote.options.connections = 1;
                }
                let opened = remote.open(false, None)?;
                (opened.device, opened.queue, opened.options)
            }
            BaseDevice::Rbd(rbd) => {
                let access = if to_use { Access::Serve } else { Access::Inspect };
                let image = OpenRbd::open(&rbd.name, &rbd.options, access)?;
                let (queue, options) = (image.queue_options(), image.volume_options());
                (Box::new(image.into_device()), queue, options)
            }
            _ => unreachable!("a remote base is one of the two"),
        };
        let text = text.display().to_string();
        if options.block_size > BLOCK_MAX {
            let message = format!(
                "{text}: its server takes requests of whole {} bytes, and an overlay asks for {BLOCK_MAX}",
                options.block_size
            );
            return Err(ConfigError::new("base", message));
        }
        Ok(Self { text, queue, options, state: Mutex::new(State::Device(device)) })
    }
}

impl fmt::Debug for RemoteBase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl BaseImage for RemoteBase {
    fn size(&self) -> u64 {
        self.options.size
    }

    fn changed(&self) -> io::Result<u64> {
        Ok(0)
    }

    fn disk_bytes(&self) -> Option<u64> {
        None
    }

    fn is_rotational(&self) -> bool {
        self.queue.rotational
    }

    fn request_kb(&self) -> u32 {
        self.queue.max_sectors_kb
    }

    fn is_locked(&self) -> bool {
        // It has no locks that could be missing.
        true
    }

    fn describe(&self) -> String {
        self.text.clone()
    }

    fn next_data(&self, from: u64, end: u64) -> Option<(u64, u64)> {
        (from < end).then_some((from, end))
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let State::Device(_) = *state
            && let State::Device(device) = std::mem::replace(&mut *state, State::Failed)
        {
            let reader = DeviceReader::start(device, self.queue, self.options);
            *state = State::Reader(Box::new(reader.map_err(io::Error::other)?));
        }
        match &mut *state {
            State::Reader(reader) => reader.read_at(offset, bytes),
            _ => Err(io::Error::other("it could not be read before")),
        }
    }

    fn into_device(self: Box<Self>) -> Box<dyn Device> {
        match self.state.into_inner().unwrap_or_else(PoisonError::into_inner) {
            State::Device(device) => device,
            // An owner has the device. To be served the base is opened anew; until then no read takes zeros for its bytes.
            State::Reader(_) | State::Failed => Box::new(FilterDevice::new(
                ErrorFilter::new(ErrorOptions::default()),
                Box::new(NullDevice),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use headworks_core::{BioFlags, IoError, Op};
    use headworks_testing::Bench;

    use super::*;

    #[test]
    fn base_that_an_owner_has_read_is_read_as_no_zeros() {
        let (queue, options) = (
            NullDevice::queue_options(),
            VolumeOptions { size: 1 << 20, block_size: 512, ..VolumeOptions::default() },
        );
        let state = Mutex::new(State::Device(Box::new(NullDevice)));
        let base = Box::new(RemoteBase { text: "a remote".into(), queue, options, state });
        let mut bytes = [7; 5000];
        base.read_at(100, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 5000], "all of them, with blocks that are read in part");
        let mut bench = Bench::boxed(base.into_device());
        assert_eq!(bench.run(Op::Read, BioFlags::NONE, 0, 512).status, Err(IoError::Medium));
    }

    #[test]
    fn remotes_that_cannot_change_are_bases() {
        let device = |text: &str| base_device(Path::new(text));
        for text in ["nbd:uri=nbd://host/golden,connections=1", "rbd:image=p/i@v1,conf=/c"] {
            assert!(is_remote_base(Path::new(text)));
            assert!(device(text).unwrap().is_read_only(), "{text}");
        }
        for (text, part) in [
            ("rbd:image=p/i", "name a snapshot"),
            ("rbd:image=p/i@v1,conf=c", "give the whole path"),
            ("delay:read=1ms,of=nbd:uri=nbd://h", "no wrappers"),
            ("nbd:uri=http://x", "nbd://HOST:PORT/EXPORT"),
            ("mem:size=1M", "neither an NBD server's export"),
            ("golden.img", "neither an NBD server's export"),
        ] {
            let error = device(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
