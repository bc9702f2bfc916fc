//! The files of keys and certificates.

use std::path::Path;

use fencelock_core::Result;
use fencelock_core::backend::{invalid, io_message};

/// Warns if all users of this machine can read or change `file`, which has a password or a key.
pub(crate) fn warn_of_others(file: &Path) {
    #[cfg(unix)]
    if let Ok(about) = std::fs::metadata(file)
        && about.is_file()
    {
        let rights = std::os::unix::fs::PermissionsExt::mode(&about.permissions());
        let can = match (rights & 0o004, rights & 0o002) {
            (0, 0) => return,
            (_, 0) => "read",
            (0, _) => "change",
            (_, _) => "read and change",
        };
        let file = file.display();
        tracing::warn!(
            "all users of this machine can {can} the secret in {file}; chmod o-rw {file}"
        );
    }
}

/// Reads a key for TLS, and warns if others can.
///
/// # Errors
/// As [`read_certificate_file`].
pub fn read_key_file(file: &Path) -> Result<Vec<u8>> {
    warn_of_others(file);
    read_certificate_file(file)
}

/// Reads a certificate for TLS.
///
/// # Errors
/// [`InvalidArgument`](fencelock_core::ErrorKind::InvalidArgument) with the file's name.
pub fn read_certificate_file(file: &Path) -> Result<Vec<u8>> {
    std::fs::read(file).map_err(|cause| {
        let why = io_message(&cause);
        let message = format!("cannot read the file {}: {why}", file.display());
        invalid(message).caused_by(cause)
    })
}
