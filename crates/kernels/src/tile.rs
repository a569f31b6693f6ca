//! Small dense products inside one thread's cache: `c (+)= a b` with lanes over the columns of `b`.

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
/// [`COLUMNS`]. Each element is one chain of fused multiply-adds over ascending `k`. `ROWS` rows and `COLS` columns (16 or 32)
/// are held in registers: as many as the processor has room for.
#[inline(always)]
pub(crate) fn mm<const ROWS: usize, const COLS: usize>(
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
        let wide = n - j >= COLS;
        let mut i = 0;
        while i < m {
            let rows = if m - i >= ROWS { ROWS } else { 1 };
            let at = Place {
                a: a.data[i * a.row..].as_ptr(),
                b: b.data[j..].as_ptr(),
                c: c[i * c_stride + j..].as_mut_ptr(),
                strides: (a.row, a.k, b.stride, c_stride),
            };
            // SAFETY: rows i..i+rows and columns j..j+COLS (or j..j+COLUMNS) lie inside the three operands by the assertions.
            unsafe {
                match (rows == ROWS, wide) {
                    (true, true) => block::<ROWS, COLS>(k, at, accumulate),
                    (true, false) => block::<ROWS, COLUMNS>(k, at, accumulate),
                    (false, true) => block::<1, COLS>(k, at, accumulate),
                    (false, false) => block::<1, COLUMNS>(k, at, accumulate),
                }
            }
            i += rows;
        }
        j += if wide { COLS } else { COLUMNS };
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

/// `M` rows by `N` columns in registers.
///
/// # Safety
/// All `M` rows of `a` and `c` and all `k` rows of `b` are readable (and `c` writable) for `k` and `N` elements.
#[inline(always)]
unsafe fn block<const M: usize, const N: usize>(k: usize, at: Place, accumulate: bool) {
    let (a_row, a_k, b_row, c_row) = at.strides;
    let mut sums = [[0.0_f32; N]; M];
    if accumulate {
        for (i, sums) in sums.iter_mut().enumerate() {
            // SAFETY: row i of c, by the caller's promise.
            *sums = unsafe { at.c.add(i * c_row).cast::<[f32; N]>().read_unaligned() };
        }
    }
    for kk in 0..k {
        // SAFETY: row kk of b, by the caller's promise.
        let row = unsafe { at.b.add(kk * b_row).cast::<[f32; N]>().read_unaligned() };
        for (i, sums) in sums.iter_mut().enumerate() {
            // SAFETY: element kk of row i of a, by the caller's promise.
            let x = unsafe { *at.a.add(i * a_row + kk * a_k) };
            for j in 0..N {
                sums[j] = x.mul_add(row[j], sums[j]);
            }
        }
    }
    for (i, sums) in sums.iter().enumerate() {
        // SAFETY: row i of c, by the caller's promise.
        unsafe { at.c.add(i * c_row).cast::<[f32; N]>().write_unaligned(*sums) };
    }
}
