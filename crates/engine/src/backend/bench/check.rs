//! What a kernel must show before it is timed: the numbers of its reference, on a few rows. Exact to the bit where kernels promise that,
//! and within what rounding to bf16 allows where matrix inputs are rounded.

use pocketune_kernels::attention::{Heads, Segment};
use pocketune_kernels::matmul::{Ctx, Precision, Start, Weight, nn, nt, tn};
use pocketune_kernels::{Isa, Pool, norm as norms, reference};

use super::RANK;
use crate::error::{Error, Result};
use crate::plan::Machine;

/// Rows that products are checked with: a prime, so that no tile is full.
const ROWS: usize = 5;
/// Tokens that attention is checked with: past a tile.
pub(super) const TOKENS: usize = 67;

/// Fails unless the numbers agree within `tolerance` of the largest.
fn close(what: &str, isa: Isa, got: &[f32], wanted: &[f32], tolerance: f32) -> Result<()> {
    let largest = wanted.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
    // NaN agrees with nothing.
    let agrees = |got: f32, wanted: f32| (got - wanted).abs() <= tolerance * largest;
    match got.iter().zip(wanted).find(|(got, wanted)| !agrees(**got, **wanted)) {
        None => Ok(()),
        Some((got, wanted)) => Err(Error::System(format!(
            "{what} on {} gives {got} where the reference has {wanted}; nothing is timed",
            isa.name()
        ))),
    }
}

/// What a sum in another order, or of inputs rounded to bf16, may differ by.
fn tolerance(precision: Precision) -> f32 {
    match precision {
        Precision::F32 => 1e-4,
        Precision::Bf16 | Precision::Int16 => 2e-2,
    }
}

/// A product in the direction that `what` names against the scalar one.
pub(super) fn product(ctx: &mut Ctx, what: &str, weight: Weight, values: &[f32]) -> Result<()> {
    let forward = what == "x Wᵀ";
    let (from, to) = if forward { (weight.cols, weight.rows) } else { (weight.rows, weight.cols) };
    let run = |ctx: &mut Ctx| {
        let (x, mut y) = (&values[..ROWS * from], vec![f32::NAN; ROWS * to]);
        if forward {
            nt(ctx, weight, x, ROWS, &mut y, Start::Zero, None);
        } else {
            nn(ctx, weight, x, ROWS, &mut y, Start::Zero, None);
        }
        y
    };
    let mut scalar = Ctx { pool: ctx.pool, isa: Isa::Scalar, precision: ctx.precision, scratch: &mut [] };
    let wanted = run(&mut scalar);
    let got = run(ctx);
    let exact = if ctx.precision.same_everywhere() { 0.0 } else { 1e-3 };
    close(&format!("{what} in {}", weight.ty.name()), ctx.isa, &got, &wanted, exact)
}

/// The gradient of an adapter's factor against the scalar one.
pub(super) fn gradient(ctx: &mut Ctx, x: &[f32], h: &[f32]) -> Result<()> {
    let cols = super::COLS;
    let run = |ctx: &mut Ctx| {
        let mut c = vec![f32::NAN; RANK * cols];
        tn(ctx, &h[..ROWS * RANK], &x[..ROWS * cols], ROWS, RANK, cols, &mut c, Start::Zero);
        c
    };
    let mut scalar = Ctx { pool: ctx.pool, isa: Isa::Scalar, precision: ctx.precision, scratch: &mut [] };
    let wanted = run(&mut scalar);
    let exact = if ctx.precision.same_everywhere() { 0.0 } else { 1e-3 };
    let got = run(ctx);
    close("gᵀ x", ctx.isa, &got, &wanted, exact)
}

/// Dequantisation against the exact one.
pub(super) fn dequantise(isa: Isa, weight: Weight) -> Result<()> {
    let (mut got, mut wanted) = (vec![f32::NAN; weight.cols], vec![0.0; weight.cols]);
    for row in 0..ROWS {
        weight.read(isa, row, 0..weight.cols, &mut got);
        weight.read(Isa::Scalar, row, 0..weight.cols, &mut wanted);
        close(&format!("dequantising {}", weight.ty.name()), isa, &got, &wanted, 0.0)?;
    }
    Ok(())
}

/// What attention read and made.
pub(super) struct Attended<'a> {
    pub q: &'a [f32],
    pub k: &'a [f32],
    pub v: &'a [f32],
    pub go: &'a [f32],
    pub out: &'a [f32],
    pub gq: &'a [f32],
    pub gk: &'a [f32],
    pub gv: &'a [f32],
}

impl Attended<'_> {
    /// Forward and backward against plain loops.
    pub(super) fn check(&self, heads: Heads, segments: &[Segment], machine: Machine) -> Result<()> {
        let &Attended { q, k, v, go, .. } = self;
        let (out, lse) = reference::attention(q, k, v, heads, segments);
        let (gq, gk, gv) = reference::attention_backward(q, k, v, &out, &lse, go, heads, segments);
        let tolerance = tolerance(machine.precision);
        close("attention", machine.isa, self.out, &out, tolerance)?;
        for (what, got, wanted) in [("q", self.gq, &gq), ("k", self.gk, &gk), ("v", self.gv, &gv)] {
            close(&format!("attention's gradient of {what}"), machine.isa, got, wanted, tolerance)?;
        }
        Ok(())
    }
}

/// The norm against plain loops.
pub(super) fn norm(machine: Machine, pool: &Pool, x: &[f32], weight: &[f32]) -> Result<()> {
    let mut y = vec![f32::NAN; x.len()];
    norms::forward(machine.isa, pool, x, weight, 1e-5, &mut y);
    close("the norm", machine.isa, &y, &reference::norm(x, weight, 1e-5), 1e-5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_number_and_one_that_is_none_are_refused_with_both_values() {
        let check = |got: &[f32], tolerance| close("x", Isa::Scalar, got, &[1.0, -2.0], tolerance);
        assert!(check(&[1.0, -2.0], 0.0).is_ok());
        assert!(check(&[1.001, -2.0], 1e-3).is_ok());
        let fault = check(&[1.0, -2.5], 1e-3).unwrap_err().to_string();
        assert!(fault.contains("-2.5") && fault.contains("-2;"), "{fault}");
        assert!(check(&[f32::NAN, -2.0], 1e-3).is_err());
    }
}
