//! Reports the holder while the lock is busy: on a terminal one line that is kept up to date,
//! elsewhere with --verbose a line for each change.

use std::convert::Infallible;
use std::io::{self, IsTerminal};
use std::time::Duration;

use fencelock::{Label, Locks, Participant, Snapshot};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::time::{sleep, timeout};

use super::plan::Plan;
use super::reports::Reports;
use super::terminal::Terminal;

/// How often the holder is read: at most once a second, and the holder alone, so that each of a thousand commands that
/// wait costs the store the same.
const EVERY: Duration = Duration::from_secs(1);
/// Shorter waits are not reported.
const FIRST: Duration = Duration::from_millis(100);
/// A report must not delay anything: while it waits, and at the end.
pub(super) const INSPECT_WITHIN: [Duration; 2] =
    [Duration::from_secs(1), Duration::from_millis(250)];

/// Waits for the store to be `connected` and reports the wait.
pub(super) async fn report_connecting<T>(plan: &Plan, connected: impl Future<Output = T>) -> T {
    let Some(mut show) = display(plan) else { return connected.await };
    let reporting = async {
        sleep(EVERY).await;
        show(format!("waiting for {}, which cannot be reached yet", plan.store.redacted_url));
        std::future::pending().await
    };
    until_done(reporting, connected).await
}

/// Waits for the lock to be `granted` and reports who holds it.
pub(super) async fn report_holder<T>(
    plan: &Plan,
    locks: &Locks,
    granted: impl Future<Output = T>,
) -> T {
    let Some(mut show) = display(plan) else { return granted.await };
    let precise = !plan.verbose || io::stderr().is_terminal();
    let (name, store) = (&plan.name, &plan.store.redacted_url);
    let reporting = async {
        let mut pause = FIRST;
        loop {
            sleep(pause).await;
            pause = EVERY;
            let snapshot = inspect(plan, locks, INSPECT_WITHIN[0]).await;
            let unheld = if snapshot.is_some() {
                "nobody holds it, and it is not granted yet"
            } else {
                "the holder is unknown"
            };
            let holders = snapshot.and_then(|snapshot| describe(&snapshot, precise));
            let holders = holders.unwrap_or_else(|| unheld.to_owned());
            show(format!("waiting for {name:?} on {store}: {holders}"));
        }
    };
    until_done(reporting, granted).await
}

/// Carries out `work`, and `reporting` until that is done.
async fn until_done<T>(
    reporting: impl Future<Output = Infallible>,
    work: impl Future<Output = T>,
) -> T {
    tokio::select! {
        biased;
        result = work => result,
        never = reporting => match never {},
    }
}

/// What shows a message on a terminal or, with --verbose, elsewhere; `None` if nothing does.
fn display(plan: &Plan) -> Option<Box<dyn FnMut(String)>> {
    if plan.quiet {
        return None;
    }
    let foreground = || Terminal::controlling().is_some_and(|terminal| terminal.is_ours());
    if io::stderr().is_terminal() && foreground() {
        let line = Line::new(plan.reports.clone());
        Some(Box::new(move |text| line.show(text)))
    } else if plan.verbose {
        let (mut last, reports) = (String::new(), plan.reports.clone());
        Some(Box::new(move |text| {
            if text != last {
                reports.say(&text);
                last = text;
            }
        }))
    } else {
        None
    }
}

/// The holders of the lock, if the store answers in time.
pub(super) async fn inspect(plan: &Plan, locks: &Locks, within: Duration) -> Option<Snapshot> {
    timeout(within, locks.inspect_holders(&plan.name)).await.ok()?.ok()
}

/// `held for 3 min 2 s by "backup.sh" (pid 4711 on host web-1) and 2 others`, `None` when the lock is
/// free. A `precise` text also says for how long.
pub(super) fn describe(snapshot: &Snapshot, precise: bool) -> Option<String> {
    let (first, others) = snapshot.holders.split_first()?;
    let more = match others.len() {
        0 => String::new(),
        1 => " and 1 other".to_owned(),
        n => format!(" and {n} others"),
    };
    Some(format!("held {}{more}", one(first, precise)))
}

fn one(holder: &Participant, precise: bool) -> String {
    let label = holder.label.as_ref();
    let label = label.map_or_else(|| "a client without a label".to_owned(), who);
    match holder.since {
        Some(since) if precise => format!("for {} by {label}", spoken(since)),
        _ => format!("by {label}"),
    }
}

fn who(label: &Label) -> String {
    match label.process() {
        Some((host, pid, "")) => format!("pid {pid} on host {host}"),
        Some((host, pid, text)) => format!("{text:?} (pid {pid} on host {host})"),
        None => format!("{label:?}"),
    }
}

/// A duration in its two largest units: `0 s`, `3 min 2 s`, `2 d`.
fn spoken(duration: Duration) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")];
    let mut rest = duration.as_secs();
    let largest = UNITS.iter().position(|(size, _)| rest >= *size).unwrap_or(UNITS.len() - 1);
    let mut parts = Vec::new();
    for (size, name) in UNITS.iter().skip(largest).take(2) {
        let count = rest / size;
        rest %= size;
        if count > 0 || parts.is_empty() {
            parts.push(format!("{count} {name}"));
        }
    }
    parts.join(" ")
}

/// A line that is replaced, and removed when it is dropped.
struct Line {
    bar: ProgressBar,
    reports: Reports,
}

impl Line {
    fn new(reports: Reports) -> Line {
        // indicatif draws nothing wide on a terminal that does not know its width.
        let width = rustix::termios::tcgetwinsize(io::stderr()).map_or(0, |size| size.ws_col);
        let style = ProgressStyle::with_template(match width {
            0 => "fencelock: {msg}",
            _ => "fencelock: {wide_msg}",
        });
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        let bar = bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        Line { bar, reports }
    }

    fn show(&self, text: String) {
        let bar = self.bar.clone();
        self.reports.put(move || bar.set_message(text));
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let bar = self.bar.clone();
        self.reports.put(move || bar.finish_and_clear());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_spoken_in_two_units() {
        for (seconds, text) in [
            (0, "0 s"),
            (3, "3 s"),
            (60, "1 min"),
            (182, "3 min 2 s"),
            (3_600, "1 h"),
            (7_260, "2 h 1 min"),
            (3_601, "1 h"),
            (90_000, "1 d 1 h"),
        ] {
            assert_eq!(spoken(Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn a_holder_is_named_by_program_process_and_host() {
        let this = Label::of_this_process();
        let (host, pid, _) = this.process().expect("host and pid");
        assert_eq!(who(&this), format!("pid {pid} on host {host}"));
        assert_eq!(who(&this.with("sleep")), format!("\"sleep\" (pid {pid} on host {host})"));
        assert_eq!(who(&Label::new("the importer")), "\"the importer\"");
    }
}
