//! The settings of a run of the model: how much may happen in it, and which rule is dropped.
//!
//! A rule is dropped by a switch that one place in the model reads, so that the models with and
//! without it are otherwise the same.

/// The rule that is dropped, numbered as in the table of counterexamples of the quorum's design.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Dropped {
    #[default]
    Nothing,
    /// 1: a node that lost its data votes at once.
    DelayedRestart,
    /// 2: it is excluded for less than a lock may be held.
    LongDelay,
    /// 3: its age is the server's uptime, which is in whole seconds and too large.
    AgeByRecord,
    /// 4: clocks run at rates that differ by no more than the margin.
    RatesWithinMargin,
    /// 5: so does the clock by which a client that knew the earlier incarnation waits.
    OwnAgeWithinMargin,
    /// 6: nodes that do not vote count in the majority.
    AbstainersCount,
    /// 7: an incarnation is identified by the record: without it, by the `run_id`, which `FLUSHALL` keeps.
    IncarnationByRecord,
    /// 8: the node compares the record when it is asked: without it, the client does when it sends.
    RecordAtVote,
    /// 9: a token that a majority does not have is written back.
    WriteBack,
    /// 10: a node acknowledges it only where the claim still has the lock.
    MineAtWriteBack,
    /// 11: and only in the incarnation that was asked.
    OpenAtWriteBack,
    /// 12: the same for an extension.
    OpenAtExtension,
    /// 13: an extension counts before the old validity has ended.
    ExtensionInTime,
    /// 14: each round has an owner token of its own.
    FreshOwner,
    /// 15: a release removes only its own round.
    CompareAtRelease,
    /// 16: only nodes whose clocks agree take part.
    ClockAgreement,
    /// 18: each round computes its proposal anew.
    FreshProposal,
    /// 20: all clients ask the same nodes.
    OneSetOfNodes,
    /// 21: a node does not extend what an operator has evicted, also where it did not have it.
    EvictionIsRemembered,
}

/// The properties of a node that are the same for all of its incarnations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Traits {
    /// By how many ticks its clock is ahead.
    pub(crate) lead: u8,
    /// By how many ticks a key expires early there: its clock runs fast.
    pub(crate) fast: u8,
    /// The clients that ask it.
    pub(crate) asked_by: [bool; 2],
    /// The set of nodes in its record.
    pub(crate) epoch: u8,
    /// Whether it lost its data just before the run.
    pub(crate) is_quarantined: bool,
}

impl Traits {
    pub(crate) const PLAIN: Traits =
        Traits { lead: 0, fast: 0, asked_by: [true; 2], epoch: 1, is_quarantined: false };
}

/// How much may happen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Setting {
    pub(crate) dropped: Dropped,
    pub(crate) nodes: Vec<Traits>,
    /// The last tick.
    pub(crate) horizon: u8,
    /// How long a lock's key lives on a node, in ticks.
    pub(crate) ttl: u8,
    /// How many rounds each client begins.
    pub(crate) rounds: [u8; 2],
    /// How often each client extends, in all.
    pub(crate) extensions: [u8; 2],
    /// How many nodes restart without their data.
    pub(crate) restarts: u8,
    /// How many lose it and keep running.
    pub(crate) flushes: u8,
    /// How many clocks step forward, by more than is assumed, while their node is excluded.
    pub(crate) steps: u8,
    /// How many messages the network delays or repeats.
    pub(crate) strays: u8,
    /// How many replies are lost.
    pub(crate) silences: u8,
    /// At how many nodes an operator evicts the first client's only round.
    pub(crate) evictions: u8,
    /// How far clocks may be apart, in ticks.
    pub(crate) tolerance: u8,
    /// Whether the clients were connected to the nodes before, and so also wait by their own clocks.
    pub(crate) all_are_known: bool,
    /// The set of nodes of each client.
    pub(crate) epochs: [u8; 2],
    /// Whether a round may lack the reading of a clock that is ahead, or have one from a slow reply.
    pub(crate) readings: bool,
}

/// By how many ticks two clocks may drift apart while a key lives: the margin of `lease_end`.
pub(crate) const MARGIN: u8 = 1;

/// By how many ticks an uptime is too large, and a clock too fast that is not within the margin.
pub(crate) const TOO_MUCH: u8 = 3;

impl Setting {
    /// Three nodes, one round for each of two clients, and no faults.
    pub(crate) fn plain(horizon: u8) -> Setting {
        Setting {
            nodes: vec![Traits::PLAIN; 3],
            horizon,
            ttl: 3,
            rounds: [1; 2],
            epochs: [1; 2],
            ..Setting::default()
        }
    }

    pub(crate) fn without(self, dropped: Dropped) -> Setting {
        Setting { dropped, ..self }
    }

    /// Whether the clients are interchangeable.
    pub(crate) fn clients_are_alike(&self) -> bool {
        let alike = |of: [u8; 2]| of[0] == of[1];
        alike(self.rounds)
            && alike(self.extensions)
            && alike(self.epochs)
            && self.nodes.iter().all(|node| node.asked_by[0] == node.asked_by[1])
    }

    /// How many ticks a node that lost its data is excluded: the minimum.
    pub(crate) fn delay(&self) -> u8 {
        match self.dropped {
            Dropped::DelayedRestart => 0,
            // The last tick in which an earlier lock is held.
            Dropped::LongDelay => self.ttl - MARGIN - 1,
            _ => self.ttl + 2 * self.tolerance + MARGIN,
        }
    }
}
