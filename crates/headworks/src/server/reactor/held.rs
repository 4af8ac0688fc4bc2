//! Tells the operator when acknowledged data cannot be written out, and when they could be after all: once each, not per block.

use headworks_core::{Shard, VolumeId};
use tracing::{error, info};

/// Volumes of which something was held at the last look.
#[derive(Default)]
pub(super) struct HeldLog(Vec<VolumeId>);

/// What changed for a volume since the last look.
#[derive(Debug, PartialEq, Eq)]
enum News {
    Began,
    Ended,
}

impl HeldLog {
    /// Looks at the volumes that live here; now and then, not per I/O.
    pub fn look(&mut self, shard: &Shard, volumes: &[VolumeId], name: impl Fn(VolumeId) -> String) {
        for &volume in volumes {
            let held = shard.held(volume);
            match self.note(volume, held.is_some()) {
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
        self.0.retain(|volume| volumes.contains(volume));
    }

    fn note(&mut self, volume: VolumeId, held: bool) -> Option<News> {
        let known = self.0.iter().position(|other| *other == volume);
        match (known, held) {
            (None, true) => {
                self.0.push(volume);
                Some(News::Began)
            }
            (Some(index), false) => {
                self.0.swap_remove(index);
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
        assert_eq!(log.note(one, false), None);
        assert_eq!(log.note(one, true), Some(News::Began));
        assert_eq!((log.note(one, true), log.note(two, false)), (None, None));
        assert_eq!(log.note(two, true), Some(News::Began));
        assert_eq!(log.note(one, false), Some(News::Ended));
        assert_eq!((log.note(one, false), log.note(two, true)), (None, None));
    }
}
