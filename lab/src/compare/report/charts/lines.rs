//! Lines of figures, each with the spread of its measurements and its store's name at its end.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::axis::{LETTERS, Plane, pos};
use super::{
    Area, Axis, Drawn, Frame, INK, ends, letters, line, mark, px, series, stroke, text_width,
};

/// One figure.
#[derive(Clone, Copy)]
pub(in super::super) struct Point {
    pub(in super::super) x: f64,
    pub(in super::super) y: f64,
    /// The least and the most that were measured.
    pub(in super::super) spread: (f64, f64),
}

/// One store's figures.
pub(in super::super) struct Curve {
    /// The store's.
    pub(in super::super) place: usize,
    pub(in super::super) name: String,
    /// From left to right.
    pub(in super::super) points: Vec<Point>,
}

/// What a name takes, downwards.
const NAME: f64 = LETTERS + 2.0;
/// From the end of a line to its name.
const GAP: f64 = 16.0;

/// The height in pixels in which all names have room, and no less than `usual`.
pub(in super::super) fn height(curves: usize, usual: u32) -> u32 {
    usual.max((NAME * curves as f64 + 90.0) as u32)
}

pub(in super::super) fn lines(
    area: &Area<'_>,
    frame: Frame,
    (x, y): (&Axis, &Axis),
    curves: &[Curve],
) -> Drawn {
    let widths = curves.iter().map(|curve| text_width(&curve.name, LETTERS));
    let names = widths.max().unwrap_or(0) + px(GAP + 2.0);
    let plane = Plane::draw(area, frame, x, y, names)?;
    for curve in curves {
        draw(area, &plane, curve)?;
    }
    let last = |curve: &Curve| curve.points.last().and_then(|point| plane.at(point.x, point.y));
    let ends: Vec<(&Curve, (i32, i32))> =
        curves.iter().filter_map(|curve| Some((curve, last(curve)?))).collect();
    let (_, top, right, bottom) = plane.bounds();
    let heights: Vec<i32> = ends.iter().map(|(_, (_, y))| *y).collect();
    let room = (top, bottom - px(NAME / 2.0));
    let places = ends::place(&heights, px(NAME), room);
    for ((curve, end), y) in ends.into_iter().zip(places) {
        let colour = series(curve.place);
        let lead = [(end.0 + px(5.0), end.1), (right + px(4.0), y), (right + px(GAP - 4.0), y)];
        area.draw(&PathElement::new(lead, stroke(colour, 1.0)))?;
        let letters = letters(LETTERS, INK).pos(pos(HPos::Left, VPos::Center));
        let at = (right + px(GAP), y);
        area.draw(&Text::new(curve.name.clone(), at, letters))?;
    }
    Ok(())
}

fn draw(area: &Area<'_>, plane: &Plane<'_>, curve: &Curve) -> Drawn {
    let colour = series(curve.place);
    let half = px(0.7);
    for point in &curve.points {
        let (least, most) = point.spread;
        if let Some(((x, bottom), (_, top))) = plane.at(point.x, least).zip(plane.at(point.x, most))
        {
            let whisker = [(x - half, top), (x + half, bottom)];
            area.draw(&Rectangle::new(whisker, colour.mix(0.55).filled()))?;
        }
    }
    let at = |point: &Point| plane.at(point.x, point.y);
    let places: Vec<(i32, i32)> = curve.points.iter().filter_map(at).collect();
    let line = stroke(line(curve.place), 2.0);
    area.draw(&PathElement::new(places.clone(), line))?;
    places.into_iter().try_for_each(|at| mark(area, curve.place, at, (4.0, true)))
}
