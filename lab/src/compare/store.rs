//! What is known of a store before anything is measured, and said of its speed afterwards.

use fencelock::Profile;
use fencelock_testkit::deployments::Deployment;

use super::data::{Cost, Promises, Store};
use crate::store_spec::StoreSpec;

impl Store {
    pub(super) fn of(
        spec: &StoreSpec,
        deployment: &dyn Deployment,
        servers: Vec<String>,
        profile: &Profile,
    ) -> Store {
        Store {
            store: spec.to_string(),
            settings: deployment.settings(),
            servers,
            to_run: spec.to_run().map(str::to_owned),
            promises: Promises::of(profile),
            own_locks: Vec::new(),
            one_lock: Vec::new(),
            shared_locks: Vec::new(),
            fixed_rate: None,
            hand_off: None,
            timelines: Vec::new(),
            faults: None,
            cost: None,
            flash_sales: Vec::new(),
            failures: Vec::new(),
        }
    }

    pub(super) fn cost_so_far(&mut self) -> &mut Cost {
        self.cost.get_or_insert_default()
    }

    pub(super) fn speed_summary(&self) -> String {
        let load = self.own_locks.last().map(|load| {
            let (pairs, clients) = (load.pairs_per_s.median, load.clients);
            format!("{pairs:.0} pairs/s with {clients} clients that have their own locks")
        });
        let hand_off = self.hand_off.as_ref();
        let hand_off = hand_off.map(|it| format!("hand-off {:.2} ms", it.p50_us / 1e3));
        load.into_iter().chain(hand_off).collect::<Vec<_>>().join(", ")
    }
}

impl Promises {
    fn of(profile: &Profile) -> Promises {
        let fails = profile.exclusion_fails_when.iter().map(|it| (*it).to_owned());
        Promises {
            excludes: profile.reach.to_string(),
            order: profile.order.to_string(),
            dead_holder: profile.liveness.to_string(),
            tokens: profile.tokens.to_string(),
            exclusion_fails_when: fails.collect(),
            overlaps_after: None,
        }
    }
}
