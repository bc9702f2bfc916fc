//! The sections of the page, a file for each.

pub(super) mod cost;
pub(super) mod faults;
pub(super) mod hand_off;
pub(super) mod overview;
pub(super) mod promises;
pub(super) mod sale;
pub(super) mod settings;
pub(super) mod speed;
pub(super) mod timelines;
