//! The queue of a lock and its fencing tokens, in memory and as bytes. All of it is pure.

pub(crate) mod entry;
pub(crate) mod ledger;
pub(crate) mod record;
pub(crate) mod rules;
