//! One claim on a lock: the steps from its first attempt to its release, and its watches.

pub(crate) mod acquisition;
mod predecessor_watch;
