//! A process with some of the clients: this program, executed again. It starts on a line of input and
//! answers with one line.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

use clap::ValueEnum;
use fencelock::{Error, ErrorKind, Result};

use super::{Options, Seen};

/// Killed if it is not waited for.
pub(super) struct Worker {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Worker {
    pub(super) fn start(options: &Options, first: u32, clients: u32) -> Result<Worker> {
        let program = std::env::current_exe().map_err(broken_worker)?;
        let workload = options.workload.to_possible_value();
        let mut child = Command::new(program)
            .arg("bench")
            .arg(&options.url)
            .args(workload.iter().map(clap::builder::PossibleValue::get_name))
            .arg(clients.to_string())
            .arg(options.seconds.as_secs_f64().to_string())
            .args(options.local_handoffs.map(|most| format!("--local-handoffs={most}")))
            .args(["--worker", &first.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(broken_worker)?;
        let output = child.stdout.take().ok_or_else(|| broken_worker("it has no output"))?;
        Ok(Worker { child, output: BufReader::new(output) })
    }

    pub(super) fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        match self.output.read_line(&mut line).map_err(broken_worker)? {
            0 => Err(broken_worker("it ended early; its own message is above")),
            _ => Ok(line),
        }
    }

    pub(super) fn go(&mut self) -> Result<()> {
        let mut input = self.child.stdin.take().ok_or_else(|| broken_worker("it has no input"))?;
        input.write_all(b"go\n").map_err(broken_worker)
    }

    pub(super) fn seen(&mut self) -> Result<Seen> {
        let line = self.line()?;
        let seen = serde_json::from_str(&line).map_err(broken_worker)?;
        self.child.wait().map_err(broken_worker)?;
        Ok(seen)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Does nothing to one that was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(super) fn broken_worker(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(ErrorKind::Refused, "a bench process failed").caused_by(cause)
}
