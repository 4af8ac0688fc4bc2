//! Verdicts from rows: each goal of a case on each disk, with mq-deadline's figure beside it.

use super::cases::{BfqCase, CASES, Measure};
use super::disks::Disk;
use super::known;
use super::run::{Bounds, Part, TABLE};
use crate::report::{Goal, Row, Verdict};

/// The rows of a case on a disk.
struct CaseRows<'a> {
    rows: Vec<&'a Row>,
    media_bytes_per_second: f64,
}

/// Computes the verdicts of the rows: of the elevator that owns shares, with mq-deadline beside it.
#[must_use]
pub fn judge(rows: &[Row]) -> Vec<Verdict> {
    let rows: Vec<&Row> = rows.iter().filter(|row| row.table == TABLE).collect();
    let mut verdicts = Vec::new();
    for case in CASES {
        for &disk in case.disks {
            let is = |row: &&&Row| row.is("case", case.name) && row.is("device", disk.name());
            let rows: Vec<&Row> = rows.iter().filter(is).copied().collect();
            let media_bytes_per_second = disk.media_bytes_per_second() as f64;
            let found = CaseRows { rows, media_bytes_per_second };
            // With the default options first; bounds by hand stand beside them and say so.
            let by_hand = case.bounded.then_some(Bounds::ByHand);
            for bounds in [Bounds::Default].into_iter().chain(by_hand) {
                let verdict = |&(measure, goal)| found.verdict(case, disk, measure, goal, bounds);
                verdicts.extend(case.goals.iter().filter_map(verdict));
            }
        }
    }
    if !rows.is_empty() {
        let failed = rows.iter().filter(|row| row.int("failed") > 0).count();
        verdicts.push(Verdict {
            what: "hung runs and failed bios".into(),
            ours: Some(failed as f64),
            goal: Some(Goal::Exactly(0.0)),
            ..Verdict::default()
        });
    }
    verdicts
}

impl<'a> CaseRows<'a> {
    fn verdict(
        &self,
        case: &BfqCase,
        disk: Disk,
        measure: Measure,
        goal: Goal,
        bounds: Bounds,
    ) -> Option<Verdict> {
        let value = |scheduler| self.value(measure, scheduler, bounds.name());
        let row = self.one("bfq", bounds.name(), Part::All, 0)?;
        let verdict = Verdict {
            what: text(case, disk, measure),
            baseline: value("mq-deadline"),
            ours: Some(value("bfq")?),
            goal: Some(goal),
            ..Verdict::default()
        };
        let verdict = verdict.with_settings(row);
        let verdict = match (bounds, measure, verdict.baseline) {
            (Bounds::ByHand, Measure::BytesOfMost, Some(deadline)) => {
                verdict.bounded("mq-deadline with the same bounds", deadline)
            }
            _ => verdict,
        };
        Some(known::explain(verdict, bounds))
    }

    /// The most of mq-deadline's rates, with any bounds of the queue.
    fn most_of_deadline(&self, name: &str) -> f64 {
        let bounds = [Bounds::Default, Bounds::Unbounded, Bounds::ByHand].into_iter();
        let rows = bounds.filter_map(|of| self.one("mq-deadline", of.name(), Part::All, 0));
        rows.map(|row| rate(row, name)).fold(0.0, f64::max)
    }

    fn one(&self, scheduler: &str, bounds: &str, part: Part, hold_ms: u64) -> Option<&'a Row> {
        let is = |row: &&&Row| {
            row.is("scheduler", scheduler)
                && row.is("bounds", bounds)
                && row.is("part", part.name())
                && row.int("hold_ms") == hold_ms
        };
        self.rows.iter().find(is).copied()
    }

    fn value(&self, measure: Measure, scheduler: &str, bounds: &str) -> Option<f64> {
        let row = self.one(scheduler, bounds, Part::All, 0)?;
        let alone = |part| self.one("none", "default", part, 0);
        let first = || alone(Part::First);
        let over = |ours: f64, other: f64| (other > 0.0).then_some(ours / other);
        let ratio = |other: &Row, name| over(rate(row, name), rate(other, name));
        match measure {
            Measure::ShareOff => Some(share_off(row)),
            Measure::ClassOff => Some(class_off(row)),
            Measure::Bytes => over(rate(row, "bytes"), self.most_of_deadline("bytes")),
            Measure::BytesOfMost => {
                let rows = self.rows.iter().filter(|row| row.is("part", "all"));
                let rows = rows.filter(|row| !row.is("bounds", "by hand"));
                let most = rows.map(|row| rate(row, "bytes"));
                over(rate(row, "bytes"), most.fold(0.0, f64::max))
            }
            Measure::Jain => Some(row.real("jain")),
            Measure::FirstOfAlone => ratio(first()?, "first_bytes"),
            Measure::RestOfAlone => ratio(alone(Part::Rest)?, "rest_bytes"),
            Measure::FirstPart => over(row.int("first_bytes") as f64, row.int("bytes") as f64),
            Measure::BytesOfOne => ratio(first()?, "bytes"),
            Measure::StartMean => over(mean_start(row)?, mean_start(first()?)?),
            Measure::StartLongest => over(longest_start(row)?, mean_start(first()?)?),
            Measure::RestOfMedia => over(rate(row, "rest_bytes"), self.media_bytes_per_second),
            Measure::FirstP99 => Some(row.int("first_p99_us") as f64 / 1e3),
            Measure::FirstLongest => Some(row.int("first_longest_us") as f64 / 1e3),
            Measure::RestBytes => {
                over(rate(row, "rest_bytes"), self.most_of_deadline("rest_bytes"))
            }
            Measure::RestBytesHold100 => {
                let held = self.one(scheduler, bounds, Part::All, 100)?;
                over(rate(held, "rest_bytes"), self.most_of_deadline("rest_bytes"))
            }
            Measure::P99OfAlone => {
                over(row.int("first_p99_us") as f64, first()?.int("first_p99_us") as f64)
            }
        }
    }
}

/// What is judged of a case on a disk, in words.
pub(super) fn text(case: &BfqCase, disk: Disk, measure: Measure) -> String {
    format!("{}, {} {}: {}", disk.name(), case.experiment, case.name, measure.text())
}

/// A count of a row in a second.
fn rate(row: &Row, name: &str) -> f64 {
    row.int(name) as f64 * 1e3 / row.int("ms") as f64
}

/// For each weight: the fair bytes of a client, the number of clients, and the bytes of all, of the least and of the most.
fn shares(row: &Row) -> impl Iterator<Item = (f64, f64, [f64; 3])> {
    let real = |name| row.ints(name).into_iter().map(|value| value as f64).collect::<Vec<f64>>();
    let (weights, clients) = (real("weights"), real("weight_clients"));
    let sum: f64 = weights.iter().zip(&clients).map(|(weight, clients)| weight * clients).sum();
    let total = row.int("bytes").max(1) as f64;
    let [bytes, least, most] = ["weight_bytes", "weight_least", "weight_most"].map(real);
    (0..clients.len()).map(move |index| {
        let fair = total * weights[index] / sum;
        (fair, clients[index], [bytes[index], least[index], most[index]])
    })
}

/// Error of the worst client's share, relative to its fair share.
fn share_off(row: &Row) -> f64 {
    let off = |(fair, _, [_, least, most]): (f64, f64, [f64; 3])| {
        (least / fair - 1.0).abs().max((most / fair - 1.0).abs())
    };
    shares(row).map(off).fold(0.0, f64::max)
}

/// Error of the worst weight's clients together.
fn class_off(row: &Row) -> f64 {
    let off =
        |(fair, clients, [bytes, ..]): (f64, f64, [f64; 3])| (bytes / clients / fair - 1.0).abs();
    shares(row).map(off).fold(0.0, f64::max)
}

/// Mean time of the starts that ended; if none did, the time of the one that did not.
fn mean_start(row: &Row) -> Option<f64> {
    let starts = row.ints("starts_ms");
    match starts.len() {
        0 => longest_start(row),
        count => Some(starts.iter().sum::<u64>() as f64 / count as f64),
    }
}

/// The longest start, ended or not.
fn longest_start(row: &Row) -> Option<f64> {
    let unfinished = row.int("unfinished_ms");
    let longest = row.ints("starts_ms").into_iter().max().unwrap_or(0).max(unfinished);
    (longest > 0).then_some(longest as f64)
}
