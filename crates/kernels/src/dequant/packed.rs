//! Matrices that bitsandbytes or MLX packed, taken apart into runs of 32 integers that share a scale. With 4 bits an integer is an index into the
//! 16 values that there can be in its run; what is packed otherwise, or begins or ends inside such a run, goes through the reference.

use super::arch::{Bytes, bits, bytes, zip};
use super::layouts::Sixteen;
use crate::blocks::{Meaning, Packed, rounded_to};

/// Elements that are looked up at once.
const RUN: usize = 32;

/// Writes the elements from `at` on.
///
/// # Safety
/// The processor has `S`'s instructions and those of `arch`.
#[inline(always)]
pub(super) unsafe fn elements<S: Sixteen>(packed: &Packed<&[u8]>, at: usize, dst: &mut [S::Out]) {
    let quick = packed.bits == 4 && packed.run.is_multiple_of(RUN) && at.is_multiple_of(RUN);
    if !quick {
        // SAFETY: the caller's promise.
        return unsafe { plainly::<S>(packed, at, dst) };
    }
    let table = match packed.meaning {
        Meaning::Table { table, .. } => std::array::from_fn(|q| table.at(q)),
        Meaning::Affine { .. } => [0.0; 16],
    };
    let (mut at, mut run, mut rest) = (at, at / packed.run, dst);
    while !rest.is_empty() {
        let values = of_run(packed, run, &table);
        run += 1;
        let (of_run, after) = rest.split_at_mut(rest.len().min(run * packed.run - at));
        rest = after;
        let (whole, part) = of_run.as_chunks_mut::<RUN>();
        for dst in whole {
            let integers = bytes(packed.integers, at / 2);
            let (low, high) = (bits::<0>(integers, 15), bits::<4>(integers, 15));
            let q: [Bytes; 2] = match packed.meaning {
                Meaning::Affine { .. } => zip(low, high),
                Meaning::Table { .. } => zip(high, low),
            };
            // SAFETY: there are 32 places; the rest is the caller's promise.
            unsafe { S::lookup(q, &values, dst.as_mut_ptr()) };
            at += RUN;
        }
        // SAFETY: the caller's promise.
        unsafe { plainly::<S>(packed, at, part) };
    }
}

/// [`elements`] by the reference.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn plainly<S: Sixteen>(packed: &Packed<&[u8]>, at: usize, dst: &mut [S::Out]) {
    for (at, dst) in (at..).step_by(RUN).zip(dst.chunks_mut(RUN)) {
        let (mut floats, mut out) = ([0.0; RUN], [S::Out::default(); RUN]);
        packed.read(at, &mut floats[..dst.len()]);
        // SAFETY: both have twice 16 places; the rest is the caller's promise.
        unsafe {
            S::singles(floats.as_ptr().cast(), out.as_mut_ptr());
            S::singles(floats[16..].as_ptr().cast(), out[16..].as_mut_ptr());
        }
        dst.copy_from_slice(&out[..dst.len()]);
    }
}

/// The sixteen values that an element of a run can have.
#[inline(always)]
fn of_run(packed: &Packed<&[u8]>, run: usize, table: &[f32; 16]) -> [f32; 16] {
    match &packed.meaning {
        Meaning::Affine { scales, biases } => {
            let (scale, bias) = (scales.at(run), biases.at(run));
            std::array::from_fn(|q| scale * q as f32 + bias)
        }
        Meaning::Table { scales, rounded, .. } => {
            let scale = scales.at(run);
            table.map(|x| rounded_to(x * scale, *rounded))
        }
    }
}
