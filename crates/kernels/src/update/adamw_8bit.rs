//! AdamW whose moments wait as bytes: blocks of 256 numbers, each with the largest of them as f32, and codes of the dynamic map for the
//! shares of it. A block is dequantised, updated and quantised again in one pass; the step itself uses the moments before they are
//! rounded. It is an approximation of AdamW, about 2.03 bytes a number instead of 8; where a byte is not enough, use [`super::adamw`].
//!
//! One departure from bitsandbytes: a second moment above zero is never rounded to zero, because the update divides by its root.

use super::dynamic_map::{SIGNED, UNSIGNED};
use super::{AdamW, PIECE, Step};
use crate::per_isa::per_isa;
use crate::rows::Rows;
use crate::{Isa, Pool};

/// Numbers that share a maximum.
pub const BLOCK: usize = 256;

/// Floats of state for `len` numbers: the maxima of the first moments' blocks, those of the second's, then all first moments as bytes and
/// all second ones. All zeros are the state before the first update.
pub const fn state_len(len: usize) -> usize {
    2 * len.div_ceil(BLOCK) + (2 * len).div_ceil(4)
}

/// The state of a matrix, cut into its parts.
struct State<'a> {
    m_max: &'a mut [f32],
    v_max: &'a mut [f32],
    m: &'a mut [u8],
    v: &'a mut [u8],
}

impl<'a> State<'a> {
    fn new(state: &'a mut [f32], len: usize) -> Self {
        assert_eq!(state.len(), state_len(len), "the state of {len} numbers has another length");
        let blocks = len.div_ceil(BLOCK);
        let (maxima, codes) = state.split_at_mut(2 * blocks);
        let (m_max, v_max) = maxima.split_at_mut(blocks);
        let (m, v) = bytemuck::cast_slice_mut(codes)[..2 * len].split_at_mut(len);
        Self { m_max, v_max, m, v }
    }
}

/// [`super::adamw`] with `state` of [`state_len`] floats instead of the two moments.
pub fn adamw_8bit(isa: Isa, pool: &Pool, rule: AdamW, p: &mut [f32], g: &[f32], state: &mut [f32]) {
    assert!(p.len() == g.len());
    let State { m_max, v_max, m, v } = State::new(state, g.len());
    let (p, m, v) = (Rows::new(p, PIECE), Rows::new(m, PIECE), Rows::new(v, PIECE));
    let (m_max, v_max) = (Rows::new(m_max, PIECE / BLOCK), Rows::new(v_max, PIECE / BLOCK));
    pool.run(p.pieces(), &|task, _| {
        let ((p, range), (m, _), (v, _)) = (p.piece(task), m.piece(task), v.piece(task));
        let ((m_max, _), (v_max, _)) = (m_max.piece(task), v_max.piece(task));
        piece(isa, rule, p, &g[range], State { m_max, v_max, m, v });
    });
}

/// [`adamw_8bit`] of rows of `cols` numbers, each with a state of its own: so some rows of a matrix have their state in one stretch.
pub fn adamw_8bit_rows(isa: Isa, pool: &Pool, rule: AdamW, cols: usize, p: &mut [f32], g: &[f32], state: &mut [f32]) {
    assert!(p.len() == g.len() && state.len() == g.len() / cols * state_len(cols));
    let (p, state) = (Rows::new(p, cols), Rows::new(state, state_len(cols)));
    pool.run(p.pieces(), &|task, _| {
        let ((p, range), (state, _)) = (p.piece(task), state.piece(task));
        piece(isa, rule, p, &g[range], State::new(state, cols));
    });
}

per_isa!(fn piece<'a>(rule: AdamW, p: &mut [f32], g: &[f32], state: State<'a>) = body);

#[inline(always)]
fn body(rule: AdamW, p: &mut [f32], g: &[f32], state: State) {
    let step = Step::new(rule);
    let blocks = p.chunks_mut(BLOCK).zip(g.chunks(BLOCK)).zip(state.m.chunks_mut(BLOCK)).zip(state.v.chunks_mut(BLOCK));
    for ((((p, g), m), v), (m_max, v_max)) in blocks.zip(state.m_max.iter_mut().zip(state.v_max)) {
        block(step, p, g, (m, m_max), (v, v_max));
    }
}

#[inline(always)]
fn block(step: Step, p: &mut [f32], g: &[f32], (m, m_max): (&mut [u8], &mut f32), (v, v_max): (&mut [u8], &mut f32)) {
    let (mut ms, mut vs) = ([0.0_f32; BLOCK], [0.0_f32; BLOCK]);
    for (to, &code) in ms.iter_mut().zip(&*m) {
        *to = SIGNED.value(code) * *m_max;
    }
    for (to, &code) in vs.iter_mut().zip(&*v) {
        *to = UNSIGNED.value(code) * *v_max;
    }
    for (((p, &g), m), v) in p.iter_mut().zip(g).zip(&mut ms).zip(&mut vs) {
        step.take(p, g, m, v);
    }
    (*m_max, *v_max) = (largest(&ms), largest(&vs));
    for (code, &x) in m.iter_mut().zip(&ms) {
        *code = SIGNED.code(x / *m_max);
    }
    for (code, &x) in v.iter_mut().zip(&vs) {
        *code = UNSIGNED.code(x / *v_max).max(u8::from(x > 0.0));
    }
}

/// The largest absolute value, or NaN where there is one: without their sign, floats are ordered as their bits are.
#[inline(always)]
fn largest(x: &[f32; BLOCK]) -> f32 {
    f32::from_bits(x.iter().fold(0, |most: u32, x| most.max(x.to_bits() & 0x7fff_ffff)))
}
