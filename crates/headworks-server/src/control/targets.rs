//! Latency targets as users see them: whose target costs whom, what is missed, and targets that a device cannot keep.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use headworks_control::answers;
use headworks_core::stats::TargetCounts;
use headworks_core::{DeviceId, ExportId, TenantId};

use super::shards::ShardLink;
use super::tree::{Tree, device_name};
use super::why::{grouped, size};
use crate::reactor::messages::query::ControlQuery;
use crate::spec::latency_target::{latency_target_word, least_target, shown_target};
use headworks_control::RpcFault;

/// How long a change of a target waits for the first request that shows what its device can do.
const KNOWN_WITHIN: Duration = Duration::from_millis(200);
/// Pause before it is asked again.
const PAUSE: Duration = Duration::from_millis(10);
/// Most owners of a target that are named.
const OWNERS: usize = 3;

/// What the latency targets of all devices have counted.
#[derive(Clone, Debug, Default)]
pub struct TargetTotals {
    /// Counts by export id.
    pub exports: BTreeMap<ExportId, TargetCounts>,
    /// Counts by tenant number.
    pub tenants: BTreeMap<TenantId, TargetCounts>,
}

impl TargetTotals {
    /// Asks all shards.
    ///
    /// # Errors
    /// A shard does not answer.
    pub fn ask(shards: &ShardLink) -> Result<Self, RpcFault> {
        let mut all = Self::default();
        for report in shards.ask_all(|answer| ControlQuery::Targets { answer })? {
            for (export, counts) in &report.exports {
                all.exports.entry(*export).or_default().add(counts);
            }
            for (tenant, counts) in &report.tenants {
                all.tenants.entry(*tenant).or_default().add(counts);
            }
        }
        Ok(all)
    }
}

/// The latency target of an export, and how well it is kept.
#[derive(Clone, Debug, Default)]
pub struct OwnTarget {
    /// The target in microseconds.
    pub target_us: u32,
    /// `tenant acme` or `export db`.
    pub of: String,
    /// Name of the export's device.
    pub device: String,
    /// Whether the device keeps targets; with bfq it does not.
    pub kept: bool,
    /// Small requests since the target was set, and those that missed it.
    pub counts: TargetCounts,
    /// Smallest latency seen on the idle device in nanoseconds.
    pub smallest_ns: Option<u64>,
}

impl OwnTarget {
    /// A sentence for people.
    pub fn note(&self) -> String {
        let Self { of, device, counts, .. } = self;
        let target = shown_target(self.target_us);
        if !self.kept {
            return format!(
                "latency target {target} of {of}: {device} does not keep it; its scheduler raises queues instead"
            );
        }
        let missed = match counts.ended {
            0 => "no small request since it was set".to_owned(),
            ended => format!(
                "{} of {} small requests missed it ({:.1} %)",
                grouped(counts.missed),
                grouped(ended),
                counts.missed as f64 * 100.0 / ended as f64
            ),
        };
        let tight = self.smallest_ns.and_then(|ns| tight(device, self.target_us, ns));
        let tight = tight.map_or_else(String::new, |why| format!("; it {why}"));
        format!("latency target {target} of {of}: {missed}{tight}")
    }

    /// The same for programs.
    pub fn answer(&self) -> answers::OwnTarget {
        answers::OwnTarget {
            target_us: self.target_us,
            of: self.of.clone(),
            kept: self.kept,
            requests: self.counts.ended,
            missed: self.counts.missed,
            smallest_us: self.smallest_ns.map(|ns| ns as f64 / 1e3),
        }
    }
}

/// The target of others for which an export's requests wait.
#[derive(Clone, Debug, Default)]
pub struct HeldByTarget {
    /// The target in microseconds.
    pub target_us: u32,
    /// Whose target it is: `tenant acme`, `export db`; none if it is gone.
    pub of: Vec<String>,
    /// Name of the device.
    pub device: String,
    /// Bytes of others that the device takes at once; none without a limit now.
    pub limit: Option<u64>,
    /// Requests of the export that waited.
    pub requests: u64,
}

impl HeldByTarget {
    /// Why requests wait: `waits for the latency target 5 ms of tenant acme`.
    pub fn reason(&self) -> String {
        let target = shown_target(self.target_us);
        let of = match &self.of[..] {
            [] => String::new(),
            owners => {
                let more = match owners.len().saturating_sub(OWNERS) {
                    0 => String::new(),
                    more => format!(" and {more} more"),
                };
                format!(" of {}{more}", owners[..owners.len().min(OWNERS)].join(", "))
            }
        };
        let limit = self.limit.map_or_else(String::new, |limit| {
            format!(": {} takes at most {} of others at once", self.device, size(limit))
        });
        format!("waits for the latency target {target}{of}{limit}")
    }

    /// A sentence for people.
    pub fn note(&self) -> String {
        let requests = grouped(self.requests);
        let reason = self.reason();
        let reason = reason.strip_prefix("waits").unwrap_or(&reason);
        format!("{requests} requests have waited{reason}")
    }

    /// The same for programs.
    pub fn answer(&self) -> answers::HeldForTarget {
        answers::HeldForTarget {
            target_us: self.target_us,
            of: self.of.clone(),
            limit_bytes: self.limit,
            requests: self.requests,
        }
    }
}

/// Says that a target is too small for a device, if it is.
fn tight(device: &str, target_us: u32, smallest_ns: u64) -> Option<String> {
    let least = least_target(smallest_ns);
    (u64::from(target_us) < least).then(|| {
        format!(
            "is below twice the smallest latency seen on {device}, {} us; choose at least {}",
            smallest_ns.div_ceil(1000),
            latency_target_word(u32::try_from(least).unwrap_or(u32::MAX))
        )
    })
}

/// Refuses a target that one of these devices cannot keep, as far as that is known. Where nothing is known a device is watched for a
/// moment: under load its first request shows it.
///
/// # Errors
/// A sentence with the smallest latency seen, or a shard that does not answer.
pub fn refuse_tight_target(
    shards: &ShardLink,
    tree: &Tree,
    devices: &[DeviceId],
    target_us: u32,
) -> Result<(), TargetFault> {
    let until = Instant::now() + KNOWN_WITHIN;
    let mut unknown = devices.to_vec();
    loop {
        let mut later = Vec::new();
        for device in unknown {
            let Some(node) = tree.device(device) else { continue };
            let query = |answer| ControlQuery::SmallestLatency { device, answer };
            match shards.ask(node.owner, query).map_err(TargetFault::Shards)? {
                None => later.push(device),
                Some(ns) => {
                    if let Some(why) = tight(&device_name(device), target_us, ns) {
                        let target = latency_target_word(target_us);
                        return Err(TargetFault::Tight(format!("`{target}` {why}")));
                    }
                }
            }
        }
        if later.is_empty() || Instant::now() >= until {
            return Ok(());
        }
        unknown = later;
        std::thread::sleep(PAUSE);
    }
}

/// Why a target was refused.
pub enum TargetFault {
    /// A device cannot keep it, as a sentence says.
    Tight(String),
    /// A shard did not answer.
    Shards(RpcFault),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_names_the_target_and_whose_it_is() {
        let held = |of: &[&str], limit| HeldByTarget {
            target_us: 5_000,
            of: of.iter().map(|&word| word.to_owned()).collect(),
            device: "hw0".into(),
            limit,
            requests: 1_234,
        };
        let one = held(&["tenant acme"], Some(4 << 20));
        let expected = "waits for the latency target 5 ms of tenant acme: hw0 takes at most 4.0 MiB of others at once";
        assert_eq!(one.reason(), expected);
        assert_eq!(one.note(), format!("1,234 requests have waited{}", &expected[5..]));
        assert_eq!(held(&[], None).reason(), "waits for the latency target 5 ms");
        let many = held(&["export a", "export b", "tenant c", "tenant d"], None).reason();
        assert!(many.ends_with("of export a, export b, tenant c and 1 more"), "{many}");
    }

    #[test]
    fn own_target_tells_what_missed_it_and_whether_it_can_be_kept() {
        let counts = TargetCounts { ended: 3_010, missed: 12, ..TargetCounts::default() };
        let own = OwnTarget {
            target_us: 250,
            of: "export db".into(),
            device: "hw1".into(),
            kept: true,
            counts,
            smallest_ns: Some(90_000),
        };
        let kept =
            "latency target 250 us of export db: 12 of 3,010 small requests missed it (0.4 %)";
        assert_eq!(own.note(), kept);
        let tight = OwnTarget { smallest_ns: Some(150_000), ..own.clone() }.note();
        let why =
            "; it is below twice the smallest latency seen on hw1, 150 us; choose at least 300us";
        assert_eq!(tight, format!("{kept}{why}"));
        let new = OwnTarget { counts: TargetCounts::default(), ..own.clone() }.note();
        assert!(new.ends_with("no small request since it was set"), "{new}");
        assert!(OwnTarget { kept: false, ..own }.note().contains("hw1 does not keep it"));
    }
}
