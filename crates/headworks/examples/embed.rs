//! Writes to an image through the page cache, flushes, and reads back: `cargo run --example embed [IMAGE]`.
//!
//! Without an image the disk is in memory.

use std::path::Path;

use headworks::headworks_core::{VolumeId, WriteMode};
use headworks::{
    CacheOptions, DeviceSetup, FileOptions, Handle, Io, IoCompletion, MemDevice, OpenFile, Owner,
    OwnerOptions, VolumeOptions,
};

type AnyError = Box<dyn std::error::Error>;

/// Does one I/O with `byte` in its slot and waits for it.
fn run(handle: &mut Handle, volume: VolumeId, io: Io, byte: u8) -> Result<IoCompletion, AnyError> {
    let mut slot = handle.slot().ok_or("every slot is in flight")?;
    slot.fill(byte);
    handle.put(volume, slot, io)?;
    let mut completions = Vec::new();
    while handle.reap(1, &mut completions) == 0 {
        handle.wait();
    }
    let completion = completions.remove(0);
    completion.status?;
    Ok(completion)
}

fn main() -> Result<(), AnyError> {
    // 16 MiB of page cache.
    let cache = CacheOptions { units: 4096, ..CacheOptions::default() };
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
    let written = run(handle, volume, Io::write(8192, 4096), 7)?;
    handle.release(written.slot.ok_or("timed out")?);
    let flushed = run(handle, volume, Io::flush(), 0)?;
    handle.release(flushed.slot.ok_or("timed out")?);
    let read = run(handle, volume, Io::read(8192, 4096), 0)?;
    let slot = read.slot.ok_or("timed out")?;
    assert!(slot.iter().all(|&byte| byte == 7));
    println!("wrote, flushed and read back {} bytes", slot.len());
    handle.release(slot);
    drop(handles);
    let report = owner.join()?;
    assert!(report.flush_errors.is_empty());
    Ok(())
}
