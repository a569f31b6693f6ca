//! Our side: a linear with random weights, quantised as files have them, and its two products.

use std::time::{Duration, Instant};

use pocketune_kernels::blocks::quantize;
use pocketune_kernels::matmul::{Ctx, Precision, Shape, Start, Weight, nn, nn_scratch, nt, nt_scratch};
use pocketune_kernels::philox::Philox;
use pocketune_kernels::{BlockType, Isa, Pool};

use super::Direction;
use crate::failure::{Failure, Result};

/// Rows that are compared with the reference: a prime, so that no tile is full.
const CHECKED: usize = 5;

/// A linear and what its products need.
pub struct Linear<'a> {
    machine: (&'a Pool, Isa, Precision),
    ty: BlockType,
    shape: (usize, usize),
    tokens: usize,
    weight: Vec<u8>,
    /// As long as the longer side asks for.
    values: Vec<f32>,
    out: Vec<f32>,
    scratch: Vec<f32>,
}

impl<'a> Linear<'a> {
    /// A linear of `rows` outputs and `cols` inputs that `tokens` meet, or nothing where a row would be no whole number of blocks.
    pub fn new(
        machine: (&'a Pool, Isa, Precision),
        ty: BlockType,
        (rows, cols): (usize, usize),
        tokens: usize,
    ) -> Option<Self> {
        let bytes = ty.row_bytes(cols)?;
        let floats = random(rows * cols, 1);
        let mut weight = vec![0; rows * bytes];
        quantize(machine.1, ty, &floats, &mut weight);
        let (pool, isa, precision) = machine;
        let shape = Shape { ty, rows, cols, n: tokens.max(CHECKED), rank: 0 };
        let len = nt_scratch(shape, pool.threads(), isa, precision);
        let len = len.max(nn_scratch(shape, pool.threads(), isa, precision));
        let most = shape.n * rows.max(cols);
        let (values, out) = (random(most, 2), vec![0.0; most]);
        Some(Self { machine, ty, shape: (rows, cols), tokens, weight, values, out, scratch: vec![0.0; len] })
    }

    /// # Errors
    /// When some rows do not come out as the reference has them: to the bit, but for the order of sums in bf16.
    pub fn check(&mut self, direction: Direction) -> Result<()> {
        let (_, isa, precision) = self.machine;
        self.product(direction, isa, CHECKED);
        let (rows, cols) = self.shape;
        let (to, sum) = if direction == Direction::Forward { (rows, cols) } else { (cols, rows) };
        let got = self.out[..CHECKED * to].to_vec();
        self.product(direction, Isa::Scalar, CHECKED);
        let allowed = if precision.same_everywhere() { 0.0 } else { 1e-5 * sum as f32 };
        // NaN agrees with nothing.
        let agrees = |got: f32, wanted: f32| (got - wanted).abs() <= allowed;
        match got.iter().zip(&self.out).find(|(got, wanted)| !agrees(**got, **wanted)) {
            None => Ok(()),
            Some((got, wanted)) => Err(Failure::new(format!(
                "{} with {} of {rows}x{cols} on {} gives {got} where the reference has {wanted}; nothing is timed",
                direction.name(),
                self.ty.name(),
                isa.name()
            ))),
        }
    }

    /// Seconds of the shortest product within `each`, one at least.
    pub fn least(&mut self, direction: Direction, each: Duration) -> f64 {
        let (mut least, begin) = (f64::INFINITY, Instant::now());
        loop {
            let start = Instant::now();
            self.product(direction, self.machine.1, self.tokens);
            least = least.min(start.elapsed().as_secs_f64());
            if begin.elapsed() >= each {
                return least.max(1e-9);
            }
        }
    }

    fn product(&mut self, direction: Direction, isa: Isa, tokens: usize) {
        let (pool, _, precision) = self.machine;
        let (rows, cols) = self.shape;
        let weight = Weight::new(self.ty, rows, cols, &self.weight);
        let mut ctx = Ctx { pool, isa, precision, scratch: &mut self.scratch };
        let (wide, narrow) = (tokens * rows, tokens * cols);
        match direction {
            Direction::Forward => {
                nt(&mut ctx, weight, &self.values[..narrow], tokens, &mut self.out[..wide], Start::Zero, None);
            }
            Direction::Backward => {
                nn(&mut ctx, weight, &self.values[..wide], tokens, &mut self.out[..narrow], Start::Zero, None);
            }
        }
    }
}

/// Numbers around zero with a standard deviation of 1 over the square root of 3, the same every time.
fn random(len: usize, stream: u64) -> Vec<f32> {
    let random = Philox::new(7, stream);
    let four = (0..len.div_ceil(4) as u64).flat_map(|at| random.at(at));
    four.take(len).map(|bits| (bits >> 8) as f32 / (1 << 23) as f32 - 1.0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_of_every_type_match_their_reference_before_they_are_timed() {
        let pool = Pool::new(1).unwrap();
        for ty in BlockType::ALL {
            let mut linear = Linear::new((&pool, Isa::best(), Precision::F32), ty, (33, 256), 3).unwrap();
            for direction in [Direction::Forward, Direction::Backward] {
                linear.check(direction).unwrap();
                assert!(linear.least(direction, Duration::ZERO) < 1.0);
            }
        }
        assert!(Linear::new((&pool, Isa::best(), Precision::F32), BlockType::Q4_K, (33, 224), 3).is_none());
    }

    #[test]
    fn a_product_that_differs_from_its_reference_is_not_timed() {
        let pool = Pool::new(1).unwrap();
        let mut linear = Linear::new((&pool, Isa::best(), Precision::F32), BlockType::F32, (8, 32), 3).unwrap();
        linear.values.fill(f32::NAN);
        assert!(linear.check(Direction::Forward).unwrap_err().to_string().contains("nothing is timed"));
    }
}
