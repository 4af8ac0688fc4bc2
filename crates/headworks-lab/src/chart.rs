//! Pictures of a run: panels of lines over one axis of time, written as SVG.
//!
//! ```text
//!   page:   title
//!           panel: name, unit   |  lines, each with a colour and a word in the legend
//!           panel: ..           |
//!                               '-- one horizontal axis for all of them
//! ```
//!
//! No font is measured and nothing is fetched, so a picture opens from a file. An SVG library would be 17 packages in the lock
//! file for less than this. Equal data give an equal file.

use std::fmt::Write as _;

/// Width of a page.
const WIDTH: f64 = 860.0;
/// What the axes' words and numbers take: left, right, above and below.
const LEFT: f64 = 62.0;
const RIGHT: f64 = 18.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 42.0;
/// Between two panels: a title and a legend.
const GAP: f64 = 30.0;
/// Points of a line that are drawn, at most: about one for every pixel.
const POINTS: usize = 700;

/// Colours that differ in lightness too, for those who see them differently and for paper.
pub const COLOURS: [&str; 5] = ["#1b6ca8", "#d1495b", "#3c8d53", "#8a8d91", "#b8860b"];

/// How numbers become places.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scale {
    /// From the least (or 0) to the most.
    #[default]
    Linear,
    /// By powers of ten.
    Log,
}

/// One line.
#[derive(Clone, Debug, Default)]
pub struct Line {
    /// Its word in the legend.
    pub name: String,
    /// Its colour.
    pub colour: &'static str,
    /// Drawn in dashes: a limit rather than a measurement.
    pub dashed: bool,
    /// In order.
    pub points: Vec<(f64, f64)>,
}

/// Lines over one vertical axis.
#[derive(Clone, Debug, Default)]
pub struct Panel {
    /// What is drawn, with its unit.
    pub title: String,
    /// Pixels.
    pub height: f64,
    /// Of the vertical axis.
    pub scale: Scale,
    /// Its lines.
    pub lines: Vec<Line>,
}

/// Panels one below the other.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// What it is.
    pub title: String,
    /// What the horizontal axis is, with its unit.
    pub across: String,
    /// Of the horizontal axis.
    pub scale: Scale,
    /// From the top.
    pub panels: Vec<Panel>,
}

/// An axis: a range of numbers onto a range of places.
#[derive(Clone, Copy, Debug)]
struct Axis {
    scale: Scale,
    from: f64,
    to: f64,
    start: f64,
    end: f64,
}

impl Axis {
    fn new(scale: Scale, values: impl Iterator<Item = f64>, start: f64, end: f64) -> Self {
        let some = |value: &f64| value.is_finite() && (scale == Scale::Linear || *value > 0.0);
        let (low, high) = values
            .filter(some)
            .fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
        let (from, to) = match scale {
            _ if low > high => (0.0, 1.0),
            // A line that only touches the frame is hard to see.
            Scale::Linear => (low.min(0.0), if high > 0.0 { high * 1.05 } else { 1.0 }),
            Scale::Log => (low.log10().floor(), high.log10().ceil().max(low.log10().floor() + 1.0)),
        };
        Self { scale, from, to, start, end }
    }

    fn place(&self, value: f64) -> f64 {
        let value = match self.scale {
            Scale::Linear => value,
            Scale::Log => value.max(1e-9).log10(),
        };
        let part = ((value - self.from) / (self.to - self.from)).clamp(0.0, 1.0);
        self.start + part * (self.end - self.start)
    }

    /// Round numbers along it, about `count`.
    fn ticks(&self, count: f64) -> Vec<f64> {
        if self.scale == Scale::Log {
            return (self.from as i32..=self.to as i32).map(|power| 10f64.powi(power)).collect();
        }
        let rough = (self.to - self.from) / count;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|digit| digit * power);
        let step = step.into_iter().find(|step| *step >= rough).unwrap_or(rough);
        let first = (self.from / step).ceil() as i64;
        let last = (self.to / step).floor() as i64;
        (first..=last).map(|index| index as f64 * step).collect()
    }
}

/// A number as short as it can be: `0`, `0.25`, `850`, `20k`.
fn label(value: f64) -> String {
    let (value, unit) = match value.abs() {
        size if size >= 1e6 => (value / 1e6, "M"),
        size if size >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let text = format!("{value:.3}");
    format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

impl Page {
    /// The picture.
    #[must_use]
    pub fn to_svg(&self) -> String {
        let heights: f64 = self.panels.iter().map(|panel| panel.height + GAP).sum();
        let height = TOP + heights + BOTTOM;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
             height=\"{height}\" font-family=\"sans-serif\" font-size=\"11\" fill=\"#333\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
        );
        let title = escaped(&self.title);
        let _ = writeln!(svg, "<text x=\"{LEFT}\" y=\"20\" font-size=\"14\">{title}</text>");
        let points = self.panels.iter().flat_map(|panel| &panel.lines);
        let values = points.flat_map(|line| line.points.iter().map(|point| point.0));
        let mut across = Axis::new(self.scale, values.clone(), LEFT, WIDTH - RIGHT);
        if self.scale == Scale::Linear {
            // Time ends at the frame.
            across.to = values.fold(f64::MIN_POSITIVE, f64::max);
        }
        let mut top = TOP;
        for panel in &self.panels {
            top += GAP;
            panel.draw(&mut svg, across, top);
            top += panel.height;
        }
        for tick in across.ticks(10.0) {
            let (x, y, text) = (across.place(tick), top + 16.0, label(tick));
            let _ = writeln!(
                svg,
                "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{text}</text>"
            );
        }
        let (x, y) = ((LEFT + WIDTH - RIGHT) / 2.0, top + 34.0);
        let across = escaped(&self.across);
        let _ = writeln!(
            svg,
            "<text x=\"{x}\" y=\"{y}\" text-anchor=\"middle\">{across}</text>\n</svg>"
        );
        svg
    }
}

impl Panel {
    fn draw(&self, svg: &mut String, across: Axis, top: f64) {
        let values = self.lines.iter().flat_map(|line| line.points.iter().map(|point| point.1));
        let bottom = top + self.height;
        let up = Axis::new(self.scale, values, bottom, top);
        for tick in across.ticks(10.0) {
            let x = across.place(tick);
            let _ = writeln!(svg, "<path d=\"M{x:.1} {top}V{bottom}\" stroke=\"#eee\"/>");
        }
        for tick in up.ticks(4.0) {
            let (y, x, text) = (up.place(tick), LEFT - 6.0, label(tick));
            let to = WIDTH - RIGHT;
            let _ = writeln!(svg, "<path d=\"M{LEFT} {y:.1}H{to}\" stroke=\"#e4e4e4\"/>");
            let y = y + 4.0;
            let _ = writeln!(svg, "<text x=\"{x}\" y=\"{y:.1}\" text-anchor=\"end\">{text}</text>");
        }
        let width = WIDTH - LEFT - RIGHT;
        let height = self.height;
        let _ = writeln!(
            svg,
            "<rect x=\"{LEFT}\" y=\"{top}\" width=\"{width}\" height=\"{height}\" fill=\"none\" stroke=\"#999\"/>"
        );
        for line in &self.lines {
            line.draw(svg, across, up);
        }
        self.draw_legend(svg, top - 7.0);
    }

    /// The title to the left, the lines' names to the right.
    fn draw_legend(&self, svg: &mut String, y: f64) {
        let title = escaped(&self.title);
        let _ = writeln!(svg, "<text x=\"{LEFT}\" y=\"{y}\" font-weight=\"bold\">{title}</text>");
        let mut x = WIDTH - RIGHT;
        for line in self.lines.iter().rev() {
            // No font is measured: 6 pixels a letter and a few are enough for 11 pixels of any sans serif.
            x -= 6.0 * line.name.chars().count() as f64 + 6.0;
            let (dash, name, colour) = (line.dash(), escaped(&line.name), line.colour);
            let _ = writeln!(svg, "<text x=\"{x}\" y=\"{y}\">{name}</text>");
            let (from, to, middle) = (x - 24.0, x - 5.0, y - 4.0);
            let _ = writeln!(
                svg,
                "<path d=\"M{from} {middle}H{to}\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>"
            );
            x -= 36.0;
        }
    }
}

impl Line {
    /// A line.
    #[must_use]
    pub fn new(name: &str, colour: &'static str, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), colour, dashed: false, points }
    }

    /// A limit.
    #[must_use]
    pub fn dashed(self) -> Self {
        Self { dashed: true, ..self }
    }

    fn dash(&self) -> &'static str {
        if self.dashed { " stroke-dasharray=\"5 4\"" } else { "" }
    }

    fn draw(&self, svg: &mut String, across: Axis, up: Axis) {
        let mut path = String::new();
        for (x, y) in self.thinned() {
            let letter = if path.is_empty() { 'M' } else { 'L' };
            let _ = write!(path, "{letter}{:.1} {:.1}", across.place(x), up.place(y));
        }
        let (dash, colour) = (self.dash(), self.colour);
        let _ = writeln!(
            svg,
            "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\" stroke-linejoin=\"round\"{dash}/>"
        );
    }

    /// Of so many points that several fall on a pixel, the least and the most of each group: peaks stay.
    fn thinned(&self) -> Vec<(f64, f64)> {
        let group = self.points.len().div_ceil(POINTS / 2).max(1);
        if group <= 2 {
            return self.points.clone();
        }
        let mut kept = Vec::with_capacity(POINTS);
        for group in self.points.chunks(group) {
            let by = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
            let ends = (group.iter().min_by(by), group.iter().max_by(by));
            let (Some(&low), Some(&high)) = ends else { continue };
            let (first, second) = if low.0 <= high.0 { (low, high) } else { (high, low) };
            kept.push(first);
            if second != first {
                kept.push(second);
            }
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(points: Vec<(f64, f64)>) -> Page {
        let line = Line::new("a<b", COLOURS[0], points);
        let panel =
            Panel { title: "x".into(), height: 100.0, lines: vec![line], ..Panel::default() };
        Page { title: "t".into(), across: "s".into(), panels: vec![panel], ..Page::default() }
    }

    #[test]
    fn a_line_goes_from_corner_to_corner_and_words_are_escaped() {
        let svg = page(vec![(0.0, 0.0), (10.0, 20.0)]).to_svg();
        // From the lower left corner to a twentieth below the upper right one.
        let (x, y) = (WIDTH - RIGHT, TOP + GAP + 100.0 * (1.0 - 1.0 / 1.05));
        let expected = format!("M{LEFT:.1} {:.1}L{x:.1} {y:.1}", TOP + GAP + 100.0);
        assert!(svg.contains(&expected), "{svg}");
        assert!(svg.contains("a&lt;b") && !svg.contains("a<b"));
        assert!(page(Vec::new()).to_svg().contains("</svg>"));
    }

    #[test]
    fn ticks_are_round_and_within() {
        let ticks =
            |scale, values: [f64; 2]| Axis::new(scale, values.into_iter(), 0.0, 1.0).ticks(4.0);
        assert_eq!(ticks(Scale::Linear, [0.0, 700.0]), [0.0, 200.0, 400.0, 600.0]);
        assert_eq!(ticks(Scale::Log, [3.0, 5000.0]), [1.0, 10.0, 100.0, 1000.0, 10_000.0]);
        let labels = [0.0, 0.25, 850.0, 20_000.0, 1.5e6].map(label);
        assert_eq!(labels, ["0", "0.25", "850", "20k", "1.5M"]);
    }

    #[test]
    fn a_long_line_is_thinned_and_keeps_its_peaks() {
        let mut points: Vec<(f64, f64)> = (0..100_000).map(|x| (f64::from(x), 1.0)).collect();
        points[77_777].1 = 9.0;
        let line = Line::new("", "", points);
        let thinned = line.thinned();
        assert!(thinned.len() <= POINTS + 2, "{}", thinned.len());
        assert!(thinned.contains(&(77_777.0, 9.0)));
        assert!(thinned.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }
}
