//! Servers that are frozen, killed, cut off from each other, or full.

mod ensemble;
mod quorum;
mod single;
