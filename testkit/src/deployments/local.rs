//! Stores without a server: nothing can be done to them but to their clients.

use std::io;
use std::time::Duration;

use async_trait::async_trait;
use tempfile::TempDir;

use super::{Deployment, Fault, unknown};

pub(super) struct Memory;

#[async_trait(?Send)]
impl Deployment for Memory {
    fn url(&self) -> String {
        "mem://".to_owned()
    }

    fn settings(&self) -> String {
        "in the clients' one process".to_owned()
    }

    fn shares_between_processes(&self) -> bool {
        false
    }

    async fn inflict(&self, fault: Fault, _: Duration) -> io::Result<()> {
        Err(unknown(fault))
    }

    /// It is gone with the process.
    async fn leftovers(&self) -> io::Result<Vec<String>> {
        Ok(Vec::new())
    }
}

pub(super) struct Directory(TempDir);

impl Directory {
    pub(super) fn new() -> io::Result<Directory> {
        Ok(Directory(tempfile::Builder::new().prefix("fencelock-deployment-").tempdir()?))
    }
}

#[async_trait(?Send)]
impl Deployment for Directory {
    fn url(&self) -> String {
        format!("file://{}", self.0.path().display())
    }

    fn settings(&self) -> String {
        "a directory on this machine's temporary file system".to_owned()
    }

    async fn inflict(&self, fault: Fault, _: Duration) -> io::Result<()> {
        Err(unknown(fault))
    }

    /// A lock's files stay, for its token; what is in them, only the library reads.
    async fn leftovers(&self) -> io::Result<Vec<String>> {
        Ok(Vec::new())
    }
}
