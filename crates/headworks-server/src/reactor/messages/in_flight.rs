//! Requests that are not answered yet, as a shard reports them.

use headworks_core::request::Request;
use headworks_core::{BioId, DeviceId, ExportId, Instant, Op, VolumeId, WaitKind};
use headworks_front::WaitsFor;

use crate::clients::connection_id::is_client;

/// Ends of the ranges of ages but the last: one second, ten seconds.
pub const AGES_NS: [u64; 2] = [1_000_000_000, 10_000_000_000];

/// Where a request waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WaitPlace {
    /// Before the end of a freeze, which counts as a limit.
    Freeze,
    /// At a stage that is counted.
    Stage(WaitKind),
    /// Between shards, or behind other work of its shard.
    #[default]
    Elsewhere,
}

impl WaitPlace {
    /// The place of a request that has no bio; none if it waits for its own client.
    pub fn of_front(waits_for: WaitsFor) -> Option<Self> {
        Some(match waits_for {
            WaitsFor::Client | WaitsFor::Window => return None,
            WaitsFor::Limit(_) => Self::Stage(WaitKind::Limit),
            WaitsFor::Freeze => Self::Freeze,
            WaitsFor::Room | WaitsFor::Buffer => Self::Stage(WaitKind::Buffer),
            WaitsFor::Nothing | WaitsFor::Turn | WaitsFor::Pieces => Self::Elsewhere,
        })
    }

    /// Name of the place in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Freeze => "freeze",
            Self::Stage(kind) => kind.name(),
            Self::Elsewhere => "elsewhere",
        }
    }
}

/// A request that is not answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unanswered {
    /// The volume that it addresses.
    pub volume: VolumeId,
    /// Its export; none of a command of a device, which may be of several.
    pub export: Option<ExportId>,
    /// Its connection; none of the server's own.
    pub connection: Option<u32>,
    /// Operation of the request.
    pub op: Op,
    /// First byte of its range.
    pub offset: u64,
    /// Length of its range in bytes.
    pub len: u32,
    /// Nanoseconds since it came, or since the device was sent it.
    pub age_ns: u64,
    /// Where it waits now.
    pub place: WaitPlace,
    /// The device that it is for.
    pub device: DeviceId,
    /// The bio by which the shard of the device knows where it waits there, if that is another shard.
    pub sent_on: Option<BioId>,
}

impl Unanswered {
    /// The command that a device has had for the longest time.
    pub fn of_command(now: Instant, device: DeviceId, request: &Request) -> Self {
        let Request { volume, connection, op, offset, len, sent, .. } = *request;
        let (age_ns, place) = (now.since(sent), WaitPlace::Stage(WaitKind::Device));
        let connection = Some(connection).filter(|id| is_client(*id));
        Self { volume, connection, op, offset, len, age_ns, place, device, ..Self::default() }
    }
}

/// The requests of an export's clients that are not answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InFlightReport {
    /// The export of the clients.
    pub export: ExportId,
    /// Their number by age, see [`AGES_NS`].
    pub ages: [u32; AGES_NS.len() + 1],
    /// The oldest of them.
    pub oldest: Option<Unanswered>,
}

impl InFlightReport {
    /// Counts a request; true if none so far is older. Of those of one turn the last one told counts, which came first.
    pub fn count(&mut self, age_ns: u64) -> bool {
        self.ages[AGES_NS.partition_point(|end| *end < age_ns)] += 1;
        self.oldest.is_none_or(|oldest| oldest.age_ns <= age_ns)
    }

    /// Adds what another shard reports.
    pub fn add(&mut self, other: &Self) {
        self.ages.iter_mut().zip(other.ages).for_each(|(sum, count)| *sum += count);
        let age = |one: &Self| one.oldest.map(|oldest| oldest.age_ns);
        if age(other) > age(self) {
            self.oldest = other.oldest;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_age_and_the_oldest_is_kept() {
        let second = 1_000_000_000;
        let mut all = InFlightReport::default();
        for age_ns in [0, second, second + 1, 10 * second, 3_600 * second, 5] {
            if all.count(age_ns) {
                all.oldest = Some(Unanswered { age_ns, ..Unanswered::default() });
            }
        }
        assert_eq!((all.ages, all.oldest.map(|one| one.age_ns)), ([3, 2, 1], Some(3_600 * second)));
        let mut sum = InFlightReport::default();
        sum.add(&all);
        sum.add(&InFlightReport::default());
        assert_eq!((sum.ages, sum.oldest), (all.ages, all.oldest));
    }
}
