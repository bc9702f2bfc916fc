//! The protocol with a server: keys, identities and scripts, and the meaning of replies and errors.

pub(crate) mod call;
pub(crate) mod error;
pub(crate) mod identity;
pub(crate) mod script;
pub(crate) mod snapshot;
