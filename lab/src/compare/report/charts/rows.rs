//! A row for each store, one below the other: its name, its figures on one axis, and these as text.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::axis::{LETTERS, pos};
use super::{Area, Axis, Colours, Drawn, Frame, mark};

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
    fn of(frame: &Frame, groups: &[RowGroup]) -> Columns {
        let rows = || groups.iter().flat_map(|group| &group.rows);
        let widest = |text: fn(&Row) -> &str| {
            rows().map(|row| frame.text_width(text(row), LETTERS)).max().unwrap_or(0)
        };
        let (name, text) = (widest(|row| &row.name), widest(|row| &row.text));
        Columns {
            left: name + frame.px(26.0),
            right: frame.px(f64::from(frame.width) - 2.0) - text - frame.px(10.0),
        }
    }

    fn at(&self, axis: &Axis, value: f64) -> Option<i32> {
        let part = axis.part(value)?.clamp(0.0, 1.0);
        Some(self.left + (part * f64::from(self.right - self.left)).round() as i32)
    }
}

pub(in super::super) fn rows<B: DrawingBackend>(
    area: &Area<B>,
    frame: &Frame,
    axis: &Axis,
    groups: &[RowGroup],
) -> Drawn<B> {
    let columns = Columns::of(frame, groups);
    let bottom = frame.px(frame.head + f64::from(height(groups)) - AXIS);
    draw_axis(area, frame, axis, &columns, bottom)?;
    let mut top = frame.head;
    for group in groups {
        if !group.title.is_empty() {
            let Colours { alarm, quiet, .. } = frame.colours;
            let colour = if group.is_alarm { alarm } else { quiet };
            let size = if frame.is_narrow() { LETTERS - 1.5 } else { LETTERS };
            let letters = frame.letters(size, colour).pos(pos(HPos::Left, VPos::Bottom));
            let at = (frame.px(2.0), frame.px(top + TITLE - 3.0));
            // It crosses the grid, which would make it hard to read.
            let width = frame.text_width(&group.title, size);
            let behind = [(at.0, at.1 - frame.px(LETTERS + 2.0)), (at.0 + width, at.1)];
            area.draw(&Rectangle::new(behind, frame.colours.page.filled()))?;
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

fn draw_axis<B: DrawingBackend>(
    area: &Area<B>,
    frame: &Frame,
    axis: &Axis,
    columns: &Columns,
    bottom: i32,
) -> Drawn<B> {
    let quiet = frame.letters(LETTERS, frame.colours.quiet);
    let axis = axis.clone().thinned(frame, columns.right - columns.left);
    for (tick, label) in &axis.ticks {
        let Some(x) = columns.at(&axis, *tick) else { continue };
        let line = [(x, frame.px(frame.head)), (x, bottom)];
        area.draw(&PathElement::new(line, frame.stroke(frame.colours.grid, 1.0)))?;
        let below = quiet.clone().pos(pos(HPos::Center, VPos::Top));
        area.draw(&Text::new(label.clone(), (x, bottom + frame.px(6.0)), below))?;
    }
    let line = [(columns.left, bottom), (columns.right, bottom)];
    area.draw(&PathElement::new(line, frame.stroke(frame.colours.quiet, 1.0)))?;
    let title = quiet.pos(pos(HPos::Right, VPos::Bottom));
    let at = (frame.px(f64::from(frame.width) - 2.0), bottom + frame.px(AXIS - 3.0));
    area.draw(&Text::new(axis.title.clone(), at, title))
}

fn draw_row<B: DrawingBackend>(
    area: &Area<B>,
    frame: &Frame,
    axis: &Axis,
    columns: &Columns,
    (top, row): (f64, &Row),
) -> Drawn<B> {
    let y = frame.px(top + ROW / 2.0);
    let colours = frame.colours;
    let text = |words: &str, x: i32, y: i32, colour, side| {
        let letters = frame.letters(LETTERS, colour).pos(pos(side, VPos::Center));
        area.draw(&Text::new(words.to_owned(), (x, y + frame.px(frame.drop)), letters))
    };
    mark(area, frame, row.place, (frame.px(7.0), y), (4.5, true))?;
    text(&row.name, frame.px(17.0), y, colours.ink, HPos::Left)?;
    let right = frame.px(f64::from(frame.width) - 2.0);
    text(&row.text, right, y, colours.ink, HPos::Right)?;
    if let Some(badge) = &row.badge {
        let below = frame.px(top + ROW + BADGE / 2.0 - 3.0);
        text(badge, frame.px(17.0), below, colours.alarm, HPos::Left)?;
    }
    let (least, most) = row.line;
    if let Some((least, most)) = columns.at(axis, least).zip(columns.at(axis, most)) {
        let line = frame.stroke(colours.series(row.place), 2.0);
        area.draw(&PathElement::new([(least, y), (most, y)], line))?;
    }
    for further in &row.further {
        if let Some(x) = columns.at(axis, *further) {
            mark(area, frame, row.place, (x, y), (4.0, false))?;
        }
    }
    match columns.at(axis, row.mark) {
        Some(x) => mark(area, frame, row.place, (x, y), (5.0, true)),
        None => Ok(()),
    }
}

/// The same as a picture of its own, with twice the page's resolution, a title and what must be
/// known to read it.
pub(in super::super) fn png(
    title: &str,
    how: [String; 2],
    axis: &Axis,
    groups: &[RowGroup],
) -> Result<Vec<u8>, Box<dyn std::error::Error + Send + Sync>> {
    const HEAD: f64 = 84.0;
    let frame = Frame {
        width: 800,
        height: height(groups) + HEAD as u32,
        unit: 2.0,
        head: HEAD,
        drop: 3.0,
        colours: Colours::LIGHT,
    };
    let (width, height) = frame.size();
    let at = |y| (frame.px(4.0), frame.px(y));
    let mut pixels = vec![0; (3 * width * height) as usize];
    {
        let area = BitMapBackend::with_buffer(&mut pixels, (width, height)).into_drawing_area();
        area.fill(&frame.colours.page)?;
        let letters = frame.letters(18.0, frame.colours.ink);
        area.draw(&Text::new(title.to_owned(), at(14.0), letters))?;
        let letters = frame.letters(12.0, frame.colours.quiet);
        for (line, y) in how.into_iter().zip([40.0, 56.0]) {
            area.draw(&Text::new(line, at(y), letters.clone()))?;
        }
        rows(&area, &frame, axis, groups)?;
        area.present()?;
    }
    let mut file = Vec::new();
    let mut encoder = ::png::Encoder::new(&mut file, width, height);
    encoder.set_color(::png::ColorType::Rgb);
    encoder.set_depth(::png::BitDepth::Eight);
    encoder.write_header()?.write_image_data(&pixels)?;
    Ok(file)
}
