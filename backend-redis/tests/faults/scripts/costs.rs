//! The server's CPU time for each step, by INFO, with a full pipeline, compared to a plain lock.

use super::bench::{Bench, Keys, real_texts};
use super::client::Value;
use super::server;

const COMPARE_AND_DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";
const PIPELINE: usize = 100;

/// `cargo test -p fencelock-redis --test redis-faults -- --ignored --nocapture costs`
#[test]
#[ignore = "measures"]
fn costs_of_a_pair() {
    const ROUNDS: usize = 5;
    let server = server();
    let mut bench = Bench::new(server.port(), &real_texts()).unwrap();
    let Value::Text(plain) = bench.call(&["SCRIPT", "LOAD", COMPARE_AND_DELETE]) else { panic!() };
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        rounds.push([
            measure(&mut bench, |bench, keys| {
                bench.client.send(&["SET", &keys.lock, &identity("x"), "NX", "PX", "30000"]);
                bench.client.send(&["EVALSHA", &plain, "1", &keys.lock, &identity("x")]);
            }),
            measure(&mut bench, |bench, keys| pair(bench, keys, &identity("x"))),
            measure(&mut bench, |bench, keys| pair(bench, keys, &identity("s"))),
            measure(&mut bench, |bench, keys| pair(bench, keys, &identity("p1/3"))),
        ]);
    }
    rounds.sort_by(|one, other| one[1].total_cmp(&other[1]));
    let median = rounds[ROUNDS / 2];
    for (name, cost) in ["plain", "exclusive", "shared", "permit"].into_iter().zip(median) {
        println!("{name:>9} pair: {cost:5.2} us, {:.2} x plain", cost / median[0]);
    }
}

fn identity(mode: &str) -> String {
    format!("{mode} 30000 fencelock:0123456789abcdef 0123456789abcdef0123456789abcdef main")
}

fn pair(bench: &mut Bench, keys: &Keys, me: &str) {
    bench.send("attempt", keys, &[me, "30000"]);
    bench.send("release", keys, &[me]);
}

/// The server's time in us for each call of `send`, which adds two commands to the pipeline.
#[expect(clippy::cast_precision_loss, reason = "for people")]
fn measure(bench: &mut Bench, send: impl Fn(&mut Bench, &Keys)) -> f64 {
    const BATCHES: usize = 300;
    bench.call(&["FLUSHALL"]);
    let keys: Vec<_> = (0..PIPELINE).map(|n| Keys::of(&format!("lock {n}"))).collect();
    let start = cpu(bench);
    for _ in 0..BATCHES {
        keys.iter().for_each(|keys| send(bench, keys));
        for _ in 0..2 * PIPELINE {
            assert_eq!(bench.client.receive().error(), None);
        }
    }
    (cpu(bench) - start) * 1e6 / (BATCHES * PIPELINE) as f64
}

/// CPU time of the server's main thread, in seconds.
fn cpu(bench: &mut Bench) -> f64 {
    let Value::Text(info) = bench.call(&["INFO", "cpu"]) else { panic!("no INFO") };
    let field = |name: &str| -> f64 {
        let line = info.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim_start_matches(':').trim().parse().unwrap()
    };
    field("used_cpu_user_main_thread") + field("used_cpu_sys_main_thread")
}
