//! Which waiters a look asks about, alike for one server and for a quorum.

/// How many of a process's waiters each look asks about.
pub(crate) const SAMPLE: usize = 4;

/// A few of `waiting`, in turn.
pub(crate) fn in_turn<'a, T>(waiting: &'a [&T]) -> impl Iterator<Item = &'a T> {
    let start = rand::random_range(0..waiting.len().max(1));
    waiting.iter().copied().cycle().skip(start).take(waiting.len().min(SAMPLE))
}
