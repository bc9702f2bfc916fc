//! The stores that this command was built with: what each brings besides its URLs, and what is said of
//! those that are left out.

#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redlock;

use std::process::ExitCode;

use fencelock::__features::{self, Lacking};
use fencelock::Result;
use fencelock_cli::{EX_CONFIG, say};

/// The commands for one store.
#[derive(clap::Subcommand)]
pub(crate) enum Options {
    #[cfg(feature = "postgres")]
    #[command(subcommand)]
    Postgres(postgres::Options),
    #[cfg(feature = "redis")]
    #[command(subcommand)]
    Redlock(redlock::Options),
}

/// Each command of [`Options`], the store that it needs, and whether that is built.
const COMMANDS: [(&str, &str, bool); 2] = [
    ("postgres", "PostgreSQL", cfg!(feature = "postgres")),
    ("redlock", "Redis", cfg!(feature = "redis")),
];

impl Options {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self {
            #[cfg(feature = "postgres")]
            Options::Postgres(options) => options.run(),
            #[cfg(feature = "redis")]
            Options::Redlock(options) => options.run(),
        }
    }
}

/// Reports a command of a store that is not built, if the first argument is one. Clap would say that
/// there is no such command.
pub(crate) fn refuse_if_missing() -> Option<ExitCode> {
    let given = std::env::args_os().nth(1)?;
    let (_, store, _) = COMMANDS.iter().find(|(name, _, built)| *name == given && !built)?;
    say(&format!("this build of fencelock is without {store}; {}", install(&[])));
    Some(ExitCode::from(EX_CONFIG))
}

/// What is said of a URL whose store is not built, or is of none that this build knows.
pub(crate) fn lacking(url: &str) -> Option<String> {
    if let Some(lacking) = __features::lacking(url) {
        return explain(lacking);
    }
    // Near the name of one that is here, the library says which.
    let scheme = url.split_once("://")?.0.to_ascii_lowercase();
    let is_here = ["file", "mem"].iter().any(|it| strsim::damerau_levenshtein(it, &scheme) <= 1);
    let says = format!("no store for this scheme in this build of fencelock; {}", install(&[]));
    (!is_here && COMMANDS.iter().all(|(.., built)| !built)).then_some(says)
}

fn explain(mut lacking: Lacking) -> Option<String> {
    let remedy =
        format!(", which this build of fencelock is without; {}", install(&lacking.features));
    // The library's; the command has both by one.
    for feature in &mut lacking.features {
        *feature = if *feature == "redlock" { "redis" } else { feature };
    }
    (!lacking.features.is_empty()).then(|| lacking.says(&remedy))
}

/// How to get a build with all stores, and with those of `features` that are not on by default.
fn install(features: &[&str]) -> String {
    let more = if features.contains(&"zk-tls") { " --features zk-tls" } else { "" };
    format!("for all stores, type in its repository: cargo install --locked --path cli{more}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_install_has_all_stores() {
        for url in ["postgres://h/d", "redis://h", "rediss://h", "redlock://a,b,c", "zk://h"] {
            assert_eq!(lacking(url), None, "{url}");
        }
        assert!(COMMANDS.iter().all(|(.., built)| *built), "{COMMANDS:?}");
    }

    #[test]
    fn what_a_build_lacks_is_said_with_the_command_that_installs_it() {
        let lacking = |store: &str, features: &[&'static str]| {
            explain(Lacking::of(store.to_owned(), features, |_| false).expect("none is built"))
        };
        assert_eq!(
            lacking("rediss://", &["redis", "tls"]).as_deref(),
            Some(
                "rediss:// needs the cargo features `redis` and `tls`, which this build of \
                 fencelock is without; for all stores, type in its repository: cargo install \
                 --locked --path cli"
            )
        );
        let of_tls = lacking("zks://, which", &["zk", "zk-tls"]).expect("a text");
        assert!(of_tls.ends_with("--path cli --features zk-tls"), "{of_tls}");
    }
}
