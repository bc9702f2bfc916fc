//! What the user asks of a store, and which stores meet it: `--require`.

use std::fmt;
use std::str::FromStr;

use super::bands::{Band, Scope};
use super::numbers::{bytes_per_minute, figure, time_s, time_us};
use super::stores::{Named, named};
use super::summary::outlives_a_server;
use crate::compare::data::Comparison;

/// All must be met.
#[derive(Clone, Debug, Default)]
pub(crate) struct Requirements(Vec<Requirement>);

/// One of them, such as `return<3s`.
#[derive(Clone, Debug)]
pub(super) struct Requirement {
    metric: &'static Metric,
    /// None where a metric is true or false.
    bound: Option<f64>,
    /// As it was written.
    text: String,
}

/// What can be required.
#[derive(Debug)]
struct Metric {
    name: &'static str,
    /// For the list in errors and `--help`.
    what: &'static str,
    test: Test,
}

/// Each is absent where it was not measured.
#[derive(Clone, Copy, Debug)]
enum Test {
    Is(fn(&Named<'_>) -> Option<bool>),
    Below(Unit, fn(&Named<'_>) -> Option<f64>),
    Above(Unit, fn(&Named<'_>) -> Option<f64>),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Unit {
    /// In microseconds.
    Time,
    PairsPerSecond,
    BytesPerMinute,
}

const METRICS: [Metric; 9] = [
    Metric {
        name: "exclusion",
        what: "no two holders were seen, and the profile admits none after a failure of a server",
        test: Test::Is(|named| match Band::of(named.store) {
            Band::Never | Band::NotByFailures => Some(true),
            Band::Admitted | Band::Seen => Some(false),
            Band::Unwatched => None,
        }),
    },
    Metric {
        name: "network",
        what: "clients on several machines exclude each other",
        test: Test::Is(|named| Some(Scope::of(named.store) == Scope::Network)),
    },
    Metric {
        name: "server-loss",
        what: "locks were granted while one of several servers was down",
        test: Test::Is(|named| {
            (!named.store.timelines.is_empty()).then(|| outlives_a_server(named.store))
        }),
    },
    Metric {
        name: "return",
        what: "longest time without a grant after a failure, beyond the TTL",
        test: Test::Below(Unit::Time, |named| {
            let came_back = named.store.timelines.iter().all(|timeline| timeline.came_back);
            match (named.beyond_ttl_s(), came_back) {
                (_, false) => Some(f64::INFINITY),
                (seconds, true) => seconds.map(|seconds| seconds * 1e6),
            }
        }),
    },
    Metric {
        name: "handover-p50",
        what: "release to next grant, half of them",
        test: Test::Below(Unit::Time, |named| Some(named.store.hand_off.as_ref()?.p50_us)),
    },
    Metric {
        name: "handover-p99",
        what: "release to next grant, 99 % of them",
        test: Test::Below(Unit::Time, |named| Some(named.store.hand_off.as_ref()?.p99_us)),
    },
    Metric {
        name: "acquire-p99",
        what: "request to grant of a free lock at half of the highest throughput, 99 % of them",
        test: Test::Below(Unit::Time, |named| {
            Some(named.store.fixed_rate.as_ref()?.acquire_p99_us)
        }),
    },
    Metric {
        name: "throughput",
        what: "pairs per second of the largest number of clients, with a lock each",
        test: Test::Above(Unit::PairsPerSecond, |named| Some(named.fastest()?.pairs_per_s.median)),
    },
    Metric {
        name: "idle-traffic",
        what: "bytes of a held lock in a minute, at a TTL of 30 s",
        test: Test::Below(Unit::BytesPerMinute, |named| named.idle_bytes()),
    },
];

/// Whether a store meets a requirement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    Met,
    Unmet,
    NotMeasured,
}

impl Answer {
    pub(super) fn sign(self) -> &'static str {
        match self {
            Answer::Met => "✓",
            Answer::Unmet => "✗",
            Answer::NotMeasured => "–",
        }
    }

    pub(super) fn word(self) -> &'static str {
        match self {
            Answer::Met => "met",
            Answer::Unmet => "not met",
            Answer::NotMeasured => "not measured",
        }
    }
}

impl Requirement {
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn answer(&self, named: Named<'_>) -> Answer {
        let bound = self.bound.unwrap_or_default();
        let is_met = match self.metric.test {
            Test::Is(is) => is(&named),
            Test::Below(_, of) => of(&named).map(|value| value < bound),
            Test::Above(_, of) => of(&named).map(|value| value > bound),
        };
        match is_met {
            Some(true) => Answer::Met,
            Some(false) => Answer::Unmet,
            None => Answer::NotMeasured,
        }
    }

    /// The figure that was measured, if it is one.
    pub(super) fn measured(&self, named: Named<'_>) -> Option<String> {
        let (Test::Below(unit, of) | Test::Above(unit, of)) = self.metric.test else { return None };
        Some(match (of(&named)?, unit) {
            (value, _) if value.is_infinite() => "did not come back".to_owned(),
            (us, Unit::Time) if us >= 1e6 || us == 0.0 => time_s(us / 1e6),
            (us, Unit::Time) => time_us(us),
            (pairs, Unit::PairsPerSecond) => format!("{}/s", figure(pairs)),
            (bytes, Unit::BytesPerMinute) => bytes_per_minute(bytes),
        })
    }
}

impl Requirements {
    pub(super) fn each(&self) -> &[Requirement] {
        &self.0
    }

    /// All of them: one that is not met outweighs what was not measured.
    pub(super) fn answer(&self, named: Named<'_>) -> Answer {
        let answers: Vec<Answer> = self.0.iter().map(|it| it.answer(named)).collect();
        match () {
            () if answers.contains(&Answer::Unmet) => Answer::Unmet,
            () if answers.contains(&Answer::NotMeasured) => Answer::NotMeasured,
            () => Answer::Met,
        }
    }

    /// Whether a store of this comparison meets all of them.
    pub(crate) fn are_met(&self, comparison: &Comparison) -> bool {
        named(comparison).into_iter().any(|named| self.answer(named) == Answer::Met)
    }

    /// What `--help` says that can be required.
    pub(crate) fn help() -> String {
        let list = METRICS.iter().map(|metric| format!("  {:<18} {}", metric.form(), metric.what));
        list.collect::<Vec<_>>().join("\n")
    }

    /// A table for a terminal.
    pub(crate) fn table(&self, comparison: &Comparison) -> String {
        let stores = named(comparison);
        let heads = self.0.iter().map(|it| it.text.clone());
        let mut rows = vec![["store".to_owned()].into_iter().chain(heads).collect::<Vec<_>>()];
        for named in &stores {
            let cells = self.0.iter().map(|it| {
                let sign = it.answer(*named).sign();
                it.measured(*named).map_or_else(|| sign.to_owned(), |of| format!("{sign} {of}"))
            });
            rows.push([named.store.store.clone()].into_iter().chain(cells).collect());
        }
        let widths: Vec<usize> = (0..rows[0].len())
            .map(|at| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0))
            .collect();
        let mut table = String::new();
        for row in &rows {
            let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
            let line = cells.collect::<Vec<_>>().join("  ");
            table += line.trim_end();
            table.push('\n');
        }
        let meet = stores.iter().filter(|named| self.answer(**named) == Answer::Met);
        let meet: Vec<&str> = meet.map(|named| &*named.store.store).collect();
        match &*meet {
            [] => table + "No store was seen to meet all requirements.",
            some => format!("{table}All requirements are met by: {}.", some.join(", ")),
        }
    }
}

impl fmt::Display for Requirements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<&str> = self.0.iter().map(|it| &*it.text).collect();
        f.write_str(&texts.join(", "))
    }
}

impl FromStr for Requirements {
    type Err = String;

    fn from_str(text: &str) -> Result<Requirements, String> {
        let each = text.split(',').map(str::trim).filter(|one| !one.is_empty());
        let all: Vec<Requirement> = each.map(str::parse).collect::<Result<_, _>>()?;
        match all.is_empty() {
            true => Err(format!("nothing is required; expected some of\n{}", Self::help())),
            false => Ok(Requirements(all)),
        }
    }
}

impl FromStr for Requirement {
    type Err = String;

    fn from_str(text: &str) -> Result<Requirement, String> {
        let at = text.find(['<', '>']);
        let (name, rest) = text.split_at(at.unwrap_or(text.len()));
        let metric = METRICS.iter().find(|metric| metric.name == plain(name)).ok_or_else(|| {
            format!("unknown metric {:?}; expected some of\n{}", name.trim(), Requirements::help())
        })?;
        let wrong = |why: &str| format!("{text:?}: {why}; expected {}", metric.form());
        let bound = match (metric.test, rest.chars().next()) {
            (Test::Is(_), None) => None,
            (Test::Is(_), _) => return Err(wrong("this is true or false")),
            (Test::Below(unit, _), Some('<')) | (Test::Above(unit, _), Some('>')) => {
                let value = unit.parse(rest[1..].trim_start_matches('=').trim());
                Some(value.ok_or_else(|| wrong("the bound is not a number with a unit"))?)
            }
            (_, None) => return Err(wrong("the bound is missing")),
            (Test::Below(..), _) => return Err(wrong("less is better here")),
            (Test::Above(..), _) => return Err(wrong("more is better here")),
        };
        Ok(Requirement { metric, bound, text: text.to_owned() })
    }
}

/// The name of a metric, however its words are joined.
fn plain(name: &str) -> String {
    let name = name.trim().to_lowercase().replace([' ', '_'], "-");
    ["hand-over", "hand-off", "handoff"].iter().fold(name, |name, it| name.replace(it, "handover"))
}

impl Metric {
    /// How it is required, for example `return<3s`.
    fn form(&self) -> String {
        match self.test {
            Test::Is(_) => self.name.to_owned(),
            Test::Below(unit, _) => format!("{}<{}", self.name, unit.example()),
            Test::Above(unit, _) => format!("{}>{}", self.name, unit.example()),
        }
    }
}

impl Unit {
    fn example(self) -> &'static str {
        match self {
            Unit::Time => "5ms",
            Unit::PairsPerSecond => "10000/s",
            Unit::BytesPerMinute => "2kB",
        }
    }

    /// A bound in the metric's own unit.
    fn parse(self, text: &str) -> Option<f64> {
        let end = text.find(|it: char| !it.is_ascii_digit() && it != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        let number: f64 = number.parse().ok()?;
        let factor = match (self, unit.trim()) {
            (Unit::Time, "us" | "µs") | (Unit::PairsPerSecond, "" | "/s") => 1.0,
            (Unit::Time, "ms") => 1e3,
            (Unit::Time, "s") => 1e6,
            (Unit::Time, "min") => 60e6,
            (Unit::BytesPerMinute, unit) => match unit.trim_end_matches("/min") {
                "B" => 1.0,
                "kB" => 1e3,
                "MB" => 1e6,
                _ => return None,
            },
            _ => return None,
        };
        Some(number * factor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::data::{Comparison, Store};

    fn required(text: &str) -> Requirements {
        text.parse().unwrap_or_else(|why| panic!("{text}: {why}"))
    }

    fn answer(text: &str, store: &Store) -> Answer {
        required(text).answer(Named { store, place: 0 })
    }

    #[test]
    fn what_is_required_is_read_as_it_is_said() {
        let all = required("exclusion, return<3s,handover-p99 < 5ms, throughput>10000/s");
        assert_eq!(all.to_string(), "exclusion, return<3s, handover-p99 < 5ms, throughput>10000/s");
        let bounds: Vec<Option<f64>> = all.each().iter().map(|it| it.bound).collect();
        assert_eq!(bounds, [None, Some(3e6), Some(5e3), Some(1e4)]);
        for same in ["hand-over p99<=5ms", "hand-off p99<5000us", "handoff_p99<0.005s"] {
            let one = &required(same).0[0];
            assert_eq!((one.metric.name, one.bound), ("handover-p99", Some(5e3)), "{same}");
        }
        assert_eq!(required("idle-traffic<2kB/min").0[0].bound, Some(2e3));
    }

    #[test]
    fn an_error_says_what_can_be_required() {
        for (text, says) in [
            ("", "nothing is required; expected some of"),
            ("speed>3", "unknown metric \"speed\"; expected some of"),
            (
                "return<3",
                "\"return<3\": the bound is not a number with a unit; expected return<5ms",
            ),
            ("return", "the bound is missing; expected return<5ms"),
            ("return>3s", "less is better here; expected return<5ms"),
            ("throughput<3/s", "more is better here; expected throughput>10000/s"),
            ("exclusion<3", "this is true or false; expected exclusion"),
            ("return<threes", "not a number with a unit"),
        ] {
            let why = text.parse::<Requirements>().expect_err(text);
            assert!(why.contains(says), "{text}: {why}");
        }
        let help = "x".parse::<Requirements>().expect_err("unknown");
        for metric in &METRICS {
            assert!(help.contains(&metric.form()), "{help}");
        }
    }

    #[test]
    fn a_store_meets_what_was_measured_of_it_and_nothing_else() {
        let sample = Comparison::sample();
        let (redis, zookeeper) = (&sample.stores[2], &sample.stores[8]);
        assert_eq!(answer("exclusion", redis), Answer::Unmet);
        assert_eq!(answer("exclusion", zookeeper), Answer::Met);
        let p99 = zookeeper.hand_off.as_ref().expect("measured").p99_us;
        assert_eq!(answer(&format!("handover-p99<{}us", p99 + 1.0), zookeeper), Answer::Met);
        assert_eq!(answer(&format!("handover-p99<{p99}us"), zookeeper), Answer::Unmet);
        let mut unknown = zookeeper.clone();
        (unknown.hand_off, unknown.faults) = (None, None);
        unknown.timelines.clear();
        for text in ["exclusion", "handover-p99<1s", "return<1s", "server-loss"] {
            assert_eq!(answer(text, &unknown), Answer::NotMeasured, "{text}");
        }
        assert_eq!(answer("exclusion, throughput>1/s", &unknown), Answer::NotMeasured);
        assert_eq!(answer("exclusion, throughput>99999999/s", &unknown), Answer::Unmet);
    }

    #[test]
    fn a_store_that_did_not_come_back_returns_within_no_time() {
        let mut store = Comparison::sample().stores[8].clone();
        store.timelines[0].came_back = false;
        assert_eq!(answer("return<60min", &store), Answer::Unmet);
        let requirement = &required("return<60min").0[0];
        let measured = requirement.measured(Named { store: &store, place: 0 });
        assert_eq!(measured.as_deref(), Some("did not come back"));
    }

    #[test]
    fn what_no_store_was_seen_to_do_is_not_met() {
        let mut sample = Comparison::sample();
        assert!(required("exclusion, network").are_met(&sample));
        assert!(!required("throughput>99999999/s").are_met(&sample));
        let table = required("throughput>99999999/s").table(&sample);
        assert!(table.contains("✗") && table.ends_with("meet all requirements."), "{table}");
        for store in &mut sample.stores {
            store.faults = None;
        }
        assert!(!required("exclusion").are_met(&sample), "not measured is not met");
        let table = required("exclusion").table(&sample);
        assert!(table.contains('–') && !table.contains('✗'), "{table}");
    }
}
