//! `fencelock show`, `leader`, `break` and `tidy` as operators use them: on real stores of every kind, with jobs
//! of `fencelock run` that hold the lock.

mod breaking;
pub(crate) mod every_store;
mod leading;
mod showing;
mod tidying;
mod users;

use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::support::{Scratch, eventually, said};

/// What a command printed, and its exit code.
#[derive(Debug)]
struct Said {
    code: i32,
    printed: String,
    error: String,
}

impl Said {
    fn of(output: &Output) -> Said {
        let (code, printed, error) = said(output);
        Said { code, printed, error }
    }
}

/// `fencelock` with these arguments, in the store of `here`.
fn command(here: &Scratch, arguments: &[&str]) -> Command {
    let mut command = here.program(env!("CARGO_BIN_EXE_fencelock"));
    command.args(arguments).stdin(Stdio::null());
    command
}

fn fencelock(here: &Scratch, arguments: &[&str]) -> Said {
    Said::of(&command(here, arguments).output().expect("it runs"))
}

/// The lock `name` as `fencelock show --json` has it, after a check of its exit code.
fn seen(here: &Scratch, url: &str, name: &str) -> Value {
    let said = fencelock(here, &["show", "--url", url, name, "--json"]);
    assert_eq!((said.printed.lines().count(), &*said.error), (1, ""), "{said:?}");
    let seen: Value = serde_json::from_str(&said.printed).expect("JSON");
    assert_eq!(said.code, if seen["held"] == true { 0 } else { 1 }, "{said:?}");
    seen
}

/// Waits until so many hold the lock and so many wait for it.
fn until(here: &Scratch, url: &str, name: &str, holders: usize, waiters: usize) -> Value {
    let mut last = Value::Null;
    eventually("the holders and waiters", || {
        last = seen(here, url, name);
        let count = |list: &str| last[list].as_array().map(Vec::len);
        (count("holders"), count("waiters")) == (Some(holders), Some(waiters))
    });
    last
}

fn id(participant: &Value) -> String {
    participant["id"].as_str().expect("an id").to_owned()
}
