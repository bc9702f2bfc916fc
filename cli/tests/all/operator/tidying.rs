//! `tidy` removes expired cells, and nothing else, from the stores that keep them.

use std::time::Duration;

use fencelock_testkit::deployments::{Kind, Wiring};
use fencelock_testkit::helpers::answer;
use serde_json::{Value, json};
use tokio::task::block_in_place;

use super::every_store::LIBRARY;
use super::fencelock;
use crate::support::Scratch;

on_stores! {
    expired_cells_are_removed:
    on_files(Kind::File);
    on_zookeeper(Kind::ZooKeeper);
}

async fn expired_cells_are_removed(kind: Kind) {
    let here = Scratch::new();
    let store = kind.start(LIBRARY, Wiring::Direct).await.expect("the servers start");
    let url = &*store.url();
    let locks = fencelock::connect(url).await.expect("connected");
    let old = |name| locks.latch(name, 2).keep_for(Duration::from_secs(1));
    for name in ["import/1", "import/2", "a \u{1b}[2J\nline"] {
        old(name).count_down().await.expect("counted");
    }
    locks.latch("import/3", 2).count_down().await.expect("counted");
    locks.counter("orders").add(7).await.expect("added");
    let _held = locks.lock("import/1").acquire().await.expect("granted");
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    let tidy = |arguments: &[&str]| {
        let said = block_in_place(|| fencelock(&here, &[&["tidy", "-u", url], arguments].concat()));
        assert_eq!((said.code, &*said.error), (0, ""), "{said:?}");
        said.printed
    };
    let tidy_json = |arguments: &[&str]| -> Value {
        let printed = tidy(&[arguments, &["--json"]].concat());
        assert_eq!(printed.lines().count(), 1, "{printed}");
        serde_json::from_str(&printed).expect("JSON")
    };
    let summary = |printed: String| printed.lines().last().expect("a line").to_owned();

    let printed = tidy(&[]);
    assert!(printed.starts_with("0 of 5 cells on ") && printed.lines().count() == 1, "{printed}");
    let printed = tidy(&["--grace", "0s", "-n"]);
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(lines.len(), 4, "{printed}");
    assert!(lines[0].starts_with("would remove \"a \\u{1b}[2J\\nline\" (latch, expired "));
    assert!(lines[1].starts_with("would remove \"import/1\" (latch, expired "), "{printed}");
    assert!(lines[3].ends_with(" would be removed"), "{printed}");
    let removed = tidy_json(&["--grace", "0s", "--dry-run", "import/"]);
    assert_eq!((&removed["dry_run"], &removed["others"]), (&json!(true), &json!(1)));
    assert_eq!(removed["removed"][1]["name"], "import/2");

    // Written anew, it is another latch.
    let anew = locks.latch("import/2", 2);
    assert_eq!(anew.count_down().await.expect("counted"), 1);
    let removed = tidy_json(&["--grace", "0s", "import/", "orders"]);
    assert_eq!((&removed["dry_run"], &removed["others"]), (&json!(false), &json!(3)), "{removed}");
    let list = removed["removed"].as_array().expect("a list");
    assert_eq!(
        (list.len(), &list[0]["name"], &list[0]["kind"]),
        (1, &json!("import/1"), &json!("latch"))
    );
    assert!(list[0]["expired_for_seconds"].as_f64().expect("a time") < 600.0, "{removed}");
    assert!(summary(tidy(&["--grace", "0s"])).starts_with("1 of 4 cells on "));
    assert!(summary(tidy(&["--grace", "0s"])).starts_with("0 of 3 cells on "));
    assert_eq!(anew.remaining().await.expect("an answer"), 1);
    assert_eq!(locks.counter("orders").get().await.expect("an answer"), 7);
    assert_eq!(locks.inspect("import/1").await.expect("an answer").holders.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_ends_cells_by_itself_says_so() {
    let here = Scratch::new();
    let redis = Kind::Redis.start(LIBRARY, Wiring::Direct).await.expect("the servers start");
    let postgres = Kind::Postgres.start(LIBRARY, Wiring::Direct).await.expect("the server starts");
    let redlock = Kind::Redlock3.start(LIBRARY, Wiring::Direct).await.expect("the servers start");
    for (url, why) in [
        (&*redis.url(), "removes expired cells by itself"),
        (&*postgres.url(), "removes expired cells by itself"),
        (&*redlock.url(), "has no cells"),
        ("mem://", "has the cells of one process only, which end with it"),
    ] {
        let said = block_in_place(|| fencelock(&here, &["tidy", "-u", url]));
        assert_eq!((said.code, &*said.error), (0, ""), "{said:?}");
        assert!(said.printed.starts_with("nothing to remove: "), "{said:?}");
        assert!(said.printed.ends_with(&format!(" {why}\n")), "{said:?}");
        let said = block_in_place(|| fencelock(&here, &["tidy", "-u", url, "--json"]));
        let line: Value = serde_json::from_str(&said.printed).expect("JSON");
        assert_eq!((said.code, &line["others"], &line["removed"]), (0, &Value::Null, &json!([])));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_program_wrote_stays_and_is_said() {
    let here = Scratch::new();
    let url = here.url();
    let locks = fencelock::connect(&url).await.expect("connected");
    let content = fencelock::backend::Content {
        stamp: fencelock::backend::Stamp::from_bytes([7; 16]),
        bytes: b"of another program".to_vec(),
    };
    let keep = fencelock::backend::Keep::Forever;
    assert!(answer(|| locks.swap_cell("theirs", None, Some(&content), keep)).await);
    let said = block_in_place(|| fencelock(&here, &["tidy", "--grace", "0s", "-u", &url]));
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.printed.starts_with("0 of 1 cells on "), "{said:?}");
    assert!(said.error.contains("\"theirs\"") && said.error.lines().count() == 1, "{said:?}");
    assert_eq!(answer(|| locks.read_cell("theirs")).await, Some(content));
}

#[test]
fn a_store_that_cannot_be_reached_is_an_error() {
    let here = Scratch::new();
    let said = fencelock(&here, &["tidy", "-u", "redis://127.0.0.1:1"]);
    assert_eq!((said.code, &*said.printed), (69, ""), "{said:?}");
    assert_eq!(fencelock(&here, &["tidy", "--grace", "5"]).code, 64);
}
