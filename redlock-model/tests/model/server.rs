//! The node's side, as the scripts in `src/protocol/lua/redlock` do it, for exclusive locks and without
//! a queue.

use fencelock_redis::redlock::fence;
use fencelock_redis::redlock::marker::{self, Deployment, Marker, Standing};
use fencelock_redis::redlock::votes::Vote;

use crate::rules::{Dropped, MARGIN, Setting, TOO_MUCH};
use crate::state::{Key, Kind, Life, Node, Owner, Request};
use crate::units::{marker_us, ticks};

impl Node {
    /// Does what is asked, and answers.
    pub(crate) fn answer(&mut self, request: &Request, now: u8, setting: &Setting) -> Vote {
        let unchecked = match request.kind {
            Kind::Vote => Dropped::MarkerAtVote,
            Kind::Settle => Dropped::OpenAtWriteBack,
            Kind::Extend { .. } => Dropped::OpenAtExtension,
        };
        let is_the_same = self.open && self.life == request.life;
        if !is_the_same && setting.dropped != unchecked {
            return Vote::Absent;
        }
        let key = Key { owner: request.owner, until: now + setting.ttl - self.early(setting) };
        let is_mine = self.key.is_some_and(|key| key.owner == request.owner);
        match request.kind {
            Kind::Vote if is_mine => {}
            Kind::Vote if self.key.is_none() => {
                self.key = Some(key);
                self.fence = fence::next(self.fence, request.fence);
            }
            Kind::Settle if is_mine || setting.dropped == Dropped::MineAtWriteBack => {
                self.fence = self.fence.max(request.fence);
            }
            Kind::Extend { may_plant } if is_mine || (may_plant && self.key.is_none()) => {
                self.key = Some(key);
                self.fence = self.fence.max(request.fence);
            }
            Kind::Vote | Kind::Settle | Kind::Extend { .. } => return Vote::No,
        }
        Vote::Yes(self.fence)
    }

    /// By how many ticks a key ends too early.
    fn early(&self, setting: &Setting) -> u8 {
        match self.traits.fast {
            0 => 0,
            within if setting.dropped == Dropped::RatesWithinMargin => within + MARGIN,
            within => within,
        }
    }

    /// Whatever the marker is.
    pub(crate) fn release(&mut self, owner: Owner, setting: &Setting) {
        let is_mine = self.key.is_some_and(|key| key.owner == owner);
        if is_mine || setting.dropped == Dropped::CompareAtRelease {
            self.key = None;
        }
    }

    pub(crate) fn restart(&mut self, now: u8, setting: &Setting) {
        self.lose_data();
        self.life.run += 1;
        self.look(now, setting);
    }

    pub(crate) fn flush(&mut self, now: u8, setting: &Setting) {
        self.lose_data();
        // Whoever goes by the `run_id` sees no difference.
        if setting.dropped == Dropped::LifeByMarker {
            self.open = true;
        } else {
            self.look(now, setting);
        }
    }

    fn lose_data(&mut self) {
        self.key = None;
        self.fence = 0;
        self.open = false;
        self.life.born = 0;
    }

    pub(crate) fn tick(&mut self, now: u8, setting: &Setting) {
        self.key = self.key.filter(|key| now < key.until);
        if !self.open {
            self.look(now, setting);
        }
    }

    /// Somebody looks at the node at once, and writes its marker: any later it would be kept out
    /// for longer.
    pub(crate) fn look(&mut self, now: u8, setting: &Setting) {
        while let Standing::Write(marker) = self.standing(now, setting, self.deployment(setting)) {
            self.life.born = u8::try_from(marker.born_us / marker_us(1)).expect("within the run");
            self.open = marker.state == marker::State::Open;
        }
    }

    /// What a client of `ours` makes of it.
    pub(crate) fn standing(&self, now: u8, setting: &Setting, ours: Deployment) -> Standing {
        let too_old = match setting.dropped {
            Dropped::AgeByMarker if self.life.born > 0 => TOO_MUCH,
            _ => 0,
        };
        let run_id = self.life.run.to_string();
        let state = if self.open { marker::State::Open } else { marker::State::Born };
        let text = self.has_marker().then(|| {
            let (born_us, deployment) = (marker_us(self.life.born), self.deployment(setting));
            Marker { run_id: run_id.clone(), state, born_us, deployment }.to_string()
        });
        marker::standing(text.as_deref(), &run_id, marker_us(self.clock(now) + too_old), ours)
    }

    /// The run begins at tick 1 with markers of tick 0.
    fn has_marker(&self) -> bool {
        self.open || self.life.born > 0
    }

    pub(crate) fn deployment(&self, setting: &Setting) -> Deployment {
        deployment(self.traits.epoch, setting)
    }

    pub(crate) fn clock(&self, now: u8) -> u8 {
        now + self.traits.lead + self.stepped
    }

    /// When it lost its data, for who was there; clocks step later than that.
    pub(crate) fn lost(&self) -> Option<u8> {
        let first = Life { run: 0, born: 0 };
        (self.life != first).then(|| self.life.born - self.traits.lead)
    }
}

/// What the clients of a set of nodes say.
pub(crate) fn deployment(epoch: u8, setting: &Setting) -> Deployment {
    Deployment { nodes: 3, epoch: u32::from(epoch), delay: ticks(setting.delay()) }
}
