//! Axes: where values lie, and which of them are written.

use std::ops::Range;

use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::super::numbers::exact;
use super::{Area, Drawn, Frame, GRID, QUIET, letters, px, stroke, text_width};

/// One of a chart's two axes, which is logarithmic.
#[derive(Clone)]
pub(in super::super) struct Axis {
    pub(super) title: String,
    /// Decades.
    from: f64,
    to: f64,
    /// Values, and what is written there.
    pub(super) ticks: Vec<(f64, String)>,
}

impl Axis {
    /// Whole decades around the values; those that are not above 0 have no place.
    pub(in super::super) fn decades(
        title: impl Into<String>,
        values: impl IntoIterator<Item = f64>,
        label: fn(f64) -> String,
    ) -> Axis {
        let places = values.into_iter().filter(|value| *value > 0.0).map(f64::log10);
        let (low, high) = places
            .fold((f64::MAX, f64::MIN), |(low, high), place| (place.min(low), place.max(high)));
        let (low, high) = if low > high { (0.0, 1.0) } else { (low, high) };
        // A value at the edge of its decade is hard to distinguish from the axis itself.
        let from = (low - 0.02).floor();
        let to = (high + 0.02).ceil().max(from + 1.0);
        let every = ((to - from) / 7.0).ceil() as usize;
        let digits: &[f64] = match to - from {
            1.0 => &[1.0, 2.0, 5.0],
            2.0 => &[1.0, 3.0],
            _ => &[1.0],
        };
        let decades = (from as i32..=to as i32).step_by(every);
        let ticks = decades.flat_map(|decade| digits.iter().map(move |d| d * 10_f64.powi(decade)));
        let ticks = ticks.filter(|tick| tick.log10() <= to + 1e-9);
        Axis {
            title: title.into(),
            from,
            to,
            ticks: ticks.map(|tick| (tick, label(tick))).collect(),
        }
    }

    /// The values themselves, each written, with equal ratios at equal distances.
    pub(in super::super) fn steps(
        title: impl Into<String>,
        values: impl IntoIterator<Item = u32>,
    ) -> Axis {
        let mut values: Vec<u32> = values.into_iter().filter(|value| *value > 0).collect();
        values.sort_unstable();
        values.dedup();
        let ends = values.first().zip(values.last());
        let (low, high) =
            ends.map_or((1.0, 10.0), |(low, high)| (f64::from(*low), f64::from(*high)));
        // A margin on both sides; more where there is one value only.
        let margin = ((high / low).log10() * 0.03).max(0.05);
        let ticks = values.into_iter().map(f64::from).map(|value| (value, exact(value)));
        Axis {
            title: title.into(),
            from: low.log10() - margin,
            to: high.log10() + margin,
            ticks: ticks.collect(),
        }
    }

    /// Without the ticks whose labels would touch, on an axis so wide; marks say that there are
    /// figures.
    pub(super) fn thinned(mut self, width: i32) -> Axis {
        let (from, to) = (self.from, self.to);
        let mut free = i32::MIN;
        self.ticks.retain(|(tick, label)| {
            let at = ((tick.log10() - from) / (to - from) * f64::from(width)) as i32;
            let half = text_width(label, LETTERS) / 2;
            let has_room = at - half >= free;
            if has_room {
                free = at + half + px(4.0);
            }
            has_room
        });
        self
    }

    /// How far along the axis a value lies, from 0 to 1, if it has a place.
    pub(super) fn part(&self, value: f64) -> Option<f64> {
        Some((self.place(value)? - self.from) / (self.to - self.from))
    }

    /// Where a value lies, if it has a place.
    fn place(&self, value: f64) -> Option<f64> {
        (value > 0.0).then(|| value.log10())
    }

    fn label(&self, value: f64) -> String {
        let tick = self.ticks.iter().find(|(tick, _)| *tick == value);
        tick.map_or_else(String::new, |(_, label)| label.clone())
    }

    fn longest(&self) -> i32 {
        let widths = self.ticks.iter().map(|(_, label)| text_width(label, LETTERS));
        widths.max().unwrap_or(0)
    }
}

impl Ranged for Axis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (first, last): (i32, i32)) -> i32 {
        let place = self.place(*value).unwrap_or(self.from);
        let part = (place - self.from) / (self.to - self.from);
        first + (part * f64::from(last - first)).round() as i32
    }

    /// All ticks are bold: there is nothing for a thinner grid.
    fn key_points<H: KeyPointHint>(&self, _hint: H) -> Vec<f64> {
        self.ticks.iter().map(|(value, _)| *value).collect()
    }

    fn range(&self) -> Range<f64> {
        10_f64.powf(self.from)..10_f64.powf(self.to)
    }
}

/// The size of an axis' letters.
pub(super) const LETTERS: f64 = 12.0;

/// A chart's plane: where values are on the drawing.
pub(super) struct Plane<'a> {
    chart: ChartContext<'a, SVGBackend<'a>, Cartesian2d<Axis, Axis>>,
    x: Axis,
    y: Axis,
}

impl<'a> Plane<'a> {
    /// Draws the axes, their titles and a grid, with `beside` kept free to the right.
    pub(super) fn draw(
        area: &Area<'a>,
        frame: Frame,
        x: &Axis,
        y: &Axis,
        beside: i32,
    ) -> Drawn<Plane<'a>> {
        let quiet = letters(LETTERS, QUIET);
        // The last label stands around the end of its axis.
        let last = x.ticks.last().map_or(0, |(_, label)| text_width(label, LETTERS));
        let right = beside.max(last / 2 + px(2.0));
        let beside_y = y.longest() + px(12.0);
        let (width, height) = (px(frame.width.into()), px(frame.height.into()));
        let x = &x.clone().thinned(width - right - beside_y);
        let mut chart = ChartBuilder::on(area)
            .margin_top(px(26.0))
            .margin_right(right)
            .margin_bottom(px(22.0))
            .x_label_area_size(px(24.0))
            .y_label_area_size(beside_y)
            .build_cartesian_2d(x.clone(), y.clone())?;
        chart
            .configure_mesh()
            .axis_style(stroke(QUIET, 1.0))
            .bold_line_style(stroke(GRID, 1.0))
            .light_line_style(TRANSPARENT)
            .set_all_tick_mark_size(px(4.0))
            .x_label_formatter(&|value| x.label(*value))
            .y_label_formatter(&|value| y.label(*value))
            .label_style(quiet.clone())
            .draw()?;
        // Next to the axis a title would be rotated, which is hard to read.
        let top = quiet.clone().pos(pos(HPos::Left, VPos::Top));
        area.draw(&Text::new(y.title.clone(), (px(2.0), px(4.0)), top))?;
        let bottom = quiet.pos(pos(HPos::Right, VPos::Bottom));
        area.draw(&Text::new(x.title.clone(), (width - right, height - px(2.0)), bottom))?;
        Ok(Plane { chart, x: x.clone(), y: y.clone() })
    }

    /// Where a value is.
    pub(super) fn at(&self, x: f64, y: f64) -> Option<(i32, i32)> {
        self.x.place(x)?;
        self.y.place(y)?;
        Some(self.chart.backend_coord(&(x, y)))
    }

    /// Left, top, right and bottom of the plane.
    pub(super) fn bounds(&self) -> (i32, i32, i32, i32) {
        let (x, y) = self.chart.plotting_area().get_pixel_range();
        (x.start, y.start, x.end, y.end)
    }
}

pub(super) fn pos(horizontal: HPos, vertical: VPos) -> Pos {
    Pos::new(horizontal, vertical)
}
