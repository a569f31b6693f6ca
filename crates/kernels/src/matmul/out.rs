//! The output of a product as its tasks see it. Tiles are no slices, so this hands out places, checked to lie inside; that no two
//! tasks write the same place is the matter of who asks.

use std::marker::PhantomData;
use std::ops::Range;

/// The output as tasks see it: they write disjoint tiles of it.
pub(super) struct Out<'a, T = f32> {
    start: *mut T,
    len: usize,
    n: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: it only hands out places; who writes there sees to it that no other task does.
unsafe impl<T: Send> Sync for Out<'_, T> {}

impl<'a, T> Out<'a, T> {
    /// An output with rows of `n` elements.
    pub fn new(out: &'a mut [T], n: usize) -> Self {
        Self { start: out.as_mut_ptr(), len: out.len(), n, borrow: PhantomData }
    }

    /// Distance of its rows.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Where a tile begins; all of it lies inside the output. Its rows are `n` apart.
    pub fn tile(&self, rows: Range<usize>, cols: Range<usize>) -> *mut T {
        assert!(rows.start < rows.end && rows.end * self.n <= self.len, "rows {rows:?} of {}", self.len / self.n);
        assert!(cols.start < cols.end && cols.end <= self.n, "columns {cols:?} of {}", self.n);
        self.start.wrapping_add(rows.start * self.n + cols.start)
    }
}
