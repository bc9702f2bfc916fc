//! The summary: how fast each store is, against how often two held its lock at once.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::super::numbers::exact;
use super::super::stores::{Named, Overlaps};
use super::axis::{LETTERS, Plane, pos};
use super::labels::{self, Wanted};
use super::{Area, Axis, Colours, Drawn, Frame, mark};

/// Of more points not every name finds a place.
pub(in super::super) const MOST_LABELS: usize = 24;
const RADIUS: f64 = 5.5;
/// The length of the arrow at a hollow mark.
const ARROW: f64 = 11.0;

/// A store that has both figures.
struct Spot<'a> {
    named: Named<'a>,
    overlaps: Overlaps,
    pairs_per_s: f64,
}

fn spots<'a>(stores: &[Named<'a>]) -> Vec<Spot<'a>> {
    let spot = |named: &Named<'a>| {
        let pairs_per_s = named.fastest()?.pairs_per_s.median;
        Some(Spot { named: *named, overlaps: named.overlaps()?, pairs_per_s })
            .filter(|spot| spot.overlaps.per_1000() > 0.0 && pairs_per_s > 0.0)
    };
    stores.iter().filter_map(spot).take(MOST_LABELS).collect()
}

pub(in super::super) fn scatter<B: DrawingBackend>(
    area: &Area<B>,
    frame: &Frame,
    stores: &[Named<'_>],
) -> Drawn<B> {
    let spots = spots(stores);
    let x = Axis::decades(
        "overlaps under faults per 1,000 acquisitions",
        spots.iter().map(|spot| spot.overlaps.per_1000()),
        exact,
    );
    let y = Axis::decades(
        "acquired and released pairs per second, own locks",
        spots.iter().map(|spot| spot.pairs_per_s),
        exact,
    );
    let plane = Plane::draw(area, frame, &x, &y)?;
    let places: Vec<(&Spot<'_>, (i32, i32))> = spots
        .iter()
        .filter_map(|spot| Some((spot, plane.at(spot.overlaps.per_1000(), spot.pairs_per_s)?)))
        .collect();
    let name = |spot: &Spot<'_>| spot.named.within(if frame.is_narrow() { 16 } else { 24 });
    let names: Vec<Wanted> = places
        .iter()
        .map(|(spot, at)| Wanted {
            at: *at,
            width: frame.text_width(&name(spot), LETTERS + 1.0),
            height: frame.px(LETTERS + 4.0),
            mark: space_of(frame, spot, *at),
        })
        .collect();
    // To the right there is nothing that a name could cover.
    let (left, top, _, bottom) = plane.bounds();
    let bounds = (left, top, frame.px(f64::from(frame.width) - 2.0), bottom);
    let spaces = labels::place(&names, bounds, frame.px(5.0));
    for ((spot, at), space) in places.iter().zip(&spaces) {
        lead(area, frame, spot, *at, *space)?;
    }
    for ((spot, at), space) in places.iter().zip(&spaces) {
        draw_spot(area, frame, spot, *at)?;
        let letters = frame.letters(LETTERS + 1.0, frame.colours.ink);
        let middle = ((space.0 + space.2) / 2, (space.1 + space.3) / 2 + frame.px(frame.drop));
        let letters = letters.pos(pos(HPos::Center, VPos::Center));
        area.draw(&Text::new(name(spot), middle, letters))?;
    }
    Ok(())
}

fn draw_spot<B: DrawingBackend>(
    area: &Area<B>,
    frame: &Frame,
    spot: &Spot<'_>,
    at: (i32, i32),
) -> Drawn<B> {
    let place = spot.named.place;
    let is_full = matches!(spot.overlaps, Overlaps::Seen(_));
    if !is_full {
        // So much or less.
        let style = frame.stroke(frame.colours.series(place), 1.5);
        let tip = (at.0 - frame.px(RADIUS + ARROW), at.1);
        let arm = frame.px(3.5);
        area.draw(&PathElement::new([at, tip], style))?;
        let head = [(tip.0 + arm, tip.1 - arm), tip, (tip.0 + arm, tip.1 + arm)];
        area.draw(&PathElement::new(head, style))?;
    }
    mark(area, frame, place, at, (RADIUS, is_full))
}

/// What a store's mark and arrow take.
fn space_of(frame: &Frame, spot: &Spot<'_>, (x, y): (i32, i32)) -> labels::Space {
    let around = frame.px(RADIUS + 2.0);
    let arrow = match spot.overlaps {
        Overlaps::Seen(_) => 0,
        Overlaps::AtMost(_) => frame.px(ARROW),
    };
    (x - around - arrow, y - around, x + around, y + around)
}

/// A line to its mark from a name that is not right next to it.
fn lead<B: DrawingBackend>(
    area: &Area<B>,
    frame: &Frame,
    spot: &Spot<'_>,
    (x, y): (i32, i32),
    space: labels::Space,
) -> Drawn<B> {
    let is_beside = (space.1..space.3).contains(&y) || (space.0..space.2).contains(&x);
    if is_beside && labels::apart(space, space_of(frame, spot, (x, y))) <= frame.px(6.0) {
        return Ok(());
    }
    let nearest = (x.clamp(space.0, space.2), y.clamp(space.1, space.3));
    let colour = frame.colours.series(spot.named.place).mix(0.7);
    let style: ShapeStyle = colour.stroke_width(frame.px(1.0) as u32);
    area.draw(&PathElement::new([(x, y), nearest], style))
}

/// The same chart as a picture of its own, with twice the page's resolution.
pub(in super::super) fn summary_png(
    stores: &[Named<'_>],
) -> Result<Vec<u8>, Box<dyn std::error::Error + Send + Sync>> {
    let frame = Frame {
        width: 800,
        height: 560,
        unit: 2.0,
        head: 62.0,
        drop: 3.0,
        colours: Colours::LIGHT,
    };
    let (width, height) = frame.size();
    let at = |y| (frame.px(4.0), frame.px(y));
    let mut pixels = vec![0; (3 * width * height) as usize];
    {
        let area = BitMapBackend::with_buffer(&mut pixels, (width, height)).into_drawing_area();
        area.fill(&frame.colours.page)?;
        let title = frame.letters(18.0, frame.colours.ink);
        area.draw(&Text::new("Locks: speed against two holders at once", at(14.0), title))?;
        let how = "Up is faster, left is safer. Hollow with an arrow: none was seen, and the run's \
                   length allows for no more (95 %).";
        area.draw(&Text::new(how, at(42.0), frame.letters(12.0, frame.colours.quiet)))?;
        scatter(&area, &frame, stores)?;
        area.present()?;
    }
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.write_header()?.write_image_data(&pixels)?;
    Ok(file)
}
