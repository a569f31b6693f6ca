//! How many threads tensors go through with, inside a memory budget: as many as the process may use, or fewer where the budget has no room for a strip
//! each. It counts the process as it stands, and refuses a budget that has no room for one.

use pocketune_kernels::pool::STACK_BYTES;

use super::change::Changes;
use super::rows::Rows;
use super::stream::STRIP;
use crate::error::{Error, Result};
use crate::memory::{self, Peak};
use crate::model::Model;
use crate::train::Budget;

/// What the process still takes beyond what is measured: code that has not run yet, and what files are written through.
const STILL_TO_COME: usize = 2 << 20;

/// The process's own share differs by some pages from run to run; rounded up, a budget that was stated once holds again.
const GRAIN: usize = 1 << 20;

/// What is mapped beyond the rows that are read, on both sides together, in each place of a tensor.
const STRETCH: usize = 3 << 20;

/// The threads to write `model` with, perhaps with `changes`.
///
/// # Errors
/// When the budget has no room for one; with what that needs.
pub(super) fn threads(model: &Model, changes: Option<&Changes>, budget: Budget) -> Result<usize> {
    let (mut widest, mut places) = (0, 1);
    for info in model.files.tensors() {
        // What can't be read is said when its turn comes.
        if let Ok(Some(rows)) = Rows::find(&model.files, &info.name) {
            (widest, places) = (widest.max(rows.cols), places.max(rows.places()));
        }
    }
    let (so_far, process) = (Peak::default().look().total, memory::now().total + STILL_TO_COME);
    // A strip as it is mapped, as floats and as it is written; with a change what is added, and what was there before and after.
    let strip = STRIP.max(widest) * if changes.is_some() { 24 } else { 12 };
    let held = process.next_multiple_of(GRAIN) + places * STRETCH + changes.map_or(0, Changes::held);
    let needed = |threads: usize| so_far.max(held + threads * strip + (threads - 1) * STACK_BYTES);
    let most = crate::threads::default();
    let Some(bytes) = budget.bytes()? else { return Ok(1) };
    (1..=most).rev().find(|&threads| needed(threads) <= bytes).ok_or_else(|| {
        let mib = |bytes: usize| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
        let fault = format!("writing this model needs {} ({} bytes)", mib(needed(1)), needed(1));
        Error::Option { option: "memory-budget", value: mib(bytes), fault }
    })
}
