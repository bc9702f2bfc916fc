//! One small chart per store above the other, on one axis of time.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::super::numbers::exact;
use super::axis::{LETTERS, pos};
use super::{Area, Drawn, Frame};

/// The height of one.
const HEIGHT: f64 = 58.0;
/// Below them all: the labels and the title of the axis.
const AXIS: f64 = 44.0;

/// What happened to one store.
pub(in super::super) struct Panel {
    pub(in super::super) place: usize,
    pub(in super::super) name: String,
    /// Seconds from the failure, and how many in a tenth of a second from there on.
    pub(in super::super) steps: Vec<(f64, f64)>,
    /// When the failure was repaired, in seconds after it.
    pub(in super::super) healed: f64,
    /// The text next to the name.
    pub(in super::super) note: String,
}

impl Panel {
    fn most(&self) -> f64 {
        self.steps.iter().map(|(_, value)| *value).fold(0.0, f64::max)
    }
}

/// The height in pixels.
pub(in super::super) fn height(panels: usize) -> u32 {
    (HEIGHT * panels as f64 + AXIS) as u32
}

pub(in super::super) fn panels<B: DrawingBackend>(
    area: &Area<B>,
    frame: &Frame,
    panels: &[Panel],
) -> Drawn<B> {
    let steps = || panels.iter().flat_map(|panel| &panel.steps).map(|(at, _)| *at);
    let from = steps().fold(0.0, f64::min);
    let to = steps().map(|at| at + 0.1).fold(1.0, f64::max);
    // The labels of the ends stand around them.
    let (left, right) = (frame.px(8.0), frame.px(f64::from(frame.width) - 10.0));
    let x = |at: f64| left + ((at - from) / (to - from) * f64::from(right - left)) as i32;
    let bottom = frame.px(HEIGHT * panels.len() as f64);
    let colours = frame.colours;
    let text = |size, colour, h, v| frame.letters(size, colour).pos(pos(h, v));
    for (row, panel) in panels.iter().enumerate() {
        let top = frame.px(HEIGHT * row as f64);
        let floor = top + frame.px(HEIGHT - 2.0);
        let ceiling = top + frame.px(20.0);
        let most = panel.most().max(1.0);
        let y = |value: f64| floor - (value / most * f64::from(floor - ceiling)) as i32;
        let failed = [(x(0.0), ceiling - frame.px(3.0)), (x(panel.healed.max(0.0)), floor)];
        area.draw(&Rectangle::new(failed, colours.alarm.mix(0.14).filled()))?;
        let mut outline = Vec::new();
        for (at, value) in &panel.steps {
            outline.extend([(x(*at), y(*value)), (x(at + 0.1), y(*value))]);
        }
        if let (Some(first), Some(last)) = (outline.first(), outline.last()) {
            let series = colours.series(panel.place);
            let mut shape = vec![(first.0, floor)];
            shape.extend(outline.iter().copied());
            shape.push((last.0, floor));
            area.draw(&Polygon::new(shape, series.mix(0.85).filled()))?;
        }
        let line = [(left, floor), (right, floor)];
        area.draw(&PathElement::new(line, frame.stroke(colours.grid, 1.0)))?;
        let name = text(LETTERS, colours.ink, HPos::Left, VPos::Top);
        area.draw(&Text::new(panel.name.clone(), (left, top + frame.px(2.0)), name))?;
        let note = text(LETTERS - 1.0, colours.quiet, HPos::Right, VPos::Top);
        let note_at = (right, top + frame.px(2.0));
        area.draw(&Text::new(
            format!("{} · max {}", panel.note, exact(panel.most())),
            note_at,
            note,
        ))?;
    }
    let line = [(x(0.0), frame.px(16.0)), (x(0.0), bottom)];
    area.draw(&PathElement::new(line, frame.stroke(colours.alarm, 1.2)))?;
    let every = [1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0];
    let most_labels = if frame.is_narrow() { 7.0 } else { 14.0 };
    let every =
        every.into_iter().find(|every| (to - from) / every <= most_labels).unwrap_or(3600.0);
    for step in (from / every).ceil() as i64..=(to / every).floor() as i64 {
        let at = x(step as f64 * every);
        let tick = [(at, bottom), (at, bottom + frame.px(4.0))];
        area.draw(&PathElement::new(tick, frame.stroke(colours.quiet, 1.0)))?;
        let label = text(LETTERS, colours.quiet, HPos::Center, VPos::Top);
        let label_at = (at, bottom + frame.px(7.0));
        area.draw(&Text::new(exact(step as f64 * every), label_at, label))?;
    }
    let title = text(LETTERS, colours.quiet, HPos::Right, VPos::Bottom);
    let title_at = (right, bottom + frame.px(AXIS - 2.0));
    area.draw(&Text::new("seconds after the failure", title_at, title))
}
