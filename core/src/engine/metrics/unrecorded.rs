//! A program without the feature `metrics`.

use std::time::Duration;

use super::Outcome;
use crate::store::claim::Claim;
use crate::types::error::LostReason;

pub(crate) struct Metrics;

impl Metrics {
    pub(crate) fn new(_store: &'static str, _by_lock: bool) -> Metrics {
        Metrics
    }

    pub(crate) fn granted(&self, _claim: &Claim, _waited: Duration) {}

    pub(crate) fn finished(&self, _claim: &Claim, _outcome: Outcome) {}

    pub(crate) fn waits(&self, _claim: &Claim, _change: f64) {}

    pub(crate) fn ended(&self, _claim: &Claim, _held: Duration, _lost: Option<LostReason>) {}

    pub(crate) fn renewed(&self, _took: Duration) {}
}
