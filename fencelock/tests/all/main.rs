//! The library as programs use it, with every store. One program, since each costs a link of all stores.

mod connect;
mod documents;
mod errors;
mod examples;
mod guarantees;
mod lazy;
mod locked;
mod messages;
mod metrics;
mod paused_time;
mod readme;
mod testkit;
