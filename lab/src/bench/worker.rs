//! The processes with the clients: this program, executed again. Each reports when it is connected, begins at
//! a line of input, and prints what it saw.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use fencelock::{Error, ErrorKind, Result};

use super::options::{Options, Seen};

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

    /// Has them all begin, and returns what each saw.
    pub(super) fn drive(mut self) -> Result<Vec<Seen>> {
        for worker in &mut self.0 {
            writeln!(worker.input, "go").map_err(broken_worker)?;
        }
        let lines = self.lines()?;
        for worker in &mut self.0 {
            worker.child.wait().map_err(broken_worker)?;
        }
        lines.iter().map(|line| serde_json::from_str(line).map_err(broken_worker)).collect()
    }

    /// One line of each.
    fn lines(&mut self) -> Result<Vec<String>> {
        self.0.iter_mut().map(Worker::line).collect()
    }
}

/// Killed if it is not waited for.
struct Worker {
    child: Child,
    input: ChildStdin,
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
        let input = child.stdin.take().ok_or_else(|| broken_worker("it has no input"))?;
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

/// In a worker: waits for the order to begin; `false` if the first process is gone.
pub(super) fn may_begin() -> Result<bool> {
    let read = std::io::stdin().lock().read_line(&mut String::new()).map_err(broken_worker)?;
    Ok(read > 0)
}

fn broken_worker(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(ErrorKind::Refused, "a bench process failed").caused_by(cause)
}
