//! The files and named pipes of one lock.

pub(crate) mod cell;
pub(crate) mod cell_record;
pub(crate) mod context;
pub(crate) mod inheritance;
pub(crate) mod leftovers;
pub(crate) mod lock_files;
pub(crate) mod named_pipe;
pub(crate) mod page;
pub(crate) mod regular_file;
pub(crate) mod slot_pipe;
pub(crate) mod state;
