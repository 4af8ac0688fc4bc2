//! Tells the operator when acknowledged data cannot be written out, and when they could be after all: once each, not per block.
//!
//! The beginning is told in the turn in which it comes. The end is told by the tick, and only if nothing began or ended since the
//! one before: what is tried again is not held meanwhile, and a client whose flushes try again and again does not fill the log.

use headworks_core::{Shard, VolumeId};
use tracing::{error, info};

/// Volumes whose beginning was told and whose end was not.
#[derive(Default)]
pub(super) struct HeldLog {
    told: Vec<VolumeId>,
    /// What the shard counted at the last look, and at the last tick.
    news: u32,
    news_at_tick: u32,
}

/// What changed for a volume since the last look.
#[derive(Debug, PartialEq, Eq)]
enum News {
    Began,
    Ended,
}

impl HeldLog {
    /// Whether an end is to be told, some tick.
    pub fn waits(&self) -> bool {
        !self.told.is_empty()
    }

    /// Looks at the volumes that live here, if there is reason to; once a turn.
    pub fn look(
        &mut self,
        shard: &Shard,
        volumes: &[VolumeId],
        at_tick: bool,
        name: impl Fn(VolumeId) -> String,
    ) {
        let news = shard.held_news();
        let ends = at_tick && self.is_stable(news) && self.waits();
        if std::mem::replace(&mut self.news, news) == news && !ends {
            return;
        }
        for &volume in volumes {
            let held = shard.held(volume);
            match self.note(volume, held.is_some(), ends) {
                Some(News::Began) => {
                    let (bytes, why) = held.expect("it began");
                    error!(
                        "{}: {bytes} acknowledged bytes could not be written out ({why}); they are kept, and flushes fail \
                         until they could be or are given up (headworks ctl SOCKET failed, acknowledge)",
                        name(volume)
                    );
                }
                Some(News::Ended) => {
                    info!("{}: nothing is left that could not be written out", name(volume));
                }
                None => {}
            }
        }
        // A volume that left left with nothing held.
        self.told.retain(|volume| volumes.contains(volume));
    }

    /// A tick: whether nothing has changed since the last one.
    fn is_stable(&mut self, news: u32) -> bool {
        std::mem::replace(&mut self.news_at_tick, news) == news
    }

    fn note(&mut self, volume: VolumeId, held: bool, ends: bool) -> Option<News> {
        let known = self.told.iter().position(|other| *other == volume);
        match (known, held) {
            (None, true) => {
                self.told.push(volume);
                Some(News::Began)
            }
            (Some(index), false) if ends => {
                self.told.swap_remove(index);
                Some(News::Ended)
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
        assert_eq!(log.note(one, true, false), Some(News::Began));
        assert_eq!((log.note(one, true, true), log.note(two, false, false)), (None, None));
        assert_eq!(log.note(two, true, false), Some(News::Began));
        // Held, not held, held within a tick: nothing new.
        assert_eq!((log.note(one, false, false), log.note(one, true, false)), (None, None));
        assert_eq!(log.note(one, false, true), Some(News::Ended));
        assert_eq!((log.note(one, false, true), log.note(two, true, true)), (None, None));
    }

    #[test]
    fn an_end_is_told_after_a_second_in_which_nothing_was_tried_again() {
        let mut log = HeldLog::default();
        assert!(!log.waits());
        log.note(VolumeId(1), true, false);
        assert!(log.waits());
        let ticks = [1, 3, 3, 4].map(|news| log.is_stable(news));
        assert_eq!(ticks, [false, false, true, false]);
    }
}
