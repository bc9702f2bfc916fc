//! How far a store has to exclude.

use clap::ValueEnum;
use fencelock::Reach;

/// Which clients the store's locks must exclude at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum RequiredReach {
    /// The processes of this machine
    Machine,
    /// The processes of all machines that use the store
    Network,
}

impl RequiredReach {
    pub(super) fn parse(text: &str) -> Option<RequiredReach> {
        RequiredReach::from_str(text, false).ok()
    }

    pub(super) fn is_met_by(self, reach: Reach) -> bool {
        match reach {
            Reach::Process => false,
            Reach::Machine => self == RequiredReach::Machine,
            Reach::Network => true,
        }
    }

    pub(super) fn as_str(self) -> &'static str {
        match self {
            RequiredReach::Machine => "machine",
            RequiredReach::Network => "network",
        }
    }
}
