//! Fencing tokens that rise over majorities. Pure: the model in `models` checks this code.
//!
//! A round proposes the largest of the nodes' clocks, in microseconds. A node takes the proposal,
//! or more than its last token if that is not smaller. So tokens rise even after a loss of data, as
//! long as the clocks agree and the lost node is excluded for longer than they may differ.

/// Tokens of exclusive grants are multiples of this. Those between are for the local hand-offs of the
/// grant, so that it has all of them before any other is granted. A shared grant's token has the number
/// of its node added, so that two nodes never give the same one.
///
/// In microseconds it is less than a grant takes: tokens must not outrun the clocks, which they
/// follow after a loss of data.
pub const STRIDE: u64 = 64;

/// The largest number of nodes that tokens can name.
pub const MAX_NODES: usize = 15;

/// What a round at `now_us` on our clock proposes, with the nodes' clocks `lead` ahead of it.
/// Computed anew for each round: an old proposal may be smaller than what was granted meanwhile.
#[must_use]
pub fn proposal(now_us: u64, lead: i64) -> u64 {
    now_us.saturating_add_signed(lead) / STRIDE * STRIDE
}

/// The token that a node whose last one is `last` gives for a proposal, as `vote.lua` does.
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
            let hand_offs = last / STRIDE * STRIDE + STRIDE - 1;
            prop_assert!(token > hand_offs, "above all that the grant before may use");
        }
    }
}
