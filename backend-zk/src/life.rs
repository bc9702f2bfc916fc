//! What is known of the servers' view of a session: pure, and of one piece, so that an answer that
//! arrives while the session is given up makes nothing in it valid.

use std::time::Duration;

use fencelock_core::Moment;

#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionLiveness {
    /// When the newest write that was committed was sent.
    committed: Moment,
    /// When the first write was sent that none has been committed after; never, if there is none.
    unanswered: Moment,
    over: bool,
    /// How long after a committed write was sent the servers are certain to keep the session.
    valid_for: Duration,
}

impl SessionLiveness {
    /// Of a session with this `timeout` T, which was asked for at `sent`.
    ///
    /// It is good for T less 0.25 T, by which a follower may be late in telling its leader of us,
    /// 0.1 T between two signs of life, and a hundredth for clocks of different rates.
    pub(crate) fn new(timeout: Duration, sent: Moment) -> SessionLiveness {
        let valid_for = timeout * 16 / 25;
        // To make a session is a write.
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

    /// A write is about to be sent.
    pub(crate) fn mark_sent(&mut self, now: Moment) {
        self.unanswered = self.unanswered.min(now);
    }

    /// A write that was sent at `sent` has been committed, in a session that the servers found
    /// alive. `false` when it was given up before.
    pub(crate) fn commit(&mut self, sent: Moment) -> bool {
        if !self.over {
            self.committed = self.committed.max(sent);
            self.unanswered = Moment::NEVER;
        }
        !self.over
    }

    /// Until when what it holds may be believed in, unless it is over.
    pub(crate) fn deadline(&self) -> Option<Moment> {
        (!self.over).then(|| self.committed + self.valid_for)
    }

    /// Whether nothing in it can be believed in any more. Nothing depends on a session that nothing
    /// was asked of, so its silence is none.
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
    fn the_deadline_counts_from_the_sending_of_the_newest_committed_write() {
        let mut liveness = SessionLiveness::new(T, at(0));
        assert_eq!(liveness.deadline(), Some(at(6400)));
        liveness.mark_sent(at(1000));
        liveness.mark_sent(at(2000));
        assert!(liveness.commit(at(2000)) && liveness.commit(at(1000)));
        assert_eq!(liveness.deadline(), Some(at(8400)), "an older answer takes nothing back");
    }

    #[test]
    fn an_answer_after_the_end_makes_nothing_valid() {
        let mut liveness = SessionLiveness::new(T, at(0));
        liveness.mark_sent(at(1000));
        liveness.end();
        assert!(!liveness.commit(at(1000)));
        assert_eq!(liveness.deadline(), None);
        assert!(liveness.is_over());
    }

    #[test]
    fn only_unanswered_writes_are_silence() {
        let mut liveness = SessionLiveness::new(T, at(0));
        assert!(!liveness.is_silent(at(100_000)), "nothing was asked");
        liveness.mark_sent(at(100_000));
        assert!(!liveness.is_silent(at(106_399)) && liveness.is_silent(at(106_400)));
        liveness.mark_sent(at(103_000));
        assert!(liveness.is_silent(at(106_400)), "the first one counts");
        liveness.commit(at(103_000));
        assert!(!liveness.is_silent(at(200_000)));
    }

    #[test]
    fn whatever_is_held_has_ended_before_the_session_is_given_up() {
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
