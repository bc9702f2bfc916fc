//! Lines of figures, each with the spread of its measurements.

use plotters::prelude::*;

use super::axis::Plane;
use super::{Area, Axis, Drawn, Frame, mark};

/// One figure.
#[derive(Clone, Copy)]
pub(in super::super) struct Point {
    pub(in super::super) x: f64,
    pub(in super::super) y: f64,
    /// The least and the most that were measured.
    pub(in super::super) spread: Option<(f64, f64)>,
}

/// One store's figures.
pub(in super::super) struct Curve {
    /// The store's.
    pub(in super::super) place: usize,
    pub(in super::super) points: Vec<Point>,
    /// A curve of many points has no marks.
    pub(in super::super) has_marks: bool,
}

pub(in super::super) fn lines<B: DrawingBackend>(
    area: &Area<B>,
    frame: &Frame,
    (x, y): (&Axis, &Axis),
    curves: &[Curve],
) -> Drawn<B> {
    let plane = Plane::draw(area, frame, x, y)?;
    for curve in curves {
        let colour = frame.colours.series(curve.place);
        let at = |point: &Point| plane.at(point.x, point.y);
        let places: Vec<(i32, i32)> = curve.points.iter().filter_map(at).collect();
        let half = frame.px(0.7);
        for point in &curve.points {
            let ends = point.spread.and_then(|(least, most)| {
                Some((plane.at(point.x, least)?, plane.at(point.x, most)?))
            });
            if let Some(((x, bottom), (_, top))) = ends {
                let whisker = [(x - half, top), (x + half, bottom)];
                area.draw(&Rectangle::new(whisker, colour.mix(0.55).filled()))?;
            }
        }
        area.draw(&PathElement::new(
            places.clone(),
            frame.stroke(frame.colours.line(curve.place), 2.0),
        ))?;
        if curve.has_marks {
            places
                .into_iter()
                .try_for_each(|place| mark(area, frame, curve.place, place, (4.0, true)))?;
        }
    }
    Ok(())
}
