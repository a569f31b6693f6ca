//! How fast this machine's kernels are, for the planner: a few short runs of the real ones, each the best of several. `pocketune bench`
//! measures for longer and at the sizes of real models (`bench.rs`); what it finds is used instead where it was kept.

use std::time::{Duration, Instant};

use pocketune_kernels::attention::{self, Heads, Segment};
use pocketune_kernels::matmul::{Ctx, Start, Weight, nt, nt_scratch};
use pocketune_kernels::{BlockType, Pool, dequant, norm};

use crate::plan::{Machine, Rates};

/// Rows, columns and tokens of the product that is timed.
const SIZE: usize = 512;
const TOKENS: usize = 256;

/// How long each kernel is run.
const EACH: Duration = Duration::from_millis(15);

/// Measures for about a tenth of a second; typical figures where no threads can be had.
pub fn measure_rates(machine: Machine) -> Rates {
    run_kernels(machine, EACH)
}

/// Runs every kernel once, so that its code is resident when the process's own share of memory is looked at: what [`measure_rates`] does
/// beside measuring.
pub fn touch_kernels(machine: Machine) {
    run_kernels(machine, Duration::ZERO);
}

fn run_kernels(machine: Machine, each: Duration) -> Rates {
    let Ok(pool) = Pool::new(machine.threads) else { return Rates::TYPICAL };
    let ty = BlockType::Q4_0;
    let blocks = vec![0x11_u8; SIZE * ty.row_bytes(SIZE).unwrap_or(0)];
    let (x, mut y) = (vec![0.5_f32; TOKENS * SIZE], vec![0.0_f32; TOKENS * SIZE]);
    let mut product = |weight: Weight| {
        let len = nt_scratch(weight.ty, weight.rows, SIZE, TOKENS, machine.threads, machine.isa, machine.precision);
        let mut scratch = vec![0.0; len];
        let flops = 2.0 * (TOKENS * weight.rows * SIZE) as f64;
        let out = &mut y[..TOKENS * weight.rows];
        flops
            / best(each, || {
                let mut ctx =
                    Ctx { pool: &pool, isa: machine.isa, precision: machine.precision, scratch: &mut scratch };
                nt(&mut ctx, weight, &x, TOKENS, out, Start::Zero);
            })
    };
    let adapter = vec![0.1_f32; 16 * SIZE];
    let (frozen, thin) = (product(Weight::new(ty, SIZE, SIZE, &blocks)), product(Weight::f32(16, SIZE, &adapter)));
    let mut row = vec![0.0; SIZE];
    let row_bytes = ty.row_bytes(SIZE).unwrap_or(0);
    let dequantise =
        SIZE as f64 / best(each, || dequant::dequantize_row(machine.isa, ty, &blocks[..row_bytes], &mut row));
    let heads = Heads { queries: 8, kv: 8, d: 64, scale: 0.1, window: None };
    let segments = [Segment { q_start: 0, q_len: TOKENS, k_start: 0, k_len: TOKENS }];
    let (mut lse, mut scratch) = (vec![0.0; TOKENS * 8], vec![0.0; attention::scratch(heads, machine.threads)]);
    let seconds = best(each, || {
        attention::forward(machine.isa, &pool, heads, &segments, &x, &x, &x, &mut y, &mut lse, &mut scratch);
    });
    let attention = 2.0 * (TOKENS * TOKENS * SIZE) as f64 / seconds;
    let weight = vec![1.0; SIZE];
    let norm = best(each, || norm::forward(machine.isa, &pool, &x, &weight, 1e-5, &mut y));
    let pass = 8.0 * (TOKENS * SIZE) as f64 / norm;
    Rates {
        product: frozen,
        thin,
        dequantise: dequantise * machine.threads as f64,
        attention,
        pass,
        write: Rates::TYPICAL.write,
        read: Rates::TYPICAL.read,
    }
}

/// The shortest of the runs that `each` has time for, at least one; in seconds.
pub(super) fn best(each: Duration, mut run: impl FnMut()) -> f64 {
    let mut best = f64::INFINITY;
    let begin = Instant::now();
    loop {
        let start = Instant::now();
        run();
        best = best.min(start.elapsed().as_secs_f64());
        if begin.elapsed() >= each {
            return best.max(1e-9);
        }
    }
}
