//! Claims: their queue, what they cost, and what they leave when they are cancelled.

mod batching;
mod cancel;
mod queue;
mod requests;
mod shared_heartbeat;
mod watch_budget;
