//! Text output of `ctl latency` and `ctl why`.

use headworks_control::answers::{Histograms, Stats, Why};
use headworks_control::param::RequestOp;

use crate::columns::aligned;

/// Stages of a request, in the order in which it passes them.
pub const STAGES: [&str; 9] =
    ["total", "limit", "buffer", "cache", "dirty", "plug", "tag", "sched", "device"];

/// Formats microseconds with a fitting unit.
pub fn micros(us: f64) -> String {
    match us {
        us if us <= 0.0 => "0".into(),
        us if us < 1.0 => format!("{:.0}ns", us * 1e3),
        us if us < 1e3 => format!("{us:.1}us"),
        us if us < 1e6 => format!("{:.1}ms", us / 1e3),
        us => format!("{:.1}s", us / 1e6),
    }
}

/// A time of a stage. A request has the total 0 if it was answered in the turn of the thread in which it came.
fn latency(stage: &str, us: f64) -> String {
    if stage == "total" && us <= 0.0 { "<turn".to_owned() } else { micros(us) }
}

/// Formats p50/p99 of each stage for every export, from `stats`. Stages at which no request waited have no column.
pub fn show_percentiles(stats: &Stats) -> String {
    let mut all = Vec::new();
    for (name, export) in &stats.exports {
        let ops = RequestOp::ALL.iter().filter_map(|op| Some((*op, export.latency.get(*op)?)));
        all.extend(ops.map(|(op, rows)| (name, op, rows)));
    }
    let waited = |stage: &&str| {
        all.iter().any(|(_, _, rows)| rows.get(*stage).is_some_and(|row| row.p99_us > 0.0))
    };
    let stages: Vec<&str> =
        STAGES.into_iter().filter(|stage| *stage == "total" || waited(stage)).collect();
    let heads = ["export", "op", "requests"].into_iter().chain(stages.iter().copied());
    let mut table: Vec<Vec<String>> = vec![heads.map(str::to_owned).collect()];
    for (name, op, rows) in &all {
        let row = |stage: &str| rows.get(stage).cloned().unwrap_or_default();
        let cell = |stage: &&str| {
            let row = row(stage);
            [row.p50_us, row.p99_us].map(|us| latency(stage, us)).join("/")
        };
        let front = [(*name).clone(), (*op).to_owned(), row("total").count.to_string()];
        table.push(front.into_iter().chain(stages.iter().map(cell)).collect());
    }
    aligned(&table).replacen('\n', "   p50/p99\n", 1)
}

/// Formats the histogram of an export, one line per power of two, like `zpool iostat -w`.
pub fn show_histograms(report: &Histograms) -> String {
    let export = report.export.as_deref().unwrap_or_default();
    let mut text = String::new();
    for op in RequestOp::ALL {
        let Some(table) = report.ops.as_ref().and_then(|ops| ops.get(op)) else { continue };
        let buckets = |stage: &str| table.stages.get(stage).map_or(&[][..], Vec::as_slice);
        let columns = STAGES.map(|stage| doublings(buckets(stage)));
        let rows = |column: &Vec<u64>| column.iter().rposition(|count| *count > 0);
        let last = columns.iter().filter_map(rows).max().unwrap_or(0);
        let first = columns.iter().filter_map(|c| c.iter().position(|n| *n > 0)).min().unwrap_or(0);
        text += &format!("{export} {op}: {} requests\n", table.count);
        text +=
            &format!("{:>12}{}\n", "up to", STAGES.map(|stage| format!("{stage:>12}")).concat());
        for row in first..=last {
            let counts = columns.each_ref().map(|column| column.get(row).copied().unwrap_or(0));
            if counts.iter().any(|count| *count > 0) {
                let cells = counts.map(|count| format!("{count:>12}")).concat();
                text += &format!("{:>12}{cells}\n", micros(upper_us(row)));
            }
        }
    }
    if text.is_empty() { format!("{export}: no request completed yet\n") } else { text }
}

/// Sums buckets by powers of two; row 0 counts zero, row n up to 2^n - 1 ns.
fn doublings(buckets: &[(f64, u64)]) -> Vec<u64> {
    let mut counts = Vec::new();
    for (us, count) in buckets {
        let ns = (us * 1e3).round() as u64;
        let row = (u64::BITS - ns.leading_zeros()) as usize;
        if counts.len() <= row {
            counts.resize(row + 1, 0);
        }
        counts[row] += count;
    }
    counts
}

fn upper_us(row: usize) -> f64 {
    ((1_u64 << row) - 1) as f64 / 1e3
}

/// Formats the summary, the stages of the slow requests, the slowest ones and the hints.
pub fn show_why(report: &Why) -> String {
    let mut text = format!("{}\n", report.sentence);
    report.notes.iter().for_each(|note| text += &format!("{note}\n"));
    if !report.slow && report.state != "limited" {
        return text;
    }
    let considered = report.considered;
    text +=
        &format!("\n{:<10}{:>8}{:>14}{:>12}{:>12}\n", "stage", "share", "requests", "p50", "p99");
    let share = |stage: &str| report.shares.get(stage).copied().unwrap_or_default() * 100.0;
    for stage in STAGES.iter().skip(1).chain(["total"].iter()) {
        let row = report.stages.get(*stage).cloned().unwrap_or_default();
        let share = if *stage == "total" { 100.0 } else { share(stage) };
        text += &format!(
            "{stage:<10}{:>8}{:>14}{:>12}{:>12}\n",
            format!("{share:.0} %"),
            format!("{} of {considered}", row.requests),
            micros(row.p50_us),
            micros(row.p99_us),
        );
    }
    text += "\nthe slowest of them:\n";
    for one in &report.worst {
        let stages = STAGES
            .iter()
            .filter_map(|stage| Some(format!("{stage} {}", micros(*one.stages_us.get(*stage)?))));
        let stages = stages.collect::<Vec<_>>().join(", ");
        text += &format!(
            "  {:>8} {} of {} bytes at {}, connection {}, {:.0} s ago: {stages}\n",
            micros(one.total_us),
            one.op,
            one.len,
            one.offset,
            one.connection,
            one.age_s,
        );
    }
    report.hints.iter().for_each(|hint| text += &format!("\nhint: {hint}\n"));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ctl::read;
    use serde_json::{Value, json};

    fn show_percentiles(answer: &Value) -> String {
        super::show_percentiles(&read(answer).unwrap())
    }

    fn show_histograms(answer: &Value) -> String {
        super::show_histograms(&read(answer).unwrap())
    }

    fn show_why(answer: &Value) -> String {
        super::show_why(&read(answer).unwrap())
    }

    #[test]
    fn request_that_took_less_than_a_turn_is_no_zero() {
        let row = json!({ "count": 9, "p50_us": 0.0, "p99_us": 12.0 });
        let stats = json!({ "exports": { "a": { "latency": { "read": { "total": row } } } } });
        assert!(show_percentiles(&stats).ends_with("<turn/12.0us\n"));
    }

    #[test]
    fn percentiles_are_in_columns_of_stages_that_were_waited_at() {
        let row = |p99: f64| json!({ "count": 9, "p50_us": 196.6, "p99_us": p99 });
        let rows = json!({ "total": row(917.5), "tag": row(0.0), "device": row(917.5) });
        let stats = json!({ "exports": { "a": { "latency": { "read": rows } } } });
        let text = show_percentiles(&stats);
        let lines: Vec<Vec<&str>> = text.lines().map(|l| l.split_whitespace().collect()).collect();
        assert_eq!(lines[0], ["export", "op", "requests", "total", "device", "p50/p99"]);
        assert_eq!(lines[1], ["a", "read", "9", "196.6us/917.5us", "196.6us/917.5us"]);
    }

    #[test]
    fn histogram_rows_double_and_columns_count_every_request() {
        let buckets = [(0.0, 5), (5.119, 2), (7.167, 3)];
        assert_eq!(doublings(&buckets).iter().sum::<u64>(), 10);
        let rows = json!({ "total": [[6.143, 4], [8.191, 6]], "device": buckets });
        let report = json!({ "export": "a", "ops": { "read": { "count": 10, "stages": rows } } });
        let text = show_histograms(&report);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "a read: 10 requests");
        assert_eq!(lines.len(), 4, "{text}");
        let last: Vec<&str> = lines[3].split_whitespace().collect();
        assert_eq!(last, ["8.2us", "10", "0", "0", "0", "0", "0", "0", "0", "5"]);
        assert!(show_histograms(&json!({ "export": "b", "ops": {} })).contains("no request"));
    }

    #[test]
    fn times_print_with_a_fitting_unit() {
        let shown = [0.0, 0.25, 12.34, 5242.8, 2_000_000.0].map(micros);
        assert_eq!(shown, ["0", "250ns", "12.3us", "5.2ms", "2.0s"]);
    }

    #[test]
    fn nothing_slow_prints_one_line() {
        let text = show_why(&json!({ "sentence": "a: nothing is slow", "slow": false }));
        assert_eq!(text, "a: nothing is slow\n");
        let noted = json!({ "sentence": "a: nothing is slow", "slow": false, "notes": ["b", "c"] });
        assert_eq!(show_why(&noted), "a: nothing is slow\nb\nc\n");
    }
}
