//! Who has come to a latch or a barrier: a set of short ids, stored one after the other.
//!
//! An id counts once, so that a repeated call, a worker that was started again and a lost reply do no
//! harm.

use uuid::Uuid;

/// 12 bytes: among 1,024 participants two are the same with a probability of 10^-20.
pub(crate) type Id = [u8; LENGTH];

pub(crate) const LENGTH: usize = 12;

/// The id of a call that has no name.
pub(crate) fn anonymous() -> Id {
    first_bytes(Uuid::new_v4())
}

/// The id of `who`, the same in every process.
pub(crate) fn named(who: &str) -> Id {
    first_bytes(Uuid::new_v5(&Uuid::NAMESPACE_OID, who.as_bytes()))
}

fn first_bytes(uuid: Uuid) -> Id {
    let mut id = [0; LENGTH];
    id.copy_from_slice(&uuid.as_bytes()[..LENGTH]);
    id
}

pub(crate) fn write(ids: &[Id], to: &mut Vec<u8>) {
    to.extend(ids.as_flattened());
}

/// `None` when the bytes are not ids, one after the other.
pub(crate) fn read(bytes: &[u8]) -> Option<Vec<Id>> {
    let (ids, rest) = bytes.as_chunks::<LENGTH>();
    rest.is_empty().then(|| ids.to_vec())
}
