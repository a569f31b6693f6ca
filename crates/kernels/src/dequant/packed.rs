//! Matrices that bitsandbytes or MLX packed, taken apart into runs of 32 integers that share a scale. With 4 bits an integer is an index into the
//! 16 values that there can be in its run; what is packed otherwise, or begins or ends inside such a run, goes through the reference.

use super::arch::{Bytes, bits, bytes, zip};
use super::layouts::{At, Sink, Sixteen};
use crate::blocks::{Meaning, Packed, rounded_to};

/// Elements that are looked up at once.
const RUN: usize = 32;

/// Gives `len` elements, a multiple of 32, from `at` on to `sink`.
///
/// # Safety
/// The processor has the sink's instructions and those of `arch`, and the sink has places for as many elements.
#[inline(always)]
pub(super) unsafe fn elements<S: Sink>(packed: &Packed<&[u8]>, at: usize, len: usize, sink: &mut S) {
    let quick = packed.bits == 4 && packed.run.is_multiple_of(RUN) && at.is_multiple_of(RUN);
    let table = match packed.meaning {
        Meaning::Table { table, .. } if quick => std::array::from_fn(|q| table.at(q)),
        Meaning::Affine { .. } | Meaning::Table { .. } => [0.0; 16],
    };
    let (mut values, mut of) = ([0.0; 16], usize::MAX);
    // Two runs at once, so that the compiler knows an element's lane in a product.
    for first in (0..len).step_by(2 * RUN) {
        for i in 0..2 {
            let place = At(first, i * RUN);
            if place.number() == len {
                break;
            }
            let at = at + place.number();
            if !quick {
                // SAFETY: the caller's promise.
                unsafe { plainly(packed, at, place, sink) };
                continue;
            }
            if of != at / packed.run {
                of = at / packed.run;
                values = of_run(packed, of, &table);
            }
            let integers = bytes(packed.integers, at / 2);
            let (low, high) = (bits::<0>(integers, 15), bits::<4>(integers, 15));
            let q: [Bytes; 2] = match packed.meaning {
                Meaning::Affine { .. } => zip(low, high),
                Meaning::Table { .. } => zip(high, low),
            };
            // SAFETY: the caller's promise.
            unsafe { sink.lookup(place, q, &values) };
        }
    }
}

/// 32 elements from `at` on by the reference.
///
/// # Safety
/// As [`elements`].
#[inline(always)]
unsafe fn plainly<S: Sink>(packed: &Packed<&[u8]>, at: usize, place: At, sink: &mut S) {
    let mut floats = [0.0_f32; RUN];
    packed.read(at, &mut floats);
    // SAFETY: there are twice 16 floats; the rest is the caller's promise.
    unsafe {
        sink.put(place, S::Sixteen::singles(floats.as_ptr().cast()));
        sink.put(place + 16, S::Sixteen::singles(floats[16..].as_ptr().cast()));
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
