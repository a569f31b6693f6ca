//! How many threads tensors go through with, inside a memory budget: as many as the process may use, or fewer where the budget has no room for a strip
//! each. It counts the process as it stands, and refuses a budget that has no room for one.

use pocketune_kernels::pool::STACK_BYTES;

use super::change::Changes;
use super::rows::Rows;
use super::stream::STRIP;
use crate::error::{Error, Result};
use crate::memory::Peak;
use crate::model::Model;
use crate::plan::{LARGE, Surroundings};
use crate::train::{Budget, surroundings};

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
    // A strip as it is mapped, as floats and as it is written; with a change what is added, and what was there before and after.
    let strip = STRIP.max(widest) * if changes.is_some() { 24 } else { 12 };
    // Large pages at both ends of what is mapped.
    let held = places * 2 * LARGE + changes.map_or(0, Changes::held);
    let needed = |around: Surroundings, threads: usize| {
        around.preparation.max(around.process + held + threads * strip + (threads - 1) * STACK_BYTES)
    };
    let around = surroundings(Peak::default().look().total);
    let Some(bytes) = budget.bytes()? else { return Ok(1) };
    (1..=crate::threads::default()).rev().find(|&threads| needed(around, threads) <= bytes).ok_or_else(|| {
        let mib = |bytes: usize| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
        let least = needed(around.stated(), 1);
        let fault = format!("writing this model needs {} ({least} bytes)", mib(least));
        Error::Option { option: "memory-budget", value: mib(bytes), fault }
    })
}
