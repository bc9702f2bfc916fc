//! A slot on its way from one master to another, which a test may leave half way.

use std::io;

use super::TestCluster;
use crate::servers::redis::{SERVER, TestRedis};
use crate::servers::{ServerError, failed};

/// A slot on the move: its old master answers for the keys that it still has, and sends clients
/// to the new one for others (ASK). Dropping it leaves the slot as it is.
#[derive(Debug)]
#[must_use = "the slot stays half way until the migration is finished"]
pub struct SlotMigration<'a> {
    cluster: &'a TestCluster,
    slot: u16,
    from: &'a TestRedis,
    to: &'a TestRedis,
    to_id: String,
}

impl TestCluster {
    /// Moves a slot with its keys to another master, and waits until all nodes know.
    ///
    /// # Errors
    /// When a server refuses, or the nodes do not agree in time.
    pub async fn migrate_slot(&self, slot: u16, to: &TestRedis) -> Result<(), ServerError> {
        self.begin_migration(slot, to).await?.finish().await
    }

    /// Puts a slot half way between its master and another one. All keys are still at the old
    /// one: [`SlotMigration::move_keys`], [`SlotMigration::finish`].
    ///
    /// # Errors
    /// When a server refuses.
    pub async fn begin_migration<'a>(
        &'a self,
        slot: u16,
        to: &'a TestRedis,
    ) -> Result<SlotMigration<'a>, ServerError> {
        SlotMigration::begin(self, slot, to).await
    }
}

impl<'a> SlotMigration<'a> {
    async fn begin(
        cluster: &'a TestCluster,
        slot: u16,
        to: &'a TestRedis,
    ) -> Result<Self, ServerError> {
        let from = cluster.master_of(slot).await?;
        let begun = async {
            let (from_id, to_id) = (cluster.id(from).await?, cluster.id(to).await?);
            // In this order: a client that is sent to the new master must be let in.
            set_slot(to, slot, "IMPORTING", &from_id).await?;
            set_slot(from, slot, "MIGRATING", &to_id).await?;
            Ok(to_id)
        };
        let to_id = begun.await.map_err(failed(SERVER, "moving a slot of"))?;
        Ok(Self { cluster, slot, from, to, to_id })
    }

    /// The slot.
    #[must_use]
    pub fn slot(&self) -> u16 {
        self.slot
    }

    /// The master from which the slot is taken.
    #[must_use]
    pub fn from(&self) -> &'a TestRedis {
        self.from
    }

    /// The master to which it goes.
    #[must_use]
    pub fn to(&self) -> &'a TestRedis {
        self.to
    }

    /// Moves one key of the slot. A missing key is not an error.
    ///
    /// # Errors
    /// When a server refuses.
    pub async fn move_key(&self, key: &str) -> Result<(), ServerError> {
        self.migrate(&[key]).await.map_err(failed(SERVER, "moving a slot of"))
    }

    /// Moves all keys that are left: from now on requests for them get ASK.
    ///
    /// # Errors
    /// When a server refuses.
    pub async fn move_keys(&self) -> Result<(), ServerError> {
        let moved = async {
            loop {
                let slot = self.slot.to_string();
                let keys = self.from.command(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"]).await?;
                if keys.is_empty() {
                    return Ok(());
                }
                self.migrate(&keys.lines().collect::<Vec<_>>()).await?;
            }
        };
        moved.await.map_err(failed(SERVER, "moving a slot of"))
    }

    /// Moves what is left, makes the new master the owner, and waits until all nodes know.
    ///
    /// # Errors
    /// When a server refuses, or the nodes do not agree in time.
    pub async fn finish(self) -> Result<(), ServerError> {
        self.move_keys().await?;
        let owned = async {
            // The new master first, the old one next: there must always be an owner.
            let mut nodes = self.cluster.masters().await?;
            nodes.sort_by_key(|node| [self.to, self.from].map(|first| first.port() != node.port()));
            for node in nodes {
                set_slot(node, self.slot, "NODE", &self.to_id).await?;
            }
            Ok(())
        };
        owned.await.map_err(failed(SERVER, "moving a slot of"))?;
        self.cluster.agreed_on(self.slot, self.to).await
    }

    async fn migrate(&self, keys: &[&str]) -> io::Result<()> {
        let port = self.to.port().to_string();
        let mut command = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "REPLACE"];
        if let Some(password) = self.from.password() {
            command.extend(["AUTH", password]);
        }
        command.push("KEYS");
        command.extend(keys);
        self.from.command(&command).await.map(|_| ())
    }
}

async fn set_slot(node: &TestRedis, slot: u16, state: &str, id: &str) -> io::Result<()> {
    let slot = slot.to_string();
    node.command(&["CLUSTER", "SETSLOT", &slot, state, id]).await.map(|_| ())
}
