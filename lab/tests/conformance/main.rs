//! `fencelock conformance` on stores that are in use: at its end, whatever that is, they have what
//! they had before, and nothing more.

mod file;
mod redis;
mod redlock;
mod support;
mod zookeeper;
