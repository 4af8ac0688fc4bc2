//! What happens beside requests: timers, changes of options, volumes that leave, come back and change their size.

use super::{Choices, Harness};
use headworks_core::{
    Bio, Change, Completion, Control, DeviceId, Input, Instant, Notice, RequestId, VolumeId,
    WriteMode,
};

impl<C: Choices> Harness<C> {
    /// Injects inputs that devices and operators produce rarely or must never produce.
    pub(super) fn inject_inputs(&mut self, inputs: &mut Vec<Input>) {
        if self.size < self.options.volume_size() && self.choices.below(8) == 1 {
            inputs.push(self.resize(self.options.volume_size()));
        }
        if self.present != (true, true) && self.choices.below(4) == 1 {
            self.add_back();
        }
        match self.choices.below(64) {
            63 => {
                let slot = self.choices.below(256) as u32;
                let id = RequestId { slot, generation: u32::MAX };
                let completion = Completion { id, transferred: 0, status: Ok(()), hole: false };
                inputs.push(Input::Complete { device: DeviceId(0), completion });
            }
            62 => inputs.push(Input::Timer),
            54 => {
                let units = self.choices.below(1 << 10) as u32;
                let dirtyable = self.choices.below(1 << 10) as u32;
                inputs.push(Input::Control(Control::CacheLimit { units, dirtyable }));
            }
            61 => self.acknowledge(inputs),
            60 => {
                let tunable = headworks_core::writeback::DirtyTunable::ALL[0];
                let value = self.choices.below(100);
                inputs.push(Input::Control(Control::SetDirty { tunable, value, token: 7 }));
            }
            59 => {
                let all = headworks_core::Tunable::ALL;
                let tunable = all[self.choices.below(all.len() as u64) as usize];
                let value = self.choices.below(1 << 10);
                if tunable.is_live() {
                    let control = Control::Set { device: DeviceId(0), tunable, value, token: 9 };
                    inputs.push(Input::Control(control));
                }
            }
            58 => {
                // An idle client closes; a new connection reuses its number.
                let id = self.choices.below(self.options.clients.into()) as u32;
                if self.clients[id as usize].bio.is_none() {
                    inputs.push(Input::Close { connection: id });
                }
            }
            57 => inputs.push(self.resize(self.options.volume_size())),
            // Often for less time than a command takes.
            56 => {
                let size = (self.choices.below(self.size / 512) + 1) * 512;
                inputs.push(self.resize(size));
                if self.choices.below(2) == 0 {
                    let more = self.choices.below((self.options.volume_size() - size) / 512 + 1);
                    inputs.push(self.resize(size + more * 512));
                }
            }
            55 => self.remove_volume(inputs),
            _ => {}
        }
    }

    /// Removes the volume if the shard permits it, and then perhaps its device.
    pub(super) fn remove_volume(&mut self, coming: &[Input]) {
        let now = Instant(self.now);
        if self.present.0 {
            let volume = VolumeId(0);
            let is =
                |input: &Input, bio: &Bio| matches!(input, Input::Bio(new) if new.id == bio.id);
            let unseen = |bio: &Bio| coming.iter().any(|input| is(input, bio));
            let mut waiting = self.clients.iter().filter_map(|client| client.bio);
            let busy = waiting.any(|bio| !unseen(&bio));
            if self.shard.change(now, &Change::RemoveVolume { volume }).is_err() {
                return;
            }
            assert!(!busy, "a volume was removed with bios in flight");
            for id in 0..self.options.clients {
                self.compare(
                    id,
                    0..self.options.region as usize,
                    "written, because its volume was removed",
                );
            }
            self.present.0 = false;
        }
        if self.present.1 && self.choices.below(2) == 0 {
            let change = Change::RemoveDevice { device: DeviceId(0) };
            self.present.1 = self.shard.change(now, &change).is_err();
        }
    }

    /// Adds the removed device and volume again, the volume perhaps with another mode.
    pub(super) fn add_back(&mut self) {
        let now = Instant(self.now);
        if !self.present.1 {
            let change = Change::AddDevice { device: DeviceId(0), config: self.config.devices[0] };
            assert_eq!(self.shard.change(now, &change), Ok(()));
            self.present.1 = true;
        }
        if !self.present.0 {
            let options = &mut self.config.volumes[0].options;
            (options.size, options.mode) =
                (self.size, WriteMode::ALL[self.choices.below(5) as usize]);
            let change = Change::AddVolume { volume: VolumeId(0), config: self.config.volumes[0] };
            // Refused while options of the device are being changed.
            self.present.0 = self.shard.change(now, &change).is_ok();
        }
    }

    /// Changes the size of the image; bytes beyond the new end are discarded.
    pub(super) fn resize(&mut self, size: u64) -> Input {
        if size < self.size {
            self.disk[size as usize..].fill(0);
            let region = self.options.region;
            for id in 0..self.options.clients {
                let base = self.base(id);
                let from = size.clamp(base, base + region) - base;
                let client = &mut self.clients[id as usize];
                client.forget(from as usize..region as usize, true);
                client.cut_from = client.cut_from.min(size);
            }
        }
        self.size = size;
        Input::Control(Control::Resize { volume: VolumeId(0), size })
    }

    /// The operator discards data that could not be written; the contents of those blocks become
    /// unknown.
    pub(super) fn acknowledge(&mut self, inputs: &mut Vec<Input>) {
        let mut failed = Vec::new();
        self.shard.failed_ranges(VolumeId(0), &mut failed);
        self.discarded_failed |= !failed.is_empty();
        for (offset, len, _) in failed {
            for id in 0..self.options.clients {
                let (base, region) = (self.base(id), self.options.region);
                let from = offset.clamp(base, base + region) - base;
                let to = (offset + len).clamp(base, base + region) - base;
                self.clients[id as usize].forget(from as usize..to as usize, false);
            }
        }
        inputs.push(Input::Control(Control::Acknowledge { volume: VolumeId(0) }));
    }

    pub(super) fn on_notice(&self, notice: Notice) {
        let expected = match notice {
            Notice::Set { .. } => true,
            Notice::ShortRead { .. } => false,
            Notice::Suspect { .. }
            | Notice::TimedOut { .. }
            | Notice::DeviceState { .. }
            | Notice::UnknownCompletion { .. } => self.options.faults,
        };
        assert!(expected, "{notice:?}");
    }
}
