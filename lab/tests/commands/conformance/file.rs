use std::path::Path;

use super::{leaves_nothing, run};

/// Everything below `directory`.
fn tree(directory: &Path) -> Vec<String> {
    let mut all = Vec::new();
    let Ok(entries) = std::fs::read_dir(directory) else { return all };
    for entry in entries.flatten() {
        all.push(entry.path().display().to_string());
        all.extend(tree(&entry.path()));
    }
    all.sort();
    all
}

/// A store in which another program has used a lock.
async fn used_by_others(directory: &Path) -> String {
    let url = format!("file://{}", directory.display());
    let locks = fencelock::connect(&url).await.expect("connected");
    locks.lock("orders").acquire().await.expect("granted").release().await.expect("released");
    locks.close().await.expect("closed");
    url
}

#[tokio::test]
async fn a_directory_keeps_what_others_have_there_and_one_that_was_not_there_is_not_there() {
    let parent = tempfile::tempdir().expect("a directory");
    let url = used_by_others(&parent.path().join("locks")).await;
    let before = tree(parent.path());
    for url in [url, format!("file://{}/new", parent.path().display())] {
        let (code, said) = run(&url, &["--filter", "names::"]).await;
        assert_eq!((code, tree(parent.path())), (0, before.clone()), "{said}");
    }
}

#[tokio::test]
async fn an_interrupted_run_leaves_nothing_in_a_directory() {
    let parent = tempfile::tempdir().expect("a directory");
    let url = used_by_others(&parent.path().join("locks")).await;
    leaves_nothing(&url, async || tree(parent.path()), |all| all.len() > 100).await;
}
