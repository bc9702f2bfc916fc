//! Which cargo features bring the store of a URL: for the error of a program that was built without
//! them, which otherwise could not tell such a URL from a misspelt one. The command `fencelock` says
//! more about its own; other programs do not use this module, which changes without notice.

use fencelock_core::backend::invalid;
use fencelock_core::url::nearest_scheme;
use fencelock_core::{Operation, Result};

/// Schemes and the features that they need.
const TABLE: &[(&[&str], &[&str])] = &[
    (&["mem", "memory"], &["memory"]),
    (&["file"], &["file"]),
    (
        &[
            "redis",
            "redis+unix",
            "redis+sentinel",
            "redis-sentinel",
            "redis-cluster",
            "valkey",
            "valkey+unix",
            "valkey+sentinel",
            "valkey-cluster",
        ],
        &["redis"],
    ),
    (
        &[
            "rediss",
            "rediss+sentinel",
            "rediss-cluster",
            "valkeys",
            "valkeys+sentinel",
            "valkeys-cluster",
        ],
        &["redis", "tls"],
    ),
    (&["redlock"], &["redlock"]),
    (&["rediss+redlock"], &["redlock", "tls"]),
    (&["postgres", "postgresql"], &["postgres"]),
    (&["zk", "zookeeper"], &["zk"]),
];

/// Those that this program was built with; `redis` is met by its part without Redlock, too.
const BUILT: &[(&str, bool)] = &[
    ("memory", cfg!(feature = "memory")),
    ("file", cfg!(feature = "file")),
    ("redis", cfg!(feature = "redis-single")),
    ("redlock", cfg!(feature = "redlock")),
    ("tls", cfg!(feature = "tls")),
    ("postgres", cfg!(feature = "postgres")),
    ("zk", cfg!(feature = "zk")),
    ("zk-tls", cfg!(feature = "zk-tls")),
];

fn is_built(feature: &str) -> bool {
    BUILT.contains(&(feature, true))
}

/// A store that this program was built without.
#[derive(Debug)]
pub struct Lacking {
    /// `redis://`, or what is wrong with the scheme and then the one that was meant.
    store: String,
    /// The cargo features that bring it. None: the scheme is wrong in every program.
    pub features: Vec<&'static str>,
}

impl Lacking {
    /// Those of `features`, all of which `store` needs, that are not built; `None` if all are.
    #[must_use]
    pub fn of(
        store: String,
        features: &[&'static str],
        is_built: impl Fn(&str) -> bool,
    ) -> Option<Lacking> {
        let features: Vec<_> =
            features.iter().copied().filter(|feature| !is_built(feature)).collect();
        (!features.is_empty()).then_some(Lacking { store, features })
    }

    /// The error about it; `remedy` follows after the names of the features.
    #[must_use]
    pub fn says(&self, remedy: &str) -> String {
        let names: Vec<String> = self.features.iter().map(|name| format!("`{name}`")).collect();
        let plural = match names.len() {
            0 => return self.store.clone(),
            1 => "",
            _ => "s",
        };
        format!("{} needs the cargo feature{plural} {}{remedy}", self.store, names.join(" and "))
    }
}

/// What this program lacks for the store of `url`.
#[must_use]
pub fn lacking(url: &str) -> Option<Lacking> {
    match (url.split_once("://"), url.split_once(':')) {
        (Some((scheme, _)), _) => missing(scheme, is_built).or_else(|| nearly(scheme, is_built)),
        (None, Some((scheme, _))) => missing(scheme, is_built),
        (None, None) => None,
    }
}

/// An error if the store of `url` is one that this program was built without.
pub(crate) fn require(url: &str) -> Result<()> {
    let Some(lacking) = lacking(url) else { return Ok(()) };
    let list = lacking.features.join(",");
    let says = lacking.says(&format!(" of fencelock (cargo add fencelock --features {list})"));
    Err(invalid(says).during(Operation::Connect))
}

/// What a program with the features that `is_built` lacks for `scheme`. A scheme that is not of the
/// table, which may be any text, is left to the core.
fn missing(scheme: &str, is_built: impl Fn(&str) -> bool) -> Option<Lacking> {
    let scheme = scheme.to_ascii_lowercase();
    if scheme == "zks" {
        let store = "no store for zks://; ZooKeeper with TLS is zk://HOST:PORT?tls_ca=FILE";
        let lacking = Lacking::of(format!("{store}, which"), &["zk", "zk-tls"], is_built);
        return lacking.or_else(|| Some(Lacking { store: store.to_owned(), features: vec![] }));
    }
    Lacking::of(format!("{scheme}://"), features_of(&scheme)?, is_built)
}

/// What a program lacks for a misspelt `scheme`, if the nearest one is of a store that it was built
/// without: the core does not know of it, and could suggest none or another one.
fn nearly(scheme: &str, is_built: impl Fn(&str) -> bool) -> Option<Lacking> {
    let scheme = scheme.to_ascii_lowercase();
    // Otherwise it may be any text, such as a password in the wrong place.
    let is_one = scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    if !is_one || features_of(&scheme).is_some() {
        return None;
    }
    let names = TABLE.iter().flat_map(|(schemes, _)| schemes.iter().copied());
    let near = nearest_scheme(&scheme, names)?;
    let store = format!("no store for {scheme}:// (did you mean {near}?); {near}://");
    Lacking::of(store, features_of(near)?, is_built)
}

fn features_of(scheme: &str) -> Option<&'static [&'static str]> {
    let row = TABLE.iter().find(|(schemes, _)| schemes.contains(&scheme))?;
    Some(row.1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SCHEMES;

    #[test]
    fn the_table_has_every_scheme() {
        for name in SCHEMES.iter().flat_map(|scheme| scheme.names) {
            assert!(missing(name, |_| false).is_some(), "{name}");
            assert!(missing(name, |_| true).is_none(), "{name}");
        }
        let names = || TABLE.iter().flat_map(|(schemes, _)| *schemes);
        for (index, name) in names().enumerate() {
            assert!(names().skip(index + 1).all(|other| other != name), "{name} is there twice");
        }
    }

    #[test]
    fn a_store_that_is_not_built_in_names_its_features() {
        for (scheme, built, says) in [
            ("redis", &["memory", "file"][..], "redis:// needs the cargo feature `redis` of it"),
            ("REDISS", &["redis"], "rediss:// needs the cargo feature `tls` of it"),
            (
                "rediss-cluster",
                &[],
                "rediss-cluster:// needs the cargo features `redis` and `tls` of it",
            ),
            ("redlock", &["redis"], "redlock:// needs the cargo feature `redlock` of it"),
            ("zookeeper", &["redis"], "zookeeper:// needs the cargo feature `zk` of it"),
            (
                "zks",
                &["zk"],
                "no store for zks://; ZooKeeper with TLS is zk://HOST:PORT?tls_ca=FILE, which needs \
                 the cargo feature `zk-tls` of it",
            ),
            (
                "zks",
                &["zk", "zk-tls"],
                "no store for zks://; ZooKeeper with TLS is zk://HOST:PORT?tls_ca=FILE",
            ),
        ] {
            let lacking = missing(scheme, |feature| built.contains(&feature)).expect(scheme);
            assert_eq!(lacking.says(" of it"), says);
        }
        assert!(missing("me:hunter2@host", |_| false).is_none());
    }

    #[test]
    fn a_misspelt_store_that_is_not_built_in_names_its_features() {
        let default = |feature: &str| ["memory", "file"].contains(&feature);
        for (scheme, near, features) in [
            ("redi", "redis", &["redis"][..]),
            ("REDI", "redis", &["redis"]),
            ("reids", "redis", &["redis"]),
            ("rdis", "redis", &["redis"]),
            ("redisss", "rediss", &["redis", "tls"]),
            ("sentinel", "redis+sentinel", &["redis"]),
            ("redlok", "redlock", &["redlock"]),
            ("zookeper", "zookeeper", &["zk"]),
            ("zkk", "zk", &["zk"]),
            ("valky", "valkey", &["redis"]),
        ] {
            let lacking = nearly(scheme, default).expect(scheme);
            let given = scheme.to_ascii_lowercase();
            let says = format!(
                "no store for {given}:// (did you mean {near}?); {near}:// needs the cargo"
            );
            assert!(lacking.says("").starts_with(&says), "{lacking:?}");
            assert_eq!(lacking.features, features);
            assert!(nearly(scheme, |_| true).is_none(), "the core says it");
        }
        for (scheme, built) in [("redisss", "redis"), ("rediss-clustr", "redis")] {
            let lacking = nearly(scheme, |feature| feature == built).expect(scheme);
            assert_eq!(lacking.features, ["tls"]);
        }
        // The nearest is built, or none is near, or it is not a scheme at all.
        for scheme in ["files", "memry", "http", "etcd", "postgres", "redis", "p@redis", ""] {
            assert!(nearly(scheme, default).is_none(), "{scheme}");
        }
    }
}
