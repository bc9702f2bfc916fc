//! Which cargo features bring the store of a URL: for the error of a program that was built without
//! them, which otherwise could not tell such a URL from a misspelt one.

use fencelock_core::backend::invalid;
use fencelock_core::{Error, Operation, Result};

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
    (&["zk", "zookeeper"], &["zk"]),
];

/// Those that this program was built with; `redis` is met by its part without Redlock, too.
const BUILT: &[(&str, bool)] = &[
    ("memory", cfg!(feature = "memory")),
    ("file", cfg!(feature = "file")),
    ("redis", cfg!(feature = "redis-single")),
    ("redlock", cfg!(feature = "redlock")),
    ("tls", cfg!(feature = "tls")),
    ("zk", cfg!(feature = "zk")),
    ("zk-tls", cfg!(feature = "zk-tls")),
];

fn is_built(feature: &str) -> bool {
    BUILT.contains(&(feature, true))
}

/// An error if the store of `url` is one that this program was built without.
pub(crate) fn require(url: &str) -> Result<()> {
    match url.split_once("://").and_then(|(scheme, _)| missing(scheme, is_built)) {
        Some(error) => Err(error.during(Operation::Connect)),
        None => Ok(()),
    }
}

/// The error about `scheme` in a program with the features that `is_built`, if these do not suffice.
/// A scheme that is not of the table, which may be any text, is left to the core.
fn missing(scheme: &str, is_built: impl Fn(&str) -> bool) -> Option<Error> {
    let scheme = scheme.to_ascii_lowercase();
    if scheme == "zks" {
        let needs = needs(&["zk", "zk-tls"], is_built);
        let needs = needs.map(|needs| format!(", which needs {needs}")).unwrap_or_default();
        return Some(invalid(format!(
            "no store for zks://; ZooKeeper with TLS is zk://HOST:PORT?tls_ca=FILE{needs}"
        )));
    }
    let (_, features) = TABLE.iter().find(|(schemes, _)| schemes.contains(&scheme.as_str()))?;
    let needs = needs(features, is_built)?;
    Some(invalid(format!("{scheme}:// needs {needs}")))
}

/// Those of `features` that this program lacks, and how to add them.
fn needs(features: &[&str], is_built: impl Fn(&str) -> bool) -> Option<String> {
    let missing: Vec<&str> =
        features.iter().copied().filter(|feature| !is_built(feature)).collect();
    let names: Vec<String> = missing.iter().map(|feature| format!("`{feature}`")).collect();
    let plural = match names.len() {
        0 => return None,
        1 => "",
        _ => "s",
    };
    let (names, list) = (names.join(" and "), missing.join(","));
    Some(format!(
        "the cargo feature{plural} {names} of fencelock (cargo add fencelock --features {list})"
    ))
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
            (
                "redis",
                &["memory", "file"][..],
                "redis:// needs the cargo feature `redis` of fencelock (cargo add fencelock \
                 --features redis)",
            ),
            (
                "REDISS",
                &["redis"],
                "rediss:// needs the cargo feature `tls` of fencelock (cargo add fencelock \
                 --features tls)",
            ),
            (
                "rediss-cluster",
                &[],
                "rediss-cluster:// needs the cargo features `redis` and `tls` of fencelock (cargo \
                 add fencelock --features redis,tls)",
            ),
            (
                "redlock",
                &["redis"],
                "redlock:// needs the cargo feature `redlock` of fencelock (cargo add fencelock \
                 --features redlock)",
            ),
            (
                "zookeeper",
                &["redis"],
                "zookeeper:// needs the cargo feature `zk` of fencelock (cargo add fencelock \
                 --features zk)",
            ),
            (
                "zks",
                &["zk"],
                "no store for zks://; ZooKeeper with TLS is zk://HOST:PORT?tls_ca=FILE, which needs \
                 the cargo feature `zk-tls` of fencelock (cargo add fencelock --features zk-tls)",
            ),
            (
                "zks",
                &["zk", "zk-tls"],
                "no store for zks://; ZooKeeper with TLS is zk://HOST:PORT?tls_ca=FILE",
            ),
        ] {
            let error = missing(scheme, |feature| built.contains(&feature)).expect(scheme);
            assert_eq!(error.message(), says);
        }
        assert!(missing("me:hunter2@host", |_| false).is_none());
    }
}
