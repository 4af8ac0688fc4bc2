//! Images as bases of overlays.

use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::{BaseFormats, BaseImage, BaseImageOptions, OpenBaseImage};
use headworks::Device;
use headworks_core::ConfigError;

use crate::formats::decode::Decoder;
use crate::formats::magic::ImageFormat;
use crate::formats::map::Source;
use crate::formats::{ImageOptions, OpenImage};

/// Lets overlays have images as bases.
pub const BASE_FORMATS: BaseFormats = BaseFormats::new(&ImageBases);

/// Opens images as bases.
#[derive(Clone, Copy, Debug)]
pub struct ImageBases;

impl OpenBaseImage for ImageBases {
    fn open(
        &self,
        path: &Path,
        options: &BaseImageOptions,
    ) -> Result<Box<dyn BaseImage>, ConfigError> {
        let BaseImageOptions { format, anywhere, direct, locks } = *options;
        let mut known = ImageFormat::ALL.into_iter();
        let format = known.find(|known| known.name() == format).ok_or_else(|| {
            ConfigError::new("format", format!("{format} is none of qcow2 and vmdk"))
        })?;
        let options = ImageOptions { format, outside: anywhere, direct };
        let image = match locks {
            true => OpenImage::open(path, &options)?,
            false => OpenImage::inspect(path, &options)?,
        };
        // Only what is to be used is locked.
        let decoder = if locks { image.start_threads()? } else { None };
        Ok(Box::new(Base { image, decoder }))
    }
}

/// An image with the threads that it needs.
struct Base {
    image: OpenImage,
    decoder: Option<Decoder>,
}

impl fmt::Debug for Base {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.image.description())
    }
}

impl BaseImage for Base {
    fn size(&self) -> u64 {
        self.image.volume_options().size
    }

    fn changed(&self) -> io::Result<u64> {
        // Of one file its time of modification; of several a number that any of them changes (FNV-1a).
        let mut changed = 0_u64;
        for (index, file) in self.image.files().iter().enumerate() {
            let found = file.file.file().metadata()?;
            let time = (found.mtime() as u64)
                .wrapping_mul(1_000_000_000)
                .wrapping_add(found.mtime_nsec() as u64);
            changed = match index {
                0 => time,
                _ => (changed ^ time).wrapping_mul(0x0100_0000_01b3),
            };
        }
        Ok(changed)
    }

    fn disk_bytes(&self) -> Option<u64> {
        let blocks = |file: &crate::formats::chain::ImageFile| {
            file.file.file().metadata().map_or(0, |found| found.blocks())
        };
        Some(self.image.files().iter().map(blocks).sum::<u64>() * 512)
    }

    fn is_rotational(&self) -> bool {
        self.image.queue_options().rotational
    }

    fn is_locked(&self) -> bool {
        self.image.unlocked().next().is_none()
    }

    fn describe(&self) -> String {
        self.image.description()
    }

    fn next_data(&self, from: u64, end: u64) -> Option<(u64, u64)> {
        let runs = self.image.map().runs_from(from, end.saturating_sub(from));
        let data = runs.into_iter().find(|run| run.source != Source::Zeros)?;
        Some((data.start, data.start + data.len))
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.image.read_waiting(offset, bytes)
    }

    fn into_device(self: Box<Self>) -> Box<dyn Device> {
        let Self { image, decoder } = *self;
        Box::new(image.into_device_with(decoder))
    }
}
