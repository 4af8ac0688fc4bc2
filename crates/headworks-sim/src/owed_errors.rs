//! Who must hear of an error of write-out: every connection that wrote to the volume or flushed it, at its next flush.
//!
//! ```text
//!   stranger --a write or a flush of it succeeded--> listens --write-out failed--> owed --a flush of it failed--> listens
//! ```
//!
//! A command that failed is no error of the volume yet: the bio that it is a piece of may still be on its way. It is one when
//! the cache holds a block of it. Invariant: a flush of a connection that is owed does not succeed, whatever the operator or
//! other connections heard or did meanwhile. A connection that closed is a stranger when it comes again.

use headworks_core::{IoError, VolumeId};

/// Turns of its shard after which a failed command is believed to have left nothing that failed (all of it was written
/// again meanwhile).
const TURNS_MAX: u32 = 64;

/// A connection that never wrote or flushed.
const NEVER: u64 = u64::MAX;

/// What a connection is owed.
#[derive(Clone, Copy, Debug)]
struct ConnectionDebt {
    /// The turn from which on it listens.
    since: u64,
    owed: bool,
}

const UNINVOLVED: ConnectionDebt = ConnectionDebt { since: NEVER, owed: false };

/// A command that failed.
#[derive(Clone, Copy, Debug)]
struct Failed {
    volume: VolumeId,
    offset: u64,
    end: u64,
    turns_left: u32,
}

/// See the head of this file.
#[derive(Debug)]
pub struct OwedErrors {
    /// By the connection's place.
    connections: Vec<ConnectionDebt>,
    failed: Vec<Failed>,
}

impl OwedErrors {
    /// Of so many connections.
    #[must_use]
    pub fn new(connections: usize) -> Self {
        Self { connections: vec![UNINVOLVED; connections], failed: Vec::new() }
    }

    /// A write or a flush of a connection succeeded.
    pub fn on_success(&mut self, place: usize, turn: u64) {
        let since = &mut self.connections[place].since;
        *since = turn.min(*since);
    }

    /// A flush of a connection was answered; whether it should have failed and did not. Before [`OwedErrors::on_success`].
    #[must_use]
    pub fn is_owed(&self, place: usize) -> bool {
        self.connections[place].owed
    }

    /// A flush of a connection failed; whether it was owed that.
    pub fn on_failure(&mut self, place: usize, turn: u64) -> bool {
        let ear = &mut self.connections[place];
        if ear.since != NEVER {
            // An error of this same turn may have been what it heard of.
            ear.since = turn;
        }
        std::mem::take(&mut ear.owed)
    }

    /// A connection closed.
    pub fn on_close(&mut self, place: usize) {
        self.connections[place] = UNINVOLVED;
    }

    /// A command of write-out failed.
    pub fn on_command_failed(&mut self, volume: VolumeId, offset: u64, len: u64) {
        self.failed.push(Failed { volume, offset, end: offset + len, turns_left: TURNS_MAX });
    }

    /// Whether commands of a volume failed of which nobody is told yet.
    #[must_use]
    pub fn has_unreported(&self, volume: VolumeId) -> bool {
        self.failed.iter().any(|failed| failed.volume == volume)
    }

    /// What the volume's cache holds as failed after a turn; whether that says that an error was noted.
    pub fn is_recorded(&mut self, volume: VolumeId, held: &[(u64, u64, IoError)]) -> bool {
        let meets = |f: &Failed| held.iter().any(|&(at, len, _)| at < f.end && f.offset < at + len);
        let mut noted = false;
        self.failed.retain_mut(|failed| {
            if failed.volume != volume {
                return true;
            }
            let found = meets(failed);
            noted |= found;
            failed.turns_left -= 1;
            !found && failed.turns_left > 0
        });
        noted
    }

    /// An error was noted in `turn`, which is over: the connection there must hear of it.
    pub fn owe(&mut self, place: usize, turn: u64) {
        let ear = &mut self.connections[place];
        ear.owed |= ear.since < turn;
    }

    /// Another volume is in the place of `volume`: of the old one nobody hears any more.
    pub fn on_replaced(&mut self, volume: VolumeId) {
        self.failed.retain(|failed| failed.volume != volume);
    }

    /// The power failed.
    pub fn cut(&mut self) {
        self.connections.fill(UNINVOLVED);
        self.failed.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOLUME: VolumeId = VolumeId(1);

    #[test]
    fn whoever_was_there_is_owed_one_failure_and_nobody_else() {
        let mut hearing = OwedErrors::new(3);
        hearing.on_success(0, 1);
        hearing.on_success(1, 7);
        // The second came in the turn of the error, the third never did.
        (0..3).for_each(|place| hearing.owe(place, 7));
        let kept = |hearing: &OwedErrors| [0, 1, 2].map(|place| hearing.is_owed(place));
        assert_eq!(kept(&hearing), [true, false, false]);
        assert!(hearing.on_failure(0, 9) && !hearing.on_failure(0, 9));
        // It heard in the turn in which the next error was noted: of which one, nobody knows.
        (0..3).for_each(|place| hearing.owe(place, 9));
        assert_eq!(kept(&hearing), [false, true, false]);
        hearing.on_close(1);
        assert_eq!(kept(&hearing), [false; 3]);
    }

    #[test]
    fn a_failed_command_counts_when_the_cache_holds_a_block_of_it() {
        let mut hearing = OwedErrors::new(1);
        hearing.on_command_failed(VOLUME, 8192, 4096);
        let held = |offset| [(offset, 4096, IoError::Medium)];
        assert!(hearing.has_unreported(VOLUME) && !hearing.has_unreported(VolumeId(0)));
        assert!(!hearing.is_recorded(VOLUME, &held(4096)));
        assert!(!hearing.is_recorded(VOLUME, &held(12_288)));
        assert!(hearing.is_recorded(VOLUME, &held(8192)));
        assert!(!hearing.has_unreported(VOLUME));
        hearing.on_command_failed(VOLUME, 0, 512);
        (0..TURNS_MAX).for_each(|_| assert!(!hearing.is_recorded(VOLUME, &[])));
        assert!(!hearing.has_unreported(VOLUME));
    }
}
