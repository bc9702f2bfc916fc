//! The meaning of each error of the transport, in one table.
//!
//! An error that the server answered is certain: nothing was done. Every other error is ambiguous,
//! since a request can be carried out although its answer was lost, and even when it had not been
//! sent yet: the transport still sends what waits for a connection.

use std::time::Duration;

pub(crate) use fencelock_core::backend::closed;
use fencelock_core::{Error, ErrorKind};
use zookeeper_client::{Error as ZkError, MultiWriteError};

/// Why a request has failed.
#[derive(Clone, Debug)]
pub(crate) enum RequestError {
    /// The transport's error.
    Zk(ZkError),
    /// No answer within this time.
    TimedOut(Duration),
    /// The session of the request is over.
    SessionOver,
    /// The node of a claim is first, and the transaction that created it has no fencing tokens.
    NoTokens { czxid: i64 },
    /// The node at this path is not that of a cell, or not a whole one.
    NotACell { path: String },
    /// Somebody else may change the node at this path, or what is below it.
    NotOwn { path: String, by: String },
}

/// The answer of servers whose local sessions are not upgraded to the creation of an ephemeral node.
const EPHEMERAL_ON_LOCAL_SESSION: i32 = -120;

/// The result of a request.
pub(crate) type ZkResult<T> = Result<T, RequestError>;

/// Whether a failed request was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Certainty {
    /// It was not: the server refused it.
    Declined,
    /// Unknown, until the store is read again.
    Unknown,
    /// Irrelevant: the session, with all that was created in it, is over.
    SessionOver,
}

impl RequestError {
    /// Whether the request was carried out.
    pub(crate) fn certainty(&self) -> Certainty {
        match self {
            RequestError::Zk(error) => meaning_of(error).certainty,
            RequestError::TimedOut(_) => Certainty::Unknown,
            RequestError::SessionOver => Certainty::SessionOver,
            // No request: what is there was read, and is left as it is.
            RequestError::NoTokens { .. }
            | RequestError::NotACell { .. }
            | RequestError::NotOwn { .. } => Certainty::Declined,
        }
    }

    /// The node, or one above it, does not exist.
    pub(crate) fn is_no_node(&self) -> bool {
        matches!(self, RequestError::Zk(ZkError::NoNode))
    }

    /// The node exists.
    pub(crate) fn is_node_exists(&self) -> bool {
        matches!(self, RequestError::Zk(ZkError::NodeExists))
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

/// The error of a bare request of the transport.
pub(crate) fn explained(error: ZkError) -> Error {
    RequestError::from(error).into_error()
}

impl RequestError {
    /// No `From`: programs would have to name the error type of every `?` as soon as there is a second
    /// one for `Error`, wherever it is.
    pub(crate) fn into_error(self) -> Error {
        match self {
            RequestError::Zk(error) => {
                let Meaning { kind, retryable, advice, .. } = meaning_of(&error);
                let message = match advice {
                    "" => error.to_string(),
                    advice => format!("{advice} ({error})"),
                };
                Error::new(kind, message).retryable(retryable)
            }
            RequestError::TimedOut(bound) => {
                let message = format!("no answer from the server within {bound:?}");
                Error::new(ErrorKind::Unreachable, message)
            }
            RequestError::SessionOver => Error::new(
                ErrorKind::Unreachable,
                "the session with the servers was lost; a new one is being opened",
            ),
            RequestError::NoTokens { czxid } => Error::new(
                ErrorKind::Refused,
                format!(
                    "the ensemble's transaction numbers are at {czxid:#x}, and fencing tokens end \
                     at 2^50; move the locks to an ensemble with new data, with a larger token_epoch"
                ),
            ),
            RequestError::NotACell { path } => Error::new(
                ErrorKind::Foreign,
                format!(
                    "the node {path} is not a whole cell: another program has created or changed \
                     it; delete it with its children to start the cell anew"
                ),
            ),
            RequestError::NotOwn { path, by } => Error::new(
                ErrorKind::Refused,
                format!(
                    "the node {path} is not this login's alone: its ACL lets {by} change it, so what is there \
                     may be anybody's; delete it with its children when nobody uses it, and choose a root in \
                     which only this login may create, or share the locks by acl=open (docs/zookeeper.md)"
                ),
            ),
        }
    }
}

struct Meaning {
    certainty: Certainty,
    kind: ErrorKind,
    retryable: bool,
    /// What the message adds to that of the transport.
    advice: &'static str,
}

/// The table.
fn meaning_of(error: &ZkError) -> Meaning {
    use Certainty::{Declined, SessionOver, Unknown};
    use ErrorKind::{Foreign, InvalidArgument, Refused, Unreachable};
    let row = |certainty, kind, retryable, advice| Meaning { certainty, kind, retryable, advice };
    // Certain; another attempt finds another state.
    let again = |advice| row(Declined, Unreachable, true, advice);
    // Certain; another attempt fails in the same way.
    let refused = |advice| row(Declined, Refused, false, advice);
    let unknown = |advice| row(Unknown, Unreachable, true, advice);
    match error {
        ZkError::NoNode => again("a node was deleted meanwhile"),
        ZkError::NodeExists => again("a node was created meanwhile"),
        ZkError::NotEmpty => again("a node got children meanwhile"),
        ZkError::BadVersion => again("a node was changed meanwhile"),
        ZkError::Throttled => again("the servers are overloaded"),
        ZkError::NotReadOnly => again("the server is read-only"),
        ZkError::NoWatcher => again(""),
        ZkError::NoAuth => refused(
            "an ACL denies it, which is also how a wrong password in auth=digest shows: the servers take any; \
                 docs/zookeeper.md lists the rights that are needed",
        ),
        ZkError::InvalidAcl => refused("acl=creator needs a login: auth=digest:USER:PASSWORD"),
        ZkError::QuotaExceeded => refused("a quota of the path is exceeded"),
        ZkError::Unimplemented => refused("ZooKeeper 3.5 or newer is needed"),
        ZkError::UnexpectedErrorCode(EPHEMERAL_ON_LOCAL_SESSION) => refused(
            "a local session cannot hold a lock; the servers need \
             localSessionsUpgradingEnabled=true, or localSessionsEnabled=false",
        ),
        ZkError::ReconfigDisabled => refused(""),
        ZkError::NoChildrenForEphemerals => row(
            Declined,
            Foreign,
            false,
            "the lock's own node is ephemeral, so another program has created it",
        ),
        ZkError::BadArguments(_) => row(Declined, InvalidArgument, false, ""),
        // The end of the session.
        ZkError::SessionExpired => row(SessionOver, Unreachable, true, "the session has expired"),
        ZkError::ClientClosed => row(SessionOver, Unreachable, true, "the session was closed"),
        ZkError::AuthFailed => {
            row(SessionOver, Refused, false, "the servers refuse the login; check auth=")
        }
        ZkError::ConnectionLoss | ZkError::SessionMoved | ZkError::Timeout => {
            unknown("the connection was lost")
        }
        ZkError::NoHosts => unknown("no server accepts a connection"),
        // An invalid answer, a broken connection (`Custom`), and errors that a newer transport may add.
        _ => unknown("the connection failed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_errors_of_the_server_are_certain() {
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
            assert!(RequestError::from(unknown).into_error().is_retryable());
        }
        assert_eq!(RequestError::TimedOut(Duration::from_secs(1)).certainty(), Certainty::Unknown);
        for over in [ZkError::SessionExpired, ZkError::ClientClosed] {
            assert_eq!(RequestError::from(over).certainty(), Certainty::SessionOver);
        }
        assert_eq!(RequestError::SessionOver.certainty(), Certainty::SessionOver);
    }

    #[test]
    fn permanent_errors_are_not_retried() {
        for (refused, kind) in [
            (ZkError::NoAuth, ErrorKind::Refused),
            (ZkError::AuthFailed, ErrorKind::Refused),
            (ZkError::QuotaExceeded, ErrorKind::Refused),
            (ZkError::NoChildrenForEphemerals, ErrorKind::Foreign),
            (ZkError::UnexpectedErrorCode(-120), ErrorKind::Refused),
        ] {
            let error = RequestError::from(refused).into_error();
            assert!(!error.is_retryable() && error.kind() == kind, "{error}");
        }
    }
}
