//! Gated activations of values in bf16 on processors with AVX-512 and BF16: 32 at a time, with attention's exponential and a reciprocal by one
//! step of Newton's, within 3e-6 together, since what comes of them is rounded to eight bits. (The general form spends most of its time on these two.)
//!
//! SiLU is `x s(x)` and the GELU by tanh `x s(2 sqrt(2/π) (x + 0.044715 x³))`, with `s(y) = 1 / (1 + e^-y)`.

use std::arch::x86_64::*;

use half::bf16;

use crate::avx512::{exp2, load, store};
use crate::fetch;

/// Elements that are worked on together.
const SPAN: usize = 32;
/// How far ahead of them values are asked for, in elements.
const AHEAD: usize = 1024;
/// `2 sqrt(2/π)`, and that times 0.044715.
const GELU: [f32; 2] = [1.595_769, 0.071_354_814];

/// `act(x) / x`, and the slope of `act`.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn curve<const TANH: bool>(x: __m512) -> (__m512, __m512) {
    let one = _mm512_set1_ps(1.0);
    let (inner, slope) = if TANH {
        let square = _mm512_mul_ps(x, x);
        let [a, b] = GELU.map(|number| _mm512_set1_ps(number));
        let three = _mm512_mul_ps(_mm512_set1_ps(3.0), b);
        (_mm512_mul_ps(x, _mm512_fmadd_ps(square, b, a)), _mm512_fmadd_ps(square, three, a))
    } else {
        (x, one)
    };
    let s = sigmoid(inner);
    // s + x s (1 - s) inner'
    let rest = _mm512_mul_ps(_mm512_mul_ps(x, slope), _mm512_fnmadd_ps(s, s, s));
    (s, _mm512_add_ps(s, rest))
}

/// `1 / (1 + e^-y)`.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn sigmoid(y: __m512) -> __m512 {
    // What is above 125 makes no difference and would be no number; NaN stays.
    let y = _mm512_mul_ps(y, _mm512_set1_ps(-std::f32::consts::LOG2_E));
    let y = _mm512_min_ps(_mm512_set1_ps(125.0), y);
    let d = _mm512_add_ps(exp2(y), _mm512_set1_ps(1.0));
    let near = _mm512_rcp14_ps(d);
    // One step of Newton's: r (2 - d r).
    _mm512_mul_ps(near, _mm512_fnmadd_ps(d, near, _mm512_set1_ps(2.0)))
}

/// `out = act(gate) up`.
///
/// # Safety
/// The processor has AVX-512 with BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
pub(super) unsafe fn forward<const TANH: bool>(gate: &[bf16], up: &[bf16], out: &mut [bf16]) {
    for ((gate, up), out) in gate.chunks(SPAN).zip(up.chunks(SPAN)).zip(out.chunks_mut(SPAN)) {
        fetch::line(gate.as_ptr().wrapping_add(AHEAD).cast());
        fetch::line(up.as_ptr().wrapping_add(AHEAD).cast());
        fetch::line(out.as_ptr().wrapping_add(AHEAD).cast());
        let (x, up) = (load(gate), load(up));
        let mut product = x;
        for ((product, x), up) in product.iter_mut().zip(x).zip(up) {
            *product = _mm512_mul_ps(_mm512_mul_ps(curve::<TANH>(x).0, x), up);
        }
        store(product, out);
    }
}

/// `gate` becomes `g up act'(gate)` and `up` becomes `g act(gate)`.
///
/// # Safety
/// As [`forward`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
pub(super) unsafe fn backward<const TANH: bool>(gate: &mut [bf16], up: &mut [bf16], g: &[bf16]) {
    for ((gate, up), g) in gate.chunks_mut(SPAN).zip(up.chunks_mut(SPAN)).zip(g.chunks(SPAN)) {
        fetch::line(gate.as_ptr().wrapping_add(AHEAD).cast());
        fetch::line(up.as_ptr().wrapping_add(AHEAD).cast());
        fetch::line(g.as_ptr().wrapping_add(AHEAD).cast());
        let (x, y, g) = (load(gate), load(up), load(g));
        let (mut gate_gradient, mut up_gradient) = (x, y);
        for half in 0..2 {
            let (s, slope) = curve::<TANH>(x[half]);
            gate_gradient[half] = _mm512_mul_ps(_mm512_mul_ps(g[half], y[half]), slope);
            up_gradient[half] = _mm512_mul_ps(g[half], _mm512_mul_ps(s, x[half]));
        }
        store(gate_gradient, gate);
        store(up_gradient, up);
    }
}
