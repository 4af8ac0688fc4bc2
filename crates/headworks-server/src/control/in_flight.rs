//! Requests that are not answered yet: the oldest of each export and each device, in figures and in words.
//!
//! ```text
//!   every shard: requests in flight by export and age, and where the oldest waits
//!     it waits at a device of another shard --> that shard: where the bio is there
//!   the shard of a device: the command that it has had for the longest time
//! ```
//!
//! Rule: this is the one answer to "what does not get on now": `why`, `top`, the status page, the metrics, `exports` and `stats` show
//! it, and what waits for devices (a removal, a hand-over) names them by it.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use headworks_core::{BioId, ExportId, Op, ShardId, VolumeId, WaitKind};

use super::queries::Queries;
use super::tree::{DeviceNode, Tree, device_name};
use super::why::time;
use crate::reactor::in_flight::set_wait;
use crate::reactor::messages::in_flight::{InFlightReport, Unanswered, WaitPlace};
use crate::reactor::messages::query::ControlQuery;
use crate::spec::tenant::TenantName;
use headworks_control::{RpcFault, answers};

/// Requests that wait for at least this are told: 1 s.
pub const LONG: Duration = Duration::from_secs(1);

/// A request that is not answered yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OldestRequest {
    /// Names of the exports of its volume; of a client's request one.
    exports: Vec<String>,
    tenant: Option<TenantName>,
    /// The server that its device is behind.
    remote: Option<String>,
    /// Time since it came, or since the device was sent it.
    pub age: Duration,
    one: Unanswered,
}

/// The requests of an export's clients that are not answered yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InFlight {
    /// Their number by age, see [`AGES_NS`](crate::reactor::messages::in_flight::AGES_NS).
    pub ages: [u32; 3],
    /// The oldest of them.
    pub oldest: Option<OldestRequest>,
}

/// Requests in flight by export; those without one are left out.
pub type InFlightExports = BTreeMap<ExportId, InFlight>;

impl OldestRequest {
    /// Names the exports of a request that a shard has reported.
    pub fn new(
        tree: &Tree,
        one: Unanswered,
        tenant_of: impl Fn(ExportId) -> Option<TenantName>,
    ) -> Self {
        let device = tree.device(one.device);
        let ids = match one.export {
            Some(export) => vec![export],
            None => exports_of(tree, device, one.volume),
        };
        let names = ids.iter().filter_map(|id| tree.entry(*id));
        Self {
            exports: names.map(|entry| entry.shown_name().to_owned()).collect(),
            tenant: ids.first().and_then(|id| tenant_of(*id)),
            remote: device.and_then(|node| Some(node.remote.as_ref()?.uri.clone())),
            age: Duration::from_nanos(one.age_ns),
            one,
        }
    }

    /// The volume that it addresses.
    pub fn volume(&self) -> VolumeId {
        self.one.volume
    }

    /// Itself, and what an operator can do when something waits for it.
    pub fn with_advice(&self) -> String {
        let export = self.exports.first().map_or("EXPORT", String::as_str);
        format!(
            "{self}; try again when its device has answered, or give the export up (ctl SOCKET remove {export} --abandon), and the others are \
             handed over"
        )
    }

    /// Whether it is told that it waits.
    pub fn is_long(&self) -> bool {
        self.age >= LONG
    }

    /// `in device hw5`: where it waits.
    fn place(&self) -> String {
        let device = device_name(self.one.device);
        match self.one.place {
            WaitPlace::Freeze => "for the end of a freeze".to_owned(),
            WaitPlace::Elsewhere => "behind other work of its thread".to_owned(),
            WaitPlace::Stage(kind) => match kind {
                WaitKind::Limit => "for a limit".to_owned(),
                WaitKind::Buffer => "for a request buffer".to_owned(),
                WaitKind::Cache => "in the page cache".to_owned(),
                WaitKind::Dirty => "for the limit of dirty data".to_owned(),
                WaitKind::Plug => format!("for a change of the options of device {device}"),
                WaitKind::Tag => format!("for a tag of device {device}"),
                WaitKind::Scheduler => format!("in the elevator of device {device}"),
                WaitKind::Device => match &self.remote {
                    Some(uri) => format!("at the remote {uri} (device {device})"),
                    None => format!("in device {device}"),
                },
            },
        }
    }

    /// `read of 4 KiB at 0, connection 3 of tenant t13`.
    fn request(&self) -> String {
        let Unanswered { op, offset, len, connection, .. } = self.one;
        let what = match op {
            Op::Flush => op.name().to_owned(),
            _ => format!("{} of {} at {offset}", op.name(), super::why::size(len.into())),
        };
        let tenant = self.tenant.map_or(String::new(), |tenant| format!(" of tenant {tenant}"));
        let by = connection.map(|connection| format!(", connection {connection}{tenant}"));
        what + &by.unwrap_or_default()
    }

    /// `has waited in device hw5 for 17.0 s: read of 4 KiB at 0, connection 3 of tenant t13`.
    pub fn told(&self) -> String {
        let age = time(self.one.age_ns);
        format!("has waited {} for {age}: {}", self.place(), self.request())
    }

    /// Its age in nanoseconds, and where it waits.
    pub fn age_and_place(&self) -> (u64, &'static str) {
        (self.one.age_ns, self.one.place.name())
    }

    /// `no answer for 4.0 s`, of a request at a remote that waits for long.
    pub fn silence(&self) -> Option<String> {
        let is_there = self.remote.is_some() && self.is_long();
        is_there.then(|| format!("no answer for {}", time(self.one.age_ns)))
    }

    /// The same in figures.
    pub fn answer(&self) -> answers::OldestRequest {
        let Unanswered { connection, op, offset, len, place, device, .. } = self.one;
        answers::OldestRequest {
            age_s: self.age.as_secs_f64(),
            stage: place.name().to_owned(),
            device: device_name(device),
            exports: self.exports.clone(),
            tenant: self.tenant.map(|name| name.to_string()),
            connection,
            op: op.name().to_owned(),
            offset,
            len,
            told: format!("a request {}", self.told()),
        }
    }
}

impl fmt::Display for OldestRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (exports, device) = (self.exports.join(", "), device_name(self.one.device));
        let (age, what) = (self.age.as_secs_f32(), self.request());
        write!(f, "export {exports}, device {device}, oldest {age:.1} s: {what}")
    }
}

impl InFlight {
    /// Number of requests that wait for longer than [`LONG`].
    fn waiting(&self) -> u32 {
        self.ages[1..].iter().sum()
    }

    /// `1 request has waited in device hw5 for 17.0 s: read of ...`, if one waits for long.
    pub fn finding(&self) -> Option<String> {
        let oldest = self.oldest.as_ref().filter(|oldest| oldest.is_long())?;
        Some(match self.waiting() {
            0 | 1 => format!("1 request {}", oldest.told()),
            many => format!(
                "{} requests have waited for more than {}; the oldest {}",
                super::why::grouped(many.into()),
                time(LONG.as_nanos() as u64),
                oldest.told()
            ),
        })
    }

    /// The same in figures.
    pub fn answer(&self) -> answers::InFlight {
        let [up_to_1s, up_to_10s, longer] = self.ages;
        let oldest = self.oldest.as_ref().map(OldestRequest::answer);
        answers::InFlight { up_to_1s, up_to_10s, longer, oldest }
    }
}

impl Queries {
    /// The requests of each export's clients that are not answered yet.
    ///
    /// # Errors
    /// A shard does not answer.
    pub fn in_flight(&self, tree: &Tree) -> Result<InFlightExports, RpcFault> {
        let mut all: BTreeMap<ExportId, InFlightReport> = BTreeMap::new();
        for shard in self.shards().ids() {
            let mut next = Some(ExportId(0));
            while let Some(from) = next {
                let query = |answer| ControlQuery::InFlight { from, answer };
                let (reports, more) = self.shards().ask(shard, query)?;
                for report in reports {
                    all.entry(report.export).or_default().add(&report);
                }
                next = more;
            }
        }
        self.follow(tree, &mut all)?;
        let named = |report: InFlightReport| {
            let oldest = report.oldest;
            let oldest = oldest.map(|one| OldestRequest::new(tree, one, |id| self.tenant_of(id)));
            InFlight { ages: report.ages, oldest }
        };
        Ok(all.into_iter().map(|(export, report)| (export, named(report))).collect())
    }

    /// Asks the shards of devices where the bios are that were sent on to them.
    fn follow(
        &self,
        tree: &Tree,
        all: &mut BTreeMap<ExportId, InFlightReport>,
    ) -> Result<(), RpcFault> {
        let mut sent: BTreeMap<ShardId, Vec<(ExportId, BioId)>> = BTreeMap::new();
        for (export, report) in all.iter() {
            let Some(oldest) = &report.oldest else { continue };
            if let (Some(bio), Some(node)) = (oldest.sent_on, tree.device(oldest.device)) {
                sent.entry(node.owner).or_default().push((*export, bio));
            }
        }
        for (shard, bios) in sent {
            let ids = bios.iter().map(|(_, bio)| *bio).collect();
            let waits =
                self.shards().ask(shard, |answer| ControlQuery::BioWaits { ids, answer })?;
            for ((export, _), wait) in bios.iter().zip(waits) {
                let oldest = all.get_mut(export).and_then(|report| report.oldest.as_mut());
                if let (Some(oldest), Some(wait)) = (oldest, wait) {
                    set_wait(oldest, wait);
                }
            }
        }
        Ok(())
    }

    /// The command that a device has had for the longest time, by its report.
    pub fn oldest_command(&self, tree: &Tree, oldest: Option<Unanswered>) -> Option<OldestRequest> {
        oldest.map(|one| OldestRequest::new(tree, one, |export| self.tenant_of(export)))
    }
}

/// The exports of a volume; of a base, which has none, those of its device.
fn exports_of(tree: &Tree, device: Option<&DeviceNode>, volume: VolumeId) -> Vec<ExportId> {
    let of = |is_meant: &dyn Fn(VolumeId) -> bool| -> Vec<ExportId> {
        let meant = tree.exports.iter().filter(|export| is_meant(export.volume));
        meant.map(|export| export.id).collect()
    };
    match of(&|other| other == volume) {
        own if !own.is_empty() => own,
        _ => of(&|other| device.is_some_and(|node| node.volumes.contains(&other))),
    }
}
