//! Plots as SVG text. Fills differ in lightness, and lines in their dashes and marks, so that a grey print can be read.

use std::ops::Range;

use anyhow::anyhow;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, ValueFormatter};
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Fills, dark to light.
const FILLS: [RGBColor; 5] = [
    RGBColor(24, 48, 102),
    RGBColor(160, 64, 28),
    RGBColor(104, 158, 200),
    RGBColor(238, 190, 120),
    RGBColor(236, 236, 236),
];
/// Strokes, all dark enough for a thin line: colour, and dash and gap in pixels (no gap: longer than any line).
const STROKES: [(RGBColor, i32, i32); 5] = [
    (RGBColor(24, 48, 102), 100_000, 0),
    (RGBColor(176, 74, 30), 9, 4),
    (RGBColor(60, 120, 170), 3, 3),
    (RGBColor(110, 110, 110), 14, 3),
    (RGBColor(0, 0, 0), 6, 6),
];
/// Marks on a line through many points.
const MARKS: usize = 16;
/// Points of a line up to which each has a mark.
const FEW: usize = 40;
const SIZE: (u32, u32) = (860, 480);
/// Pixels of an entry of the legend, and from the lowest to the highest value of a plot.
const ENTRY: f64 = 21.0;
const HEIGHT: f64 = 375.0;
const FONT: (&str, u32) = ("sans-serif", 15);
const TITLE: (&str, u32) = ("sans-serif", 19);

/// A bar: its value, and perhaps one to compare with. One without a value says so in words.
#[derive(Clone, Copy)]
pub(crate) struct Bar {
    pub(crate) value: Option<f64>,
    pub(crate) compared: Option<f64>,
}

/// A group of bars: its name, and a bar for each series.
pub(crate) struct Group {
    pub(crate) name: String,
    pub(crate) bars: Vec<Bar>,
}

/// A line or a cloud of points.
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
}

/// Words on a plot.
pub(crate) struct Words<'a> {
    pub(crate) title: &'a str,
    pub(crate) x: &'a str,
    pub(crate) y: &'a str,
}

/// An axis: from where to where, and what is written at which places.
#[derive(Clone)]
pub(crate) struct Axis {
    from: f64,
    to: f64,
    ticks: Vec<(f64, String)>,
    /// Whether a line crosses the plot at each of them.
    grid: bool,
}

impl Axis {
    /// Ticks at round numbers, at most about eight.
    pub(crate) fn even(from: f64, to: f64) -> Self {
        let to = if to > from { to } else { from + from.abs().max(1.0) };
        let rough = (to - from) / 8.0;
        let power = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|f| f * power).into_iter().find(|s| *s >= rough * 0.999).unwrap_or(rough);
        let (first, last) = ((from / step - 1e-9).ceil() as i64, (to / step + 1e-9).floor() as i64);
        let places = if step < 1.0 { (-step.log10()).ceil() as usize } else { 0 };
        let written = |at: f64| if places > 0 { format!("{at:.places$}") } else { grouped(at) };
        let ticks = (first..=last).map(|n| n as f64 * step).map(|at| (at, written(at))).collect();
        Self { from, to, ticks, grid: true }
    }

    /// A place for each word, from 1 on.
    pub(crate) fn words(words: &[String]) -> Self {
        let ticks = words.iter().enumerate().map(|(n, word)| (n as f64 + 1.0, word.clone())).collect();
        Self { from: 0.5, to: words.len() as f64 + 0.5, ticks, grid: true }
    }

    /// Quantiles in percent, where each further nine takes as much room as the one before (see [`nines`]).
    pub(crate) fn quantiles() -> Self {
        let ticks = [0.0, 50.0, 90.0, 99.0, 99.9].map(|q| (nines(q), format!("{q}")));
        Self { from: 0.0, to: nines(99.9), ticks: ticks.to_vec(), grid: true }
    }

    /// Values from zero to `top`, with room above for a legend of so many entries.
    fn below_legend(top: f64, entries: usize) -> Self {
        let top = top.max(1e-9);
        let ticks = Self::even(0.0, top * 1.04).ticks;
        Self { from: 0.0, to: top / legend_free(entries), ticks, grid: true }
    }

    /// Powers of ten as their exponents.
    fn powers(low: i32, high: i32, entries: usize) -> Self {
        let ticks = (low..=high).map(|n| (f64::from(n), grouped(10_f64.powi(n)))).collect();
        let to = f64::from(low) + f64::from(high - low) / legend_free(entries);
        Self { from: f64::from(low), to, ticks, grid: true }
    }

    /// The names of groups of bars, at their middles.
    fn of_groups(groups: &[Group], each: f64) -> Self {
        let ticks = groups.iter().enumerate().map(|(n, group)| ((n as f64 + 0.5) * each, group.name.clone()));
        Self { from: 0.0, to: each * groups.len() as f64, ticks: ticks.collect(), grid: false }
    }

    fn label(&self, at: f64) -> String {
        let near = |tick: &&(f64, String)| (tick.0 - at).abs() < 1e-9 * (self.to - self.from);
        self.ticks.iter().find(near).map_or(String::new(), |(_, label)| label.clone())
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (low, high): (i32, i32)) -> i32 {
        low + ((value - self.from) / (self.to - self.from) * f64::from(high - low)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        let ticks = if hint.weight().allow_light_points() { &[][..] } else { &self.ticks };
        ticks.iter().map(|(at, _)| *at).collect()
    }

    fn range(&self) -> Range<f64> {
        self.from..self.to
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, value: &f64) -> String {
        self.label(*value)
    }
}

/// The part of a plot's height that a legend of so many entries leaves free.
fn legend_free(entries: usize) -> f64 {
    1.0 - (ENTRY * entries as f64 + 24.0) / HEIGHT
}

/// Where a quantile, in percent, is on the axis of [`Axis::quantiles`].
pub(crate) fn nines(percent: f64) -> f64 {
    -(1.0 - percent / 100.0).log10()
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Coordinates = Cartesian2d<Axis, Axis>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Coordinates>;

fn failed(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("a plot could not be drawn: {error}")
}

fn drawn(draw: impl FnOnce(&Area<'_>) -> anyhow::Result<()>) -> anyhow::Result<String> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        area.fill(&WHITE).map_err(failed)?;
        draw(&area)?;
        area.present().map_err(failed)?;
    }
    Ok(svg)
}

/// The axes with their words; `left` pixels for what is written beside the upright one.
fn chart<'a, 'b>(
    area: &Area<'b>,
    words: &Words<'_>,
    (x, y): (&Axis, &Axis),
    left: u32,
) -> anyhow::Result<Chart<'a, 'b>> {
    let mut chart = ChartBuilder::on(area)
        .caption(words.title, TITLE)
        .margin(12)
        .margin_right(28)
        .x_label_area_size(46)
        .y_label_area_size(left)
        .build_cartesian_2d(x.clone(), y.clone())
        .map_err(failed)?;
    let mut mesh = chart.configure_mesh();
    if !x.grid {
        mesh.disable_x_mesh();
    }
    if !y.grid {
        mesh.disable_y_mesh();
    }
    mesh.x_desc(words.x).y_desc(words.y).label_style(FONT).axis_desc_style(FONT).draw().map_err(failed)?;
    Ok(chart)
}

/// Draws a filled bar with an outline, so that a light one has an edge.
fn boxed<'a, 'b: 'a>(
    chart: &mut Chart<'a, 'b>,
    name: &str,
    fill: RGBColor,
    corners: Vec<[(f64, f64); 2]>,
) -> anyhow::Result<()> {
    chart
        .draw_series(corners.iter().map(|both| Rectangle::new(*both, fill.filled())))
        .map_err(failed)?
        .label(name)
        .legend(move |(x, y)| {
            let corners = [(-0, -6), (14, 6)];
            EmptyElement::at((x, y))
                + Rectangle::new(corners, fill.filled())
                + Rectangle::new(corners, BLACK.stroke_width(1))
        });
    let edges = corners.into_iter().map(|both| Rectangle::new(both, BLACK.stroke_width(1)));
    chart.draw_series(edges).map(drop).map_err(failed)
}

/// Left and right end of the bar of series `s` in group `g`.
fn sides(g: usize, s: usize, each: f64) -> (f64, f64) {
    let left = g as f64 * each + s as f64 + 0.5;
    (left, left + 0.9)
}

/// Groups of bars; what is compared with is a black line across its bar.
pub(crate) fn bars(words: &Words<'_>, series: &[&str], compared: &str, groups: &[Group]) -> anyhow::Result<String> {
    let each = series.len() as f64 + 1.0;
    let all = || groups.iter().flat_map(|group| &group.bars);
    let top = all().flat_map(|bar| [bar.value, bar.compared]).flatten().fold(0.0, f64::max);
    let (x, y) = (Axis::of_groups(groups, each), Axis::below_legend(top, series.len() + 1));
    drawn(|area| {
        let mut chart = chart(area, words, (&x, &y), 104)?;
        for (s, name) in series.iter().enumerate() {
            let of = |which: fn(&Bar) -> Option<f64>| {
                let values = groups.iter().enumerate();
                values.filter_map(move |(g, group)| Some((sides(g, s, each), which(group.bars.get(s)?)?)))
            };
            let corners = of(|bar| bar.value).map(|((left, right), value)| [(left, 0.0), (right, value)]);
            boxed(&mut chart, name, FILLS[s % FILLS.len()], corners.collect())?;
            let marks = of(|bar| bar.compared)
                .map(|((left, right), y)| PathElement::new([(left - 0.1, y), (right + 0.1, y)], BLACK.stroke_width(3)));
            chart.draw_series(marks).map_err(failed)?;
        }
        if all().any(|bar| bar.compared.is_some()) {
            let none: [PathElement<(f64, f64)>; 0] = [];
            chart
                .draw_series(none)
                .map_err(failed)?
                .label(compared)
                .legend(|(x, y)| PathElement::new([(x, y), (x + 14, y)], BLACK.stroke_width(3)));
        }
        legend(&mut chart)
    })
}

/// Groups of bars on an axis of powers of ten, each with its value above it, or with `missing` where it has none.
pub(crate) fn decades(words: &Words<'_>, series: &[&str], groups: &[Group], missing: &str) -> anyhow::Result<String> {
    let each = series.len() as f64 + 1.0;
    let power = |value: f64| value.max(1e-9).log10();
    let values = || groups.iter().flat_map(|group| group.bars.iter().filter_map(|bar| Some(power(bar.value?))));
    // A little below a power of ten counts as the power: a bar may have no height.
    let low = (values().fold(0.0, f64::min) + 0.1).floor();
    let high = values().fold(low, f64::max).ceil().max(low + 1.0);
    let (x, y) = (Axis::of_groups(groups, each), Axis::powers(low as i32, high as i32, series.len()));
    drawn(|area| {
        let mut chart = chart(area, words, (&x, &y), 104)?;
        for (s, name) in series.iter().enumerate() {
            let bars = || {
                groups.iter().enumerate().filter_map(|(g, group)| Some((sides(g, s, each), group.bars.get(s)?.value)))
            };
            let corners =
                bars().filter_map(|((left, right), value)| Some([(left, low), (right, power(value?).max(low))]));
            boxed(&mut chart, name, FILLS[s % FILLS.len()], corners.collect())?;
            let above = ("sans-serif", 11).into_text_style(area).pos(Pos::new(HPos::Center, VPos::Bottom));
            let upright = ("sans-serif", 12)
                .into_font()
                .transform(FontTransform::Rotate270)
                .into_text_style(area)
                .pos(Pos::new(HPos::Left, VPos::Center));
            let written = bars().map(|((left, right), value)| {
                let middle = f64::midpoint(left, right);
                match value {
                    Some(value) => {
                        let places = usize::from(value < 9.95);
                        Text::new(format!("{value:.places$}"), (middle, power(value).max(low)), above.clone())
                    }
                    None => Text::new(missing.to_owned(), (middle, low + 0.02 * (high - low)), upright.clone()),
                }
            });
            chart.draw_series(written).map_err(failed)?;
        }
        legend(&mut chart)
    })
}

/// A bar to the right for each name, the first on top, with its value behind it.
pub(crate) fn ranks(words: &Words<'_>, rows: &[(String, f64)]) -> anyhow::Result<String> {
    let place = |n: usize| (rows.len() - n) as f64;
    let top = rows.iter().map(|row| row.1).fold(0.0, f64::max).max(1e-9) * 1.12;
    let mut y = Axis::words(&rows.iter().rev().map(|row| row.0.clone()).collect::<Vec<_>>());
    y.grid = false;
    let longest = rows.iter().map(|row| row.0.len()).max().unwrap_or(0) as u32;
    drawn(|area| {
        let mut chart = chart(area, words, (&Axis::even(0.0, top), &y), (longest * 8 + 40).clamp(104, 480))?;
        let corners = rows.iter().enumerate().map(|(n, row)| [(0.0, place(n) - 0.35), (row.1, place(n) + 0.35)]);
        boxed(&mut chart, "", FILLS[2], corners.collect())?;
        let style = ("sans-serif", 13).into_text_style(area).pos(Pos::new(HPos::Left, VPos::Center));
        let written = rows.iter().enumerate().map(|(n, row)| {
            let value = grouped((row.1 * 100.0).round() / 100.0);
            Text::new(value, (row.1 + 0.01 * top, place(n)), style.clone())
        });
        chart.draw_series(written).map(drop).map_err(failed)
    })
}

/// What is drawn of each [`Series`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Drawn {
    /// A line with marks: at each point, or at some when there are many.
    Line,
    /// The points.
    Points,
    /// The points of the first, and lines through the others.
    Trend,
}

/// Lines or clouds; `level` is a value to compare with, drawn across, and its name.
pub(crate) fn lines(
    words: &Words<'_>,
    x: &Axis,
    series: &[Series],
    what: Drawn,
    level: Option<(f64, &str)>,
) -> anyhow::Result<String> {
    let top = series.iter().flat_map(|s| &s.points).map(|p| p.1).chain(level.map(|l| l.0)).fold(0.0, f64::max);
    let y = Axis::below_legend(top, series.len() + usize::from(level.is_some()));
    drawn(|area| {
        let mut chart = chart(area, words, (x, &y), 104)?;
        for (s, one) in series.iter().enumerate() {
            let (shade, dash, gap) = STROKES[s % STROKES.len()];
            let few = one.points.len() <= FEW;
            let is_line = what == Drawn::Line || what == Drawn::Trend && s > 0;
            if is_line {
                let line = DashedPathElement::new(one.points.clone(), dash, gap, shade.stroke_width(2));
                chart.draw_series(std::iter::once(line)).map_err(failed)?;
            }
            let step = if few || !is_line { 1 } else { one.points.len().div_ceil(MARKS) };
            let marks = one.points.iter().skip(step / 2).step_by(step);
            let size = if few || is_line { 4 } else { 2 };
            let drawn = chart.draw_series(marks.map(|point| mark(s, *point, size, shade))).map_err(failed)?;
            drawn.label(one.name.clone()).legend(move |(x, y)| {
                let line = if is_line { vec![(x - 6, y), (x + 20, y)] } else { Vec::new() };
                let line = DashedPathElement::new(line, dash, gap, shade.stroke_width(2));
                EmptyElement::at((0, 0)) + line + mark(s, (x + 7, y), 5, shade)
            });
        }
        if let Some((at, name)) = level {
            let line = |from, to| PathElement::new([from, to], BLACK.stroke_width(1));
            chart
                .draw_series([line((x.from, at), (x.to, at))])
                .map_err(failed)?
                .label(name)
                .legend(|(x, y)| PathElement::new([(x - 6, y), (x + 20, y)], BLACK.stroke_width(1)));
        }
        legend(&mut chart)
    })
}

/// The mark of series `s`: its shape distinguishes it from other series.
fn mark<'b, C: Clone + 'static>(s: usize, at: C, size: i32, shade: RGBColor) -> DynElement<'static, SVGBackend<'b>, C> {
    match s % STROKES.len() {
        0 => Circle::new(at, size, shade.filled()).into_dyn(),
        1 => TriangleMarker::new(at, size + 1, shade.filled()).into_dyn(),
        2 => Circle::new(at, size, shade.stroke_width(2)).into_dyn(),
        3 => Cross::new(at, size, shade.stroke_width(2)).into_dyn(),
        _ => Circle::new(at, size + 2, shade.stroke_width(1)).into_dyn(),
    }
}

fn legend<'a, 'b: 'a>(chart: &mut Chart<'a, 'b>) -> anyhow::Result<()> {
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .legend_area_size(36)
        .background_style(WHITE.mix(0.9))
        .border_style(BLACK)
        .label_font(FONT)
        .draw()
        .map_err(failed)
}

/// A number with its thousands set apart.
pub(crate) fn grouped(value: f64) -> String {
    if value.abs() < 10.0 && value.fract().abs() > 1e-9 {
        return format!("{value:.2}");
    }
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    if value <= -0.5 { format!("-{text}") } else { text }
}
