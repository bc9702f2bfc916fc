//! Wake-ups between processes that the closing of a pipe does not give.

pub(crate) mod notifications;
pub(crate) mod owned_pipe;
pub(crate) mod wake_pipe;
