//! The connected store and its claims: what the core calls.

pub(crate) mod acquisition;
pub(crate) mod backend;
pub(crate) mod cells;
pub(crate) mod operator;
pub(crate) mod store;
pub(crate) mod waiter_check;
