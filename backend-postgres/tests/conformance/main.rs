//! The public conformance suite on the Postgres store: a server alone, one with a standby for which its
//! commits wait, and one behind pgbouncer, all real and started here.

use fencelock_core::url::{Connecting, connect};
use fencelock_postgres::SCHEME;
use fencelock_testkit::postgres_harness::{PostgresHarness, Servers};

fn main() {
    let of = |kind| PostgresHarness::new(kind, open);
    fencelock_conformance::main_of(&[
        of(Servers::Alone),
        of(Servers::Synchronous),
        of(Servers::Pooled),
    ]);
}

fn open(url: &str) -> Connecting {
    let url = url.to_owned();
    Box::pin(async move { connect(&[SCHEME], &url).await })
}
