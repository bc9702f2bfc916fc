//! `fencelock-lab compare` of every store that can be started here.

use super::super::support::*;
use crate::support::ended;

#[tokio::test]
#[ignore = "in ./test --long: minutes of both processors"]
async fn every_store_is_compared() {
    let directory = directory();
    let (code, printed) = ended(&command(&directory, &[]).output().await.expect("it runs"));
    assert_eq!(code, 0, "{printed}");
    let figures = figures(&directory);
    let stores = figures["stores"].as_array().expect("stores");
    let names: Vec<&str> = stores.iter().filter_map(|store| store["store"].as_str()).collect();
    let all = "memory file postgres postgres-failover redis redis-aof redis-failover redis-sentinel \
               redlock-3 redlock-5 zookeeper zookeeper-3";
    assert_eq!(names.join(" "), all, "{printed}");
    stores.iter().for_each(assert_whole);
    let all = |what: &str| stores.iter().map(|store| count(&store["faults"], what)).sum::<u64>();
    // Not from each of them: a slow store, for example on a busy machine, has little to forget.
    assert!(all("overlaps") > 0, "nothing shows what {FORGETFUL:?} forget");
    assert!(all("lost_without_fencing") > 0, "nothing shows what tokens are for");
    let page = page(&directory);
    assert!(names.iter().all(|name| page.contains(name)));
}
