//! Weights straight into bf16 tiles, without a buffer between, where rows are whole runs of 32 elements: nearly all of them.
//!
//! The bits are those of [`crate::dequant`]; what is packed otherwise goes through it.

use std::arch::x86_64::*;
use std::ops::Range;

use super::super::Weight;
use super::bits::{Q5K, Q6K};
use super::fill::Place;
use super::nibbles::{Q4_0, Q4_1, Q4K};
use super::plain::{Bf16, F16, F32, Q8_0};
use super::{K_TILE, SIDE, TILE};
use crate::avx512::{interleave, mask};
use crate::{BlockType, fetch};

/// How many rows ahead columns ask for: two steps of a sum.
pub(super) const ROWS_AHEAD: usize = 2 * K_TILE;

/// Two numbers of each of sixteen rows that elements are scaled with.
pub(super) type Numbers = [[f32; 16]; 2];

/// How runs lie in their row: in groups, one after another.
pub(super) trait Run {
    /// Runs of a group, and its bytes.
    const RUNS: usize = 1;
    const BYTES: usize;

    /// The 32 elements of run `at` of a group.
    ///
    /// # Safety
    /// The processor has AVX-512 with BF16.
    unsafe fn alone(group: &[u8], at: usize) -> __m512i;

    /// Numbers of run `at` of sixteen rows, where it is worth while to get them together.
    ///
    /// # Safety
    /// As [`Run::alone`].
    #[inline(always)]
    unsafe fn numbers(_: Sixteen, _: usize) -> Numbers {
        [[0.0; 16]; 2]
    }

    /// Run `at` of two rows, the first of which is number `number` of those that the numbers are of.
    ///
    /// # Safety
    /// As [`Run::alone`].
    #[inline(always)]
    unsafe fn two(groups: [&[u8]; 2], at: usize, _: &Numbers, _: usize) -> [__m512i; 2] {
        // SAFETY: the caller's promise.
        unsafe { [Self::alone(groups[0], at), Self::alone(groups[1], at)] }
    }

    /// The same, one element of each row in turn; zeros where there is no second row.
    ///
    /// # Safety
    /// As [`Run::alone`].
    #[inline(always)]
    unsafe fn in_turn(first: &[u8], second: Option<&[u8]>, at: usize) -> [__m512i; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let second = match second {
                Some(group) => Self::alone(group, at),
                None => _mm512_setzero_si512(),
            };
            interleave(Self::alone(first, at), second)
        }
    }
}

/// Up to sixteen rows, one after another.
#[derive(Clone, Copy)]
pub(super) struct Sixteen<'a> {
    /// From the first of them on.
    data: &'a [u8],
    stride: usize,
    count: usize,
    /// Where each begins.
    places: __m512i,
}

impl Sixteen<'_> {
    /// Four bytes of each row, from its byte `at` on; zeros where there is no row.
    #[inline(always)]
    pub unsafe fn four_bytes(self, at: usize) -> __m512i {
        if self.count == 0 {
            // SAFETY: the caller's promise.
            return unsafe { _mm512_setzero_si512() };
        }
        assert!((self.count - 1) * self.stride + at + 4 <= self.data.len(), "four bytes of a row");
        // SAFETY: the last row has four bytes there, and so have those before it.
        unsafe {
            let from = self.data.as_ptr().add(at).cast();
            _mm512_mask_i32gather_epi32::<1>(_mm512_setzero_si512(), mask(self.count), self.places, from)
        }
    }
}

/// A matrix of such rows.
#[derive(Clone, Copy)]
pub(super) struct Runs<'a> {
    ty: BlockType,
    data: &'a [u8],
    /// Bytes of a row.
    stride: usize,
    rows: usize,
    /// Bytes of eight runs.
    eight: usize,
}

/// What is done with the runs of a type.
macro_rules! by_type {
    ($runs:expr, $do:ident($($args:expr),*)) => {
        match $runs.ty {
            BlockType::Q4_0 => $do::<Q4_0>($runs, $($args),*),
            BlockType::Q4_1 => $do::<Q4_1>($runs, $($args),*),
            BlockType::Q4_K => $do::<Q4K>($runs, $($args),*),
            BlockType::Q5_K => $do::<Q5K>($runs, $($args),*),
            BlockType::Q6_K => $do::<Q6K>($runs, $($args),*),
            BlockType::Q8_0 => $do::<Q8_0>($runs, $($args),*),
            BlockType::F16 => $do::<F16>($runs, $($args),*),
            BlockType::F32 => $do::<F32>($runs, $($args),*),
            _ => $do::<Bf16>($runs, $($args),*),
        }
    };
}

impl<'a> Runs<'a> {
    /// The matrix as such, where it is one.
    pub fn of(w: &Weight<'a>) -> Option<Self> {
        let ours = match w.ty {
            BlockType::F16 | BlockType::BF16 | BlockType::F32 => w.cols.is_multiple_of(K_TILE),
            BlockType::Q5_0 | BlockType::Q5_1 => false,
            _ => true,
        };
        let data = w.bytes().filter(|data| ours && data.len() / w.rows.max(1) < 128 << 20)?;
        let eight = 8 * K_TILE * w.ty.block_bytes() / w.ty.block_len();
        Some(Self { ty: w.ty, data, stride: data.len() / w.rows.max(1), rows: w.rows, eight })
    }

    /// Columns `ks` of rows `js` into tiles of rows.
    ///
    /// # Safety
    /// The processor has AVX-512 with BF16.
    pub unsafe fn rows(self, js: Range<usize>, ks: Range<usize>, place: Place, to: &mut [f32]) {
        // SAFETY: the caller's promise.
        unsafe { by_type!(self, rows(js, ks, place, to)) }
    }

    /// Columns `js` of rows `ks` into tiles of columns.
    ///
    /// # Safety
    /// As [`Runs::rows`].
    pub unsafe fn cols(self, js: Range<usize>, ks: Range<usize>, place: Place, to: &mut [f32]) {
        // SAFETY: the caller's promise.
        unsafe { by_type!(self, cols(js, ks, place, to)) }
    }

    /// A row, if there is such a row.
    #[inline(always)]
    fn row(&self, row: usize) -> Option<&'a [u8]> {
        (row < self.rows).then(|| &self.data[row * self.stride..(row + 1) * self.stride])
    }

    /// Up to sixteen rows from `row` on, as far as there are rows before `end`.
    #[inline(always)]
    unsafe fn sixteen(&self, row: usize, end: usize) -> Sixteen<'a> {
        let count = end.min(self.rows).saturating_sub(row).min(16);
        // SAFETY: the caller's promise. A row is shorter than 128 MiB: see `Runs::of`.
        let places = unsafe {
            let rows = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
            _mm512_mullo_epi32(rows, _mm512_set1_epi32(self.stride as i32))
        };
        Sixteen { data: &self.data[row.min(self.rows) * self.stride..], stride: self.stride, count, places }
    }

    /// Checks that all of `runs` of rows before `end` lie inside, for [`Runs::group`].
    fn check<R: Run>(&self, runs: &Range<usize>, end: usize) {
        assert!(end <= self.rows && self.rows * self.stride <= self.data.len(), "row {end} of {}", self.rows);
        assert!(runs.end.div_ceil(R::RUNS) * R::BYTES <= self.stride, "runs {runs:?} of rows of {}", self.stride);
    }

    /// The group of a run of a row, and which run it is there. Its length is a number of the type, so that nothing is checked for every run.
    ///
    /// # Safety
    /// [`Runs::check`] has seen the run and the row.
    #[inline(always)]
    unsafe fn group<R: Run>(&self, row: usize, run: usize) -> (&'a [u8], usize) {
        let at = row * self.stride + run / R::RUNS * R::BYTES;
        // SAFETY: inside the matrix by the caller's promise.
        (unsafe { std::slice::from_raw_parts(self.data.as_ptr().add(at), R::BYTES) }, run % R::RUNS)
    }

    /// Asks for the runs `runs` of a row, if there is such a row.
    #[inline(always)]
    fn fetch(&self, row: usize, runs: &Range<usize>) {
        let (from, to) = (runs.start * self.eight / 8, runs.end * self.eight / 8);
        for line in self.row(row).and_then(|row| row.get(from..to)).unwrap_or_default().chunks(64) {
            fetch::line(line.as_ptr());
        }
    }
}

/// Numbers are got a tile before they are needed: those of sixteen rows come from as many places.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512bf16,avx2,fma,f16c")]
unsafe fn rows<R: Run>(w: Runs, js: Range<usize>, ks: Range<usize>, place: Place, to: &mut [f32]) {
    let runs = ks.start / K_TILE..ks.end / K_TILE;
    w.check::<R>(&runs, js.end);
    for (half, tiles) in to.chunks_exact_mut(place.steps * TILE).enumerate().take(js.len().div_ceil(SIDE) * 2) {
        let first = js.start + half * 16;
        let tiles = tiles[place.first * TILE..].as_chunks_mut::<TILE>().0;
        // SAFETY: the features are enabled here.
        let sixteen = unsafe { w.sixteen(first, js.end) };
        // SAFETY: as above.
        let mut numbers = [unsafe { R::numbers(sixteen, runs.start) }; 2];
        for (ahead, (run, tile)) in (first + 16..).zip(runs.clone().zip(tiles)) {
            if ahead < js.end.min(first + 32) {
                w.fetch(ahead, &runs);
            }
            if run + 1 < runs.end {
                // SAFETY: as above.
                numbers[(run + 1) % 2] = unsafe { R::numbers(sixteen, run + 1) };
            }
            let numbers = &numbers[run % 2];
            let (there, rest) = tile.as_chunks_mut::<16>().0.split_at_mut(sixteen.count);
            let (pairs, last) = there.as_chunks_mut::<2>();
            for (pair, to) in pairs.iter_mut().enumerate() {
                // SAFETY: as above; the rows are before the last, and twice 64 bytes are written.
                unsafe {
                    let (group, at) = w.group::<R>(first + 2 * pair, run);
                    let (next, _) = w.group::<R>(first + 2 * pair + 1, run);
                    for (to, run) in to.iter_mut().zip(R::two([group, next], at, numbers, 2 * pair)) {
                        _mm512_storeu_si512(to.as_mut_ptr().cast(), run);
                    }
                }
            }
            for to in last {
                // SAFETY: as above, for 64 bytes.
                unsafe {
                    let (group, at) = w.group::<R>(first + sixteen.count - 1, run);
                    _mm512_storeu_si512(to.as_mut_ptr().cast(), R::alone(group, at));
                }
            }
            rest.as_flattened_mut().fill(0.0);
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512bf16,avx2,fma,f16c")]
unsafe fn cols<R: Run>(w: Runs, js: Range<usize>, ks: Range<usize>, place: Place, to: &mut [f32]) {
    let runs = js.start / SIDE..js.end / SIDE;
    let end = ks.end;
    w.check::<R>(&runs, end);
    for (step, k0) in ks.step_by(K_TILE).enumerate() {
        for (v, run) in runs.clone().enumerate() {
            // Each run of columns asks for its share of the rows of the step after the next.
            for row in K_TILE * v / runs.len()..K_TILE * (v + 1) / runs.len() {
                w.fetch(k0 + ROWS_AHEAD + row, &runs);
            }
            let tiles = &mut to[(v * place.steps + place.first + step) * 2 * TILE..][..2 * TILE];
            let (left, right) = tiles.split_at_mut(TILE);
            let places = left.as_chunks_mut::<16>().0.iter_mut().zip(right.as_chunks_mut::<16>().0);
            let whole = k0 + K_TILE <= end;
            for (pair, (left, right)) in places.enumerate() {
                let k = k0 + 2 * pair;
                // SAFETY: the features are enabled here; rows are before the last, and twice 64 bytes are written.
                unsafe {
                    let [low, high] = if whole || k < end {
                        let (first, at) = w.group::<R>(k, run);
                        let second = if whole || k + 1 < end { Some(w.group::<R>(k + 1, run).0) } else { None };
                        R::in_turn(first, second, at)
                    } else {
                        [_mm512_setzero_si512(); 2]
                    };
                    _mm512_storeu_si512(left.as_mut_ptr().cast(), low);
                    _mm512_storeu_si512(right.as_mut_ptr().cast(), high);
                }
            }
        }
    }
}
