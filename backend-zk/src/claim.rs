//! One claim on a lock: the steps from its first attempt to its release, and its watches.

pub(crate) mod acquisition;
mod held_node_watch;
pub(crate) mod missed_watches;
mod predecessor_watch;
