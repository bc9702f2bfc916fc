//! Panics of a backend as errors: a fault of a backend must not end a task of the core.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

use crate::types::error::{Error, ErrorKind, Result};

/// `request`, or an error when the backend panics in it.
pub(crate) async fn caught<T>(request: impl Future<Output = Result<T>>) -> Result<T> {
    let mut request = pin!(request);
    let panicked = || Error::new(ErrorKind::Unreachable, "the backend panicked");
    poll_fn(move |cx| {
        catch_unwind(AssertUnwindSafe(|| request.as_mut().poll(cx)))
            .unwrap_or_else(|_| Poll::Ready(Err(panicked())))
    })
    .await
}
