//! Rotations of values in bf16 on processors with AVX-512 and BF16, 32 at a time.

use std::arch::x86_64::*;

use half::bf16;

use super::{Pairs, Rotation};
use crate::avx512::{Both, floats, load, store};
use crate::fetch;

/// [`super::rotate`] of some rows.
///
/// # Safety
/// The processor has AVX-512 with BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(super) unsafe fn rotate(x: &mut [bf16], width: usize, rotation: Rotation, positions: &[u32]) {
    let (d, one) = (rotation.d, _mm512_set1_ps(1.0));
    let sign = if rotation.inverse { _mm512_set1_ps(-1.0) } else { one };
    for (row, &position) in x.chunks_exact_mut(width).zip(positions) {
        let (cos, sin) = rotation.table[position as usize * d..][..d].split_at(d / 2);
        fetch::behind(row, width);
        // The angles of some elements, for all heads.
        match rotation.pairs {
            Pairs::Halves => {
                for (at, (cos, sin)) in (0..).step_by(32).zip(cos.chunks(32).zip(sin.chunks(32))) {
                    let (len, cos, sin) = (cos.len(), apart(cos, one), apart(sin, sign));
                    for head in row.chunks_exact_mut(d) {
                        let (first, second) = head.split_at_mut(d / 2);
                        let (first, second) = (&mut first[at..at + len], &mut second[at..at + len]);
                        let (mut a, mut b) = (load(first), load(second));
                        for half in 0..2 {
                            (a[half], b[half]) = turn(a[half], b[half], cos[half], sin[half]);
                        }
                        store(a, first);
                        store(b, second);
                    }
                }
            }
            Pairs::Interleaved => {
                for (at, (cos, sin)) in (0..).step_by(32).zip(cos.chunks(16).zip(sin.chunks(16))) {
                    let (len, cos, sin) = (2 * cos.len(), floats(cos), _mm512_mul_ps(floats(sin), sign));
                    for head in row.chunks_exact_mut(d) {
                        let pairs = &mut head[at..at + len];
                        let [a, b] = load(pairs);
                        let (a, b) = turn(a, b, cos, sin);
                        store([a, b], pairs);
                    }
                }
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn turn(a: __m512, b: __m512, cos: __m512, sin: __m512) -> (__m512, __m512) {
    let x = _mm512_sub_ps(_mm512_mul_ps(a, cos), _mm512_mul_ps(b, sin));
    (x, _mm512_add_ps(_mm512_mul_ps(a, sin), _mm512_mul_ps(b, cos)))
}

/// Up to 32 floats times a factor: those at even places, and those at odd ones.
#[inline]
#[target_feature(enable = "avx512f")]
fn apart(from: &[f32], factor: __m512) -> Both {
    let (low, high) = from.split_at(from.len().min(16));
    let (low, high) = (_mm512_mul_ps(floats(low), factor), _mm512_mul_ps(floats(high), factor));
    let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    let odd = _mm512_or_si512(even, _mm512_set1_epi32(1));
    [_mm512_permutex2var_ps(low, even, high), _mm512_permutex2var_ps(low, odd, high)]
}
