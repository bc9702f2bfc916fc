//! One claim on a lock: its place in the queue, and the watches on what it waits for or holds.

pub(crate) mod acquisition;
pub(crate) mod held_node_watcher;
pub(crate) mod predecessor_watch;
