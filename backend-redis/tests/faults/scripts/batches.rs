//! Several steps in one call: each has the same effect as alone, after the steps before it.

use super::bench::Keys;
use super::claim::{Claim, Mode};
use super::client::Value;
use super::{bench, random_runs};

#[test]
fn steps_of_a_batch_see_the_effects_of_earlier_steps() {
    let (_server, mut bench) = bench();
    bench.call(&["RPUSH", "foreign", "value"]);
    let (lock, foreign) = (Keys::of("lock"), Keys::of("foreign"));
    let claim = |n: usize| Claim::new(Mode::Exclusive, 30_000, random_runs::PROCESSES[n], n as u64);
    let [first, next, other] = [0, 1, 2].map(claim);
    let [first_text, next_text, other_text] = [&first.text, &next.text, &other.text];
    let command = bench.batch(&[
        ("attempt", &lock, &[first_text, "30000"]),
        ("attempt", &lock, &[next_text, "30000"]),
        ("renew", &lock, &[first_text, "30000", ""]),
        ("attempt", &foreign, &[other_text, "30000"]),
        ("attempt", &lock, &[other_text, "30000", "try"]),
        ("check_waiters", &lock, &[random_runs::PROCESSES[1], next_text]),
        ("release", &lock, &[first_text]),
        ("release", &lock, &[first_text]),
        ("attempt", &lock, &[next_text, "30000"]),
    ]);
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    let answer = bench.call(&command);
    let [token, place, renewed, refused, busy, looked, released, again, confirmed] = answer.list()
    else {
        panic!("{answer:?}");
    };
    assert_eq!(place.list().len(), 1, "it waits");
    assert_eq!(*renewed, Value::Int(1));
    let words = refused.error().expect("an error of its own");
    assert!(words.contains("fencelock: foreign is a list of another program"), "{words}");
    assert_eq!(*busy, Value::Int(0));
    assert_eq!(looked.list().get(1), Some(&Value::Int(0)), "no waiter is missing");
    assert_eq!((released, again), (&Value::Int(1), &Value::Int(0)));
    assert!(confirmed.int() > token.int(), "{token:?}, then {confirmed:?}");
    let pushes = bench.client.take_pushes();
    let to_next = |push: &super::client::Push| push.channel == random_runs::PROCESSES[1];
    assert_eq!(pushes.iter().filter(|push| to_next(push)).count(), 1, "{pushes:?}");
    assert_eq!(bench.call(&["GET", "lock"]).text().map(str::trim_end), Some(next_text.as_str()));
}
