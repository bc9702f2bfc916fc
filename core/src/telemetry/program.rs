//! Calls of the program's code, in the core and in stores: its subscriber of `tracing`, and its recorder of
//! metrics.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls `code` of the program from a task of the library, or while state changes that others depend
/// on. Its panic ends here, reported by the panic hook: in the renewal worker it would end every hold
/// of the client, in the supervisor of a connection every later one, and in a `Drop` during another panic the
/// process.
pub fn call(code: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(code));
}
