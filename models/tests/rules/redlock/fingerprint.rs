//! A compact hash of states: the checker hashes every state that it reaches, and hashing field by
//! field takes most of a run without optimisation.

use std::hash::{Hash, Hasher};

use fencelock_redis::redlock::votes::Vote;

use crate::redlock::state::{Ask, Incarnation, Kind, Node, Request};

impl Hash for Node {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        // Not the traits: nodes are sorted by them first, so they are the same in all states.
        let [run, born] = incarnation(Some(self.incarnation));
        let [low, high] = token(self.token);
        let state = [run, born, low, high, self.stepped, u8::from(self.open), 0, 0];
        hasher.write_u64(u64::from_le_bytes(state));
        let key = self.key.map_or([0; 3], |key| [key.owner.client, key.owner.round, key.until]);
        hasher.write_u32(u32::from_le_bytes([key[0], key[1], key[2], 0]));
        self.asks[0].hash(hasher);
        self.asks[1].hash(hasher);
    }
}

impl Hash for Ask {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let (asked, confirmed) = (incarnation(self.incarnation), incarnation(self.confirmed));
        let [low, high] = match self.vote {
            Vote::Yes(its) => token(its),
            Vote::Pending => [0xfd, 0xff],
            Vote::No => [0xfe, 0xff],
            Vote::Absent => [0xff, 0xff],
        };
        // The owner is the client itself, and rounds count from 1.
        let release = self.release.map_or(0, |owner| owner.round);
        let reinstalled = u8::from(self.reinstalled);
        let incarnations = [asked[0], asked[1], confirmed[0], confirmed[1]];
        let word = [
            incarnations[0],
            incarnations[1],
            incarnations[2],
            incarnations[3],
            low,
            high,
            release,
            reinstalled,
        ];
        hasher.write_u64(u64::from_le_bytes(word));
        hasher.write_u64(self.sent.map_or(0, request));
        hasher.write_u64(self.stray.map_or(0, request));
    }
}

fn request(request: Request) -> u64 {
    let kind = match request.kind {
        Kind::Vote => 1,
        Kind::Settle => 2,
        Kind::Extend { may_reinstall: false } => 3,
        Kind::Extend { may_reinstall: true } => 4,
    };
    let ([run, born], [low, high]) = (incarnation(Some(request.incarnation)), token(request.token));
    u64::from_le_bytes([kind, request.owner.round, run, born, low, high, 0, 0])
}

fn incarnation(incarnation: Option<Incarnation>) -> [u8; 2] {
    incarnation.map_or([0xff; 2], |incarnation| [incarnation.run, incarnation.born])
}

/// A run is too short for larger ones.
fn token(token: u64) -> [u8; 2] {
    u16::try_from(token).expect("few ticks and rounds").to_le_bytes()
}
