//! The directory of a store: which one it is, whether it can carry locks, and how files are
//! created in it safely.

pub(crate) mod account;
pub(crate) mod default_dir;
pub(crate) mod draft;
pub(crate) mod lock_name;
pub(crate) mod open;
pub(crate) mod store_dir;
pub(crate) mod walk;
