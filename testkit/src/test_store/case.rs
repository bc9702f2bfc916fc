//! What a test asks for: its kind of store, and what that is like.

use fencelock_core::url::Connecting;

/// One test on one store.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The test's name, with its modules.
    pub name: &'static str,
    /// The kind of store.
    pub kind: StoreKind,
    /// Whether the test gets a server of its own.
    pub own_server: bool,
    /// Whether the runtime's clock is paused.
    pub start_paused: bool,
    /// Whether the runtime has several threads.
    pub multi_thread: bool,
    /// The default lease of the store's clients, such as `2s`.
    pub ttl: Option<&'static str>,
    /// `fencelock::connect`.
    pub connect: fn(&str) -> Connecting,
}

/// The kinds of stores that a test can name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StoreKind {
    /// `mem`: the memory of the test's process.
    Memory,
    /// `file`: a directory of the test's own.
    File,
    /// `postgres`: a PostgreSQL server.
    Postgres,
    /// `redis`: a Redis server.
    Redis,
    /// `zk`: a ZooKeeper server.
    ZooKeeper,
}

impl StoreKind {
    /// Its name in the attribute.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            StoreKind::Memory => "mem",
            StoreKind::File => "file",
            StoreKind::Postgres => "postgres",
            StoreKind::Redis => "redis",
            StoreKind::ZooKeeper => "zk",
        }
    }

    /// The environment variable with the URL of a store to test on.
    pub(super) fn variable(self) -> Option<&'static str> {
        match self {
            StoreKind::Memory => None,
            StoreKind::File => Some("FENCELOCK_TEST_FILE_URL"),
            StoreKind::Postgres => Some("FENCELOCK_TEST_POSTGRES_URL"),
            StoreKind::Redis => Some("FENCELOCK_TEST_REDIS_URL"),
            StoreKind::ZooKeeper => Some("FENCELOCK_TEST_ZK_URL"),
        }
    }
}

/// What to do about a store whose server is not installed.
pub(crate) const MISSING: &str = "FENCELOCK_TEST_MISSING";

/// An error that is not the library's, and its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
