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
    n: usize,
    unit: usize,
    rows: usize,
    groups: usize,
}

impl Split {
    /// Cuts `m` rows and `n` columns. A unit has from `least` to `most` columns (the second a power of two times the first), a
    /// group whole `step`s of rows.
    pub fn new((m, n): (usize, usize), (least, most): (usize, usize), step: usize, threads: usize) -> Self {
        let wanted = if threads == 1 { 1 } else { threads * TASKS_PER_THREAD };
        let mut unit = most;
        while unit > least && n.div_ceil(unit) < wanted {
            unit /= 2;
        }
        let units = n.div_ceil(unit);
        // Every group fills the panels anew, so groups are for threads that would have nothing to do.
        let groups = if units >= 2 * threads { 1 } else { wanted.div_ceil(units).min(m / LEAST_ROWS).max(1) };
        let rows = m.div_ceil(groups).next_multiple_of(step);
        Self { m, n, unit, rows, groups: m.div_ceil(rows) }
    }

    pub fn tasks(&self) -> usize {
        self.n.div_ceil(self.unit) * self.groups
    }

    /// The rows and the columns of `task`.
    pub fn task(&self, task: usize) -> (Range<usize>, Range<usize>) {
        let (row, column) = (task % self.groups * self.rows, task / self.groups * self.unit);
        (row..self.m.min(row + self.rows), column..self.n.min(column + self.unit))
    }
}
