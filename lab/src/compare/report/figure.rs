//! A chart in the page: its title, a description, and what must be known to read it.

use maud::{Markup, html};

use super::charts::{self, Area, Drawn, Frame};

/// What stands around a chart.
pub(super) struct Figure {
    pub(super) title: String,
    /// A description of the chart, for screen readers.
    pub(super) alternative: String,
    /// What must be known to read it.
    pub(super) caption: Markup,
    /// In pixels, on a screen and on a telephone.
    pub(super) sizes: [(u32, u32); 2],
}

/// The sizes of a chart that has half of a page's width.
pub(super) fn half(heights: [u32; 2]) -> [(u32, u32); 2] {
    [(560, heights[0]), (340, heights[1])]
}

impl Figure {
    /// Draws it for both sizes of screen: the labels of a scaled-down chart are illegible.
    pub(super) fn draw(&self, draw: impl Fn(&Area<'_>, Frame) -> Drawn) -> Markup {
        let [screen, telephone] = self.sizes;
        html! {
            figure.chart {
                h4 { (self.title) }
                div.drawing role="img" aria-label=(format!("{}. {}", self.title, self.alternative)) {
                    div.wide { (charts::svg(screen, &draw)) }
                    div.narrow { (charts::svg(telephone, &draw)) }
                }
                figcaption { (self.caption) }
            }
        }
    }
}

/// A placeholder for what was not measured.
pub(super) fn not_measured(what: &str) -> Markup {
    html! { p.absent { "Not measured: " (what) "." } }
}

/// Which stores are missing in a figure.
pub(super) fn missing(names: &[String]) -> Markup {
    html! { @if !names.is_empty() { p.absent { "Not measured: " (names.join(", ")) "." } } }
}
