//! An elevator of one's own: the last request first.

use headworks::headworks_core::Instant;
use headworks::headworks_core::elevator::{Batch, Elevator, MergeEdge};
use headworks::headworks_core::request::{SlotId, Slots};
use headworks::{DeviceSetup, Io, NullDevice, Owner, OwnerOptions, VolumeOptions};

#[derive(Default)]
struct LastFirst {
    queued: Vec<SlotId>,
}

impl Elevator for LastFirst {
    fn insert(&mut self, _: Instant, _: &mut Slots, ids: &[SlotId]) {
        self.queued.extend_from_slice(ids);
    }

    fn dispatch(&mut self, _: Instant, _: &mut Slots, batch: &mut Batch) -> usize {
        let before = batch.room();
        while batch.room() > 0
            && let Some(id) = self.queued.pop()
        {
            batch.push(id);
        }
        before - batch.room()
    }

    fn remove(&mut self, _: &mut Slots, id: SlotId) {
        self.queued.retain(|&queued| queued != id);
    }

    fn on_merge(&mut self, _: &mut Slots, _: SlotId, gone: Option<SlotId>, _: MergeEdge) {
        self.queued.retain(|&id| Some(id) != gone);
    }
}

/// Runs the example once.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (owner, mut handles) = Owner::start(OwnerOptions::default())?;
    let setup = DeviceSetup::new(NullDevice, NullDevice::queue_options());
    let device = owner.add_device(setup.elevator(LastFirst::default()))?;
    let options = VolumeOptions { size: 1 << 30, block_size: 512, ..VolumeOptions::default() };
    let volume = owner.add_volume(device, options)?;
    let handle = &mut handles[0];
    for index in 0..16 {
        let slot = handle.slot().ok_or("every slot is in flight")?;
        handle.put(volume, slot, Io::write(index << 20, 4096).user_data(index))?;
    }
    let mut completions = Vec::new();
    while completions.len() < 16 {
        if handle.reap(16, &mut completions) == 0 {
            handle.wait();
        }
    }
    let order: Vec<_> = completions.iter().map(|completion| completion.user_data).collect();
    println!("completed in the order {order:?}");
    Ok(())
}
