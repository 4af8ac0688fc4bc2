//! The input of the experiment's verdicts: ratios of medians, and counts.

use super::{ContentionCell, Dispatch, Guards, LockKind, Method, Placement};

/// A speed ratio at both sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SpeedRatio {
    /// With 2 threads on 2 CPUs.
    pub pinned: f64,
    /// With many threads, placed by the kernel.
    pub many: f64,
}

/// The ratios and counts of all cells.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ContentionSummary {
    /// Feeders that drive against the faster lock around the elevator alone, one by one.
    pub elevator: SpeedRatio,
    /// Feeders that drive against the spin lock around the elevator alone, one by one, which is the kernel's
    /// kind of lock.
    pub elevator_spin: SpeedRatio,
    /// Feeders that drive against the faster lock around the whole path, one by one: the same work on both
    /// sides.
    pub path: SpeedRatio,
    /// The seed's own ratio, spin lock around the elevator, batch against one by one. It needs
    /// contention of many cores and is not reproducible here.
    pub seed: SpeedRatio,
    /// Many feeders against one.
    pub many_to_one: f64,
    /// Lock acquisitions per dispatched request, maximum of the batch cells around the elevator.
    pub batch_dispatch_locks: f64,
    /// Total inversions of the ring cells.
    pub rings_inversions: u64,
    /// Failed bios of the ring cells; the other cells have no bios that fail.
    pub errors: u64,
}

/// Summarises the cells that [`super::run`] returned.
#[must_use]
pub fn summary(cells: &[ContentionCell]) -> ContentionSummary {
    let ours = |place| best(cells, place, |way| way == Method::Feeders);
    let against = |old: &dyn Fn(Method) -> bool| SpeedRatio {
        pinned: ratio(ours(Placement::Pinned), best(cells, Placement::Pinned, old)),
        many: ratio(ours(Placement::Free), best(cells, Placement::Free, old)),
    };
    let locked = |guards, how| move |way: Method| matches!(way, Method::Locked(g, _, d) if g == guards && d == how);
    let spin =
        |how| move |way: Method| way == Method::Locked(Guards::Elevator, LockKind::Spin, how);
    let gain = |place| {
        let one_by_one = best(cells, place, spin(Dispatch::OneByOne));
        ratio(best(cells, place, spin(Dispatch::Batch)), one_by_one)
    };
    let rings = || cells.iter().filter(|cell| matches!(cell.way, Method::Feeders | Method::Rings));
    let lone = rings()
        .find(|cell| cell.threads == 1 && cell.way == Method::Feeders)
        .map_or(0.0, |cell| cell.iops().0);
    let batches = cells.iter().filter(|cell| locked(Guards::Elevator, Dispatch::Batch)(cell.way));
    ContentionSummary {
        elevator: against(&locked(Guards::Elevator, Dispatch::OneByOne)),
        elevator_spin: against(&spin(Dispatch::OneByOne)),
        path: against(&locked(Guards::Shard, Dispatch::OneByOne)),
        seed: SpeedRatio { pinned: gain(Placement::Pinned), many: gain(Placement::Free) },
        many_to_one: ratio(ours(Placement::Free), lone),
        batch_dispatch_locks: batches
            .map(|cell| cell.per_request(|round| round.locks.dispatch))
            .fold(0.0, f64::max),
        rings_inversions: rings().map(|cell| cell.order.inversions).sum(),
        errors: rings().flat_map(|cell| &cell.rounds).map(|round| round.errors).sum(),
    }
}

/// The best median of the selected cells, without those of a single feeder.
fn best(cells: &[ContentionCell], placement: Placement, wanted: impl Fn(Method) -> bool) -> f64 {
    let those = cells
        .iter()
        .filter(|cell| cell.placement == placement && cell.threads > 1 && wanted(cell.way));
    those.map(|cell| cell.iops().0).fold(0.0, f64::max)
}

fn ratio(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::super::Round;
    use super::*;

    fn cell(way: Method, threads: u32, placement: Placement, iops: [u64; 3]) -> ContentionCell {
        let round = |requests| Round { requests, elapsed_ns: 1_000_000_000, ..Round::default() };
        ContentionCell {
            rounds: iops.map(round).to_vec(),
            ..ContentionCell::new(way, threads, placement)
        }
    }

    #[test]
    fn summary_compares_medians_of_the_best_cells() {
        use Dispatch::{Batch, OneByOne};
        use LockKind::{Mutex, Spin};
        use Placement::{Free, Pinned};
        let elevator = |lock, how| Method::Locked(Guards::Elevator, lock, how);
        let path = |lock, how| Method::Locked(Guards::Shard, lock, how);
        let cells = [
            cell(elevator(Mutex, OneByOne), 2, Pinned, [5, 9, 1]),
            cell(elevator(Spin, OneByOne), 2, Pinned, [4, 4, 4]),
            cell(elevator(Spin, Batch), 2, Pinned, [6, 6, 6]),
            cell(path(Mutex, OneByOne), 2, Pinned, [2, 2, 2]),
            cell(path(Mutex, Batch), 2, Pinned, [9, 9, 9]),
            cell(Method::Feeders, 2, Pinned, [10, 10, 10]),
            cell(elevator(Mutex, OneByOne), 16, Free, [2, 2, 2]),
            cell(elevator(Spin, OneByOne), 16, Free, [4, 4, 4]),
            cell(path(Spin, OneByOne), 16, Free, [3, 3, 3]),
            cell(Method::Feeders, 16, Free, [12, 12, 12]),
            cell(Method::Feeders, 1, Free, [16, 16, 16]),
        ];
        assert_eq!(cells[0].iops(), (5.0, 1.0, 9.0));
        let found = summary(&cells);
        assert_eq!(found.elevator, SpeedRatio { pinned: 2.0, many: 3.0 });
        assert_eq!(found.elevator_spin, SpeedRatio { pinned: 2.5, many: 3.0 });
        assert_eq!(found.path, SpeedRatio { pinned: 5.0, many: 4.0 });
        assert_eq!(found.seed, SpeedRatio { pinned: 1.5, many: 0.0 });
        assert_eq!(found.many_to_one, 0.75);
    }
}
