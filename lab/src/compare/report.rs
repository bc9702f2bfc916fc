//! The report of a comparison: one page that works without a network.
//!
//! `page` assembles the `sections`; each of them draws its figures by `figure` (charts, in `charts`)
//! and `table`. `bands` says how safe a store is, `summary` what it is good for and `requirements`
//! whether that is enough, all from figures alone.

mod bands;
mod charts;
mod figure;
mod numbers;
mod page;
mod requirements;
mod sections;
mod stores;
mod summary;
mod table;

use std::path::Path;

use fencelock::{Error, ErrorKind, Result};

use super::data::Comparison;
pub(super) use numbers::counted;
pub(super) use requirements::Requirements;

/// The format of the figures that is written and read here.
pub(super) const FORMAT: u32 = 1;

/// Writes the page to `out`, and the figures to `json`. Each file is
/// replaced as a whole or not at all.
///
/// # Errors
///
/// If a file cannot be written.
pub(crate) fn write(
    comparison: &Comparison,
    requirements: Option<&Requirements>,
    out: &Path,
    json: Option<&Path>,
) -> Result<()> {
    // The figures first: the report can be drawn from them again.
    if let Some(json) = json {
        replace(json, pretty(comparison).as_bytes())?;
    }
    replace(out, page::page(comparison, requirements).into_string().as_bytes())
}

/// Checks that a file could be written there.
///
/// # Errors
///
/// If it could not be.
pub(crate) fn can_be_at(file: &Path) -> Result<()> {
    fencelock_cli::new_beside(file).map(drop).map_err(|cause| unwritten(file, cause))
}

fn pretty(value: &impl serde::Serialize) -> String {
    let text = serde_json::to_string_pretty(value);
    text.unwrap_or_else(|_| unreachable!("plain numbers and strings")) + "\n"
}

fn replace(file: &Path, content: &[u8]) -> Result<()> {
    fencelock_cli::replace(file, content).map_err(|cause| unwritten(file, cause))
}

fn unwritten(file: &Path, cause: std::io::Error) -> Error {
    let message = format!(
        "the report could not be written to {}: expected a file in a directory that exists \
         and can be written",
        file.display()
    );
    Error::new(ErrorKind::InvalidArgument, message).caused_by(cause)
}
