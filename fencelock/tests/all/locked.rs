//! `#[locked]` acquires the lock that it names, with all its options; its messages: [`messages`](super::messages).

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use fencelock::{ErrorKind, Guard, Locks, Mode, Owner, locked};

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("sold out")]
    SoldOut,
    #[error(transparent)]
    Lock(#[from] fencelock::Error),
}

struct Shop {
    locks: Locks,
    stock: Vec<u32>,
    sign: String,
}

impl Shop {
    /// Ends by `?`, by `return` and by its last expression.
    #[locked(by = self.locks, name = "stock/{item}", as = guard, ttl = "5s", at_most = "1m")]
    async fn buy(&mut self, item: usize) -> Result<u64, Error> {
        assert_eq!(guard.name().as_str(), format!("stock/{item}"));
        let seen = self.locks.inspect(format!("stock/{item}")).await?;
        assert_eq!(seen.holders[0].token, Some(guard.fencing_token()));
        let left = self.stock.get_mut(item).filter(|left| **left > 0).ok_or(Error::SoldOut)?;
        *left -= 1;
        if *left == 0 {
            return Ok(0);
        }
        Ok(guard.fencing_token().get())
    }
}

impl Shop {
    #[locked(by = self.locks, name = "stock")]
    async fn largest(&mut self) -> fencelock::Result<Option<&mut u32>> {
        Ok(self.stock.iter_mut().max())
    }
}

#[locked(by = locks, name = job, try, read, as = guard)]
async fn try_read(locks: &Locks, job: &str) -> fencelock::Result<Option<Mode>> {
    Ok(Some(guard.mode()))
}

#[locked(by = locks, name = "job", write, wait = "20ms", owner = owner, as = guard)]
async fn write(locks: Locks, owner: Owner) -> fencelock::Result<Mode> {
    Ok(guard.mode())
}

#[locked(by = locks, name = "generic")]
async fn generic<T: Clone>(locks: Arc<Locks>, value: &T) -> Result<T, Box<dyn std::error::Error>> {
    Ok(value.clone())
}

#[locked(by = locks, name = "hot", local_handoffs = most, owner = &owner)]
async fn hot(locks: &Locks, most: u32, owner: Owner) -> fencelock::Result<()> {
    Ok(())
}

#[locked(by = locks, name = "counted", local_handoffs = 16, as = guard)]
async fn counted(locks: Locks) -> fencelock::Result<u64> {
    Ok(guard.fencing_token().get())
}

/// `by` is a value that ends with its expression.
#[locked(by = shop.lock().expect("no panic").locks, name = "{{shop}}/{type}", try)]
async fn opaque(
    shop: &std::sync::Mutex<Shop>,
    r#type: u32,
) -> Result<Option<impl Iterator<Item = u32>>, Box<dyn std::error::Error + Send + Sync>> {
    Ok(Some(0..r#type))
}

#[locked(by = locks, name = "dyn")]
async fn opaque_item(
    locks: &Locks,
) -> fencelock::Result<Box<dyn Iterator<Item = impl Display> + Send>> {
    Ok(Box::new([1, 2].into_iter()))
}

#[locked(by = locks, name = "slice")]
async fn opaque_slice(locks: &Locks) -> fencelock::Result<Box<[impl Display]>> {
    Ok(Box::new([3]))
}

#[locked(by = locks, name = "inner")]
#[deny(unused_variables)]
async fn inner_attributes(locks: &Locks) -> fencelock::Result<u32> {
    #![allow(unused_variables)]
    let unused = 1;
    Ok(2)
}

type Fallible<T> = Result<T, Error>;

mod state {
    use std::sync::OnceLock;

    pub(crate) static LOCKS: OnceLock<fencelock::Locks> = OnceLock::new();

    #[fencelock::locked(by = self::LOCKS.get().expect("connected"), name = "alias", try)]
    pub(crate) async fn alias() -> super::Fallible<Option<u32>> {
        Ok(Some(3))
    }
}

/// What the compiler converts to the return type. No lint fires at the code that is added to the functions,
/// also none that only some programs turn on.
#[deny(warnings, clippy::pedantic)]
mod coercions {
    use super::{Display, Duration, Locks, Shop, locked};

    type AnyError = Box<dyn std::error::Error + Send + Sync>;

    impl Shop {
        #[locked(by = self.locks, name = &self.sign)]
        pub(super) async fn sign(&self) -> fencelock::Result<&str> {
            Ok(&self.sign)
        }
    }

    #[locked(by = locks, name = "boxed")]
    pub(super) async fn boxed(locks: &Locks) -> fencelock::Result<Box<dyn Display>> {
        Ok(Box::new(1))
    }

    #[locked(by = locks, name = "stock/{left}")]
    pub(super) async fn errors(locks: &Locks, left: u32) -> Result<u32, AnyError> {
        if left == 0 {
            return Err("sold out".into());
        }
        Err(Box::new(std::io::Error::other("no till")))
    }

    #[locked(by = locks, name = "slice")]
    pub(super) async fn slice<'a>(locks: &Locks, of: &'a [u8; 2]) -> fencelock::Result<&'a [u8]> {
        Ok(of)
    }

    #[locked(by = locks, name = "function")]
    pub(super) async fn function(locks: &Locks) -> fencelock::Result<fn(&str) -> &str> {
        Ok(|text| text.trim())
    }

    #[locked(by = locks, name = "tried", try)]
    pub(super) async fn tried(locks: &Locks) -> fencelock::Result<Option<Box<dyn Display>>> {
        Ok(Some(Box::new(2)))
    }

    #[locked(by = locks, name = "opaque")]
    pub(super) async fn opaque(locks: &Locks, most: u32) -> Result<impl Display, AnyError> {
        if most == 0 {
            return Err("none".into());
        }
        Ok(most)
    }

    #[rustfmt::skip]
    #[locked(by = locks, name = "one line")]
    pub(super) async fn one_line(locks: &Locks) -> fencelock::Result<u32> { Ok(5) }

    #[allow(clippy::needless_return)]
    #[locked(by = locks, name = "returns")]
    pub(super) async fn returns(locks: &Locks) -> fencelock::Result<Box<dyn Display>> {
        return Ok(Box::new(3));
    }

    #[locked(by = locks, name = "loops")]
    pub(super) async fn loops(locks: &Locks) -> fencelock::Result<Box<dyn Display>> {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}

#[locked(by = locks, name = "ends", ttl = "100ms", at_most = "1ms", wait = "0s")]
async fn least(locks: &Locks) -> fencelock::Result<()> {
    Ok(())
}

#[locked(by = locks, name = "ends", ttl = "24h", at_most = "365days", local_handoffs = 1024)]
async fn most(locks: &Locks) -> fencelock::Result<()> {
    Ok(())
}

async fn is_free(locks: &Locks, name: &str) -> bool {
    let tried: Option<Guard> = locks.lock(name).try_acquire().await.expect("an answer");
    tried.is_some()
}

#[tokio::test]
async fn the_lock_is_the_one_that_is_named_and_is_released_however_the_body_ends() {
    let locks = fencelock::connect("mem://").await.unwrap();
    let mut shop = Shop { locks: locks.clone(), stock: vec![1, 2], sign: String::new() };
    assert!(shop.buy(1).await.unwrap() > 0);
    assert!(is_free(&locks, "stock/1").await);
    assert_eq!(shop.buy(0).await.unwrap(), 0);
    assert!(is_free(&locks, "stock/0").await);
    assert!(matches!(shop.buy(0).await, Err(Error::SoldOut)));
    assert!(is_free(&locks, "stock/0").await);
    *shop.largest().await.expect("no error").expect("it has stock") += 1;
    locks.close().await.unwrap();
    assert!(
        matches!(shop.buy(1).await, Err(Error::Lock(error)) if error.kind() == ErrorKind::Closed)
    );
}

#[tokio::test]
async fn arguments_are_put_into_the_name_as_they_are() {
    #[locked(by = locks, name = "{a}/{b}", as = guard)]
    async fn named(locks: &Locks, a: &str, b: &str) -> fencelock::Result<String> {
        Ok(guard.name().to_string())
    }
    let locks = fencelock::connect("mem://").await.unwrap();
    for (a, b) in [("x/y", "z"), ("x", "y/z")] {
        assert_eq!(named(&locks, a, b).await.unwrap(), "x/y/z");
    }
    let error = named(&locks, &"x".repeat(511), "z").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
}

#[tokio::test]
async fn modes_tries_waits_and_owners() {
    let locks = fencelock::connect("mem://").await.unwrap();
    assert_eq!(try_read(&locks, "job").await.unwrap(), Some(Mode::Shared));
    let owner = Owner::new();
    let held = locks.lock("job").owned_by(&owner).acquire().await.unwrap();
    assert_eq!(try_read(&locks, "job").await.unwrap(), None, "it is held");
    assert_eq!(write(locks.clone(), owner).await.unwrap(), Mode::Exclusive);
    let error = write(locks.clone(), Owner::new()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WaitTimedOut);
    held.release().await.unwrap();
    assert_eq!(generic(Arc::new(locks), &"a".to_owned()).await.unwrap(), "a");
}

/// Else the lock would refuse at run time what the macro accepts.
#[tokio::test(start_paused = true)]
async fn the_ends_of_all_ranges_are_accepted() {
    let locks = fencelock::connect("mem://").await.unwrap();
    least(&locks).await.unwrap();
    most(&locks).await.unwrap();
}

#[tokio::test]
async fn local_handoffs() {
    let locks = fencelock::connect("mem://").await.unwrap();
    hot(&locks, 16, Owner::new()).await.unwrap();
    let error = hot(&locks, 0, Owner::new()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "the option is the lock's");
    let tasks = (0..8).map(|_| counted(locks.clone()));
    let tokens = tasks.collect::<tokio::task::JoinSet<_>>().join_all().await;
    let tokens: std::collections::BTreeSet<_> = tokens.into_iter().map(Result::unwrap).collect();
    assert_eq!(tokens.len(), 8, "each call has a token of its own");
}

#[tokio::test]
async fn inner_attributes_are_those_of_the_function() {
    let locks = fencelock::connect("mem://").await.unwrap();
    assert_eq!(inner_attributes(&locks).await.unwrap(), 2);
}

#[tokio::test]
async fn return_types_are_aliases_and_opaque() {
    let locks = fencelock::connect("mem://").await.unwrap();
    state::LOCKS.set(locks.clone()).expect("it is set once");
    assert_eq!(state::alias().await.unwrap(), Some(3));
    let shop =
        std::sync::Mutex::new(Shop { locks: locks.clone(), stock: vec![], sign: String::new() });
    let numbers =
        tokio::spawn(async move { opaque(&shop, 3).await.unwrap().map(Iterator::sum::<u32>) });
    assert_eq!(numbers.await.unwrap(), Some(3));
    let items: Vec<_> = opaque_item(&locks).await.unwrap().map(|item| item.to_string()).collect();
    assert_eq!(items, ["1", "2"]);
    assert_eq!(opaque_slice(&locks).await.unwrap()[0].to_string(), "3");
    let held = locks.lock("alias").acquire().await.unwrap();
    assert_eq!(state::alias().await.unwrap(), None, "it is held");
    held.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_the_body_returns_is_converted_to_the_return_type() {
    let locks = fencelock::connect("mem://").await.unwrap();
    let shop = Shop { locks: locks.clone(), stock: vec![], sign: "lamps".to_owned() };
    assert_eq!(shop.sign().await.unwrap(), "lamps");
    assert_eq!(coercions::boxed(&locks).await.unwrap().to_string(), "1");
    assert_eq!(coercions::errors(&locks, 0).await.unwrap_err().to_string(), "sold out");
    assert_eq!(coercions::errors(&locks, 1).await.unwrap_err().to_string(), "no till");
    assert_eq!(coercions::slice(&locks, &[1, 2]).await.unwrap(), [1, 2]);
    assert_eq!(coercions::function(&locks).await.unwrap()(" a "), "a");
    let tried = coercions::tried(&locks).await.unwrap().expect("it is free");
    assert_eq!(tried.to_string(), "2");
    assert_eq!(coercions::opaque(&locks, 4).await.unwrap().to_string(), "4");
    assert!(coercions::opaque(&locks, 0).await.is_err_and(|error| error.to_string() == "none"));
    assert_eq!(coercions::returns(&locks).await.unwrap().to_string(), "3");
    assert_eq!(coercions::one_line(&locks).await.unwrap(), 5);
    let limit = Duration::from_secs(5);
    assert!(tokio::time::timeout(limit, coercions::loops(&locks)).await.is_err());
}
