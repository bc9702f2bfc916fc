//! While the lock is not free: who holds it, and for how long. On a terminal one line that is
//! kept up to date, elsewhere a line for each change, and only for those who want to know.

use std::io::{self, IsTerminal};
use std::time::Duration;

use fencelock::{Locks, Participant, Snapshot};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::exit::say;
use super::options::Plan;
use super::terminal::Terminal;

/// How often a waiter looks: at most once a second, since it costs the store something.
const EVERY: Duration = Duration::from_secs(1);
/// Nothing is told about a wait shorter than this.
const FIRST: Duration = Duration::from_millis(100);
/// A look for people must not hold anything up.
const PATIENCE: Duration = Duration::from_secs(1);

/// Waits for the store to be `connected` and tells about it.
pub(super) async fn tell_of_connecting<T>(plan: &Plan, connected: impl Future<Output = T>) -> T {
    let Some(mut teller) = teller(plan) else { return connected.await };
    let telling = async {
        tokio::time::sleep(EVERY).await;
        teller(format!("waiting for {}, which cannot be reached yet", plan.store.redacted_url));
        std::future::pending().await
    };
    tokio::select! {
        biased;
        result = connected => result,
        never = telling => match never {},
    }
}

/// Waits for `granted` and tells about it.
pub(super) async fn tell_while<T>(
    plan: &Plan,
    locks: &Locks,
    granted: impl Future<Output = T>,
) -> T {
    let Some(mut teller) = teller(plan) else { return granted.await };
    let precise = !plan.verbose || io::stderr().is_terminal();
    tokio::select! {
        biased;
        result = granted => result,
        never = tell_on(plan, locks, &mut *teller, precise) => match never {},
    }
}

/// Shows what is waited for, where somebody wants to know.
type Teller = Box<dyn FnMut(String)>;

fn teller(plan: &Plan) -> Option<Teller> {
    let foreground = || Terminal::controlling().is_some_and(|terminal| terminal.is_ours());
    if io::stderr().is_terminal() && foreground() {
        let line = Line::new();
        Some(Box::new(move |text| line.0.set_message(text)))
    } else if plan.verbose {
        let mut last = String::new();
        Some(Box::new(move |text| {
            if text != last {
                say(&text);
                last = text;
            }
        }))
    } else {
        None
    }
}

async fn tell_on(
    plan: &Plan,
    locks: &Locks,
    teller: &mut dyn FnMut(String),
    precise: bool,
) -> std::convert::Infallible {
    let mut pause = FIRST;
    loop {
        tokio::time::sleep(pause).await;
        pause = EVERY;
        let holders = look(plan, locks).await.map(|snapshot| describe(&snapshot, precise));
        let holders = holders.flatten().unwrap_or_else(|| "its holder is not known".to_owned());
        teller(format!("waiting for {:?} on {}: {holders}", plan.name, plan.store.redacted_url));
    }
}

/// Who holds it, if the store can tell now.
pub(super) async fn look(plan: &Plan, locks: &Locks) -> Option<Snapshot> {
    tokio::time::timeout(PATIENCE, locks.inspect(&plan.name)).await.ok()?.ok()
}

/// "held by web-1 pid 4711 backup.sh for 3m 2s and 2 others", `None` when nobody holds it.
pub(super) fn describe(snapshot: &Snapshot, precise: bool) -> Option<String> {
    let (first, others) = snapshot.holders.split_first()?;
    let more = match others.len() {
        0 => String::new(),
        1 => " and another one".to_owned(),
        n => format!(" and {n} others"),
    };
    Some(format!("held by {}{more}", one(first, precise)))
}

fn one(holder: &Participant, precise: bool) -> String {
    let who = holder.label.as_ref().map_or("somebody without a label", |label| label.as_str());
    match holder.since {
        Some(since) if precise => {
            let seconds = Duration::from_secs(since.as_secs());
            format!("{who} for {}", humantime::format_duration(seconds))
        }
        _ => who.to_owned(),
    }
}

/// A line that is replaced, and removed when it is dropped.
struct Line(ProgressBar);

impl Line {
    fn new() -> Line {
        // A terminal that does not know its width has none for indicatif.
        let width = rustix::termios::tcgetwinsize(io::stderr()).map_or(0, |size| size.ws_col);
        let style = ProgressStyle::with_template(match width {
            0 => "fencelock: {msg}",
            _ => "fencelock: {wide_msg}",
        });
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        Line(bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner())))
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
