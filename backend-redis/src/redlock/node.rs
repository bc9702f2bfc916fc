//! The nodes as one client sees them: connections, which of them can be asked, and what each has
//! yet to be sent.

pub(crate) mod fan_out;
pub(crate) mod member;
pub(crate) mod monitor;
pub(crate) mod pending_releases;
pub(crate) mod quorum;
pub(crate) mod record;
pub(crate) mod view;
pub(crate) mod waiters;
