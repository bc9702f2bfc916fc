//! How long a session may be relied on: without I/O, and in one state, so that an answer that arrives
//! while the session is given up extends nothing in it.

use std::time::Duration;

use fencelock_core::Moment;

#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionLiveness {
    /// When the newest committed write was sent.
    committed: Moment,
    /// When the first write after the last commit was sent; never, if none was.
    unanswered: Moment,
    over: bool,
    /// How long the servers are certain to keep the session after a committed write was sent.
    valid_for: Duration,
}

impl SessionLiveness {
    /// The liveness of a session with this `timeout` T, which was asked for at `sent`.
    ///
    /// It can be relied on for T less 0.25 T, by which a follower may be late in reporting its sessions
    /// to its leader, 0.1 T between two heartbeats, and a hundredth for clocks of different rates.
    pub(crate) fn new(timeout: Duration, sent: Moment) -> SessionLiveness {
        let valid_for = timeout * 16 / 25;
        // Creating a session is a write.
        SessionLiveness { committed: sent, unanswered: Moment::NEVER, over: false, valid_for }
    }

    pub(crate) fn committed(&self) -> Moment {
        self.committed
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over
    }

    pub(crate) fn end(&mut self) {
        self.over = true;
    }

    /// Records that a write is about to be sent.
    pub(crate) fn mark_sent(&mut self, now: Moment) {
        self.unanswered = self.unanswered.min(now);
    }

    /// Records that a write that was sent at `sent` has been committed, in a session that the servers
    /// found alive. `false` when it was given up before.
    pub(crate) fn commit(&mut self, sent: Moment) -> bool {
        if !self.over {
            self.committed = self.committed.max(sent);
            self.unanswered = Moment::NEVER;
        }
        !self.over
    }

    /// Until when what the session holds is valid; `None` when it is over.
    pub(crate) fn deadline(&self) -> Option<Moment> {
        (!self.over).then(|| self.committed + self.valid_for)
    }

    /// Whether the session cannot be relied on any more. A session without pending writes is never
    /// considered silent.
    pub(crate) fn is_silent(&self, now: Moment) -> bool {
        let since = self.committed.max(self.unanswered);
        self.unanswered != Moment::NEVER && now >= since + self.valid_for
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Duration = Duration::from_secs(10);

    fn at(ms: u64) -> Moment {
        Moment::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn the_deadline_counts_from_when_the_newest_committed_write_was_sent() {
        let mut liveness = SessionLiveness::new(T, at(0));
        assert_eq!(liveness.deadline(), Some(at(6400)));
        liveness.mark_sent(at(1000));
        liveness.mark_sent(at(2000));
        assert!(liveness.commit(at(2000)) && liveness.commit(at(1000)));
        assert_eq!(liveness.deadline(), Some(at(8400)), "an older answer does not shorten it");
    }

    #[test]
    fn an_answer_after_the_end_extends_nothing() {
        let mut liveness = SessionLiveness::new(T, at(0));
        liveness.mark_sent(at(1000));
        liveness.end();
        assert!(!liveness.commit(at(1000)));
        assert_eq!(liveness.deadline(), None);
        assert!(liveness.is_over());
    }

    #[test]
    fn only_pending_writes_make_a_session_silent() {
        let mut liveness = SessionLiveness::new(T, at(0));
        assert!(!liveness.is_silent(at(100_000)), "no write is pending");
        liveness.mark_sent(at(100_000));
        assert!(!liveness.is_silent(at(106_399)) && liveness.is_silent(at(106_400)));
        liveness.mark_sent(at(103_000));
        assert!(liveness.is_silent(at(106_400)), "the first one counts");
        liveness.commit(at(103_000));
        assert!(!liveness.is_silent(at(200_000)));
    }

    #[test]
    fn all_holds_end_before_the_session_is_given_up() {
        let mut liveness = SessionLiveness::new(T, at(0));
        for (sent, committed) in [(1000, true), (2000, false), (3000, false)] {
            liveness.mark_sent(at(sent));
            if committed {
                liveness.commit(at(sent));
            }
        }
        let deadline = liveness.deadline().expect("not over");
        assert!(!liveness.is_silent(deadline) && liveness.is_silent(at(8400)));
    }
}
