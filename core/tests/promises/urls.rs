//! A store's URL contains a password, in whatever form a user wrote it; no text that is shown does.

use std::error::Error as _;

use fencelock_core::url::{Scheme, StoreUrl, connect, connect_lazy};
use fencelock_core::{Error, ErrorKind, memory};

/// The texts that must not be shown: also the halves around a character that should have been encoded.
const SECRETS: [&str; 3] = ["hunter2", "left", "right"];

fn assert_safe(url: &str, shown: &str) {
    for secret in SECRETS {
        assert!(!shown.contains(secret), "{url} is shown as {shown}");
    }
}

fn everything_about(error: &Error) -> String {
    let mut text = format!("{error} {error:?} {error:#?}");
    let mut source = error.source();
    while let Some(cause) = source {
        text += &format!(" {cause} {cause:?}");
        source = cause.source();
    }
    text
}

#[test]
fn a_password_is_never_shown_however_badly_it_was_encoded() {
    let passwords = [
        "hunter2",
        "left/right",
        "left?right",
        "left?right=1",
        "left?right=1&hunter2=left",
        "left#right",
        "left@right",
        "hunter2@left/right",
        "hunter2@left?right",
        "hunter2@left?w=right",
        "hunter2@left#/right",
        "left:right",
        "left%2Fright",
        "left%ffright",
        "left%",
        "/left",
        "?right",
        "#hunter2",
        "@left",
        "left//right",
        "left?right/hunter2",
        " left right",
    ];
    for password in passwords {
        for url in [
            format!("redis://me:{password}@host:6379/0"),
            format!("redis://:{password}@host/0?ttl=2s"),
            format!("zk://me:{password}@h1:2181,h2:2181/jobs"),
        ] {
            match StoreUrl::parse(&url) {
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
                    assert_safe(&url, &everything_about(&error));
                }
                Ok(parsed) => {
                    assert_safe(&url, &format!("{parsed} {parsed:?} {parsed:#?}"));
                    assert!(parsed.authority().starts_with('h'), "{}", parsed.authority());
                    match parsed.params(&[]) {
                        Err(error) => assert_safe(&url, &everything_about(&error)),
                        Ok(params) => assert_safe(&url, &format!("{params:?}")),
                    }
                }
            }
        }
    }
}

#[test]
fn a_password_that_is_encoded_or_needs_no_encoding_comes_back() {
    for (given, meant) in [
        ("hunter2", "hunter2"),
        ("left%2Fright%3F%23%40", "left/right?#@"),
        ("left@right", "left@right"),
        ("left#right", "left#right"),
        ("left:right", "left:right"),
    ] {
        let url = StoreUrl::parse(&format!("redis://:{given}@host/0")).unwrap();
        assert_eq!((url.user(), url.password()), (None, Some(meant)));
        assert_eq!((url.authority(), url.path()), ("host", "/0"));
        assert_eq!(url.to_string(), "redis://:***@host/0");
    }
}

#[tokio::test(start_paused = true)]
async fn connecting_shows_no_password_either() {
    const REFUSES: Scheme = Scheme {
        names: &["redis"],
        example: "redis://host",
        connect: |url| {
            Box::pin(async move {
                // A backend that repeats the whole URL in its error.
                Err(Error::new(ErrorKind::Unreachable, format!("no {url} here: {url:?}")))
            })
        },
        unanswered: None,
    };
    for url in [
        "redis://me:hunter2@host/0",
        "redis://me:left/right@host/0",
        "redis://me:left?right=1@host/0",
        "redis:me:hunter2@host",
        "me:hunter2@host",
        "me:hunter2@host://",
        "rdis://me:hunter2@host",
        "mem://me:hunter2@host",
        "mem://?password=hunter2",
    ] {
        let schemes = [REFUSES, memory::SCHEME];
        let error = connect(&schemes, url).await.unwrap_err();
        assert_safe(url, &everything_about(&error));
        match connect_lazy(&schemes, url) {
            Err(error) => assert_safe(url, &everything_about(&error)),
            Ok(locks) => {
                assert_safe(url, &format!("{locks:?} {:?}", locks.lock("a")));
                let error = locks.lock("a").acquire().await.unwrap_err();
                assert_safe(url, &everything_about(&error));
            }
        }
    }
}
