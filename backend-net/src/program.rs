//! Calls of the program's code, such as its subscriber of `tracing`, from the tasks of a store.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls `code` of the program. Its panic ends here, reported by the panic hook: in a task of a
/// connection it would end that task, and with it every later connection of the store.
pub fn call(code: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(code));
}
