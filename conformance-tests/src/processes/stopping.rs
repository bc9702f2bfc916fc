//! Stopping a child process.

use std::io;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// Stops a child as SIGSTOP does, and waits until [`has_stopped`].
///
/// # Errors
/// When there is no such child.
pub async fn stop(child: Pid) -> io::Result<()> {
    kill_process(child, Signal::STOP)?;
    while !has_stopped(child)? {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

/// Whether a stop signal has reached all threads of a child: it reaches one after the other, and a
/// thread that is woken in between would still run. The kernel reports it when the last has stopped.
///
/// # Errors
/// When there is no such child.
pub fn has_stopped(child: Pid) -> io::Result<bool> {
    // NOWAIT leaves the report in place for the next call.
    let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    Ok(waitid(WaitId::Pid(child), options)?.is_some())
}
