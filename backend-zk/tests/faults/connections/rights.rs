//! Logins, ACLs and roots.

use fencelock_core::ErrorKind;
#[cfg(feature = "sasl")]
use fencelock_testkit::servers::ZooKeeperOptions;
use fencelock_zk::zookeeper_client::{Acl, Acls, AuthId, Client, CreateMode, Permission};

use crate::support::*;

/// Fault 41: zookeeper, zookeeper-3
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_locks_of_a_login_are_closed_to_others() {
    let testbed = Testbed::start().await;
    let host = testbed.servers.connect_string();
    let own = connect(&testbed.url(&host, "auth=digest:me:hunter2")).await;
    let same = connect(&testbed.url(&host, "auth=digest:me:hunter2&acl=creator")).await;
    let guard = acquire(&own, "one").await;
    assert!(is_busy(&same, "one").await);
    // Other logins cannot even list it, nor change what they know of.
    let node = format!("{}/one", testbed.root);
    let log_in = async |login: &str| {
        let connector = Client::connector().with_auth("digest", login.as_bytes());
        connector.connect(&host).await.unwrap()
    };
    let claims = log_in("me:hunter2").await.list_children(&node).await.unwrap();
    let (claim, you) = (format!("{node}/{}", claims[0]), log_in("you:hunter2").await);
    for client in [&testbed.client, &you] {
        no_right(client, &node).await;
        no_right(client, &claim).await;
    }
    assert!(guard.is_held());
    for stranger in ["", "auth=digest:me:wrong", "auth=digest:you:hunter2"] {
        let stranger = try_connect(&testbed.url(&host, stranger)).await;
        let error = match stranger {
            // They have no rights on the root either.
            Err(error) => error,
            Ok(locks) => soon("refused", locks.lock("one").acquire()).await.unwrap_err(),
        };
        assert_kind(&error, ErrorKind::Refused);
        let text = format!("{error} {error:?}");
        assert!(text.contains("ACL") && !text.contains("hunter2"), "{text}");
    }
    release(guard).await;
    release(acquire(&same, "one").await).await;
    let open = format!("zk://{host}{}-open?session=2s&auth=digest:me:pw&acl=open", testbed.root);
    let guard = acquire(&connect(&open).await, "one").await;
    let without_login = format!("zk://{host}{}-open?session=2s", testbed.root);
    assert!(is_busy(&connect(&without_login).await, "one").await);
    release(guard).await;
}

/// A client without a login could delete the claims in it, and has held it or planted a content. Below a root in
/// which anybody may create, that is what a login may find.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_stranger_has_made_first_is_refused_to_a_login() {
    let testbed = Testbed::start().await;
    let host = testbed.servers.connect_string();
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    for node in ["", "/empty", "/held"] {
        let path = format!("{}{node}", testbed.root);
        testbed.client.create(&path, b"", &options).await.unwrap();
    }
    let stranger = connect(&testbed.url(&host, "")).await;
    let planted = stranger.cell("told").compare_and_set(None, *b"done").await;
    assert!(planted.unwrap());
    let held = acquire(&stranger, "held").await;
    let own = connect(&testbed.url(&host, "auth=digest:me:hunter2")).await;
    let tell = own.cell("told");
    let mut watch = tell.watch().await.unwrap();
    for (node, error) in [
        ("empty", soon("refused", own.lock("empty").acquire()).await.unwrap_err()),
        ("empty", soon("refused", own.lock("empty").try_acquire()).await.unwrap_err()),
        ("held", soon("refused", own.lock("held").acquire()).await.unwrap_err()),
        ("held", soon("refused", own.lock("held").try_acquire()).await.unwrap_err()),
        ("held", soon("refused", own.inspect("held")).await.unwrap_err()),
        ("held", soon("refused", own.election("held").leader()).await.unwrap_err()),
        ("told~c", soon("refused", tell.read()).await.unwrap_err()),
        ("told~c", soon("refused", tell.compare_and_set(None, *b"a")).await.unwrap_err()),
        ("told~c", soon("refused", watch.next()).await.unwrap_err()),
    ] {
        assert_kind(&error, ErrorKind::Refused);
        let (path, text) = (format!("{}/{node} ", testbed.root), error_chain(&error));
        assert!(text.contains(&path) && text.contains("world:anyone"), "{text}");
        assert!(text.contains("acl=open") && !error.is_retryable(), "{text}");
    }
    until("nothing is left", async || testbed.nodes("empty").await.is_empty()).await;
    assert!(held.is_held() && testbed.nodes("held").await.len() == 1);
    release(held).await;
    // The remedy.
    testbed.client.delete(&format!("{}/empty", testbed.root), None).await.unwrap();
    release(acquire(&own, "empty").await).await;
}

/// Also if it has made the root itself, in which this login then may create nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_root_that_a_stranger_has_closed_is_believed_in_nothing() {
    let testbed = Testbed::start().await;
    let (held, read) =
        (format!("{}/held", testbed.root), [Acl::new(Permission::READ, AuthId::anyone())]);
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    for path in [&testbed.root, &held] {
        testbed.client.create(path, b"", &options).await.unwrap();
    }
    testbed.client.set_acl(&testbed.root, &read, None).await.unwrap();
    let own = connect(&testbed.url(&testbed.servers.connect_string(), "auth=digest:me:pw")).await;
    let error = soon("refused", own.lock("held").acquire()).await.unwrap_err();
    assert_kind(&error, ErrorKind::Refused);
}

/// A server with one login, by SASL.
#[cfg(feature = "sasl")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_by_sasl_owns_its_locks() {
    let mut jaas = tempfile::NamedTempFile::new().unwrap();
    let login = "org.apache.zookeeper.server.auth.DigestLoginModule";
    std::io::Write::write_all(
        &mut jaas,
        format!("Server {{ {login} required user_me=\"hunter2\" user_you=\"hunter3\"; }};")
            .as_bytes(),
    )
    .unwrap();
    let servers = ZooKeeperOptions::new()
        .java_arg(format!("-Djava.security.auth.login.config={}", jaas.path().display()))
        .config("authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider")
        .standalone()
        .await
        .expect("ZooKeeper starts");
    let testbed = Testbed::on(servers.into(), 0).await;
    let host = testbed.servers.connect_string();
    let own = connect(&testbed.url(&host, "auth=sasl-digest-md5:me:hunter2")).await;
    let same = connect(&testbed.url(&host, "auth=sasl-digest-md5:me:hunter2&acl=creator")).await;
    let guard = acquire(&own, "one").await;
    assert!(is_busy(&same, "one").await);
    no_right(&testbed.client, &format!("{}/one", testbed.root)).await;
    let error = match try_connect(&testbed.url(&host, "auth=sasl-digest-md5:you:hunter3")).await {
        Err(error) => error,
        Ok(you) => soon("refused", you.lock("one").acquire()).await.unwrap_err(),
    };
    assert_kind(&error, ErrorKind::Refused);
    assert!(guard.is_held() && error.to_string().contains("ACL"), "{error}");
    release(guard).await;
    release(acquire(&same, "one").await).await;
    for wrong in ["me:wrong", "you:hunter2"] {
        let url = testbed.url(&host, &format!("auth=sasl-digest-md5:{wrong}"));
        let error = try_connect(&url).await.unwrap_err();
        assert_kind(&error, ErrorKind::Refused);
        let text = format!("{error} {error:?}");
        assert!(text.contains("auth=") && !text.contains(wrong), "{text}");
    }
}

/// A root that another client has created is used unchanged; one that may not be created is refused.
/// Fault 41: zookeeper, zookeeper-3
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_root_is_created_or_found() {
    let testbed = Testbed::start().await;
    let host = testbed.servers.connect_string();
    let deep = format!("zk://{host}{}/a/b/c/?session=2s&prefix=", testbed.root);
    let locks = connect(&deep).await;
    let guard = acquire(&locks, "one").await;
    let children =
        testbed.client.list_children(&format!("{}/a/b/c/one", testbed.root)).await.unwrap();
    assert_eq!(children.len(), 1);
    // A lock of the same name below another root is another lock.
    assert!(!is_busy(&testbed.direct().await, "one").await);
    release(guard).await;

    let closed = format!("{}/closed", testbed.root);
    let only_read = [Acl::new(Permission::READ, AuthId::anyone())];
    let options = CreateMode::Persistent.with_acls(Acls::new(&only_read));
    testbed.client.create(&closed, b"", &options).await.unwrap();
    let url = format!("zk://{host}{closed}/below?session=2s");
    assert_kind(&try_connect(&url).await.unwrap_err(), ErrorKind::Refused);
    let url = format!("zk://{host}{closed}?session=2s");
    let locks = connect(&url).await;
    let error = soon("refused", locks.lock("one").acquire()).await.unwrap_err();
    assert_kind(&error, ErrorKind::Refused);
    assert!(!error.is_retryable());
}
