//! By whom: which exports and connections held what the slow requests waited for.
//!
//! Each stage waits for one thing: a tag, time of the device, dirty credit, a request buffer, or time of the shard. The exports that
//! held most of it in the seconds of the slow requests are named, ordered by how much others had to wait for them: by the
//! amount, and for tags and the device as much by the squares of the times of their requests, because a slow request is one that
//! met a long one. The first of the others is to blame if its part is a quarter: most of a second may be the fast requests of the export that asks. If
//! no other export has a quarter, the export that asks is slow by itself. So it is beside others that have no more there, no longer
//! requests and no more of them in flight: all of them wait for the device.

use headworks_control::answers;
use headworks_core::{ExportId, WaitKind};

use super::latency::micros;
use super::why::{PlaceWait, size, time};

/// Holders that are named.
const NAMED: usize = 3;
/// Connections of a holder that are named.
const CONNECTIONS: usize = 4;
/// Smallest share that is named: 5 %.
const WORTH: f64 = 0.05;
/// Smallest share of another export that is blamed.
const BLAMED: f64 = 0.25;

/// How much more than the export that asks another one has in the device, if it is to blame for that.
const MORE: f64 = 1.25;
/// How many times as long its requests take, or as many it has in flight.
const HEAVIER: u64 = 2;

/// What requests of a stage wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Tags of the device.
    Tags,
    /// Time in the device.
    DeviceTime,
    /// Dirty data in the cache: written in those seconds, or still dirty.
    Dirty,
    /// Request buffers.
    Buffers,
    /// The thread of the shard: requests that it worked on.
    Shard,
}

impl Resource {
    /// The resource of a stage; none if a stage waits for something that no request holds. `write_out`: in the cache its requests wait
    /// until data is written to the device; `place`: what they waited for before the device.
    pub fn of(stage: Option<WaitKind>, write_out: bool, place: PlaceWait) -> Option<Self> {
        match stage {
            Some(WaitKind::Cache) if write_out => Some(Self::DeviceTime),
            Some(WaitKind::Tag) if place != PlaceWait::Tag => Some(Self::DeviceTime),
            Some(WaitKind::Tag) => Some(Self::Tags),
            Some(WaitKind::Scheduler | WaitKind::Device) => Some(Self::DeviceTime),
            Some(WaitKind::Dirty) => Some(Self::Dirty),
            Some(WaitKind::Buffer) => Some(Self::Buffers),
            Some(WaitKind::Cache) | None => Some(Self::Shard),
            Some(WaitKind::Plug | WaitKind::Limit) => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Tags => "tags",
            Self::DeviceTime => "device time",
            Self::Dirty => "dirty data",
            Self::Buffers => "request buffers",
            Self::Shard => "shard time",
        }
    }
}

/// What one export, or several exports of one image, held.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Holder {
    /// Ids of the exports.
    pub exports: Vec<ExportId>,
    /// Their names, as clients use them.
    pub names: Vec<String>,
    /// It is the base of overlays, which several exports read.
    pub is_base: bool,
    /// Their tenant, if they have one.
    pub tenant: Option<String>,
    /// How much: nanoseconds of tags, of the device or of requests in flight, or bytes, summed over the seconds.
    pub amount: u64,
    /// How much others had to wait for it, in any unit.
    pub weight: u64,
    /// How long its requests held a tag, in nanoseconds, as others met them; 0 for other resources.
    pub hold_ns: u64,
    /// Their connections: id, and nanoseconds of requests in flight.
    pub connections: Vec<(u32, u64)>,
}

/// What was held, and by whom.
#[derive(Clone, Debug, PartialEq)]
pub struct Blame {
    resource: Resource,
    /// Name of the device.
    device: String,
    /// Seconds in which it was held.
    seconds: u64,
    /// The export that asks.
    own: ExportId,
    /// Everything that was held, and the sum of the weights.
    total: (u64, u64),
    /// The largest first.
    holders: Vec<Holder>,
}

impl Blame {
    /// The holders of a resource during some seconds, in any order; none if nothing was held.
    pub fn new(
        (resource, device): (Resource, String),
        own: ExportId,
        seconds: u64,
        mut holders: Vec<Holder>,
    ) -> Option<Self> {
        let sum = |of: fn(&Holder) -> u64| holders.iter().map(of).fold(0, u64::saturating_add);
        let total: (u64, u64) = (sum(|holder| holder.amount), sum(|holder| holder.weight));
        holders.retain(|holder| holder.amount > 0);
        let mut all = Self { resource, device, seconds, own, total, holders };
        let mut holders = std::mem::take(&mut all.holders);
        holders.sort_by(|a, b| all.part_in_waits(b).total_cmp(&all.part_in_waits(a)));
        (total.0 > 0).then_some(Self { holders, ..all })
    }

    /// Requests that the device had on average; none of another resource.
    pub fn in_device(&self) -> Option<f64> {
        let average = || self.total.0 as f64 / self.seconds.max(1) as f64 / 1e9;
        (self.resource == Resource::DeviceTime).then(average)
    }

    /// The largest holders, whose connections are still to be found.
    pub fn named_mut(&mut self) -> &mut [Holder] {
        let count = self.holders.len().min(NAMED);
        &mut self.holders[..count]
    }

    /// The export to blame: of all but the one that asks the largest holder, if it held a quarter.
    pub fn guilty(&self) -> Option<&Holder> {
        let largest = self.holders.iter().find(|holder| !self.is_own(holder));
        largest.filter(|holder| self.part_in_waits(holder) >= BLAMED && self.is_heavy(holder))
    }

    /// Whether an export has more than the one that asks, or longer requests, or more of them in flight. If their times are not known
    /// it may have.
    fn is_heavy(&self, holder: &Holder) -> bool {
        let Some(own) = self.holders.iter().find(|holder| self.is_own(holder)) else { return true };
        let has_more = self.share(holder) > MORE * self.share(own);
        let is_longer = holder.hold_ns >= HEAVIER * own.hold_ns;
        has_more || own.hold_ns == 0 || is_longer || busy_ns(holder) > HEAVIER * busy_ns(own)
    }

    /// Which part of the waits of others is for an export, 0 to 1.
    fn part_in_waits(&self, holder: &Holder) -> f64 {
        let weight = holder.weight as f64 / self.total.1.max(1) as f64;
        f64::midpoint(self.share(holder), weight)
    }

    fn is_own(&self, holder: &Holder) -> bool {
        holder.exports.contains(&self.own)
    }

    fn share(&self, holder: &Holder) -> f64 {
        holder.amount as f64 / self.total.0 as f64
    }

    /// `93 % of the tags of hw0 (14.9 requests on average, 12.1 ms each)`. The parts of a divided request count each.
    fn part(&self, holder: &Holder) -> String {
        let (percent, device) = (self.share(holder) * 100.0, &self.device);
        let average = holder.amount as f64 / self.seconds.max(1) as f64;
        let (at_once, hold) = (average / 1e9, time(holder.hold_ns));
        match self.resource {
            Resource::Tags => {
                format!(
                    "{percent:.0} % of the tags of {device} ({at_once:.1} requests on average, {hold} each)"
                )
            }
            Resource::DeviceTime => {
                format!(
                    "{percent:.0} % of what was in {device} ({at_once:.1} requests on average, {hold} each)"
                )
            }
            Resource::Dirty => {
                let rate = size(average as u64);
                format!("{percent:.0} % of the dirty data (written or dirty: {rate} a second)")
            }
            Resource::Buffers => format!(
                "{percent:.0} % of the request buffers ({} on average)",
                size(average as u64)
            ),
            Resource::Shard => format!(
                "{percent:.0} % of the requests in progress on its shard ({at_once:.1} on average)"
            ),
        }
    }

    /// A sentence: the export to blame with its connections, other holders, and the export itself.
    pub fn sentence(&self) -> String {
        let own = || self.holders.iter().find(|holder| self.is_own(holder));
        let Some(first) = self.guilty().or_else(own).or(self.holders.first()) else {
            return String::new();
        };
        let mut text = match self.is_own(first) {
            true => format!("by whom: its own requests held {}", self.part(first)),
            false => format!("by whom: {} held {}", whole_name(first), self.part(first)),
        };
        text += &connections(first);
        let others = self.holders.iter().filter(|holder| !std::ptr::eq(*holder, first));
        let mut named = 1;
        for holder in others {
            let is_large = named < NAMED && self.share(holder) >= WORTH;
            if !is_large && !self.is_own(holder) {
                continue;
            }
            named += 1;
            let percent = self.share(holder) * 100.0;
            text += &match self.is_own(holder) {
                true => format!(", this export {percent:.0} %"),
                false => format!(", {} {percent:.0} %", whole_name(holder)),
            };
        }
        text
    }

    /// What would help, if another export held most.
    pub fn hint(&self) -> Option<String> {
        let guilty = self.guilty()?;
        let name = guilty.names.first()?;
        let limited = format!("`ctl set exports/{name}/bps-total 100M` limits it");
        let (device, what) = (&self.device, whole_name(guilty));
        Some(match self.resource {
            Resource::Tags | Resource::DeviceTime => format!(
                "{what} uses {device} most: {limited}, exports/{name}/weight is its share; a latency-target of this export keeps others out of {device}"
            ),
            Resource::Dirty => format!(
                "{what} makes most of the dirty data: exports/{name}/dirty bounds it, {limited}"
            ),
            Resource::Buffers => format!(
                "{what} holds most buffers: exports/{name}/weight is its share of them, a larger --buffers has more"
            ),
            Resource::Shard => {
                format!("{what} keeps the shard busy: {limited}; more --shards divide the exports")
            }
        })
    }

    /// The same for programs.
    pub fn answer(&self) -> answers::Blame {
        let guilty = self.guilty().and_then(|guilty| guilty.names.first());
        answers::Blame {
            resource: self.resource.name().to_owned(),
            device: self.device.clone(),
            seconds: self.seconds,
            guilty: guilty.cloned(),
            holders: self.holders.iter().map(|holder| self.holder(holder)).collect(),
        }
    }

    fn holder(&self, holder: &Holder) -> answers::Holder {
        let busy = busy_ns(holder);
        let connection = |&(id, ns): &(u32, u64)| answers::HolderConnection {
            id,
            share: ns as f64 / busy.max(1) as f64,
        };
        answers::Holder {
            exports: holder.names.clone(),
            tenant: holder.tenant.clone(),
            own: self.is_own(holder),
            share: self.share(holder),
            average: self.average(holder),
            hold_us: micros(holder.hold_ns),
            connections: holder.connections.iter().map(connection).collect(),
        }
    }

    /// Tags, requests or bytes at a time.
    fn average(&self, holder: &Holder) -> f64 {
        let average = holder.amount as f64 / self.seconds.max(1) as f64;
        match self.resource {
            Resource::Dirty | Resource::Buffers => average,
            _ => average / 1e9,
        }
    }
}

/// `export a of tenant acme`; exports of one image: `exports a and b`.
fn whole_name(holder: &Holder) -> String {
    let names = match &holder.names[..] {
        [] if holder.is_base => "the overlays on a shared base".to_owned(),
        [] => "a removed export".to_owned(),
        [name] => format!("export {name}"),
        several => format!("exports {} (of one image)", several.join(" and ")),
    };
    match &holder.tenant {
        Some(tenant) => format!("{names} of tenant {tenant}"),
        None => names,
    }
}

/// Nanoseconds of its requests in flight, as far as its connections are known.
fn busy_ns(holder: &Holder) -> u64 {
    holder.connections.iter().map(|(_, ns)| ns).sum()
}

/// ` by connection 7 (88 %), 9 (12 %)`; nothing if they are not known.
fn connections(holder: &Holder) -> String {
    let total = busy_ns(holder);
    if total == 0 {
        return String::new();
    }
    let share = |ns: u64| ns as f64 / total as f64;
    let worth = holder.connections.iter().filter(|(_, ns)| share(*ns) >= WORTH).take(CONNECTIONS);
    let list: Vec<String> =
        worth.map(|(id, ns)| format!("{id} ({:.0} %)", share(*ns) * 100.0)).collect();
    match &list[..] {
        [] => String::new(),
        [_] => format!(" by connection {}", list[0]),
        _ => format!(" by connections {}", list.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(id: u16, name: &str, amount: u64) -> Holder {
        let (exports, names) = (vec![ExportId(id)], vec![name.to_owned()]);
        Holder { exports, names, amount, weight: amount, ..Holder::default() }
    }

    fn blame(resource: Resource, holders: Vec<Holder>) -> Option<Blame> {
        Blame::new((resource, "hw0".into()), ExportId(0), 2, holders)
    }

    #[test]
    fn largest_holder_is_guilty_and_named_with_its_connections() {
        let bulk = Holder {
            tenant: Some("acme".into()),
            connections: vec![(7, 880), (9, 120), (11, 1)],
            hold_ns: 12_100_000,
            ..holder(1, "bulk", 28_000_000_000)
        };
        let holders = vec![holder(0, "db", 1_000_000_000), bulk, holder(2, "log", 3_000_000_000)];
        let blame = blame(Resource::Tags, holders).unwrap();
        assert_eq!(
            blame.sentence(),
            "by whom: export bulk of tenant acme held 88 % of the tags of hw0 (14.0 requests on average, 12.1 ms each) by connections 7 (88 %), 9 (12 %), export log 9 %, this export 3 %"
        );
        assert_eq!(blame.guilty().unwrap().names, ["bulk"]);
        assert!(blame.hint().unwrap().contains("set exports/bulk/bps-total"));
        let told = blame.answer();
        assert_eq!((told.guilty.as_deref(), &*told.resource), (Some("bulk"), "tags"));
        assert_eq!((told.holders[0].average, told.holders[2].own), (14.0, true));
    }

    #[test]
    fn export_that_held_most_itself_blames_no_other() {
        let holders = vec![holder(0, "db", 9 << 20), holder(1, "other", 1 << 20)];
        let blame = blame(Resource::Dirty, holders).unwrap();
        assert_eq!(
            blame.sentence(),
            "by whom: its own requests held 90 % of the dirty data (written or dirty: 4.5 MiB a second), export other 10 %"
        );
        assert!(blame.guilty().is_none() && blame.hint().is_none());
        assert_eq!(blame.answer().guilty, None);
    }

    #[test]
    fn long_requests_weigh_more_than_many_short_ones() {
        let long = Holder { weight: 5000, ..holder(1, "bulk", 20) };
        let short = Holder { weight: 80, ..holder(0, "db", 80) };
        let blame = blame(Resource::Tags, vec![short, long]).unwrap();
        assert_eq!(blame.guilty().unwrap().names, ["bulk"]);
        assert!(blame.sentence().starts_with("by whom: export bulk held 20 % of the tags"));
    }

    #[test]
    fn another_export_with_a_quarter_is_blamed_before_the_own() {
        let holders = vec![holder(0, "db", 70), holder(1, "bulk", 30)];
        let quarter = blame(Resource::DeviceTime, holders).unwrap();
        assert!(
            quarter.sentence().starts_with("by whom: export bulk held 30 % of what was in hw0")
                && quarter.sentence().ends_with(", this export 70 %"),
            "{}",
            quarter.sentence()
        );
        let holders = vec![holder(0, "db", 80), holder(1, "a", 11), holder(2, "b", 9)];
        let less = blame(Resource::DeviceTime, holders).unwrap();
        assert!(less.guilty().is_none(), "{}", less.sentence());
        assert!(less.sentence().ends_with(", export a 11 %, export b 9 %"));
    }

    #[test]
    fn exports_of_one_image_are_one_holder() {
        let shared = Holder {
            exports: vec![ExportId(1), ExportId(2)],
            names: vec!["a".into(), "b".into()],
            amount: 5,
            weight: 5,
            ..Holder::default()
        };
        let blame = blame(Resource::Buffers, vec![shared]).unwrap();
        assert!(blame.sentence().contains("exports a and b (of one image) held 100 %"));
    }

    #[test]
    fn nothing_held_is_no_blame() {
        assert_eq!(blame(Resource::Shard, vec![holder(1, "a", 0)]), None);
        assert_eq!(Resource::of(Some(WaitKind::Limit), true, PlaceWait::Tag), None);
        assert_eq!(Resource::of(None, false, PlaceWait::Tag), Some(Resource::Shard));
        assert_eq!(
            Resource::of(Some(WaitKind::Cache), false, PlaceWait::Tag),
            Some(Resource::Shard)
        );
        assert_eq!(
            Resource::of(Some(WaitKind::Cache), true, PlaceWait::Tag),
            Some(Resource::DeviceTime)
        );
    }
}
