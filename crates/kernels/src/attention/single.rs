//! Attention of one query, as in generation: nothing is shared between rows, so tiles would be mostly padding.

use super::TILE;
use super::body::Task;
use crate::math::{dot, exp};
use crate::per_isa::per_isa;
use crate::rows::Rows;

per_isa!(pub(super) fn forward(task: Task, read: [&[f32]; 3], out: &Rows<'_>, lse: &Rows<'_>) = body);

#[inline(always)]
fn body(task: Task, [q, k, v]: [&[f32]; 3], out: &Rows, lse: &Rows) {
    let (segment, heads, d) = (task.segment, task.heads, task.heads.d);
    let (at, kv_head) = (task.q_at(0, task.head), task.kv_head());
    let q = &q[at..at + d];
    // SAFETY: (row, head) belongs to this task alone.
    let (out, lse) = unsafe {
        let at_lse = task.lse_at(0, task.head);
        (out.range(at..at + d), lse.range(at_lse..at_lse + 1))
    };
    let (mut top, mut total) = (f32::NEG_INFINITY, 0.0_f32);
    out.fill(0.0);
    let seen = segment.seen(0, heads.window);
    for first in (seen.start..seen.end).step_by(TILE) {
        let keys = first..seen.end.min(first + TILE);
        let mut scores = [f32::NEG_INFINITY; TILE];
        let mut highest = top;
        for (score, key) in scores.iter_mut().zip(keys.clone()) {
            let at = task.kv_at(key, kv_head);
            *score = dot(q, &k[at..at + d]) * heads.scale;
            highest = highest.max(*score);
        }
        let shrink = exp(top - highest);
        for x in out.iter_mut() {
            *x *= shrink;
        }
        total *= shrink;
        for score in &mut scores {
            *score = exp(*score - highest);
        }
        for (p, key) in scores.into_iter().zip(keys) {
            let at = task.kv_at(key, kv_head);
            total += p;
            for (x, v) in out.iter_mut().zip(&v[at..at + d]) {
                *x = p.mul_add(*v, *x);
            }
        }
        top = highest;
    }
    for x in out.iter_mut() {
        *x /= total;
    }
    lse[0] = top + total.ln();
}
