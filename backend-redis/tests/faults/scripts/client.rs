//! One connection in RESP3: replies and pushes arrive in one stream, in the order of their events.
//!
//! A step's pushes therefore arrive before its reply, and several steps can share a round trip.

use std::collections::VecDeque;
use std::io::Write;
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
    fn of(reply: redis::Value) -> Value {
        match reply {
            redis::Value::Nil => Value::Nil,
            redis::Value::Int(number) => Value::Int(number),
            redis::Value::Double(number) => Value::Text(number.to_string()),
            redis::Value::Okay => Value::Text("OK".to_owned()),
            redis::Value::SimpleString(text) | redis::Value::VerbatimString { text, .. } => {
                Value::Text(text)
            }
            redis::Value::BulkString(bytes) => {
                Value::Text(String::from_utf8_lossy(&bytes).into_owned())
            }
            redis::Value::Array(values) | redis::Value::Set(values) => {
                Value::List(values.into_iter().map(Value::of).collect())
            }
            redis::Value::Map(pairs) => {
                let values = pairs.into_iter().flat_map(|(key, value)| [key, value]);
                Value::List(values.map(Value::of).collect())
            }
            redis::Value::ServerError(error) => {
                Value::Error(format!("{} {}", error.code(), error.details().unwrap_or_default()))
            }
            other => panic!("not a reply to these commands: {other:?}"),
        }
    }

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

pub(crate) struct Client {
    stream: TcpStream,
    questions: Vec<u8>,
    parser: redis::Parser,
    /// The longest wait for the server.
    pub(crate) slowest: Duration,
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
        let (questions, parser) = (Vec::new(), redis::Parser::new());
        let (pushes, in_lists) = (Vec::new(), VecDeque::new());
        let slowest = Duration::ZERO;
        let mut client = Client { stream, questions, parser, slowest, pushes, in_lists };
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
            let asked = Instant::now();
            let reply = self.parser.parse_value(&mut self.stream).unwrap();
            self.slowest = self.slowest.max(asked.elapsed());
            let redis::Value::Push { kind, data } = reply else { return Value::of(reply) };
            let data: Vec<Value> = data.into_iter().map(Value::of).collect();
            if let (redis::PushKind::Message, [Value::Text(channel), Value::Text(message)]) =
                (kind, &data[..])
            {
                let (channel, message) = (channel.clone(), message.clone());
                self.pushes.push(Push { channel, message });
            }
        }
    }
}
