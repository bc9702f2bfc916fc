//! A row for each store, one below the other: its name, its figures on one axis, and these as text.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::axis::{LETTERS, pos};
use super::{
    ALARM, Area, Axis, Drawn, Frame, GRID, INK, PAGE, QUIET, letters, mark, px, series, stroke,
    text_width,
};

/// Pixels of a row, of a group's title and of the axis below all.
const ROW: f64 = 24.0;
const TITLE: f64 = 26.0;
const AXIS: f64 = 46.0;
/// What a row takes when it has a badge, too.
const BADGE: f64 = 15.0;

/// One store.
pub(in super::super) struct Row {
    pub(in super::super) place: usize,
    pub(in super::super) name: String,
    /// The line, from the least to the most.
    pub(in super::super) line: (f64, f64),
    /// The full mark.
    pub(in super::super) mark: f64,
    /// Hollow ones.
    pub(in super::super) further: Vec<f64>,
    pub(in super::super) text: String,
    /// A warning below the name.
    pub(in super::super) badge: Option<String>,
}

/// Rows under a title.
pub(in super::super) struct RowGroup {
    pub(in super::super) title: String,
    /// It is a warning.
    pub(in super::super) is_alarm: bool,
    pub(in super::super) rows: Vec<Row>,
}

impl RowGroup {
    fn height(&self) -> f64 {
        let title = if self.title.is_empty() { 0.0 } else { TITLE };
        title + self.rows.iter().map(Row::height).sum::<f64>()
    }
}

impl Row {
    fn height(&self) -> f64 {
        ROW + if self.badge.is_some() { BADGE } else { 0.0 }
    }
}

/// The height in pixels.
pub(in super::super) fn height(groups: &[RowGroup]) -> u32 {
    // One row alone would hardly be seen.
    (groups.iter().map(RowGroup::height).sum::<f64>() + AXIS).max(100.0) as u32
}

/// Left and right of the part that has the axis.
struct Columns {
    left: i32,
    right: i32,
}

impl Columns {
    fn of(frame: Frame, groups: &[RowGroup]) -> Columns {
        let rows = || groups.iter().flat_map(|group| &group.rows);
        let widest = |text: fn(&Row) -> &str| {
            rows().map(|row| text_width(text(row), LETTERS)).max().unwrap_or(0)
        };
        let (name, text) = (widest(|row| &row.name), widest(|row| &row.text));
        Columns { left: name + px(26.0), right: px(f64::from(frame.width) - 2.0) - text - px(10.0) }
    }

    fn at(&self, axis: &Axis, value: f64) -> Option<i32> {
        let part = axis.part(value)?.clamp(0.0, 1.0);
        Some(self.left + (part * f64::from(self.right - self.left)).round() as i32)
    }
}

pub(in super::super) fn rows(
    area: &Area<'_>,
    frame: Frame,
    axis: &Axis,
    groups: &[RowGroup],
) -> Drawn {
    let columns = Columns::of(frame, groups);
    let bottom = px(f64::from(height(groups)) - AXIS);
    draw_axis(area, frame, axis, &columns, bottom)?;
    let mut top = 0.0;
    for group in groups {
        if !group.title.is_empty() {
            let colour = if group.is_alarm { ALARM } else { QUIET };
            let size = if frame.is_narrow() { LETTERS - 1.5 } else { LETTERS };
            let letters = letters(size, colour).pos(pos(HPos::Left, VPos::Bottom));
            let at = (px(2.0), px(top + TITLE - 3.0));
            // It crosses the grid, which would make it hard to read.
            let width = text_width(&group.title, size);
            let behind = [(at.0, at.1 - px(LETTERS + 2.0)), (at.0 + width, at.1)];
            area.draw(&Rectangle::new(behind, PAGE.filled()))?;
            area.draw(&Text::new(group.title.clone(), at, letters))?;
            top += TITLE;
        }
        for row in &group.rows {
            draw_row(area, frame, axis, &columns, (top, row))?;
            top += row.height();
        }
    }
    Ok(())
}

fn draw_axis(area: &Area<'_>, frame: Frame, axis: &Axis, columns: &Columns, bottom: i32) -> Drawn {
    let quiet = letters(LETTERS, QUIET);
    let axis = axis.clone().thinned(columns.right - columns.left);
    for (tick, label) in &axis.ticks {
        let Some(x) = columns.at(&axis, *tick) else { continue };
        let line = [(x, 0), (x, bottom)];
        area.draw(&PathElement::new(line, stroke(GRID, 1.0)))?;
        let below = quiet.clone().pos(pos(HPos::Center, VPos::Top));
        area.draw(&Text::new(label.clone(), (x, bottom + px(6.0)), below))?;
    }
    let line = [(columns.left, bottom), (columns.right, bottom)];
    area.draw(&PathElement::new(line, stroke(QUIET, 1.0)))?;
    let title = quiet.pos(pos(HPos::Right, VPos::Bottom));
    let at = (px(f64::from(frame.width) - 2.0), bottom + px(AXIS - 3.0));
    area.draw(&Text::new(axis.title.clone(), at, title))
}

fn draw_row(
    area: &Area<'_>,
    frame: Frame,
    axis: &Axis,
    columns: &Columns,
    (top, row): (f64, &Row),
) -> Drawn {
    let y = px(top + ROW / 2.0);
    let text = |words: &str, x: i32, y: i32, colour, side| {
        let letters = letters(LETTERS, colour).pos(pos(side, VPos::Center));
        area.draw(&Text::new(words.to_owned(), (x, y), letters))
    };
    mark(area, row.place, (px(7.0), y), (4.5, true))?;
    text(&row.name, px(17.0), y, INK, HPos::Left)?;
    let right = px(f64::from(frame.width) - 2.0);
    text(&row.text, right, y, INK, HPos::Right)?;
    if let Some(badge) = &row.badge {
        let below = px(top + ROW + BADGE / 2.0 - 3.0);
        text(badge, px(17.0), below, ALARM, HPos::Left)?;
    }
    let (least, most) = row.line;
    if let Some((least, most)) = columns.at(axis, least).zip(columns.at(axis, most)) {
        let line = stroke(series(row.place), 2.0);
        area.draw(&PathElement::new([(least, y), (most, y)], line))?;
    }
    for further in &row.further {
        if let Some(x) = columns.at(axis, *further) {
            mark(area, row.place, (x, y), (4.0, false))?;
        }
    }
    match columns.at(axis, row.mark) {
        Some(x) => mark(area, row.place, (x, y), (5.0, true)),
        None => Ok(()),
    }
}
