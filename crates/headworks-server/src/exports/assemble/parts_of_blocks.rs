//! Which volumes take requests of any range, though their images have blocks.
//!
//! Rule: a cache takes any range by itself; without one the device reads a partly written block, changes it and writes it back
//! ([`PartialDevice`]), and clients are told a smallest block of 1. With `strict-blocks=on` they are told the image's, and a request of a
//! part of one is refused.
//!
//! An overlay that ends within a block takes parts of blocks in any case, for nothing else writes its last bytes.
//!
//! The core is given the smallest block that requests have; [`VolumeOrigin::block_size`] is the image's.

use headworks_core::{ShardConfig, VolumeConfig, VolumeId, VolumeOptions, WriteMode};

use super::image::{VolumeCaching, VolumeOrigin};
use headworks::{Device, Image};
use headworks_images::{PartialDevice, PartialImage, WholeBlocks};

impl VolumeCaching {
    /// The smallest block that requests have, of an image with blocks of `block` bytes.
    #[must_use]
    pub fn smallest_block(self, mode: WriteMode, block: u32) -> u32 {
        let is_strict = self.strict_blocks.unwrap_or_default() || block > WholeBlocks::LARGEST;
        if mode == WriteMode::None && !is_strict { 1 } else { block }
    }
}

/// The blocks of a volume whose requests may be parts of the image's blocks of `block` bytes; none if they may not, or if it has no blocks.
pub(crate) fn partial_blocks(options: &VolumeOptions, block: u32) -> Option<WholeBlocks> {
    (options.block_size < block).then(|| WholeBlocks::new(block))
}

/// A device of which some volumes take parts of blocks; those of images that join later may, too.
pub(crate) fn taking_parts(
    device: Box<dyn Device>,
    volumes: Vec<(VolumeId, WholeBlocks)>,
    is_joined: bool,
) -> Box<dyn Device> {
    match volumes.is_empty() && !is_joined {
        true => device,
        false => Box::new(PartialDevice::new(device, volumes)),
    }
}

/// An image that joins a device; it may take parts of its blocks.
pub(crate) fn joining(image: Box<dyn Image>, blocks: Option<WholeBlocks>) -> Box<dyn Image> {
    match blocks {
        Some(blocks) => Box::new(PartialImage::new(image, blocks)),
        None => image,
    }
}

/// The volumes of a device whose requests may be parts of blocks.
pub(crate) fn partial_volumes(
    device: usize,
    config: &ShardConfig,
    origins: &[VolumeOrigin],
) -> Vec<(VolumeId, WholeBlocks)> {
    let volumes = config.volumes.iter().zip(origins).enumerate();
    let own = volumes.filter(|(_, (volume, _))| usize::from(volume.device.0) == device);
    let blocks = |(index, (volume, origin)): (usize, (&VolumeConfig, &VolumeOrigin))| {
        let blocks = partial_blocks(&volume.options, origin.block_size)?;
        Some((VolumeId(index as u16), blocks))
    };
    own.filter_map(blocks).collect()
}
