//! What each error of the transport means: one table.
//!
//! The server's own word about a request is certain: nothing was done. Everything else is
//! ambiguous, for a request can be carried out although its answer was lost, and even when it had
//! not been sent yet: the transport still sends what waits for a connection.

use std::time::Duration;

use fencelock_core::{Error, ErrorKind};
use zookeeper_client::{Error as ZkError, MultiWriteError};

/// Why a request has no answer that is of use.
#[derive(Clone, Debug)]
pub(crate) enum RequestError {
    /// As the transport says.
    Zk(ZkError),
    /// Nothing within this time.
    Silent(Duration),
    /// The session it was to be asked in is over.
    Over,
}

/// What servers with local sessions, which they do not upgrade, answer to the creation of an
/// ephemeral node.
const EPHEMERAL_ON_LOCAL_SESSION: i32 = -120;

/// What a request came to.
pub(crate) type ZkResult<T> = Result<T, RequestError>;

/// What became of the request itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Certainty {
    /// The server looked at it and did nothing.
    Declined,
    /// Nobody knows, until the store is read again.
    Unknown,
    /// It does not matter: the session, and all that was made in it, is over.
    SessionOver,
}

impl RequestError {
    /// What became of the request.
    pub(crate) fn certainty(&self) -> Certainty {
        match self {
            RequestError::Zk(error) => meaning_of(error).certainty,
            RequestError::TimedOut(_) => Certainty::Unknown,
            RequestError::SessionOver => Certainty::SessionOver,
        }
    }

    /// The node, or one above it, is not there.
    pub(crate) fn is_no_node(&self) -> bool {
        matches!(self, RequestError::Zk(ZkError::NoNode))
    }

    /// The server does not know the request.
    pub(crate) fn is_unimplemented(&self) -> bool {
        matches!(self, RequestError::Zk(ZkError::Unimplemented))
    }

    /// The node has children.
    pub(crate) fn is_not_empty(&self) -> bool {
        matches!(self, RequestError::Zk(ZkError::NotEmpty))
    }
}

impl From<ZkError> for RequestError {
    fn from(error: ZkError) -> RequestError {
        RequestError::Zk(error)
    }
}

impl From<MultiWriteError> for RequestError {
    fn from(error: MultiWriteError) -> RequestError {
        RequestError::Zk(error.into())
    }
}

impl From<RequestError> for Error {
    fn from(error: RequestError) -> Error {
        match error {
            RequestError::Zk(error) => explain(&error),
            RequestError::TimedOut(bound) => {
                let message = format!("the server gave no answer within {bound:?}");
                Error::new(ErrorKind::Unreachable, message)
            }
            RequestError::SessionOver => {
                let message = "the session with the servers was lost; a new one is being made";
                Error::new(ErrorKind::Unreachable, message)
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Meaning {
    certainty: Certainty,
    kind: ErrorKind,
    retryable: bool,
    /// What to say besides the transport's words.
    advice: &'static str,
}

/// The table.
fn meaning_of(error: &ZkError) -> Meaning {
    use Certainty::{Declined, SessionOver, Unknown};
    use ErrorKind::{Foreign, InvalidArgument, Refused, Unreachable};
    let row = |certainty, kind, retryable, advice| Meaning { certainty, kind, retryable, advice };
    match error {
        // Certain, and another attempt finds another state.
        ZkError::NoNode => row(Declined, Unreachable, true, "a node has just gone"),
        ZkError::NodeExists => row(Declined, Unreachable, true, "a node has just come"),
        ZkError::NotEmpty => row(Declined, Unreachable, true, "a node has just got children"),
        ZkError::BadVersion => row(Declined, Unreachable, true, "a node has just changed"),
        ZkError::Throttled => row(Declined, Unreachable, true, "the servers are overloaded"),
        ZkError::NoWatcher => row(Declined, Unreachable, true, ""),
        // Certain, and the same again.
        ZkError::NoAuth => {
            row(Declined, Refused, false, "an ACL denies it; docs/zookeeper.md has what locks need")
        }
        ZkError::InvalidAcl => {
            row(Declined, Refused, false, "acl=creator needs a login: auth=digest:USER:PASSWORD")
        }
        ZkError::QuotaExceeded => row(Declined, Refused, false, "a quota of the path is used up"),
        ZkError::Unimplemented => row(Declined, Refused, false, "ZooKeeper 3.5 or newer is needed"),
        ZkError::UnexpectedErrorCode(EPHEMERAL_ON_LOCAL_SESSION) => row(
            Declined,
            Refused,
            false,
            "a local session cannot hold a lock; the servers need \
             localSessionsUpgradingEnabled=true, or localSessionsEnabled=false",
        ),
        ZkError::ReconfigDisabled => row(Declined, Refused, false, ""),
        ZkError::NotReadOnly => row(Declined, Unreachable, true, "the server can only be read"),
        ZkError::NoChildrenForEphemerals => {
            row(Declined, Foreign, false, "the lock's own node is ephemeral, not of this library")
        }
        ZkError::BadArguments(_) => row(Declined, InvalidArgument, false, ""),
        // The end of the session.
        ZkError::SessionExpired => row(SessionOver, Unreachable, true, "the session has expired"),
        ZkError::ClientClosed => row(SessionOver, Unreachable, true, "the session was closed"),
        ZkError::AuthFailed => {
            row(SessionOver, Refused, false, "the servers refuse the login; check auth=")
        }
        // Not certain at all.
        ZkError::ConnectionLoss | ZkError::SessionMoved | ZkError::Timeout => {
            row(Unknown, Unreachable, true, "the connection was lost")
        }
        ZkError::NoHosts => row(Unknown, Unreachable, true, "no server takes a connection"),
        // An answer that makes no sense, a broken connection (`Custom`), and what a newer transport
        // may say.
        _ => row(Unknown, Unreachable, true, "the connection failed"),
    }
}

/// As the caller sees it.
fn explain(error: &ZkError) -> Error {
    let meaning = meaning_of(error);
    let message = match meaning.advice {
        "" => error.to_string(),
        advice => format!("{advice} ({error})"),
    };
    Error::new(meaning.kind, message).retryable(meaning.retryable)
}

/// After [`close`](fencelock_core::Locks::close).
pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the store was closed")
}

/// The state of the lock changes faster than it can be read.
pub(crate) fn unsettled() -> Error {
    Error::new(ErrorKind::Unreachable, "the lock's nodes changed at each look")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_servers_own_word_is_certain() {
        for declined in [ZkError::NoNode, ZkError::NoAuth, ZkError::NodeExists, ZkError::InvalidAcl]
        {
            assert_eq!(RequestError::from(declined).certainty(), Certainty::Declined);
        }
        for unknown in [
            ZkError::ConnectionLoss,
            ZkError::Timeout,
            ZkError::UnexpectedErrorCode(-99),
            ZkError::RuntimeInconsistent,
        ] {
            assert_eq!(
                RequestError::from(unknown.clone()).certainty(),
                Certainty::Unknown,
                "{unknown}"
            );
            assert!(Error::from(RequestError::from(unknown)).is_retryable());
        }
        assert_eq!(RequestError::TimedOut(Duration::from_secs(1)).certainty(), Certainty::Unknown);
        for over in [ZkError::SessionExpired, ZkError::ClientClosed] {
            assert_eq!(RequestError::from(over).certainty(), Certainty::SessionOver);
        }
        assert_eq!(RequestError::SessionOver.certainty(), Certainty::SessionOver);
    }

    #[test]
    fn what_stays_as_it_is_is_not_asked_again() {
        for (refused, kind) in [
            (ZkError::NoAuth, ErrorKind::Refused),
            (ZkError::AuthFailed, ErrorKind::Refused),
            (ZkError::QuotaExceeded, ErrorKind::Refused),
            (ZkError::NoChildrenForEphemerals, ErrorKind::Foreign),
            (ZkError::UnexpectedErrorCode(-120), ErrorKind::Refused),
        ] {
            let error = Error::from(RequestError::from(refused));
            assert!(!error.is_retryable() && error.kind() == kind, "{error}");
        }
    }
}
