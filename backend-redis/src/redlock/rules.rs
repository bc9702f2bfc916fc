//! What decides: functions of what the nodes said, without I/O.

pub mod clocks;
pub mod incarnation;
pub(crate) mod rejections;
pub(crate) mod release_tally;
pub mod token;
pub mod votes;
