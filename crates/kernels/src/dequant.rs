//! Dequantisation at the speed of the products that use it, chosen by instruction set.
//!
//! It gives the bits of [`crate::blocks::dequantize`], the reference, which the tests hold it to, and which runs where nothing
//! faster is written. It does not know what the elements are for.

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod layouts;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "aarch64")]
use neon as arch;
#[cfg(target_arch = "x86_64")]
use x86 as arch;

#[cfg(target_arch = "aarch64")]
pub(crate) use neon::round;

use crate::{BlockType, Isa};

/// Writes the elements of the blocks in `src` to `dst`, with the bits of [`crate::blocks::dequantize`].
///
/// # Panics
/// When `dst` is no whole number of blocks or `src` is not exactly as many blocks.
pub fn dequantize_row(isa: Isa, ty: BlockType, src: &[u8], dst: &mut [f32]) {
    check(ty, src, dst.len());
    match isa {
        _ if ty == BlockType::F32 => bytemuck::cast_slice_mut(dst).copy_from_slice(src),
        // SAFETY: an `Isa` above `Scalar` is only made where the processor has its features.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Amx => unsafe { x86::avx512(ty, src, dst) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { x86::avx2(ty, src, dst) },
        #[cfg(target_arch = "aarch64")]
        Isa::Neon | Isa::NeonBf16 => neon::f32(ty, src, dst),
        _ => crate::blocks::dequantize(ty, src, dst),
    }
}

/// [`dequantize_row`] with each element rounded to bf16, to nearest, ties to even (and subnormals to zero on x86), as bits.
///
/// # Safety
/// The processor has what [`Isa::Amx`] or [`Isa::NeonBf16`] stands for.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) unsafe fn dequantize_row_bf16(ty: BlockType, src: &[u8], dst: &mut [u16]) {
    check(ty, src, dst.len());
    // SAFETY: the caller's promise.
    unsafe { arch::bf16(ty, src, dst) }
}

fn check(ty: BlockType, src: &[u8], len: usize) {
    let bytes = ty.row_bytes(len);
    assert_eq!(Some(src.len()), bytes, "{len} elements of {} need another number of bytes", ty.name());
}
