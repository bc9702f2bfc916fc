//! The ways in which the toy store can be broken; each is one line of its server or driver.

/// One way in which a store can be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// A plain DEL: whoever releases frees the holder.
    ReleaseFreesAnybody,
    /// Release says "removed" whatever it found.
    ReleaseAlwaysRemoved,
    /// Renewal by SET: what is gone is made again.
    RenewalResurrects,
    /// Of a batch only the first is renewed.
    RenewsOnlyTheFirst,
    /// A holder that went silent is never freed.
    NoTtl,
    /// The store forgets a holder before its TTL.
    ForgetsEarly,
    /// Tokens are counted in data that can be lost.
    TokenFromIncr,
    /// Tokens are counted in the lock's own record.
    TokenDiesWithTheLock,
    /// Readers get the token of the reader before.
    SharedTokensRepeat,
    /// Validity counts from the reply.
    DeadlineFromReply,
    /// Now and then two are granted.
    DoubleGrant,
    /// Each attempt is a new claim, also that of one that asks again.
    ForgetsWhoAsked,
    /// A refused try stays in the queue.
    TryStaysQueued,
    /// A waiter that gives up stays in the queue.
    CancelLeavesEntry,
    /// A waiter that gives up takes its turn with it.
    WakeLostOnCancel,
    /// Nobody is woken; only looks find out.
    NoBell,
    /// A release serves one waiter, however many fit.
    WakesOnlyOne,
    /// Who is handed the lock and says nothing blocks the queue.
    FrozenWaiterBlocks,
    /// The last to come is served first.
    LastComeFirstServed,
    /// Whoever fits overtakes whoever does not.
    Overtaking,
    /// Readers exclude each other.
    SharedIsExclusive,
    /// Permits are counted by claims.
    PermitsCountedByClaims,
    /// Each mode has locks of its own.
    ModesApart,
    /// Names are compared without case.
    NamesFoldCase,
    /// Names are cut.
    NamesCut,
    /// Slashes are not encoded injectively.
    NamesMapSlashes,
    /// What others may see is the proof of ownership.
    ShowsOwner,
    /// Evict takes whoever holds.
    EvictsAnybody,
    /// Evict answers yes and does nothing.
    EvictsNobody,
}
