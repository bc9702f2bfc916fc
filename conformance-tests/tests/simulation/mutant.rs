//! Broken drivers and servers, each a bug that a real lock library had. The simulation must find
//! every one of them, or its silence about the right ones means nothing.

/// One thing done wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    // A store with leases.
    /// Validity counts from the reply.
    LeaseFromReply,
    /// Release frees whoever holds.
    ReleaseWithoutCompare,
    /// A hand-over has no end until its claim confirms it.
    NoClaimTtl,
    /// A renewal writes itself back as the holder.
    RenewalBySet,
    /// A refused try stays in the queue.
    TryQueues,
    /// A push is taken for the grant, with a whole lease from its arrival.
    PushIsTheGrant,
    /// Tokens are counted, and the count is lost with the data.
    CountedTokens,
    /// Readers are let in beside whoever holds.
    ReadersAlways,
    /// The last one to come is the first one served.
    LastFirst,
    /// Nobody releases what was handed to a claim that is over. The claim TTL hides that from
    /// random seeds: a test of its own shows it.
    StrayIgnored,
    /// A push for a claim that does not wait is taken for a stray.
    HeldIsStray,
    /// A grant has no end in the store.
    NoTtl,
    /// Neither a push nor a look tells a waiter of its grant.
    NobodyIsTold,
    // A store with sessions.
    /// A create with a lost reply is sent again instead of looked for.
    NoAdoption,
    /// Whether an unsure create happened is read from a follower that may be behind.
    NoSync,
    /// An answered read moves the deadline.
    ReadIsHeartbeat,
    /// A holder believes until the server says that the session has expired.
    WaitsForExpired,
    /// The release of an unsure create is taken for done.
    UnsureIsAbsent,
    /// Nobody watches the node that is held.
    OwnNodeUnwatched,
    /// Whoever waits for permits watches one holder only.
    PermitsWatchOne,
    /// What the node before it does wakes its successor for good, whoever else is ahead.
    SuccessorIsGranted,
}

impl Mutant {
    pub(crate) const OF_LEASES: [Mutant; 12] = [
        Mutant::LeaseFromReply,
        Mutant::ReleaseWithoutCompare,
        Mutant::NoClaimTtl,
        Mutant::RenewalBySet,
        Mutant::TryQueues,
        Mutant::PushIsTheGrant,
        Mutant::CountedTokens,
        Mutant::ReadersAlways,
        Mutant::LastFirst,
        Mutant::HeldIsStray,
        Mutant::NoTtl,
        Mutant::NobodyIsTold,
    ];

    pub(crate) const OF_SESSIONS: [Mutant; 8] = [
        Mutant::NoAdoption,
        Mutant::NoSync,
        Mutant::ReadIsHeartbeat,
        Mutant::WaitsForExpired,
        Mutant::UnsureIsAbsent,
        Mutant::OwnNodeUnwatched,
        Mutant::PermitsWatchOne,
        Mutant::SuccessorIsGranted,
    ];
}
