//! The old way: writers write back for themselves. A baseline for experiments.
//!
//! What Linux did from 2.6.24 to 3.1, at its best: a writer is looked at after `ratelimit_pages` (a 32nd of the limit, at
//! most 4 MiB; 32 KiB while its device is over its limit), and if its device is over the writer's own limit (an eighth lower
//! for one that dirties everything) it must write out one and a half times as much before it goes on.

/// Blocks after which a writer is looked at while its device is over its limit.
const RATELIMIT_EXCEEDED: u32 = 8;

/// `ratelimit_pages` under that limit.
fn ratelimit_pages(limit: u32) -> u32 {
    (limit / 32).clamp(16, 1024)
}

/// What the device's position asks of a writer.
#[derive(Clone, Copy, Debug)]
pub struct Position {
    /// The device's dirty + writeback + reserved.
    pub used: u32,
    /// The device's limit.
    pub limit: u32,
    /// Whether all devices together are in free-run.
    pub freerun: bool,
    /// Writers of the device.
    pub writers: u32,
}

/// The blocks that a writer must write out itself after having dirtied `nr_dirtied`; `None`: it is not looked at yet.
#[must_use]
pub fn quota(position: Position, nr_dirtied: u32) -> Option<u32> {
    let Position { used, limit, freerun, writers } = position;
    let pages = ratelimit_pages(limit);
    let exceeded = used > limit - limit / 32;
    if nr_dirtied < if exceeded { RATELIMIT_EXCEEDED } else { pages } {
        return None;
    }
    let task_limit = limit - limit / 8 / writers.max(1);
    if freerun || used <= task_limit - limit / 32 {
        return Some(0);
    }
    let dirtied = nr_dirtied.max(pages);
    Some(dirtied + dirtied / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Position = Position { used: 100_000, limit: 200_000, freerun: false, writers: 1 };

    #[test]
    fn six_mebibytes_are_written_after_four_were_dirtied() {
        let over = Position { used: 190_000, ..AT };
        assert_eq!(quota(over, 1023), None);
        assert_eq!(quota(over, 1024), Some(1536));
        assert_eq!(quota(over, 5000), Some(7500));
    }

    #[test]
    fn below_its_own_limit_a_writer_goes_on() {
        assert_eq!(quota(AT, 1024), Some(0));
        let between = Position { used: 180_000, ..AT };
        assert_eq!(quota(between, 1024), Some(1536));
        assert_eq!(quota(Position { writers: 100, ..between }, 1024), Some(0));
        assert_eq!(quota(Position { freerun: true, ..between }, 1024), Some(0));
    }

    #[test]
    fn over_the_limit_the_look_comes_after_eight_blocks() {
        let over = Position { used: 199_000, ..AT };
        assert_eq!(quota(over, 7), None);
        assert_eq!(quota(over, 8), Some(1536));
    }
}
