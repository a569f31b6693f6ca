//! Small dense products inside one thread's cache: `c (+)= a b` with lanes over the columns of `b`.

use crate::lanes::Lanes;

/// A view of a row-major matrix: where it starts and how far apart its rows are.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub data: &'a [f32],
    pub stride: usize,
}

/// The left operand: element `(i, k)` lies at `i row + k k`.
#[derive(Clone, Copy)]
pub(crate) struct Left<'a> {
    pub data: &'a [f32],
    pub row: usize,
    pub k: usize,
}

/// Columns come in whole multiples of this.
pub(crate) const COLUMNS: usize = 16;

/// `c[m,n] = a[m,k] b[k,n]`, added to `c` when `accumulate`; rows of `c` are `c_stride` apart, and `n` is whole multiples of
/// [`COLUMNS`]. Each element is one chain of fused multiply-adds over ascending `k`. `ROWS` rows of `VECTORS` vectors (16 or 32 columns)
/// are held in registers: as many as the processor has room for.
///
/// # Safety
/// The processor has `L`'s instructions.
#[inline(always)]
pub(crate) unsafe fn mm<L: Lanes, const ROWS: usize, const VECTORS: usize>(
    (m, n, k): (usize, usize, usize),
    a: Left,
    b: View,
    c: &mut [f32],
    c_stride: usize,
    accumulate: bool,
) {
    if m == 0 || n == 0 {
        return;
    }
    assert!(n.is_multiple_of(COLUMNS) && c.len() >= (m - 1) * c_stride + n);
    assert!(k == 0 || (a.data.len() > (m - 1) * a.row + (k - 1) * a.k && b.data.len() >= (k - 1) * b.stride + n));
    let mut j = 0;
    while j < n {
        let wide = n - j >= VECTORS * L::LANES;
        let mut i = 0;
        while i < m {
            let rows = if m - i >= ROWS { ROWS } else { 1 };
            let at = Place {
                a: a.data[i * a.row..].as_ptr(),
                b: b.data[j..].as_ptr(),
                c: c[i * c_stride + j..].as_mut_ptr(),
                strides: (a.row, a.k, b.stride, c_stride),
            };
            // SAFETY: rows i..i+rows and as many columns from j on lie inside the three operands by the assertions.
            unsafe {
                match (rows == ROWS, wide) {
                    (true, true) => block::<L, ROWS, VECTORS>(k, at, accumulate),
                    (true, false) => block::<L, ROWS, 1>(k, at, accumulate),
                    (false, true) => block::<L, 1, VECTORS>(k, at, accumulate),
                    (false, false) => block::<L, 1, 1>(k, at, accumulate),
                }
            }
            i += rows;
        }
        j += if wide { VECTORS * L::LANES } else { L::LANES };
    }
}

/// Where a block's operands begin, and how far apart the left operand's rows and columns, the right one's rows and the output's are.
#[derive(Clone, Copy)]
struct Place {
    a: *const f32,
    b: *const f32,
    c: *mut f32,
    strides: (usize, usize, usize, usize),
}

/// `M` rows by `N` vectors in registers.
///
/// # Safety
/// The processor has `L`'s instructions. All `M` rows of `a` and `c` and all `k` rows of `b` are readable (and `c` writable) for `k` elements and `N` vectors.
#[inline(always)]
unsafe fn block<L: Lanes, const M: usize, const N: usize>(k: usize, at: Place, accumulate: bool) {
    let (a_row, a_k, b_row, c_row) = at.strides;
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [[L::zero(); N]; M];
        if accumulate {
            for (i, sums) in sums.iter_mut().enumerate() {
                for (j, sum) in sums.iter_mut().enumerate() {
                    *sum = L::load(at.c.add(i * c_row + j * L::LANES));
                }
            }
        }
        for kk in 0..k {
            let mut row = [L::zero(); N];
            for (j, row) in row.iter_mut().enumerate() {
                *row = L::load(at.b.add(kk * b_row + j * L::LANES));
            }
            for (i, sums) in sums.iter_mut().enumerate() {
                let x = L::splat(at.a.add(i * a_row + kk * a_k));
                for (sum, &row) in sums.iter_mut().zip(&row) {
                    *sum = L::fma(x, row, *sum);
                }
            }
        }
        for (i, sums) in sums.iter().enumerate() {
            for (j, &sum) in sums.iter().enumerate() {
                L::store(at.c.add(i * c_row + j * L::LANES), sum);
            }
        }
    }
}
