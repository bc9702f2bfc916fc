//! The progress of a comparison: a bar on a terminal, plain lines elsewhere.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::data::in_ms;

/// Counts planned time, to estimate the remaining time.
pub(super) struct Progress {
    bar: Option<ProgressBar>,
}

impl Progress {
    pub(super) fn new(planned: Duration) -> Progress {
        if !std::io::stderr().is_terminal() {
            return Progress { bar: None };
        }
        let bar = ProgressBar::with_draw_target(Some(in_ms(planned)), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("[{bar:24}] {eta} left  {wide_msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "));
        bar.enable_steady_tick(Duration::from_millis(200));
        Progress { bar: Some(bar) }
    }

    /// Shows the current step.
    pub(super) fn now(&self, what: String) {
        if let Some(bar) = &self.bar {
            bar.set_message(what);
        }
    }

    /// Shows a result, and counts the planned time that has passed.
    pub(super) fn found(&self, what: String, planned: Duration) {
        match &self.bar {
            Some(bar) => {
                bar.inc(in_ms(planned));
                bar.set_message(what);
            }
            None => eprintln!("{what}"),
        }
    }

    /// Prints a message that stays on the screen.
    pub(super) fn concluded(&self, what: &str, planned: Duration) {
        match &self.bar {
            Some(bar) => {
                bar.inc(in_ms(planned));
                bar.println(what);
            }
            None => eprintln!("{what}"),
        }
    }

    pub(super) fn print(&self, what: &str) {
        self.concluded(what, Duration::ZERO);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
