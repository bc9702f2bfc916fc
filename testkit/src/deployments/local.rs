//! Stores without a server: nothing can be done to them but to their clients.

use std::io;
use std::path::Path;

use async_trait::async_trait;
use tempfile::TempDir;

use super::deployment::Deployment;
use super::meter::Meter;

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

    async fn meter(&self) -> io::Result<Meter> {
        Ok(Meter { keys: Some(entries_below(self.0.path())?), ..Meter::default() })
    }
}

/// Entries that go meanwhile, as drafts do, may be counted or not.
fn entries_below(directory: &Path) -> io::Result<u64> {
    let is_gone = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    let entries = match std::fs::read_dir(directory) {
        Err(error) if is_gone(&error) => return Ok(0),
        entries => entries?,
    };
    let mut count = 0;
    for entry in entries {
        let entry = entry?;
        count += 1;
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => count += entries_below(&entry.path())?,
            Err(error) if !is_gone(&error) => return Err(error),
            _ => {}
        }
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_directory_counts_what_is_below_it() {
        let deployment = Directory::new().unwrap();
        let keys = async || deployment.meter().await.unwrap().keys;
        assert_eq!(keys().await, Some(0));
        let lock = deployment.0.path().join("lock");
        std::fs::create_dir(&lock).unwrap();
        std::fs::write(lock.join("queue"), "").unwrap();
        assert_eq!(keys().await, Some(2));
    }
}
