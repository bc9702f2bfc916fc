//! One connection in RESP3: replies and pushes arrive in one stream, in the order of their events.
//!
//! A step's pushes therefore arrive before its reply, and several steps can share a round trip.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

/// A reply of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    Nil,
    Int(i64),
    Text(String),
    Error(String),
    List(Vec<Value>),
}

impl Value {
    /// A number, or a text of one.
    pub(crate) fn int(&self) -> Option<i64> {
        match self {
            Value::Int(number) => Some(*number),
            Value::Text(text) => text.parse().ok(),
            _ => None,
        }
    }

    pub(crate) fn text(&self) -> Option<&str> {
        if let Value::Text(text) = self { Some(text) } else { None }
    }

    pub(crate) fn list(&self) -> &[Value] {
        if let Value::List(values) = self { values } else { &[] }
    }

    pub(crate) fn error(&self) -> Option<&str> {
        if let Value::Error(text) = self { Some(text) } else { None }
    }

    /// The texts of a list.
    pub(crate) fn texts(&self) -> Vec<&str> {
        self.list().iter().filter_map(Value::text).collect()
    }
}

/// A message to a client.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Push {
    pub(crate) channel: String,
    pub(crate) message: String,
}

#[derive(Debug)]
pub(crate) struct Client {
    stream: TcpStream,
    questions: Vec<u8>,
    answers: Vec<u8>,
    /// The longest wait for the server.
    pub(crate) slowest: Duration,
    read: usize,
    pushes: Vec<Push>,
    /// For each of the next replies, whether it is a list of one reply, which is then returned.
    in_lists: VecDeque<bool>,
}

impl Client {
    pub(crate) fn connect(port: u16) -> Client {
        const PATIENCE: Duration = Duration::from_secs(30);
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let (questions, answers) = (Vec::new(), Vec::new());
        let (pushes, in_lists) = (Vec::new(), VecDeque::new());
        let slowest = Duration::ZERO;
        let mut client = Client { stream, questions, answers, slowest, read: 0, pushes, in_lists };
        client.call(&["HELLO", "3"]);
        client
    }

    pub(crate) fn subscribe(&mut self, channels: &[&str]) {
        for channel in channels {
            // Its reply is a push.
            self.write(&["SUBSCRIBE", channel]);
        }
        self.call(&["PING"]);
    }

    /// Adds a command to the next round trip.
    pub(crate) fn send(&mut self, command: &[&str]) {
        self.in_lists.push_back(false);
        self.write(command);
    }

    /// Adds a command whose reply is a list of one reply, which is then received.
    pub(crate) fn send_for_one(&mut self, command: &[&str]) {
        self.in_lists.push_back(true);
        self.write(command);
    }

    fn write(&mut self, command: &[&str]) {
        write!(self.questions, "*{}\r\n", command.len()).unwrap();
        for part in command {
            write!(self.questions, "${}\r\n{part}\r\n", part.len()).unwrap();
        }
    }

    /// The reply to the oldest command that has none yet.
    pub(crate) fn receive(&mut self) -> Value {
        if !self.questions.is_empty() {
            self.stream.write_all(&self.questions).unwrap();
            self.questions.clear();
        }
        match (self.in_lists.pop_front(), self.value()) {
            (Some(true), Value::List(mut one)) if one.len() == 1 => one.remove(0),
            (Some(true), answer) if answer.error().is_none() => {
                panic!("no list of one: {answer:?}")
            }
            (_, answer) => answer,
        }
    }

    pub(crate) fn call(&mut self, command: &[&str]) -> Value {
        self.send(command);
        self.receive()
    }

    /// The pushes before the last received reply.
    pub(crate) fn take_pushes(&mut self) -> Vec<Push> {
        std::mem::take(&mut self.pushes)
    }

    fn value(&mut self) -> Value {
        loop {
            let line = self.line();
            let (kind, rest) = line.split_at(1);
            let count = || rest.parse::<i64>().unwrap();
            match kind {
                "-" => return Value::Error(rest.into()),
                ":" => return Value::Int(count()),
                "_" => return Value::Nil,
                "$" | "*" if rest == "-1" => return Value::Nil,
                "$" | "=" => return Value::Text(self.bytes(count())),
                "*" | "~" => return self.values(count()),
                "%" => return self.values(2 * count()),
                "+" | "," | "#" => return Value::Text(rest.into()),
                ">" => {
                    let Value::List(push) = self.values(count()) else { unreachable!() };
                    if let [Value::Text(kind), Value::Text(channel), Value::Text(message)] =
                        &push[..]
                        && kind == "message"
                    {
                        let (channel, message) = (channel.clone(), message.clone());
                        self.pushes.push(Push { channel, message });
                    }
                }
                _ => panic!("not RESP3: {line:?}"),
            }
        }
    }

    fn values(&mut self, count: i64) -> Value {
        Value::List((0..count).map(|_| self.value()).collect())
    }

    fn line(&mut self) -> String {
        let mut from = self.read;
        loop {
            if let Some(at) = self.answers[from..].iter().position(|byte| *byte == b'\n') {
                let end = from + at;
                let line = String::from_utf8_lossy(&self.answers[self.read..end - 1]).into_owned();
                self.read = end + 1;
                return line;
            }
            from = self.answers.len();
            let read = self.read;
            self.more();
            from -= read - self.read;
        }
    }

    fn bytes(&mut self, count: i64) -> String {
        let count = usize::try_from(count).unwrap();
        while self.answers.len() < self.read + count + 2 {
            self.more();
        }
        let text = String::from_utf8_lossy(&self.answers[self.read..self.read + count]);
        self.read += count + 2;
        text.into_owned()
    }

    fn more(&mut self) {
        self.answers.drain(..self.read);
        self.read = 0;
        let mut chunk = [0; 16 * 1024];
        let asked = Instant::now();
        let count = self.stream.read(&mut chunk).unwrap();
        self.slowest = self.slowest.max(asked.elapsed());
        assert!(count > 0, "the server closed the connection");
        self.answers.extend(&chunk[..count]);
    }
}
