//! Connections and sessions: opened, refused, cut off and replaced.

mod connecting;
mod older;
mod replies;
mod rights;
mod session;
#[cfg(feature = "tls")]
mod tls;
