//! Durations, labels and settings of the user, parsed once into types that need no further check.
//!
//! Zero, tiny and absurdly long values are errors here, so that no later arithmetic can overflow:
//! other libraries panicked, or took milliseconds for seconds.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::types::error::{Result, invalid};
use crate::types::token::{FencingToken, TokenEpoch};

/// How long a store keeps a lock whose holder is silent: 100 ms to 24 h, 30 s by default.
///
/// Held locks are renewed at a third of it. On a session store, and on one that knows when a
/// process ends, it only limits a [fixed lease](crate::Lock::fixed_lease).
///
/// ```
/// # use fencelock_core as fencelock;
/// use fencelock::{Settings, Ttl};
/// use std::time::Duration;
/// let settings = Settings::default().ttl(Ttl::new(Duration::from_secs(10))?);
/// assert!(Ttl::new(Duration::from_millis(1)).is_err());
/// # Ok::<(), fencelock::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ttl(Duration);

impl Ttl {
    /// The shortest: less would leave too little after the drift margin and a round trip.
    pub const MIN: Duration = Duration::from_millis(100);
    /// The longest: a dead holder blocks its lock for at most a day.
    pub const MAX: Duration = Duration::from_secs(86_400);

    /// Parses `ttl`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) outside 100 ms to 24 h.
    pub fn new(ttl: Duration) -> Result<Ttl> {
        within(ttl, Ttl::MIN, Ttl::MAX, "TTL").map(Ttl)
    }

    /// The TTL as a duration.
    #[must_use]
    pub fn get(self) -> Duration {
        self.0
    }
}

impl Default for Ttl {
    fn default() -> Ttl {
        Ttl(Duration::from_secs(30))
    }
}

/// Upper bound of `hold_at_most`: 365 days.
const YEAR: Duration = Duration::from_secs(365 * 86_400);

/// Parses `hold_at_most`: 1 ms to 365 days.
pub(crate) fn hold_limit(limit: Duration) -> Result<Duration> {
    within(limit, Duration::from_millis(1), YEAR, "hold_at_most")
}

/// Parses `unreachable_after`: 10 ms to a day.
pub(crate) fn unreachable_after(bound: Duration) -> Result<Duration> {
    within(bound, Duration::from_millis(10), Ttl::MAX, "unreachable_after")
}

/// The longest time for which a cell is kept, other than for ever.
pub(crate) const LONGEST_KEPT: Duration = Duration::from_secs(10 * YEAR.as_secs());

/// Parses how long a cell is kept after its last change: 1 s to 10 years.
pub(crate) fn kept(time: Duration) -> Result<Duration> {
    within(time, Duration::from_secs(1), LONGEST_KEPT, "the time for which a cell is kept")
}

/// The most acquisitions of one process for one grant.
pub(crate) const MOST_LOCAL_HANDOFFS: u32 = 1_024;

/// Parses `local_handoffs`: 1 to 1,024.
pub(crate) fn local_handoffs(most: u32) -> Result<u32> {
    count(most, MOST_LOCAL_HANDOFFS, "local_handoffs")
}

/// `n`, of what there are 1 to `most`.
pub(crate) fn count(n: u32, most: u32, what: &str) -> Result<u32> {
    if (1..=most).contains(&n) {
        return Ok(n);
    }
    Err(invalid(format!("{what} {n} is out of range; expected 1 to {most}")))
}

fn within(value: Duration, min: Duration, max: Duration, what: &str) -> Result<Duration> {
    if (min..=max).contains(&value) {
        return Ok(value);
    }
    let [value, min, max] = [value, min, max].map(format_duration);
    Err(invalid(format!("{what} {value} is out of range; expected {min} to {max}")))
}

/// Parses a duration as written in URLs and on the command line: `500ms`, `2s`, `1m30s`.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) with an example, also for a number without a unit.
///
/// ```
/// # use fencelock_core as fencelock;
/// use std::time::Duration;
/// assert_eq!(fencelock::parse_duration("1m30s")?, Duration::from_secs(90));
/// assert!(fencelock::parse_duration("90").is_err(), "a unit is missing");
/// # Ok::<(), fencelock::Error>(())
/// ```
pub fn parse_duration(text: &str) -> Result<Duration> {
    humantime::parse_duration(text).map_err(|cause| {
        let expected = "a number with a unit, such as 500ms, 2s or 1m30s";
        invalid(format!("invalid duration {text:?}: expected {expected}")).caused_by(cause)
    })
}

/// Formats a duration as [`parse_duration`] reads it.
pub(crate) fn format_duration(duration: Duration) -> String {
    if duration == Duration::MAX {
        return "for ever".to_owned();
    }
    humantime::format_duration(duration).to_string().replace(' ', "")
}

/// The characters by which Unicode overrides or isolates the direction of a text. They are invisible, and
/// would show what follows a label in another order.
fn sets_direction(character: char) -> bool {
    matches!(character,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A human-readable label of a client: host, process and the user's own text. At most 120 bytes,
/// without characters that control a terminal or the direction of the text; every client that can
/// read the store sees it.
///
/// ```
/// # use fencelock_core as fencelock;
/// use fencelock::Label;
/// let label = Label::of_this_process().with("the importer");
/// println!("{label}"); // web-1 pid 953 the importer
/// assert!(label.as_str().ends_with("the importer"));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Label(Arc<str>);

impl Label {
    /// The longest label, in bytes: every claim carries it.
    pub const MAX_BYTES: usize = 120;

    /// `text` with each run of white space and of characters that control a terminal or the direction
    /// of the text replaced by one space, cut to 120 bytes.
    #[must_use]
    pub fn new(text: &str) -> Label {
        let plain = text.replace(|c: char| c.is_control() || sets_direction(c), " ");
        let mut words = plain.split_whitespace().collect::<Vec<_>>().join(" ");
        words.truncate(words.floor_char_boundary(Label::MAX_BYTES));
        Label(words.into())
    }

    /// The host name and process id.
    #[must_use]
    pub fn of_this_process() -> Label {
        let uname = rustix::system::uname();
        let host = uname.nodename().to_string_lossy();
        Label::new(&format!("{host} pid {}", std::process::id()))
    }

    /// This label followed by `text`.
    #[must_use]
    pub fn with(&self, text: &str) -> Label {
        Label::new(&format!("{} {text}", self.0))
    }

    /// The host name, the process id and the text after them, if this label begins with those of a
    /// process.
    ///
    /// ```
    /// let label = fencelock_core::Label::new("web-1 pid 4711 the importer");
    /// assert_eq!(label.process(), Some(("web-1", 4711, "the importer")));
    /// ```
    #[must_use]
    pub fn process(&self) -> Option<(&str, u32, &str)> {
        let (host, rest) = self.0.split_once(" pid ")?;
        let (pid, text) = rest.split_once(' ').unwrap_or((rest, ""));
        Some((host, pid.parse().ok()?, text))
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// The settings of every store, from its URL's parameters or set here.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
/// # use fencelock_core as fencelock;
/// # use fencelock_core::memory::Memory;
/// use fencelock::{Label, Settings, TokenEpoch, Ttl, parse_duration};
/// let settings = Settings::default()
///     .ttl(Ttl::new(parse_duration("10s")?)?)
///     .prefix("shop:")
///     .label(Label::of_this_process().with("the importer"))
///     .token_epoch(TokenEpoch::new(1)?)
///     .metrics_by_lock(true)
///     .unreachable_after(parse_duration("1m30s")?)?;
/// let locks = Memory::new().locks(settings)?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Settings {
    pub(crate) ttl: Ttl,
    pub(crate) prefix: Arc<str>,
    pub(crate) unreachable_after: Duration,
    pub(crate) token_epoch: TokenEpoch,
    pub(crate) label: Label,
    pub(crate) metrics_by_lock: bool,
    pub(crate) local_handoffs: u32,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            ttl: Ttl::default(),
            prefix: Arc::from("lock:"),
            unreachable_after: Duration::from_secs(30),
            token_epoch: TokenEpoch::default(),
            label: Label::of_this_process(),
            metrics_by_lock: false,
            local_handoffs: 1,
        }
    }
}

impl Settings {
    /// The TTL of locks that do not ask for their own. Default: 30 s.
    #[must_use]
    pub fn ttl(mut self, ttl: Ttl) -> Settings {
        self.ttl = ttl;
        self
    }

    /// The prefix of every lock name in the store. Default: `lock:`. May be empty.
    #[must_use]
    pub fn prefix(mut self, prefix: &str) -> Settings {
        self.prefix = Arc::from(prefix);
        self
    }

    /// How long a store may stay silent before an operation fails. Default: 30 s.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) outside 10 ms to 24 h.
    pub fn unreachable_after(mut self, bound: Duration) -> Result<Settings> {
        self.unreachable_after = unreachable_after(bound)?;
        Ok(self)
    }

    /// The top bits of every fencing token. Default: 0.
    #[must_use]
    pub fn token_epoch(mut self, epoch: TokenEpoch) -> Settings {
        self.token_epoch = epoch;
        self
    }

    /// The label of this client, shown by `inspect`. Default: host name and process id.
    #[must_use]
    pub fn label(mut self, label: Label) -> Settings {
        self.label = label;
        self
    }

    /// Adds the lock's name to metrics as a label. Off by default: each name is a series of its own.
    /// Without the feature `metrics`, no effect.
    #[must_use]
    pub fn metrics_by_lock(mut self, by_lock: bool) -> Settings {
        self.metrics_by_lock = by_lock;
        self
    }

    /// The [`local_handoffs`](crate::Lock::local_handoffs) of locks that do not say it themselves, 1 to
    /// 1,024, so that a deployment can turn them on without a change of the program. Default: 1, none. It
    /// is for every exclusive [`lock`](crate::Locks::lock) that is renewed; what cannot have hand-offs,
    /// such as a fixed lease or a store that reserves no tokens, goes without. On `file://` such a lock
    /// gives up [`Guard::keep_alive`](crate::Guard::keep_alive).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) outside 1 to 1,024.
    pub fn local_handoffs(mut self, most: u32) -> Result<Settings> {
        self.local_handoffs = local_handoffs(most)?;
        Ok(self)
    }

    /// The fencing token for a store's counter.
    #[must_use]
    pub fn token(&self, counted: FencingToken) -> FencingToken {
        counted.in_epoch(self.token_epoch)
    }

    /// What spreads the retries of the client itself.
    pub(crate) fn seed(&self) -> (&str, u64) {
        (self.label.as_str(), 0)
    }

    /// The prefix of every lock name, for a backend that names other data after it.
    #[must_use]
    pub fn key_prefix(&self) -> &str {
        &self.prefix
    }

    /// The TTL of locks that do not ask for their own, for a backend that bounds it.
    #[must_use]
    pub fn default_ttl(&self) -> Duration {
        self.ttl.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn durations_out_of_range_are_errors() {
        let ten_years = Duration::from_secs(10 * 365 * 86_400);
        for ttl in [Duration::ZERO, Duration::from_nanos(1), ten_years, Duration::MAX] {
            let error = Ttl::new(ttl).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains("expected 100ms to 1day"), "{error}");
        }
        assert!(hold_limit(Duration::ZERO).is_err() && hold_limit(Duration::MAX).is_err());
    }

    #[test]
    fn durations_are_numbers_with_units() {
        assert_eq!(parse_duration("500ms").unwrap(), Duration::from_millis(500));
        assert_eq!(parse_duration("1m30s").unwrap(), Duration::from_secs(90));
        let error = parse_duration("30").unwrap_err();
        assert!(error.to_string().contains("such as 500ms, 2s or 1m30s"), "{error}");
    }

    #[test]
    fn a_label_cannot_rearrange_the_line_it_is_shown_in() {
        let label = Label::new("web\u{202e}1\u{2066} pid\u{1b}[2J");
        assert_eq!(label.as_str(), "web 1 pid [2J");
    }

    #[test]
    fn a_label_is_one_short_line() {
        let label = Label::new(&format!("a\nb\t\0c {}", "ü".repeat(200)));
        assert!(label.as_str().starts_with("a b c ü"));
        assert!(label.as_str().len() <= Label::MAX_BYTES);
    }
}
