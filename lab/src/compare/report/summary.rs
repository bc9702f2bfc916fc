//! What a store is good for: rules over its promises and what was seen of it, no opinions.
//!
//! A store is compared with those of its group: a faster one that is less safe does not do the same
//! work. One is better than another only beyond the spread of repeated runs and by a fifth; what
//! was measured fewer than three times decides nothing.

use super::bands::{Band, Group, Scope};
use super::numbers::{bytes_per_minute, count, counted, figure, time_s, time_us};
use super::stores::Named;
use crate::compare::data::{Comparison, Spread, Store, UnderFaults};

/// What is said of one store.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Choice {
    /// Continues "choose it when …"; absent where nothing that was measured decides.
    pub(super) when: Option<String>,
    /// Those that are as good in all that was measured, if nothing is in its favour.
    pub(super) as_good_as: Vec<String>,
    /// The figures that it rests on.
    pub(super) seen: Vec<String>,
    /// What must be known of it.
    pub(super) but: Vec<String>,
    /// Promises that it broke: a bug, and a reason not to choose it.
    pub(super) broken: Vec<String>,
}

/// Runs of which a spread is worth something.
const ENOUGH_RUNS: u32 = 3;
/// How much better one must be, as a factor.
const CLEARLY: f64 = 1.2;

/// Whether this comparison can prefer one store to another.
pub(super) fn can_prefer(comparison: &Comparison) -> bool {
    comparison.repeats >= ENOUGH_RUNS
}

/// What a store can be better at than its peers.
struct Merit {
    /// Continues "choose it when …".
    when: &'static str,
    /// Of several runs; absent where it was not measured as often.
    of: fn(Named<'_>) -> Option<Spread>,
    is_less_better: bool,
    /// Differences below this are those of the measurement.
    matters: f64,
    /// The median as text; empty if every store has it.
    text: fn(f64) -> String,
}

const MERITS: [Merit; 4] = [
    Merit {
        when: "throughput counts most",
        of: |named| Some(named.fastest()?.pairs_per_s),
        is_less_better: false,
        matters: 0.0,
        text: |_| String::new(),
    },
    Merit {
        when: "hand-offs must be quick",
        of: |named| named.store.hand_off.as_ref()?.p99_runs_us,
        is_less_better: true,
        matters: 0.0,
        text: |us| format!("hand-off p99 {}", time_us(us)),
    },
    Merit {
        when: "work must continue soonest after a failure",
        of: slowest_return,
        is_less_better: true,
        // A timeline counts grants in tenths of a second.
        matters: 0.1,
        text: |_| String::new(),
    },
    Merit {
        when: "many locks are held for long",
        of: |named| named.idle_bytes_runs(),
        is_less_better: true,
        matters: 0.0,
        text: |bytes| format!("{} for a held lock", bytes_per_minute(bytes)),
    },
];

/// Beyond the TTL, of the failure after which it took longest.
fn slowest_return(named: Named<'_>) -> Option<Spread> {
    if named.store.timelines.iter().any(|timeline| !timeline.came_back) {
        return Some(Spread { median: f64::INFINITY, min: f64::INFINITY, max: f64::INFINITY });
    }
    let timeline = named.slowest_return()?;
    let runs = timeline.without_progress_runs_s?;
    Some(runs.map(|gap| (gap - timeline.ttl_s).max(0.0)))
}

impl Merit {
    /// Beyond the spread of the runs of both, and by a fifth.
    fn is_clear(&self, better: Spread, worse: Spread) -> bool {
        let (is_apart, low, high) = match self.is_less_better {
            true => (better.max < worse.min, better.median, worse.median),
            false => (better.min > worse.max, worse.median, better.median),
        };
        is_apart && high >= CLEARLY * low && high - low > self.matters
    }

    /// Clearly better than every peer that was measured, and there is one.
    fn is_won(&self, named: Named<'_>, peers: &[Named<'_>]) -> bool {
        let Some(own) = (self.of)(named).filter(|own| own.median.is_finite()) else { return false };
        let mut others = peers.iter().filter_map(|peer| (self.of)(*peer)).peekable();
        others.peek().is_some() && others.all(|other| self.is_clear(own, other))
    }

    /// Whether neither of the two is clearly better, if both were measured.
    fn is_even(&self, one: Named<'_>, other: Named<'_>) -> Option<bool> {
        let (one, other) = (self.of)(one).zip((self.of)(other))?;
        Some(!self.is_clear(one, other) && !self.is_clear(other, one))
    }
}

/// Neither of the two is clearly better in anything that was measured of both.
fn are_even(one: Named<'_>, other: Named<'_>) -> bool {
    let all_back = |named: Named<'_>| named.store.timelines.iter().all(|it| it.came_back);
    if all_back(one) != all_back(other) {
        return false;
    }
    let mut measured = MERITS.iter().filter_map(|merit| merit.is_even(one, other)).peekable();
    measured.peek().is_some() && measured.all(|is_even| is_even)
}

/// What is said of a store among its group.
pub(super) fn choice(named: Named<'_>, group: &Group<'_>, comparison: &Comparison) -> Choice {
    let peers = group.members.iter().copied().filter(|peer| peer.place != named.place);
    let peers: Vec<Named<'_>> = peers.collect();
    let mut choice = Choice {
        seen: seen(named),
        but: but(named),
        broken: named.store.faults.as_ref().map(broken).unwrap_or_default(),
        ..Choice::default()
    };
    if peers.is_empty() {
        choice.when = Some(alone(group).to_owned());
        return choice;
    }
    if !can_prefer(comparison) {
        return choice;
    }
    let won: Vec<&Merit> = MERITS.iter().filter(|merit| merit.is_won(named, &peers)).collect();
    let lasts = outlives_a_server(named.store)
        .then_some("locks must stay available while one server is down");
    let merits: Vec<&str> = lasts.into_iter().chain(won.iter().map(|merit| merit.when)).collect();
    choice.when = match &*merits {
        [] => None,
        [one] => Some((*one).to_owned()),
        [all @ .., last] => Some(format!("{} or {last}", all.join(", "))),
    };
    if merits.is_empty() {
        let even = peers.iter().filter(|peer| are_even(named, **peer));
        choice.as_good_as = even.map(|peer| peer.store.store.clone()).collect();
    }
    let texts = won.iter().filter_map(|merit| Some((merit.text)((merit.of)(named)?.median)));
    choice.seen.extend(texts.filter(|text| !text.is_empty()));
    choice
}

/// When to choose the only one of its group.
fn alone(group: &Group<'_>) -> &'static str {
    match (group.scope, group.band) {
        (Scope::Process, _) => "no lock leaves its process",
        (Scope::Machine, _) => "all clients run on one machine",
        (Scope::Network, Band::Never | Band::NotByFailures) => "no lock may be held twice",
        (Scope::Network, Band::Admitted | Band::Seen) => {
            "a lock that is held twice now and then does no harm"
        }
        (Scope::Network, Band::Unwatched) => "you already run it",
    }
}

/// Whether locks were granted again while some of its servers were killed or frozen.
pub(super) fn outlives_a_server(store: &Store) -> bool {
    let of_one_of_several = ["minority frozen", "leader killed", "master killed"];
    let mut timelines = store.timelines.iter();
    timelines.any(|it| it.came_back && of_one_of_several.contains(&&*it.failure))
}

fn seen(named: Named<'_>) -> Vec<String> {
    let mut seen = Vec::new();
    if let Some(load) = named.fastest() {
        seen.push(format!("{} pairs/s", figure(load.pairs_per_s.median)));
    }
    if let Some(faults) = named.store.faults.as_ref().filter(|faults| faults.acquisitions > 0) {
        let (overlaps, all) = (count(faults.overlaps), count(faults.acquisitions));
        seen.push(format!("{overlaps} of {all} acquisitions overlapped"));
    }
    if let Some(seconds) = named.beyond_ttl_s() {
        seen.push(match seconds > 0.0 {
            true => format!("back {} after the TTL", time_s(seconds)),
            false => "back within the TTL".to_owned(),
        });
    }
    seen
}

fn but(named: Named<'_>) -> Vec<String> {
    let mut but = Vec::new();
    let promises = &named.store.promises;
    match promises.overlaps_after.as_deref() {
        Some(after @ [_, ..]) => {
            but.push(format!("Two may hold one lock after: {}.", after.join(", ")));
        }
        None if !promises.exclusion_fails_when.is_empty() => {
            let when = promises.exclusion_fails_when.join("; ");
            but.push(format!("Two may hold one lock when: {when}."));
        }
        _ => {}
    }
    for timeline in named.store.timelines.iter().filter(|timeline| !timeline.came_back) {
        but.push(format!("Did not recover during the measurement ({}).", timeline.failure));
    }
    but
}

fn broken(faults: &UnderFaults) -> Vec<String> {
    let mut broken = faults.violations.clone();
    if faults.overlaps > faults.admitted_overlaps {
        let more = faults.overlaps - faults.admitted_overlaps;
        broken.push(format!(
            "{} that its profile does not admit",
            counted(more, "overlap", "overlaps")
        ));
    }
    if faults.lost_with_fencing > 0 {
        broken.push(format!(
            "{} lost in spite of fencing",
            counted(faults.lost_with_fencing, "update was", "updates were")
        ));
    }
    broken
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::report::bands::groups;
    use crate::compare::report::stores::named;

    fn of(comparison: &Comparison, name: &str) -> Choice {
        let stores = named(comparison);
        let groups = groups(&stores);
        let of = |group: &Group<'_>| {
            let named = group.members.iter().find(|named| named.store.store == name)?;
            Some(choice(*named, group, comparison))
        };
        groups.iter().find_map(of).expect("a store")
    }

    fn when(comparison: &Comparison, name: &str) -> String {
        of(comparison, name).when.unwrap_or_default()
    }

    /// Two stores of one group, with the same figures, which each test changes.
    fn pair() -> Comparison {
        let mut pair = Comparison::sample();
        let one = pair.stores.iter().find(|store| store.store == "redis-aof").expect("it").clone();
        let mut other = one.clone();
        "the other".clone_into(&mut other.store);
        pair.stores = vec![one, other];
        pair
    }

    fn spread(min: f64, median: f64, max: f64) -> Spread {
        Spread { median, min, max }
    }

    fn set_speed(store: &mut Store, speed: Spread) {
        let fastest = store.own_locks.iter_mut().max_by_key(|load| load.clients);
        fastest.expect("measured").pairs_per_s = speed;
    }

    const FASTER: &str = "throughput counts most";

    #[test]
    fn the_only_one_of_its_group_needs_no_merit() {
        let sample = Comparison::sample();
        assert_eq!(when(&sample, "memory"), "no lock leaves its process");
        assert_eq!(when(&sample, "file"), "all clients run on one machine");
    }

    #[test]
    fn a_merit_is_beyond_the_spread_and_a_fifth() {
        let other = spread(990.0, 1_000.0, 1_010.0);
        for (own, is_merit) in [
            (spread(1_190.0, 1_250.0, 1_300.0), true),
            // By less than a fifth, though runs hardly differ.
            (spread(1_185.0, 1_190.0, 1_195.0), false),
            // By half, but one run was no better than one of the other's.
            (spread(1_005.0, 1_500.0, 2_000.0), false),
            (other, false),
        ] {
            let mut pair = pair();
            set_speed(&mut pair.stores[0], own);
            set_speed(&mut pair.stores[1], other);
            assert_eq!(when(&pair, "redis-aof") == FASTER, is_merit, "{own:?}");
            assert_eq!(of(&pair, "the other").when, None, "{own:?}");
            let even: &[&str] = if is_merit { &[] } else { &["redis-aof"] };
            assert_eq!(of(&pair, "the other").as_good_as, even, "{own:?}");
        }
    }

    #[test]
    fn fewer_than_three_runs_prefer_nothing() {
        let mut pair = pair();
        set_speed(&mut pair.stores[0], spread(1e6, 1e6, 1e6));
        assert_eq!(when(&pair, "redis-aof"), FASTER);
        pair.repeats = 2;
        for name in ["redis-aof", "the other"] {
            let choice = of(&pair, name);
            assert_eq!((choice.when, choice.as_good_as), (None, vec![]), "nor are they even");
        }
    }

    #[test]
    fn quick_hand_offs_and_cheap_locks_are_merits_of_several_runs() {
        let mut pair = pair();
        pair.stores[0].hand_off.as_mut().expect("measured").p99_us = 1.0;
        assert_eq!(of(&pair, "redis-aof").when, None, "a p99 of one run");
        for (place, us) in [(0, 1_000.0), (1, 2_000.0)] {
            let hand_off = pair.stores[place].hand_off.as_mut().expect("measured");
            hand_off.p99_runs_us = Some(spread(0.9 * us, us, 1.1 * us));
            let cost = pair.stores[place].cost.as_mut().expect("measured");
            let idle = cost.idle.as_mut().expect("measured");
            idle.bytes_per_minute_runs = Some(spread(us, us, us));
        }
        let best = of(&pair, "redis-aof");
        let both = "hand-offs must be quick or many locks are held for long";
        assert_eq!(best.when.as_deref(), Some(both));
        assert!(best.seen.contains(&"hand-off p99 1.00 ms".to_owned()), "{best:?}");
    }

    #[test]
    fn a_return_counts_from_the_ttl_on() {
        let mut pair = pair();
        for (place, gap) in [(0, 2.01), (1, 2.09)] {
            for timeline in &mut pair.stores[place].timelines {
                (timeline.ttl_s, timeline.without_progress_s) = (2.0, gap);
                timeline.without_progress_runs_s = Some(spread(gap, gap, gap));
            }
        }
        // Nine times as long beyond the TTL, and all of it less than a tick of the measurement.
        assert_eq!(of(&pair, "redis-aof").when, None);
        assert!(of(&pair, "redis-aof").seen.contains(&"back 10 ms after the TTL".to_owned()));
        for timeline in &mut pair.stores[1].timelines {
            timeline.without_progress_runs_s = Some(spread(2.5, 2.6, 2.7));
        }
        assert_eq!(when(&pair, "redis-aof"), "work must continue soonest after a failure");
        for timeline in &mut pair.stores[0].timelines {
            timeline.without_progress_runs_s = None;
        }
        assert_eq!(of(&pair, "redis-aof").when, None, "of one run");
    }

    #[test]
    fn a_store_that_did_not_come_back_is_never_the_soonest() {
        let mut pair = pair();
        for store in &mut pair.stores {
            for timeline in &mut store.timelines {
                timeline.without_progress_runs_s = Some(spread(2.0, 2.0, 2.0));
            }
        }
        pair.stores[0].timelines[0].came_back = false;
        let gone = of(&pair, "redis-aof");
        assert_eq!((gone.when, gone.as_good_as), (None, vec![]));
        assert!(gone.but.iter().any(|but| but.contains("holder killed")), "{:?}", gone.but);
        assert_eq!(when(&pair, "the other"), "work must continue soonest after a failure");
    }

    #[test]
    fn several_servers_are_chosen_for_the_loss_of_one() {
        let mut sample = Comparison::sample();
        let text = "locks must stay available while one server is down";
        let place = sample.stores.iter().position(|it| it.store == "zookeeper-3").expect("it");
        let timeline = &mut sample.stores[place].timelines[0];
        "leader killed".clone_into(&mut timeline.failure);
        assert!(when(&sample, "zookeeper-3").starts_with(text));
        sample.stores[place].timelines.truncate(1);
        sample.stores[place].timelines[0].came_back = false;
        assert!(!when(&sample, "zookeeper-3").contains(text));
        assert!(!when(&sample, "redis-aof").contains(text));
    }

    #[test]
    fn a_merit_is_won_among_stores_that_are_as_safe() {
        let mut pair = pair();
        set_speed(&mut pair.stores[0], spread(1e6, 1e6, 1e6));
        let faults = pair.stores[0].faults.as_mut().expect("watched");
        (faults.overlaps, faults.admitted_overlaps) = (0, 0);
        assert_ne!(when(&pair, "redis-aof"), FASTER, "the other one was held twice");
    }

    #[test]
    fn every_broken_promise_is_named() {
        let mut sample = Comparison::sample();
        let faults = sample.stores[8].faults.as_mut().expect("measured");
        (faults.overlaps, faults.lost_with_fencing) = (2, 1);
        faults.violations.push("a token fell".to_owned());
        assert_eq!(
            of(&sample, "zookeeper").broken,
            [
                "a token fell",
                "2 overlaps that its profile does not admit",
                "1 update was lost in spite of fencing"
            ]
        );
    }
}
