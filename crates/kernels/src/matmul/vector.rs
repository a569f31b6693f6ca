//! `W x` for one row of input: generation, where reading the weights is all the time. Threads split the weight's rows.
//!
//! Sums are those of [`dequant::dots`]: the same bits on every instruction set, but not those of [`super::nt`], whose lanes run over outputs. Inputs are never rounded here.

use super::{Ctx, Start, Weight};
use crate::dequant;
use crate::rows::Rows;

/// Rows of a task.
const TASK: usize = 32;

/// `y = start + W x`, with `x: [cols]` and `y: [rows]`, in f32 whatever the context's precision. It takes no scratch memory.
///
/// # Panics
/// When a slice has another length than the shape asks for.
pub fn matvec(ctx: &mut Ctx, w: Weight, x: &[f32], y: &mut [f32], start: Start) {
    assert_eq!(x.len(), w.cols, "length of x");
    assert_eq!(y.len(), w.rows, "length of y");
    if let Start::Bias(bias) = start {
        assert_eq!(bias.len(), w.rows, "length of the bias");
    }
    assert!(ctx.isa.available(), "this processor has no {}", ctx.isa.name());
    let isa = ctx.isa;
    let y = Rows::new(y, TASK);
    ctx.pool.run(y.pieces(), &|task, _| {
        let (y, rows) = y.piece(task);
        let mut sums = [0.0; TASK];
        let sums = &mut sums[..y.len()];
        dequant::dots(isa, w.rows(rows.clone()), x, sums);
        for ((y, row), sum) in y.iter_mut().zip(rows).zip(sums) {
            let first = match start {
                Start::Zero => 0.0,
                Start::Bias(bias) => bias[row],
                Start::Output => *y,
            };
            *y = first + *sum;
        }
    });
}
