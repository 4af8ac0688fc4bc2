//! Prometheus' text exposition format 0.0.4.
//!
//! Client libraries keep live metrics and encode those. Here shards count, and a scrape writes families of finished
//! samples, which takes less code than an adapter.

use std::fmt::{Display, Write};

use crate::observe::latency::Histogram;

/// Type of a metric family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricType {
    /// A value that only grows.
    Counter,
    /// A value that grows and shrinks.
    Gauge,
    /// Cumulative buckets with sum and count.
    Histogram,
    /// A sum and a count.
    Summary,
}

/// A page of metric families.
#[derive(Debug, Default)]
pub struct MetricsPage {
    text: String,
}

/// Labels as pairs of name and value.
pub type Labels<'a> = [(&'a str, &'a str)];

/// Upper bounds of histogram buckets: powers of 2 from 1.024 us to 17 s, given as exponents of 2 in nanoseconds. They
/// are bounds of the internal buckets, so counts are exact.
const BOUNDS: std::ops::RangeInclusive<u32> = 10..=34;

impl MetricsPage {
    /// Begins a family of samples.
    pub fn family(&mut self, name: &str, kind: MetricType, help: &str) {
        let kind = match kind {
            MetricType::Counter => "counter",
            MetricType::Gauge => "gauge",
            MetricType::Histogram => "histogram",
            MetricType::Summary => "summary",
        };
        self.line(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}"));
    }

    /// Writes one sample line.
    pub fn sample(&mut self, name: &str, labels: &Labels<'_>, value: impl Display) {
        let labels = shown(labels, None);
        self.line(format_args!("{name}{labels} {value}"));
    }

    /// Writes a sum in seconds and a count.
    pub fn summary(&mut self, name: &str, labels: &Labels<'_>, sum_ns: u64, count: u64) {
        self.sample(&format!("{name}_sum"), labels, seconds(sum_ns));
        self.sample(&format!("{name}_count"), labels, count);
    }

    /// Writes cumulative buckets, sum and count.
    pub fn histogram(&mut self, name: &str, labels: &Labels<'_>, row: &Histogram, sum_ns: u64) {
        let buckets: Vec<(u64, u64)> = row.buckets().collect();
        for bound in BOUNDS {
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

    /// Returns the text of the page.
    #[must_use]
    pub fn into_text(self) -> String {
        self.text
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = writeln!(self.text, "{line}");
    }
}

/// Converts nanoseconds to seconds.
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
    use crate::observe::latency::{LatencyTable, LatencyTotals};
    use headworks_core::{Op, WaitTimes};

    #[test]
    fn histogram_buckets_are_cumulative_with_exclusive_bounds() {
        let mut table = LatencyTable::default();
        for ns in [100, 1_023, 1_024, 5_000_000, 90_000_000_000] {
            table.record(Op::Read, 1, ns, WaitTimes::NONE);
        }
        let totals = LatencyTotals::from(&table);
        let mut page = MetricsPage::default();
        page.histogram("x", &[("op", "read")], &totals.row(Op::Read, 0), totals.sum_ns(Op::Read));
        let text = page.into_text();
        let counts: Vec<&str> = text.lines().filter_map(|line| line.rsplit(' ').next()).collect();
        assert_eq!(counts.len(), 25 + 1 + 2);
        assert_eq!(counts[..2], ["2", "3"], "{text}");
        assert_eq!(counts[24..], ["4", "5", "90.005002147", "5"], "{text}");
        assert!(text.starts_with("x_bucket{op=\"read\",le=\"0.000001024\"} 2\n"), "{text}");
        assert!(text.contains("x_bucket{op=\"read\",le=\"+Inf\"} 5\n"), "{text}");
    }

    #[test]
    fn label_values_are_escaped_and_empty_labels_omitted() {
        let mut page = MetricsPage::default();
        page.family("a_total", MetricType::Counter, "Some.");
        page.sample("a_total", &[("export", "x\"\\\n")], 1);
        page.sample("b", &[], 2.5);
        let expected = "# HELP a_total Some.\n# TYPE a_total counter\na_total{export=\"x\\\"\\\\\\n\"} 1\nb 2.5\n";
        assert_eq!(page.into_text(), expected);
    }
}
