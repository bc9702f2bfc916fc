//! The key of a name.

use crate::foreign::peer::{Library, Peer};
use crate::foreign::testbed::Testbed;

/// As documented in docs/redis.md: braces and the percent sign are encoded, all else is unchanged.
const KEYS: [(&str, &str); 5] = [
    ("orders/42", "lock:orders/42"),
    ("{tenant}:7", "lock:%7Btenant%7D:7"),
    ("100%", "lock:100%25"),
    ("%7B", "lock:%257B"),
    ("größe", "lock:größe"),
];

#[tokio::test]
async fn a_name_is_the_documented_key() {
    let testbed = Testbed::start().await;
    for library in Library::ALL {
        let mut peer = Peer::start(library, &testbed.server).await;
        for (name, key) in KEYS {
            let guard = testbed.locks.lock(name).acquire().await.unwrap();
            let ask = format!("try {key} 30000");
            assert_eq!(peer.ask(&ask).await, "busy", "{library:?}: {name}");
            guard.release().await.unwrap();
            assert_eq!(peer.ask(&ask).await, "held", "{library:?}: {name}");
            assert!(testbed.locks.lock(name).try_acquire().await.unwrap().is_none(), "{name}");
            assert_eq!(peer.ask("release").await, "released", "{library:?}: {name}");
        }
    }
}
