//! What is known of the servers' view of a session: pure, and of one piece, so that an answer that
//! arrives while the session is given up makes nothing in it valid.

use std::time::Duration;

use fencelock_core::Moment;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Life {
    /// When the newest write that was committed was sent.
    committed: Moment,
    /// When the first write was sent that none has been committed after; never, if there is none.
    unanswered: Moment,
    over: bool,
    /// How long after a committed write was sent the servers are certain to keep the session.
    patience: Duration,
}

impl Life {
    /// Of a session with this `timeout` T, which was asked for at `sent`.
    ///
    /// It is good for T less 0.25 T, by which a follower may be late in telling its leader of us,
    /// 0.1 T between two signs of life, and a hundredth for clocks of different rates.
    pub(crate) fn new(timeout: Duration, sent: Moment) -> Life {
        let patience = timeout * 16 / 25;
        // To make a session is a write.
        Life { committed: sent, unanswered: Moment::NEVER, over: false, patience }
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
    pub(crate) fn sending(&mut self, now: Moment) {
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
        (!self.over).then(|| self.committed + self.patience)
    }

    /// Whether nothing in it can be believed in any more. Nothing depends on a session that nothing
    /// was asked of, so its silence is none.
    pub(crate) fn is_silent(&self, now: Moment) -> bool {
        let since = self.committed.max(self.unanswered);
        self.unanswered != Moment::NEVER && now >= since + self.patience
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
        let mut life = Life::new(T, at(0));
        assert_eq!(life.deadline(), Some(at(6400)));
        life.sending(at(1000));
        life.sending(at(2000));
        assert!(life.commit(at(2000)) && life.commit(at(1000)));
        assert_eq!(life.deadline(), Some(at(8400)), "an older answer takes nothing back");
    }

    #[test]
    fn an_answer_after_the_end_makes_nothing_valid() {
        let mut life = Life::new(T, at(0));
        life.sending(at(1000));
        life.end();
        assert!(!life.commit(at(1000)));
        assert_eq!(life.deadline(), None);
        assert!(life.is_over());
    }

    #[test]
    fn only_unanswered_writes_are_silence() {
        let mut life = Life::new(T, at(0));
        assert!(!life.is_silent(at(100_000)), "nothing was asked");
        life.sending(at(100_000));
        assert!(!life.is_silent(at(106_399)) && life.is_silent(at(106_400)));
        life.sending(at(103_000));
        assert!(life.is_silent(at(106_400)), "the first one counts");
        life.commit(at(103_000));
        assert!(!life.is_silent(at(200_000)));
    }

    #[test]
    fn whatever_is_held_has_ended_before_the_session_is_given_up() {
        let mut life = Life::new(T, at(0));
        for (sent, committed) in [(1000, true), (2000, false), (3000, false)] {
            life.sending(at(sent));
            if committed {
                life.commit(at(sent));
            }
        }
        let deadline = life.deadline().expect("not over");
        assert!(!life.is_silent(deadline) && life.is_silent(at(8400)));
    }
}
