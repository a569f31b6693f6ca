//! Small dense products inside one thread's cache: `c (+)= a b` with lanes over the columns of `b`.

/// A view of a row-major matrix: where it starts and how far apart its rows are.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub data: &'a [f32],
    pub stride: usize,
}

/// Rows and columns of the block that is held in registers.
const ROWS: usize = 6;
const COLS: usize = 16;

/// `c[m,n] = a[m,k] b[k,n]`, added to `c` when `accumulate`; `c` has rows `c_stride` apart. Each element is one chain of fused
/// multiply-adds over ascending `k`.
#[inline(always)]
pub(crate) fn mm((m, n, k): (usize, usize, usize), a: View, b: View, c: &mut [f32], c_stride: usize, accumulate: bool) {
    if m == 0 || n == 0 {
        return;
    }
    assert!(k == 0 || (a.data.len() >= (m - 1) * a.stride + k && b.data.len() >= (k - 1) * b.stride + n));
    assert!(c.len() >= (m - 1) * c_stride + n);
    let mut j = 0;
    while j < n {
        let wide = n - j >= COLS;
        let mut i = 0;
        while i < m {
            let rows = (m - i).min(ROWS);
            // SAFETY: rows i..i+rows and columns j..j+COLS (or j..n) lie inside the three views by the assertions above.
            unsafe {
                if wide {
                    let at = c.as_mut_ptr().add(i * c_stride + j);
                    let (a_at, b_at) = (a.data.as_ptr().add(i * a.stride), b.data.as_ptr().add(j));
                    match rows {
                        ROWS => block::<ROWS>(k, a_at, a.stride, b_at, b.stride, at, c_stride, accumulate),
                        4.. => {
                            block::<4>(k, a_at, a.stride, b_at, b.stride, at, c_stride, accumulate);
                            for row in 4..rows {
                                let (a_at, at) = (a_at.add(row * a.stride), at.add(row * c_stride));
                                block::<1>(k, a_at, a.stride, b_at, b.stride, at, c_stride, accumulate);
                            }
                        }
                        _ => {
                            for row in 0..rows {
                                let (a_at, at) = (a_at.add(row * a.stride), at.add(row * c_stride));
                                block::<1>(k, a_at, a.stride, b_at, b.stride, at, c_stride, accumulate);
                            }
                        }
                    }
                } else {
                    narrow((i, rows), (j, n), k, a, b, c, c_stride, accumulate);
                }
            }
            i += rows;
        }
        j += if wide { COLS } else { n - j };
    }
}

/// `M` rows by [`COLS`] columns in registers.
///
/// # Safety
/// All `M` rows of `a` and `c` and all `k` rows of `b` are readable (and `c` writable) for `k` and [`COLS`] elements.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
unsafe fn block<const M: usize>(
    k: usize,
    a: *const f32,
    a_stride: usize,
    b: *const f32,
    b_stride: usize,
    c: *mut f32,
    c_stride: usize,
    accumulate: bool,
) {
    let mut sums = [[0.0_f32; COLS]; M];
    if accumulate {
        for (i, sums) in sums.iter_mut().enumerate() {
            // SAFETY: row i of c, by the caller's promise.
            *sums = unsafe { c.add(i * c_stride).cast::<[f32; COLS]>().read_unaligned() };
        }
    }
    for kk in 0..k {
        // SAFETY: row kk of b, by the caller's promise.
        let row = unsafe { b.add(kk * b_stride).cast::<[f32; COLS]>().read_unaligned() };
        for (i, sums) in sums.iter_mut().enumerate() {
            // SAFETY: element kk of row i of a, by the caller's promise.
            let x = unsafe { *a.add(i * a_stride + kk) };
            for j in 0..COLS {
                sums[j] = x.mul_add(row[j], sums[j]);
            }
        }
    }
    for (i, sums) in sums.iter().enumerate() {
        // SAFETY: row i of c, by the caller's promise.
        unsafe { c.add(i * c_stride).cast::<[f32; COLS]>().write_unaligned(*sums) };
    }
}

/// The columns past the last whole block.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn narrow(
    (i, rows): (usize, usize),
    (j, n): (usize, usize),
    k: usize,
    a: View,
    b: View,
    c: &mut [f32],
    c_stride: usize,
    accumulate: bool,
) {
    for i in i..i + rows {
        for j in j..n {
            let at = i * c_stride + j;
            let mut sum = if accumulate { c[at] } else { 0.0 };
            for kk in 0..k {
                sum = a.data[i * a.stride + kk].mul_add(b.data[kk * b.stride + j], sum);
            }
            c[at] = sum;
        }
    }
}

/// `to[c, r] = from[r, c]` for `rows` rows of `cols` elements; rows of `to` are `to_stride` apart.
#[inline(always)]
pub(crate) fn transpose((rows, cols): (usize, usize), from: View, to: &mut [f32], to_stride: usize) {
    for r in 0..rows {
        let row = &from.data[r * from.stride..][..cols];
        for (c, &x) in row.iter().enumerate() {
            to[c * to_stride + r] = x;
        }
    }
}
