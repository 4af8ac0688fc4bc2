//! What `ctl save` has written since the configuration was loaded, and is different now: a drop-in keeps what it said before, so taking a
//! change back, or removing what was added, has to be said, too.
//!
//! ```text
//!   set weight 300 -> save (weight = 300) -> set weight 100, as the loaded files have it -> save must say weight = 100
//!   add x          -> save ([[export]] x) -> remove x, which no loaded file has          -> save must say enabled = false
//! ```
//!
//! The same goes to a process that replaces this one, because it reads the drop-in. Rule: after [`differences`], the saved sections
//! with the found ones over them say what runs. A reload forgets: then the drop-in is part of what the server is compared with.

use serde_json::Value;

use super::LiveChanges;
use super::diff::{Differences, RunningQueue, section_now, server_limits};
use crate::config::{
    ConfigFile, DeviceSection, ExportSection, ListenSection, Origin, Setting, TenantSection, Tuned,
    Value as ConfigValue, other_way,
};
use crate::control::exports::ExportState;
use crate::control::report::{dirty_value, value};
use crate::control::tree::lock;
use crate::exports::assemble::{TenantSpec, shown_name};
use crate::spec::limit_words::NO_LIMIT;
use headworks_core::options::Tunable;

const ORIGIN: &Origin = &Origin::Control;

/// Adds to what is found what was saved and is different now.
pub(super) fn differences(live: &LiveChanges, queues: &[RunningQueue], found: &mut Differences) {
    let saved = lock(&live.saved).clone();
    tenants(live, &saved, found);
    listeners(live, &saved, found);
    exports(live, &saved, found);
    limits(live, &saved, found);
    write_back(live, &saved, found);
    queue(None, &saved.queue, queues, found);
    for DeviceSection { name, queue: tuned, .. } in &saved.devices {
        queue(Some(name), tuned, queues, found);
    }
}

fn exports(live: &LiveChanges, saved: &ConfigFile, found: &mut Differences) {
    let inventory = lock(&live.inventory);
    let exports = inventory.exports.lock();
    let absent = &live.tree.current().absent;
    for section in &saved.exports {
        let is_found = found.file.exports.iter().any(|other| other.name == section.name);
        if is_found || absent.iter().any(|absent| absent.spec.name == section.name) {
            continue;
        }
        let served = exports.values().find(|export| {
            export.spec.name == section.name && matches!(export.state, ExportState::Serving)
        });
        let now = match served {
            Some(export) => section_now(live, export),
            None => Some(ExportSection::disabled(&section.name, ORIGIN)),
        };
        let Some(now) = now.filter(|now| now != section) else { continue };
        let words = |section: &ExportSection| match section.is_enabled() {
            Ok(true) => section.words().into(),
            _ => Value::Null,
        };
        let path = format!("exports/{}", shown_name(&section.name));
        found.add(&path, words(section), words(&now));
        found.file.exports.push(now);
    }
}

fn tenants(live: &LiveChanges, saved: &ConfigFile, found: &mut Differences) {
    let there = live.settings.tenants();
    for section in &saved.tenants {
        let is_enabled = section.is_enabled() == Ok(true);
        let at = found.file.tenants.iter().position(|other| other.name == section.name);
        let entry = there.find(&section.name).and_then(|id| there.get(id));
        let Some(entry) = entry else {
            if is_enabled && at.is_none() {
                found.add(&format!("tenants/{}", section.name), "".into(), Value::Null);
                found.file.tenants.push(TenantSection::disabled(&section.name, ORIGIN));
            }
            continue;
        };
        let current = TenantSpec { options: entry.now, ..entry.spec };
        let mut now = TenantSection::of(&current, ORIGIN);
        let mut settings = Vec::new();
        for old in section.settings.iter().filter(|setting| setting.name != "enabled") {
            let at = now.settings.iter().position(|setting| setting.name == old.name);
            let new = at.map_or_else(
                || word_setting(&old.name, NO_LIMIT.to_owned()),
                |at| now.settings.swap_remove(at),
            );
            if new.value != old.value {
                settings.push(new);
            }
        }
        let known = at.map_or(&[][..], |at| &found.file.tenants[at].settings);
        settings.retain(|new| !known.iter().any(|other| other.name == new.name));
        if settings.is_empty() {
            continue;
        }
        for new in &settings {
            let old = section.settings.iter().find(|old| old.name == new.name);
            let path = format!("tenants/{}/{}", section.name, new.name);
            let old = old.map_or(Value::Null, |old| old.word().into());
            found.add(&path, old, new.word().into());
        }
        match at {
            Some(at) => found.file.tenants[at].settings.extend(settings),
            None => {
                now.settings = settings;
                found.file.tenants.push(now);
            }
        }
    }
}

fn listeners(live: &LiveChanges, saved: &ConfigFile, found: &mut Differences) {
    let open = live.listeners.entries();
    for section in &saved.listeners {
        let is_found = found.file.listeners.iter().any(|other| other.name == section.name);
        let is_open = open.iter().any(|entry| *entry.name == *section.name);
        if is_found || is_open || section.is_enabled() != Ok(true) {
            continue;
        }
        found.add(&format!("listeners/{}", section.name), section.words().into(), Value::Null);
        found.file.listeners.push(ListenSection::disabled(&section.name, ORIGIN));
    }
}

/// Limits of the whole server.
fn limits(live: &LiveChanges, saved: &ConfigFile, found: &mut Differences) {
    let is_limit = |setting: &&Setting| setting.name == "limit";
    let Some(old) = saved.server.iter().find(is_limit) else { return };
    let now = server_limits(live);
    if now.value != old.value && !found.file.server.iter().any(|setting| is_limit(&setting)) {
        let words = |value: &ConfigValue| match value {
            ConfigValue::List(words) => words.join(",").into(),
            ConfigValue::Word(word) => Value::from(word.as_str()),
            ConfigValue::Unset => Value::Null,
        };
        found.add("server/limit", words(&old.value), words(&now.value));
        found.file.server.push(now);
    }
}

fn write_back(live: &LiveChanges, saved: &ConfigFile, found: &mut Differences) {
    let options = live.settings.dirty();
    for Tuned { tunable, value: old, .. } in &saved.vm {
        let (old, now) = (*old, tunable.get(&options));
        let other = other_way(*tunable);
        let is_said = |said: &Tuned<_>| said.tunable == *tunable || Some(said.tunable) == other;
        if old == now || found.file.vm.iter().any(is_said) {
            continue;
        }
        let path = format!("vm/{}", tunable.name());
        found.add(&path, dirty_value(*tunable, old), dirty_value(*tunable, now));
        // A limit is said in the unit that it has.
        let tunable = if now == 0 { other.unwrap_or(*tunable) } else { *tunable };
        let value = tunable.get(&options);
        found.file.vm.push(Tuned { tunable, value, origin: ORIGIN.clone() });
    }
}

/// Tunables of a device, or of all devices without a name.
fn queue(
    device: Option<&str>,
    saved: &[Tuned<Tunable>],
    queues: &[RunningQueue],
    found: &mut Differences,
) {
    for &Tuned { tunable, value: old, .. } in saved {
        let own = || queues.iter().filter(|queue| queue.name.as_deref() == device);
        let Some(first) = own().next() else { continue };
        let now = tunable.get(&first.options);
        // Where they differ, no file can say it.
        let differ = own().any(|queue| tunable.get(&queue.options) != now);
        let into = match device {
            None => &mut found.file.queue,
            Some(name) => {
                let devices = &mut found.file.devices;
                let at = devices.iter().position(|section| section.name == name);
                let at = at.unwrap_or_else(|| {
                    let (name, queue) = (name.to_owned(), Vec::new());
                    devices.push(DeviceSection { name, queue, origin: ORIGIN.clone() });
                    devices.len() - 1
                });
                &mut devices[at].queue
            }
        };
        if now == old || differ || into.iter().any(|said| said.tunable == tunable) {
            continue;
        }
        into.push(Tuned { tunable, value: now, origin: ORIGIN.clone() });
        let path = format!("{}/queue/{}", first.path, tunable.name());
        found.add(&path, value(tunable, old), value(tunable, now));
    }
    found.file.devices.retain(|section| !section.queue.is_empty());
}

fn word_setting(name: &str, word: String) -> Setting {
    Setting { name: name.to_owned(), value: ConfigValue::Word(word), origin: ORIGIN.clone() }
}
