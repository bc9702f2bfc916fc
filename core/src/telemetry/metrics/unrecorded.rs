//! A program without the feature `metrics`.

use std::time::Duration;

use super::{GrantedBy, Outcome};
use crate::store::claim::AcquireRequest;
use crate::types::error::LostReason;

pub(crate) struct Metrics;

impl Metrics {
    pub(crate) fn new(_store: &'static str, _by_lock: bool) -> Metrics {
        Metrics
    }

    pub(crate) fn granted(&self, _request: &AcquireRequest, _waited: Duration, _by: GrantedBy) {}

    pub(crate) fn finished(&self, _request: &AcquireRequest, _outcome: Outcome) {}

    pub(crate) fn waits(&self, _request: &AcquireRequest, _change: f64) {}

    pub(crate) fn ended(
        &self,
        _request: &AcquireRequest,
        _held: Duration,
        _lost: Option<LostReason>,
    ) {
    }

    pub(crate) fn lost(&self, _request: &AcquireRequest, _reason: LostReason) {}

    pub(crate) fn renewed(&self, _took: Duration) {}
}
