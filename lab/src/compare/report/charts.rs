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
pub(super) use rows::{Row, RowGroup, height as rows_height, png, rows};

use std::fmt::Write as _;
use std::sync::Once;

use maud::{Markup, PreEscaped, html};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::register_font;

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

/// The colours of one drawing.
#[derive(Clone, Copy)]
pub(super) struct Colours {
    pub(super) ink: RGBColor,
    pub(super) quiet: RGBColor,
    pub(super) grid: RGBColor,
    pub(super) page: RGBColor,
    pub(super) alarm: RGBColor,
    series: fn(usize) -> RGBColor,
    line: fn(usize) -> RGBColor,
}

impl Colours {
    /// Placeholders, which `style` maps to the colours of the page.
    const MARKERS: Colours = Colours {
        ink: RGBColor(1, 1, 1),
        quiet: RGBColor(2, 2, 2),
        grid: RGBColor(3, 3, 3),
        page: RGBColor(4, 4, 4),
        alarm: RGBColor(5, 5, 5),
        series: |place| RGBColor(0x10, 0, (place % (2 * COLOURS)) as u8),
        line: |place| RGBColor(0x11, 0, (place % (2 * COLOURS)) as u8),
    };
    const LIGHT: Colours = Colours {
        ink: RGBColor(0x1a, 0x1d, 0x21),
        quiet: RGBColor(0x5b, 0x62, 0x6b),
        grid: RGBColor(0xe3, 0xe6, 0xea),
        page: RGBColor(0xff, 0xff, 0xff),
        alarm: RGBColor(0xb3, 0x26, 0x1e),
        series: in_the_light,
        line: in_the_light,
    };

    /// Of a store's marks and areas.
    pub(super) fn series(&self, place: usize) -> RGBColor {
        (self.series)(place)
    }

    /// Of its lines, which may be dashed.
    pub(super) fn line(&self, place: usize) -> RGBColor {
        (self.line)(place)
    }
}

fn in_the_light(place: usize) -> RGBColor {
    let [_, red, green, blue] = LIGHT[place % COLOURS].to_be_bytes();
    RGBColor(red, green, blue)
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
    let Colours { ink, quiet, grid, page, alarm, .. } = Colours::MARKERS;
    let named = [(ink, "ink"), (quiet, "quiet"), (grid, "grid"), (page, "page"), (alarm, "alarm")];
    let named = named.map(|(marker, name)| (marker, name.to_owned()));
    let series = (0..2 * COLOURS).flat_map(|place| {
        let name = format!("series-{}", place % COLOURS);
        let Colours { series, line, .. } = Colours::MARKERS;
        [(series(place), name.clone()), (line(place), name)]
    });
    for (RGBColor(red, green, blue), name) in named.into_iter().chain(series) {
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
        let RGBColor(red, green, blue) = Colours::MARKERS.line(place);
        let _ = writeln!(
            style,
            "[stroke=\"#{red:02X}{green:02X}{blue:02X}\"]{{stroke-dasharray:{dash}}}"
        );
    }
    style
}

/// The letters by which widths are reckoned and the PNG is written; a page uses the system's.
pub(super) fn register_letters() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let registered =
            register_font("sans-serif", FontStyle::Normal, epaint_default_fonts::UBUNTU_LIGHT);
        assert!(registered.is_ok(), "the crate's font is a font");
    });
}

/// What is drawn on: its size in the page's pixels, and the unit of drawing, since a backend's
/// places are whole numbers.
#[derive(Clone, Copy)]
pub(super) struct Frame {
    pub(super) width: u32,
    pub(super) height: u32,
    unit: f64,
    /// Kept free at the top, for a title of its own.
    pub(super) head: f64,
    /// How much lower letters must be asked for, to stand where they should.
    drop: f64,
    pub(super) colours: Colours,
}

impl Frame {
    /// Of the page's pixels.
    pub(super) fn px(&self, pixels: f64) -> i32 {
        (pixels * self.unit).round() as i32
    }

    fn size(&self) -> (u32, u32) {
        (self.px(self.width.into()) as u32, self.px(self.height.into()) as u32)
    }

    /// On a telephone.
    pub(super) fn is_narrow(&self) -> bool {
        self.width < 480
    }

    /// Letters of that size.
    pub(super) fn letters(&self, size: f64, colour: RGBColor) -> TextStyle<'static> {
        // Plotters' size is that of the line, 1.24 times the letters'.
        let font = ("sans-serif", 1.24 * size * self.unit).into_font();
        TextStyle { color: colour.to_backend_color(), ..TextStyle::from(font) }
    }

    /// How wide a text will be, in the drawing's unit. A page's letters may be wider than ours.
    pub(super) fn text_width(&self, text: &str, size: f64) -> i32 {
        let reckoned = self.letters(size, self.colours.ink).font.box_size(text);
        reckoned.map_or(0, |(width, _)| (1.12 * f64::from(width)).ceil() as i32)
    }

    pub(super) fn stroke(&self, colour: RGBColor, width: f64) -> ShapeStyle {
        colour.stroke_width(self.px(width) as u32)
    }
}

/// What a chart is drawn on.
pub(super) type Area<B> = DrawingArea<B, Shift>;
/// The result of drawing.
pub(super) type Drawn<B> = Result<(), DrawingAreaErrorKind<<B as DrawingBackend>::ErrorType>>;

/// A drawing for the page, of this size in its pixels.
pub(super) fn svg(
    (width, height): (u32, u32),
    draw: impl for<'a> Fn(&Area<SVGBackend<'a>>, &Frame) -> Drawn<SVGBackend<'a>>,
) -> Markup {
    let frame =
        Frame { width, height, unit: 10.0, head: 0.0, drop: 0.0, colours: Colours::MARKERS };
    let mut drawing = String::new();
    let drawn = {
        let area = SVGBackend::with_string(&mut drawing, frame.size()).into_drawing_area();
        draw(&area, &frame).and_then(|()| area.present())
    };
    if let Err(error) = drawn {
        return html! { p.failed { "This chart could not be drawn: " (error) } };
    }
    let (width, height) = frame.size();
    // Its own head has a fixed size; and what says nothing is two fifths of it.
    let content = drawing.split_once('>').map_or("", |(_, content)| content);
    let content = content.replace(" opacity=\"1\"", "").replace(" font-family=\"sans-serif\"", "");
    html! {
        (PreEscaped(format!("<svg viewBox=\"0 0 {width} {height}\" aria-hidden=\"true\">{content}")))
    }
}

/// A store's mark, full or hollow.
pub(super) fn mark<B: DrawingBackend>(
    area: &Area<B>,
    frame: &Frame,
    place: usize,
    (x, y): (i32, i32),
    (radius, is_full): (f64, bool),
) -> Drawn<B> {
    let corners: &[(f64, f64)] = match place % 5 {
        0 => &[],
        1 => &[(-0.88, -0.88), (0.88, -0.88), (0.88, 0.88), (-0.88, 0.88)],
        2 => &[(0.0, -1.2), (1.1, 0.8), (-1.1, 0.8)],
        3 => &[(0.0, -1.3), (1.3, 0.0), (0.0, 1.3), (-1.3, 0.0)],
        _ => &[(0.0, 1.2), (1.1, -0.8), (-1.1, -0.8)],
    };
    let Colours { page, .. } = frame.colours;
    let edge = frame.colours.series(place).filled();
    let offset = |part: f64| (part * f64::from(frame.px(radius))).round() as i32;
    if corners.is_empty() {
        area.draw(&Circle::new((x, y), offset(1.0), edge))?;
        return match is_full {
            true => Ok(()),
            false => area.draw(&Circle::new((x, y), offset(0.64), page.filled())),
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
    match is_full {
        true => Ok(()),
        false => area.draw(&Polygon::new(shape(0.55), page.filled())),
    }
}

/// A store's line and mark, next to its name.
pub(super) fn swatch(place: usize) -> Markup {
    svg((30, 12), |area, frame| {
        let middle = frame.px(6.0);
        let ends = [(frame.px(1.0), middle), (frame.px(29.0), middle)];
        let style = frame.stroke(frame.colours.line(place), 2.0);
        area.draw(&PathElement::new(ends, style))?;
        mark(area, frame, place, (frame.px(15.0), middle), (4.0, true))
    })
}
