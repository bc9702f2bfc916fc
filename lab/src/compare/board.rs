//! Collects results one by one, so that a stopped comparison has those so far.

use std::cell::RefCell;
use std::fmt::Display;
use std::time::Duration;

use super::data::{Comparison, Failure, Store};
use super::progress::Progress;

/// Why a store was measured no further, with `--quick`.
const OUT_OF_TIME: &str = "half of the two minutes of --quick was over, on a machine this busy";

/// The results of one store.
pub(super) struct Board<'a> {
    all: &'a RefCell<Comparison>,
    progress: &'a Progress,
    index: usize,
    name: String,
}

impl<'a> Board<'a> {
    /// `store` must be one of those in `all`.
    pub(super) fn of(
        all: &'a RefCell<Comparison>,
        progress: &'a Progress,
        index: usize,
    ) -> Board<'a> {
        let name = all.borrow().stores[index].store.clone();
        Board { all, progress, index, name }
    }

    pub(super) fn store(&self, note: impl FnOnce(&mut Store)) {
        note(&mut self.all.borrow_mut().stores[self.index]);
    }

    pub(super) fn now(&self, what: &str) {
        self.progress.now(format!("{}: {what}", self.name));
    }

    /// Prints a message, and counts the planned time that has passed.
    pub(super) fn saw(&self, planned: Duration, what: &str) {
        self.progress.found(format!("{}: {what}", self.name), planned);
    }

    /// A stage's result.
    pub(super) fn concluded(&self, planned: Duration, what: &str) {
        self.progress.concluded(&format!("{}: {what}", self.name), planned);
    }

    pub(super) fn failed(&self, stage: &str, why: impl Display) {
        let why = why.to_string();
        self.progress.print(&format!("{}: {stage} failed: {why}", self.name));
        self.store(|store| store.failures.push(Failure { stage: stage.to_owned(), why }));
    }

    /// A stage that ended, in time if it has a result.
    pub(super) fn ended(&self, stage: &str, ended: Option<fencelock::Result<()>>) {
        match ended {
            Some(Ok(())) => {}
            Some(Err(error)) => self.failed(stage, error),
            None => self.failed(stage, OUT_OF_TIME),
        }
    }
}
