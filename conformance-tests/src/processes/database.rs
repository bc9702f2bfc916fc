//! Registers in the lock's own database, which its holders write to in transactions that check the lock.
//!
//! The program whose peers do that has the database's client; this crate has none.

use std::time::Duration;

use async_trait::async_trait;
use fencelock_core::{Check, Result};

/// Opens a client of the database that the store of this URL is in. It connects when it is first used.
pub type OpenRegisters = fn(url: &str) -> Box<dyn DatabaseRegisters>;

/// One client of such registers.
#[async_trait]
pub trait DatabaseRegisters: Send {
    /// In one transaction: runs the check, if there is one, reads the register, thinks, writes one more than
    /// it read, and writes the transaction's id down beside it.
    ///
    /// # Errors
    /// [`Lost`](fencelock_core::ErrorKind::Lost) when the check was refused. After any other error it may or
    /// may not have been committed.
    async fn add_one(&mut self, addition: Addition<'_>) -> Result<()>;
}

/// What is added to a register.
#[derive(Clone, Copy, Debug)]
pub struct Addition<'a> {
    /// Unique among all additions.
    pub id: i64,
    /// The register, which has the name of its lock.
    pub register: &'a str,
    /// What the transaction checks first. The registers of additions without it are others.
    pub check: Option<&'a Check>,
    /// How long it thinks between reading and writing.
    pub think: Duration,
}
