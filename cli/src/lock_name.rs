//! The argument NAME of the commands that are about one lock.

use fencelock::LockName;
use fencelock::backend::url::StoreUrl;

/// Checks a lock's name. A name is shown in messages and to the lock's other clients, so one with a
/// password is taken for a store's URL in the wrong place.
pub(crate) fn lock_name(text: &str) -> Result<String, String> {
    if StoreUrl::parse(text).is_ok_and(|url| url.password().is_some()) {
        let expected = "expected the lock's name, which all its clients see, and not a URL with a password; \
                        the store's URL is given by --url";
        return Err(expected.to_owned());
    }
    LockName::new(text).map(|_| text.to_owned()).map_err(|error| error.message().to_owned())
}
