//! What decides: functions of what the nodes said, without I/O.

pub mod clocks;
pub mod incarnation;
pub(crate) mod rejections;
pub mod token;
pub mod votes;
