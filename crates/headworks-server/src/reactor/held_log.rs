//! Tells the operator when acknowledged data cannot be written out, and when they could be after all: once each, not per block.
//!
//! The beginning is told in the turn in which it comes. The end is told by the tick, so that a client whose flushes try again
//! and again does not fill the log; and not while something is just tried again, which ends nothing.

use headworks_core::{Shard, VolumeId};
use tracing::{error, info};

/// Volumes whose beginning was told and whose end was not.
#[derive(Default)]
pub(super) struct HeldLog {
    told: Vec<VolumeId>,
    /// What the shard counted at the last look.
    news: u32,
}

/// What changed for a volume since the last look.
#[derive(Debug, PartialEq, Eq)]
enum HeldChange {
    Began,
    Ended,
}

impl HeldLog {
    /// Looks at the volumes that live here, if there is reason to; once a turn.
    pub fn look(
        &mut self,
        shard: &Shard,
        volumes: &[VolumeId],
        at_tick: bool,
        name: impl Fn(VolumeId) -> String,
    ) {
        let news = shard.held_news();
        let ends = at_tick && !self.told.is_empty();
        if std::mem::replace(&mut self.news, news) == news && !ends {
            return;
        }
        for &volume in volumes {
            let held = shard.held(volume);
            match self.note(volume, held.is_some(), at_tick && !shard.is_failing(volume)) {
                Some(HeldChange::Began) => {
                    let (bytes, why) = held.expect("it began");
                    error!(
                        "{}: {bytes} acknowledged bytes could not be written out ({why}); they are kept in memory, and flushes fail until \
                         they are written or discarded (headworks ctl SOCKET failed EXPORT, discard-failed EXPORT)",
                        name(volume)
                    );
                }
                Some(HeldChange::Ended) => {
                    info!("{}: nothing is left that could not be written out", name(volume));
                }
                None => {}
            }
        }
        // A volume that left left with nothing held.
        self.told.retain(|volume| volumes.contains(volume));
    }

    fn note(&mut self, volume: VolumeId, held: bool, may_end: bool) -> Option<HeldChange> {
        let known = self.told.iter().position(|other| *other == volume);
        match (known, held) {
            (None, true) => {
                self.told.push(volume);
                Some(HeldChange::Began)
            }
            (Some(index), false) if may_end => {
                self.told.swap_remove(index);
                Some(HeldChange::Ended)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_and_the_end_are_told_once_for_each_volume() {
        let mut log = HeldLog::default();
        let (one, two) = (VolumeId(1), VolumeId(2));
        assert_eq!(log.note(one, false, true), None);
        assert_eq!(log.note(one, true, false), Some(HeldChange::Began));
        assert_eq!((log.note(one, true, true), log.note(two, false, false)), (None, None));
        assert_eq!(log.note(two, true, false), Some(HeldChange::Began));
        // Held, not held, held within a tick: nothing new.
        assert_eq!((log.note(one, false, false), log.note(one, true, false)), (None, None));
        assert_eq!(log.note(one, false, true), Some(HeldChange::Ended));
        assert_eq!((log.note(one, false, true), log.note(two, true, true)), (None, None));
    }
}
