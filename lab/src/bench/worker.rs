//! The processes with the clients: this program, executed again. Each reports when it is connected, then
//! answers each line of input with one line, until its input ends.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use fencelock::{Error, ErrorKind, Result};
use serde::de::DeserializeOwned;

use super::options::Options;

/// The processes of one run, in the order in which they were started.
pub(super) struct Workers(Vec<Worker>);

impl Workers {
    /// Starts them, and returns when all are connected.
    pub(super) fn start(options: &Options) -> Result<Workers> {
        let processes = options.processes.min(options.clients);
        let mut workers = Vec::new();
        let mut first = 0;
        for index in 0..processes {
            let more = u32::from(index < options.clients % processes);
            let clients = options.clients / processes + more;
            workers.push(Worker::start(options, first, clients)?);
            first += clients;
        }
        let mut workers = Workers(workers);
        workers.lines()?;
        Ok(workers)
    }

    /// Writes a line to each.
    pub(super) fn tell(&mut self, line: &str) -> Result<()> {
        self.0.iter_mut().try_for_each(|worker| {
            let input = worker.input.as_mut().ok_or_else(|| broken_worker("it has no input"))?;
            writeln!(input, "{line}").map_err(broken_worker)
        })
    }

    /// One line of each.
    pub(super) fn lines(&mut self) -> Result<Vec<String>> {
        self.0.iter_mut().map(Worker::line).collect()
    }

    pub(super) fn answers<T: DeserializeOwned>(&mut self) -> Result<Vec<T>> {
        let lines = self.lines()?;
        lines.iter().map(|line| serde_json::from_str(line).map_err(broken_worker)).collect()
    }

    /// Ends their input, and waits for them.
    pub(super) fn end(mut self) -> Result<()> {
        for worker in &mut self.0 {
            worker.input = None;
        }
        for worker in &mut self.0 {
            worker.child.wait().map_err(broken_worker)?;
        }
        Ok(())
    }
}

/// Killed if it is not waited for.
struct Worker {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Worker {
    fn start(options: &Options, first: u32, clients: u32) -> Result<Worker> {
        let program = std::env::current_exe().map_err(broken_worker)?;
        let mut child = Command::new(program)
            .arg("bench")
            .arg(&options.url)
            .arg(options.workload.name())
            .arg(clients.to_string())
            .arg(options.seconds.as_secs_f64().to_string())
            .args(options.local_handoffs.map(|most| format!("--local-handoffs={most}")))
            .args(["--worker", &first.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(broken_worker)?;
        let input = child.stdin.take();
        let output = child.stdout.take().ok_or_else(|| broken_worker("it has no output"))?;
        Ok(Worker { child, input, output: BufReader::new(output) })
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        match self.output.read_line(&mut line).map_err(broken_worker)? {
            0 => Err(broken_worker("it ended early; its own message is above")),
            _ => Ok(line),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Does nothing to one that was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// In a worker: the next line of input; `None` at its end.
pub(super) fn read_line() -> Result<Option<String>> {
    let mut line = String::new();
    match std::io::stdin().lock().read_line(&mut line).map_err(broken_worker)? {
        0 => Ok(None),
        _ => Ok(Some(line.trim_end().to_owned())),
    }
}

pub(super) fn broken_worker(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(ErrorKind::Refused, "a bench process failed").caused_by(cause)
}
