//! What a store is good for: rules over its promises and what was seen of it, no opinions.
//!
//! A store is compared with those of the same scope that were as safe: a faster store does not matter if
//! it does not do the work.

use std::cmp::Ordering;

use super::numbers::{count, counted, figure, time_us};
use super::stores::Named;
use crate::compare::data::{Store, UnderFaults};

/// What is said of one store.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Choice {
    /// Continues "choose it when …".
    pub(super) when: String,
    /// The figures that it rests on.
    pub(super) seen: Vec<String>,
    /// What must be done with it, or is not known.
    pub(super) but: Vec<String>,
    /// Promises that it broke: a bug, and a reason not to choose it.
    pub(super) broken: Vec<String>,
}

/// Stores that can take each other's place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Kind {
    OneProcess,
    OneMachine,
    NetworkSafe,
    NetworkUnsafe,
    NetworkUnknown,
}

impl Kind {
    pub(super) const ALL: [Kind; 5] = [
        Kind::OneProcess,
        Kind::OneMachine,
        Kind::NetworkSafe,
        Kind::NetworkUnsafe,
        Kind::NetworkUnknown,
    ];

    pub(super) fn of(store: &Store) -> Kind {
        let excludes = &store.promises.excludes;
        let faults = store.faults.as_ref().filter(|faults| faults.acquisitions > 0);
        match faults.map(|faults| faults.overlaps) {
            _ if excludes.contains("one process") => Kind::OneProcess,
            _ if excludes.contains("one machine") => Kind::OneMachine,
            Some(1..) => Kind::NetworkUnsafe,
            // What was not seen in minutes may still be: there the profile says more.
            seen => match (seen, store.promises.overlaps_after.as_deref()) {
                (_, Some([_, ..])) => Kind::NetworkUnsafe,
                (Some(0), Some([])) => Kind::NetworkSafe,
                _ => Kind::NetworkUnknown,
            },
        }
    }

    /// Over the stores of the kind.
    pub(super) fn title(self) -> &'static str {
        match self {
            Kind::OneProcess => "Tasks of one process",
            Kind::OneMachine => "Processes of one machine",
            Kind::NetworkSafe => "Several machines, and two holders at once would do harm",
            Kind::NetworkUnsafe => {
                "Several machines, and two holders at once are rare enough, or fenced off"
            }
            Kind::NetworkUnknown => "Several machines; its servers' failures were not seen",
        }
    }

    /// When to choose the only one of its kind.
    fn when(self) -> &'static str {
        match self {
            Kind::OneProcess => "no lock leaves its process: nothing needs to run",
            Kind::OneMachine => "all clients run on one machine: no server needs to run",
            Kind::NetworkSafe => "no lock may be held twice",
            Kind::NetworkUnsafe => "a lock that is held twice now and then does no harm",
            Kind::NetworkUnknown => "you already run it",
        }
    }
}

/// What a store can be better at than its peers.
struct Merit {
    /// Continues "choose it when …".
    when: &'static str,
    /// Less is better; absent where it was not measured.
    cost: fn(Named<'_>) -> Option<f64>,
    /// The cost as text; empty if every store has it.
    text: fn(f64) -> String,
}

const MERITS: [Merit; 4] = [
    Merit {
        when: "throughput counts most",
        cost: |named| Some(-named.fastest()?.pairs_per_s.median),
        text: |_| String::new(),
    },
    Merit {
        when: "hand-offs must be quick",
        cost: |named| Some(named.store.hand_off.as_ref()?.p99_us),
        text: |us| format!("hand-off p99 {}", time_us(us)),
    },
    Merit {
        when: "work must continue soonest after a failure",
        cost: |named| match named.store.timelines.iter().all(|timeline| timeline.came_back) {
            true => Some(named.slowest_return()?.without_progress_s),
            false => Some(f64::INFINITY),
        },
        text: |_| String::new(),
    },
    Merit {
        when: "many locks are held for long",
        cost: |named| named.store.cost.as_ref()?.idle.as_ref()?.bytes_per_minute,
        text: |bytes| format!("{} B/min for a held lock", figure(bytes)),
    },
];

/// What is said of a store among `stores`.
pub(super) fn choice(named: Named<'_>, stores: &[Named<'_>]) -> Choice {
    let kind = Kind::of(named.store);
    let peers = stores.iter().copied().filter(|peer| peer.place != named.place);
    let peers: Vec<Named<'_>> = peers.filter(|peer| Kind::of(peer.store) == kind).collect();
    let won: Vec<&Merit> = MERITS.iter().filter(|merit| is_best(merit, named, &peers)).collect();
    let lasting = outlives_a_server(named.store)
        .then_some("locks must stay available while one server is down");
    let merits: Vec<&str> = lasting.into_iter().chain(won.iter().map(|merit| merit.when)).collect();
    let mut seen = seen(named);
    seen.extend(won.iter().filter_map(|merit| Some((merit.text)((merit.cost)(named)?))));
    seen.retain(|text| !text.is_empty());
    Choice {
        when: match (&*peers, &*merits) {
            ([], _) => kind.when().to_owned(),
            (_, []) => "no advantage measured here; sensible if you already run it".to_owned(),
            (_, [one]) => (*one).to_owned(),
            (_, [all @ .., last]) => format!("{} or {last}", all.join(", ")),
        },
        seen,
        but: but(named),
        broken: named.store.faults.as_ref().map(broken).unwrap_or_default(),
    }
}

/// Whether locks were granted again while some of its servers were killed or frozen.
fn outlives_a_server(store: &Store) -> bool {
    let of_one_of_several = ["minority frozen", "leader killed", "master killed"];
    let mut timelines = store.timelines.iter();
    timelines.any(|it| it.came_back && of_one_of_several.contains(&&*it.failure))
}

/// Better than every peer of which it is known, and there is one.
fn is_best(merit: &Merit, named: Named<'_>, peers: &[Named<'_>]) -> bool {
    let Some(own) = (merit.cost)(named).filter(|cost| cost.is_finite()) else { return false };
    let mut others = peers.iter().filter_map(|peer| (merit.cost)(*peer)).peekable();
    others.peek().is_some() && others.all(|other| own.total_cmp(&other) == Ordering::Less)
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
    if let Some(timeline) = named.slowest_return().filter(|timeline| timeline.came_back) {
        seen.push(format!("back in {} s", figure(timeline.without_progress_s)));
    }
    seen
}

fn but(named: Named<'_>) -> Vec<String> {
    let mut but = Vec::new();
    match named.store.faults.as_ref().filter(|faults| faults.acquisitions > 0) {
        None => but.push("What it does under faults was not measured.".to_owned()),
        Some(faults) if faults.lost_without_fencing > 0 => but.push(format!(
            "Always with fencing ({} lost without).",
            counted(faults.lost_without_fencing, "update", "updates")
        )),
        Some(faults) if faults.overlaps > 0 => {
            but.push("Always with fencing: two held a lock at once.".to_owned());
        }
        Some(_) => {}
    }
    let promises = &named.store.promises;
    match promises.overlaps_after.as_deref() {
        Some(after @ [_, ..]) if Kind::of(named.store) == Kind::NetworkUnsafe => {
            but.push(format!("Two may hold one lock after: {}.", after.join(", ")));
        }
        None if Kind::of(named.store) == Kind::NetworkUnknown
            && !promises.exclusion_fails_when.is_empty() =>
        {
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
    use crate::compare::data::Comparison;
    use crate::compare::report::stores::named;

    fn sample() -> Comparison {
        let text = include_str!("../../../tests/compare/sample.json");
        serde_json::from_str(text).expect("a comparison")
    }

    fn of(comparison: &Comparison, name: &str) -> Choice {
        let stores = named(comparison);
        let named = stores.iter().find(|named| named.store.store == name).expect("a store");
        choice(*named, &stores)
    }

    #[test]
    fn the_only_one_of_its_kind_needs_no_merit() {
        let sample = sample();
        assert_eq!(of(&sample, "memory").when, "no lock leaves its process: nothing needs to run");
        let file = of(&sample, "file").when;
        assert_eq!(file, "all clients run on one machine: no server needs to run");
    }

    #[test]
    fn merits_are_won_among_stores_that_are_as_safe() {
        let sample = sample();
        let redlock = of(&sample, "redlock-3").when;
        assert!(
            redlock.contains("throughput counts most"),
            "redis is faster, not as safe: {redlock}"
        );
        let zookeeper = of(&sample, "zookeeper").when;
        assert_eq!(zookeeper, "no advantage measured here; sensible if you already run it");
    }

    #[test]
    fn several_servers_are_chosen_for_the_loss_of_one() {
        let mut sample = sample();
        let text = "locks must stay available while one server is down";
        let place = sample.stores.iter().position(|it| it.store == "zookeeper-3").expect("it");
        let timeline = &mut sample.stores[place].timelines[0];
        "leader killed".clone_into(&mut timeline.failure);
        assert!(of(&sample, "zookeeper-3").when.starts_with(text));
        sample.stores[place].timelines.truncate(1);
        sample.stores[place].timelines[0].came_back = false;
        assert!(!of(&sample, "zookeeper-3").when.contains(text));
        assert!(!of(&sample, "redis-aof").when.contains(text));
    }

    #[test]
    fn a_store_that_did_not_come_back_is_never_the_soonest() {
        let mut sample = sample();
        assert!(of(&sample, "redis").when.contains("soonest after a failure"));
        sample.stores[2].timelines[0].came_back = false;
        let redis = of(&sample, "redis");
        assert!(!redis.when.contains("soonest after a failure"), "{redis:?}");
        assert!(redis.but.iter().any(|but| but.contains("holder killed")), "{redis:?}");
    }

    #[test]
    fn an_equal_figure_is_no_merit() {
        let mut sample = sample();
        let fastest = sample.stores[2].own_locks.clone();
        sample.stores[3].own_locks = fastest;
        for name in ["redis", "redis-aof"] {
            assert!(!of(&sample, name).when.contains("throughput"), "{name}");
        }
    }

    #[test]
    fn fencing_is_advised_where_updates_were_lost_without_or_two_held() {
        let mut sample = sample();
        assert_eq!(of(&sample, "memory").but, [""; 0]);
        assert_eq!(of(&sample, "redis").but[0], "Always with fencing (55 updates lost without).");
        let faults = sample.stores[2].faults.as_mut().expect("measured");
        faults.lost_without_fencing = 0;
        assert_eq!(of(&sample, "redis").but[0], "Always with fencing: two held a lock at once.");
        sample.stores[2].faults = None;
        assert_eq!(of(&sample, "redis").but[0], "What it does under faults was not measured.");
    }

    #[test]
    fn every_broken_promise_is_named() {
        let mut sample = sample();
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
