//! One lock: its latch, its queue, and the order in which requests of this process use them.

pub(crate) mod disk_step;
pub(crate) mod file_lock;
pub(crate) mod io_threads;
pub(crate) mod queue_cache;
pub(crate) mod queue_guard;
pub(crate) mod request_line;
pub(crate) mod requests;
pub(crate) mod shared_queue;
