//! Write-back errors owed to connections: each connection that wrote to or flushed the volume
//! before the error gets it at its next flush.
//!
//! ```text
//!   uninvolved --write or flush succeeds--> involved --write-out fails--> owed --flush fails--> involved
//! ```
//!
//! A failed command is not yet an error of the volume, because the bio it belongs to may be
//! retried. It becomes one when the cache holds a failed block of its range. Invariant: a flush of
//! a connection that is owed an error does not succeed, whatever was reported to the operator or to
//! other connections. A connection that reopens is uninvolved.

use headworks_core::{IoError, VolumeId};

/// Turns of its shard after which a failed command is forgotten, because all of its range was
/// written again.
const TURNS_MAX: u32 = 64;

/// `since` of a connection that neither wrote nor flushed.
const NEVER: u64 = u64::MAX;

/// State of one connection.
#[derive(Clone, Copy, Debug)]
struct ConnectionDebt {
    /// First turn whose errors the connection is owed.
    since: u64,
    owed: bool,
}

const UNINVOLVED: ConnectionDebt = ConnectionDebt { since: NEVER, owed: false };

/// A failed write-out command.
#[derive(Clone, Copy, Debug)]
struct Failed {
    volume: VolumeId,
    offset: u64,
    end: u64,
    turns_left: u32,
}

/// The errors owed to all connections.
#[derive(Debug)]
pub struct OwedErrors {
    /// State by connection index.
    connections: Vec<ConnectionDebt>,
    failed: Vec<Failed>,
}

impl OwedErrors {
    /// State for `connections` connections, all uninvolved.
    #[must_use]
    pub fn new(connections: usize) -> Self {
        Self { connections: vec![UNINVOLVED; connections], failed: Vec::new() }
    }

    /// A write or flush of a connection succeeded.
    pub fn on_success(&mut self, place: usize, turn: u64) {
        let since = &mut self.connections[place].since;
        *since = turn.min(*since);
    }

    /// Whether a connection is owed an error, so that its flush must fail. Called before
    /// [`OwedErrors::on_success`].
    #[must_use]
    pub fn is_owed(&self, place: usize) -> bool {
        self.connections[place].owed
    }

    /// A flush of a connection failed; returns whether it was owed that.
    pub fn on_failure(&mut self, place: usize, turn: u64) -> bool {
        let connection = &mut self.connections[place];
        if connection.since != NEVER {
            // The flush may have reported an error of this same turn.
            connection.since = turn;
        }
        std::mem::take(&mut connection.owed)
    }

    /// The connection closed and is uninvolved.
    pub fn on_close(&mut self, place: usize) {
        self.connections[place] = UNINVOLVED;
    }

    /// A write-out command failed.
    pub fn on_command_failed(&mut self, volume: VolumeId, offset: u64, len: u64) {
        self.failed.push(Failed { volume, offset, end: offset + len, turns_left: TURNS_MAX });
    }

    /// Whether failed commands of a volume are not yet recorded by its cache.
    #[must_use]
    pub fn has_unreported(&self, volume: VolumeId) -> bool {
        self.failed.iter().any(|failed| failed.volume == volume)
    }

    /// Compares failed commands with the failed ranges `held` in the volume's cache after a turn;
    /// returns whether the cache recorded a new error.
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

    /// Marks a connection as owed an error that was recorded in `turn`, which is over.
    pub fn owe(&mut self, place: usize, turn: u64) {
        let connection = &mut self.connections[place];
        connection.owed |= connection.since < turn;
    }

    /// Forgets the failed commands of a volume that was replaced.
    pub fn on_replaced(&mut self, volume: VolumeId) {
        self.failed.retain(|failed| failed.volume != volume);
    }

    /// Forgets everything after a power cut.
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
    fn each_involved_connection_is_owed_one_error() {
        let mut owed = OwedErrors::new(3);
        owed.on_success(0, 1);
        owed.on_success(1, 7);
        // Connection 1 became involved in the turn of the error, connection 2 never.
        (0..3).for_each(|place| owed.owe(place, 7));
        let kept = |owed: &OwedErrors| [0, 1, 2].map(|place| owed.is_owed(place));
        assert_eq!(kept(&owed), [true, false, false]);
        assert!(owed.on_failure(0, 9) && !owed.on_failure(0, 9));
        // Connection 0 was told in the turn of the next error: which of the two is unknown.
        (0..3).for_each(|place| owed.owe(place, 9));
        assert_eq!(kept(&owed), [false, true, false]);
        owed.on_close(1);
        assert_eq!(kept(&owed), [false; 3]);
    }

    #[test]
    fn failed_command_counts_once_cache_holds_its_block() {
        let mut owed = OwedErrors::new(1);
        owed.on_command_failed(VOLUME, 8192, 4096);
        let held = |offset| [(offset, 4096, IoError::Medium)];
        assert!(owed.has_unreported(VOLUME) && !owed.has_unreported(VolumeId(0)));
        assert!(!owed.is_recorded(VOLUME, &held(4096)));
        assert!(!owed.is_recorded(VOLUME, &held(12_288)));
        assert!(owed.is_recorded(VOLUME, &held(8192)));
        assert!(!owed.has_unreported(VOLUME));
        owed.on_command_failed(VOLUME, 0, 512);
        (0..TURNS_MAX).for_each(|_| assert!(!owed.is_recorded(VOLUME, &[])));
        assert!(!owed.has_unreported(VOLUME));
    }
}
