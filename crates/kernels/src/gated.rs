//! The gated activation of a feed-forward block, `act(gate) * up`, forward and backward in one pass over memory.

use crate::activation::{Act, with_curve};
use crate::levels::Steps;
use crate::per_isa::per_isa;
use crate::rows::Rows;
use crate::{Isa, Pool};

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

/// `gate` becomes `g up act'(gate)` and `up` becomes `g act(gate)`: their gradients take their place. Where there are `steps`, they are the slope.
pub fn backward(isa: Isa, pool: &Pool, act: Act, steps: Option<Steps>, gate: &mut [f32], up: &mut [f32], g: &[f32]) {
    assert!(gate.len() == g.len() && up.len() == g.len(), "{} {} {}", gate.len(), up.len(), g.len());
    let (gate, up) = (Rows::new(gate, PIECE), Rows::new(up, PIECE));
    pool.run(gate.pieces(), &|task, _| {
        let ((gate, range), (up, _)) = (gate.piece(task), up.piece(task));
        backward_piece(isa, act, steps, gate, up, &g[range]);
    });
}

per_isa!(fn forward_piece(act: Act, gate: &[f32], up: &[f32], out: &mut [f32]) = forward_body);
per_isa!(fn backward_piece(act: Act, steps: Option<Steps>, gate: &mut [f32], up: &mut [f32], g: &[f32]) = backward_body);

#[inline(always)]
fn forward_body(act: Act, gate: &[f32], up: &[f32], out: &mut [f32]) {
    with_curve!(act, values(gate, up, out));
}

#[inline(always)]
fn values(curve: impl Fn(f32) -> (f32, f32), gate: &[f32], up: &[f32], out: &mut [f32]) {
    out.iter_mut().zip(gate).zip(up).for_each(|((out, &x), &up)| *out = curve(x).0 * up);
}

#[inline(always)]
fn backward_body(act: Act, steps: Option<Steps>, gate: &mut [f32], up: &mut [f32], g: &[f32]) {
    match steps {
        None => with_curve!(act, gradients(gate, up, g)),
        Some(steps) => with_curve!(act, gradients_by_steps(steps, gate, up, g)),
    }
}

#[inline(always)]
fn gradients_by_steps(curve: impl Fn(f32) -> (f32, f32), steps: Steps, gate: &mut [f32], up: &mut [f32], g: &[f32]) {
    gradients(|x| (curve(x).0, steps.slope(steps.level(x))), gate, up, g);
}

#[inline(always)]
fn gradients(curve: impl Fn(f32) -> (f32, f32), gate: &mut [f32], up: &mut [f32], g: &[f32]) {
    gate.iter_mut().zip(up).zip(g).for_each(|((gate, up), &g)| {
        let (value, slope) = curve(*gate);
        *gate = g * *up * slope;
        *up = g * value;
    });
}
