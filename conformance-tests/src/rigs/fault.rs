//! The faults, by name.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What goes wrong for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Fault {
    /// Client processes are killed and started again.
    ClientsKilled,
    /// Client processes stand still for a while, for shorter and for longer than the TTL.
    ClientsFrozen,
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
    /// What is sent is held back, and comes all at once.
    Stalled,
    /// The server is stopped and goes on later.
    ServerFrozen,
    /// The server is killed and started again.
    ServerRestarted,
    /// Somebody deletes everything.
    DataLost,
    /// The server forgets its scripts.
    ScriptsFlushed,
    /// The server ends its clients' connections.
    ConnectionsKilled,
    /// The server holds writes back.
    WritesPaused,
    /// The server runs somebody's endless script.
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
    /// The leader is stopped, and goes on later.
    LeaderFrozen,
    /// The leader cannot reach the other servers, but its clients.
    LeaderIsolated,
    /// Too few servers are left, and start again later.
    QuorumLost,
}

impl Fault {
    /// In words.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Fault::ClientsKilled => "clients killed",
            Fault::ClientsFrozen => "clients frozen",
            Fault::CutOff => "cut off",
            Fault::RequestsLost => "requests lost",
            Fault::RepliesLost => "replies lost",
            Fault::ConnectionsReset => "connections reset",
            Fault::Flapping => "line flapping",
            Fault::SlowReplies => "slow replies",
            Fault::RepliesDropped => "single replies dropped",
            Fault::Stalled => "line stalled",
            Fault::ServerFrozen => "server frozen",
            Fault::ServerRestarted => "server restarted",
            Fault::DataLost => "data lost",
            Fault::ScriptsFlushed => "scripts flushed",
            Fault::ConnectionsKilled => "connections killed",
            Fault::WritesPaused => "writes paused",
            Fault::ServerBusy => "server busy",
            Fault::ServerFull => "server full",
            Fault::MasterKilled => "master killed",
            Fault::MasterFrozen => "master frozen",
            Fault::MasterReplaced => "master replaced",
            Fault::SlotMoved => "slot moved",
            Fault::MinorityFrozen => "minority frozen",
            Fault::MinorityRestarted => "minority restarted",
            Fault::MajorityCutOff => "majority cut off",
            Fault::LeaderKilled => "leader killed",
            Fault::FollowerKilled => "follower killed",
            Fault::LeaderFrozen => "leader frozen",
            Fault::LeaderIsolated => "leader isolated",
            Fault::QuorumLost => "quorum lost",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words())
    }
}
