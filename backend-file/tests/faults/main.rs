//! The file store when processes die, stop, share descriptors and are other users, and when its
//! files are lost, damaged or another program's.
//!
//! The conformance suite tests what every store must do; here are the faults that only files have.

#![allow(clippy::unwrap_used)]

mod cells;
mod directories;
mod fuzzing;
mod page;
mod processes;
mod scaling;
mod security;
mod single_process;
mod support;
mod tokens;

use std::path::Path;

use fencelock_file::FileStore;

use crate::support::{hold, run_child};

/// What a [`TestProcess`](support::TestProcess) does; nothing in a run of the tests.
#[test]
fn child_process() {
    run_child(|dir, command| match *command {
        ["hold", name, mode] => hold(dir, name, mode),
        ["swap", from, to, keep] => cells::swap_once(dir, from, to, keep),
        ["add", count] => cells::add(dir, count.parse().unwrap()),
        ["watch"] => cells::report_changes(dir),
        ["starve"] => cells::starve(dir),
        ["read", boot] => cells::read_in_boot(dir, boot.parse().unwrap()),
        ["make-and-remove"] => directories::make_and_remove(dir),
        ["connect"] => directories::report_refusal(FileStore::at(dir)),
        ["connect-by-default"] => directories::report_refusal(FileStore::of_user()),
        ["hold-small-pipes", count] => page::hold_small_pipes(dir, count.parse().unwrap()),
        ["attack", victim] => security::attack(dir, Path::new(victim)),
        ["use-up-descriptors"] => single_process::use_up_descriptors(dir),
        _ => panic!("unknown command {command:?}"),
    });
}
