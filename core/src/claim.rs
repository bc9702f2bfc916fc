//! One claim's life, once for every store: what is held, how long is waited for it, and the clean-up.

pub(crate) mod cleanup;
pub(crate) mod hold;
pub(crate) mod own_hold;
pub(crate) mod wait;
