//! Any text is a valid name of exactly one lock.

use std::collections::BTreeSet;

use fencelock_core::{ErrorKind, Scratch};

use crate::behaviours::prelude::*;

const GROUP: &str = "names";

pub(crate) const BEHAVIOURS: &[Behaviour] = &[
    // Fault 42
    behaviour(GROUP, "any_text_is_a_name", &[], &any),
    // Fault 42
    behaviour(GROUP, "similar_names_are_different_locks", &[], &different),
    // Fault 42
    behaviour(GROUP, "the_longest_names_differ_in_their_last_byte", &[], &longest),
    // Fault 42
    behaviour(GROUP, "invalid_names_are_refused", &[], &refused),
    // Fault 42
    behaviour(GROUP, "random_names_are_different_locks", &[], &random),
    // Fault 42
    behaviour(GROUP, "prefixes_keep_services_apart", &[], &prefixes),
    behaviour(GROUP, "clearing_scratch_names_leaves_other_locks", &[], &cleared),
];

const CLEARED_WITHIN: Duration = Duration::from_secs(2);

/// Texts with a special meaning in some store, shell, file system or protocol.
pub(crate) const ODD: &[&str] = &[
    "/",
    "//",
    ".",
    "..",
    "../..",
    "/..",
    "a/",
    "/a",
    "a/b",
    "a//b",
    "a%2Fb",
    "a%2fb",
    "%",
    "%00",
    "\0",
    "a\0b",
    "\n",
    "\r\n",
    " ",
    "  ",
    "a ",
    " a",
    "{}",
    "{a}b",
    "a{b}",
    "}{",
    "{",
    "*",
    "?",
    "[a]",
    "a:b",
    "a;b",
    "$(x)",
    "'",
    "\"",
    "\\",
    "ü",
    "u\u{308}",
    "🔒",
    "\u{202e}",
    "\u{7f}",
    "A",
    "a",
    "_",
    "-",
    "~",
    "lock",
    "queue",
    "lock-0000000001",
    "_c_x-lock-0000000001",
    "con",
    "NUL",
    "L",
    "s0",
    "a.b",
    ".a",
    "__READ__",
    "a,b",
    "a=b",
    "a&b",
    "#",
    "+",
    "@",
];

async fn any(context: Arc<Context>) {
    let (one, two) = (context.client().await, context.client().await);
    for odd in ODD {
        let name = context.name(odd);
        let guard = context.acquire(&one, &name).await;
        assert_eq!(guard.name().as_str(), *odd);
        assert!(!work::is_free(&context, &two, &name, How::Exclusive).await, "{odd:?} twice");
        let seen = context.soon("inspect answers", two.inspect(&name)).await.expect("answers");
        assert_eq!(seen.holders.len(), 1, "inspect does not see the holder of {odd:?}");
        context.release(guard).await;
    }
}

/// All held at once: two names with the same encoding would collide.
async fn all_at_once(context: &Context, names: impl IntoIterator<Item = String>) {
    let locks = context.client().await;
    let mut guards = Vec::new();
    for name in names {
        let tried =
            context.soon("a try answers", locks.lock(context.name(&name)).try_acquire()).await;
        let guard = tried.expect("a try answers");
        guards.push(guard.unwrap_or_else(|| panic!("{name:?} is the lock of another name")));
    }
    for guard in guards {
        context.release(guard).await;
    }
}

async fn different(context: Arc<Context>) {
    all_at_once(&context, ODD.iter().map(|odd| (*odd).to_owned())).await;
}

async fn longest(context: Arc<Context>) {
    let mut names: Vec<String> = ["x", "y"].map(|end| "x".repeat(511) + end).into();
    names.push("x".repeat(510));
    names.push("x".repeat(255));
    names.push("x".repeat(256));
    names.push("ü".repeat(256));
    names.push("/".repeat(512));
    names.push("\0".repeat(512));
    names.push("%".repeat(511));
    all_at_once(&context, names).await;
}

async fn refused(context: Arc<Context>) {
    let locks = context.client().await;
    for name in [String::new(), "x".repeat(513), "ü".repeat(257), "x".repeat(1 << 20)] {
        let error = context.soon("an answer", locks.inspect(&name)).await.expect_err("no name");
        work::assert_kind(&error, ErrorKind::InvalidArgument);
        let reader = locks.rw_lock(&name).read();
        for lock in [locks.lock(&name), reader, locks.semaphore(&name, 2)] {
            let error = context.soon("an answer", lock.acquire()).await.expect_err("no such name");
            work::assert_kind(&error, ErrorKind::InvalidArgument);
            let tried = context.soon("an answer", lock.try_acquire()).await;
            work::assert_kind(&tried.expect_err("no such name"), ErrorKind::InvalidArgument);
        }
    }
}

async fn random(context: Arc<Context>) {
    use rand::RngExt;
    let mut random = context.random();
    // Few characters, all of them special somewhere: near misses are likely.
    let letters: Vec<char> = "aA/%{}.:\\~2Fü\0_-".chars().collect();
    let mut names = BTreeSet::new();
    while names.len() < 150 {
        let length = random.random_range(1..6);
        let letter = |_| letters[random.random_range(0..letters.len())];
        names.insert((0..length).map(letter).collect::<String>());
    }
    all_at_once(&context, names).await;
}

/// The key is prefix and name; two services with different prefixes never collide.
async fn prefixes(context: Arc<Context>) {
    let usual = context.client().await;
    let other = context.client_with(|params| params.prefix.push_str("apart:")).await;
    let name = context.name("lock");
    let guard = context.acquire(&usual, &name).await;
    let apart = context.soon("a try answers", other.lock(&name).try_acquire()).await;
    let apart = apart.expect("no error").expect("another prefix is another lock");
    let whole = context.name("apart:lock");
    assert!(
        !work::is_free(&context, &usual, &whole, How::Exclusive).await,
        "the same key by another split is another lock"
    );
    context.release(apart).await;
    context.release(guard).await;
}

/// What a tool removes at its end. Not every store can, and not every user may: whatever it answers, a
/// lock of another prefix stays.
async fn cleared(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    let kept = context.acquire(&one, &name).await;
    let scratch = Scratch::fresh(&context.params().prefix, "cleared");
    let tool = context.client_with(|params| params.prefix = scratch.prefix().to_owned()).await;
    let guard = context.acquire(&tool, &name).await;
    context.release(guard).await;
    tool.close().await.expect("closed");
    let clearing = two.clear(&scratch, CLEARED_WITHIN);
    let _ = context.soon("the scratch names are cleared, or an error says why not", clearing).await;
    work::assert_busy(&context, &two, &name).await;
    assert!(kept.is_held(), "clearing the names of one run has freed the lock of another");
    context.release(kept).await;
}
