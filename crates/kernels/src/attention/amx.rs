//! The products of attention on AMX: operands are rounded to bf16, sums are f32.
//!
//! A first operand is a matrix of bf16 rows, a second one has pairs of rows interleaved. As 32-bit elements, the second operand of a
//! transposed matrix is the transpose of its first operand, and the other way round: so one way to round, one to interleave
//! and one to transpose squares make all of them.

use std::arch::x86_64::*;
use std::ops::Range;

use half::bf16;

use super::TILE;
use super::body::{self, Read, Sweep, Task, Work};
use super::kept::{Keeping, Kept};
use super::kit::{Kit, LANES, Lanes, Reach, SQUARE, To, View, Weights, padded};
use crate::Values;
use crate::amx::{K_TILE, Pair, SIDE, Square, Tiles};
use crate::avx512::{exp2, halves, interleave, interleaved, mask, mask_32, round, rounded, transpose_16};
use crate::rows::Rows;

/// Sixteen floats in a register, of a processor that has AVX-512: only [`Amx`] asks for them.
#[derive(Clone, Copy)]
pub(super) struct Register(__m512);

// SAFETY (of all blocks here): who makes an `Amx` has promised the instructions; lengths are checked where memory is touched.
impl Lanes for Register {
    const UNIT: f32 = std::f32::consts::LOG2_E;

    #[inline(always)]
    fn all(x: f32) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm512_set1_ps(x) })
    }

    #[inline(always)]
    fn load(from: &[f32]) -> Self {
        // SAFETY: as above; sixteen floats are there.
        Self(unsafe { _mm512_loadu_ps(from[..LANES].as_ptr()) })
    }

    #[inline(always)]
    fn store(self, to: &mut [f32]) {
        // SAFETY: as above; sixteen floats are there.
        unsafe { _mm512_storeu_ps(to[..LANES].as_mut_ptr(), self.0) }
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm512_add_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm512_mul_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn mul_add(self, by: Self, plus: Self) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm512_fmadd_ps(self.0, by.0, plus.0) })
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm512_max_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn raised(self, before: Self, by: f32) -> Self {
        // SAFETY: as above.
        Self(unsafe {
            let limit = _mm512_add_ps(before.0, _mm512_set1_ps(by));
            let above = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(self.0, limit);
            _mm512_mask_blend_ps(above, before.0, self.0)
        })
    }

    #[inline(always)]
    fn exp(self) -> Self {
        // SAFETY: as above.
        Self(unsafe { exp2(self.0) })
    }
}

/// Holds what its products read, in memory of one thread: forms of tiles of `d` by 64, and weights of 64 by 64.
pub(super) struct Amx<'a> {
    d: usize,
    /// `d` in whole steps of the sum.
    padded: usize,
    owners: usize,
    /// Two of each owner as second operands of scores, two as second operands across, two tiles met as they are, two turned, and one to
    /// work in.
    forms: &'a mut [f32],
    kept: Kept<'a>,
    /// Pairs of rows interleaved.
    down: [&'a mut [f32]; 2],
    /// Rows as they are.
    across: [&'a mut [f32]; 2],
    tiles: Tiles,
}

impl<'a> Amx<'a> {
    /// Floats for `owners` heads of `d` elements.
    pub fn len(d: usize, owners: usize) -> usize {
        (4 * owners + 5) * TILE * padded(d) / 2 + 2 * SQUARE
    }

    /// # Safety
    /// The processor has AVX-512 with BF16, and AMX, which its kernel has granted.
    pub unsafe fn new(scratch: &'a mut [f32], kept: Kept<'a>, d: usize, owners: usize) -> Self {
        let padded = padded(d);
        let (forms, rest) = scratch.split_at_mut((4 * owners + 5) * TILE * padded / 2);
        let (down, across) = rest[..2 * SQUARE].split_at_mut(SQUARE);
        let ((first, second), (third, fourth)) = (down.split_at_mut(SQUARE / 2), across.split_at_mut(SQUARE / 2));
        // SAFETY: the caller's promise.
        let tiles = unsafe { Tiles::configure() };
        Self { d, padded, owners, forms, kept, down: [first, second], across: [third, fourth], tiles }
    }

    fn form(&self, at: usize) -> Range<usize> {
        let len = TILE * self.padded / 2;
        at * len..(at + 1) * len
    }

    fn owned(&self, owner: usize, which: usize) -> Range<usize> {
        self.form(2 * owner + which)
    }

    fn owned_across(&self, owner: usize, which: usize) -> Range<usize> {
        self.form(2 * (self.owners + owner) + which)
    }

    /// Where what is met lies: in the tile that is kept, or among the forms.
    fn met(&self, which: usize) -> (Option<usize>, Range<usize>) {
        (self.kept.tile, self.form(if self.kept.tile.is_some() { 2 * which } else { 4 * self.owners + which }))
    }

    fn turned(&self, which: usize) -> (Option<usize>, Range<usize>) {
        let kept = self.kept.tile.filter(|_| which == 0);
        (kept, self.form(if kept.is_some() { 1 } else { 4 * self.owners + 2 + which }))
    }

    fn at(&self, (kept, form): (Option<usize>, Range<usize>)) -> &[f32] {
        &kept.map_or(&*self.forms, |tile| self.kept.forms(tile))[form]
    }

    /// A form, and one to work in.
    fn beside(&mut self, (kept, form): (Option<usize>, Range<usize>)) -> [&mut [f32]; 2] {
        let spare = self.form(4 * self.owners + 4);
        match kept {
            Some(tile) => [&mut self.kept.forms_mut(tile)[form], &mut self.forms[spare]],
            None => self.forms.get_disjoint_mut([form, spare]).expect("forms don't overlap"),
        }
    }

    /// `c (+)= left right` for `m` rows, `n` columns and `k` of the sum, of which a square of 32 by 32 takes the steps that `part` says for its row and column.
    /// Rows of `left` are `line` floats apart, those of `right` and `c` `width`.
    #[inline(always)]
    fn product(
        &self,
        (m, n, k): (usize, usize, usize),
        (left, line): (&[f32], usize),
        (right, width): (&[f32], usize),
        part: impl Fn(usize, usize) -> Range<usize>,
        zero: bool,
        c: &mut [f32],
    ) {
        let steps = k.div_ceil(K_TILE);
        assert!(left.len() >= (m.next_multiple_of(16) - 1) * line + steps * K_TILE / 2);
        assert!(right.len() >= steps * 16 * width);
        assert!(n.next_multiple_of(16) <= width && c.len() >= m.next_multiple_of(16) * width);
        for i in (0..m).step_by(SIDE) {
            for j in (0..n).step_by(SIDE) {
                let part = part(i, j);
                if part.is_empty() {
                    continue;
                }
                assert!(part.end <= steps, "steps {part:?} of {steps}");
                let (first, steps) = (part.start, part.len());
                let left = &left[i * line + first * K_TILE / 2..];
                let rows = Pair { at: left.as_ptr(), line, second: 16 * line, step: K_TILE / 2, past: false };
                let right = &right[first * 16 * width + j..];
                let cols = Pair { at: right.as_ptr(), line: width, second: 16, step: 16 * width, past: false };
                let sums = Square { at: c[i * width + j..].as_mut_ptr(), line: width };
                // SAFETY: tiles of 16 rows up to `m`, of 16 columns up to `n` and of 16 pairs for all steps, checked above.
                unsafe { self.tiles.sum(rows, cols, steps, zero, sums, m - i > 16, n - j > 16, &mut ()) };
            }
        }
    }
}

/// # Safety
/// As [`Amx::new`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
pub(super) unsafe fn run(task: Task, read: Read, sweep: Sweep, scratch: &mut [f32], keeping: Keeping) {
    let d = task.heads.d;
    let (kept, rest) = scratch.split_at_mut(keeping.len(d));
    let (kept, gradients) = Kept::new(kept, keeping, task);
    let (work, rest) = Work::cut(rest, gradients, d, task.shared);
    // SAFETY: the caller's promise.
    body::run(&mut unsafe { Amx::new(rest, kept, d, task.shared) }, task, read, sweep, work);
}

impl<'a> Kit<'a> for Amx<'_> {
    type Lanes = Register;

    #[inline(always)]
    fn own(&mut self, owner: usize, which: usize, x: View, rows: usize) {
        let (d, line) = (self.d, self.padded / 2);
        let [to, spare] = self.beside((None, self.owned(owner, which)));
        // SAFETY: `new` was promised the instructions.
        unsafe {
            take_rows(x, rows, d, spare, line);
            transpose(spare, (TILE, line), to);
        }
    }

    #[inline(always)]
    fn own_across(&mut self, owner: usize, which: usize, x: View, rows: usize) {
        let to = self.owned_across(owner, which);
        // SAFETY: `new` was promised the instructions.
        unsafe { interleave_rows(x, rows, self.d, &mut self.forms[to], self.padded) };
    }

    #[inline(always)]
    fn turn_to(&mut self, tile: usize, rows: usize) -> bool {
        self.kept.turn_to(tile, rows)
    }

    #[inline(always)]
    fn meet(&mut self, which: usize, y: View, rows: usize) {
        let (d, line) = (self.d, self.padded / 2);
        let [to, _] = self.beside(self.met(which));
        // SAFETY: `new` was promised the instructions.
        unsafe { take_rows(y, rows, d, to, line) };
    }

    #[inline(always)]
    fn meet_turned(&mut self, which: usize, z: View, rows: usize) {
        let (d, padded, line) = (self.d, self.padded, rows.next_multiple_of(K_TILE) / 2);
        let [to, spare] = self.beside(self.turned(which));
        // SAFETY: `new` was promised the instructions.
        unsafe {
            interleave_rows(z, rows, d, spare, padded);
            transpose(spare, (line, padded), to);
        }
    }

    #[inline(always)]
    fn scores(&mut self, owner: usize, which: usize, reach: Reach, lanes: usize, scores: &mut [f32]) {
        let (y, x) = (self.at(self.met(which)), &self.forms[self.owned(owner, which)]);
        let (rows, steps) = (all(reach), self.padded / K_TILE);
        let part = |i: usize, j: usize| 0..if i < reach[j / SIDE] { steps } else { 0 };
        self.product((rows, lanes, self.d), (y, self.padded / 2), (x, TILE), part, true, scores);
    }

    #[inline(always)]
    fn weigh(&mut self, which: usize, r: usize, lane: usize, [first, second]: Weights<Register>) {
        let to = &mut self.down[which][r / 2 * TILE + lane..][..2 * LANES];
        // SAFETY: `new` was promised the instructions; 128 bytes are written.
        unsafe {
            let order = interleaved();
            for half in 0..2 {
                let both = _mm512_permutexvar_epi16(order, round(first[half].0, second[half].0));
                _mm512_storeu_si512(to.as_mut_ptr().add(half * LANES).cast(), both);
            }
        }
    }

    #[inline(always)]
    fn weigh_across(&mut self, which: usize, r: usize, lane: usize, weights: Weights<Register>) {
        for (r, [low, high]) in (r..).zip(weights) {
            let to = &mut self.across[which][r * (TILE / 2) + lane / 2..][..LANES];
            // SAFETY: `new` was promised the instructions; 64 bytes are written.
            unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), round(low.0, high.0)) };
        }
    }

    #[inline(always)]
    fn add(&mut self, z: usize, weights: usize, reach: Reach, lanes: usize, begins: bool, sums: &mut [f32]) {
        // A sum goes by whole steps.
        let rows = all(reach);
        let (pairs, whole) = (rows.div_ceil(2), rows.next_multiple_of(K_TILE) / 2);
        self.down[weights][pairs * TILE..whole * TILE].fill(0.0);
        let z = self.at(self.turned(z));
        let part = |_, j: usize| 0..reach[j / SIDE].div_ceil(K_TILE);
        self.product((self.d, lanes, rows), (z, whole), (self.down[weights], TILE), part, begins, sums);
    }

    #[inline(always)]
    fn across(&mut self, owner: usize, which: usize, weights: usize, reach: Reach, lanes: usize, c: &mut [f32]) {
        let rows = all(reach);
        // Rows go by whole tiles, and those after the last may be of other keys, which meet later queries.
        let (pairs, whole) = (rows.next_multiple_of(2), rows.next_multiple_of(16));
        self.across[weights][pairs * (TILE / 2)..whole * (TILE / 2)].fill(0.0);
        let x = &self.forms[self.owned_across(owner, which)];
        // Lanes that rows from `i` on have no weights of come first.
        let part = |i: usize, _| if i < reach[0] { 0 } else { 1 }..lanes / K_TILE;
        self.product((rows, self.d, lanes), (self.across[weights], TILE / 2), (x, self.padded), part, false, c);
    }

    #[inline(always)]
    fn finish(&mut self, sums: &[f32], factor: &[f32], rows: usize, to: To, place: (usize, usize)) {
        let shape = (rows, self.d);
        // SAFETY: `new` was promised the instructions, and the caller owns the rows.
        unsafe {
            match to {
                To::Write(to) => turn::<f32, false>(sums, factor, shape, to, place),
                To::Add(to) => turn::<f32, true>(sums, factor, shape, to, place),
                To::Round(to) => turn::<bf16, false>(sums, factor, shape, to, place),
            }
        };
    }
}

/// Rows that any lane reaches.
#[inline(always)]
fn all(reach: Reach) -> usize {
    reach[0].max(reach[1])
}

/// What values are stored as. For who has made sure of the instructions.
trait Stored: Copy {
    /// Up to 32 as bf16, zeros after them.
    unsafe fn piece(from: &[Self]) -> __m512i;
    /// Writes the first lanes, or adds to what is there.
    unsafe fn put<const MORE: bool>(x: __m512, to: &mut [Self]);
}

impl Stored for f32 {
    #[inline(always)]
    unsafe fn piece(from: &[f32]) -> __m512i {
        // SAFETY: the caller has made sure of the instructions.
        unsafe { rounded(from) }
    }

    #[inline(always)]
    unsafe fn put<const MORE: bool>(x: __m512, to: &mut [f32]) {
        // SAFETY: lanes outside the mask are not touched.
        unsafe {
            let lanes = mask(to.len());
            let x = if MORE { _mm512_add_ps(_mm512_maskz_loadu_ps(lanes, to.as_ptr()), x) } else { x };
            _mm512_mask_storeu_ps(to.as_mut_ptr(), lanes, x);
        }
    }
}

impl Stored for bf16 {
    #[inline(always)]
    unsafe fn piece(from: &[bf16]) -> __m512i {
        // SAFETY: the caller has made sure of the instructions.
        unsafe { halves(from) }
    }

    #[inline(always)]
    unsafe fn put<const MORE: bool>(x: __m512, to: &mut [bf16]) {
        const { assert!(!MORE, "a sum in bf16 does not go on") };
        // SAFETY: lanes outside the mask are not touched.
        unsafe { _mm512_mask_storeu_epi16(to.as_mut_ptr().cast(), mask_32(to.len().min(16)), round(x, x)) };
    }
}

/// Rows of `d` values as rows of bf16, `line` pairs each; zeros beyond `d`, and in rows up to whole tiles.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn take_rows(from: View, rows: usize, d: usize, to: &mut [f32], line: usize) {
    match from.data {
        Values::F32(data) => take_rows_of(data, from.stride, rows, d, to, line),
        Values::Bf16(data) => take_rows_of(data, from.stride, rows, d, to, line),
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn take_rows_of<T: Stored>(from: &[T], stride: usize, rows: usize, d: usize, to: &mut [f32], line: usize) {
    for (r, to) in to.chunks_exact_mut(line).enumerate().take(TILE) {
        if r >= rows {
            to.fill(0.0);
            continue;
        }
        let row = &from[r * stride..][..d];
        for (from, to) in row.chunks(K_TILE).zip(to.chunks_exact_mut(K_TILE / 2)) {
            // SAFETY: this has the instructions; the piece is read, and 64 bytes are written.
            unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), T::piece(from)) };
        }
    }
}

/// Pairs of rows of `len` values, rounded and interleaved, `line` pairs a row; zeros beyond, and in rows up to whole steps.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn interleave_rows(from: View, rows: usize, len: usize, to: &mut [f32], line: usize) {
    match from.data {
        Values::F32(data) => interleave_rows_of(data, from.stride, rows, len, to, line),
        Values::Bf16(data) => interleave_rows_of(data, from.stride, rows, len, to, line),
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn interleave_rows_of<T: Stored>(from: &[T], stride: usize, rows: usize, len: usize, to: &mut [f32], line: usize) {
    for (pair, to) in to.chunks_exact_mut(line).enumerate().take(rows.next_multiple_of(K_TILE) / 2) {
        for (at, to) in (0..).step_by(K_TILE).zip(to.chunks_exact_mut(K_TILE)) {
            let row = |r: usize| {
                if r < rows && at < len {
                    // SAFETY: this has the instructions.
                    unsafe { T::piece(&from[r * stride + at..][..K_TILE.min(len - at)]) }
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

/// `to[lane][e] = sums[e][lane] factor[lane]`, or `+=`.
///
/// # Safety
/// The processor has AVX-512 with BF16, and the caller owns the rows of `to`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn turn<T: Stored, const MORE: bool>(
    sums: &[f32],
    factor: &[f32],
    (rows, d): (usize, usize),
    to: &Rows<T>,
    (at, stride): (usize, usize),
) {
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
                unsafe { T::put::<MORE>(x, to.range(start..start + (d - e).min(16))) };
            }
        }
    }
}
