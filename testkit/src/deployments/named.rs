//! A store that the user named by its URL. It may be in use: nothing there is touched but what
//! begins with a fresh random prefix, and the faults are those of the clients and of their lines.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use fencelock_conformance::{Connect, ScratchStore};
use fencelock_core::url::StoreUrl;

use super::deployment::{Deployment, unknown};
use super::fault::Fault;
use super::lines::{Lines, Wiring};
use super::meter::Meter;
use crate::test_store::url::{at_hosts, proxied};

pub(super) struct Named {
    scheme: String,
    scratch: Arc<ScratchStore>,
    /// `None` where clients must reach the servers at the addresses that these name, or that their
    /// certificates do.
    lines: Option<Lines>,
    url: String,
}

impl Named {
    pub(super) async fn open(connect: Connect, url: &str, wiring: Wiring) -> io::Result<Named> {
        let scratch = ScratchStore::new(connect, url, "torture").map_err(io::Error::other)?;
        // Past any proxy: an error names what the user named, and no fault hits the last requests.
        scratch.open().await.map_err(io::Error::other)?;
        let url = scratch.url().to_owned();
        let scratch = Arc::new(scratch);
        let parsed = StoreUrl::parse(&url).map_err(io::Error::other)?;
        let scheme = parsed.scheme().to_owned();
        let proxied = proxied(&url).map_err(io::Error::other)?;
        let Some((framing, servers)) = proxied.filter(|_| wiring != Wiring::Direct) else {
            return Ok(Named { scheme, scratch, lines: None, url });
        };
        let lines = Lines::to(servers, framing, wiring).await?;
        let url = at_hosts(&url, &lines.hosts());
        Ok(Named { scheme, scratch, lines: Some(lines), url })
    }
}

#[async_trait(?Send)]
impl Deployment for Named {
    fn url(&self) -> String {
        self.url.clone()
    }

    fn prefix(&self) -> String {
        format!("{}{:016x}:", self.scratch.prefix(), fencelock_conformance::fresh_seed())
    }

    fn settings(&self) -> String {
        let through = if self.lines.is_some() { "through proxies" } else { "without proxies" };
        format!("the {} store of that URL, {through}", self.scheme)
    }

    async fn meter(&self) -> io::Result<Meter> {
        let traffic = self.lines.as_ref().and_then(Lines::traffic);
        Ok(Meter { traffic, ..Meter::default() })
    }

    fn faults(&self) -> Vec<Fault> {
        self.lines.iter().flat_map(Lines::faults).collect()
    }

    fn shares_between_processes(&self) -> bool {
        !["mem", "memory"].contains(&&*self.scheme)
    }

    async fn inflict(&self, fault: Fault, during: Duration) -> io::Result<()> {
        match (&self.lines, Lines::fault(fault)) {
            (Some(lines), Some(fault)) => lines.inflict(fault, during).await,
            _ => Err(unknown(fault)),
        }
    }

    fn scratch(&self) -> Option<Arc<ScratchStore>> {
        Some(self.scratch.clone())
    }
}
