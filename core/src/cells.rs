//! Cells: small values with compare-and-swap, and the one way in which everything that is made of them
//! reads, changes and watches them.
//!
//! A change is a pure function of what is there. [`combining`](self::combining) applies the changes of
//! one process to a cell together, [`settled`](self::settled) makes one write of them and finds out what
//! became of it when the store gave no answer, and [`watching`](self::watching) has one watch for all
//! who wait for the same cell.

mod cell;
mod combining;
pub(crate) mod expired;
mod handle;
mod record;
mod settled;
mod watching;

pub use cell::{Cell, CellValue, CellVersion, CellWatch};
pub(crate) use combining::{Step, View, require_token};
pub use expired::{ExpiredCell, ExpiredCells};
pub(crate) use handle::{Handle, not_ours};
pub(crate) use record::{Kind, MAX_BODY};
