//! The text that Prometheus reads (exposition format 0.0.4), from numbers that are there already.
//!
//! A client library keeps live metrics and encodes those; here counting is the shards' business, and what a scrape needs is to
//! write families of ready-made samples. That is this file, and shorter than an adapter.

use std::fmt::{Display, Write};

use crate::latency::Histogram;

/// What a family is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricType {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Cumulative buckets.
    Histogram,
    /// A sum and a count.
    Summary,
}

/// A page of families.
#[derive(Debug, Default)]
pub struct MetricsPage {
    text: String,
}

/// Labels: name and value.
pub type Labels<'a> = [(&'a str, &'a str)];

/// Upper bounds of histograms: powers of 4 from 1.024 us to 17 s, as powers of 2 in nanoseconds. They are bounds of our own
/// buckets, so every count is exact.
const BOUNDS: std::ops::RangeInclusive<u32> = 10..=34;
const STEP: usize = 2;

impl MetricsPage {
    /// The next samples are of this family.
    pub fn family(&mut self, name: &str, kind: MetricType, help: &str) {
        let kind = match kind {
            MetricType::Counter => "counter",
            MetricType::Gauge => "gauge",
            MetricType::Histogram => "histogram",
            MetricType::Summary => "summary",
        };
        self.line(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}"));
    }

    /// One sample.
    pub fn sample(&mut self, name: &str, labels: &Labels<'_>, value: impl Display) {
        let labels = shown(labels, None);
        self.line(format_args!("{name}{labels} {value}"));
    }

    /// A sum of seconds and how many it is of.
    pub fn summary(&mut self, name: &str, labels: &Labels<'_>, sum_ns: u64, count: u64) {
        self.sample(&format!("{name}_sum"), labels, seconds(sum_ns));
        self.sample(&format!("{name}_count"), labels, count);
    }

    /// Cumulative buckets, sum and count.
    pub fn histogram(&mut self, name: &str, labels: &Labels<'_>, row: &Histogram, sum_ns: u64) {
        let buckets: Vec<(u64, u64)> = row.buckets().collect();
        for bound in BOUNDS.step_by(STEP) {
            let upper = 1_u64 << bound;
            let below = buckets.iter().filter(|(end, _)| *end < upper);
            let count: u64 = below.map(|(_, count)| count).sum();
            let labels = shown(labels, Some(&seconds(upper).to_string()));
            self.line(format_args!("{name}_bucket{labels} {count}"));
        }
        let labels_all = shown(labels, Some("+Inf"));
        self.line(format_args!("{name}_bucket{labels_all} {}", row.count()));
        self.summary(name, labels, sum_ns, row.count());
    }

    /// All of it.
    #[must_use]
    pub fn into_text(self) -> String {
        self.text
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // A string takes everything.
        let _ = writeln!(self.text, "{line}");
    }
}

/// Nanoseconds as seconds.
pub fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn shown(labels: &Labels<'_>, le: Option<&str>) -> String {
    let escaped =
        |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let all = labels.iter().copied().chain(le.map(|le| ("le", le)));
    let all: Vec<String> =
        all.map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
    if all.is_empty() { String::new() } else { format!("{{{}}}", all.join(",")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency::{LatencyOp, LatencyTable, LatencyTotals};
    use headworks_core::WaitTimes;

    #[test]
    fn a_histogram_is_cumulative_and_a_power_of_two_is_beyond_its_own_bound() {
        let mut table = LatencyTable::default();
        for ns in [100, 1_023, 1_024, 5_000_000, 90_000_000_000] {
            table.record(LatencyOp::Read, 1, ns, WaitTimes::NONE);
        }
        let totals = LatencyTotals::from(&table);
        let mut page = MetricsPage::default();
        page.histogram(
            "x",
            &[("op", "read")],
            &totals.row(LatencyOp::Read, 0),
            totals.sum_ns(LatencyOp::Read),
        );
        let text = page.into_text();
        let counts: Vec<&str> = text.lines().filter_map(|line| line.rsplit(' ').next()).collect();
        assert_eq!(counts.len(), 13 + 1 + 2);
        assert_eq!(counts[..2], ["2", "3"], "{text}");
        assert_eq!(counts[12..], ["4", "5", "90.005002147", "5"], "{text}");
        assert!(text.starts_with("x_bucket{op=\"read\",le=\"0.000001024\"} 2\n"), "{text}");
        assert!(text.contains("x_bucket{op=\"read\",le=\"+Inf\"} 5\n"), "{text}");
    }

    #[test]
    fn names_of_exports_are_escaped_and_no_labels_are_no_braces() {
        let mut page = MetricsPage::default();
        page.family("a_total", MetricType::Counter, "Some.");
        page.sample("a_total", &[("export", "x\"\\\n")], 1);
        page.sample("b", &[], 2.5);
        let expected = "# HELP a_total Some.\n# TYPE a_total counter\na_total{export=\"x\\\"\\\\\\n\"} 1\nb 2.5\n";
        assert_eq!(page.into_text(), expected);
    }
}
