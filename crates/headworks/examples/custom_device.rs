//! A device of one's own: a disk whose every block holds its own number, and that cannot be written.

#![forbid(unsafe_code)]

use headworks::{
    Answers, DeviceSetup, Instant, IoError, Op, Owner, OwnerOptions, QueueOptions, SafeDevice,
    VolumeOptions, Work,
};

struct NumberedBlocks;

impl SafeDevice for NumberedBlocks {
    fn start(&mut self, _: Instant, mut work: Work, answers: &mut Answers<'_>) {
        let status = match work.op() {
            Op::Read => {
                for at in (0..work.len() as usize).step_by(8) {
                    let block = (work.offset() + at as u64) / 4096;
                    work.write_from(at, &block.to_le_bytes());
                }
                Ok(())
            }
            Op::Flush => Ok(()),
            _ => Err(IoError::ReadOnly),
        };
        work.complete(status, answers);
    }
}

/// Runs the example once.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (owner, mut handles) = Owner::start(OwnerOptions::default())?;
    let queue = QueueOptions { write_cache: false, ..QueueOptions::default() };
    let device = owner.add_device(DeviceSetup::safe(NumberedBlocks, queue))?;
    let options = VolumeOptions { size: 1 << 40, block_size: 4096, ..VolumeOptions::default() };
    let volume = owner.add_volume(device, options)?;
    let mut block = [0; 4096];
    handles[0].read(volume, 1234 * 4096, &mut block)?;
    assert_eq!(block[..8], 1234_u64.to_le_bytes());
    assert_eq!(handles[0].write(volume, 0, &block), Err(IoError::ReadOnly));
    println!("block 1234 holds its number");
    Ok(())
}
