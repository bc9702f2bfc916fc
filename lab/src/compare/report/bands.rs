//! How safe a store is, as far as its profile and what was seen of it allow to say.
//!
//! What was not seen says how long a store was watched, not how safe it is: it never makes a store
//! safer than its profile. What was seen makes it less safe, whatever its profile says.

use super::stores::Named;
use crate::compare::data::Store;

/// Whether two clients can hold one lock of a store at once; the safest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Band {
    /// Its profile knows no such case, and none was seen.
    Never,
    /// None was seen. Its profile admits some, though not after a failure of its servers.
    NotByFailures,
    /// None was seen. Its profile admits some, after failures of its servers as far as is known.
    Admitted,
    /// It was not watched while anything failed.
    Unwatched,
    Seen,
}

impl Band {
    pub(super) fn of(store: &Store) -> Band {
        let promises = &store.promises;
        let Some(faults) = store.faults.as_ref().filter(|faults| faults.acquisitions > 0) else {
            return Band::Unwatched;
        };
        match (&*promises.exclusion_fails_when, promises.overlaps_after.as_deref()) {
            _ if faults.overlaps > 0 => Band::Seen,
            (_, Some([_, ..])) => Band::Admitted,
            ([], _) => Band::Never,
            (_, Some([])) => Band::NotByFailures,
            (_, None) => Band::Admitted,
        }
    }

    fn title(self) -> &'static str {
        match self {
            Band::Never => "two holders cannot be, by design",
            Band::NotByFailures => "none seen, none admitted after failures",
            Band::Admitted => "none seen, admitted by its profile",
            Band::Unwatched => "not watched under faults",
            Band::Seen => "two holders seen",
        }
    }
}

/// Who is excluded by a lock; the widest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Scope {
    Network,
    Machine,
    Process,
}

impl Scope {
    pub(super) fn of(store: &Store) -> Scope {
        match &store.promises.excludes {
            process if process.contains("one process") => Scope::Process,
            machine if machine.contains("one machine") => Scope::Machine,
            _ => Scope::Network,
        }
    }

    pub(super) fn title(self) -> &'static str {
        match self {
            Scope::Network => "Several machines",
            Scope::Machine => "One machine",
            Scope::Process => "One process",
        }
    }
}

/// Stores that can take each other's place.
pub(super) struct Group<'a> {
    pub(super) scope: Scope,
    pub(super) band: Band,
    /// The fastest first.
    pub(super) members: Vec<Named<'a>>,
}

impl Group<'_> {
    pub(super) fn title(&self) -> String {
        format!("{}: {}", self.scope.title(), self.band.title())
    }
}

/// The widest scope first, and in it the safest.
pub(super) fn groups<'a>(stores: &[Named<'a>]) -> Vec<Group<'a>> {
    let mut groups: Vec<Group<'a>> = Vec::new();
    for named in stores {
        let (scope, band) = (Scope::of(named.store), Band::of(named.store));
        match groups.iter_mut().find(|group| (group.scope, group.band) == (scope, band)) {
            Some(group) => group.members.push(*named),
            None => groups.push(Group { scope, band, members: vec![*named] }),
        }
    }
    for group in &mut groups {
        group.members.sort_by(|one, other| speed(*other).total_cmp(&speed(*one)));
    }
    groups.sort_by_key(|group| (group.scope, group.band));
    groups
}

/// One that was not measured comes last.
fn speed(named: Named<'_>) -> f64 {
    named.fastest().map_or(0.0, |load| load.pairs_per_s.median)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::data::Comparison;
    use crate::compare::report::stores::named;

    /// `store` with a profile, and a run in which so many overlaps were seen.
    fn watched(store: &Store, fails: &[&str], after: Option<&[&str]>, overlaps: u64) -> Store {
        let texts = |all: &[&str]| all.iter().map(|it| (*it).to_owned()).collect();
        let mut store = store.clone();
        store.promises.exclusion_fails_when = texts(fails);
        store.promises.overlaps_after = after.map(texts);
        let faults = store.faults.as_mut().expect("the sample was watched");
        (faults.overlaps, faults.admitted_overlaps) = (overlaps, overlaps);
        faults.overlaps_at_most = (overlaps == 0).then(|| 3.0 / faults.acquisitions as f64);
        store
    }

    #[test]
    fn no_store_is_safer_than_its_profile_however_long_nothing_was_seen() {
        let store = &Comparison::sample().stores[2];
        for acquisitions in [1, 1_000, 1_000_000_000] {
            let band = |fails, after| {
                let mut store = watched(store, fails, after, 0);
                store.faults.as_mut().expect("watched").acquisitions = acquisitions;
                Band::of(&store)
            };
            let after: Option<&[&str]> = Some(&["master killed"]);
            assert_eq!(band(&["a replica takes over"], after), Band::Admitted);
            assert_eq!(band(&[], after), Band::Admitted, "either half of the profile admits it");
            assert_eq!(
                band(&["a clock jumps"], None),
                Band::Admitted,
                "its servers were not broken"
            );
            assert_eq!(band(&["a clock jumps"], Some(&[])), Band::NotByFailures);
            assert_eq!(band(&[], Some(&[])), Band::Never);
        }
    }

    #[test]
    fn what_was_seen_outweighs_every_profile() {
        let store = &Comparison::sample().stores[2];
        for fails in [&[][..], &["a clock jumps"]] {
            for after in [None, Some(&[][..]), Some(&["master killed"][..])] {
                assert_eq!(Band::of(&watched(store, fails, after, 1)), Band::Seen);
            }
        }
    }

    #[test]
    fn what_was_not_watched_is_in_no_band_of_those_that_were() {
        let mut store = watched(&Comparison::sample().stores[0], &[], Some(&[]), 0);
        store.faults.as_mut().expect("watched").acquisitions = 0;
        assert_eq!(Band::of(&store), Band::Unwatched);
        store.faults = None;
        assert_eq!(Band::of(&store), Band::Unwatched);
    }

    #[test]
    fn groups_are_of_one_scope_and_band_with_the_fastest_first() {
        let mut sample = Comparison::sample();
        for faults in sample.stores.iter_mut().filter_map(|store| store.faults.as_mut()) {
            (faults.overlaps, faults.admitted_overlaps) = (0, 0);
        }
        let stores = named(&sample);
        let groups = groups(&stores);
        let shown: Vec<(Scope, Band, Vec<&str>)> = groups
            .iter()
            .map(|group| {
                let members = group.members.iter().map(|named| &*named.store.store).collect();
                (group.scope, group.band, members)
            })
            .collect();
        let safe = vec!["redis-aof", "redlock-3", "redlock-5", "zookeeper-3", "zookeeper"];
        let mut found = shown[0].2.clone();
        found.sort_unstable();
        let mut wanted = safe.clone();
        wanted.sort_unstable();
        assert_eq!((shown[0].0, shown[0].1, found), (Scope::Network, Band::NotByFailures, wanted));
        let forgetful = vec!["redis", "redis-failover", "redis-sentinel"];
        assert_eq!(shown[1], (Scope::Network, Band::Admitted, forgetful));
        assert_eq!(shown[2].0, Scope::Machine);
        assert_eq!(shown[3].0, Scope::Process);
        for group in &groups {
            assert!(group.members.windows(2).all(|pair| speed(pair[0]) >= speed(pair[1])));
        }
    }
}
