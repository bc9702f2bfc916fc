//! `fencelock compare --quick` of every store that can be started here, with the machine to itself.

#[path = "compare/support.rs"]
mod support;

use serde_json::Value;
use support::*;

/// These may be held twice, as their profiles say. Sentinel's failovers lose what was
/// not replicated yet, which here is little or nothing.
const FORGETFUL: [&str; 4] = ["postgres-failover", "redis", "redis-failover", "redis-sentinel"];

/// What may overlap did, and nothing else; and each other stage has found something, unless it was left
/// out for want of time, and says so.
fn assert_whole(store: &Value) {
    let word = store["store"].as_str().expect("a word");
    let left_out = store["failures"].as_array().expect("stages");
    let is_late =
        |stage: &Value| stage["why"].as_str().is_some_and(|why| why.contains("two minutes"));
    assert!(left_out.iter().all(is_late), "{word}: {left_out:#?}");
    if is_broken(store) {
        assert_faults(store, word);
    }
    if is_measured(store) {
        assert_measured(store, word);
    } else {
        println!("{word}: left out on this busy machine: {left_out:?}");
    }
}

/// Whether it was watched under faults.
fn is_broken(store: &Value) -> bool {
    !store["faults"].is_null()
}

fn is_measured(store: &Value) -> bool {
    store["failures"] == serde_json::json!([])
}

fn are_most(stores: &[Value], those: fn(&Value) -> bool) -> bool {
    stores.iter().filter(|store| those(store)).count() >= stores.len() / 2
}

fn assert_measured(store: &Value, word: &str) {
    for list in ["own_locks", "one_lock", "shared_locks"] {
        let points = store[list].as_array().expect("points");
        assert!(!points.is_empty(), "{word}: {list}");
        for point in points {
            let rate = &point["pairs_per_s"];
            let [min, median, max] = ["min", "median", "max"].map(|it| rate[it].as_f64());
            assert!(Some(0.0) < min && min <= median && median <= max, "{word}: {point:#}");
        }
    }
    assert!(count(&store["hand_over"], "grants") > 0, "{word}");
    assert!(store["fixed_rate"]["done_per_s"].as_f64() > Some(0.0), "{word}");
    let has_servers = !["memory", "file"].contains(&word);
    let cost = &store["cost"];
    for what in ["requests_per_pair", "commands_per_pair", "server_cpu_us_per_pair"] {
        assert_eq!(cost[what].as_f64() > Some(0.0), has_servers, "{word}: {what}: {cost:#}");
    }
}

fn assert_faults(store: &Value, word: &str) {
    let timelines = store["timelines"].as_array().expect("lines");
    // Nothing can fail that is in the same process.
    assert_eq!(timelines.is_empty(), word == "memory", "{word}");
    for line in timelines {
        assert_eq!(line["came_back"], true, "{word}: {line:#}");
    }
    let faults = &store["faults"];
    assert!(count(faults, "acquisitions") > 0, "{word}");
    assert_eq!(count(faults, "lost_with_fencing"), 0, "{word}: {faults:#}");
    assert_eq!(faults["violations"], serde_json::json!([]), "{word}: {faults:#}");
    assert_eq!(count(faults, "overlaps"), count(faults, "admitted_overlaps"), "{word}");
    if !FORGETFUL.contains(&word) {
        assert_eq!(count(faults, "overlaps"), 0, "{word}: {faults:#}");
    }
}

/// The disk of a shared machine can be slow for a minute, in which most of them would be left out.
const TRIES: usize = 3;

#[tokio::test]
async fn every_store_is_compared() {
    let directory = directory();
    let (mut stores, mut printed) = (Vec::new(), String::new());
    for _ in 0..TRIES {
        let code;
        (code, printed) = run(&directory, &["--quick"]).await;
        assert_eq!(code, 0, "{printed}");
        stores = figures(&directory)["stores"].as_array().expect("stores").clone();
        stores.iter().for_each(assert_whole);
        if are_most(&stores, is_measured) && are_most(&stores, is_broken) {
            break;
        }
    }
    let names: Vec<&str> = stores.iter().filter_map(|store| store["store"].as_str()).collect();
    let all = "memory file postgres postgres-failover redis redis-aof redis-failover redis-sentinel \
               redlock-3 redlock-5 zookeeper zookeeper-3";
    assert_eq!(names.join(" "), all, "{printed}");
    assert!(are_most(&stores, is_measured), "too few stores were measured: {printed}");
    assert!(are_most(&stores, is_broken), "too few stores were broken: {printed}");
    let broken = || stores.iter().filter(|store| is_broken(store));
    let all = |what: &str| broken().map(|store| count(&store["faults"], what)).sum::<u64>();
    // Not from each of them: a slow store, for example on a busy machine, has little to forget.
    assert!(all("overlaps") > 0, "nothing shows what {FORGETFUL:?} forget");
    assert!(all("lost_without_fencing") > 0, "nothing shows what tokens are for");
    let page = page(&directory);
    assert!(names.iter().all(|name| page.contains(name)));
}
