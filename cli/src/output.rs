//! What commands print on standard output.

use std::io::{self, Write as _};

use fencelock::{Error, ErrorKind, Result};

/// Whether there is a reader of the standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    Reads,
    Gone,
}

/// Writes `text` to standard output. A reader that has seen enough, such as `head`, is not an error.
///
/// # Errors
/// [`ErrorKind::Refused`] when it cannot be written, for example to a full disk.
pub(crate) fn print(text: &str) -> Result<()> {
    print_on(text).map(drop)
}

/// As [`print`], for a command that ends when its reader does.
pub(crate) fn print_on(text: &str) -> Result<Reader> {
    let mut output = io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Ok(()) => Ok(Reader::Reads),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Reader::Gone),
        Err(error) => {
            Err(Error::new(ErrorKind::Refused, "cannot write to standard output").caused_by(error))
        }
    }
}

/// Rows with aligned columns; the last column is not padded, since its texts may be long.
pub(crate) fn table<const COLUMNS: usize>(rows: &[[String; COLUMNS]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: [usize; COLUMNS] = std::array::from_fn(|column| width(column).unwrap_or(0));
    let line = |row: &[String; COLUMNS]| {
        let cells = row.iter().zip(widths);
        let cells: String = cells.map(|(cell, width)| format!("{cell:width$}  ")).collect();
        cells.trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_by_characters() {
        let rows = [["A", "LONG"], ["größer", "x"]].map(|row| row.map(str::to_owned));
        assert_eq!(table(&rows), "A       LONG\ngrößer  x\n");
    }
}
