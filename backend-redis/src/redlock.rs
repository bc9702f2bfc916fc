//! Locks on a majority of independent servers (Redlock), with two things besides: a node that lost
//! its data is kept out until nothing of before can be held, and fencing tokens rise over
//! majorities.
//!
//! <https://redis.io/docs/latest/develop/use/patterns/distributed-locks/>

pub mod clocks;
pub mod fence;
pub mod marker;
pub mod votes;
