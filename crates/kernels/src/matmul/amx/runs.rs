//! Weights straight into bf16 tiles, without a buffer between, where rows are whole runs of 32 elements: nearly all of them. Two rows at a time, beside
//! the sums of other tiles.
//!
//! The bits are those of [`crate::dequant`]; what is packed otherwise goes through it.

use std::arch::x86_64::*;
use std::marker::PhantomData;
use std::ops::Range;

use super::super::Weight;
use super::fill::Place;
use super::{K_TILE, SIDE, TILE};
use crate::amx::Beside;
use crate::avx512::interleave;
use crate::{BlockType, fetch};

/// How many rows ahead columns ask for where nothing is beside: two steps of a sum.
const ROWS_AHEAD: usize = 2 * K_TILE;
/// How many bytes ahead in their rows columns ask for: what the strips after the next begin with.
const BYTES_AHEAD: usize = 128;

/// How runs lie in their row: in groups, one after another.
pub(super) trait Run: Copy {
    /// Runs of a group, and its bytes.
    const RUNS: usize = 1;
    const BYTES: usize;

    /// The 32 elements of run `at` of a group.
    ///
    /// # Safety
    /// The processor has AVX-512 with BF16.
    unsafe fn alone(group: &[u8], at: usize) -> __m512i;

    /// Run `at` of two rows.
    ///
    /// # Safety
    /// As [`Run::alone`].
    #[inline(always)]
    unsafe fn two(groups: [&[u8]; 2], at: usize) -> [__m512i; 2] {
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

/// A matrix of such rows.
#[derive(Clone, Copy)]
pub(super) struct Runs<'a> {
    pub ty: BlockType,
    data: &'a [u8],
    /// Bytes of a row.
    stride: usize,
}

/// An expression in which `$run` is the type of the runs.
macro_rules! by_type {
    ($ty:expr, $run:ident => $do:expr) => {{
        use crate::BlockType;
        use crate::matmul::amx::{bits, nibbles, plain};
        macro_rules! of {
            ($which:ty) => {{
                type $run = $which;
                $do
            }};
        }
        match $ty {
            BlockType::Q4_0 => of!(nibbles::Q4_0),
            BlockType::Q4_1 => of!(nibbles::Q4_1),
            BlockType::Q4_K => of!(nibbles::Q4K),
            BlockType::Q5_K => of!(bits::Q5K),
            BlockType::Q6_K => of!(bits::Q6K),
            BlockType::Q8_0 => of!(plain::Q8_0),
            BlockType::F16 => of!(plain::F16),
            BlockType::F32 => of!(plain::F32),
            _ => of!(plain::Bf16),
        }
    }};
}
pub(super) use by_type;

impl<'a> Runs<'a> {
    /// The matrix as such, where it is one.
    pub fn of(w: &Weight<'a>) -> Option<Self> {
        if !Self::are(w.ty, w.cols) {
            return None;
        }
        let data = w.bytes()?;
        Some(Self { ty: w.ty, data, stride: w.stride() })
    }

    /// Whether rows of so many elements of a type are such, if they are blocks.
    pub fn are(ty: BlockType, cols: usize) -> bool {
        match ty {
            BlockType::F16 | BlockType::BF16 | BlockType::F32 => cols.is_multiple_of(K_TILE),
            BlockType::Q5_0 | BlockType::Q5_1 => false,
            _ => true,
        }
    }

    /// The group of a run of a row, and which run it is there.
    fn group<R: Run>(&self, row: usize, run: usize) -> (&'a [u8], usize) {
        (&self.data[row * self.stride + run / R::RUNS * R::BYTES..][..R::BYTES], run % R::RUNS)
    }
}

/// A strip of 32 outputs' part of a sum on its way into tiles, two rows of the weight at a time, beside other sums or alone.
///
/// Where the sum runs along the weight's rows the tiles are of rows, and a run is a row of one. Where it runs over them, tiles are of columns, and runs of two rows
/// are a row of two tiles.
pub(super) trait Filling: Beside + Copy {
    /// All that is left.
    ///
    /// # Safety
    /// As [`Beside::step`].
    unsafe fn end(self);
}

/// Nothing to fill.
#[derive(Clone, Copy)]
pub(super) struct Nothing;

impl Beside for Nothing {
    #[inline(always)]
    unsafe fn step(&mut self) {}
}

impl Filling for Nothing {
    unsafe fn end(self) {}
}

/// Which part of a weight becomes tiles, and where they go.
pub(super) struct Strip<'a> {
    /// Outputs, and elements of the sum.
    pub js: Range<usize>,
    pub ks: Range<usize>,
    pub place: Place,
    pub to: &'a mut [f32],
    /// How many pairs of rows are done beside a step.
    pub each: usize,
}

/// A pair of runs to be done: where the first row's group begins, how far the second one's is, and where the runs go.
#[derive(Clone, Copy)]
struct Pair {
    at: *const u8,
    stride: usize,
    to: *mut f32,
}

impl Pair {
    /// # Safety
    /// Both groups are inside a weight.
    #[inline(always)]
    unsafe fn groups<'a, R: Run>(self) -> [&'a [u8]; 2] {
        // SAFETY: the caller's promise.
        [self.at, self.at.wrapping_add(self.stride)].map(|at| unsafe { std::slice::from_raw_parts(at, R::BYTES) })
    }

    /// Asks for run `run` of the groups that lie `by` bytes behind these.
    #[inline(always)]
    fn fetch<R: Run>(self, run: usize, by: usize) {
        let bytes = R::BYTES / R::RUNS;
        let first = self.at.wrapping_add(by + run * bytes);
        for at in [first, first.wrapping_add(self.stride)] {
            fetch::line(at);
            if bytes > 64 {
                fetch::line(at.wrapping_add(64));
            }
        }
    }

    /// Writes a row of 32 elements, `by` floats behind the first place.
    ///
    /// # Safety
    /// The processor has AVX-512, and there is room.
    #[inline(always)]
    unsafe fn store(self, by: usize, run: __m512i) {
        // SAFETY: the caller's promise.
        unsafe { _mm512_storeu_si512(self.to.wrapping_add(by).cast(), run) };
    }
}

/// A strip of rows: pair after pair, each run by run.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a, R> {
    now: Pair,
    /// Runs that are left, and how many beside a step.
    left: usize,
    each: usize,
    /// The next run, and those of a row that belong to the strip.
    run: usize,
    first: usize,
    end: usize,
    /// The next pair, where its first run's group is, where the strip's tiles begin, and the distance of those of 16 rows.
    pair: usize,
    row: *const u8,
    to: *mut f32,
    apart: usize,
    /// Rows there are; what is left of 32 is zeros.
    count: usize,
    of: PhantomData<(&'a mut [f32], R)>,
}

impl<'a, R: Run> Rows<'a, R> {
    pub fn new(runs: Runs<'a>, strip: Strip<'a>) -> Self {
        let Strip { js, ks, place, to, each } = strip;
        let (first, end) = (ks.start / K_TILE, ks.end / K_TILE);
        assert!(js.len() <= SIDE && place.first + (end - first) <= place.steps && to.len() >= 2 * place.steps * TILE);
        let row = if ks.is_empty() || js.is_empty() {
            std::ptr::null()
        } else {
            // The last group of the last row is inside, and so are all before it.
            runs.group::<R>(js.end - 1, end - 1);
            runs.group::<R>(js.start, first).0.as_ptr()
        };
        let (to, apart) = (to[place.first * TILE..].as_mut_ptr(), place.steps * TILE);
        let (now, left) = (Pair { at: row, stride: runs.stride, to }, js.len() / 2 * (end - first));
        Self { now, left, each, run: first, first, end, pair: 0, row, to, apart, count: js.len(), of: PhantomData }
    }

    /// Where row `row` of the strip has its place in the first tile.
    #[inline(always)]
    fn place(&self, row: usize) -> *mut f32 {
        self.to.wrapping_add(row / 16 * self.apart + row % 16 * 16)
    }

    /// The next pair of runs; there is one.
    ///
    /// # Safety
    /// As [`Beside::step`].
    #[inline(always)]
    unsafe fn one(&mut self) {
        let now = self.now;
        // SAFETY: the groups of a run that is left are inside, by `new`, and the tiles have room for it.
        unsafe {
            let run = self.run % R::RUNS;
            // The next pair's, which is a row's runs away.
            now.fetch::<R>(run, 2 * now.stride);
            let [a, b] = R::two(now.groups::<R>(), run);
            now.store(0, a);
            now.store(16, b);
        }
        self.left -= 1;
        self.run += 1;
        self.now.to = now.to.wrapping_add(TILE);
        if self.run.is_multiple_of(R::RUNS) {
            self.now.at = now.at.wrapping_add(R::BYTES);
        }
        if self.run == self.end {
            self.pair += 1;
            self.run = self.first;
            self.row = self.row.wrapping_add(2 * now.stride);
            self.now = Pair { at: self.row, to: self.place(2 * self.pair), ..now };
        }
    }
}

impl<R: Run> Beside for Rows<'_, R> {
    #[inline(always)]
    unsafe fn step(&mut self) {
        for _ in 0..self.each.min(self.left) {
            // SAFETY: the caller's promise.
            unsafe { self.one() };
        }
    }
}

impl<R: Run> Filling for Rows<'_, R> {
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512bf16,avx2,fma,f16c")]
    unsafe fn end(mut self) {
        while self.left > 0 {
            // SAFETY: the caller's promise.
            unsafe { self.one() };
        }
        for row in self.count / 2 * 2..SIDE {
            let mut now = Pair { at: self.row, to: self.place(row), ..self.now };
            for run in self.first..self.end {
                // SAFETY: the last of an odd number of rows is inside, by `new`; the tiles have room.
                unsafe {
                    let elements = if row < self.count {
                        R::alone(std::slice::from_raw_parts(now.at, R::BYTES), run % R::RUNS)
                    } else {
                        _mm512_setzero_si512()
                    };
                    now.store(0, elements);
                }
                now.to = now.to.wrapping_add(TILE);
                if (run + 1).is_multiple_of(R::RUNS) {
                    now.at = now.at.wrapping_add(R::BYTES);
                }
            }
        }
    }
}

/// A strip of columns: a run of each row, pair of rows after pair.
#[derive(Clone, Copy)]
pub(super) struct Cols<'a, R> {
    now: Pair,
    /// Pairs that are left, and how many beside a step.
    left: usize,
    each: usize,
    /// Which run of its group it is.
    run: usize,
    /// Pairs done.
    done: usize,
    /// Rows there are; what is left of the last tile is zeros.
    count: usize,
    of: PhantomData<(&'a mut [f32], R)>,
}

impl<'a, R: Run> Cols<'a, R> {
    pub fn new(runs: Runs<'a>, strip: Strip<'a>) -> Self {
        let Strip { js, ks, place, to, each } = strip;
        assert!(js.start.is_multiple_of(SIDE) && js.len() == SIDE, "columns {js:?}");
        let steps = ks.len().div_ceil(K_TILE);
        assert!(place.first + steps <= place.steps && to.len() >= 2 * place.steps * TILE);
        let (at, run) = if ks.is_empty() {
            (std::ptr::null(), 0)
        } else {
            // The last row's group is inside, and so are all before it.
            runs.group::<R>(ks.end - 1, js.start / K_TILE);
            let (group, run) = runs.group::<R>(ks.start, js.start / K_TILE);
            (group.as_ptr(), run)
        };
        let to = to[2 * place.first * TILE..].as_mut_ptr();
        let now = Pair { at, stride: runs.stride, to };
        Self { now, left: ks.len() / 2, each, run, done: 0, count: ks.len(), of: PhantomData }
    }

    /// The next pair of rows; there is one. `far` says that nothing of them is near.
    ///
    /// # Safety
    /// As [`Beside::step`].
    #[inline(always)]
    unsafe fn one(&mut self, far: bool) {
        let now = self.now;
        now.fetch::<R>(self.run, if far { ROWS_AHEAD * now.stride } else { BYTES_AHEAD });
        // SAFETY: the groups of a pair that is left are inside, by `new`.
        unsafe {
            let [first, second] = now.groups::<R>();
            self.put(R::in_turn(first, Some(second), self.run));
        }
        self.left -= 1;
        self.now.at = now.at.wrapping_add(2 * now.stride);
    }

    /// Writes a pair.
    ///
    /// # Safety
    /// The processor has AVX-512, and there is room.
    #[inline(always)]
    unsafe fn put(&mut self, [low, high]: [__m512i; 2]) {
        let now = self.now;
        // SAFETY: the caller's promise.
        unsafe {
            now.store(0, low);
            now.store(TILE, high);
        }
        self.done += 1;
        // After 16 pairs comes the other tile, which has been filled too.
        self.now.to = now.to.wrapping_add(if self.done.is_multiple_of(16) { 16 + TILE } else { 16 });
    }
}

impl<R: Run> Beside for Cols<'_, R> {
    #[inline(always)]
    unsafe fn step(&mut self) {
        for _ in 0..self.each.min(self.left) {
            // SAFETY: the caller's promise.
            unsafe { self.one(false) };
        }
    }
}

impl<R: Run> Filling for Cols<'_, R> {
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512bf16,avx2,fma,f16c")]
    unsafe fn end(mut self) {
        while self.left > 0 {
            // SAFETY: the caller's promise.
            unsafe { self.one(true) };
        }
        for pair in self.count / 2..self.count.next_multiple_of(K_TILE) / 2 {
            // SAFETY: the last of an odd number of rows is inside, by `new`; the tiles have room for whole steps.
            unsafe {
                let both = if 2 * pair < self.count {
                    R::in_turn(std::slice::from_raw_parts(self.now.at, R::BYTES), None, self.run)
                } else {
                    [_mm512_setzero_si512(); 2]
                };
                self.put(both);
            }
        }
    }
}
