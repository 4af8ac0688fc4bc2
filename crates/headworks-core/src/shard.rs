//! A single-owner world: everything that one thread decides.

use crate::action::{Action, Actions, Segment, Submit};
use crate::error::ConfigError;
use crate::input::{Input, ReplyStage, RequestId};
use crate::options::ShardConfig;
use crate::request::{BioSlot, Bios};
use crate::time::Instant;

/// One shard. Made once; steps by [`Shard::handle`].
pub struct Shard {
    config: ShardConfig,
    bios: Bios,
    actions: Actions,
}

impl Shard {
    /// A shard of `config`, everything it will ever need allocated.
    ///
    /// # Errors
    /// What `config` says that cannot be.
    pub fn new(config: ShardConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        let bios = Bios::new(config.bios_max);
        Ok(Self {
            config,
            bios,
            actions: Actions::with_capacity(1024, 4096),
        })
    }

    /// Takes a batch of inputs that came by `now` and adds to the list of actions. The list must be carried out completely,
    /// and cleared with [`Shard::clear_actions`], before the next call.
    pub fn handle(&mut self, now: Instant, inputs: &[Input]) {
        let _ = now;
        for input in inputs {
            match *input {
                Input::Bio(bio) => {
                    let Some(slot) = self.bios.try_take() else {
                        continue;
                    };
                    self.bios[slot] = BioSlot {
                        bio,
                        ..BioSlot::default()
                    };
                    let first_segment = self.actions.segments.len() as u32;
                    self.actions.segments.push(Segment {
                        bio: bio.id,
                        offset: 0,
                        len: bio.len,
                    });
                    self.actions.list.push(Action::Submit(Submit {
                        id: RequestId {
                            slot,
                            generation: 0,
                        },
                        device: self.config.volumes[usize::from(bio.id.volume.0)].device,
                        volume: bio.id.volume,
                        op: bio.op,
                        flags: bio.flags,
                        offset: bio.offset,
                        len: bio.len,
                        first_segment,
                        segments: u16::from(bio.op.has_data()),
                    }));
                }
                Input::Complete { completion, .. } => {
                    let id = self.bios[completion.id.slot].bio.id;
                    self.bios.put(completion.id.slot);
                    self.actions.list.push(Action::Reply {
                        id,
                        status: completion.status,
                        hole: completion.hole,
                        stage: ReplyStage::Final,
                    });
                }
                Input::Timer | Input::Message { .. } | Input::Control(_) => {}
            }
        }
    }

    /// What is to be done.
    #[must_use]
    pub fn actions(&self) -> &Actions {
        &self.actions
    }

    /// All of it was done.
    pub fn clear_actions(&mut self) {
        self.actions.clear();
    }

    /// How many more bios the shard takes; frontends stop reading at 0.
    #[must_use]
    pub fn room(&self) -> u32 {
        self.bios.free()
    }
}
