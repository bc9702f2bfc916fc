//! ZooKeeper.

use fencelock_testkit::servers::{ServerError, ZooKeeperOptions};

#[tokio::test]
async fn a_missing_java_or_jar_is_reported_with_the_package() {
    for absent in [
        ZooKeeperOptions::new().java("/nonexistent/java"),
        ZooKeeperOptions::new().jars("/nonexistent"),
    ] {
        let error = absent.standalone().await.unwrap_err();
        assert!(matches!(error, ServerError::NotInstalled { .. }));
        assert!(error.to_string().ends_with("apt-get install zookeeper"), "{error}");
    }
}
