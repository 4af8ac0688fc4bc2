//! Logs once per volume that acknowledged data could not be written back, and once that all of it was written after
//! all.
//!
//! The first message is logged in the turn of the failure. The second one waits for a tick without a retry in progress,
//! so a client whose flushes retry does not fill the log.

use headworks_core::{Shard, VolumeId};
use tracing::{error, info};

/// Volumes whose failure was logged and whose recovery was not.
#[derive(Default)]
pub(super) struct HeldLog {
    told: Vec<VolumeId>,
    /// Change counter of the shard at the last check.
    news: u32,
}

/// A change of a volume since the last check.
#[derive(Debug, PartialEq, Eq)]
enum HeldChange {
    Began,
    Ended,
}

impl HeldLog {
    /// Checks this shard's volumes, if the counter moved or a recovery may be logged; called every turn. A server that `stops` keeps
    /// nothing in its memory, and has no client whose flushes fail.
    pub fn check(
        &mut self,
        shard: &Shard,
        volumes: &[VolumeId],
        (at_tick, stops): (bool, bool),
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
                    let then = match stops {
                        true => "",
                        false => {
                            "; they are kept in memory, and flushes fail until they are written or discarded (headworks ctl SOCKET \
                             failed EXPORT, discard-failed EXPORT)"
                        }
                    };
                    error!(
                        "{}: {bytes} acknowledged bytes could not be written out ({why}){then}",
                        name(volume)
                    );
                }
                Some(HeldChange::Ended) => {
                    info!("{}: all failed write-back has been written", name(volume));
                }
                None => {}
            }
        }
        // A removed volume has no failed data.
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
    fn failure_and_recovery_are_logged_once_per_volume() {
        let mut log = HeldLog::default();
        let (one, two) = (VolumeId(1), VolumeId(2));
        assert_eq!(log.note(one, false, true), None);
        assert_eq!(log.note(one, true, false), Some(HeldChange::Began));
        assert_eq!((log.note(one, true, true), log.note(two, false, false)), (None, None));
        assert_eq!(log.note(two, true, false), Some(HeldChange::Began));
        // Failed and recovered between two ticks: nothing is logged.
        assert_eq!((log.note(one, false, false), log.note(one, true, false)), (None, None));
        assert_eq!(log.note(one, false, true), Some(HeldChange::Ended));
        assert_eq!((log.note(one, false, true), log.note(two, true, true)), (None, None));
    }
}
