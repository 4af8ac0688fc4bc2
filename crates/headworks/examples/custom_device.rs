//! A device of one's own: a disk whose every block holds its own number, and that cannot be written.

use headworks::headworks_core::{Completion, Instant, IoError, Op};
use headworks::{
    CommandBatch, Device, DeviceIo, DeviceSetup, Io, Owner, OwnerOptions, QueueOptions,
    VolumeOptions,
};

struct CountingDevice;

impl Device for CountingDevice {
    unsafe fn submit(&mut self, _: Instant, batch: CommandBatch<'_>, io: &mut DeviceIo<'_>) {
        for command in batch.commands {
            let status = match command.op {
                Op::Read => {
                    let mut offset = command.offset;
                    for span in batch.spans_of(command) {
                        // SAFETY: the spans belong to the device until the command is completed; frames and slots are zeros
                        // at the start.
                        for bytes in unsafe { span.bytes_mut() }.chunks_mut(8) {
                            bytes.copy_from_slice(&(offset / 4096).to_le_bytes()[..bytes.len()]);
                            offset += bytes.len() as u64;
                        }
                    }
                    Ok(())
                }
                Op::Flush => Ok(()),
                _ => Err(IoError::ReadOnly),
            };
            let transferred = if status.is_ok() { command.len } else { 0 };
            io.completions.push(Completion { id: command.id, transferred, status, hole: false });
        }
    }
}

/// Runs the example once.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (owner, mut handles) = Owner::start(OwnerOptions::default())?;
    let queue = QueueOptions { write_cache: false, ..QueueOptions::default() };
    let device = owner.add_device(DeviceSetup::new(CountingDevice, queue))?;
    let options = VolumeOptions { size: 1 << 40, block_size: 4096, ..VolumeOptions::default() };
    let volume = owner.add_volume(device, options)?;
    let handle = &mut handles[0];
    let slot = handle.slot().ok_or("every slot is in flight")?;
    handle.put(volume, slot, Io::read(1234 * 4096, 4096))?;
    let mut completions = Vec::new();
    while handle.reap(1, &mut completions) == 0 {
        handle.wait();
    }
    completions[0].status?;
    let slot = completions[0].slot.as_ref().ok_or("timed out")?;
    assert_eq!(slot[..8], 1234_u64.to_le_bytes());
    println!("block 1234 holds its number");
    Ok(())
}
