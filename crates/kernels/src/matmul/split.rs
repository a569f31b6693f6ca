//! How the outputs of a product are cut into tasks: by units of columns (what one filling of the panels serves) and, where units
//! are few, by groups of rows. Never by the sum, so no cut changes a bit.

use std::ops::Range;

/// Units of columns that each thread should find, so that unequal ones even out.
const UNITS_PER_THREAD: usize = 2;
/// Rows below which a group would spend its time filling panels.
const LEAST_ROWS: usize = 48;

/// Elements of the longest block of weights.
pub(super) const LONGEST_BLOCK: usize = 256;

/// The length of parts that a sum of `k` is cut into, no longer than `longest` and as equal as whole `unit`s allow.
pub(super) fn equal_parts(k: usize, longest: usize, unit: usize) -> usize {
    k.div_ceil(k.div_ceil(longest / unit * unit).max(1)).next_multiple_of(unit).min(k)
}

#[derive(Clone, Copy)]
pub(super) struct Split {
    m: usize,
    n: usize,
    /// Columns that are never cut, how many there are of them, and units that they are dealt to.
    strip: usize,
    strips: usize,
    units: usize,
    rows: usize,
    groups: usize,
}

impl Split {
    /// Cuts `m` rows and `n` columns. A unit has whole strips of columns and no more than `most`; a group has whole `step`s of rows.
    /// Units are as equal as strips allow, and as many for each thread.
    pub fn new((m, n): (usize, usize), (strip, most): (usize, usize), step: usize, threads: usize) -> Self {
        let (strips, fewest) = (n.div_ceil(strip), n.div_ceil(most));
        let wanted = if threads == 1 { 1 } else { threads * UNITS_PER_THREAD };
        let units = fewest.max(wanted).next_multiple_of(threads).min(strips);
        // Every group fills the panels anew, so groups are for threads that would have nothing to do.
        let groups = if units >= threads { 1 } else { wanted.div_ceil(units.max(1)).min(m / LEAST_ROWS).max(1) };
        let rows = m.div_ceil(groups).next_multiple_of(step);
        Self { m, n, strip, strips, units, rows, groups: m.div_ceil(rows) }
    }

    pub fn tasks(&self) -> usize {
        self.units * self.groups
    }

    /// The rows and the columns of `task`.
    pub fn task(&self, task: usize) -> (Range<usize>, Range<usize>) {
        let (row, unit) = (task / self.units * self.rows, task % self.units);
        let column = |unit: usize| self.n.min(unit * self.strips / self.units * self.strip);
        (row..self.m.min(row + self.rows), column(unit)..column(unit + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::own;

    #[test]
    fn parts_of_a_sum_are_whole_units_and_about_equal() {
        for (k, longest, unit, len) in [
            (0, 1024, 32, 0),
            (7, 1024, 32, 7),
            (576, 288, 32, 288),
            (896, 288, 32, 224),
            (1536, 1024, 256, 768),
            (1088, 1024, 32, 544),
            (1280, 288, 256, 256),
            (8960, 1024, 256, 1024),
        ] {
            assert_eq!(equal_parts(k, longest, unit), len, "{k} by {longest}");
        }
    }

    #[test]
    fn every_output_is_in_one_task_and_threads_get_equal_shares() {
        for (m, n, threads) in [(1, 1, 2), (7, 33, 3), (256, 192, 8), (256, 576, 2), (512, 896, 4), (100, 1537, 64)] {
            let split = Split::new((m, n), (32, 128), 32, threads);
            let mut seen = vec![0; m * n];
            for task in 0..split.tasks() {
                let (rows, cols) = split.task(task);
                assert!(!rows.is_empty() && !cols.is_empty() && cols.len() <= 128);
                rows.for_each(|i| seen[i * n..][cols.clone()].iter_mut().for_each(|times| *times += 1));
            }
            assert!(seen.iter().all(|&times| times == 1), "{m} {n} {threads}");
        }
        let split = Split::new((256, 896), (32, 128), 32, 2);
        let share = |thread| own(split.tasks(), thread, 2).map(|task| split.task(task).1.len()).sum::<usize>();
        assert_eq!([share(0), share(1)], [448, 448]);
    }
}
