//! The ways in which the stores of these tests can be broken, each a bug that a lock library had;
//! each is one line of the toy store or of a simulated one. Who rejects it: `catalogue.rs`.

/// One bug of a store or its backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    // Ownership.
    /// A plain DEL: any release frees the holder.
    ReleaseFreesAnybody,
    /// Release says "removed" whatever it found.
    ReleaseAlwaysRemoved,
    /// Renewal by SET: what is gone is made again.
    RenewalResurrects,
    /// Of renewals that are sent together only the first is answered.
    RenewsOnlyTheFirst,
    /// A holder that went silent is never freed.
    NoTtl,
    /// The store forgets a holder before its TTL.
    ForgetsEarly,
    /// Validity counts from the reply.
    DeadlineFromReply,
    /// The answer to a repeated attempt counts the validity anew, but the server leaves the lease.
    RepeatedAttemptExtendsNothing,
    /// Leases end on a clock that begins when the client connects.
    ClockOfEachClient,
    /// Now and then two are granted.
    DoubleGrant,
    /// Each attempt is a new claim, also that of one that asks again.
    ForgetsWhoAsked,
    // Tokens.
    /// Tokens are counted in data that can be lost.
    TokenFromIncr,
    /// Tokens are counted in the lock's own record.
    TokenDiesWithTheLock,
    /// Readers get the token of the reader before.
    SharedTokensRepeat,
    /// A grant that several acquisitions share has one token.
    NoTokensReserved,
    /// Tokens follow the server's time in milliseconds, so that what a grant reserves is ahead of it.
    ReservesAheadOfTime,
    // Downgrade.
    /// The downgrade only extends the lease.
    DowngradeStaysExclusive,
    /// A release and an acquisition: nobody holds it between the two.
    DowngradeLetsGo,
    /// A reader is a new grant, with a new token.
    DowngradeMintsToken,
    /// A release removes only a holder of the mode that was granted.
    ReleaseKnowsOneForm,
    // Waiting.
    /// A refused try stays in the queue.
    TryStaysQueued,
    /// A waiter that gives up stays in the queue.
    CancelLeavesEntry,
    /// A waiter that gives up takes its turn with it.
    WakeLostOnCancel,
    /// Waiters are not woken; only waiter checks find a grant.
    NoWakeUps,
    /// A waiter is registered for its wake-up after it was told to wait.
    WatchBeginsLate,
    /// Neither a push nor a waiter check reports a grant.
    GrantNotReported,
    /// A release serves one waiter, however many fit.
    WakesOnlyOne,
    /// A hand-off has no end until its claim confirms it.
    FrozenWaiterBlocks,
    /// The last to come is served first.
    LastComeFirstServed,
    /// A waiter that fits overtakes one that does not.
    Overtaking,
    /// A push is taken for the grant, with a whole lease from its arrival.
    PushIsTheGrant,
    /// A grant to a claim that has ended is not released. The claim TTL hides that.
    StrayIgnored,
    /// A push for a claim that does not wait is taken for a stray.
    HeldIsStray,
    /// No waiter check asks whether a waiter is still queued: a grant that its own late attempt
    /// confirmed is never reported.
    WaitersNotVerified,
    // Modes.
    /// Readers exclude each other.
    SharedIsExclusive,
    /// Readers are granted while any other client holds.
    ReadersAlways,
    /// Permits are counted by claims.
    PermitsCountedByClaims,
    /// Each mode has locks of its own.
    ModesApart,
    // Names and people.
    /// Names are compared without case.
    NamesFoldCase,
    /// Names are cut.
    NamesCut,
    /// Slashes are not encoded injectively.
    NamesMapSlashes,
    /// Clearing the names of a run removes all locks.
    ClearsEverything,
    /// What others may see is the proof of ownership.
    ShowsOwner,
    /// Evict removes any holder.
    EvictsAnyClaim,
    /// Evict answers yes and does nothing.
    EvictsNone,
    // Cells.
    /// A swap writes whatever is there.
    CellSwapComparesNothing,
    /// A first write replaces what another client wrote first.
    CellFirstWriteOverwrites,
    /// A swap that was made already is answered as one that was refused.
    CellRepetitionIsRefused,
    /// Nobody is notified of a change.
    CellIsNotWatched,
    /// A watch of a cell begins after the reading.
    CellWatchBeginsLate,
    /// A reading may be older than the last confirmed write.
    CellReadsLag,
    /// Names of cells are compared without case.
    CellNamesFoldCase,
    // Sessions.
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
    /// The held node is not watched.
    OwnNodeUnwatched,
    /// A waiter for permits watches only one holder.
    PermitsWatchOne,
    /// A claim with room for its permits takes them, though one ahead waits with a smaller
    /// limit.
    PermitsOvertake,
    /// What the node before it does wakes its successor for good, whichever others are ahead.
    SuccessorIsGranted,
}

impl Mutant {
    /// The last one stays last: the catalogue is counted by it.
    pub(crate) const COUNT: usize = Mutant::SuccessorIsGranted as usize + 1;
}
