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
const GROUP: &str = "/etc/group";

/// What the system knows of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) uid: u32,
    pub(crate) home: PathBuf,
    /// The user's own group, if nobody else is in it: a file that it may write is as safe as one
    /// that the user may write. Many distributions make such a group for each user, with a umask
    /// of 002.
    pub(crate) private_group: Option<u32>,
}

impl Account {
    /// That of the effective user.
    pub(crate) fn of_this_user() -> Result<Account> {
        let uid = rustix::process::geteuid().as_raw();
        let passwd = std::fs::read(PASSWD).map_err(|error| {
            refused(format!(
                "cannot read {PASSWD} for the default directory; {}",
                own_directory_advice(uid)
            ))
            .caused_by(error)
        })?;
        // Without it, no group is known to be private.
        let group = std::fs::read(GROUP).unwrap_or_default();
        Account::of(uid, &passwd, &group).ok_or_else(|| {
            refused(format!(
                "user {uid} has no home directory in {PASSWD}, so there is no default directory; {}",
                own_directory_advice(uid)
            ))
        })
    }

    fn of(uid: u32, passwd: &[u8], group: &[u8]) -> Option<Account> {
        let user = entries(passwd).find(|user| number(user.get(2)) == Some(uid))?;
        let home = Path::new(std::str::from_utf8(user.get(5)?).ok()?);
        if !home.is_absolute() {
            return None;
        }
        let gid = number(user.get(3));
        let private_group = gid.filter(|gid| {
            let only_user = entries(passwd)
                .filter(|other| number(other.get(3)) == Some(*gid))
                .all(|other| number(other.get(2)) == Some(uid));
            let mut groups = entries(group).filter(|group| number(group.get(2)) == Some(*gid));
            let only_member = groups.next().is_some_and(|group| {
                let members = group.get(3).copied().unwrap_or_default();
                group[0] == user[0] && (members.is_empty() || members == user[0])
            });
            only_user && only_member && groups.next().is_none()
        });
        Some(Account { uid, home: home.to_owned(), private_group })
    }
}

/// What to type for a directory of one's own where there is no default one.
pub(crate) fn own_directory_advice(uid: u32) -> String {
    format!(
        "make a directory for user {uid}, for example as root: install -d -m 0700 -o {uid} \
         /var/lib/fencelock-{uid} and use file:///var/lib/fencelock-{uid}"
    )
}

/// The fields of each line.
fn entries(file: &[u8]) -> impl Iterator<Item = Vec<&[u8]>> {
    file.split(|byte| *byte == b'\n').map(|line| line.split(|byte| *byte == b':').collect())
}

fn number(field: Option<&&[u8]>) -> Option<u32> {
    std::str::from_utf8(field?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const USERS: &[u8] =
        b"root:x:0:0:root:/root:/bin/sh\nbad\n\nme:x:1000:1000:Me,,:/home/me:/bin/sh\n\
        none:x:7:7::none:/bin/false\nshort:x:8:8\nyou:x:1001:1001::/home/you:/bin/sh\n\
        guest:x:1002:1001::/home/guest:/bin/sh\nall:x:1003:100::/home/all:/bin/sh\n\
        old:x:1004:1004::/home/old:/bin/sh";

    #[test]
    fn the_home_directory_is_the_sixth_field() {
        let home = |uid| Account::of(uid, USERS, b"").map(|account| account.home);
        assert_eq!(home(0).unwrap(), Path::new("/root"));
        assert_eq!(home(1000).unwrap(), Path::new("/home/me"));
        for user in [1, 7, 8, 10, 100] {
            assert_eq!(home(user), None);
        }
    }

    #[test]
    fn a_group_is_private_when_no_other_user_can_be_in_it() {
        let private = |uid, groups: &[u8]| Account::of(uid, USERS, groups).unwrap().private_group;
        assert_eq!(private(1000, b"root:x:0:\nme:x:1000:\n"), Some(1000));
        assert_eq!(private(1000, b"me:x:1000:me"), Some(1000));
        for (uid, groups) in [
            (1000, &b"me:x:1000:you"[..]),
            (1000, b"me:x:1000:me,you"),
            (1000, b"staff:x:1000:"),
            (1000, b"me:x:1000:\nme:x:1000:you"),
            (1000, b""),
            (1001, b"you:x:1001:"),
            (1003, b"users:x:100:"),
        ] {
            assert_eq!(private(uid, groups), None, "{uid} {}", String::from_utf8_lossy(groups));
        }
    }
}
