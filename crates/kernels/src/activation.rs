//! The activations: each as one curve that gives its value and its slope, and the activation of a whole value on its own, forward and
//! backward. Where a gate multiplies it, `gated` uses the same curves.

use crate::math::{normal, sigmoid, tanh};
use crate::per_isa::per_isa;
use crate::rows::Rows;
use crate::{Isa, Pool};

/// An activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// `x sigmoid(x)`.
    Silu,
    /// `0.5 x (1 + tanh(sqrt(2/π) (x + 0.044715 x³)))`.
    GeluTanh,
    /// `x Φ(x) = 0.5 x (1 + erf(x / sqrt 2))`.
    Gelu,
    /// `max(x, 0)`.
    Relu,
    /// `tanh(x)`: of a head, not of a feed-forward.
    Tanh,
}

/// `sqrt(2/π)`.
pub const GELU_SCALE: f32 = 0.797_884_6;
/// The cubic coefficient of the tanh form of GELU.
pub const GELU_CUBIC: f32 = 0.044_715;

/// Elements that one task handles.
const PIECE: usize = 8192;

/// `y = act(x)`, element by element.
pub fn forward(isa: Isa, pool: &Pool, act: Act, x: &[f32], y: &mut [f32]) {
    assert!(x.len() == y.len(), "{} {}", x.len(), y.len());
    let y = Rows::new(y, PIECE);
    pool.run(y.pieces(), &|task, _| {
        let (y, range) = y.piece(task);
        forward_piece(isa, act, &x[range], y);
    });
}

/// `x` becomes `act(x)`.
pub fn in_place(isa: Isa, pool: &Pool, act: Act, x: &mut [f32]) {
    let x = Rows::new(x, PIECE);
    pool.run(x.pieces(), &|task, _| in_place_piece(isa, act, x.piece(task).0));
}

/// `x` becomes `g act'(x)`: its gradient takes its place.
pub fn backward(isa: Isa, pool: &Pool, act: Act, x: &mut [f32], g: &[f32]) {
    assert!(x.len() == g.len(), "{} {}", x.len(), g.len());
    let x = Rows::new(x, PIECE);
    pool.run(x.pieces(), &|task, _| {
        let (x, range) = x.piece(task);
        backward_piece(isa, act, x, &g[range]);
    });
}

per_isa!(fn forward_piece(act: Act, x: &[f32], y: &mut [f32]) = forward_body);
per_isa!(fn in_place_piece(act: Act, x: &mut [f32]) = in_place_body);
per_isa!(fn backward_piece(act: Act, x: &mut [f32], g: &[f32]) = backward_body);

/// Calls `$with` with the curve of `$act` before the other arguments, so that a loop is compiled for each curve.
macro_rules! with_curve {
    ($act:expr, $with:ident($($arg:expr),*)) => {
        match $act {
            $crate::activation::Act::Silu => $with($crate::activation::silu, $($arg),*),
            $crate::activation::Act::GeluTanh => $with($crate::activation::gelu_tanh, $($arg),*),
            $crate::activation::Act::Gelu => $with($crate::activation::gelu, $($arg),*),
            $crate::activation::Act::Relu => $with($crate::activation::relu, $($arg),*),
            $crate::activation::Act::Tanh => $with($crate::activation::hyperbolic, $($arg),*),
        }
    };
}
pub(crate) use with_curve;

#[inline(always)]
fn forward_body(act: Act, x: &[f32], y: &mut [f32]) {
    with_curve!(act, values(x, y));
}

#[inline(always)]
fn values(curve: impl Fn(f32) -> (f32, f32), x: &[f32], y: &mut [f32]) {
    y.iter_mut().zip(x).for_each(|(y, &x)| *y = curve(x).0);
}

#[inline(always)]
fn in_place_body(act: Act, x: &mut [f32]) {
    with_curve!(act, replace(x));
}

#[inline(always)]
fn replace(curve: impl Fn(f32) -> (f32, f32), x: &mut [f32]) {
    x.iter_mut().for_each(|x| *x = curve(*x).0);
}

#[inline(always)]
fn backward_body(act: Act, x: &mut [f32], g: &[f32]) {
    with_curve!(act, gradients(x, g));
}

#[inline(always)]
fn gradients(curve: impl Fn(f32) -> (f32, f32), x: &mut [f32], g: &[f32]) {
    x.iter_mut().zip(g).for_each(|(x, &g)| *x = g * curve(*x).1);
}

#[inline(always)]
pub(crate) fn silu(x: f32) -> (f32, f32) {
    let s = sigmoid(x);
    (x * s, s * x.mul_add(1.0 - s, 1.0))
}

#[inline(always)]
pub(crate) fn gelu_tanh(x: f32) -> (f32, f32) {
    let t = tanh(GELU_SCALE * (GELU_CUBIC * x * x).mul_add(x, x));
    let slope = GELU_SCALE * (3.0 * GELU_CUBIC * x).mul_add(x, 1.0);
    let half = 0.5 * (1.0 + t);
    (x * half, (0.5 * x * (1.0 - t * t)).mul_add(slope, half))
}

#[inline(always)]
pub(crate) fn gelu(x: f32) -> (f32, f32) {
    let (below, density) = normal(x);
    (x * below, x.mul_add(density, below))
}

/// The slope at 0 is 0, as in PyTorch, so that it can be told from the value as well. A NaN stays one.
#[inline(always)]
pub(crate) fn relu(x: f32) -> (f32, f32) {
    (if x < 0.0 { 0.0 } else { x }, if x > 0.0 { 1.0 } else { 0.0 })
}

#[inline(always)]
pub(crate) fn hyperbolic(x: f32) -> (f32, f32) {
    let t = tanh(x);
    (t, t.mul_add(-t, 1.0))
}
