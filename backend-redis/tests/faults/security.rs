//! Authorization and encryption: ACLs, TLS, Unix sockets, passwords, databases.

#![allow(clippy::unwrap_used)]

mod acl;
mod document;
mod passwords;
mod places;
mod rotation;
mod support;
mod tls;
