//! Dequantisation at the speed of the products that use it, chosen by instruction set.
//!
//! It gives the bits of [`crate::blocks::dequantize`], the reference, which the tests hold it to, and which runs where nothing
//! faster is written. It does not know what the elements are for.

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

use crate::blocks::Packed;
use crate::math::fold;
use crate::{BlockType, Isa};

/// Where elements come from.
#[derive(Clone, Copy)]
pub enum Source<'a> {
    /// Whole blocks.
    Blocks(BlockType, &'a [u8]),
    /// Elements of a packed matrix, from this one on.
    Packed(&'a Packed<&'a [u8]>, usize),
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
    src.check(dst.len());
    match isa {
        _ if let Source::Blocks(BlockType::F32, src) = src => bytemuck::cast_slice_mut(dst).copy_from_slice(src),
        // SAFETY: an `Isa` above `Scalar` is only made where the processor has its features.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Amx => unsafe { x86::avx512(src, dst) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { x86::avx2(src, dst) },
        #[cfg(target_arch = "aarch64")]
        Isa::Neon | Isa::NeonBf16 => neon::f32(src, dst),
        _ => match src {
            Source::Blocks(ty, src) => crate::blocks::dequantize(ty, src, dst),
            Source::Packed(packed, at) => packed.read(at, dst),
        },
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
        Isa::Avx512 | Isa::Amx => unsafe { x86::dots_avx512(src, x, out) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { x86::dots_avx2(src, x, out) },
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
