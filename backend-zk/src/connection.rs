//! Connections to the servers: settings, login, encryption, and what is found when none is granted.

pub(crate) mod access;
pub(crate) mod login;
pub(crate) mod owners;
pub(crate) mod probe;
pub(crate) mod tls;
