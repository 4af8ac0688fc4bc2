//! Reload of tunables: what changed in the configuration is set as `ctl set` would, the rest stays as it is.
//!
//! The old and the new configuration are compared with each other, not with the running values, so that a value that `ctl`
//! changed survives a reload that says nothing new about it.

use headworks_core::QueueOptions;
use headworks_core::options::Tunable;
use headworks_core::writeback::{DirtyOptions, DirtyTunable};

use super::LiveChanges;
use crate::change::configured::ConfiguredTunables;
use crate::config::is_probed;
use crate::control::report::{dirty_value, value};
use crate::control::tree::{device_name, lock};
use crate::spec::limit_words::shown_limits;
use headworks_core::limits::LimitTarget;

/// Result of a reload of tunables, by the paths of `ctl set`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RetuneReport {
    /// Paths that were set, and their new values.
    pub set: Vec<(String, String)>,
    /// Paths that could not be set, and the reasons.
    pub refused: Vec<(String, String)>,
    /// Paths that take effect after a restart.
    pub restart: Vec<String>,
}

/// Sets what differs between the last configuration and `wanted`, which becomes the last one.
pub fn retune(live: &LiveChanges, wanted: ConfiguredTunables) -> RetuneReport {
    let mut report = RetuneReport::default();
    let last = std::mem::replace(&mut *lock(&live.tunables), wanted.clone());
    // Without a cache there is no write-back to set.
    let has_cache = !live.tree.current().caching.is_empty();
    let dirty = if has_cache { dirty_changes(&last.dirty, &wanted.dirty) } else { Vec::new() };
    for (tunable, number) in dirty {
        let value = word(&dirty_value(tunable, number));
        set_one(live, format!("vm/{}", tunable.name()), &value, &mut report);
    }
    if last.limits != wanted.limits && live.settings.limits(LimitTarget::Server) != wanted.limits {
        let path = "server".to_owned();
        match live.settings.set_server_limits(wanted.limits) {
            Ok(()) => report.set.push((path, shown_limits(&wanted.limits))),
            Err(fault) => report.refused.push((path, fault.message().to_owned())),
        }
    }
    let devices = live.tree.current().devices.iter().map(|node| node.id).collect::<Vec<_>>();
    for device in devices {
        let name = lock(&live.inventory).named_device(device);
        for (tunable, value) in queue_changes(&last, &wanted, name.as_deref()) {
            let path = format!("{}/queue/{}", device_name(device), tunable.name());
            // What was found at the start is known no more.
            let unsaid = is_probed(tunable) && wanted.value(name.as_deref(), tunable).is_none();
            match tunable.is_live() && !unsaid {
                true => set_one(live, path, &value, &mut report),
                false => report.restart.push(path),
            }
        }
    }
    lock(&live.inventory).set_queue(wanted.queue);
    report
}

fn set_one(live: &LiveChanges, path: String, value: &str, report: &mut RetuneReport) {
    match live.settings.set(&path, value) {
        Ok(_) => report.set.push((path, value.to_owned())),
        Err(fault) => report.refused.push((path, fault.message().to_owned())),
    }
}

/// Write-back options that differ, with their new values. A ratio whose counterpart in bytes is set, and the reverse, is
/// not named.
pub(super) fn dirty_changes(
    last: &DirtyOptions,
    wanted: &DirtyOptions,
) -> Vec<(DirtyTunable, u64)> {
    let differs = |tunable: &DirtyTunable| {
        let now = tunable.get(wanted);
        tunable.get(last) != now && tunable.check(now).is_ok()
    };
    let all = DirtyTunable::ALL.into_iter().filter(differs);
    all.map(|tunable| (tunable, tunable.get(wanted))).collect()
}

/// Tunables of a device's queue that differ, with their new values; what is no longer said is the default again, or what a
/// restart finds.
fn queue_changes(
    last: &ConfiguredTunables,
    wanted: &ConfiguredTunables,
    device: Option<&str>,
) -> Vec<(Tunable, String)> {
    let usual = QueueOptions::default();
    let changed = |tunable: Tunable| {
        let (old, new) = (last.value(device, tunable), wanted.value(device, tunable));
        let new_value = new.unwrap_or_else(|| tunable.get(&usual));
        let old_value = old.unwrap_or_else(|| tunable.get(&usual));
        // What a device says of itself differs from any value, and is not known here.
        let differs = if is_probed(tunable) { old != new } else { old_value != new_value };
        ((old.is_some() || new.is_some()) && differs).then(|| (tunable, chosen(tunable, new_value)))
    };
    Tunable::ALL.into_iter().filter_map(changed).collect()
}

/// A value in the form that `set` takes.
fn chosen(tunable: Tunable, number: u64) -> String {
    let words = tunable.words().unwrap_or_default();
    let chosen = usize::try_from(number).ok().and_then(|index| words.get(index));
    chosen.map_or_else(|| word(&value(tunable, number)), |chosen| (*chosen).to_owned())
}

fn word(value: &serde_json::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exports::assemble::NamedDevice;
    use headworks_core::limits::Limits;

    fn named(name: &str, queue: &[(Tunable, u64)]) -> NamedDevice {
        NamedDevice { name: name.to_owned(), queue: queue.to_vec() }
    }

    #[test]
    fn only_what_changed_in_the_configuration_is_set() {
        use Tunable::{NrRequests, ReadAheadKb, Scheduler};
        let last = ConfiguredTunables {
            queue: vec![(NrRequests, 99), (Scheduler, 0)],
            devices: vec![named("fast", &[(NrRequests, 99), (Scheduler, 1)])],
            dirty: DirtyOptions::default(),
            limits: Limits::default(),
        };
        assert_eq!(queue_changes(&last, &last, None), []);
        let wanted = ConfiguredTunables {
            queue: vec![(Scheduler, 1), (ReadAheadKb, 64)],
            devices: vec![named("fast", &[(NrRequests, 7), (Scheduler, 1)])],
            dirty: DirtyOptions::default(),
            limits: Limits::default(),
        };
        let usual = NrRequests.get(&QueueOptions::default()).to_string();
        let changes = queue_changes(&last, &wanted, None);
        let all =
            [(NrRequests, usual), (Scheduler, "mq-deadline".into()), (ReadAheadKb, "64".into())];
        assert_eq!(changes.len(), 3);
        assert!(all.iter().all(|change| changes.contains(change)), "{changes:?}");
        assert_eq!(queue_changes(&last, &wanted, Some("fast")), [(NrRequests, "7".to_owned())]);
    }

    #[test]
    fn probed_value_is_set_even_if_it_is_usual() {
        let of = |queue: &[(Tunable, u64)]| ConfiguredTunables {
            queue: queue.to_vec(),
            ..ConfiguredTunables::default()
        };
        let [unsaid, usual] = [of(&[]), of(&[(Tunable::Rotational, 0)])];
        let change = |last, wanted| queue_changes(last, wanted, None).len();
        assert_eq!((change(&unsaid, &usual), change(&usual, &unsaid)), (1, 1));
        assert_eq!((change(&unsaid, &unsaid), change(&usual, &usual)), (0, 0));
    }

    #[test]
    fn dirty_limit_in_bytes_replaces_ratio_and_back() {
        let ratio = DirtyOptions::default();
        let mut bytes = ratio;
        DirtyTunable::Bytes.set(&mut bytes, 4 << 20).unwrap();
        assert_eq!(dirty_changes(&ratio, &ratio), []);
        let changes = dirty_changes(&ratio, &bytes);
        assert!(changes.contains(&(DirtyTunable::Bytes, 4 << 20)), "{changes:?}");
        // Each change, set after the other, leads to the wanted options.
        for (from, to) in [(ratio, bytes), (bytes, ratio)] {
            let mut now = from;
            for (tunable, value) in dirty_changes(&from, &to) {
                tunable.set(&mut now, value).unwrap();
            }
            assert_eq!(now, to);
        }
    }
}
