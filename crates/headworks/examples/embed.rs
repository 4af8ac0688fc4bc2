//! Writes to an image through the page cache, flushes, and reads back: `cargo run --example embed [IMAGE]`.
//!
//! Without an image the disk is in memory.

use std::path::Path;

use headworks::{
    CacheOptions, DeviceSetup, FileOptions, MemDevice, OpenFile, Owner, OwnerOptions,
    VolumeOptions, WriteMode,
};

type AnyError = Box<dyn std::error::Error>;

fn main() -> Result<(), AnyError> {
    let cache = CacheOptions::of_size(16 << 20);
    let (owner, mut handles) = Owner::start(OwnerOptions { cache, ..OwnerOptions::default() })?;
    let volume = match std::env::args().nth(1) {
        Some(path) => {
            let options = FileOptions { size: Some(64 << 20), ..FileOptions::default() };
            owner.add_file(OpenFile::open(Path::new(&path), &options)?, WriteMode::Writeback)?
        }
        None => {
            let disk = DeviceSetup::new(MemDevice::new(64 << 20)?, MemDevice::queue_options());
            let options =
                VolumeOptions { size: 64 << 20, block_size: 512, ..VolumeOptions::default() };
            owner.add_volume(owner.add_device(disk)?, options)?
        }
    };
    let handle = &mut handles[0];
    handle.write(volume, 8192, &[7; 4096])?;
    handle.flush(volume)?;
    let mut bytes = [0; 4096];
    handle.read(volume, 8192, &mut bytes)?;
    assert_eq!(bytes, [7; 4096]);
    println!("wrote, flushed and read back {} bytes", bytes.len());
    drop(handles);
    let report = owner.join()?;
    assert!(report.flush_errors.is_empty());
    Ok(())
}
