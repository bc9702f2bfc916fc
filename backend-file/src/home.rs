//! Where this user is at home, by the system's own account.
//!
//! `$HOME` is what a shell says, and differs under cron, sudo and service managers: two processes
//! of one user would not exclude each other. `/etc/passwd` is read as it is; users who are known
//! only to a directory service (NSS, LDAP) are told to name a directory, since asking the name
//! service takes unsafe code.

use std::path::{Path, PathBuf};

use fencelock_core::Result;

use crate::error::refused;

const PASSWD: &str = "/etc/passwd";

/// The home directory of the effective user.
pub(crate) fn of_this_user() -> Result<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let passwd = std::fs::read(PASSWD).map_err(|error| {
        refused(format!("cannot read {PASSWD} for the default directory; use file:///DIR"))
            .caused_by(error)
    })?;
    of(user, &passwd).ok_or_else(|| {
        refused(format!(
            "user {user} has no home directory in {PASSWD}, so there is no default directory; \
             use file:///DIR"
        ))
    })
}

fn of(user: u32, passwd: &[u8]) -> Option<PathBuf> {
    let user = user.to_string();
    let home = passwd.split(|byte| *byte == b'\n').find_map(|line| {
        let mut fields = line.split(|byte| *byte == b':');
        let is_user = fields.nth(2)? == user.as_bytes();
        is_user.then(|| fields.nth(2)).flatten()
    })?;
    let home = Path::new(std::str::from_utf8(home).ok()?);
    home.is_absolute().then(|| home.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_home_directory_is_the_sixth_field() {
        let passwd =
            b"root:x:0:0:root:/root:/bin/sh\nbad\n\nme:x:1000:1000:Me,,:/home/me:/bin/sh\n\
            none:x:7:7::none:/bin/false\nshort:x:8:8";
        assert_eq!(of(0, passwd).unwrap(), Path::new("/root"));
        assert_eq!(of(1000, passwd).unwrap(), Path::new("/home/me"));
        for user in [1, 7, 8, 10, 100] {
            assert_eq!(of(user, passwd), None);
        }
    }
}
