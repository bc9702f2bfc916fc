//! Reaping the processes that this one inherits when their parents have ended: as the first process
//! of a container, and as the subreaper of what the command leaves behind.

use std::io;

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use tokio::signal::unix::{SignalKind, signal};

/// Makes this process inherit its descendants that lose their parents. Elsewhere than on Linux the
/// first process of the machine inherits them.
pub(crate) fn adopt() -> io::Result<()> {
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    Ok(())
}

/// Reaps all children as they end, permanently. Nothing here needs their statuses:
/// the watchdog reports the command's.
pub(crate) fn reap_in_background() -> io::Result<()> {
    let mut changes = signal(SignalKind::child())?;
    tokio::spawn(async move {
        loop {
            while reap(WaitId::All) {}
            changes.recv().await;
        }
    });
    Ok(())
}

/// Waits until the child `pid` has ended, and reaps it.
pub(crate) async fn ended(pid: Pid) -> io::Result<()> {
    let mut changes = signal(SignalKind::child())?;
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    while let Ok(None) = waitid(WaitId::Pid(pid), options) {
        changes.recv().await;
    }
    Ok(())
}

/// Reaps the children that have ended, except for `leader`.
#[cfg(target_os = "linux")]
pub(crate) fn reap_all_but(leader: Pid) {
    use super::list::children;
    use nix::sys::wait::{Id, WaitPidFlag};
    let peek = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    while let Ok(status) = nix::sys::wait::waitid(Id::All, peek) {
        let Some(ended) = status.pid().and_then(|pid| Pid::from_raw(pid.as_raw())) else { return };
        if ended == leader {
            break;
        }
        reap(WaitId::Pid(ended));
    }
    // The kernel reports the oldest child first, which the leader is, until that is reaped.
    for child in children(rustix::process::getpid()).into_iter().filter(|child| *child != leader) {
        reap(WaitId::Pid(child));
    }
}

/// No orphan is inherited here.
#[cfg(not(target_os = "linux"))]
pub(crate) fn reap_all_but(_leader: Pid) {}

fn reap(which: WaitId<'_>) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    matches!(waitid(which, options), Ok(Some(_)))
}
