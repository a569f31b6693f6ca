//! Dequantisation at the speed of the products that use it, chosen by instruction set.
//!
//! It gives the bits of [`crate::blocks::dequantize`], the reference, which the tests hold it to, and which runs where nothing
//! faster is written. It does not know what the elements are for.

/// `$body` with a strip `$known`, which is `$src`, compiled for each type of block by itself: a loop over its rows asks for no type inside. What it calls is
/// told by `KNOWN` which type that is, so that nothing is compiled for the others there.
macro_rules! of_known_type {
    ($src:expr, $known:ident => $body:expr) => {
        of_known_type!($src, $known => $body, F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q4_K Q5_K Q6_K)
    };
    ($src:expr, $known:ident => $body:expr, $($ty:ident)*) => {{
        let src: $crate::dequant::Strip = $src;
        match src.first {
            $($crate::dequant::Source::Blocks($crate::BlockType::$ty, bytes) => {
                const KNOWN: u8 = $crate::BlockType::$ty as u8;
                let first = $crate::dequant::Source::Blocks($crate::BlockType::$ty, bytes);
                let $known = $crate::dequant::Strip { first, ..src };
                $body
            })*
            $crate::dequant::Source::Packed(..) => {
                const KNOWN: u8 = $crate::dequant::PACKED;
                let $known = src;
                $body
            }
        }
    }};
}

mod bounds;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod integers;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod layouts;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod packed;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "aarch64")]
use neon as arch;
#[cfg(target_arch = "x86_64")]
use x86 as arch;

#[cfg(target_arch = "aarch64")]
pub(crate) use neon::round;

pub(crate) use bounds::{MOST_RUNS, RUN};

use std::ops::Range;

use crate::blocks::Packed;
use crate::math::fold;
use crate::matmul::int16::{Extent, squares};
use crate::{BlockType, Isa};

/// Code for any type, where others are for a known one.
const ANY: u8 = u8::MAX;
/// Code for elements of packed matrices, and floats that were read from them.
const PACKED: u8 = ANY - 1;

/// Whether code for `known` may meet blocks of a type.
const fn may_be(known: u8, ty: BlockType) -> bool {
    known == ANY || known == ty as u8 || (known == PACKED && matches!(ty, BlockType::F32))
}

/// Where elements come from.
#[derive(Clone, Copy)]
pub enum Source<'a> {
    /// Whole blocks.
    Blocks(BlockType, &'a [u8]),
    /// Elements of a packed matrix, from this one on.
    Packed(&'a Packed<&'a [u8]>, usize),
}

/// Rows of a matrix, or as many elements of each.
#[derive(Clone, Copy)]
pub(crate) struct Strip<'a> {
    /// From the first row's first element to the last one's last, at least.
    pub first: Source<'a>,
    /// From a row to the next: bytes of blocks, elements of a packed matrix.
    pub apart: usize,
    /// How many rows.
    pub rows: usize,
    /// Elements of each, whole blocks.
    pub len: usize,
}

impl<'a> Strip<'a> {
    /// Some of the rows.
    fn rows(self, rows: Range<usize>) -> Self {
        let (first, last) = (self.row(rows.start), rows.len().saturating_sub(1));
        let first = match (self.first, first) {
            (Source::Blocks(ty, src), Source::Blocks(_, row)) => {
                Source::Blocks(ty, &src[rows.start * self.apart..][..last * self.apart + row.len()])
            }
            (_, first) => first,
        };
        Self { first, rows: rows.len(), ..self }
    }

    #[inline(always)]
    fn row(&self, at: usize) -> Source<'a> {
        match self.first {
            Source::Blocks(ty, src) => {
                let bytes = self.len / ty.block_len() * ty.block_bytes();
                Source::Blocks(ty, &src[at * self.apart..][..bytes])
            }
            Source::Packed(packed, first) => Source::Packed(packed, first + at * self.apart),
        }
    }

    fn check(&self) {
        // Every access to a packed matrix is checked where it happens.
        if let Source::Blocks(ty, src) = self.first {
            let bytes = ty.row_bytes(self.len).map(|row| self.rows.saturating_sub(1) * self.apart + row);
            assert_eq!(Some(src.len()), bytes, "{} elements of {} need another number of bytes", self.len, ty.name());
        }
    }
}

/// Writes the elements of the blocks in `src` to `dst`, with the bits of [`crate::blocks::dequantize`].
///
/// # Panics
/// When `dst` is no whole number of blocks or `src` is not exactly as many blocks.
pub fn dequantize_row(isa: Isa, ty: BlockType, src: &[u8], dst: &mut [f32]) {
    dequantize(isa, Source::Blocks(ty, src), dst);
}

/// Writes as many elements of `src` as `dst` has room for, with the bits of [`crate::blocks::dequantize`] and of [`Packed::read`].
///
/// # Panics
/// When blocks are not exactly as many elements, or a packed matrix has fewer.
pub fn dequantize(isa: Isa, src: Source, dst: &mut [f32]) {
    let len = dst.len();
    dequantize_rows(isa, Strip { first: src, apart: 0, rows: 1, len }, dst, len);
}

/// Writes the rows of `src` to `dst`, `apart` from one to the next, with the bits of [`dequantize`]. What lies between is left as it is.
///
/// # Panics
/// When `src` has not so many blocks, or `dst` no room for them.
pub(crate) fn dequantize_rows(isa: Isa, src: Strip, dst: &mut [f32], apart: usize) {
    src.check();
    assert!(src.rows > 0 && (src.rows - 1) * apart + src.len <= dst.len(), "room for {} rows", src.rows);
    match isa {
        _ if let Source::Blocks(BlockType::F32, _) = src.first => {
            for at in 0..src.rows {
                let Source::Blocks(_, row) = src.row(at) else { unreachable!("all rows are of one kind") };
                bytemuck::cast_slice_mut(&mut dst[at * apart..][..src.len]).copy_from_slice(row);
            }
        }
        // SAFETY: an `Isa` above `Scalar` is only made where the processor has its features.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Vnni | Isa::Amx => unsafe { x86::avx512(src, dst, apart) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::Avx2Vnni => unsafe { x86::avx2(src, dst, apart) },
        #[cfg(target_arch = "aarch64")]
        Isa::Neon | Isa::NeonBf16 => neon::f32(src, dst, apart),
        _ => {
            for at in 0..src.rows {
                let dst = &mut dst[at * apart..][..src.len];
                match src.row(at) {
                    Source::Blocks(ty, row) => crate::blocks::dequantize(ty, row, dst),
                    Source::Packed(packed, at) => packed.read(at, dst),
                }
            }
        }
    }
}

/// How large each row of `src` is: by what its blocks say, where they do, and else by its elements, in the lanes of [`dots`].
///
/// # Panics
/// When `src` has another number of rows than `to` has places, or too few elements.
pub(crate) fn extents(isa: Isa, src: Strip, to: &mut [Extent]) {
    src.check();
    assert_eq!(src.rows, to.len(), "room for extents of rows");
    if bounds::bounded(src.first) {
        assert!(src.len <= RUN * MOST_RUNS, "rows of {} in runs", src.len);
        return match isa {
            // SAFETY: an `Isa` above `Scalar` is only made where the processor has its features.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Vnni | Isa::Amx | Isa::Avx2 | Isa::Avx2Vnni => unsafe {
                x86::bounds_of_rows(src, to);
            },
            // SAFETY: any processor has these instructions.
            _ => unsafe { bounds::rows::<bounds::Plain>(src, to) },
        };
    }
    let mut squares = [0.0; 16];
    for (first, to) in (0..).step_by(squares.len()).zip(to.chunks_mut(squares.len())) {
        let squares = &mut squares[..to.len()];
        squares_of(isa, src.rows(first..first + to.len()), squares);
        to.iter_mut().zip(squares).for_each(|(to, squares)| *to = Extent::measured(*squares));
    }
}

/// The sum of squares of each row.
fn squares_of(isa: Isa, src: Strip, to: &mut [f32]) {
    match isa {
        // SAFETY: an `Isa` above `Scalar` is only made where the processor has its features.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Vnni | Isa::Amx => unsafe { x86::squares_avx512(src, to) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::Avx2Vnni => unsafe { x86::squares_avx2(src, to) },
        #[cfg(target_arch = "aarch64")]
        Isa::Neon | Isa::NeonBf16 => neon::squares(src, to),
        _ => {
            for (at, to) in to.iter_mut().enumerate() {
                let mut row = [0.0; RUN * MOST_RUNS];
                dequantize(isa, src.row(at), &mut row[..src.len]);
                *to = squares(&row[..src.len]);
            }
        }
    }
}

/// Whether the blocks of `src` say how large their elements can be.
pub(crate) fn bounded(src: &Strip) -> bool {
    bounds::bounded(src.first)
}

/// Adds to how large columns are what the blocks of each row say, in ascending order, for each [`RUN`] of columns.
///
/// # Panics
/// When `to` has not as many places as rows have runs, 8 at most, blocks say nothing, or there are too few elements.
pub(crate) fn add_bounds(isa: Isa, src: Strip, to: &mut [Extent]) {
    src.check();
    assert!(src.len == RUN * to.len() && to.len() <= MOST_RUNS, "room for extents of columns");
    assert!(bounded(&src), "blocks that bound their elements");
    match isa {
        // SAFETY: as in `squares_of`.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Vnni | Isa::Amx | Isa::Avx2 | Isa::Avx2Vnni => unsafe {
            x86::bounds_of_columns(src, to);
        },
        // SAFETY: any processor has these instructions.
        _ => unsafe { bounds::add_columns::<bounds::Plain>(src, to) },
    }
}

/// Adds the squares of each column of `src` to its place: one chain over ascending rows. As for [`to_integers`], there is no scalar one.
///
/// # Panics
/// When `to` has another length than the rows, or `src` too few elements.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) fn add_squares(isa: Isa, src: Strip, to: &mut [f32]) {
    src.check();
    assert_eq!(src.len, to.len(), "room for sums of columns");
    match isa {
        // SAFETY: as in `squares_of`.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Vnni | Isa::Amx => unsafe { x86::add_squares_avx512(src, to) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::Avx2Vnni => unsafe { x86::add_squares_avx2(src, to) },
        #[cfg(target_arch = "aarch64")]
        Isa::Neon | Isa::NeonBf16 => neon::add_squares(src, to),
        _ => unreachable!("{} has no vectors", isa.name()),
    }
}

/// What elements are multiplied with to become integers.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[derive(Clone, Copy)]
pub(crate) enum Inverses<'a> {
    /// By row.
    OfRows(&'a [f32]),
    /// By [`RUN`] of columns.
    OfRuns(&'a [f32]),
}

/// Writes the rows of `src` as [integers](crate::matmul::int16), `apart` from one to the next.
///
/// # Panics
/// When there are not as many inverses as rows, or runs of blocks, no room for all, or too few elements.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) fn to_integers(isa: Isa, src: Strip, inverses: Inverses, to: &mut [i16], apart: usize) {
    src.check();
    match inverses {
        Inverses::OfRows(inverses) => assert_eq!(src.rows, inverses.len(), "an inverse for each row"),
        Inverses::OfRuns(inverses) => {
            assert!(src.len == RUN * inverses.len() && bounded(&src), "an inverse for each run")
        }
    }
    assert!(src.rows > 0 && (src.rows - 1) * apart + src.len <= to.len(), "room for {} rows", src.rows);
    match isa {
        // SAFETY: as in `squares_of`.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Vnni | Isa::Amx => unsafe { x86::integers_avx512(src, inverses, to, apart) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::Avx2Vnni => unsafe { x86::integers_avx2(src, inverses, to, apart) },
        #[cfg(target_arch = "aarch64")]
        Isa::Neon | Isa::NeonBf16 => neon::integers(src, inverses, to, apart),
        _ => unreachable!("{} has no vectors", isa.name()),
    }
}

/// Lanes of [`dots`].
pub(crate) const LANES: usize = 64;

/// `out[i]`: the sum of the products of row `i` of `src`, with as many elements as `x`, and `x`. It runs in 64 lanes (`k mod 64`), each a chain of fused
/// multiply-adds, folded as a tree: the same bits on every instruction set. Elements go from blocks to registers and nowhere else.
///
/// # Panics
/// When `src` has another number of elements.
pub(crate) fn dots(isa: Isa, src: Source, x: &[f32], out: &mut [f32]) {
    src.check(out.len() * x.len());
    match isa {
        // SAFETY: an `Isa` above `Scalar` is only made where the processor has its features.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Vnni | Isa::Amx => unsafe { x86::dots_avx512(src, x, out) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::Avx2Vnni => unsafe { x86::dots_avx2(src, x, out) },
        #[cfg(target_arch = "aarch64")]
        Isa::Neon | Isa::NeonBf16 => neon::dots(src, x, out),
        _ => plain_dots(src, x, out),
    }
}

/// [`dots`] by the reference, some whole blocks of any type at a time.
fn plain_dots(src: Source, x: &[f32], out: &mut [f32]) {
    let mut piece = [0.0; 1024];
    for (row, out) in out.iter_mut().enumerate() {
        let mut sums = [0.0; LANES];
        for (i, part) in x.chunks(piece.len()).enumerate() {
            let at = row * x.len() + i * piece.len();
            let piece = &mut piece[..part.len()];
            dequantize(Isa::Scalar, src.part(at, piece.len()), piece);
            for (k, (w, x)) in piece.iter().zip(part).enumerate() {
                sums[k % LANES] = w.mul_add(*x, sums[k % LANES]);
            }
        }
        *out = fold(sums);
    }
}

/// [`dequantize`] with each element rounded to bf16, to nearest, ties to even (and subnormals to zero on x86), as bits.
///
/// # Safety
/// The processor has what [`Isa::Amx`] or [`Isa::NeonBf16`] stands for.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) unsafe fn dequantize_bf16(src: Source, dst: &mut [u16]) {
    src.check(dst.len());
    // SAFETY: the caller's promise.
    unsafe { arch::bf16(src, dst) }
}

impl<'a> Source<'a> {
    /// Elements `at..at + len`, which begin and end at block borders.
    #[inline(always)]
    fn part(self, at: usize, len: usize) -> Source<'a> {
        match self {
            Source::Blocks(ty, src) => {
                let (of, bytes) = (ty.block_len(), ty.block_bytes());
                Source::Blocks(ty, &src[at / of * bytes..(at + len) / of * bytes])
            }
            Source::Packed(packed, first) => Source::Packed(packed, first + at),
        }
    }

    fn check(&self, len: usize) {
        // Every access to a packed matrix is checked where it happens.
        if let Source::Blocks(ty, src) = self {
            let bytes = ty.row_bytes(len);
            assert_eq!(Some(src.len()), bytes, "{len} elements of {} need another number of bytes", ty.name());
        }
    }
}
