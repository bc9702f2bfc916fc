//! One small chart per store above the other, on one axis of time.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::super::numbers::exact;
use super::axis::{LETTERS, pos};
use super::{ALARM, Area, Drawn, Frame, GRID, INK, QUIET, letters, px, series, stroke};

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

pub(in super::super) fn panels(area: &Area<'_>, frame: Frame, panels: &[Panel]) -> Drawn {
    let steps = || panels.iter().flat_map(|panel| &panel.steps).map(|(at, _)| *at);
    let from = steps().fold(0.0, f64::min);
    let to = steps().map(|at| at + 0.1).fold(1.0, f64::max);
    // The labels of the ends stand around them.
    let (left, right) = (px(8.0), px(f64::from(frame.width) - 10.0));
    let x = |at: f64| left + ((at - from) / (to - from) * f64::from(right - left)) as i32;
    let bottom = px(HEIGHT * panels.len() as f64);
    let text = |size, colour, h, v| letters(size, colour).pos(pos(h, v));
    for (row, panel) in panels.iter().enumerate() {
        let top = px(HEIGHT * row as f64);
        let floor = top + px(HEIGHT - 2.0);
        let ceiling = top + px(20.0);
        let most = panel.most().max(1.0);
        let y = |value: f64| floor - (value / most * f64::from(floor - ceiling)) as i32;
        let failed = [(x(0.0), ceiling - px(3.0)), (x(panel.healed.max(0.0)), floor)];
        area.draw(&Rectangle::new(failed, ALARM.mix(0.14).filled()))?;
        let mut outline = Vec::new();
        for (at, value) in &panel.steps {
            outline.extend([(x(*at), y(*value)), (x(at + 0.1), y(*value))]);
        }
        if let (Some(first), Some(last)) = (outline.first(), outline.last()) {
            let series = series(panel.place);
            let mut shape = vec![(first.0, floor)];
            shape.extend(outline.iter().copied());
            shape.push((last.0, floor));
            area.draw(&Polygon::new(shape, series.mix(0.85).filled()))?;
        }
        let line = [(left, floor), (right, floor)];
        area.draw(&PathElement::new(line, stroke(GRID, 1.0)))?;
        let name = text(LETTERS, INK, HPos::Left, VPos::Top);
        area.draw(&Text::new(panel.name.clone(), (left, top + px(2.0)), name))?;
        let note = text(LETTERS - 1.0, QUIET, HPos::Right, VPos::Top);
        let note_at = (right, top + px(2.0));
        area.draw(&Text::new(
            format!("{} · max {}", panel.note, exact(panel.most())),
            note_at,
            note,
        ))?;
    }
    let line = [(x(0.0), px(16.0)), (x(0.0), bottom)];
    area.draw(&PathElement::new(line, stroke(ALARM, 1.2)))?;
    let every = [1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0];
    let most_labels = if frame.is_narrow() { 7.0 } else { 14.0 };
    let every =
        every.into_iter().find(|every| (to - from) / every <= most_labels).unwrap_or(3600.0);
    for step in (from / every).ceil() as i64..=(to / every).floor() as i64 {
        let at = x(step as f64 * every);
        let tick = [(at, bottom), (at, bottom + px(4.0))];
        area.draw(&PathElement::new(tick, stroke(QUIET, 1.0)))?;
        let label = text(LETTERS, QUIET, HPos::Center, VPos::Top);
        let label_at = (at, bottom + px(7.0));
        area.draw(&Text::new(exact(step as f64 * every), label_at, label))?;
    }
    let title = text(LETTERS, QUIET, HPos::Right, VPos::Bottom);
    let title_at = (right, bottom + px(AXIS - 2.0));
    area.draw(&Text::new("seconds after the failure", title_at, title))
}
