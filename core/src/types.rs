//! Value types that users and stores share: names, modes, tokens, durations, errors.

pub(crate) mod causes;
pub(crate) mod error;
pub(crate) mod mode;
pub(crate) mod name;
pub(crate) mod options;
pub(crate) mod token;
