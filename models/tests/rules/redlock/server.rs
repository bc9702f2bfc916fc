//! The node's side, as the Lua scripts of `redlock` do it, for exclusive locks and without a queue.

use fencelock_redis::redlock::incarnation::{
    self, Deployment, IncarnationRecord, IncarnationVerdict,
};
use fencelock_redis::redlock::token;
use fencelock_redis::redlock::votes::Vote;

use crate::redlock::rules::{Dropped, MARGIN, Setting, TOO_MUCH};
use crate::redlock::state::{Incarnation, Key, Kind, Node, Owner, Request};
use crate::redlock::units::{record_us, ticks};

impl Node {
    /// Handles a request and replies.
    pub(crate) fn answer(&mut self, request: &Request, now: u8, setting: &Setting) -> Vote {
        let unchecked = match request.kind {
            Kind::Vote => Dropped::RecordAtVote,
            Kind::Settle => Dropped::OpenAtWriteBack,
            Kind::Extend { .. } => Dropped::OpenAtExtension,
        };
        let is_the_same = self.open && self.incarnation == request.incarnation;
        if !is_the_same && setting.dropped != unchecked {
            return Vote::Absent;
        }
        let key = Key { owner: request.owner, until: now + setting.ttl - self.early(setting) };
        let is_mine = self.key.is_some_and(|key| key.owner == request.owner);
        match request.kind {
            Kind::Vote if is_mine => {}
            Kind::Vote if self.key.is_none() => {
                self.key = Some(key);
                self.token = token::next(self.token, request.token);
            }
            Kind::Settle if is_mine || setting.dropped == Dropped::MineAtWriteBack => {
                self.token = self.token.max(request.token);
            }
            Kind::Extend { .. }
                if self.has_evicted && setting.dropped != Dropped::EvictionIsRemembered =>
            {
                return Vote::No;
            }
            Kind::Extend { may_reinstall } if is_mine || (may_reinstall && self.key.is_none()) => {
                self.key = Some(key);
                self.token = self.token.max(request.token);
            }
            Kind::Vote | Kind::Settle | Kind::Extend { .. } => return Vote::No,
        }
        Vote::Yes(self.token)
    }

    /// By how many ticks a key expires too early.
    fn early(&self, setting: &Setting) -> u8 {
        match self.traits.fast {
            0 => 0,
            within if setting.dropped == Dropped::RatesWithinMargin => within + MARGIN,
            within => within,
        }
    }

    /// Releases the lock, regardless of the record.
    pub(crate) fn release(&mut self, owner: Owner, setting: &Setting) {
        let is_mine = self.key.is_some_and(|key| key.owner == owner);
        if is_mine || setting.dropped == Dropped::CompareAtRelease {
            self.key = None;
        }
    }

    /// Removes the first client's round, and remembers that.
    pub(crate) fn evict(&mut self) {
        self.key = self.key.filter(|key| key.owner.client != 0);
        self.has_evicted = true;
    }

    pub(crate) fn restart(&mut self, now: u8, setting: &Setting) {
        self.lose_data();
        self.incarnation.run += 1;
        self.check(now, setting);
    }

    pub(crate) fn flush(&mut self, now: u8, setting: &Setting) {
        self.lose_data();
        // The `run_id` shows no difference.
        if setting.dropped == Dropped::IncarnationByRecord {
            self.open = true;
        } else {
            self.check(now, setting);
        }
    }

    fn lose_data(&mut self) {
        self.key = None;
        self.token = 0;
        self.has_evicted = false;
        self.open = false;
        self.incarnation.born = 0;
    }

    pub(crate) fn tick(&mut self, now: u8, setting: &Setting) {
        self.key = self.key.filter(|key| now < key.until);
        if !self.open {
            self.check(now, setting);
        }
    }

    /// A client checks the node at once and writes its record: later, the node would be excluded for
    /// longer.
    pub(crate) fn check(&mut self, now: u8, setting: &Setting) {
        while let IncarnationVerdict::Write(record) =
            self.verdict(now, setting, self.deployment(setting))
        {
            self.incarnation.born =
                u8::try_from(record.born_us / record_us(1)).expect("within the run");
            self.open = record.state == incarnation::RecordState::Open;
        }
    }

    /// The verdict of a client of `ours`.
    pub(crate) fn verdict(
        &self,
        now: u8,
        setting: &Setting,
        ours: Deployment,
    ) -> IncarnationVerdict {
        let too_old = match setting.dropped {
            Dropped::AgeByRecord if self.incarnation.born > 0 => TOO_MUCH,
            _ => 0,
        };
        let run_id = self.incarnation.run.to_string();
        let state =
            if self.open { incarnation::RecordState::Open } else { incarnation::RecordState::Born };
        let text = self.has_record().then(|| {
            let (born_us, deployment) =
                (record_us(self.incarnation.born), self.deployment(setting));
            IncarnationRecord { run_id: run_id.clone(), state, born_us, deployment }.to_string()
        });
        incarnation::verdict(text.as_deref(), &run_id, record_us(self.clock(now) + too_old), ours)
    }

    /// The run starts at tick 1 with records of tick 0.
    fn has_record(&self) -> bool {
        self.open || self.incarnation.born > 0
    }

    pub(crate) fn deployment(&self, setting: &Setting) -> Deployment {
        deployment(self.traits.epoch, setting)
    }

    pub(crate) fn clock(&self, now: u8) -> u8 {
        now + self.traits.lead + self.stepped
    }

    /// When it lost its data, for a client that was connected; clocks step later than that.
    pub(crate) fn lost(&self) -> Option<u8> {
        let first = Incarnation { run: 0, born: 0 };
        (self.incarnation != first).then(|| self.incarnation.born - self.traits.lead)
    }
}

/// What the clients of a set of nodes configure.
pub(crate) fn deployment(epoch: u8, setting: &Setting) -> Deployment {
    Deployment { nodes: 3, epoch: u32::from(epoch), delay: ticks(setting.delay()) }
}
