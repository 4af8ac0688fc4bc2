//! The data of the status page as JSON.
//!
//! ```text
//!   { version, uptime, interval.., clients, exports: [state, totals since the start], tenants, devices, cache, worst,
//!     stages: [names], names: [exports of the samples], next: number of the last sample,
//!     samples: [{ at, seconds, cache, rows: [[name, reads, read bytes, writes, write bytes, errors, device ns, p50 ns, p99 ns, flushes,
//!                                           flush p99 ns, requests, stage ns...]] }] }
//! ```
//!
//! Counts are whole numbers, which JSON's readers keep exactly up to 2^53. At most [`EXPORTS_MAX`] exports are listed; the page says how
//! many are left out.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use headworks_core::WaitKind;
use serde_json::{Value, json};

use super::history::{History, Sample, SampleRow};
use super::snapshot::{CacheLoad, DeviceLoad, ExportRow, Snapshot, TenantRow};

/// Exports that are listed: those used most.
const EXPORTS_MAX: usize = 256;
/// Index of the row of all exports that have no row of their own.
const OTHERS: i64 = -1;

/// The data with the samples after number `after`; none before the first snapshot.
pub fn data(history: &History, after: u64) -> Option<Value> {
    let snapshot = history.latest()?;
    let Snapshot { uptime, exports, devices, tenants, cache, worst } = snapshot;
    let mut names = Names::default();
    let (mut samples, mut next) = (Vec::new(), after);
    for sample in history.samples_after(after) {
        next = sample.number;
        samples.push(self::sample(sample, &mut names));
    }
    let stages: Vec<&str> =
        WaitKind::ALL.iter().map(|wait| wait.name()).chain(["elsewhere"]).collect();
    let listed = listed(exports, history);
    Some(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "uptime": uptime,
        "clients": exports.iter().map(|export| export.clients).sum::<u32>(),
        "exports_all": exports.len(),
        "tenants": listed_tenants(tenants, &listed),
        "exports": listed.into_iter().map(export).collect::<Value>(),
        "devices": devices.iter().map(device).collect::<Value>(),
        "cache": cache.map(of_cache),
        "worst": worst.as_ref().map(|worst| {
            json!({ "export": worst.export, "sentences": worst.sentences })
        }),
        "stages": stages,
        "samples": samples,
        "names": names.list.iter().map(|name| &**name).collect::<Vec<_>>(),
        "next": next,
    }))
}

/// Numbers of the exports that samples name.
#[derive(Default)]
struct Names {
    numbers: BTreeMap<Arc<str>, i64>,
    list: Vec<Arc<str>>,
}

impl Names {
    fn number(&mut self, name: &Arc<str>) -> i64 {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let number = self.list.len() as i64;
        self.list.push(Arc::clone(name));
        self.numbers.insert(Arc::clone(name), number);
        number
    }
}

fn sample(sample: &Sample, names: &mut Names) -> Value {
    let mut rows: Vec<Value> =
        sample.rows.iter().map(|row| row_values(names.number(&row.export), row)).collect();
    rows.extend(sample.others.iter().map(|row| row_values(OTHERS, row)));
    json!({
        "at": sample.at,
        "seconds": sample.seconds,
        "cache": sample.cache.map(of_cache),
        "rows": rows,
    })
}

fn row_values(number: i64, row: &SampleRow) -> Value {
    let SampleRow { reads, writes, parts_ns, .. } = row;
    let mut values = vec![json!(number)];
    let counts =
        [reads.0, reads.1, writes.0, writes.1, row.errors, row.device_ns, row.p50_ns, row.p99_ns];
    let counts = counts.into_iter().chain([row.flushes, row.flush_p99_ns, row.requests]);
    values.extend(counts.chain(*parts_ns).map(Value::from));
    Value::Array(values)
}

/// The exports that are listed: those that did most in the last sample, then since the start.
fn listed<'a>(exports: &'a [ExportRow], history: &History) -> Vec<&'a ExportRow> {
    let mut all: Vec<&ExportRow> = exports.iter().collect();
    if all.len() > EXPORTS_MAX {
        let last = history.last();
        let recent: BTreeMap<&str, usize> = last
            .into_iter()
            .flat_map(|sample| sample.rows.iter().enumerate())
            .map(|(rank, row)| (&*row.export, rank))
            .collect();
        all.sort_by_key(|export| {
            let rank = recent.get(&*export.name).copied().unwrap_or(usize::MAX);
            let needs_care = !matches!(export.state, "serving");
            (!needs_care, rank, Reverse(export.counters.requests))
        });
        all.truncate(EXPORTS_MAX);
    }
    all
}

/// The tenants that are listed; of too many those of listed exports.
fn listed_tenants(all: &[TenantRow], exports: &[&ExportRow]) -> Value {
    let is_shown = |tenant: &&TenantRow| {
        let mut own = exports.iter().filter_map(|export| export.tenant.as_deref());
        all.len() <= EXPORTS_MAX || own.any(|name| name == tenant.name)
    };
    let told = all.iter().filter(is_shown).map(|TenantRow { name, weight, limits, target_us }| {
        json!({ "name": name, "weight": weight, "limits": limits, "target_us": target_us })
    });
    told.take(EXPORTS_MAX).collect()
}

fn export(export: &ExportRow) -> Value {
    let ExportRow { name, tenant, device, state, facts, clients, oldest, counters } = export;
    json!({
        "name": **name,
        "tenant": tenant,
        "device": device,
        "state": state,
        "size": facts.size,
        "dirty": facts.dirty,
        "held": facts.held,
        "cached": facts.cached,
        "clients": clients,
        "oldest_ns": oldest.map(|(age, _)| age),
        "oldest_stage": oldest.map(|(_, place)| place),
        "reads": counters.reads.0,
        "read_bytes": counters.reads.1,
        "writes": counters.writes.0,
        "write_bytes": counters.writes.1,
        "flushes": counters.flushes,
        "others": counters.requests - counters.reads.0 - counters.writes.0 - counters.flushes,
        "errors": counters.errors,
        "p50_ns": counters.times.percentile(500),
        "p99_ns": counters.times.percentile(990),
        "flush_p99_ns": counters.flush_times.percentile(990),
    })
}

fn device(load: &DeviceLoad) -> Value {
    let DeviceLoad { name, state, scheduler, requests, tags: (tags, free), busy_ns, oldest_ns } =
        load;
    json!({
        "name": name,
        "state": state.name(),
        "scheduler": scheduler,
        "requests": requests,
        "tags": tags,
        "tags_used": tags.saturating_sub(*free),
        "busy_ns": busy_ns,
        "oldest_ns": oldest_ns,
    })
}

fn of_cache(load: CacheLoad) -> Value {
    let CacheLoad { resident, limit, dirty, background, threshold } = load;
    json!({
        "resident": resident,
        "limit": limit,
        "dirty": dirty,
        "background": background,
        "threshold": threshold,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::status_page::snapshot::ExportCounters;
    use std::time::Instant;

    fn state(name: &str, state: &'static str, reads: u64) -> ExportRow {
        ExportRow {
            name: name.into(),
            tenant: None,
            device: None,
            state,
            facts: Default::default(),
            clients: 2,
            oldest: None,
            counters: ExportCounters {
                reads: (reads, 512 * reads),
                requests: reads,
                ..Default::default()
            },
        }
    }

    fn history(snapshots: Vec<Vec<ExportRow>>) -> History {
        let mut history = History::default();
        for (second, exports) in snapshots.into_iter().enumerate() {
            let snapshot = Snapshot { uptime: second as f64, exports, ..Snapshot::default() };
            history.on_snapshot(Instant::now(), snapshot);
        }
        history
    }

    #[test]
    fn rows_name_exports_by_their_number_and_counts_are_exact() {
        let hostile = "</script><img src=x onerror=alert(1)>\"\\\u{2028}";
        let snapshot = |reads| vec![state("a", "serving", 1), state(hostile, "serving", reads)];
        let history = history(vec![snapshot(3), snapshot((1 << 53) + 2)]);
        let text = data(&history, 0).unwrap().to_string();
        let told: Value = serde_json::from_str(&text).unwrap();
        let row = told["samples"][0]["rows"][0].as_array().unwrap();
        assert_eq!(told["names"][row[0].as_u64().unwrap() as usize], hostile);
        let values = 12 + told["stages"].as_array().unwrap().len();
        assert_eq!((row.len(), &row[1]), (values, &json!((1_u64 << 53) - 1)));
        assert_eq!((&told["clients"], &told["next"]), (&json!(4), &json!(1)));
        assert!(data(&History::default(), 0).is_none(), "nothing was sampled");
    }

    #[test]
    fn tenants_are_listed_and_of_too_many_those_of_listed_exports() {
        let of = |number: usize| {
            let tenant = Some(format!("t{number}"));
            ExportRow { tenant, ..state(&format!("e{number:03}"), "serving", 1) }
        };
        let (weight, limits, target_us) = (300, "bps-read=50M".to_owned(), None);
        let row = |number| TenantRow {
            name: format!("t{number}"),
            weight,
            limits: limits.clone(),
            target_us,
        };
        let told = |count: usize| {
            let exports: Vec<_> = (0..count).map(of).collect();
            let tenants: Vec<_> = (0..count).map(row).collect();
            let mut history = History::default();
            history
                .on_snapshot(Instant::now(), Snapshot { exports, tenants, ..Snapshot::default() });
            data(&history, 0).unwrap()
        };
        let one =
            json!({ "name": "t0", "weight": 300, "limits": "bps-read=50M", "target_us": null });
        assert_eq!(told(1)["tenants"], json!([one]));
        assert_eq!(told(300)["tenants"].as_array().unwrap().len(), EXPORTS_MAX);
    }

    #[test]
    fn list_has_what_needs_care_then_what_is_used_most() {
        let all = |busy: u64| -> Vec<ExportRow> {
            let mut all: Vec<_> =
                (0..1000).map(|n| state(&format!("e{n:03}"), "serving", 1000 - n)).collect();
            all.push(state("late", "serving", busy));
            all.push(state("gone", "absent", 0));
            all
        };
        let told = data(&history(vec![all(0), all(1)]), 0).unwrap();
        let listed = told["exports"].as_array().unwrap();
        let names: Vec<&str> = listed.iter().map(|one| one["name"].as_str().unwrap()).collect();
        assert_eq!(names.len(), EXPORTS_MAX);
        assert_eq!(names[..4], ["gone", "late", "e000", "e001"]);
        assert_eq!(told["exports_all"], 1002);
    }
}
