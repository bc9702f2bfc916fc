//! The faults, by name.

use std::fmt;
use std::str::FromStr;

use serde::de::{IntoDeserializer, value};
use serde::{Deserialize, Serialize};

/// A temporary fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Fault {
    /// Client processes are killed and started again.
    ClientsKilled,
    /// Client processes are stopped for a while, for shorter and for longer than the TTL.
    ClientsFrozen,
    /// The wall clocks of client processes step, forward and back.
    ClientClockStepped,
    /// Nothing passes between clients and servers, and connections stay up.
    CutOff,
    /// No request passes.
    RequestsLost,
    /// No reply passes.
    RepliesLost,
    /// Connections are reset, again and again.
    ConnectionsReset,
    /// The line goes down and up, once a second.
    Flapping,
    /// Each reply takes a fifth of a second.
    SlowReplies,
    /// Replies to single requests are lost, and their connections with them.
    RepliesDropped,
    /// Data is held back, and then delivered all at once.
    Stalled,
    /// The server is stopped and continues later.
    ServerFrozen,
    /// The server is killed and started again.
    ServerRestarted,
    /// A process of the server is killed, and the server ends all sessions and recovers by itself.
    BackendKilled,
    /// The wall clocks of servers step, forward and back.
    ServerClockStepped,
    /// All data is deleted.
    DataLost,
    /// The server forgets its scripts.
    ScriptsFlushed,
    /// The server ends its clients' connections.
    ConnectionsKilled,
    /// The server holds writes back.
    WritesPaused,
    /// The server runs an endless script of another client.
    ServerBusy,
    /// The server has no memory left for writes.
    ServerFull,
    /// The master is killed, and a replica takes over.
    MasterKilled,
    /// The master is stopped, a replica takes over, and the old one wakes up.
    MasterFrozen,
    /// A replica takes over from a healthy master.
    MasterReplaced,
    /// A slot goes to another master and back.
    SlotMoved,
    /// As many servers as may be are stopped.
    MinorityFrozen,
    /// As many servers as may be are killed and start again without data, one set after another.
    MinorityRestarted,
    /// Too many servers cannot be reached.
    MajorityCutOff,
    /// The leader is killed, and starts again later.
    LeaderKilled,
    /// A follower is killed, and starts again later.
    FollowerKilled,
    /// The leader is stopped and continues later.
    LeaderFrozen,
    /// The leader cannot reach the other servers, but its clients.
    LeaderIsolated,
    /// Too few servers are left, and start again later.
    QuorumLost,
}

impl Fault {
    /// The word for it: `clients-frozen`.
    #[must_use]
    pub fn word(self) -> String {
        // The names of the variants, which are known to be plain words.
        serde_json::to_value(self)
            .ok()
            .and_then(|it| it.as_str().map(str::to_owned))
            .unwrap_or_default()
    }
}

/// By its [`word`](Fault::word); an error names all there are.
impl FromStr for Fault {
    type Err = value::Error;

    fn from_str(word: &str) -> Result<Fault, value::Error> {
        Fault::deserialize(word.into_deserializer())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.word().replace('-', " "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_parsed_from_its_name() {
        assert_eq!(Fault::CutOff.word(), "cut-off");
        assert_eq!("clients-frozen".parse(), Ok(Fault::ClientsFrozen));
        assert_eq!(Fault::LeaderIsolated.to_string(), "leader isolated");
        let error = "earthquake".parse::<Fault>().unwrap_err().to_string();
        assert!(error.contains("`earthquake`, expected one of `clients-killed`, "), "{error}");
    }
}
