//! Which waiters a check asks about, for one server and for a quorum alike.

/// How many waiters of this client each check asks about.
pub(crate) const SAMPLE: usize = 4;

/// A few of `waiting`, from a random start.
pub(crate) fn in_turn<'a, T>(waiting: &'a [&T]) -> impl Iterator<Item = &'a T> {
    let start = rand::random_range(0..waiting.len().max(1));
    waiting.iter().copied().cycle().skip(start).take(waiting.len().min(SAMPLE))
}
