//! A server as a standby, which replicates another one, and what a primary says about its standbys.

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;

use super::options::{blocking, data_in};
use super::{PASSWORD, REPLICATOR, SERVER, TestPostgres};
use crate::servers::eventually::{PATIENCE, eventually, not_yet};
use crate::servers::unprivileged;
use crate::servers::{ServerError, failed};

impl TestPostgres {
    /// Makes this a standby of the server at that address, which may be a proxy's: drops its own data, copies
    /// the other's, and waits until it replicates.
    ///
    /// # Errors
    /// When that does not happen.
    pub async fn follow(&self, primary: SocketAddr) -> Result<(), ServerError> {
        self.running.instance.stop().await?;
        self.become_standby_of(primary).await
    }

    pub(super) async fn become_standby_of(&self, primary: SocketAddr) -> Result<(), ServerError> {
        let programs = self.running.options.programs_or_missing();
        let programs = programs.map_err(|missing| self.running.instance.missing(missing))?;
        let data = data_in(&self.running.home);
        let copied = blocking(move || {
            if data.exists() {
                std::fs::remove_dir_all(&data)?;
            }
            let (host, port) = (primary.ip(), primary.port());
            let from = format!("host={host} port={port} user={REPLICATOR} sslmode=disable");
            let args = ["-X", "stream", "-c", "fast", "--no-sync", "-w", "-d", &from, "-D"];
            let args = args.map(OsString::from).into_iter().chain([data.clone().into()]);
            unprivileged::run(programs.join("pg_basebackup"), args, |command| {
                command.env("PGPASSWORD", PASSWORD);
            })?;
            // What a primary was told while it ran is not for its standby.
            unprivileged::write(&data.join("postgresql.auto.conf"), "")?;
            unprivileged::write(&data.join("standby.signal"), "")
        });
        copied.await.map_err(failed(SERVER, "copying the primary's data to"))?;
        self.configure(Some(primary)).map_err(failed(SERVER, "configuring"))?;
        self.launch().await?;
        self.replicates().await
    }

    /// Waits until this standby is connected to its primary.
    ///
    /// # Errors
    /// When that does not happen.
    pub async fn replicates(&self) -> Result<(), ServerError> {
        eventually(SERVER, "replication", PATIENCE, || async {
            match self.sql("SELECT status FROM pg_stat_wal_receiver").await?.as_str() {
                "streaming" => Ok(()),
                status => Err(not_yet(format!("the WAL receiver is {status:?}"))),
            }
        })
        .await
    }

    /// Waits until the standby has replayed all that was written to this server so far, also what no commit
    /// has waited for.
    ///
    /// # Errors
    /// When that does not happen.
    pub async fn has_told(&self, standby: &TestPostgres) -> Result<(), ServerError> {
        let written = self.sql("SELECT pg_current_wal_insert_lsn()").await;
        let written = written.map_err(failed(SERVER, "asking"))?;
        let replayed = format!("SELECT pg_last_wal_replay_lsn() >= '{written}'");
        eventually(SERVER, "the writes at the standby", PATIENCE, || async {
            match standby.sql(&replayed).await?.as_str() {
                "t" => Ok(()),
                _ => Err(not_yet("it is behind")),
            }
        })
        .await
    }

    /// Makes each commit of this primary wait for its standby, which must be there.
    ///
    /// # Errors
    /// When the standby does not become a synchronous one.
    pub async fn wait_for_standby_at_commits(&self) -> Result<(), ServerError> {
        let set = async || {
            self.sql("ALTER SYSTEM SET synchronous_standby_names = '*'").await?;
            self.sql("SELECT pg_reload_conf()").await.map(drop)
        };
        set().await.map_err(failed(SERVER, "configuring"))?;
        eventually(SERVER, "a synchronous standby", PATIENCE, || async {
            match self.sql("SELECT string_agg(sync_state, ',') FROM pg_stat_replication").await? {
                states if states == "sync" => Ok(()),
                states => Err(not_yet(format!("the standbys are {states:?}"))),
            }
        })
        .await
    }

    /// Makes a primary of this standby, whose old primary must have ended, or both accept writes. It accepts
    /// writes on return.
    ///
    /// # Errors
    /// When it does not.
    pub async fn promote(&self) -> Result<(), ServerError> {
        let promoted = async {
            match self.sql_within("SELECT pg_promote(true, 60)", PATIENCE).await?.as_str() {
                "t" => Ok(()),
                _ => Err(io::Error::other("it was not promoted within 60 s")),
            }
        };
        promoted.await.map_err(failed(SERVER, "promoting"))
    }
}
