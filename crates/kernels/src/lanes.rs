//! Vectors of floats, one type for each instruction set, so that a tile of sums is written once over all of them.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::F32x8;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::F32x16;
#[cfg(target_arch = "aarch64")]
pub(crate) use neon::F32x4;

/// A vector of floats and what tiles of sums need of it.
///
/// # Safety
/// All functions need the instruction set that the type stands for; pointers need room for the floats that are read or written,
/// and no alignment.
pub(crate) trait Lanes {
    type V: Copy;
    const LANES: usize;
    unsafe fn zero() -> Self::V;
    unsafe fn splat(x: *const f32) -> Self::V;
    unsafe fn load(from: *const f32) -> Self::V;
    /// The first `count` floats, zeros after them.
    unsafe fn load_part(from: *const f32, count: usize) -> Self::V;
    /// `a b + c`, rounded once.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    unsafe fn store(to: *mut f32, x: Self::V);
    /// Writes the first `count` floats only.
    unsafe fn store_part(to: *mut f32, x: Self::V, count: usize);
    /// [`Lanes::load_part`] of any number of floats, a vector at most.
    #[inline(always)]
    unsafe fn load_up_to(from: *const f32, count: usize) -> Self::V {
        // SAFETY: the trait's contract.
        unsafe { if count >= Self::LANES { Self::load(from) } else { Self::load_part(from, count) } }
    }
    /// [`Lanes::store_part`] of any number of floats, a vector at most.
    #[inline(always)]
    unsafe fn store_up_to(to: *mut f32, x: Self::V, count: usize) {
        // SAFETY: the trait's contract.
        unsafe { if count >= Self::LANES { Self::store(to, x) } else { Self::store_part(to, x, count) } }
    }
    /// `to[k][r] = from[r][k]` for `rows` rows, a vector of them at most, and `len` columns. Nothing else is read or written.
    #[inline(always)]
    unsafe fn transpose(from: *const f32, from_row: usize, rows: usize, to: *mut f32, to_row: usize, len: usize) {
        for r in 0..rows {
            for k in 0..len {
                // SAFETY: the trait's contract.
                unsafe { *to.add(k * to_row + r) = *from.add(r * from_row + k) };
            }
        }
    }
}

/// Sixteen floats for any processor, which the compiler makes what it can of.
pub(crate) struct Plain;

impl Lanes for Plain {
    type V = [f32; 16];
    const LANES: usize = 16;
    #[inline(always)]
    unsafe fn zero() -> [f32; 16] {
        [0.0; 16]
    }
    #[inline(always)]
    unsafe fn splat(x: *const f32) -> [f32; 16] {
        // SAFETY: the trait's contract.
        [unsafe { *x }; 16]
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> [f32; 16] {
        // SAFETY: the trait's contract.
        unsafe { from.cast::<[f32; 16]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn load_part(from: *const f32, count: usize) -> [f32; 16] {
        let mut all = [0.0; 16];
        // SAFETY: the trait's contract.
        unsafe { std::ptr::copy_nonoverlapping(from, all.as_mut_ptr(), count.min(16)) };
        all
    }
    #[inline(always)]
    unsafe fn fma(a: [f32; 16], b: [f32; 16], c: [f32; 16]) -> [f32; 16] {
        std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, x: [f32; 16]) {
        // SAFETY: the trait's contract.
        unsafe { to.cast::<[f32; 16]>().write_unaligned(x) };
    }
    #[inline(always)]
    unsafe fn store_part(to: *mut f32, x: [f32; 16], count: usize) {
        // SAFETY: the trait's contract.
        unsafe { std::ptr::copy_nonoverlapping(x.as_ptr(), to, count.min(16)) };
    }
}
