//! The command as its users see it: real processes, on real stores. One program, since each costs a link of
//! all stores.

/// Tests of one scene, each on a store, so that one which fails says on which.
macro_rules! on_stores {
    ($scene:path: $($(#[$attribute:meta])* $name:ident($($argument:expr),+);)+) => {$(
        #[tokio::test(flavor = "multi_thread")]
        $(#[$attribute])*
        async fn $name() {
            $scene($($argument),+).await;
        }
    )+};
}

mod jobs;
mod lab;
mod manual;
mod operator;
mod postgres;
mod redlock;
mod run;
mod support;
