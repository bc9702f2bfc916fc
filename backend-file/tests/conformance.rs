//! The public conformance suite on the file store, each behaviour in a directory of its own.

use async_trait::async_trait;
use fencelock_conformance::{Backdoor, Harness, Params, Store};
use fencelock_core::{Error, ErrorKind, Locks, Result};
use fencelock_file::FileStore;
use tempfile::TempDir;

struct FileHarness;

struct Directory(TempDir);

fn main() {
    fencelock_conformance::main(FileHarness);
}

fn cannot(doing: &str, cause: std::io::Error) -> Error {
    Error::new(ErrorKind::Refused, format!("cannot {doing}")).caused_by(cause)
}

async fn connect(directory: &str, params: &Params) -> Result<Locks> {
    FileStore::at(directory).locks(params.settings()?).await
}

#[async_trait]
impl Harness for FileHarness {
    fn name(&self) -> &str {
        "file"
    }

    async fn open(&self, _prefix: &str) -> Result<Box<dyn Store>> {
        let directory = tempfile::tempdir().map_err(|e| cannot("make a directory", e))?;
        Ok(Box::new(Directory(directory)))
    }

    async fn connect_peer(&self, address: &str, params: &Params) -> Result<Locks> {
        connect(address, params).await
    }
}

#[async_trait]
impl Store for Directory {
    async fn connect(&self, params: &Params) -> Result<Locks> {
        connect(&self.peer_address(), params).await
    }

    fn backdoors(&self) -> &[Backdoor] {
        &[Backdoor::Inspect, Backdoor::Processes]
    }

    fn why_not(&self, backdoor: Backdoor) -> String {
        match backdoor {
            Backdoor::Expire => "the file store's locks end with their process, not with time",
            Backdoor::CutOff
            | Backdoor::SlowReplies
            | Backdoor::LoseReply
            | Backdoor::NetworkFaults => "nothing lies between the file store and its clients",
            _ => "deleting the directory in use is outside what the file store promises",
        }
        .to_owned()
    }

    async fn leftovers(&self) -> Result<Vec<String>> {
        fencelock_file::leftovers(self.0.path()).map_err(|e| cannot("read the directory", e))
    }

    async fn is_locked(&self, _name: &str) -> Result<bool> {
        // The behaviours look at the one lock they use; what is read is the queue file itself.
        let left = self.leftovers().await?;
        Ok(left.iter().any(|lock| !lock.contains(" 0 held")))
    }

    fn peer_address(&self) -> String {
        self.0.path().to_string_lossy().into_owned()
    }
}
