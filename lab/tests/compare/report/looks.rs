//! What the page looks like: every chart drawn, readable, in the light, in the dark, on a telephone.

use serde::Deserialize;

use super::browser::{Chromium, Mode, Page};
use super::{Report, sample, strange};

const SCREEN: (u32, u32) = (1360, 900);
const TABLET: (u32, u32) = (768, 1024);
const TELEPHONE: (u32, u32) = (360, 740);
/// A4 with a margin of a centimetre: 190 mm by 277 mm at 96 dots an inch.
const PAPER: (u32, u32) = (718, 1047);
/// The summary, three workloads of two, the hand-off, five failures.
const CHARTS: usize = 1 + 6 + 1 + 5;

#[derive(Deserialize, Debug)]
struct Chart {
    title: String,
    alternative: String,
    caption: String,
    shapes: usize,
    left: f64,
    right: f64,
    height: f64,
    /// Smallest of its letters, in pixels on the screen.
    letters: f64,
    /// Texts that do not fit into the drawing.
    cut: Vec<String>,
    /// Texts that overlap.
    collisions: Vec<String>,
}

/// Of the drawing that is shown of each chart.
const LOOK: &str = r#"[...document.querySelectorAll("figure.chart")].map((figure) => {
  const svg = [...figure.querySelectorAll(".drawing svg")].find((it) => it.getClientRects().length);
  const box = svg.getBoundingClientRect();
  const texts = [...svg.querySelectorAll("text")].map((it) => [it, it.getBoundingClientRect()]);
  const words = ([it]) => it.textContent.trim();
  const apart = (a, b) =>
    a.right <= b.left + 1 || b.right <= a.left + 1 || a.bottom <= b.top + 3 || b.bottom <= a.top + 3;
  return {
    title: figure.querySelector("h4").textContent,
    alternative: figure.querySelector("[role=img]").ariaLabel,
    caption: figure.querySelector("figcaption").textContent,
    shapes: svg.querySelectorAll("polyline, polygon, circle").length,
    left: box.left,
    right: box.right,
    height: box.height,
    letters: Math.min(...texts.map(([it]) =>
      parseFloat(getComputedStyle(it).fontSize) * box.width / svg.viewBox.baseVal.width)),
    cut: texts.filter(([, it]) =>
      it.left < box.left - 2 || it.right > box.right + 2 || it.top < box.top - 2 || it.bottom > box.bottom + 2)
      .map(words),
    collisions: texts.flatMap((one, at) =>
      texts.slice(at + 1).filter((other) => !apart(one[1], other[1]))
        .map((other) => `${words(one)} | ${words(other)}`)),
  };
})"#;

/// Every chart is there, has what it must, and nothing in it is cut or covered.
fn assert_charts_are_drawn(page: &Page, width: u32) -> usize {
    let charts: Vec<Chart> = page.ask(LOOK);
    for chart in &charts {
        assert!(!chart.title.is_empty() && !chart.caption.is_empty(), "{chart:?}");
        assert!(chart.alternative.len() > chart.title.len() + 5, "{chart:?}");
        assert!(chart.shapes >= 2, "{chart:?}");
        assert!(chart.left >= 0.0 && chart.right <= f64::from(width), "{chart:?}");
        assert!(chart.right - chart.left > 250.0 && chart.height > 80.0, "{chart:?}");
        assert!(chart.letters >= 9.5, "{chart:?}");
        assert!(chart.cut.is_empty(), "{chart:?}");
        assert!(chart.collisions.is_empty(), "{chart:?}");
    }
    let failed: usize = page.ask("document.querySelectorAll('.failed').length");
    assert_eq!(failed, 0, "a chart could not be drawn");
    charts.len()
}

fn assert_page_does_not_scroll_sideways(page: &Page) {
    let (content, window): (u32, u32) =
        page.ask("[document.documentElement.scrollWidth, document.documentElement.clientWidth]");
    assert!(content <= window, "{content} px in {window}");
}

#[derive(Deserialize, Debug)]
struct Words {
    words: String,
    contrast: f64,
    needed: f64,
}

/// Every text with its contrast to its background; WCAG 2.1's formula and limits.
const CONTRAST: &str = r#"(() => {
  const rgb = (colour) => colour.match(/[\d.]+/g).map(Number);
  const luminance = (colour) => {
    const [r, g, b] = rgb(colour).map((c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (it) => {
    for (; it; it = it.parentElement) {
      const colour = getComputedStyle(it).backgroundColor;
      if (rgb(colour)[3] !== 0) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const ratio = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  const seen = (it) => it.getClientRects().length &&
    [...it.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  const texts = [...document.body.querySelectorAll("*:not(script)")].filter(seen).map((it) => {
    const style = getComputedStyle(it);
    const colour = it instanceof SVGElement ? style.fill : style.color;
    return { words: it.textContent.trim().slice(0, 40),
      contrast: ratio(luminance(colour), luminance(behind(it))), needed: 4.5 };
  });
  const series = new Map([...document.querySelectorAll("svg [stroke], svg [fill]")].flatMap((it) => {
    const marker = [it.getAttribute("stroke"), it.getAttribute("fill")]
      .find((colour) => /^#1[01]00/.test(colour ?? ""));
    const style = getComputedStyle(it);
    const colour = style.stroke !== "none" ? style.stroke : style.fill;
    return marker && it.getClientRects().length ? [[marker, [it, colour]]] : [];
  }));
  const marks = [...series].map(([marker, [it, colour]]) => ({ words: `series ${marker}`,
    contrast: ratio(luminance(colour), luminance(behind(it))), needed: 3 }));
  return texts.concat(marks);
})()"#;

fn assert_contrast_is_enough(page: &Page) {
    let words: Vec<Words> = page.ask(CONTRAST);
    let series = words.iter().filter(|words| words.words.starts_with("series #10")).count();
    assert!(series >= 10, "{series} stores' colours are in use");
    assert!(words.len() > 400, "{} texts", words.len());
    let weak: Vec<&Words> = words.iter().filter(|words| words.contrast < words.needed).collect();
    assert!(weak.is_empty(), "{weak:?}");
}

/// What is drawn in a colour that the style does not map would be nearly black in both modes.
fn assert_every_marker_is_mapped(page: &Page) {
    let unmapped: Vec<String> = page.ask(
        r##"[...document.querySelectorAll("svg [fill], svg [stroke]")].flatMap((it) => {
          const style = getComputedStyle(it);
          return [[it.getAttribute("fill"), style.fill], [it.getAttribute("stroke"), style.stroke]]
            .filter(([marker, shown]) => marker && marker !== "none" && [
              // Without a rule, and with a rule for a variable that is not there.
              `rgb(${[1, 3, 5].map((at) => parseInt(marker.slice(at, at + 2), 16)).join(", ")})`,
              "rgb(0, 0, 0)", "none"].includes(shown))
            .map(([marker]) => marker);
        })"##,
    );
    assert!(unmapped.is_empty(), "{unmapped:?}");
}

#[test]
fn a_report_is_readable_on_every_screen() {
    let (chromium, report) = (Chromium::start(), Report::of(&sample()));
    let cases = [
        (SCREEN, Mode::Light, "light.png"),
        (SCREEN, Mode::Dark, "dark.png"),
        (TABLET, Mode::Light, "tablet.png"),
        (TABLET, Mode::Dark, "tablet-dark.png"),
        (TELEPHONE, Mode::Light, "telephone.png"),
        (TELEPHONE, Mode::Dark, "telephone-dark.png"),
    ];
    let mut backgrounds = Vec::new();
    for (size, mode, name) in cases {
        let page = chromium.open(&report.page(), size, mode);
        page.keep(name);
        println!("{name}");
        assert_eq!(assert_charts_are_drawn(&page, size.0), CHARTS);
        assert_page_does_not_scroll_sideways(&page);
        assert_every_marker_is_mapped(&page);
        assert_contrast_is_enough(&page);
        backgrounds.push(page.ask::<String>("getComputedStyle(document.body).backgroundColor"));
        assert_eq!(page.complaints(), [""; 0]);
    }
    assert_ne!(backgrounds[0], backgrounds[1], "the dark is dark");
}

/// Paper does not scroll: what is too wide for it is lost.
#[test]
fn a_printed_report_has_all_of_its_columns() {
    let (chromium, report) = (Chromium::start(), Report::of(&sample()));
    let page = chromium.open(&report.page(), PAPER, Mode::Paper);
    page.keep("paper.png");
    assert_page_does_not_scroll_sideways(&page);
    let seen: bool = page.ask("document.querySelector('nav').getClientRects().length > 0");
    assert!(!seen, "a printed page has nothing to click on");
}

#[test]
fn the_decision_is_on_the_first_screen() {
    let (chromium, report) = (Chromium::start(), Report::of(&sample()));
    let page = chromium.open(&report.page(), SCREEN, Mode::Light);
    let (chart, first): (f64, f64) = page.ask(
        "[document.querySelector('#summary svg').getBoundingClientRect().bottom, \
         document.querySelector('.choices li').getBoundingClientRect().bottom]",
    );
    assert!(chart < 900.0 && first < 900.0, "{chart} {first}");
    let stores: usize = page.ask("document.querySelectorAll('.choices li').length");
    assert_eq!(stores, 10);
}

/// Every column can be read where it stands: none is cut off, and none is so narrow that it makes rows
/// of half a screen.
#[test]
fn the_guarantees_can_be_read_at_every_width() {
    let (chromium, report) = (Chromium::start(), Report::of(&sample()));
    for size in [TELEPHONE, (699, 900), TABLET, (1280, 800)] {
        let page = chromium.open(&report.page(), size, Mode::Light);
        let (content, box_width): (u32, u32) = page.ask(
            "(it => [it.scrollWidth, it.clientWidth])(document.querySelector('#guarantees .scroll'))",
        );
        assert!(content <= box_width, "{content} px in {box_width} at {size:?}");
        let cells: Vec<(String, f64, f64)> = page.ask(
            "[...document.querySelectorAll('#guarantees tr:not(.group) > *')] \
               .filter(it => it.closest('tbody')) \
               .map(it => [it.textContent, it.getBoundingClientRect().width, \
                           it.getBoundingClientRect().height])",
        );
        assert_eq!(cells.len(), 80, "ten stores of eight columns");
        for (text, width, height) in &cells {
            assert!(*width >= 40.0 && *height <= 160.0, "{text}: {width} x {height} at {size:?}");
        }
    }
}

#[test]
fn strange_figures_are_a_page_too() {
    let chromium = Chromium::start();
    for (name, figures) in strange() {
        let report = Report::of(&figures);
        for size in [SCREEN, TELEPHONE] {
            println!("{name}, {} px", size.0);
            let page = chromium.open(&report.page(), size, Mode::Light);
            page.keep(&format!("{}-{}.png", name.replace([' ', ','], "-"), size.0));
            assert_charts_are_drawn(&page, size.0);
            assert_page_does_not_scroll_sideways(&page);
            assert_eq!(page.complaints(), [""; 0]);
        }
    }
}

/// The tests above would not notice if the browser returned nothing.
#[test]
fn what_the_policy_forbids_is_a_complaint() {
    let (chromium, report) = (Chromium::start(), Report::of(&sample()));
    let broken = report.text().replace(
        "</main>",
        "<img src=\"https://example.org/x.png\"><p onclick=\"x()\">x</p></main>",
    );
    std::fs::write(report.page(), broken).expect("written");
    let page = chromium.open(&report.page(), SCREEN, Mode::Light);
    let complaints = page.complaints().join("\n");
    assert!(complaints.contains("https://example.org/x.png"), "{complaints}");
    assert!(complaints.contains("Content Security Policy"), "{complaints}");
}
