//! How the outputs of a product are cut into tasks: by units of columns (what one filling of the panels serves) and, where units
//! are few, by groups of rows. Never by the sum, so no cut changes a bit.

use std::ops::Range;

/// Tasks that each thread should find, so that unequal ones even out.
const TASKS_PER_THREAD: usize = 4;
/// Rows below which a group would spend its time filling panels.
const LEAST_ROWS: usize = 48;

#[derive(Clone, Copy)]
pub(super) struct Split {
    m: usize,
    units: usize,
    units_per_task: usize,
    rows_per_task: usize,
    groups: usize,
}

impl Split {
    /// Cuts `m` rows and `units` units. A task has at most `most_units` units, and whole `step`s of rows where it can.
    pub fn new(m: usize, units: usize, most_units: usize, step: usize, threads: usize) -> Self {
        let wanted = if threads == 1 { 1 } else { threads * TASKS_PER_THREAD };
        let units_per_task = (units / wanted).clamp(1, most_units);
        let groups = wanted.div_ceil(units.div_ceil(units_per_task)).min(m / LEAST_ROWS).max(1);
        let rows_per_task = m.div_ceil(groups).next_multiple_of(step);
        Self { m, units, units_per_task, rows_per_task, groups: m.div_ceil(rows_per_task) }
    }

    pub fn tasks(&self) -> usize {
        self.units.div_ceil(self.units_per_task) * self.groups
    }

    /// The rows and the units of `task`.
    pub fn task(&self, task: usize) -> (Range<usize>, Range<usize>) {
        let (row, unit) = (task % self.groups * self.rows_per_task, task / self.groups * self.units_per_task);
        (row..self.m.min(row + self.rows_per_task), unit..self.units.min(unit + self.units_per_task))
    }
}
