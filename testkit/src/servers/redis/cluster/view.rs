//! A cluster as one of its nodes sees it, which may differ from what another one sees.

use std::io;
use std::ops::RangeInclusive;

use super::slot::SLOTS;
use crate::servers::eventually::not_yet;
use crate::servers::redis::TestRedis;

#[derive(Debug)]
pub(super) struct View {
    members: Vec<Member>,
}

/// One line of CLUSTER NODES. What differs between views that agree is not part of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Member {
    pub(super) port: u16,
    pub(super) id: String,
    pub(super) epoch: u64,
    /// The id of the master it replicates; none for a master.
    pub(super) master: Option<String>,
    slots: Vec<(u16, u16)>,
    ails: bool,
}

impl View {
    pub(super) async fn of(node: &TestRedis) -> io::Result<Self> {
        let nodes = node.command(&["CLUSTER", "NODES"]).await?;
        let members: Option<Vec<_>> = nodes.lines().map(Member::parse).collect();
        let mut members =
            members.ok_or_else(|| not_yet(format!("a line of CLUSTER NODES: {nodes}")))?;
        members.sort_unstable();
        Ok(Self { members })
    }

    /// The master that serves the slot.
    pub(super) fn owner(&self, slot: u16) -> Option<&Member> {
        self.members.iter().find(|member| member.has(slot))
    }

    /// The master of the node at the port; none if that is a master.
    pub(super) fn master_of(&self, port: u16) -> io::Result<Option<&Member>> {
        let find = |matches: &dyn Fn(&Member) -> bool| {
            let found = self.members.iter().find(|member| matches(member));
            found.ok_or_else(|| not_yet(format!("the node at port {port} is not fully known")))
        };
        let id = &find(&|member| member.port == port)?.master;
        id.as_ref().map(|id| find(&|member| member.id == *id)).transpose()
    }

    pub(super) fn masters(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.master.is_none())
    }

    /// Whether both see the same cluster, with all nodes in health and all slots served.
    pub(super) fn is_whole_as(&self, other: &Self, nodes: usize) -> bool {
        let served: usize = self.members.iter().map(Member::slot_count).sum();
        self.members == other.members
            && self.members.len() == nodes
            && !self.members.iter().any(|member| member.ails)
            && served == usize::from(SLOTS)
    }
}

impl Member {
    /// `id ip:port@bus[,hostname] flags master ping pong epoch link [slots ...]`
    fn parse(line: &str) -> Option<Self> {
        let words: Vec<_> = line.split_whitespace().collect();
        let [id, addr, flags, master, _ping, _pong, epoch, link, slots @ ..] = &words[..] else {
            return None;
        };
        let port = addr.split('@').next()?.rsplit(':').next()?.parse().ok()?;
        // Besides ranges there may be slots on the move, in brackets.
        let slots = slots.iter().filter(|slots| !slots.starts_with('['));
        let range = |slots: &&str| {
            let (first, last) = slots.split_once('-').unwrap_or((slots, slots));
            Some((first.parse().ok()?, last.parse().ok()?))
        };
        let ails = |flag| ["fail", "fail?", "handshake", "noaddr", "noflags"].contains(&flag);
        Some(Self {
            port,
            id: (*id).into(),
            epoch: epoch.parse().ok()?,
            master: (*master != "-").then(|| (*master).into()),
            slots: slots.map(range).collect::<Option<_>>()?,
            ails: flags.split(',').any(ails) || *link != "connected",
        })
    }

    fn has(&self, slot: u16) -> bool {
        self.ranges().any(|range| range.contains(&slot))
    }

    fn slot_count(&self) -> usize {
        self.ranges().map(RangeInclusive::count).sum()
    }

    fn ranges(&self) -> impl Iterator<Item = RangeInclusive<u16>> {
        self.slots.iter().map(|&(first, last)| first..=last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_cluster_nodes_is_understood() {
        let master = "e7d1 127.0.0.1:30001@31001,host myself,master - 0 1426238317239 7 connected \
                      0-2 5 [5->-67ed] [93-<-292f]";
        let master = Member::parse(master).unwrap();
        assert_eq!((master.port, master.epoch, master.ails), (30_001, 7, false));
        assert_eq!((master.master.as_deref(), master.slot_count()), (None, 4));
        assert!(master.has(5) && !master.has(4) && !master.has(93));

        let replica = "07c3 127.0.0.1:30004@31004 slave,fail? e7d1 1 2 4 disconnected";
        let replica = Member::parse(replica).unwrap();
        assert_eq!((replica.master.as_deref(), replica.ails), (Some("e7d1"), true));
        assert_eq!(Member::parse("07c3"), None);
    }
}
