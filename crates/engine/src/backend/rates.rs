//! How fast this machine's kernels and its disk are, for the planner: a few short runs of the real ones, each the best of several, and a
//! short spill. `pocketune bench` measures for longer and at the sizes of real models (`bench.rs`); what it finds is used instead where it
//! was kept.

use std::path::Path;
use std::time::{Duration, Instant};

use pocketune_kernels::attention::{self, Heads, Segment, Window};
use pocketune_kernels::matmul::{Ctx, Shape, Start, Weight, nt, nt_scratch};
use pocketune_kernels::{BlockType, Pool, dequant, norm};

use super::disk::Disk;
use crate::plan::{Machine, Rates};
use crate::store;

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
        let len = nt_scratch(
            Shape { ty: weight.ty, rows: weight.rows, cols: SIZE, n: TOKENS, rank: 0 },
            machine.threads,
            machine.isa,
            machine.precision,
        );
        let mut scratch = vec![0.0; len];
        let flops = 2.0 * (TOKENS * weight.rows * SIZE) as f64;
        let out = &mut y[..TOKENS * weight.rows];
        flops
            / best(each, || {
                let mut ctx =
                    Ctx { pool: &pool, isa: machine.isa, precision: machine.precision, scratch: &mut scratch };
                nt(&mut ctx, weight, &x, TOKENS, out, Start::Zero, None);
            })
    };
    let adapter = vec![0.1_f32; 16 * SIZE];
    let (frozen, thin) = (product(Weight::new(ty, SIZE, SIZE, &blocks)), product(Weight::f32(16, SIZE, &adapter)));
    let mut row = vec![0.0; SIZE];
    let row_bytes = ty.row_bytes(SIZE).unwrap_or(0);
    let dequantise =
        SIZE as f64 / best(each, || dequant::dequantize_row(machine.isa, ty, &blocks[..row_bytes], &mut row));
    let heads = Heads { queries: 8, kv: 8, d: 64, scale: 0.1, window: Window::Past };
    let segments = [Segment { q_start: 0, q_len: TOKENS, k_start: 0, k_len: TOKENS }];
    let mut lse = vec![0.0; TOKENS * 8];
    let mut scratch = vec![0.0; attention::scratch(heads, TOKENS, machine.threads, machine.isa, machine.precision)];
    let seconds = best(each, || {
        let mut ctx = Ctx { pool: &pool, isa: machine.isa, precision: machine.precision, scratch: &mut scratch };
        attention::forward(&mut ctx, heads, &segments, (&x, &x, &x), (&mut y, &mut lse));
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

/// Bytes that are written and read to time the disk, in pieces of so many floats, for at most so long each way.
const SPILLED: usize = 16 << 20;
const PIECE: usize = 64 << 10;
const LONGEST: Duration = Duration::from_millis(100);

/// Puts what a spill file in `folder` reaches into `rates`: written and read as a step does, through the system's cache. Where there is no
/// room for one, the rates stay; a run that spills says so itself.
pub fn measure_disk(folder: &Path, rates: Rates) -> Rates {
    let timed = || -> Option<Rates> {
        let disk = Disk::new(store::spill_file(folder, SPILLED).ok()?).ok()?;
        let mut piece = vec![0.5_f32; PIECE];
        let write = pieces_a_second(|at| disk.write_now(&piece, at).is_ok())?;
        let read = pieces_a_second(|at| disk.read_now(&mut piece, at).is_ok())?;
        let bytes = (4 * PIECE) as f64;
        Some(Rates { write: write * bytes, read: read * bytes, ..rates })
    };
    timed().unwrap_or(rates)
}

/// How many pieces of the file `pass` handles a second; `None` when it fails.
fn pieces_a_second(mut pass: impl FnMut(usize) -> bool) -> Option<f64> {
    let (start, mut pieces) = (Instant::now(), 0);
    while pieces < SPILLED / (4 * PIECE) && (pieces == 0 || start.elapsed() < LONGEST) {
        if !pass(pieces * PIECE) {
            return None;
        }
        pieces += 1;
    }
    Some(pieces as f64 / start.elapsed().as_secs_f64().max(1e-9))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_timed_quickly_and_nothing_is_left_on_it() {
        let folder = tempfile::tempdir().unwrap();
        let unknown = Rates { write: f64::NAN, read: f64::NAN, ..Rates::TYPICAL };
        let rates = measure_disk(folder.path(), unknown);
        assert!(
            rates.write > 1e5 && rates.read > 1e5 && rates.write.is_finite() && rates.read.is_finite(),
            "{rates:?}"
        );
        assert_eq!(Rates { write: 0.0, read: 0.0, ..rates }, Rates { write: 0.0, read: 0.0, ..Rates::TYPICAL });
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn where_nothing_can_be_written_the_rates_stay() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(measure_disk(&folder.path().join("nowhere"), Rates::TYPICAL), Rates::TYPICAL);
    }
}
