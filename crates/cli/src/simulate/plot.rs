//! Plots as SVG text. Colours differ in lightness, and lines in their marks, so that a grey print can be read.

use anyhow::anyhow;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Dark to light.
const SHADES: [RGBColor; 5] = [
    RGBColor(24, 48, 102),
    RGBColor(176, 74, 30),
    RGBColor(104, 158, 200),
    RGBColor(238, 190, 120),
    RGBColor(90, 90, 90),
];
/// Marks on a line through many points.
const MARKS: usize = 16;
const SIZE: (u32, u32) = (860, 480);
const FONT: (&str, u32) = ("sans-serif", 15);

/// A group of bars: its name, and for each series a value and perhaps one to compare with.
pub(crate) struct Group {
    pub(crate) name: String,
    pub(crate) bars: Vec<(f64, Option<f64>)>,
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

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

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

/// Groups of bars; what is compared with is a black line across its bar.
pub(crate) fn bars(words: &Words<'_>, series: &[&str], compared: &str, groups: &[Group]) -> anyhow::Result<String> {
    let each = series.len() as f64 + 1.0;
    let top = groups
        .iter()
        .flat_map(|group| group.bars.iter().flat_map(|(value, other)| [Some(*value), *other]))
        .flatten()
        .fold(0.0, f64::max);
    drawn(|area| {
        let mut chart = ChartBuilder::on(area)
            .caption(words.title, ("sans-serif", 19))
            .margin(12)
            .margin_right(28)
            .x_label_area_size(42)
            .y_label_area_size(104)
            .build_cartesian_2d(0.0..each * groups.len() as f64, 0.0..top.max(1e-9) * 1.6)
            .map_err(failed)?;
        let name = |at: &f64| named(groups, each, *at);
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(WHITE)
            .x_labels((2.0 * each * groups.len() as f64) as usize + 1)
            .x_label_formatter(&name)
            .y_label_formatter(&|y| grouped(*y))
            .x_desc(words.x)
            .y_desc(words.y)
            .label_style(FONT)
            .axis_desc_style(FONT)
            .draw()
            .map_err(failed)?;
        for (s, name) in series.iter().enumerate() {
            let shade = SHADES[s % SHADES.len()];
            let bar = |g: usize| (g as f64 * each + s as f64 + 0.5, g as f64 * each + s as f64 + 1.4);
            let fill = groups.iter().enumerate().map(|(g, group)| {
                let (left, right) = bar(g);
                Rectangle::new([(left, 0.0), (right, group.bars[s].0)], shade.filled())
            });
            chart
                .draw_series(fill)
                .map_err(failed)?
                .label(*name)
                .legend(move |(x, y)| Rectangle::new([(x, y - 6), (x + 14, y + 6)], shade.filled()));
            let marks = groups.iter().enumerate().filter_map(|(g, group)| {
                let (left, right) = bar(g);
                group.bars[s].1.map(|y| PathElement::new([(left - 0.1, y), (right + 0.1, y)], BLACK.stroke_width(3)))
            });
            chart.draw_series(marks).map_err(failed)?;
        }
        if groups.iter().any(|group| group.bars.iter().any(|(_, other)| other.is_some())) {
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

/// Groups of bars on an axis of powers of ten, each with its value above it.
pub(crate) fn decades(words: &Words<'_>, series: &[&str], groups: &[Group]) -> anyhow::Result<String> {
    let each = series.len() as f64 + 1.0;
    let values = || groups.iter().flat_map(|group| group.bars.iter().map(|(value, _)| value.max(1e-9).log10()));
    let low = values().fold(f64::INFINITY, f64::min).min(0.0).floor();
    let high = values().fold(low, f64::max).ceil().max(low + 1.0);
    drawn(|area| {
        let mut chart = ChartBuilder::on(area)
            .caption(words.title, ("sans-serif", 19))
            .margin(12)
            .margin_right(28)
            .x_label_area_size(42)
            .y_label_area_size(104)
            .build_cartesian_2d(0.0..each * groups.len() as f64, low..high + (high - low) * 0.35)
            .map_err(failed)?;
        let name = |at: &f64| named(groups, each, *at);
        let power =
            |y: &f64| if y.fract().abs() < 1e-6 && *y <= high { grouped(10_f64.powf(*y)) } else { String::new() };
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(WHITE)
            .x_labels((2.0 * each * groups.len() as f64) as usize + 1)
            .x_label_formatter(&name)
            .y_labels((high - low) as usize + 2)
            .y_label_formatter(&power)
            .x_desc(words.x)
            .y_desc(words.y)
            .label_style(FONT)
            .axis_desc_style(FONT)
            .draw()
            .map_err(failed)?;
        for (s, name) in series.iter().enumerate() {
            let shade = SHADES[s % SHADES.len()];
            let bar = |g: usize| (g as f64 * each + s as f64 + 0.5, g as f64 * each + s as f64 + 1.4);
            let bars = || groups.iter().enumerate().filter_map(|(g, group)| Some((bar(g), group.bars.get(s)?.0)));
            let fill = bars().map(|((left, right), value)| {
                Rectangle::new([(left, low), (right, value.max(1e-9).log10())], shade.filled())
            });
            chart
                .draw_series(fill)
                .map_err(failed)?
                .label(*name)
                .legend(move |(x, y)| Rectangle::new([(x, y - 6), (x + 14, y + 6)], shade.filled()));
            let middle = Pos::new(HPos::Center, VPos::Bottom);
            let style = ("sans-serif", 11).into_text_style(area).pos(middle);
            let written = bars().map(|((left, right), value)| {
                let at = (f64::midpoint(left, right), value.max(1e-9).log10());
                Text::new(if value < 9.95 { format!("{value:.1}") } else { format!("{value:.0}") }, at, style.clone())
            });
            chart.draw_series(written).map_err(failed)?;
        }
        legend(&mut chart)
    })
}

/// The name of the group whose middle is `at`, on an axis where a group takes `each`.
fn named(groups: &[Group], each: f64, at: f64) -> String {
    let group = ((at - 0.5) / each).round();
    let middle = group * each + each / 2.0;
    let here = (at - middle).abs() < 0.3;
    groups.get(group.max(0.0) as usize).filter(|_| here).map_or(String::new(), |g| g.name.clone())
}

/// Lines through points, with a mark at each, or at some when there are many; only the points when `joined` is not asked for.
pub(crate) fn lines(words: &Words<'_>, series: &[Series], joined: bool) -> anyhow::Result<String> {
    let all = || series.iter().flat_map(|s| s.points.iter());
    let right = all().map(|p| p.0).fold(0.0, f64::max);
    let top = all().map(|p| p.1).fold(0.0, f64::max);
    let left = if joined { all().map(|p| p.0).fold(right, f64::min).min(right * 0.999) } else { 0.0 };
    drawn(|area| {
        let mut chart = ChartBuilder::on(area)
            .caption(words.title, ("sans-serif", 19))
            .margin(12)
            .margin_right(28)
            .x_label_area_size(46)
            .y_label_area_size(104)
            .build_cartesian_2d(left..right.max(1e-9), 0.0..top.max(1e-9) * 1.2)
            .map_err(failed)?;
        chart
            .configure_mesh()
            .light_line_style(WHITE)
            .x_label_formatter(&|x| grouped(*x))
            .y_label_formatter(&|y| grouped(*y))
            .x_desc(words.x)
            .y_desc(words.y)
            .label_style(FONT)
            .axis_desc_style(FONT)
            .draw()
            .map_err(failed)?;
        for (s, one) in series.iter().enumerate() {
            let shade = SHADES[s % SHADES.len()];
            let few = one.points.len() <= 40;
            if joined {
                let line = LineSeries::new(one.points.iter().copied(), shade.stroke_width(2));
                chart.draw_series(line).map_err(failed)?;
            }
            // A line through many points has marks at some, so that it can be told from others without colour.
            let step = if few || !joined { 1 } else { one.points.len().div_ceil(MARKS) };
            let marks = one.points.iter().skip(step / 2).step_by(step);
            let size = if few || joined { 4 } else { 2 };
            let drawn = if s % 2 == 0 {
                chart.draw_series(marks.map(|p| Circle::new(*p, size, shade.filled()).into_dyn()))
            } else {
                chart.draw_series(marks.map(|p| TriangleMarker::new(*p, size + 1, shade.filled()).into_dyn()))
            };
            drawn.map_err(failed)?.label(one.name.clone()).legend(move |(x, y)| {
                let mark: DynElement<'static, SVGBackend<'_>, (i32, i32)> = if s % 2 == 0 {
                    Circle::new((x + 7, y), 5, shade.filled()).into_dyn()
                } else {
                    TriangleMarker::new((x + 7, y), 6, shade.filled()).into_dyn()
                };
                mark
            });
        }
        legend(&mut chart)
    })
}

type Chart<'a, 'b> = ChartContext<
    'a,
    SVGBackend<'b>,
    Cartesian2d<plotters::coord::types::RangedCoordf64, plotters::coord::types::RangedCoordf64>,
>;

fn legend<'a, 'b: 'a>(chart: &mut Chart<'a, 'b>) -> anyhow::Result<()> {
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
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
