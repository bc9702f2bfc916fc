//! Servers: one, or a cluster of them, and how script calls reach them.

pub(crate) mod batch;
pub(crate) mod cluster;
pub(crate) mod node;
pub(crate) mod sample;
pub(crate) mod scratch;
pub(crate) mod server_info;
mod sharing;
mod slot_map;
pub(crate) mod topology;
mod wait_replicas;
