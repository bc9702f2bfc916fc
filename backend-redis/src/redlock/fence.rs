//! Fencing tokens that rise over majorities. Pure: the model in `redlock-model` checks what runs.
//!
//! A round proposes the largest of the nodes' clocks, in microseconds. A node takes the proposal,
//! or more than its last token if that is not smaller. So a token rises over data that was lost, as
//! long as the clocks agree and the lost node is kept out for longer than they may differ.

/// Fences of exclusive grants are multiples of this. What is between them names the node that a
/// shared grant's token is from: two nodes never give the same one.
pub const STRIDE: u64 = 16;

/// So many nodes at most can be told apart.
pub const MAX_NODES: usize = 15;

/// What a round at `now_us` on our clock proposes, with the nodes' clocks `lead` ahead of it. To be
/// made anew for each round: an old one may be smaller than what others were given meanwhile.
#[must_use]
pub fn proposal(now_us: u64, lead: i64) -> u64 {
    now_us.saturating_add_signed(lead) / STRIDE * STRIDE
}

/// What a node whose last token is `last` makes of a proposal: as `scripts/redlock/vote.lua` does.
#[must_use]
pub fn next(last: u64, proposal: u64) -> u64 {
    (last / STRIDE * STRIDE + STRIDE).max(proposal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn tokens_rise(last in 0..1u64 << 52, now in 0..1u64 << 51, lead in -1i64 << 50..1i64 << 50) {
            let token = next(last, proposal(now, lead));
            prop_assert!(token > last);
            prop_assert_eq!(token % STRIDE, 0);
        }
    }
}
