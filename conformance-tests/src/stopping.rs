//! Stopping a child process.

use std::io;

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

/// Stops a child as SIGSTOP does, and waits until [`has_stopped`].
///
/// # Errors
/// When there is no such child.
#[cfg(feature = "suite")]
pub async fn stop(child: Pid) -> io::Result<()> {
    rustix::process::kill_process(child, rustix::process::Signal::STOP)?;
    while !has_stopped(child)? {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
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
