//! One client process at work under faults: what its tasks share.

mod adding;
mod leading;
mod locks;
mod ticking;
mod tools;
mod transactions;

use fencelock_core::{Locks, Result};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::processes::database::OpenRegisters;
use crate::processes::register::process::Registers;
use crate::processes::trouble;
use crate::processes::workload::{Errors, NEVER_TWICE, ONCE, Shift, Workload};
use tools::{Calm, Tools};
use transactions::Transactions;

/// Works until `calm` changes, and finishes what was begun.
pub(super) async fn work(
    locks: &Locks,
    shift: &Shift,
    registers_in_database: Option<OpenRegisters>,
    calm: &watch::Receiver<u64>,
) -> Result<Errors> {
    let mut tasks = JoinSet::new();
    let calm = Calm::of(calm);
    let Workload { workers, .. } = shift.workload;
    if shift.workload.uses_locks() {
        for index in 0..workers {
            let registers = Registers::connect(&shift.register).await.map_err(|e| trouble(&e))?;
            let tools = Tools::of(locks, shift, index)?;
            let transactions = Transactions::of(shift, index, registers_in_database);
            tasks.spawn(locks::Client { tools, registers, transactions }.work(calm.clone()));
        }
    }
    if shift.workload.uses_cells() && locks.profile().cells.is_some() {
        let adders = if shift.workload.uses_locks() { 1 } else { workers };
        let mut index = workers;
        let mut tools = || {
            index += 1;
            Tools::of(locks, shift, index)
        };
        for _ in 0..adders {
            tasks.spawn(adding::add(tools()?, calm.clone()));
        }
        for job in [ONCE, NEVER_TWICE] {
            tasks.spawn(ticking::run(tools()?, job, shift.ticks_ahead, calm.clone()));
        }
        tasks.spawn(leading::lead(tools()?, calm.clone()));
        tasks.spawn(leading::observe(tools()?, calm.clone()));
    }
    let mut errors = Errors::new();
    while let Some(task) = tasks.join_next().await {
        let of_one = task.map_err(|error| trouble(&error))?.map_err(|error| trouble(&error))?;
        for (kind, count) in of_one {
            *errors.entry(kind).or_default() += count;
        }
    }
    Ok(errors)
}
