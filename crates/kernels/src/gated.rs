//! The gated activation of a feed-forward block, `act(gate) * up`, forward and backward in one pass over memory.

use crate::math::{sigmoid, tanh};
use crate::per_isa::per_isa;
use crate::rows::Rows;
use crate::{Isa, Pool};

/// The activation applied to the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// `x sigmoid(x)`.
    Silu,
    /// `0.5 x (1 + tanh(sqrt(2/π) (x + 0.044715 x³)))`.
    GeluTanh,
}

/// `sqrt(2/π)`.
pub const GELU_SCALE: f32 = 0.797_884_6;
/// The cubic coefficient of the tanh form of GELU.
pub const GELU_CUBIC: f32 = 0.044_715;

/// Elements that one task handles.
const PIECE: usize = 8192;

/// `out = act(gate) up`, element by element.
pub fn forward(isa: Isa, pool: &Pool, act: Act, gate: &[f32], up: &[f32], out: &mut [f32]) {
    assert!(gate.len() == out.len() && up.len() == out.len(), "{} {} {}", gate.len(), up.len(), out.len());
    let out = Rows::new(out, PIECE);
    pool.run(out.pieces(), &|task, _| {
        let (out, range) = out.piece(task);
        forward_piece(isa, act, &gate[range.clone()], &up[range], out);
    });
}

/// `gate` becomes `g up act'(gate)` and `up` becomes `g act(gate)`: their gradients take their place.
pub fn backward(isa: Isa, pool: &Pool, act: Act, gate: &mut [f32], up: &mut [f32], g: &[f32]) {
    assert!(gate.len() == g.len() && up.len() == g.len(), "{} {} {}", gate.len(), up.len(), g.len());
    let (gate, up) = (Rows::new(gate, PIECE), Rows::new(up, PIECE));
    pool.run(gate.pieces(), &|task, _| {
        let ((gate, range), (up, _)) = (gate.piece(task), up.piece(task));
        backward_piece(isa, act, gate, up, &g[range]);
    });
}

per_isa!(fn forward_piece(act: Act, gate: &[f32], up: &[f32], out: &mut [f32]) = forward_body);
per_isa!(fn backward_piece(act: Act, gate: &mut [f32], up: &mut [f32], g: &[f32]) = backward_body);

#[inline(always)]
fn forward_body(act: Act, gate: &[f32], up: &[f32], out: &mut [f32]) {
    match act {
        Act::Silu => out.iter_mut().zip(gate).zip(up).for_each(|((out, &x), &up)| *out = x * sigmoid(x) * up),
        Act::GeluTanh => out.iter_mut().zip(gate).zip(up).for_each(|((out, &x), &up)| *out = gelu(x).0 * up),
    }
}

#[inline(always)]
fn backward_body(act: Act, gate: &mut [f32], up: &mut [f32], g: &[f32]) {
    match act {
        Act::Silu => gate.iter_mut().zip(up).zip(g).for_each(|((gate, up), &g)| {
            let (x, s) = (*gate, sigmoid(*gate));
            *gate = g * *up * (s * x.mul_add(1.0 - s, 1.0));
            *up = g * (x * s);
        }),
        Act::GeluTanh => gate.iter_mut().zip(up).zip(g).for_each(|((gate, up), &g)| {
            let (value, slope) = gelu(*gate);
            *gate = g * *up * slope;
            *up = g * value;
        }),
    }
}

/// The tanh form of GELU and its derivative.
#[inline(always)]
fn gelu(x: f32) -> (f32, f32) {
    let t = tanh(GELU_SCALE * (GELU_CUBIC * x * x).mul_add(x, x));
    let slope = GELU_SCALE * (3.0 * GELU_CUBIC * x).mul_add(x, 1.0);
    let half = 0.5 * (1.0 + t);
    (x * half, (0.5 * x * (1.0 - t * t)).mul_add(slope, half))
}
