//! The pages of the repository refer to each other: what a link names is there, and the list of
//! decisions is complete.

use std::fs;
use std::path::{Path, PathBuf};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn pages(folder: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(repository().join(folder)).expect("a folder");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths.filter(|path| path.extension().is_some_and(|it| it == "md")).collect()
}

/// The targets of a page's links within the repository, each a path with or without an anchor.
fn links(page: &str) -> Vec<&str> {
    let inline = page.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    inline
        .filter(|target| !target.contains("://") && !target.contains(char::is_whitespace))
        .collect()
}

/// The anchors of a page's headings, as GitHub makes them.
fn anchors(page: &str) -> Vec<String> {
    let headings = page.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| {
        let text = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        text.chars().filter(|it| it.is_alphanumeric() || "-_".contains(*it)).collect()
    };
    headings.map(anchor).collect()
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let all: Vec<_> = ["", "docs", "docs/decisions"].into_iter().flat_map(pages).collect();
    let mut seen = 0;
    for path in all {
        let page = fs::read_to_string(&path).expect("a page");
        for link in links(&page) {
            let (file, anchor) = link.split_once('#').map_or((link, None), |(f, a)| (f, Some(a)));
            let target = match file {
                "" => path.clone(),
                file => path.parent().expect("a folder").join(file),
            };
            assert!(target.exists(), "{}: there is no {link}", path.display());
            if let Some(anchor) = anchor {
                let page = fs::read_to_string(&target).expect("a page");
                let anchors = anchors(&page);
                assert!(
                    anchors.iter().any(|it| it == anchor),
                    "{}: no heading for {link}; there are {anchors:?}",
                    path.display()
                );
            }
            seen += 1;
        }
    }
    assert!(seen > 50, "{seen} links were found");
}

#[test]
fn the_list_of_decisions_has_each_with_its_title() {
    let list = include_str!("../../../docs/decisions/README.md");
    for path in pages("docs/decisions").iter().filter(|path| !path.ends_with("README.md")) {
        let file = path.file_name().and_then(|name| name.to_str()).expect("a name");
        let page = fs::read_to_string(path).expect("a page");
        let heading = page.lines().next().and_then(|line| line.strip_prefix("# "));
        let (number, title) = heading.and_then(|it| it.split_once(": ")).expect("# NUMBER: TITLE");
        let row = format!("| [{number}]({file}) | {title} |\n");
        assert!(list.contains(&row), "docs/decisions/README.md lacks this row:\n{row}");
    }
}
