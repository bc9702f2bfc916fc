//! What is said to a server: keys, identities, the scripts, and what its replies and errors mean.

pub(crate) mod call;
pub(crate) mod error;
pub(crate) mod identity;
pub(crate) mod script;
pub(crate) mod snapshot;
