//! Hands disjoint pieces of one output to the tasks of a pool.

use std::marker::PhantomData;
use std::ops::Range;

/// An exclusive slice cut into pieces of `piece` elements (the last may be shorter), one for each task.
pub struct Rows<'a, T = f32> {
    start: *mut T,
    len: usize,
    piece: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: `piece` and `range` hand out parts that their callers keep disjoint between tasks; see there.
unsafe impl<T: Send> Sync for Rows<'_, T> {}

impl<'a, T> Rows<'a, T> {
    /// Cuts `slice` into pieces of `piece` elements.
    pub fn new(slice: &'a mut [T], piece: usize) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), piece: piece.max(1), borrow: PhantomData }
    }

    /// How many pieces there are.
    pub fn pieces(&self) -> usize {
        self.len.div_ceil(self.piece)
    }

    /// Piece `task` and where it lies. A pool runs each task number once, so no two live pieces overlap.
    #[allow(clippy::mut_from_ref)]
    pub(crate) fn piece(&self, task: usize) -> (&mut [T], Range<usize>) {
        let range = task * self.piece..((task + 1) * self.piece).min(self.len);
        // SAFETY: the range lies inside the borrowed slice, and callers ask for each task's piece once at a time.
        (unsafe { self.range(range.clone()) }, range)
    }

    /// Any part of the slice.
    ///
    /// # Safety
    /// No other live part overlaps it.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn range(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        // SAFETY: inside the slice by the assertion, exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}
