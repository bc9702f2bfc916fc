//! The names of claims in wake-ups.

/// Identifies a claim in a wake-up: the lock's hash plus the ticket.
pub(crate) type ClaimKey = u64;

/// The key of the claim with `ticket` for a lock.
pub(crate) fn claim_key(lock_hash: u64, ticket: u64) -> ClaimKey {
    lock_hash.wrapping_add(ticket)
}
