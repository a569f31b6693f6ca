//! What this machine reaches: every kind of kernel at the sizes of a real model, and the disk of the spill folder. A kernel is timed only
//! after it matched its reference; one that does not is an error, and no figure is given.

mod check;

use std::path::Path;
use std::time::{Duration, Instant};

use pocketune_kernels::attention::{self, Heads, Segment, Window};
use pocketune_kernels::matmul::{Ctx, Shape, Start, Weight, nn, nn_scratch, nt, nt_scratch, tn, tn_scratch};
use pocketune_kernels::{BlockType, Pool, norm};

use super::rates::best;
use crate::error::{Error, Result};
use crate::plan::{ATTENTION, ATTENTION_BACKWARD, Machine, Rates};
use crate::store;

/// The linear that is timed, one of a feed-forward: wide enough that its weights are no cache's, in whole blocks of every type.
pub const ROWS: usize = 4864;
/// Its inputs.
pub const COLS: usize = 1024;
/// Tokens that meet it.
pub const TOKENS: usize = 256;
/// Rank of the adapter.
pub const RANK: usize = 16;
/// The attention that is timed.
const HEADS: Heads = Heads { queries: 14, kv: 2, d: 64, scale: 0.125, window: Window::Past };
/// Bytes that are written to and read from the disk.
const DISK: usize = 64 << 20;
/// How long each kernel is run.
const EACH: Duration = Duration::from_millis(60);

/// Types that models come in.
const TYPES: [BlockType; 9] = [
    BlockType::Q4_0,
    BlockType::Q4_1,
    BlockType::Q4_K,
    BlockType::Q5_K,
    BlockType::Q6_K,
    BlockType::Q8_0,
    BlockType::F16,
    BlockType::BF16,
    BlockType::F32,
];

/// What products with one type of weight reach.
#[derive(Clone, Copy, Debug)]
pub struct TypeRates {
    /// How the weight is stored.
    pub ty: BlockType,
    /// Operations a second of `x Wᵀ`.
    pub forward: f64,
    /// Operations a second of `g W`.
    pub backward: f64,
    /// Numbers a second that are dequantised, by all threads together.
    pub dequantise: f64,
}

/// What this machine reaches, for all threads together.
#[derive(Clone, Debug)]
pub struct Reached {
    /// Products with a frozen linear, by type.
    pub types: Vec<TypeRates>,
    /// Operations a second of an adapter's products: `x Aᵀ`, `h B` and `gᵀ x`.
    pub thin: [f64; 3],
    /// Operations a second of attention, forward and backward, by what a program counts.
    pub attention: [f64; 2],
    /// Bytes a second of a pass over values that reads and writes.
    pub pass: f64,
    /// Bytes a second to the spill folder, until they are on the disk.
    pub write: f64,
    /// Bytes a second from it, nothing of them being in memory.
    pub read: f64,
}

impl Reached {
    /// As the planner takes it, for 4-bit weights.
    pub fn rates(&self) -> Rates {
        let frozen = self.types[0];
        Rates {
            product: mean(&[frozen.forward, frozen.backward]),
            thin: mean(&self.thin),
            dequantise: frozen.dequantise,
            attention: mean(&self.attention),
            pass: self.pass,
            write: self.write,
            read: self.read,
        }
    }
}

/// The rate of equal amounts of work, one after the other.
fn mean(rates: &[f64]) -> f64 {
    rates.len() as f64 / rates.iter().map(|rate| 1.0 / rate).sum::<f64>()
}

/// Checks and measures; some seconds. The disk's share happens in `folder`.
///
/// # Errors
/// When a kernel does not match its reference, or the system refuses threads or the disk.
pub fn measure(machine: Machine, folder: &Path) -> Result<Reached> {
    let (write, read) = disk(folder)?;
    let pool = Pool::new(machine.threads).map_err(|error| Error::System(format!("threads: {error}")))?;
    let bench = Bench { machine, pool, values: floats(TOKENS * ROWS), other: floats(TOKENS * ROWS) };
    let types = TYPES.iter().map(|&ty| bench.products(ty)).collect::<Result<_>>()?;
    Ok(Reached { types, thin: bench.thin()?, attention: bench.attention()?, pass: bench.pass()?, write, read })
}

/// Numbers between -1 and 1, the same every time.
fn floats(len: usize) -> Vec<f32> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 23) as f32 - 1.0).collect()
}

/// `len` elements as they would lie in a file. The bytes of half floats in them stay below those of 1.
fn blocks(ty: BlockType, len: usize) -> Vec<u8> {
    match ty {
        BlockType::F32 => floats(len).iter().flat_map(|x| x.to_le_bytes()).collect(),
        BlockType::F16 => floats(len).iter().flat_map(|&x| half::f16::from_f32(x).to_le_bytes()).collect(),
        BlockType::BF16 => floats(len).iter().flat_map(|&x| half::bf16::from_f32(x).to_le_bytes()).collect(),
        _ => {
            let bytes = len / ty.block_len() * ty.block_bytes();
            (0..bytes as u32).map(|i| ((i.wrapping_mul(2_654_435_761) >> 16) % 0x3c) as u8).collect()
        }
    }
}

struct Bench {
    machine: Machine,
    pool: Pool,
    values: Vec<f32>,
    other: Vec<f32>,
}

impl Bench {
    fn ctx<'a>(&'a self, scratch: &'a mut [f32]) -> Ctx<'a> {
        Ctx { pool: &self.pool, isa: self.machine.isa, precision: self.machine.precision, scratch }
    }

    fn products(&self, ty: BlockType) -> Result<TypeRates> {
        let Machine { threads, isa, precision } = self.machine;
        let data = blocks(ty, ROWS * COLS);
        let weight = Weight::new(ty, ROWS, COLS, &data);
        let (narrow, wide) = (&self.values[..TOKENS * COLS], &self.values[..]);
        let (mut to_wide, mut to_narrow) = (vec![0.0; TOKENS * ROWS], vec![0.0; TOKENS * COLS]);
        let flops = 2.0 * (TOKENS * ROWS * COLS) as f64;
        let shape = Shape { ty, rows: ROWS, cols: COLS, n: TOKENS, rank: 0 };
        let mut scratch = vec![0.0; nt_scratch(shape, threads, isa, precision)];
        let mut ctx = self.ctx(&mut scratch);
        check::product(&mut ctx, "x Wᵀ", weight, &self.values)?;
        let forward = flops / best(EACH, || nt(&mut ctx, weight, narrow, TOKENS, &mut to_wide, Start::Zero, None));
        let mut scratch = vec![0.0; nn_scratch(shape, threads, isa, precision)];
        let mut ctx = self.ctx(&mut scratch);
        check::product(&mut ctx, "g W", weight, &self.values)?;
        let backward = flops / best(EACH, || nn(&mut ctx, weight, wide, TOKENS, &mut to_narrow, Start::Zero, None));
        check::dequantise(isa, weight)?;
        // Every thread goes over all of it into a row of its own: nothing but dequantising, as inside a product.
        let seconds = best(EACH, || {
            self.pool.run(threads, &|_, _| {
                let mut row = [0.0; COLS];
                (0..ROWS).for_each(|at| weight.read(isa, at, 0..COLS, &mut row));
                std::hint::black_box(&row);
            });
        });
        Ok(TypeRates { ty, forward, backward, dequantise: (threads * ROWS * COLS) as f64 / seconds })
    }

    /// The products of an adapter on the linear's input.
    fn thin(&self) -> Result<[f64; 3]> {
        let Machine { threads, isa, precision } = self.machine;
        let factor = floats(RANK * COLS);
        let weight = Weight::f32(RANK, COLS, &factor);
        let shape = Shape { ty: BlockType::F32, rows: RANK, cols: COLS, n: TOKENS, rank: 0 };
        let len = nt_scratch(shape, threads, isa, precision)
            .max(nn_scratch(shape, threads, isa, precision))
            .max(tn_scratch(TOKENS, RANK, COLS, threads, isa, precision));
        let (mut scratch, mut y) = (vec![0.0; len], vec![0.0; TOKENS * COLS]);
        let mut ctx = self.ctx(&mut scratch);
        check::product(&mut ctx, "x Wᵀ", weight, &self.values)?;
        check::product(&mut ctx, "g W", weight, &self.values)?;
        check::gradient(&mut ctx, &self.values, &self.other)?;
        let (x, h) = (&self.values[..TOKENS * COLS], &self.other[..TOKENS * RANK]);
        let flops = 2.0 * (TOKENS * RANK * COLS) as f64;
        let down = best(EACH, || nt(&mut ctx, weight, x, TOKENS, &mut y[..TOKENS * RANK], Start::Zero, None));
        let up = best(EACH, || nn(&mut ctx, weight, h, TOKENS, &mut y, Start::Zero, None));
        let gradient = best(EACH, || tn(&mut ctx, h, x, TOKENS, RANK, COLS, &mut y[..RANK * COLS], Start::Zero));
        Ok([down, up, gradient].map(|seconds| flops / seconds))
    }

    fn attention(&self) -> Result<[f64; 2]> {
        let Machine { threads, isa, precision } = self.machine;
        let mut scratch = vec![0.0; attention::backward_scratch(HEADS, TOKENS, TOKENS, threads, isa, precision)];
        let mut ctx = self.ctx(&mut scratch);
        let mut run = |n: usize, each: Duration| {
            let (q_len, kv_len) = (n * HEADS.queries * HEADS.d, n * HEADS.kv * HEADS.d);
            let (q, k, v) = (&self.values[..q_len], &self.other[..kv_len], &self.values[7..7 + kv_len]);
            let go = &self.other[11..11 + q_len];
            let segments = [Segment { q_start: 0, q_len: n, k_start: 0, k_len: n }];
            let (mut out, mut lse) = (vec![0.0; q_len], vec![0.0; n * HEADS.queries]);
            let forward = best(each, || {
                attention::forward(&mut ctx, HEADS, &segments, (q, k, v), (&mut out, &mut lse));
            });
            let (mut gq, mut gk, mut gv) = (vec![0.0; q_len], vec![0.0; kv_len], vec![0.0; kv_len]);
            let backward = best(each, || {
                let (read, write) = ((&out[..], &lse[..], go), (&mut gq[..], &mut gk[..], &mut gv[..]));
                attention::backward(&mut ctx, HEADS, &segments, (q, k, v), read, write);
            });
            let done = check::Attended { q, k, v, go, out: &out, gq: &gq, gk: &gk, gv: &gv };
            done.check(HEADS, &segments, self.machine)?;
            Ok::<_, Error>([forward, backward])
        };
        run(check::TOKENS, Duration::ZERO)?;
        let [forward, backward] = run(TOKENS, EACH)?;
        let pairs = (TOKENS * (TOKENS + 1) / 2 * HEADS.queries * HEADS.d) as f64;
        Ok([ATTENTION * pairs / forward, ATTENTION_BACKWARD * pairs / backward])
    }

    fn pass(&self) -> Result<f64> {
        let (weight, mut y) = (floats(COLS), vec![0.0; self.values.len()]);
        let isa = self.machine.isa;
        check::norm(self.machine, &self.pool, &self.values[..3 * COLS], &weight)?;
        let seconds = best(EACH, || norm::forward(isa, &self.pool, &self.values, &weight, 1e-5, &mut y));
        Ok(8.0 * self.values.len() as f64 / seconds)
    }
}

/// Bytes a second to and from a spill file in `folder`.
fn disk(folder: &Path) -> Result<(f64, f64)> {
    use std::os::unix::fs::FileExt;
    let file = store::spill_file(folder, DISK)?;
    let failed = |error: std::io::Error| Error::io(folder, error);
    let mut piece = blocks(BlockType::F32, 1 << 18);
    let places = || (0..DISK as u64).step_by(1 << 20);
    let start = Instant::now();
    places().try_for_each(|at| file.write_all_at(&piece, at)).and_then(|()| file.sync_data()).map_err(failed)?;
    let write = DISK as f64 / start.elapsed().as_secs_f64();
    store::forget(&file);
    let start = Instant::now();
    places().try_for_each(|at| file.read_exact_at(&mut piece, at)).map_err(failed)?;
    Ok((write, DISK as f64 / start.elapsed().as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_of_rates_is_the_rate_of_the_whole() {
        // Six operations at 1 a second and six at 3 take eight seconds.
        assert!((mean(&[1.0, 3.0]) - 12.0 / 8.0).abs() < 1e-12);
    }

    #[test]
    fn blocks_of_every_type_are_finite_numbers() {
        for ty in TYPES {
            let data = blocks(ty, 4 * COLS);
            let mut row = vec![f32::NAN; 4 * COLS];
            pocketune_kernels::blocks::dequantize(ty, &data, &mut row);
            assert!(row.iter().all(|x| x.is_finite()) && row.iter().any(|x| *x != 0.0), "{}", ty.name());
        }
    }
}
