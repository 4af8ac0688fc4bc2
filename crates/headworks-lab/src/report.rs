//! Reports: rows with configuration and raw counts, then verdicts computed from the rows.
//!
//! ```text
//!   points -> run_each -> rows (configuration, whole numbers) -> judge(rows) -> verdicts: seed | baseline | ours | goal | distance
//! ```
//!
//! The code that runs a model compares nothing; `judge` has only the rows, like a reader of the
//! printed JSON. Invariant: a row parsed from its printed line gets the same verdict.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};

use headworks_core::ConfigError;
use serde_json::{Map, Value};

/// The cell of a row with the settings that differ from the defaults.
pub const SETTINGS: &str = "settings";

/// A row of an experiment: configuration, whole numbers, and rounded derived values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// The table that the row belongs to.
    pub table: String,
    cells: Vec<(String, Value)>,
}

impl Row {
    /// A row without cells.
    #[must_use]
    pub fn new(table: &str) -> Self {
        Self { table: table.into(), cells: Vec::new() }
    }

    /// Appends a cell to the row.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.cells.push((name.into(), value.into()));
        self
    }

    /// Appends a number rounded to `digits` decimals, for display.
    #[must_use]
    pub fn with_real(self, name: &str, value: f64, digits: u32) -> Self {
        let scale = 10f64.powi(digits as i32);
        self.with(name, (value * scale).round() / scale)
    }

    /// Replaces the value of an existing cell.
    #[must_use]
    pub fn replaced(mut self, name: &str, value: impl Into<Value>) -> Self {
        let cell = self.cells.iter_mut().find(|(known, _)| known == name);
        if let Some((_, old)) = cell {
            *old = value.into();
        }
        self
    }

    fn get(&self, name: &str) -> &Value {
        let found = self.cells.iter().find(|(known, _)| known == name);
        &found.unwrap_or_else(|| panic!("a row of `{}` has no `{name}`", self.table)).1
    }

    /// The whole number in a cell.
    ///
    /// # Panics
    /// If the cell is absent or of another type.
    #[must_use]
    pub fn int(&self, name: &str) -> u64 {
        self.get(name).as_u64().expect("the cell has a count")
    }

    /// The list of whole numbers in a cell.
    ///
    /// # Panics
    /// If the cell is absent or of another type.
    #[must_use]
    pub fn ints(&self, name: &str) -> Vec<u64> {
        let list = self.get(name).as_array().expect("the cell has a list");
        list.iter().map(|value| value.as_u64().expect("the list has counts")).collect()
    }

    /// The real number in a cell.
    ///
    /// # Panics
    /// If the cell is absent or of another type.
    #[must_use]
    pub fn real(&self, name: &str) -> f64 {
        self.get(name).as_f64().expect("the cell has a number")
    }

    /// The word in a cell.
    ///
    /// # Panics
    /// If the cell is absent or of another type.
    #[must_use]
    pub fn word(&self, name: &str) -> &str {
        self.get(name).as_str().expect("the cell has a word")
    }

    /// Whether the cell `name` has no value.
    ///
    /// # Panics
    /// If the cell is absent.
    #[must_use]
    pub fn is_empty(&self, name: &str) -> bool {
        self.get(name).is_null()
    }

    /// Whether the cell `name` contains `word`.
    #[must_use]
    pub fn is(&self, name: &str, word: &str) -> bool {
        self.get(name).as_str() == Some(word)
    }

    /// The row as one line of JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut object = Map::new();
        object.insert("row".into(), self.table.clone().into());
        object.extend(self.cells.iter().cloned());
        Value::Object(object).to_string()
    }

    /// Parses a line of [`Row::to_json`]; `None` if it is no row.
    #[must_use]
    pub fn from_json(line: &str) -> Option<Self> {
        let Ok(Value::Object(mut object)) = serde_json::from_str(line) else {
            return None;
        };
        let table = object.remove("row")?.as_str()?.to_string();
        Some(Self { table, cells: object.into_iter().collect() })
    }
}

/// A bound on a measured value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// A lower bound, inclusive.
    AtLeast(f64),
    /// An upper bound, inclusive.
    AtMost(f64),
    /// The exact value required.
    Exactly(f64),
    /// An inclusive range of values.
    Within(f64, f64),
}

impl Goal {
    /// Whether `ours` meets the goal.
    #[must_use]
    pub fn is_met(self, ours: f64) -> bool {
        match self {
            Self::AtLeast(least) => ours >= least,
            Self::AtMost(most) => ours <= most,
            Self::Exactly(goal) => ours == goal,
            Self::Within(low, high) => (low..=high).contains(&ours),
        }
    }

    /// Relative distance of `ours` from the goal: positive if it is met.
    #[must_use]
    pub fn distance(self, ours: f64) -> f64 {
        let part = |difference: f64, of: f64| match of {
            0.0 => difference,
            of => difference / of.abs(),
        };
        match self {
            Self::AtLeast(least) => part(ours - least, least),
            Self::AtMost(most) => part(most - ours, most),
            Self::Exactly(goal) if ours == goal => 0.0,
            Self::Exactly(goal) => -part((ours - goal).abs(), goal),
            Self::Within(low, high) => part(ours - low, low).min(part(high - ours, high)),
        }
    }
}

impl Goal {
    /// The bound of a miss that a value of `figure` explains: a fifth worse. Of parts and indices, whose goal is at most 1, a fifth
    /// of what they lack of 1, or of a tenth.
    fn loosened_to(self, Figure(figure): Figure) -> Self {
        let fifth = figure / 5.0;
        match self {
            Self::AtMost(_) => Self::AtMost(figure + fifth),
            Self::AtLeast(least) if least <= 1.0 => {
                Self::AtLeast(figure - fifth.min((1.0 - figure).max(0.1) / 5.0))
            }
            Self::AtLeast(_) => Self::AtLeast(figure / 1.2),
            Self::Exactly(goal) => Self::Within(goal, goal).loosened_to(Figure(figure)),
            Self::Within(low, _) if figure < low => Self::Within(figure - fifth, low),
            Self::Within(_, high) => Self::Within(high, figure + fifth),
        }
    }
}

impl std::fmt::Display for Goal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Self::AtLeast(least) => write!(f, ">= {}", number(least)),
            Self::AtMost(most) => write!(f, "<= {}", number(most)),
            Self::Exactly(goal) => write!(f, "= {}", number(goal)),
            Self::Within(low, high) => write!(f, "{}..{}", number(low), number(high)),
        }
    }
}

/// A value of today's run, written down beside a known miss.
///
/// Values that any run meets do not compile as constants: there the panic of [`Figure::new`] is an error of the compiler.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure(f64);

impl Figure {
    /// A measured value.
    ///
    /// # Panics
    /// If it is no positive number below a million: such a value bounds nothing.
    #[must_use]
    pub const fn new(value: f64) -> Self {
        assert!(value > 0.0 && value < 1e6, "a known miss has a figure that a run can miss");
        Self(value)
    }
}

/// What shows that a known miss is no fault of the policy that misses.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Cause {
    /// The best value that the row allows, computed from its cells. It misses the goal as well.
    Bound(f64),
    /// The value of a run of the same report without the cause. It meets the goal.
    Without(f64),
    /// None was found: the miss is open, and a run says so.
    Unknown,
}

/// A goal that is known to be missed, and why.
///
/// A known miss is printed as a miss and does not fail the program. There are two ways to one: [`Verdict::bounded`], by a bound
/// that is computed from the row and beyond the goal, and [`Verdict::caused`], by a run without the cause that meets the goal. A
/// miss of neither kind is [open](Verdict::open): it has no reason to show, is counted apart, and only its figure keeps it from
/// failing the program. The tolerance is no choice of the caller: a fifth of the bound, or of today's figure. So a reason that
/// stops to hold, and a value that becomes worse, are new misses.
#[derive(Clone, Debug, PartialEq)]
pub struct KnownMiss {
    reason: String,
    cause: Cause,
    still: Goal,
}

impl KnownMiss {
    /// The known miss, if the cause explains one.
    fn new(goal: Goal, reason: String, cause: Cause, figure: Figure) -> Option<Self> {
        let explains = match cause {
            Cause::Bound(best) => !goal.is_met(best),
            Cause::Without(value) => goal.is_met(value),
            Cause::Unknown => true,
        };
        explains.then(|| Self { reason, cause, still: goal.loosened_to(figure) })
    }
}

impl std::fmt::Display for KnownMiss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.cause {
            Cause::Bound(best) => write!(f, "{}: at best {}", self.reason, number(best)),
            Cause::Without(value) => write!(f, "{}: {} without", self.reason, number(value)),
            Cause::Unknown => write!(f, "open: {}", self.reason),
        }
    }
}

/// How a value compares with its goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// There is no goal.
    Information,
    /// The goal is met.
    Met,
    /// The goal is missed, as is known, and the value is within the known miss's own bound.
    MissedAsKnown,
    /// The goal is missed for a reason that was not shown, by no more than a fifth above its figure.
    Open,
    /// The goal is missed.
    Missed,
}

/// A goal with the value measured for it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    /// The measured quantity, with its unit.
    pub what: String,
    /// The value published for the seed.
    pub seed: Option<f64>,
    /// The value of the baseline in this run.
    pub baseline: Option<f64>,
    /// The measured value. Without one the verdict concerns the model: the seed's value must meet
    /// the goal.
    pub ours: Option<f64>,
    /// The goal; without one the verdict is information only.
    pub goal: Option<Goal>,
    /// Why the goal is known to be missed.
    pub known: Option<KnownMiss>,
    /// The settings of the row that differ from the defaults, as `name=value`; empty for none.
    pub settings: String,
}

impl Verdict {
    /// The value compared with the goal.
    fn value(&self) -> f64 {
        self.ours.or(self.seed).unwrap_or(f64::NAN)
    }

    /// Compares the value with the goal, and with the bound of a known miss.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        let value = self.value();
        match (self.goal, &self.known) {
            (None, _) => Outcome::Information,
            (Some(goal), _) if goal.is_met(value) => Outcome::Met,
            (Some(_), Some(known)) if known.still.is_met(value) => match known.cause {
                Cause::Unknown => Outcome::Open,
                Cause::Bound(_) | Cause::Without(_) => Outcome::MissedAsKnown,
            },
            (Some(_), _) => Outcome::Missed,
        }
    }

    /// Whether the goal is met, or absent.
    #[must_use]
    pub fn is_met(&self) -> bool {
        matches!(self.outcome(), Outcome::Information | Outcome::Met)
    }

    /// Makes a miss known by the best value that the row allows, in the words of `reason`. Without effect if the goal is within the
    /// bound.
    #[must_use]
    pub fn bounded(self, reason: &str, best: f64) -> Self {
        let figure = (best > 0.0 && best < 1e6).then_some(Figure(best));
        let known = self.goal.zip(figure).and_then(|(goal, figure)| {
            KnownMiss::new(goal, reason.into(), Cause::Bound(best), figure)
        });
        Self { known, ..self }
    }

    /// Makes a miss known by the value of a run without its cause, with today's figure. Without effect if that run misses the goal
    /// as well.
    #[must_use]
    pub fn caused(self, reason: &str, today: Figure, without: f64) -> Self {
        let known = self
            .goal
            .and_then(|goal| KnownMiss::new(goal, reason.into(), Cause::Without(without), today));
        Self { known, ..self }
    }

    /// Marks a miss as open, with today's figure. A reason that was shown before and explains the value stays.
    #[must_use]
    pub fn open(self, remark: &str, today: Figure) -> Self {
        if self.outcome() == Outcome::MissedAsKnown {
            return self;
        }
        let open = |goal| KnownMiss::new(goal, remark.into(), Cause::Unknown, today);
        Self { known: self.goal.and_then(open), ..self }
    }

    /// Notes the settings of a row that differ from the defaults.
    #[must_use]
    pub fn with_settings(self, row: &Row) -> Self {
        Self { settings: row.word(SETTINGS).into(), ..self }
    }

    /// The verdict as one line of JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        let distance = self.goal.map(|goal| goal.distance(self.value()));
        let mut object = Map::new();
        object.insert("verdict".into(), self.what.clone().into());
        object.insert("seed".into(), self.seed.into());
        object.insert("baseline".into(), self.baseline.into());
        object.insert("ours".into(), self.ours.into());
        object.insert("goal".into(), self.goal.map(|goal| goal.to_string()).into());
        object.insert("distance".into(), distance.into());
        object.insert("met".into(), self.goal.map(|goal| goal.is_met(self.value())).into());
        let known = [Outcome::MissedAsKnown, Outcome::Open].contains(&self.outcome());
        let reason = self.known.as_ref().filter(|_| known).map(KnownMiss::to_string);
        object.insert("known".into(), reason.into());
        let settings = (!self.settings.is_empty()).then(|| self.settings.clone());
        object.insert("settings".into(), settings.into());
        Value::Object(object).to_string()
    }
}

/// The output of an experiment.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Name and subject of the experiment.
    pub title: String,
    /// Limits of validity: device, calibration, parameters chosen after the fact.
    pub notes: Vec<String>,
    /// Rows in the order of the runs.
    pub rows: Vec<Row>,
    /// Verdicts computed from the rows.
    pub verdicts: Vec<Verdict>,
}

impl Report {
    /// Appends another part of the same experiment.
    pub fn append(&mut self, other: Self) {
        if self.title.is_empty() {
            self.title = other.title;
        }
        self.notes.extend(other.notes);
        self.rows.extend(other.rows);
        self.verdicts.extend(other.verdicts);
    }

    /// Whether there are rows and all goals are met.
    #[must_use]
    pub fn is_met(&self) -> bool {
        !self.rows.is_empty() && self.verdicts.iter().all(Verdict::is_met)
    }

    /// Whether there are rows and every goal is met, missed as known or open: the program succeeds.
    #[must_use]
    pub fn passes(&self) -> bool {
        !self.rows.is_empty() && self.count(Outcome::Missed) == 0
    }

    fn count(&self, outcome: Outcome) -> usize {
        self.verdicts.iter().filter(|verdict| verdict.outcome() == outcome).count()
    }

    /// JSON lines: rows, then verdicts.
    #[must_use]
    pub fn to_json(&self) -> String {
        let rows = self.rows.iter().map(Row::to_json);
        let verdicts = self.verdicts.iter().map(Verdict::to_json);
        rows.chain(verdicts).map(|line| line + "\n").collect()
    }

    /// Tables for people to read.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = format!("{}\n", self.title);
        for note in &self.notes {
            let _ = writeln!(text, "  {note}");
        }
        let mut rows = &self.rows[..];
        while let Some(first) = rows.first() {
            let same = |row: &&Row| row.table == first.table && names(row).eq(names(first));
            let count = rows.iter().take_while(same).count();
            let header: Vec<String> = names(first).map(String::from).collect();
            let cells = |row: &Row| row.cells.iter().map(|(_, value)| show(value)).collect();
            let lines: Vec<Vec<String>> = rows[..count].iter().map(cells).collect();
            let _ = write!(text, "\n{}\n{}", first.table, table(&header, &lines));
            rows = &rows[count..];
        }
        if !self.verdicts.is_empty() {
            let _ = write!(text, "\nverdicts\n{}", self.verdict_table());
            let outcomes = [Outcome::Met, Outcome::MissedAsKnown, Outcome::Open, Outcome::Missed];
            let [met, known, open, missed] = outcomes.map(|outcome| self.count(outcome));
            let _ = writeln!(
                text,
                "goals: {met} met, {known} missed as known, {open} open, {missed} missed"
            );
        }
        text
    }

    fn verdict_table(&self) -> String {
        let header = ["what", "seed", "baseline", "ours", "goal", "distance", ""];
        let shown = |value: Option<f64>| value.map_or_else(|| "-".into(), number);
        let lines = self.verdicts.iter().map(|v| {
            let distance = v.goal.map(|goal| 100.0 * goal.distance(v.value()));
            let word = match (v.outcome(), &v.known) {
                (Outcome::Information, _) => String::new(),
                (Outcome::Met, _) => "met".into(),
                (Outcome::MissedAsKnown, Some(known)) => {
                    format!("MISSED (known: {known})")
                }
                (Outcome::Open, Some(known)) => {
                    format!("MISSED ({known})")
                }
                (Outcome::Missed, Some(known)) => {
                    format!("MISSED (worse than known: {})", known.still)
                }
                _ => "MISSED".into(),
            };
            let what = match v.settings.is_empty() {
                true => v.what.clone(),
                false => format!("{} [{}]", v.what, v.settings),
            };
            vec![
                what,
                shown(v.seed),
                shown(v.baseline),
                shown(v.ours),
                v.goal.map_or_else(|| "-".into(), |goal| goal.to_string()),
                distance.map_or_else(|| "-".into(), |part| format!("{part:+.1} %")),
                word,
            ]
        });
        table(&header.map(String::from), &lines.collect::<Vec<_>>())
    }
}

fn names(row: &Row) -> impl Iterator<Item = &str> {
    row.cells.iter().map(|(name, _)| name.as_str())
}

fn show(value: &Value) -> String {
    match value {
        Value::String(word) => word.clone(),
        other => other.to_string(),
    }
}

/// Four significant digits, or all digits of a large number.
fn number(value: f64) -> String {
    let digits = match value.abs() {
        0.0 => 0,
        size if size >= 1000.0 => 0,
        size => (3 - size.log10().floor() as i32).clamp(0, 6) as usize,
    };
    let text = format!("{value:.digits$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').into(),
        false => text,
    }
}

/// Columns as wide as their widest cell: words left-aligned, numbers right-aligned.
fn table(header: &[String], lines: &[Vec<String>]) -> String {
    let mut text = String::new();
    let numeric = |text: &str| text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c));
    let right: Vec<bool> = (0..header.len())
        .map(|column| !lines.is_empty() && lines.iter().all(|line| numeric(&line[column])))
        .collect();
    let widths: Vec<usize> = (0..header.len())
        .map(|column| {
            let cells = lines.iter().map(|line| &line[column]).chain([&header[column]]);
            cells.map(String::len).max().unwrap_or(0)
        })
        .collect();
    for line in [&header.to_vec()].into_iter().chain(lines) {
        let mut shown = String::from(" ");
        for ((cell, &width), &right) in line.iter().zip(&widths).zip(&right) {
            let _ = match right {
                true => write!(shown, " {cell:>width$} "),
                false => write!(shown, " {cell:<width$} "),
            };
        }
        let _ = writeln!(text, "{}", shown.trim_end());
    }
    text
}

/// A progress line on the terminal.
#[derive(Debug)]
pub struct Progress {
    name: &'static str,
    runs: usize,
    done: usize,
    shown: bool,
}

impl Progress {
    /// Progress over `runs` runs; silent unless standard error is a terminal.
    #[must_use]
    pub fn new(name: &'static str, runs: usize) -> Self {
        Self { name, runs, done: 0, shown: std::io::stderr().is_terminal() }
    }

    /// Counts one finished run.
    pub fn step(&mut self) {
        self.done += 1;
        if self.shown {
            eprint!("\r{}: {} of {} runs", self.name, self.done, self.runs);
            // Errors of the terminal do not matter.
            let _ = std::io::stderr().flush();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown && self.done > 0 {
            eprint!("\r\x1b[K");
        }
    }
}

/// Runs each of the `points` of an experiment, which are the configurations of its rows, in their order; `name` is shown with the
/// progress.
///
/// # Errors
/// The first error of a run.
pub fn run_each<P>(
    name: &'static str,
    points: &[P],
    mut run: impl FnMut(&P) -> Result<Row, ConfigError>,
) -> Result<Vec<Row>, ConfigError> {
    let mut progress = Progress::new(name, points.len());
    let step = |point| {
        let row = run(point);
        progress.step();
        row
    };
    points.iter().map(step).collect()
}

/// Jain's fairness index of `shares`: 1 if all are equal, 1/n if one has everything; 1 for none.
#[must_use]
pub fn jain(shares: impl Iterator<Item = f64>) -> f64 {
    let (count, sum, squares) =
        shares.fold((0.0, 0.0, 0.0), |(n, sum, squares), x| (n + 1.0, sum + x, squares + x * x));
    if squares == 0.0 { 1.0 } else { sum * sum / (count * squares) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "a figure that a run can miss")]
    fn figure_that_any_run_meets_is_refused() {
        let _ = Figure::new(f64::INFINITY);
    }

    #[test]
    fn row_round_trips_through_json() {
        let row = Row::new("runs").with("policy", "fair").with("bios", u64::MAX).with("part", 0.25);
        let read = Row::from_json(&row.to_json()).unwrap();
        assert_eq!((read.table.as_str(), read.word("policy")), ("runs", "fair"));
        assert_eq!((read.int("bios"), read.real("part")), (u64::MAX, 0.25));
        assert_eq!(Row::from_json("{\"verdict\":\"x\"}"), None);
    }

    #[test]
    fn goals_include_their_bounds_and_distances_have_the_right_sign() {
        let cases = [
            (Goal::AtLeast(2.0), [1.0, 2.0, 3.0], [-0.5, 0.0, 0.5]),
            (Goal::AtMost(2.0), [3.0, 2.0, 1.0], [-0.5, 0.0, 0.5]),
            (Goal::Within(2.0, 4.0), [1.0, 2.0, 3.0], [-0.5, 0.0, 0.25]),
        ];
        for (goal, values, distances) in cases {
            for (value, distance) in values.into_iter().zip(distances) {
                assert_eq!(goal.is_met(value), distance >= 0.0, "{goal} {value}");
                assert!((goal.distance(value) - distance).abs() < 1e-9, "{goal} {value}");
            }
        }
        assert!(Goal::Exactly(0.0).is_met(0.0) && !Goal::Exactly(0.0).is_met(1.0));
        assert_eq!(Goal::Exactly(4.0).distance(5.0), -0.25);
    }

    #[test]
    fn report_fails_on_one_missed_goal_or_without_rows() {
        let verdict = |ours| Verdict {
            what: "x".into(),
            seed: None,
            baseline: None,
            ours: Some(ours),
            goal: Some(Goal::AtLeast(1.0)),
            ..Verdict::default()
        };
        let mut report = Report { rows: vec![Row::new("a").with("n", 1)], ..Report::default() };
        report.verdicts = vec![verdict(1.0), verdict(2.0)];
        assert!(report.is_met());
        report.verdicts.push(verdict(0.9));
        assert!(!report.is_met());
        assert!(!Report::default().is_met());
    }

    fn miss(ours: f64, goal: Goal) -> Verdict {
        Verdict { what: "x".into(), ours: Some(ours), goal: Some(goal), ..Verdict::default() }
    }

    fn report(verdict: Verdict) -> Report {
        let rows = vec![Row::new("a").with("n", 1)];
        Report { rows, verdicts: vec![verdict], ..Report::default() }
    }

    #[test]
    fn bound_beyond_the_goal_explains_values_near_it() {
        let goal = Goal::AtLeast(1.0);
        let known = |ours| report(miss(ours, goal).bounded("one at a time", 0.9));
        let told = [1.0, 0.95, 0.88, 0.87].map(|ours| (known(ours).is_met(), known(ours).passes()));
        assert_eq!(told, [(true, true), (false, true), (false, true), (false, false)]);
        assert!(known(0.88).to_text().contains("MISSED (known: one at a time: at best 0.9)"));
        assert!(known(0.88).to_json().contains("\"known\":\"one at a time: at best 0.9\""));
        assert!(known(0.87).to_text().contains("MISSED (worse than known: >= 0.88)"));
        // A miss that is met again is not called known.
        assert!(known(1.0).to_json().contains("\"known\":null"));
        // A bound that the goal is within explains nothing, nor does one that no run can miss.
        for best in [1.0, f64::INFINITY, f64::NAN, 0.0] {
            assert_eq!(miss(0.95, goal).bounded("", best).outcome(), Outcome::Missed, "{best}");
        }
    }

    #[test]
    fn cause_whose_removal_does_not_meet_the_goal_explains_nothing() {
        let goal = Goal::AtMost(2.0);
        let outcome =
            |ours, without| miss(ours, goal).caused("idling", Figure::new(3.0), without).outcome();
        assert_eq!(outcome(3.5, 1.9), Outcome::MissedAsKnown);
        assert_eq!(outcome(3.5, 2.1), Outcome::Missed);
        assert_eq!(outcome(3.7, 1.9), Outcome::Missed);
    }

    #[test]
    fn open_miss_is_no_known_one_and_becomes_a_miss_when_it_grows() {
        let open = |ours| miss(ours, Goal::AtMost(2.0)).open("the control", Figure::new(3.0));
        assert_eq!(
            [1.9, 3.5, 3.7].map(|ours| open(ours).outcome()),
            [Outcome::Met, Outcome::Open, Outcome::Missed]
        );
        assert!(report(open(3.5)).to_text().contains("MISSED (open: the control)"));
        assert!(report(open(3.5)).to_text().contains("0 missed as known, 1 open, 0 missed"));
        // A reason that was shown comes first.
        let bounded = miss(3.5, Goal::AtMost(2.0)).bounded("a queue", 3.4);
        assert_eq!(bounded.clone().open("", Figure::new(9.0)).outcome(), Outcome::MissedAsKnown);
        // One that does not explain the value is none.
        let far = Verdict { ours: Some(9.0), ..bounded };
        assert_eq!(far.open("", Figure::new(9.0)).outcome(), Outcome::Open);
    }

    #[test]
    fn tolerance_is_a_fifth_of_the_figure_or_of_what_a_part_lacks() {
        let still = |goal: Goal, figure| goal.loosened_to(Figure::new(figure));
        assert_eq!(still(Goal::AtMost(2.0), 10.0), Goal::AtMost(12.0));
        assert_eq!(still(Goal::AtLeast(2.0), 1.2), Goal::AtLeast(1.0));
        for (figure, least) in [(0.5, 0.4), (0.95, 0.93), (0.05, 0.04)] {
            let Goal::AtLeast(found) = still(Goal::AtLeast(0.97), figure) else { panic!() };
            assert!((found - least).abs() < 1e-9, "{figure}: {found}");
        }
        assert_eq!(still(Goal::Exactly(0.0), 10.0), Goal::Within(0.0, 12.0));
        assert_eq!(still(Goal::Within(90.0, 95.0), 10.0), Goal::Within(8.0, 90.0));
    }

    #[test]
    fn columns_are_aligned_with_their_names() {
        let row = |n: u64, word: &str| Row::new("t").with("n", n).with("word", word);
        let report = Report {
            title: "x".into(),
            rows: vec![row(5, "long one"), row(12345, "b")],
            ..Report::default()
        };
        assert_eq!(report.to_text(), "x\n\nt\n      n  word\n      5  long one\n  12345  b\n");
        let shown = [0.855, 31.8, 2_046_619.0, 0.0, 67.65].map(number);
        assert_eq!(shown, ["0.855", "31.8", "2046619", "0", "67.65"]);
    }

    #[test]
    fn jain_is_1_for_equal_shares_and_1_over_n_for_one() {
        assert_eq!(jain([2.0; 8].into_iter()), 1.0);
        assert_eq!(jain([1.0, 0.0, 0.0, 0.0].into_iter()), 0.25);
    }
}
