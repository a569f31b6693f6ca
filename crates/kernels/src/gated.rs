//! The gated activation of a feed-forward block, `act(gate) * up`, forward and backward in one pass over memory.

#[cfg(target_arch = "x86_64")]
mod halves;

use half::bf16;

use crate::activation::{Act, with_curve};
use crate::levels::Steps;
use crate::per_isa::per_isa;
use crate::rows::Rows;
use crate::{Element, Isa, Pool, Values, ValuesMut};

/// Elements that one task handles.
const PIECE: usize = 8192;

/// `out = act(gate) up`, element by element.
pub fn forward(isa: Isa, pool: &Pool, act: Act, gate: &[f32], up: &[f32], out: &mut [f32]) {
    forward_to(pool, gate, up, out, |gate, up, out| forward_piece(isa, act, gate, up, out));
}

/// [`forward`] with values of either type.
///
/// # Panics
/// When `gate` and `up` are of different types, or floats are to be made of bf16.
pub fn forward_values(isa: Isa, pool: &Pool, act: Act, gate: Values, up: Values, out: ValuesMut) {
    match (gate, up, out) {
        (Values::F32(gate), Values::F32(up), ValuesMut::F32(out)) => forward(isa, pool, act, gate, up, out),
        (Values::F32(gate), Values::F32(up), ValuesMut::Bf16(out)) => {
            forward_to(pool, gate, up, out, |gate, up, out| rounded_piece(isa, act, gate, up, out));
        }
        (Values::Bf16(gate), Values::Bf16(up), ValuesMut::Bf16(out)) => {
            forward_to(pool, gate, up, out, |gate, up, out| match (isa, act) {
                // SAFETY: such an `Isa` is only made where the processor has its features.
                #[cfg(target_arch = "x86_64")]
                (Isa::Amx, Act::Silu) => unsafe { halves::forward::<false>(gate, up, out) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                (Isa::Amx, Act::GeluTanh) => unsafe { halves::forward::<true>(gate, up, out) },
                _ => bf16_piece(isa, act, gate, up, out),
            });
        }
        _ => panic!("gate, up and their product are of types that do not go together"),
    }
}

fn forward_to<T: Element, U: Element>(
    pool: &Pool,
    gate: &[T],
    up: &[T],
    out: &mut [U],
    piece: impl Fn(&[T], &[T], &mut [U]) + Sync,
) {
    assert!(gate.len() == out.len() && up.len() == out.len(), "{} {} {}", gate.len(), up.len(), out.len());
    let out = Rows::new(out, PIECE);
    pool.run(out.pieces(), &|task, _| {
        let (out, range) = out.piece(task);
        piece(&gate[range.clone()], &up[range], out);
    });
}

/// `gate` becomes `g up act'(gate)` and `up` becomes `g act(gate)`: their gradients take their place. Where there are `steps`, they are the slope.
pub fn backward(isa: Isa, pool: &Pool, act: Act, steps: Option<Steps>, gate: &mut [f32], up: &mut [f32], g: &[f32]) {
    backward_to(pool, gate, up, g, |gate, up, g| backward_piece(isa, act, steps, gate, up, g));
}

/// [`backward`] with values of either type, all of the same.
///
/// # Panics
/// When they are not.
pub fn backward_values(
    isa: Isa,
    pool: &Pool,
    act: Act,
    steps: Option<Steps>,
    gate: ValuesMut,
    up: ValuesMut,
    g: Values,
) {
    match (gate, up, g) {
        (ValuesMut::F32(gate), ValuesMut::F32(up), Values::F32(g)) => backward(isa, pool, act, steps, gate, up, g),
        (ValuesMut::Bf16(gate), ValuesMut::Bf16(up), Values::Bf16(g)) => {
            backward_to(pool, gate, up, g, |gate, up, g| match (isa, act, steps) {
                // SAFETY: as in `forward_values`.
                #[cfg(target_arch = "x86_64")]
                (Isa::Amx, Act::Silu, None) => unsafe { halves::backward::<false>(gate, up, g) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                (Isa::Amx, Act::GeluTanh, None) => unsafe { halves::backward::<true>(gate, up, g) },
                _ => backward_bf16_piece(isa, act, steps, gate, up, g),
            });
        }
        _ => panic!("gate, up and the gradient are of different types"),
    }
}

fn backward_to<T: Element>(
    pool: &Pool,
    gate: &mut [T],
    up: &mut [T],
    g: &[T],
    piece: impl Fn(&mut [T], &mut [T], &[T]) + Sync,
) {
    assert!(gate.len() == g.len() && up.len() == g.len(), "{} {} {}", gate.len(), up.len(), g.len());
    let (gate, up) = (Rows::new(gate, PIECE), Rows::new(up, PIECE));
    pool.run(gate.pieces(), &|task, _| {
        let ((gate, range), (up, _)) = (gate.piece(task), up.piece(task));
        piece(gate, up, &g[range]);
    });
}

per_isa!(fn forward_piece(act: Act, gate: &[f32], up: &[f32], out: &mut [f32]) = forward_body);
per_isa!(fn rounded_piece(act: Act, gate: &[f32], up: &[f32], out: &mut [bf16]) = forward_body);
per_isa!(fn bf16_piece(act: Act, gate: &[bf16], up: &[bf16], out: &mut [bf16]) = forward_body);
per_isa!(fn backward_piece(act: Act, steps: Option<Steps>, gate: &mut [f32], up: &mut [f32], g: &[f32]) = backward_body);
per_isa!(fn backward_bf16_piece(act: Act, steps: Option<Steps>, gate: &mut [bf16], up: &mut [bf16], g: &[bf16]) = backward_body);

#[inline(always)]
fn forward_body<T: Element, U: Element>(act: Act, gate: &[T], up: &[T], out: &mut [U]) {
    with_curve!(act, values(gate, up, out));
}

#[inline(always)]
fn values<T: Element, U: Element>(curve: impl Fn(f32) -> (f32, f32), gate: &[T], up: &[T], out: &mut [U]) {
    out.iter_mut().zip(gate).zip(up).for_each(|((out, &x), &up)| *out = U::of(curve(x.get()).0 * up.get()));
}

#[inline(always)]
fn backward_body<T: Element>(act: Act, steps: Option<Steps>, gate: &mut [T], up: &mut [T], g: &[T]) {
    match steps {
        None => with_curve!(act, gradients(gate, up, g)),
        Some(steps) => with_curve!(act, gradients_by_steps(steps, gate, up, g)),
    }
}

#[inline(always)]
fn gradients_by_steps<T: Element>(
    curve: impl Fn(f32) -> (f32, f32),
    steps: Steps,
    gate: &mut [T],
    up: &mut [T],
    g: &[T],
) {
    gradients(|x| (curve(x).0, steps.slope(steps.level(x))), gate, up, g);
}

#[inline(always)]
fn gradients<T: Element>(curve: impl Fn(f32) -> (f32, f32), gate: &mut [T], up: &mut [T], g: &[T]) {
    gate.iter_mut().zip(up).zip(g).for_each(|((gate, up), &g)| {
        let ((value, slope), g) = (curve(gate.get()), g.get());
        *gate = T::of(g * up.get() * slope);
        *up = T::of(g * value);
    });
}
