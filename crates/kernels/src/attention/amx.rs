//! The products of attention on AMX: operands are rounded to bf16, sums are f32.
//!
//! A first operand is a matrix of bf16 rows, a second one has pairs of rows interleaved. As 32-bit elements, the second operand of a
//! transposed matrix is the transpose of its first operand, and the other way round: so one way to round, one to interleave
//! and one to transpose squares make all of them.

use std::arch::x86_64::*;

use super::TILE;
use super::body::{self, Kit, LANES, Read, Task, Work, padded};
use crate::amx::{K_TILE, Pair, SIDE, Square, Tiles};
use crate::avx512::{interleave, mask, round, transpose_16};
use crate::rows::Rows;
use crate::tile::View;

/// Holds the owner's rows transposed, as second operands, and room for the operands of one product.
pub(super) struct Amx<'a> {
    d: usize,
    /// `d` in whole steps of the sum.
    padded: usize,
    owners: [&'a mut [f32]; 2],
    /// The owner's rows, pairs interleaved.
    across: &'a mut [f32],
    left: &'a mut [f32],
    right: &'a mut [f32],
    tiles: Tiles,
}

impl<'a> Amx<'a> {
    /// Floats for heads of `d` elements.
    pub fn len(d: usize) -> usize {
        3 * TILE * padded(d) / 2 + TILE * padded(d).max(TILE)
    }

    /// # Safety
    /// The processor has AVX-512 with BF16, and AMX, which its kernel has granted.
    pub unsafe fn new(scratch: &'a mut [f32], d: usize) -> Self {
        let padded = padded(d);
        let (first, rest) = scratch.split_at_mut(TILE * padded / 2);
        let (second, rest) = rest.split_at_mut(TILE * padded / 2);
        let (across, rest) = rest.split_at_mut(TILE * padded / 2);
        let (left, right) = rest.split_at_mut(TILE * padded.max(TILE) / 2);
        // SAFETY: the caller's promise.
        Self { d, padded, owners: [first, second], across, left, right, tiles: unsafe { Tiles::configure() } }
    }

    /// `c (+)= left right` for `m` rows, `n` columns and `k` of the sum. `left` has rows of `k` (in whole steps) bf16 elements; rows of
    /// `right` and `c` have `width` of them.
    #[inline(always)]
    fn product(
        &self,
        (m, n, k): (usize, usize, usize),
        left: &[f32],
        (right, width): (&[f32], usize),
        zero: bool,
        c: &mut [f32],
    ) {
        let steps = k.div_ceil(K_TILE);
        let line = steps * K_TILE / 2;
        assert!(left.len() >= m.next_multiple_of(16) * line && right.len() >= steps * 16 * width);
        assert!(n.next_multiple_of(16) <= width && c.len() >= m.next_multiple_of(16) * width);
        for i in (0..m).step_by(SIDE) {
            for j in (0..n).step_by(SIDE) {
                let rows = Pair { at: left[i * line..].as_ptr(), line, second: 16 * line, step: K_TILE / 2 };
                let cols = Pair { at: right[j..].as_ptr(), line: width, second: 16, step: 16 * width };
                let sums = Square { at: c[i * width + j..].as_mut_ptr(), line: width };
                // SAFETY: tiles of 16 rows up to `m`, of 16 columns up to `n` and of 16 pairs for all steps, checked above.
                unsafe { self.tiles.sum(rows, cols, steps, zero, sums, m - i > 16, n - j > 16) };
            }
        }
    }
}

/// # Safety
/// As [`Amx::new`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
pub(super) unsafe fn forward(task: Task, read: Read, out: &Rows, lse: &Rows, scratch: &mut [f32]) {
    let (work, rest) = Work::cut(scratch, task.heads.d);
    // SAFETY: the caller's promise.
    body::forward(&mut unsafe { Amx::new(rest, task.heads.d) }, task, read, out, lse, work);
}

/// # Safety
/// As [`Amx::new`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
pub(super) unsafe fn query_gradient(task: Task, read: Read, gq: &Rows, scratch: &mut [f32]) {
    let (work, rest) = Work::cut(scratch, task.heads.d);
    // SAFETY: the caller's promise.
    body::query_gradient(&mut unsafe { Amx::new(rest, task.heads.d) }, task, read, gq, work);
}

/// # Safety
/// As [`Amx::new`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
pub(super) unsafe fn head_gradients(task: Task, read: Read, gq: &Rows, to: (&Rows, &Rows), scratch: &mut [f32]) {
    let (work, rest) = Work::cut(scratch, task.heads.d);
    // SAFETY: the caller's promise.
    body::head_gradients(&mut unsafe { Amx::new(rest, task.heads.d) }, task, read, gq, to, work);
}

/// # Safety
/// As [`Amx::new`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
pub(super) unsafe fn key_gradient(task: Task, read: Read, gk: &Rows, gv: &Rows, scratch: &mut [f32]) {
    let (work, rest) = Work::cut(scratch, task.heads.d);
    // SAFETY: the caller's promise.
    body::key_gradient(&mut unsafe { Amx::new(rest, task.heads.d) }, task, read, gk, gv, work);
}

impl Kit for Amx<'_> {
    #[inline(always)]
    fn own(&mut self, slot: usize, x: View, rows: usize) {
        // SAFETY: `new` was promised the instructions.
        unsafe {
            round_rows(x, rows, self.d, self.left, self.padded / 2);
            transpose(self.left, (TILE, self.padded / 2), self.owners[slot]);
        }
    }

    #[inline(always)]
    fn scores(&mut self, slot: usize, y: View, rows: usize, lanes: usize, scores: &mut [f32]) {
        // SAFETY: `new` was promised the instructions.
        unsafe { round_rows(y, rows, self.d, self.left, self.padded / 2) };
        self.product((rows, lanes, self.d), self.left, (self.owners[slot], TILE), true, scores);
    }

    #[inline(always)]
    fn add(&mut self, z: View, rows: usize, w: &[f32], lanes: usize, sums: &mut [f32]) {
        let line = rows.next_multiple_of(K_TILE) / 2;
        // SAFETY: `new` was promised the instructions.
        unsafe {
            interleave_rows(z, rows, self.d, self.right, self.padded);
            transpose(&self.right[..line * self.padded], (line, self.padded), self.left);
            interleave_rows(View { data: w, stride: TILE }, rows, lanes, self.right, TILE);
        }
        self.product((self.d, lanes, rows), self.left, (self.right, TILE), false, sums);
    }

    #[inline(always)]
    fn own_across(&mut self, x: View, rows: usize) {
        // SAFETY: `new` was promised the instructions.
        unsafe { interleave_rows(x, rows, self.d, self.across, self.padded) };
    }

    #[inline(always)]
    fn across(&mut self, w: &[f32], rows: usize, lanes: usize, c: &mut [f32]) {
        let line = lanes.next_multiple_of(K_TILE) / 2;
        // SAFETY: `new` was promised the instructions.
        unsafe { round_rows(View { data: w, stride: TILE }, rows, lanes, self.left, line) };
        self.product((rows, self.d, lanes), self.left, (self.across, self.padded), false, c);
    }

    /// 2 to the power of the whole part of x / ln 2, times a polynomial for the rest: within 3e-6, where a bf16 has 4e-3.
    #[inline(always)]
    fn exps(x: [f32; LANES]) -> [f32; LANES] {
        // SAFETY: `new` was promised the instructions; both types are 64 bytes of plain bits.
        unsafe { std::mem::transmute(exp_16(std::mem::transmute::<[f32; LANES], __m512>(x))) }
    }

    #[inline(always)]
    fn finish(&mut self, sums: &[f32], factor: &[f32; TILE], rows: usize, to: &Rows, at: usize, stride: usize) {
        // SAFETY: `new` was promised the instructions, and the caller owns the rows.
        unsafe { turn(sums, factor, (rows, self.d), to, at, stride) };
    }
}

/// See [`Kit::exps`]. A NaN stays one, and minus infinity gives 2^-126.
#[inline]
#[target_feature(enable = "avx512f")]
fn exp_16(x: __m512) -> __m512 {
    let x = _mm512_mul_ps(x, _mm512_set1_ps(std::f32::consts::LOG2_E));
    // The second operand is the result where one is no number.
    let x = _mm512_max_ps(_mm512_set1_ps(-126.0), x);
    let whole = _mm512_roundscale_ps::<0x08>(x);
    let rest = _mm512_sub_ps(x, whole);
    // ln 2 to the n over n factorial.
    let mut p = _mm512_set1_ps(1.333_355_8e-3);
    for term in [9.618_129e-3, 5.550_411e-2, 2.402_265e-1, 6.931_472e-1, 1.0] {
        p = _mm512_fmadd_ps(p, rest, _mm512_set1_ps(term));
    }
    _mm512_scalef_ps(p, whole)
}

/// Rows of `d` floats as rows of bf16, `line` pairs each; zeros beyond `d`, and in rows up to whole tiles.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn round_rows(from: View, rows: usize, d: usize, to: &mut [f32], line: usize) {
    for (r, to) in to.chunks_exact_mut(line).enumerate().take(TILE) {
        if r >= rows {
            to.fill(0.0);
            continue;
        }
        let row = &from.data[r * from.stride..][..d];
        for (from, to) in row.chunks(K_TILE).zip(to.chunks_exact_mut(K_TILE / 2)) {
            // SAFETY: the piece is read, and 64 bytes are written.
            unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), piece(from)) };
        }
    }
}

/// Up to 32 floats as bf16, zeros after them.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn piece(from: &[f32]) -> __m512i {
    if let Some(whole) = from.first_chunk::<K_TILE>() {
        // SAFETY: 32 floats are read.
        return unsafe { round(_mm512_loadu_ps(whole.as_ptr()), _mm512_loadu_ps(whole.as_ptr().add(16))) };
    }
    let (low, high) = (mask(from.len()), mask(from.len().saturating_sub(16)));
    // SAFETY: lanes outside the masks are not read.
    unsafe {
        let at = from.as_ptr();
        round(_mm512_maskz_loadu_ps(low, at), _mm512_maskz_loadu_ps(high, at.wrapping_add(16)))
    }
}

/// Pairs of rows of `len` floats, rounded and interleaved, `line` pairs a row; zeros beyond, and in rows up to whole steps.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn interleave_rows(from: View, rows: usize, len: usize, to: &mut [f32], line: usize) {
    for (pair, to) in to.chunks_exact_mut(line).enumerate().take(rows.next_multiple_of(K_TILE) / 2) {
        for (at, to) in (0..).step_by(K_TILE).zip(to.chunks_exact_mut(K_TILE)) {
            let row = |r: usize| {
                if r < rows && at < len {
                    piece(&from.data[r * from.stride + at..][..K_TILE.min(len - at)])
                } else {
                    _mm512_setzero_si512()
                }
            };
            let [low, high] = interleave(row(2 * pair), row(2 * pair + 1));
            // SAFETY: `to` has 128 bytes.
            unsafe {
                _mm512_storeu_si512(to.as_mut_ptr().cast(), low);
                _mm512_storeu_si512(to.as_mut_ptr().add(16).cast(), high);
            }
        }
    }
}

/// `to[c][r] = from[r][c]` for rows and columns in whole sixteens.
#[inline]
#[target_feature(enable = "avx512f")]
fn transpose(from: &[f32], (rows, cols): (usize, usize), to: &mut [f32]) {
    assert!(rows.is_multiple_of(16) && cols.is_multiple_of(16) && from.len() >= rows * cols && to.len() >= rows * cols);
    for r in (0..rows).step_by(16) {
        for c in (0..cols).step_by(16) {
            let mut square = [_mm512_setzero_ps(); 16];
            for (i, x) in square.iter_mut().enumerate() {
                // SAFETY: inside `from` by the assertion.
                *x = unsafe { _mm512_loadu_ps(from.as_ptr().add((r + i) * cols + c)) };
            }
            for (i, x) in transpose_16(square).into_iter().enumerate() {
                // SAFETY: inside `to` by the assertion.
                unsafe { _mm512_storeu_ps(to.as_mut_ptr().add((c + i) * rows + r), x) };
            }
        }
    }
}

/// `to[lane][e] = sums[e][lane] factor[lane]`.
///
/// # Safety
/// The processor has AVX-512, and the caller owns the rows of `to`.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn turn(sums: &[f32], factor: &[f32; TILE], (rows, d): (usize, usize), to: &Rows, at: usize, stride: usize) {
    for lane in (0..rows).step_by(16) {
        // SAFETY: 16 of the 64 factors.
        let factor = unsafe { _mm512_loadu_ps(factor[lane..lane + 16].as_ptr()) };
        for e in (0..d).step_by(16) {
            let mut square = [_mm512_setzero_ps(); 16];
            for (x, sums) in square.iter_mut().zip(sums.chunks_exact(TILE).skip(e)).take(d - e) {
                // SAFETY: 16 lanes of a row of sums.
                *x = unsafe { _mm512_mul_ps(_mm512_loadu_ps(sums[lane..lane + 16].as_ptr()), factor) };
            }
            for (i, x) in transpose_16(square).into_iter().enumerate().take(rows - lane) {
                let start = at + (lane + i) * stride + e;
                // SAFETY: the caller owns the row; no more than `d` elements of it are written.
                unsafe {
                    let to = to.range(start..start + (d - e).min(16));
                    _mm512_mask_storeu_ps(to.as_mut_ptr(), mask(to.len()), x);
                }
            }
        }
    }
}
