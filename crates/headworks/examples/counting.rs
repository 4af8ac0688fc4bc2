//! A device of one's own around another, a page cache, mq-deadline and two feeders: 2,000 writes become a few commands.

#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use headworks::{
    CacheOptions, Command, DeviceSetup, Filter, FilterDevice, Instant, IoError, MemDevice, Owner,
    OwnerOptions, QueueOptions, Scheduler, VolumeOptions, WriteMode,
};

/// Counts what reaches the disk.
struct Counting(Arc<AtomicU32>);

impl Filter for Counting {
    fn command(&mut self, _: Instant, _: &Command) -> Result<(), IoError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// Runs the example once.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cache = CacheOptions::of_size(64 << 20);
    let (owner, handles) =
        Owner::start(OwnerOptions { handles: 2, cache, ..OwnerOptions::default() })?;
    let commands = Arc::new(AtomicU32::new(0));
    let disk =
        FilterDevice::new(Counting(Arc::clone(&commands)), Box::new(MemDevice::new(64 << 20)?));
    let queue = QueueOptions { scheduler: Scheduler::MqDeadline, ..MemDevice::queue_options() };
    let mode = WriteMode::Writeback;
    let options =
        VolumeOptions { size: 64 << 20, block_size: 4096, mode, ..VolumeOptions::default() };
    let volume = owner.add_volume(owner.add_device(DeviceSetup::new(disk, queue))?, options)?;
    std::thread::scope(|scope| {
        let feed = |(mut handle, first): (headworks::Handle, u64)| {
            scope.spawn(move || {
                let mut read = [0; 4096];
                for block in first..first + 1000 {
                    handle.write(volume, block * 4096, &[block as u8; 4096])?;
                }
                handle.flush(volume)?;
                handle.read(volume, first * 4096, &mut read)?;
                assert_eq!(read, [first as u8; 4096]);
                Ok::<_, IoError>(())
            })
        };
        let feeders: Vec<_> = handles.into_iter().zip([0, 5000]).map(feed).collect();
        feeders.into_iter().try_for_each(|feeder| feeder.join().expect("a feeder panicked"))
    })?;
    println!("2000 writes became {} commands", commands.load(Ordering::Relaxed));
    println!("{}", owner.stats(volume).ok_or("no statistics")?);
    Ok(())
}
