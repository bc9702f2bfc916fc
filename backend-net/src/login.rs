//! The user and password of a connection, fixed or read anew for each.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fencelock_core::backend::{invalid, io_message};
use fencelock_core::{Error, ErrorKind, Result};
use tokio::runtime::Handle;

use crate::files::warn_of_others;

/// A user and a password; `Debug` shows neither.
#[derive(Clone, Default)]
pub struct Credentials {
    /// `None`: the server's default one.
    pub user: Option<String>,
    /// `None`: no password is given.
    pub password: Option<String>,
}

impl Credentials {
    /// This user and password; an empty user is the server's default one.
    #[must_use]
    pub fn new(user: &str, password: &str) -> Credentials {
        let user = (!user.is_empty()).then(|| user.to_owned());
        Credentials { user, password: Some(password.to_owned()) }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").finish_non_exhaustive()
    }
}

/// Where the credentials of a connection come from.
#[derive(Clone)]
pub enum Login {
    /// The same for each.
    Fixed(Credentials),
    /// The password is the content of a file.
    File {
        /// The user.
        user: Option<String>,
        /// The file, read for each connection.
        path: PathBuf,
    },
    /// The user's function, called for each connection.
    Asked(Arc<dyn Fn() -> Result<Credentials> + Send + Sync>),
}

impl Default for Login {
    fn default() -> Login {
        Login::Fixed(Credentials::default())
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Login::Fixed(_) => f.write_str("Fixed"),
            Login::File { path, .. } => f.debug_tuple("File").field(path).finish(),
            Login::Asked(_) => f.write_str("Asked"),
        }
    }
}

impl Login {
    /// This user and password; an empty user is the server's default one.
    #[must_use]
    pub fn new(user: &str, password: &str) -> Login {
        Login::Fixed(Credentials::new(user, password))
    }

    /// The login of these parts of a URL, of which `parameter` names the file; `None` when there is a user
    /// alone.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] when the password is given twice.
    pub fn of_parts(
        user: Option<&str>,
        password: Option<&str>,
        file: Option<&str>,
        parameter: &str,
    ) -> Result<Option<Login>> {
        let user = user.map(str::to_owned);
        match (password, file) {
            (Some(_), Some(_)) => {
                Err(invalid(format!("the password is given twice, in the URL and by {parameter}")))
            }
            (None, Some(path)) => Ok(Some(Login::File { user, path: path.into() })),
            (None, None) if user.is_some() => Ok(None),
            (password, None) => {
                let password = password.map(str::to_owned);
                Ok(Some(Login::Fixed(Credentials { user, password })))
            }
        }
    }

    /// The current credentials. Files are read and functions called on a thread that may block.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a file that cannot be read, and what the function returns.
    pub async fn credentials(&self, runtime: &Handle) -> Result<Credentials> {
        let reading = match self.clone() {
            Login::Fixed(credentials) => return Ok(credentials),
            Login::File { user, path } => runtime
                .spawn_blocking(move || Ok(Credentials { user, password: Some(read(&path)?) })),
            Login::Asked(ask) => runtime.spawn_blocking(move || ask()),
        };
        reading.await.unwrap_or_else(|cause| {
            let message = "the function that gives the credentials has panicked";
            Err(Error::new(ErrorKind::Refused, message).caused_by(cause))
        })
    }

    /// Warns once of a file that others can read or change.
    pub fn warn(&self) {
        if let Login::File { path, .. } = self {
            warn_of_others(path);
        }
    }
}

/// The password in a file, without a trailing newline.
fn read(path: &Path) -> Result<String> {
    let invalid = |why: &str| {
        let file = path.display();
        Error::new(ErrorKind::InvalidArgument, format!("the password file {file} {why}"))
    };
    let text = std::fs::read(path).map_err(|cause| {
        let why = format!("cannot be read: {}", io_message(&cause));
        invalid(&why).caused_by(cause)
    })?;
    // Without the cause, which would show the content.
    let text = String::from_utf8(text).map_err(|_| invalid("is not UTF-8"))?;
    let password = text.strip_suffix('\n').unwrap_or(&text);
    let password = password.strip_suffix('\r').unwrap_or(password);
    match password {
        "" => Err(invalid("is empty")),
        password => Ok(password.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_read_from_its_file_without_the_end_of_the_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("password");
        for (text, password) in [("a b", "a b"), ("a\n", "a"), ("a\r\n", "a"), ("a\n\n", "a\n")] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(read(&path).unwrap(), password);
        }
        for (text, says) in [(&b"\n"[..], "is empty"), (b"hunter2\xff", "is not UTF-8")] {
            std::fs::write(&path, text).unwrap();
            let error = read(&path).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            let shown = format!("{error} {error:?}");
            assert!(shown.contains(says) && !shown.contains("hunter2"), "{shown}");
        }
        let error = read(&directory.path().join("none")).unwrap_err().to_string();
        assert!(error.contains("none cannot be read: no such file"), "{error}");
    }
}
