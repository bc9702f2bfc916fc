//! Whom `break` takes the lock from: only the one that it showed, and only after a yes.

use super::{fencelock, id, seen, until};
use crate::support::{Scratch, Shell};

#[test]
fn several_holders_are_listed_and_one_is_named() {
    let here = Scratch::new();
    let url = here.url();
    let mut one = here.hold(&["-s"], "job");
    let mut two = here.hold(&["-s"], "job");
    let before = until(&here, &url, "job", 2, 0);
    assert_eq!(before["holders"][0]["mode"], "shared", "{before}");
    let said = fencelock(&here, &["break", "job", "--reason", "why", "--yes"]);
    assert_eq!(said.code, 64, "{said:?}");
    assert!(said.error.contains("has 2 holders; name one of them with --who ID"), "{said:?}");
    let ids: Vec<String> = (0..2).map(|at| id(&before["holders"][at])).collect();
    assert!(ids.iter().all(|id| said.printed.contains(id)), "{said:?}");
    let said = fencelock(&here, &["break", "job", "--who", "nobody", "--reason", "why", "--yes"]);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.error.contains("no holder or waiter with the id \"nobody\""), "{said:?}");
    until(&here, &url, "job", 2, 0);

    let named = ["break", "job", "--who", &ids[0], "--reason", "why", "--yes"];
    assert_eq!(fencelock(&here, &named).code, 0);
    let after = until(&here, &url, "job", 1, 0);
    assert_eq!(id(&after["holders"][0]), ids[1]);
    let pid = |job: &crate::support::Job| format!("pid {} ", job.pid().as_raw_pid());
    let broken = before["holders"][0]["label"].as_str().expect("a label");
    let (lost, kept) = match broken.contains(&pid(&one)) {
        true => (&mut one, &mut two),
        false => (&mut two, &mut one),
    };
    assert_eq!(lost.code(), 79);
    assert_eq!(kept.hung_up(), 0);
    assert_eq!(fencelock(&here, &named).code, 1, "gone by now");
}

#[test]
fn a_waiter_can_be_removed_from_the_queue() {
    let here = Scratch::new();
    let url = here.url();
    let mut held = here.hold(&[], "job");
    let _waiting = here.start(&["job", "--", "true"]);
    let before = until(&here, &url, "job", 1, 1);
    let waiter = id(&before["waiters"][0]);
    let said =
        fencelock(&here, &["break", "job", "--who", &waiter, "--reason", "no need", "--yes"]);
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.printed.starts_with("removed "), "{said:?}");
    assert!(said.error.contains("role=\"waiter\""), "{said:?}");
    let after = seen(&here, &url, "job");
    assert_eq!(id(&after["holders"][0]), id(&before["holders"][0]), "still held");
    assert_eq!(held.hung_up(), 0);
}

#[test]
fn a_reason_is_needed() {
    let here = Scratch::new();
    let mut held = here.hold(&[], "job");
    for arguments in [&["break", "job", "--yes"][..], &["break", "job", "--yes", "--reason", " "]] {
        let said = fencelock(&here, arguments);
        assert_eq!(said.code, 64, "{said:?}");
        assert!(said.error.contains("--reason"), "{said:?}");
    }
    assert_eq!(held.hung_up(), 0);
}

#[test]
fn on_a_terminal_it_asks_and_only_a_yes_breaks() {
    let here = Scratch::new();
    let url = here.url();
    let mut held = here.hold(&[], "job");
    let label = format!("pid {} sh", held.pid().as_raw_pid());
    let mut shell = Shell::start(&here);
    for no in ["n", "", "yesterday"] {
        shell.line("fencelock break job --reason 'it ha''ngs'");
        let question = shell.expect("? [y/N] ");
        assert!(question.contains(&label), "{question}");
        shell.line(no);
        shell.answers("nothing was changed");
        shell.exited(1);
    }
    until(&here, &url, "job", 1, 0);
    shell.shows("fencelock break job --reason 'it ha''ngs'", "? [y/N] ");
    shell.shows("y", "reason=\"it hangs\"");
    shell.expect("It is notified at once.");
    assert_eq!(held.code(), 79);
}

#[test]
fn a_holder_that_came_after_the_question_keeps_the_lock() {
    let here = Scratch::new();
    let url = here.url();
    let mut shown = here.hold(&[], "job");
    let mut shell = Shell::start(&here);
    shell.shows("fencelock break job --reason 'it ha''ngs'", "? [y/N] ");
    assert_eq!(shown.hung_up(), 0);
    let mut next = here.hold(&[], "job");
    let before = until(&here, &url, "job", 1, 0);
    shell.shows("y", "is gone from \"job\" on ");
    shell.answers("nothing was changed");
    shell.exited(1);
    assert_eq!(id(&seen(&here, &url, "job")["holders"][0]), id(&before["holders"][0]));
    assert_eq!(next.hung_up(), 0, "its job was not disturbed");
}
