//! How charts look: colours, marks, letters, and the way from a drawing to SVG.
//!
//! A page is read in the light and in the dark, so its SVG is drawn in colours that stand for
//! others: the page's style maps each to what it should be.

mod axis;
mod ends;
mod lines;
mod panels;
mod rows;

pub(super) use axis::Axis;
pub(super) use lines::{Curve, Point, height as lines_height, lines};
pub(super) use panels::{Panel, height as panel_height, panels};
pub(super) use rows::{Row, RowGroup, height as rows_height, rows};

use std::fmt::Write as _;

use maud::{Markup, PreEscaped, html};
use plotters::coord::Shift;
use plotters::prelude::*;

/// Stores that have a colour of their own; the next ones share them, with another mark and dash.
pub(super) const COLOURS: usize = 10;
/// For light and for dark pages: contrast of at least 3:1 to the page, and distinguishable with any
/// kind of colour-blindness as far as ten can be; marks and dashes do the rest.
const LIGHT: [u32; COLOURS] = [
    0x0072b2, 0xd55e00, 0x00875f, 0xc0528f, 0x4d4d4d, 0x9a7400, 0x6a3d9a, 0x1e8fc6, 0x8c1515,
    0x00565b,
];
const DARK: [u32; COLOURS] = [
    0x4da3ff, 0xff8a3d, 0x2fd3a0, 0xf29bcb, 0xc9ced6, 0xe8c547, 0xb79cff, 0x7fd8ff, 0xff6b6b,
    0x6fb3b3,
];

/// Placeholders, which `style` maps to the colours of the page.
pub(super) const INK: RGBColor = RGBColor(1, 1, 1);
pub(super) const QUIET: RGBColor = RGBColor(2, 2, 2);
pub(super) const GRID: RGBColor = RGBColor(3, 3, 3);
pub(super) const PAGE: RGBColor = RGBColor(4, 4, 4);
pub(super) const ALARM: RGBColor = RGBColor(5, 5, 5);

/// The placeholder of a store's marks and areas.
pub(super) fn series(place: usize) -> RGBColor {
    RGBColor(0x10, 0, (place % (2 * COLOURS)) as u8)
}

/// The placeholder of a store's lines, which may be dashed.
pub(super) fn line(place: usize) -> RGBColor {
    RGBColor(0x11, 0, (place % (2 * COLOURS)) as u8)
}

/// The rules that map the markers to colours, for both modes.
pub(super) fn style() -> String {
    let mut style = String::new();
    for (mode, colours) in [("light", LIGHT), ("dark", DARK)] {
        let variables: String = (0..).zip(colours).fold(String::new(), |mut all, (at, colour)| {
            // Writing to a text cannot fail.
            let _ = write!(all, "--series-{at}:#{colour:06x};");
            all
        });
        let _ = writeln!(style, "@media(prefers-color-scheme:{mode}){{:root{{{variables}}}}}");
    }
    let named = [(INK, "ink"), (QUIET, "quiet"), (GRID, "grid"), (PAGE, "page"), (ALARM, "alarm")];
    let named = named.map(|(marker, name)| (marker, name.to_owned()));
    let stores = (0..2 * COLOURS).flat_map(|place| {
        let name = format!("series-{}", place % COLOURS);
        [(series(place), name.clone()), (line(place), name)]
    });
    for (RGBColor(red, green, blue), name) in named.into_iter().chain(stores) {
        let marker = format!("#{red:02X}{green:02X}{blue:02X}");
        for attribute in ["fill", "stroke"] {
            let _ = writeln!(style, "[{attribute}=\"{marker}\"]{{{attribute}:var(--{name})}}");
        }
    }
    // Neighbours differ in their dash too, and the second ten from the first.
    for place in 0..2 * COLOURS {
        let dash = match (place % 3, place / COLOURS) {
            (0, 0) => continue,
            (1, 0) => "70 35",
            (2, 0) => "20 30",
            _ => "110 30 20 30",
        };
        let RGBColor(red, green, blue) = line(place);
        let _ = writeln!(
            style,
            "[stroke=\"#{red:02X}{green:02X}{blue:02X}\"]{{stroke-dasharray:{dash}}}"
        );
    }
    style
}

/// The size of a drawing, in the page's pixels.
#[derive(Clone, Copy)]
pub(super) struct Frame {
    pub(super) width: u32,
    pub(super) height: u32,
}

impl Frame {
    /// On a telephone.
    pub(super) fn is_narrow(self) -> bool {
        self.width < 480
    }
}

/// Units of a drawing in a pixel of the page: plotters' coordinates are whole numbers.
const UNIT: f64 = 10.0;

/// Pixels of the page, in the drawing's unit.
pub(super) fn px(pixels: f64) -> i32 {
    (pixels * UNIT).round() as i32
}

/// Letters of that size.
pub(super) fn letters(size: f64, colour: RGBColor) -> TextStyle<'static> {
    // Plotters' size is that of the line, 1.24 times the letters'.
    let font = ("sans-serif", 1.24 * size * UNIT).into_font();
    TextStyle { color: colour.to_backend_color(), ..TextStyle::from(font) }
}

/// The width of a text in the drawing's unit, at most. The reader's browser chooses the letters; these
/// widths are those of DejaVu Sans, one of the widest, rounded up.
pub(super) fn text_width(text: &str, size: f64) -> i32 {
    let ems = text.chars().map(|letter| match letter {
        ' ' | '.' | ',' | ':' | ';' | '\'' | '|' | '!' | '·' | 'i' | 'j' | 'l' | 'I' => 0.34,
        '-' | '/' | '(' | ')' | 'f' | 'r' | 't' => 0.42,
        'm' | 'w' | 'M' | 'W' | '%' | '@' | '…' => 1.0,
        'A'..='Z' => 0.79,
        _ => 0.64,
    });
    px(size * ems.sum::<f64>())
}

pub(super) fn stroke(colour: RGBColor, width: f64) -> ShapeStyle {
    colour.stroke_width(px(width) as u32)
}

/// What a chart is drawn on.
pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// The result of drawing.
pub(super) type Drawn<T = ()> = Result<T, DrawingAreaErrorKind<std::io::Error>>;

/// A drawing for the page, of this size in its pixels.
pub(super) fn svg((width, height): (u32, u32), draw: impl Fn(&Area<'_>, Frame) -> Drawn) -> Markup {
    let size = (px(width.into()) as u32, px(height.into()) as u32);
    let mut drawing = String::new();
    let drawn = {
        let area = SVGBackend::with_string(&mut drawing, size).into_drawing_area();
        draw(&area, Frame { width, height }).and_then(|()| area.present())
    };
    if let Err(error) = drawn {
        return html! { p.failed { "This chart could not be drawn: " (error) } };
    }
    let (width, height) = size;
    // Its own head has a fixed size; and what says nothing is two fifths of it.
    let content = drawing.split_once('>').map_or("", |(_, content)| content);
    let content = content.replace(" opacity=\"1\"", "").replace(" font-family=\"sans-serif\"", "");
    html! {
        (PreEscaped(format!("<svg viewBox=\"0 0 {width} {height}\" aria-hidden=\"true\">{content}")))
    }
}

/// A store's mark, full or hollow.
pub(super) fn mark(
    area: &Area<'_>,
    place: usize,
    (x, y): (i32, i32),
    (radius, is_full): (f64, bool),
) -> Drawn {
    let corners: &[(f64, f64)] = match place % 5 {
        0 => &[],
        1 => &[(-0.88, -0.88), (0.88, -0.88), (0.88, 0.88), (-0.88, 0.88)],
        2 => &[(0.0, -1.2), (1.1, 0.8), (-1.1, 0.8)],
        3 => &[(0.0, -1.3), (1.3, 0.0), (0.0, 1.3), (-1.3, 0.0)],
        _ => &[(0.0, 1.2), (1.1, -0.8), (-1.1, -0.8)],
    };
    let edge = series(place).filled();
    let offset = |part: f64| (part * f64::from(px(radius))).round() as i32;
    if corners.is_empty() {
        area.draw(&Circle::new((x, y), offset(1.0), edge))?;
        return match is_full {
            true => Ok(()),
            false => area.draw(&Circle::new((x, y), offset(0.64), PAGE.filled())),
        };
    }
    // Smaller ones lie around the same middle.
    let middle = corners.iter().map(|(_, dy)| dy).sum::<f64>() / corners.len() as f64;
    let shape = |size: f64| {
        let corner = |(dx, dy): &(f64, f64)| {
            (x + offset(size * dx), y + offset(middle + size * (dy - middle)))
        };
        corners.iter().map(corner).collect::<Vec<_>>()
    };
    area.draw(&Polygon::new(shape(1.0), edge))?;
    if is_full { Ok(()) } else { area.draw(&Polygon::new(shape(0.55), PAGE.filled())) }
}

/// A store's line and mark, next to its name.
pub(super) fn swatch(place: usize) -> Markup {
    svg((30, 12), |area, _| {
        let middle = px(6.0);
        let ends = [(px(1.0), middle), (px(29.0), middle)];
        area.draw(&PathElement::new(ends, stroke(line(place), 2.0)))?;
        mark(area, place, (px(15.0), middle), (4.0, true))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// WCAG 2.1's contrast of two colours.
    fn contrast(one: u32, other: u32) -> f64 {
        let luminance = |colour: u32| {
            let part = |shift: u32| match f64::from(colour >> shift & 0xff) / 255.0 {
                dark if dark <= 0.03928 => dark / 12.92,
                light => ((light + 0.055) / 1.055).powf(2.4),
            };
            0.2126 * part(16) + 0.7152 * part(8) + 0.0722 * part(0)
        };
        let (one, other) = (luminance(one) + 0.05, luminance(other) + 0.05);
        one.max(other) / one.min(other)
    }

    #[test]
    fn texts_and_stores_stand_out_from_the_page_in_both_modes() {
        let style = include_str!("page/style.css");
        for (mode, series) in style.split(":root {").skip(1).zip([LIGHT, DARK]) {
            let colour = |name: &str| {
                let (_, value) = mode.split_once(&format!("--{name}: #")).expect(name);
                u32::from_str_radix(&value[..6], 16).expect(name)
            };
            for text in ["ink", "quiet", "link", "alarm"].map(colour) {
                for ground in ["page", "raised"].map(colour) {
                    assert!(contrast(text, ground) >= 4.5, "{text:06x} on {ground:06x}");
                }
            }
            assert!(contrast(colour("ink"), colour("notice")) >= 4.5);
            for store in series {
                assert!(contrast(store, colour("page")) >= 3.0, "{store:06x}");
            }
        }
    }

    #[test]
    fn a_text_is_at_least_as_wide_as_in_wide_letters() {
        // In DejaVu Sans of 12 pixels.
        for (text, pixels) in
            [("redis-sentinel", 81.4), ("pairs per second", 99.8), ("100,000", 49.6)]
        {
            let part = f64::from(text_width(text, 12.0)) / UNIT / pixels;
            assert!((1.0..1.2).contains(&part), "{text}: {part}");
        }
    }
}
