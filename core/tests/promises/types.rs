//! Properties of the public types that the compiler checks, so that a new field cannot remove them
//! unnoticed.

use std::collections::HashSet;
use std::time::Duration;

use fencelock_core::url::{Connecting, Params, Scheme, StoreUrl};
use fencelock_core::{
    Acquisition, AttemptOutcome, BootClock, Claim, Clock, DistributedLock, Error, ErrorKind,
    FencingToken, Guard, IfBusy, Label, Liveness, Lock, LockName, Locks, LostReason, Mode, Modes,
    Moment, Operation, Order, OwnerToken, Participant, ParticipantId, Permits, Profile, Reach,
    ReleaseOutcome, RenewOutcome, RenewalPlan, Residue, RwLock, Settings, Snapshot, TokenEpoch,
    TokenOrder, TokioClock, Ttl, WaiterCheck, WatchHandle, memory,
};

fn shared<T: ?Sized + Send + Sync + 'static>() {}
fn sent<T: Send>(_: T) {}

#[test]
fn public_types_may_be_shared_between_threads() {
    shared::<(Locks, Lock, RwLock, Guard, Claim, WatchHandle, memory::Memory)>();
    shared::<(Error, ErrorKind, Operation, LostReason)>();
    shared::<(LockName, Mode, Permits, Label, Settings, Ttl, OwnerToken, IfBusy)>();
    shared::<(FencingToken, TokenEpoch, Moment, BootClock, TokioClock)>();
    shared::<(
        AttemptOutcome,
        Residue,
        RenewOutcome,
        WaiterCheck,
        ReleaseOutcome,
        Snapshot,
        Participant,
        ParticipantId,
    )>();
    shared::<(Profile, Reach, Liveness, RenewalPlan, Order, Modes, TokenOrder)>();
    shared::<(StoreUrl, Params<'static>, Scheme)>();
    shared::<dyn Clock>();
}

/// Generic code may share any store and send its futures without further bounds. Never called: that
/// it compiles is the test.
#[allow(dead_code)]
fn any_store_may_be_shared_and_its_futures_sent<S: DistributedLock>(
    store: &S,
    of: &S::Acquisition,
) {
    shared::<(S, S::Acquisition)>();
    sent(of.attempt());
    sent(of.release());
    sent(store.renew(of));
    sent(store.check_waiters(of.claim().name(), &[of]));
    sent(store.inspect(of.claim().name()));
    sent(store.close());
}

/// Never called: that it compiles is the test.
#[allow(dead_code)]
fn public_futures_may_be_sent(locks: &Locks, lock: &Lock, guard: Guard, connecting: Connecting) {
    let id = ParticipantId::new("1");
    sent(lock.acquire());
    sent(lock.try_acquire());
    sent(locks.inspect("a"));
    sent(locks.evict("a", &id));
    sent(locks.close());
    sent(guard.lost());
    sent(guard.expiring(Duration::ZERO));
    sent(guard.run(async {}));
    sent(guard.release());
    sent(connecting);
    sent(locks.until_connected());
    sent(fencelock_core::url::connect(&[], ""));
    sent(fencelock_core::url::connect_within(&[], "", Duration::ZERO));
}

#[test]
fn lock_names_are_equal_when_the_store_cannot_tell_them_apart() {
    let split = LockName::with_prefix("a", "bc").unwrap();
    let whole = LockName::new("abc").unwrap();
    assert_eq!(split, whole);
    assert_eq!(HashSet::from([split.clone(), whole]).len(), 1);
    assert_eq!((split.key(), split.as_str()), ("abc", "bc"));
    assert_ne!(split, LockName::new("bc").unwrap());
}
