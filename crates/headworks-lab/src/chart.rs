//! Charts in SVG: panels of lines over a common horizontal axis.
//!
//! ```text
//!   page:   title
//!           panel: name, unit   |  lines, each with a colour and a name in the legend
//!           panel: ..           |
//!                               '-- one horizontal axis for all of them
//! ```
//!
//! Charts use no external fonts or files. An SVG library would add 17 packages to the lock file.
//! Equal data give equal files.

use std::fmt::Write as _;

/// Width of a page in pixels.
const WIDTH: f64 = 860.0;
/// Margins for axis labels in pixels: left, right, above and below.
const LEFT: f64 = 62.0;
const RIGHT: f64 = 18.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 42.0;
/// Space between panels for title and legend.
const GAP: f64 = 30.0;
/// Maximum number of points drawn for a line, about one per pixel.
const POINTS: usize = 700;

/// Line colours that also differ in lightness.
pub const COLOURS: [&str; 5] = ["#1b6ca8", "#d1495b", "#3c8d53", "#8a8d91", "#b8860b"];

/// The scale of an axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scale {
    /// Linear from the minimum (or 0) to the maximum.
    #[default]
    Linear,
    /// Logarithmic, in powers of ten.
    Log,
}

/// A line of a panel.
#[derive(Clone, Debug, Default)]
pub struct Line {
    /// The name in the legend.
    pub name: String,
    /// The colour in SVG notation.
    pub colour: &'static str,
    /// Whether the line is dashed: a limit, not a measurement.
    pub dashed: bool,
    /// Points in order of `x`.
    pub points: Vec<(f64, f64)>,
}

/// Lines over one vertical axis.
#[derive(Clone, Debug, Default)]
pub struct Panel {
    /// The plotted quantity, with its unit.
    pub title: String,
    /// Height of the chart in pixels.
    pub height: f64,
    /// Scale of the vertical axis.
    pub scale: Scale,
    /// The lines of the panel.
    pub lines: Vec<Line>,
}

/// A chart with panels below each other.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// Title of the chart.
    pub title: String,
    /// The quantity on the horizontal axis, with its unit.
    pub across: String,
    /// Scale of the horizontal axis.
    pub scale: Scale,
    /// Panels from top to bottom.
    pub panels: Vec<Panel>,
}

/// Maps a range of values to a range of pixels.
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
            // A margin keeps lines away from the frame.
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

    /// About `count` rounded tick values.
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

/// A number in its shortest form: `0`, `0.25`, `850`, `20k`.
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
    /// Renders the chart as SVG.
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
            // The time axis ends at the frame.
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

    /// Draws the title on the left and line names on the right.
    fn draw_legend(&self, svg: &mut String, y: f64) {
        let title = escaped(&self.title);
        let _ = writeln!(svg, "<text x=\"{LEFT}\" y=\"{y}\" font-weight=\"bold\">{title}</text>");
        let mut x = WIDTH - RIGHT;
        for line in self.lines.iter().rev() {
            // An estimated 6 pixels per letter suffice for any sans serif of 11 pixels.
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
    /// A solid line of measurements.
    #[must_use]
    pub fn new(name: &str, colour: &'static str, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), colour, dashed: false, points }
    }

    /// The same line, dashed.
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

    /// Keeps the minimum and maximum of each group of points that share a pixel, so that peaks
    /// remain.
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
    fn line_spans_the_panel_and_names_are_escaped() {
        let svg = page(vec![(0.0, 0.0), (10.0, 20.0)]).to_svg();
        // From the lower left corner to a twentieth below the upper right one.
        let (x, y) = (WIDTH - RIGHT, TOP + GAP + 100.0 * (1.0 - 1.0 / 1.05));
        let expected = format!("M{LEFT:.1} {:.1}L{x:.1} {y:.1}", TOP + GAP + 100.0);
        assert!(svg.contains(&expected), "{svg}");
        assert!(svg.contains("a&lt;b") && !svg.contains("a<b"));
        assert!(page(Vec::new()).to_svg().contains("</svg>"));
    }

    #[test]
    fn ticks_are_round_and_within_the_axis() {
        let ticks =
            |scale, values: [f64; 2]| Axis::new(scale, values.into_iter(), 0.0, 1.0).ticks(4.0);
        assert_eq!(ticks(Scale::Linear, [0.0, 700.0]), [0.0, 200.0, 400.0, 600.0]);
        assert_eq!(ticks(Scale::Log, [3.0, 5000.0]), [1.0, 10.0, 100.0, 1000.0, 10_000.0]);
        let labels = [0.0, 0.25, 850.0, 20_000.0, 1.5e6].map(label);
        assert_eq!(labels, ["0", "0.25", "850", "20k", "1.5M"]);
    }

    #[test]
    fn long_line_is_thinned_and_keeps_its_peaks() {
        let mut points: Vec<(f64, f64)> = (0..100_000).map(|x| (f64::from(x), 1.0)).collect();
        points[77_777].1 = 9.0;
        let line = Line::new("", "", points);
        let thinned = line.thinned();
        assert!(thinned.len() <= POINTS + 2, "{}", thinned.len());
        assert!(thinned.contains(&(77_777.0, 9.0)));
        assert!(thinned.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }
}
