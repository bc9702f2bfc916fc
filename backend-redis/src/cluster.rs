//! A Redis Cluster: which node has which slot, and how to follow a slot that moves.
//!
//! The client crate's cluster connection repeats requests behind its caller's back, up to nine
//! times in one measurement, so that a release that worked would say it did not. Here each request
//! is sent once for each redirection, every node has a supervised connection of its own, and a
//! node that fails holds up nobody else's.
//! <https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/>

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crc::{CRC_16_XMODEM, Crc};
use fencelock_core::{Error, ErrorKind, Result};
use redis::{RedisError, Value};
use tokio::time::Instant;

use crate::error::{explain, strange_answer};
use crate::link::{Audience, Link};
use crate::node::{Node, Step};
use crate::route::{ANSWER_WITHIN, Caller, Host, Route};

const SLOTS: u16 = 16384;
const CRC: Crc<u16> = Crc::<u16>::new(&CRC_16_XMODEM);

/// A request follows this many redirections; more mean that the nodes do not agree.
const REDIRECTIONS: usize = 5;
/// The map is asked for again no more often than this.
const MAP_PAUSE: Duration = Duration::from_millis(100);

/// A connected cluster.
#[derive(Debug)]
pub(crate) struct Cluster {
    caller: Arc<Caller>,
    replicas: u32,
    /// Hears of the keys at each node, not of the hand-overs, which `any` hears of.
    nodes_audience: Audience,
    /// Those that the user named, and behind them in `known` those of the last map.
    seeds: Vec<Host>,
    known: Arc<Mutex<Vec<Host>>>,
    /// To any node: carries the pushes, which every node gets, and tells the map of slots.
    any: Link,
    map: Mutex<Map>,
    /// When the map was last asked for; held while it is.
    asking: tokio::sync::Mutex<Option<Instant>>,
}

#[derive(Debug, Default)]
struct Map {
    /// First slot, last slot, master; in order.
    ranges: Vec<(u16, u16, Host)>,
    nodes: HashMap<Host, Arc<Node>>,
    closed: bool,
}

/// The slot of a key without braces.
fn slot(key: &str) -> u16 {
    CRC.checksum(key.as_bytes()) % SLOTS
}

impl Cluster {
    pub(crate) fn start(
        seeds: Vec<Host>,
        caller: Arc<Caller>,
        audience: Audience,
        replicas: u32,
    ) -> Cluster {
        let nodes_audience = Audience { channel: None, ..audience.clone() };
        let known = Arc::new(Mutex::new(seeds.clone()));
        let any = Link::start(Route::Any(known.clone()), caller.clone(), audience, ANSWER_WITHIN);
        let (map, asking) = (Mutex::default(), tokio::sync::Mutex::default());
        Cluster { caller, replicas, nodes_audience, seeds, known, any, map, asking }
    }

    pub(crate) fn any(&self) -> &Link {
        &self.any
    }

    fn map(&self) -> MutexGuard<'_, Map> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The master that has `key`, as far as is known.
    pub(crate) fn host_of(&self, key: &str) -> Option<Host> {
        let slot = slot(key);
        let map = self.map();
        let at = map.ranges.partition_point(|(_, last, _)| *last < slot);
        let (first, _, host) = map.ranges.get(at)?;
        (*first <= slot).then(|| host.clone())
    }

    pub(crate) fn node_of(&self, key: &str) -> Option<Arc<Node>> {
        self.host_of(key).map(|host| self.node(&host))
    }

    fn node(&self, host: &Host) -> Arc<Node> {
        let mut map = self.map();
        if let Some(node) = map.nodes.get(host) {
            return node.clone();
        }
        let route = Route::To(host.clone());
        let node =
            Arc::new(Node::start(&route, &self.caller, self.nodes_audience.clone(), self.replicas));
        if map.closed {
            node.close();
        }
        map.nodes.insert(host.clone(), node.clone());
        node
    }

    /// Does `step` where its slot is, following it if it moves.
    pub(crate) async fn step(&self, step: Step<'_>) -> Result<Value> {
        let mut node = match self.node_of(step.keys[0]) {
            Some(node) => node,
            None => {
                self.ask_for_map().await?;
                self.node_of(step.keys[0]).ok_or_else(uncovered)?
            }
        };
        for _ in 0..REDIRECTIONS {
            let error = match node.step(step).await {
                Ok(Ok(value)) => return Ok(value),
                Ok(Err(error)) => error,
                Err(error) => {
                    // The node may be dead and another one master of its slots; who asks again
                    // finds out.
                    let _ = self.ask_for_map().await;
                    return Err(error);
                }
            };
            match redirection(&error) {
                Some(Redirection::Moved(host)) => {
                    node = self.node(&host);
                    // Where one slot has gone others may have too. Whoever cannot tell is no
                    // reason to fail or to wait: the way is known.
                    let _ = tokio::time::timeout(MAP_PAUSE, self.ask_for_map()).await;
                }
                Some(Redirection::Ask(host)) => return self.node(&host).asked_step(step).await,
                None => {
                    if matches!(error.code(), Some("CLUSTERDOWN" | "READONLY" | "MASTERDOWN")) {
                        let _ = self.ask_for_map().await;
                    }
                    return Err(explain(&error));
                }
            }
        }
        let message = format!("redirected {REDIRECTIONS} times; the nodes do not agree on a slot");
        Err(Error::new(ErrorKind::Unreachable, message))
    }

    pub(crate) fn wants_replicas(&self) -> bool {
        self.replicas > 0
    }

    /// Asks any node which node has which slot, unless that was just done.
    pub(crate) async fn ask_for_map(&self) -> Result<()> {
        let mut asked = self.asking.lock().await;
        if asked.is_some_and(|asked| asked.elapsed() < MAP_PAUSE) {
            return Ok(());
        }
        // Also when it fails: those who wait behind must not each try in turn.
        *asked = Some(Instant::now());
        let mut command = redis::cmd("CLUSTER");
        command.arg("SLOTS");
        let answer = self.any.send(&command).await?.map_err(|error| explain(&error))?;
        let ranges = read_map(answer).ok_or_else(|| strange_answer("CLUSTER SLOTS"))?;
        if ranges.is_empty() {
            // A node that was removed from the cluster goes on by itself, with nothing.
            self.any.distrust("it is a node without a cluster");
            return Err(uncovered());
        }
        let hosts: Vec<&Host> = ranges.iter().map(|(_, _, host)| host).collect();
        let mut known = self.seeds.clone();
        known.extend(hosts.iter().copied().filter(|host| !self.seeds.contains(host)).cloned());
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = known;
        let mut map = self.map();
        map.nodes.retain(|host, _| hosts.contains(&host));
        map.ranges = ranges;
        Ok(())
    }

    pub(crate) fn close(&self) {
        self.any.close();
        let mut map = self.map();
        map.closed = true;
        for node in map.nodes.values() {
            node.close();
        }
    }
}

pub(crate) fn uncovered() -> Error {
    Error::new(ErrorKind::Unreachable, "no node of the cluster has the slot of this lock")
}

pub(crate) enum Redirection {
    Moved(Host),
    Ask(Host),
}

pub(crate) fn redirection(error: &RedisError) -> Option<Redirection> {
    let host = |(address, _slot): (&str, u16)| {
        let (name, port) = address.rsplit_once(':')?;
        Some(Host { name: name.to_owned(), port: port.parse().ok()? })
    };
    let host = host(error.redirect_node()?)?;
    match error.code() {
        Some("ASK") => Some(Redirection::Ask(host)),
        _ => Some(Redirection::Moved(host)),
    }
}

/// `CLUSTER SLOTS`: first, last, master, replicas... for each range.
pub(crate) fn read_map(answer: Value) -> Option<Vec<(u16, u16, Host)>> {
    let Value::Array(rows) = answer else { return None };
    let mut ranges = Vec::with_capacity(rows.len());
    for row in rows {
        let Value::Array(row) = row else { return None };
        let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = row.as_slice() else {
            return None;
        };
        let [Value::BulkString(name), Value::Int(port), ..] = master.as_slice() else {
            return None;
        };
        let name = String::from_utf8(name.clone()).ok()?;
        let host = Host { name, port: u16::try_from(*port).ok()? };
        ranges.push((u16::try_from(*first).ok()?, u16::try_from(*last).ok()?, host));
    }
    ranges.sort_by_key(|(first, ..)| *first);
    Some(ranges)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(slot("123456789"), 0x31C3 % SLOTS);
        assert_eq!(slot("foo"), 12182);
    }

    #[test]
    fn another_error_is_no_redirection() {
        let other = redis::make_extension_error("X".to_owned(), None);
        assert!(redirection(&other).is_none());
    }
}
